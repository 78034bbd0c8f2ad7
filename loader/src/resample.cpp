#include "resample.h"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>

namespace headrace {
namespace {

constexpr int kChannels = 3;
// Weights are fixed-point numbers; 22 bits leave room for 8-bit pixels and bicubic overshoot.
constexpr int kWeightBits = 22;
constexpr std::int32_t kHalf = 1 << (kWeightBits - 1);

std::size_t row_bytes_of(int width) { return static_cast<std::size_t>(width) * kChannels; }

double bilinear(double x) {
  x = std::abs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double bicubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * kA;
  return 0.0;
}

/// For each output position of one axis: which source positions count, and how much.
struct Weights {
  std::vector<int> first;  // source position of the first tap
  std::vector<int> count;
  std::size_t taps = 0;              // row length of `weight`
  std::vector<std::int32_t> weight;  // [position, taps]

  int begin() const { return first.front(); }
  int length() const { return first.back() + count.back() - begin(); }
  /// Lets the source start with the first position that counts.
  void rebase() {
    const int origin = begin();
    for (int& position : first) position -= origin;
  }
};

/// For the output positions from `begin` on. Every operation and its order matter here: the
/// double-precision weights decide the pixels.
Weights make_weights(int source_length, int length, Filter filter, int begin, int wanted) {
  const auto kernel = filter == Filter::kBilinear ? bilinear : bicubic;
  const double scale = static_cast<double>(source_length) / length;
  const double stretch = std::max(scale, 1.0);  // antialiasing: wider when shrinking
  const double support = (filter == Filter::kBilinear ? 1.0 : 2.0) * stretch;
  const double inverse_stretch = 1.0 / stretch;

  Weights weights;
  weights.taps = static_cast<std::size_t>(std::ceil(support)) * 2 + 1;
  const auto positions = static_cast<std::size_t>(wanted);
  weights.first.resize(positions);
  weights.count.resize(positions);
  weights.weight.resize(positions * weights.taps);
  std::vector<double> exact(weights.taps);

  for (std::size_t i = 0; i < positions; ++i) {
    const double center = (begin + static_cast<int>(i) + 0.5) * scale;
    const int first = std::max(static_cast<int>(center - support + 0.5), 0);
    const int last = std::min(static_cast<int>(center + support + 0.5), source_length);
    const auto count = static_cast<std::size_t>(last - first);
    double sum = 0.0;
    for (std::size_t tap = 0; tap < count; ++tap) {
      exact[tap] = kernel((static_cast<int>(tap) + first - center + 0.5) * inverse_stretch);
      sum += exact[tap];
    }
    std::int32_t* out = &weights.weight[i * weights.taps];
    for (std::size_t tap = 0; tap < count; ++tap) {
      const double share = (sum != 0.0 ? exact[tap] / sum : exact[tap]) * (1 << kWeightBits);
      out[tap] = static_cast<std::int32_t>(share + (share < 0 ? -0.5 : 0.5));
    }
    weights.first[i] = first;
    weights.count[i] = static_cast<int>(count);
  }
  return weights;
}

std::uint8_t to_pixel(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

void resample_row(const std::uint8_t* source, const Weights& weights, std::uint8_t* out) {
  for (std::size_t x = 0; x < weights.first.size(); ++x) {
    const std::uint8_t* pixel = source + static_cast<std::size_t>(weights.first[x]) * kChannels;
    const std::int32_t* weight = &weights.weight[x * weights.taps];
    std::int32_t red = kHalf;
    std::int32_t green = kHalf;
    std::int32_t blue = kHalf;
    for (int tap = 0; tap < weights.count[x]; ++tap, pixel += kChannels) {
      red += weight[tap] * pixel[0];
      green += weight[tap] * pixel[1];
      blue += weight[tap] * pixel[2];
    }
    out[0] = to_pixel(red);
    out[1] = to_pixel(green);
    out[2] = to_pixel(blue);
    out += kChannels;
  }
}

/// One output row out of `count` source rows, all columns alike.
void blend_rows(const std::uint8_t* source, std::size_t stride, const std::int32_t* weight,
                int count, std::size_t row_bytes, std::uint8_t* out) {
  constexpr std::size_t kBlock = 64;  // sums that stay in registers or the nearest cache
  std::array<std::int32_t, kBlock> sums;
  for (std::size_t begin = 0; begin < row_bytes; begin += kBlock) {
    const std::size_t bytes = std::min(kBlock, row_bytes - begin);
    sums.fill(kHalf);
    for (int tap = 0; tap < count; ++tap) {
      const std::uint8_t* row = source + static_cast<std::size_t>(tap) * stride + begin;
      for (std::size_t i = 0; i < bytes; ++i) sums[i] += weight[tap] * row[i];
    }
    for (std::size_t i = 0; i < bytes; ++i) out[begin + i] = to_pixel(sums[i]);
  }
}

/// The horizontal pass.
RgbView resample_columns(const RgbView& source, const Weights& weights, std::uint8_t* out) {
  const ImageSize size{static_cast<int>(weights.first.size()), source.size.height};
  const std::size_t row_bytes = row_bytes_of(size.width);
  for (int y = 0; y < size.height; ++y) {
    resample_row(source.row(y), weights, out + static_cast<std::size_t>(y) * row_bytes);
  }
  return {out, row_bytes, size};
}

/// The vertical pass.
RgbView resample_rows(const RgbView& source, const Weights& weights, std::uint8_t* out) {
  const ImageSize size{source.size.width, static_cast<int>(weights.first.size())};
  const std::size_t row_bytes = row_bytes_of(size.width);
  for (std::size_t y = 0; y < weights.first.size(); ++y) {
    blend_rows(source.row(weights.first[y]), source.stride, &weights.weight[y * weights.taps],
               weights.count[y], row_bytes, out + y * row_bytes);
  }
  return {out, row_bytes, size};
}

bool height_comes_first(ImageSize from, ImageSize to, PassOrder order) {
  const std::int64_t lost_width = from.width - to.width;
  const std::int64_t lost_height = from.height - to.height;
  switch (order) {
    case PassOrder::kWidthFirst:
      return false;
    case PassOrder::kWidthFirstUnlessTall:
      return lost_height > 0 && from.height > std::int64_t{100} * from.width;
    case PassOrder::kBySize:
      return lost_height > std::max<std::int64_t>(0, 2 * lost_width);
  }
  return false;
}

std::uint8_t* room_for(std::vector<std::uint8_t>& buffer, int width, int height) {
  buffer.resize(row_bytes_of(width) * static_cast<std::size_t>(height));
  return buffer.data();
}

/// Source position of each output position. Pillow adds up steps, so rounding errors add up too,
/// and the last ones may fall off the end: -1.
std::vector<int> nearest_positions(int source_length, int length) {
  const double step = static_cast<double>(source_length) / length;
  std::vector<int> positions(static_cast<std::size_t>(length));
  double at = step * 0.5;
  for (int& position : positions) {
    const int rounded = static_cast<int>(at);
    position = rounded < source_length ? rounded : -1;
    at += step;
  }
  return positions;
}

void resize_nearest(const RgbView& source, ImageSize size, const Region& window, RgbImage& out) {
  const std::vector<int> columns = nearest_positions(source.size.width, size.width);
  const std::vector<int> rows = nearest_positions(source.size.height, size.height);
  std::uint8_t* to = out.pixels.data();
  for (int y = window.top; y < window.top + window.height; ++y) {
    const int row = rows[static_cast<std::size_t>(y)];
    for (int x = window.left; x < window.left + window.width; ++x, to += kChannels) {
      const int column = columns[static_cast<std::size_t>(x)];
      if (row < 0 || column < 0) {
        std::memset(to, 0, kChannels);
      } else {
        std::memcpy(to, source.row(row) + static_cast<std::size_t>(column) * kChannels, kChannels);
      }
    }
  }
}

}  // namespace

RgbView view_of(const RgbImage& image) noexcept {
  return {image.pixels.data(), row_bytes_of(image.size.width), image.size};
}

RgbView part_of(const RgbView& view, const Region& window) noexcept {
  return {
      view.row(window.top) + row_bytes_of(window.left), view.stride, {window.width, window.height}};
}

void resize(const RgbView& source, ImageSize size, Filter filter, PassOrder order,
            const Region& window, std::vector<std::uint8_t>& intermediate, RgbImage& out) {
  if (size == source.size) return crop(source, window, out);
  out.reshape({window.width, window.height});
  if (filter == Filter::kNearest) return resize_nearest(source, size, window, out);

  // Pillow leaves out the pass along an axis that keeps its length.
  const auto [width, height] = source.size;
  Weights across;
  Weights down;
  if (size.width != width) {
    across = make_weights(width, size.width, filter, window.left, window.width);
  }
  if (size.height != height) {
    down = make_weights(height, size.height, filter, window.top, window.height);
  }

  std::uint8_t* const to = out.pixels.data();
  if (size.height == height) {
    resample_columns(part_of(source, {0, window.top, width, window.height}), across, to);
  } else if (size.width == width) {
    resample_rows(part_of(source, {window.left, 0, window.width, height}), down, to);
  } else if (height_comes_first(source.size, size, order)) {
    // The first pass makes only what the second one reads.
    const RgbView needed = part_of(source, {across.begin(), 0, across.length(), height});
    across.rebase();
    auto* const between = room_for(intermediate, needed.size.width, window.height);
    resample_columns(resample_rows(needed, down, between), across, to);
  } else {
    const RgbView needed = part_of(source, {0, down.begin(), width, down.length()});
    down.rebase();
    auto* const between = room_for(intermediate, window.width, needed.size.height);
    resample_rows(resample_columns(needed, across, between), down, to);
  }
}

void crop(const RgbView& source, const Region& window, RgbImage& out) {
  out.reshape({window.width, window.height});
  const int begin = std::clamp(-window.left, 0, window.width);
  const int end = std::clamp(source.size.width - window.left, begin, window.width);
  std::uint8_t* to = out.pixels.data();
  for (int y = window.top; y < window.top + window.height; ++y, to += row_bytes_of(window.width)) {
    if (y < 0 || y >= source.size.height || begin == end) {
      std::memset(to, 0, row_bytes_of(window.width));
      continue;
    }
    std::memset(to, 0, row_bytes_of(begin));
    std::memcpy(to + row_bytes_of(begin), source.row(y) + row_bytes_of(window.left + begin),
                row_bytes_of(end - begin));
    std::memset(to + row_bytes_of(end), 0, row_bytes_of(window.width - end));
  }
}

void flip(const RgbView& source, RgbImage& out) {
  out.reshape(source.size);
  std::uint8_t* to = out.pixels.data();
  for (int y = 0; y < source.size.height; ++y) {
    for (int x = source.size.width - 1; x >= 0; --x, to += kChannels) {
      std::memcpy(to, source.row(y) + row_bytes_of(x), kChannels);
    }
  }
}

}  // namespace headrace
