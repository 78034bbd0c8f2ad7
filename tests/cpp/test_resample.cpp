#include <cstdint>
#include <random>
#include <vector>

#include "resample.h"
#include "support.h"

using headrace::all_kernels;
using headrace::copy_to;
using headrace::crop;
using headrace::Filter;
using headrace::flip;
using headrace::ImageSize;
using headrace::Kernels;
using headrace::part_of;
using headrace::PassOrder;
using headrace::Region;
using headrace::resize;
using headrace::RgbImage;
using headrace::RgbView;
using headrace::view_of;

namespace {

constexpr Filter kFilters[] = {Filter::kNearest, Filter::kBilinear, Filter::kBicubic};

/// Hard edges everywhere, so that overshoot and rounding show.
RgbImage pattern(ImageSize size) {
  RgbImage image;
  image.reshape(size);
  auto* to = image.pixels.data();
  for (int y = 0; y < size.height; ++y) {
    for (int x = 0; x < size.width; ++x) {
      for (int c = 0; c < 3; ++c) {
        const int value = (x * 7 + y * 13 + c * 101 + x * y * 3) ^ (x * x * 5 + c * y);
        *to++ = static_cast<std::uint8_t>(value & 255);
      }
    }
  }
  return image;
}

RgbImage resized(const RgbView& source, ImageSize size, Filter filter, const Region& window,
                 PassOrder order, const Kernels& kernels = headrace::best_kernels()) {
  std::vector<std::uint8_t> memory;
  RgbImage out;
  out.reshape(window.size());
  resize(source, size, filter, order, window, kernels, memory, copy_to(out));
  return out;
}

RgbImage resized(const RgbImage& image, ImageSize size, Filter filter, const Region& window,
                 PassOrder order = PassOrder::kBySize) {
  return resized(view_of(image), size, filter, window, order);
}

RgbImage resized(const RgbImage& image, ImageSize size, Filter filter,
                 PassOrder order = PassOrder::kBySize) {
  return resized(image, size, filter, {0, 0, size.width, size.height}, order);
}

/// Mostly extremes: they overflow first.
RgbImage noise(ImageSize size, std::mt19937& random) {
  RgbImage image;
  image.reshape(size);
  for (auto& value : image.pixels) {
    const auto word = random();
    value = static_cast<std::uint8_t>((word & 256) != 0 ? word : (word & 512) != 0 ? 255 : 0);
  }
  return image;
}

RgbImage cropped(const RgbImage& image, const Region& window) {
  RgbImage out;
  crop(view_of(image), window, {}, out);
  return out;
}

std::uint32_t fnv1a(const std::vector<std::uint8_t>& bytes) {
  std::uint32_t hash = 2166136261u;
  for (const std::uint8_t byte : bytes) hash = (hash ^ byte) * 16777619u;
  return hash;
}

}  // namespace

TEST_CASE("resize gives the pixels that Pillow gave", "[resample]") {
  struct Known {
    ImageSize from;
    ImageSize to;
    Filter filter;
    std::uint32_t hash;
  };
  const Known known[] = {
      {{50, 37}, {22, 24}, Filter::kNearest, 0x2f61366fu},
      {{50, 37}, {22, 24}, Filter::kBilinear, 0x7c647774u},
      {{50, 37}, {22, 24}, Filter::kBicubic, 0x2f7eba35u},
      {{20, 30}, {41, 30}, Filter::kNearest, 0xb78b6569u},
      {{20, 30}, {41, 30}, Filter::kBilinear, 0x45c24b2eu},
      {{20, 30}, {41, 30}, Filter::kBicubic, 0x8b7ef9c6u},
      {{20, 30}, {20, 7}, Filter::kNearest, 0xb4691d31u},
      {{20, 30}, {20, 7}, Filter::kBilinear, 0x36348173u},
      {{20, 30}, {20, 7}, Filter::kBicubic, 0x64c768feu},
      {{1, 9}, {13, 3}, Filter::kNearest, 0x5f1a9aeeu},
      {{1, 9}, {13, 3}, Filter::kBilinear, 0x218cb758u},
      {{1, 9}, {13, 3}, Filter::kBicubic, 0xae2f1bf2u},
      {{200, 3}, {5, 40}, Filter::kNearest, 0xb725726du},
      {{200, 3}, {5, 40}, Filter::kBilinear, 0x541a3ee8u},
      {{200, 3}, {5, 40}, Filter::kBicubic, 0x4c1aa68au},
      {{33, 33}, {64, 65}, Filter::kNearest, 0xbb4f7cc5u},
      {{33, 33}, {64, 65}, Filter::kBilinear, 0x0244909cu},
      {{33, 33}, {64, 65}, Filter::kBicubic, 0x1410f3b9u},
  };
  for (const Known& one : known) {
    CAPTURE(one.from.width, one.from.height, one.to.width, one.to.height, int(one.filter));
    REQUIRE(fnv1a(resized(pattern(one.from), one.to, one.filter).pixels) == one.hash);
  }
}

TEST_CASE("resize rounds between the passes, in the order asked for", "[resample]") {
  const RgbImage image = pattern({40, 90});
  const auto two_steps = [&](ImageSize between, ImageSize size) {
    return resized(resized(image, between, Filter::kBicubic), size, Filter::kBicubic).pixels;
  };
  // The height loses more than twice what the width loses; then exactly twice.
  for (const ImageSize size : {ImageSize{30, 69}, {30, 70}}) {
    const auto width_first = two_steps({size.width, 90}, size);
    const auto height_first = two_steps({40, size.height}, size);
    REQUIRE(width_first != height_first);
    REQUIRE(resized(image, size, Filter::kBicubic, PassOrder::kWidthFirst).pixels == width_first);
    REQUIRE(resized(image, size, Filter::kBicubic, PassOrder::kBySize).pixels ==
            (size.height == 69 ? height_first : width_first));
  }
}

TEST_CASE("resize starts with the height of images over 100 widths tall", "[resample]") {
  for (const ImageSize from : {ImageSize{3, 300}, {3, 301}}) {
    const RgbImage image = pattern(from);
    const ImageSize size{7, 250};
    const RgbImage height_first = resized(image, {3, 250}, Filter::kBicubic);
    const RgbImage found = resized(image, size, Filter::kBicubic, PassOrder::kWidthFirstUnlessTall);
    const bool equal = found.pixels == resized(height_first, size, Filter::kBicubic).pixels;
    REQUIRE(equal == (from.height == 301));
  }
}

TEST_CASE("resize to the same size copies", "[resample]") {
  const RgbImage image = pattern({17, 11});
  for (const Filter filter : kFilters) {
    REQUIRE(resized(image, image.size, filter).pixels == image.pixels);
  }
}

TEST_CASE("resize of a window equals the window of a resize", "[resample]") {
  const RgbImage image = pattern({40, 31});
  for (const ImageSize size : {ImageSize{23, 19}, {77, 50}, {77, 5}, {40, 10}, {9, 31}, {40, 31}}) {
    for (const Filter filter : kFilters) {
      const RgbImage whole = resized(image, size, filter);
      for (const Region& window : {Region{0, 0, 1, 1}, {3, 2, 5, 3}, {8, 4, 1, 1}}) {
        CAPTURE(size.width, size.height, int(filter), window.left);
        const RgbImage part = resized(image, size, filter, window);
        REQUIRE(part.size == ImageSize{window.width, window.height});
        REQUIRE(part.pixels == cropped(whole, window).pixels);
      }
    }
  }
}

TEST_CASE("resize of a crop sees nothing outside of the crop", "[resample]") {
  const RgbImage image = pattern({40, 31});
  const Region window{5, 6, 20, 17};
  for (const Filter filter : kFilters) {
    const RgbImage out =
        resized(part_of(view_of(image), window), {9, 8}, filter, {0, 0, 9, 8}, PassOrder::kBySize);
    REQUIRE(out.pixels == resized(cropped(image, window), {9, 8}, filter).pixels);
  }
}

TEST_CASE("every kernel resizes as the plain one does", "[resample][kernels]") {
  std::mt19937 random(5);
  const auto draw = [&](int below) {
    return 1 + static_cast<int>(random() % static_cast<unsigned>(below));
  };
  for (const Kernels& kernels : all_kernels().subspan(1)) {
    if (!kernels.runs_here()) {
      WARN("skipped: this processor does not run the kernels " << kernels.name);
      continue;
    }
    INFO("kernels " << kernels.name);
    for (int i = 0; i < 1500; ++i) {
      const int largest = i % 3 == 0 ? 400 : 70;
      // Exactly as large as it looks, for the sanitizer to catch a read beyond the end.
      const RgbImage image = noise({draw(largest), draw(largest)}, random);
      const ImageSize size{draw(90), draw(90)};
      const Region window{draw(size.width) - 1, draw(size.height) - 1, 1, 1};
      const Region part{window.left, window.top, draw(size.width - window.left),
                        draw(size.height - window.top)};
      const Filter filter = i % 2 == 0 ? Filter::kBilinear : Filter::kBicubic;
      const PassOrder order = i % 5 == 0 ? PassOrder::kWidthFirst : PassOrder::kBySize;
      CAPTURE(image.size.width, image.size.height, size.width, size.height);
      const auto by = [&](const Kernels& one) {
        return resized(view_of(image), size, filter, i % 4 == 0 ? Region::whole(size) : part, order,
                       one)
            .pixels;
      };
      REQUIRE(by(kernels) == by(all_kernels().front()));
    }
  }
}

TEST_CASE("crop is black outside of the image", "[resample]") {
  const RgbImage image = pattern({4, 3});
  const RgbImage out = cropped(image, {-2, -1, 7, 5});
  for (int y = 0; y < 5; ++y) {
    for (int x = 0; x < 7; ++x) {
      const bool inside = x >= 2 && x < 6 && y >= 1 && y < 4;
      for (int c = 0; c < 3; ++c) {
        const auto from = static_cast<std::size_t>(((y - 1) * 4 + x - 2) * 3 + c);
        const auto to = static_cast<std::size_t>((y * 7 + x) * 3 + c);
        REQUIRE(int(out.pixels[to]) == (inside ? int(image.pixels[from]) : 0));
      }
    }
  }
}

TEST_CASE("crop beside the image is all black", "[resample]") {
  const RgbImage image = pattern({4, 3});
  for (const Region& window : {Region{4, 0, 3, 2}, {-5, 0, 3, 2}, {0, 3, 3, 2}, {0, -9, 3, 2}}) {
    REQUIRE(cropped(image, window).pixels == std::vector<std::uint8_t>(18, 0));
  }
}

TEST_CASE("flip mirrors each row", "[resample]") {
  RgbImage image;
  image.reshape({2, 2});
  image.pixels = {1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12};
  RgbImage out;
  flip(view_of(image), out);
  REQUIRE(out.pixels == std::vector<std::uint8_t>{4, 5, 6, 1, 2, 3, 10, 11, 12, 7, 8, 9});
}
