#include "resample.h"

#include <algorithm>
#include <cstring>
#include <utility>

#include "resample_weights.h"

namespace headrace {
namespace {

constexpr int kChannels = 3;

std::size_t row_bytes_of(int width) { return static_cast<std::size_t>(width) * kChannels; }

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

/// One resize: the weights, the kernels and the memory between the passes.
class Resize {
 public:
  Resize(const Kernels& kernels, std::vector<std::uint8_t>& memory, const RowSink& sink)
      : kernels_(kernels), memory_(memory), sink_(sink) {}

  void columns(const RgbView& source, Weights across) {
    kernels_.prepare_columns(across, row_bytes_of(source.size.width));
    std::uint8_t* const row = room_for(across.positions(), 1);
    for (int y = 0; y < source.size.height; ++y) {
      kernels_.blend_columns(source.row(y), bytes_behind(source, y), across, row);
      sink_(y, row);
    }
  }

  void rows(const RgbView& source, Weights down) {
    kernels_.prepare_rows(down);
    std::uint8_t* const row = room_for(static_cast<std::size_t>(source.size.width), 1);
    for (std::size_t y = 0; y < down.positions(); ++y) {
      blend(source, down, y, row);
      sink_(static_cast<int>(y), row);
    }
  }

  void rows_then_columns(const RgbView& source, Weights down, Weights across) {
    kernels_.prepare_rows(down);
    kernels_.prepare_columns(across, row_bytes_of(source.size.width));
    const auto width = static_cast<std::size_t>(source.size.width);
    std::uint8_t* const row = room_for(width + across.positions(), 1);
    std::uint8_t* const between = row + across.positions() * kChannels;
    for (std::size_t y = 0; y < down.positions(); ++y) {
      blend(source, down, y, between);
      kernels_.blend_columns(between, kSpareBytes, across, row);
      sink_(static_cast<int>(y), row);
    }
  }

  void columns_then_rows(const RgbView& source, Weights across, Weights down) {
    kernels_.prepare_columns(across, row_bytes_of(source.size.width));
    kernels_.prepare_rows(down);
    const int width = static_cast<int>(across.positions());
    const int height = source.size.height;
    std::uint8_t* const row = room_for(across.positions(), static_cast<std::size_t>(height) + 1);
    std::uint8_t* const pixels = row + row_bytes_of(width);
    const RgbView between{pixels, row_bytes_of(width), {width, height}};
    int done = 0;
    for (std::size_t y = 0; y < down.positions(); ++y) {
      // Just before they are needed, while the nearest cache holds them.
      for (; done < down.first[y] + down.count[y]; ++done) {
        kernels_.blend_columns(source.row(done), bytes_behind(source, done), across,
                               pixels + static_cast<std::size_t>(done) * between.stride);
      }
      blend(between, down, y, row);
      sink_(static_cast<int>(y), row);
    }
  }

 private:
  // Behind a row of our own; enough for all but the longest filters.
  static constexpr std::size_t kSpareBytes = 64;

  /// The rows below: a kernel may read on into them.
  static std::size_t bytes_behind(const RgbView& source, int y) {
    return static_cast<std::size_t>(source.size.height - 1 - y) * source.stride;
  }

  std::uint8_t* room_for(std::size_t width, std::size_t rows) {
    memory_.resize(std::max(memory_.size(), width * kChannels * rows + kSpareBytes));
    return memory_.data();
  }

  void blend(const RgbView& source, const Weights& down, std::size_t y, std::uint8_t* row) const {
    kernels_.blend_rows(source.row(down.first[y]), source.stride, down, y,
                        row_bytes_of(source.size.width), row);
  }

  const Kernels& kernels_;
  std::vector<std::uint8_t>& memory_;
  const RowSink& sink_;
};

/// Where on an axis the pixel for `place` lies; negative: nowhere.
int place_in(int length, int place, Border::Mode mode) {
  if (place >= 0 && place < length) return place;
  const bool before = place < 0;
  switch (mode) {
    case Border::Mode::kConstant:
      return -1;
    case Border::Mode::kEdge:
      return before ? 0 : length - 1;
    case Border::Mode::kReflect:
      return before ? -place : 2 * (length - 1) - place;
    case Border::Mode::kSymmetric:
      return before ? -1 - place : 2 * length - 1 - place;
  }
  return -1;
}

void resize_nearest(const RgbView& source, ImageSize size, const Region& window,
                    std::vector<std::uint8_t>& memory, const RowSink& sink) {
  const std::vector<int> columns = nearest_positions(source.size.width, size.width);
  const std::vector<int> rows = nearest_positions(source.size.height, size.height);
  memory.resize(std::max(memory.size(), row_bytes_of(window.width)));
  for (int y = 0; y < window.height; ++y) {
    const int at_y = window.top + y;
    const int from_y = rows[static_cast<std::size_t>(at_y)];
    std::uint8_t* to = memory.data();
    for (int x = 0; x < window.width; ++x, to += kChannels) {
      const int at_x = window.left + x;
      const int from_x = columns[static_cast<std::size_t>(at_x)];
      if (from_y < 0 || from_x < 0) {
        std::memset(to, 0, kChannels);
      } else {
        std::memcpy(to, source.row(from_y) + row_bytes_of(from_x), kChannels);
      }
    }
    sink(y, memory.data());
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

RowSink copy_to(RgbImage& image) {
  return [&image](int y, const std::uint8_t* row) {
    const std::size_t row_bytes = row_bytes_of(image.size.width);
    std::memcpy(image.pixels.data() + static_cast<std::size_t>(y) * row_bytes, row, row_bytes);
  };
}

Region needed(ImageSize from, ImageSize size, Filter filter, const Region& window) {
  if (filter == Filter::kNearest && size != from) return Region::whole(from);  // cheap anyway
  const auto axis = [filter](int source_length, int length, int begin, int wanted) -> Reach {
    if (source_length == length) return {begin, begin + wanted};
    return reach_of(source_length, length, filter, begin, wanted);
  };
  const Reach columns = axis(from.width, size.width, window.left, window.width);
  const Reach rows = axis(from.height, size.height, window.top, window.height);
  return {columns.first, rows.first, columns.last - columns.first, rows.last - rows.first};
}

void resize(const PartialView& source, ImageSize size, Filter filter, PassOrder order,
            const Region& window, const Kernels& kernels, std::vector<std::uint8_t>& memory,
            const RowSink& sink) {
  const auto [width, height] = source.image;
  const Region reads = needed(source.image, size, filter, window);
  const RgbView at_hand = part_of(
      source.pixels, {reads.left - source.left, reads.top - source.top, reads.width, reads.height});
  if (size == source.image) {
    for (int y = 0; y < window.height; ++y) sink(y, at_hand.row(y));
    return;
  }
  if (filter == Filter::kNearest) {
    return resize_nearest(at_hand, size, window, memory, sink);
  }

  // Pillow leaves out the pass along an axis that keeps its length.
  Weights across;
  Weights down;
  if (size.width != width) {
    across = make_weights(width, size.width, filter, window.left, window.width);
    across.rebase();
  }
  if (size.height != height) {
    down = make_weights(height, size.height, filter, window.top, window.height);
    down.rebase();
  }

  Resize passes(kernels, memory, sink);
  if (size.height == height) {
    passes.columns(at_hand, std::move(across));
  } else if (size.width == width) {
    passes.rows(at_hand, std::move(down));
  } else if (height_comes_first(source.image, size, order)) {
    passes.rows_then_columns(at_hand, std::move(down), std::move(across));
  } else {
    passes.columns_then_rows(at_hand, std::move(across), std::move(down));
  }
}

void crop(const RgbView& source, const Region& window, const Border& border, RgbImage& out) {
  out.reshape({window.width, window.height});
  const int begin = std::clamp(-window.left, 0, window.width);
  const int end = std::clamp(source.size.width - window.left, begin, window.width);
  std::uint8_t* to = out.pixels.data();
  for (int y = window.top; y < window.top + window.height; ++y) {
    const int from_y = place_in(source.size.height, y, border.mode);
    const auto copy_border = [&](int first, int last) {
      for (int x = first; x < last; ++x, to += kChannels) {
        const int from_x = place_in(source.size.width, window.left + x, border.mode);
        const bool fill = from_y < 0 || from_x < 0;
        std::memcpy(to, fill ? border.fill.data() : source.row(from_y) + row_bytes_of(from_x),
                    kChannels);
      }
    };
    if (from_y < 0) {
      copy_border(0, window.width);
      continue;
    }
    copy_border(0, begin);
    if (begin < end) {
      const std::size_t inside = row_bytes_of(end - begin);
      std::memcpy(to, source.row(from_y) + row_bytes_of(window.left + begin), inside);
      to += inside;
    }
    copy_border(end, window.width);
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

void gray(const RgbView& source, RgbImage& out) {
  constexpr std::uint32_t kRed = 19595;  // of 65536, as ITU-R 601-2 has it
  constexpr std::uint32_t kGreen = 38470;
  constexpr std::uint32_t kBlue = 7471;
  out.reshape(source.size);
  std::uint8_t* to = out.pixels.data();
  for (int y = 0; y < source.size.height; ++y) {
    const std::uint8_t* from = source.row(y);
    for (int x = 0; x < source.size.width; ++x, from += kChannels, to += kChannels) {
      const std::uint32_t sum = kRed * from[0] + kGreen * from[1] + kBlue * from[2] + 0x8000;
      to[0] = to[1] = to[2] = static_cast<std::uint8_t>(sum >> 16);
    }
  }
}

}  // namespace headrace
