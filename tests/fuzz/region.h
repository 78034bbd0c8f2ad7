// What the fuzzers of decoders share: a region that follows from the file, and its comparison.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>

#include "headrace/image.h"

namespace headrace::fuzz {

/// Follows from the file alone, so that a crash can be repeated.
inline Region some_region(ImageSize image, const std::uint8_t* data, std::size_t size) {
  unsigned seed = 0;
  for (std::size_t i = 0; i < size; ++i) seed = seed * 31 + data[i];
  const auto draw = [&seed](int below) {
    seed = seed * 1664525 + 1013904223;
    return static_cast<int>((seed >> 8) % static_cast<unsigned>(below));
  };
  const int width = 1 + draw(image.width);
  const int height = 1 + draw(image.height);
  return {draw(image.width - width + 1), draw(image.height - height + 1), width, height};
}

inline bool is_part(const RgbImage& part, const RgbImage& image, const Region& region) {
  const auto at = [](const RgbImage& of, int x, int y) {
    return &of.pixels[(static_cast<std::size_t>(y) * static_cast<std::size_t>(of.size.width) +
                       static_cast<std::size_t>(x)) *
                      3];
  };
  for (int y = 0; y < region.height; ++y) {
    if (std::memcmp(at(part, 0, y), at(image, region.left, region.top + y),
                    static_cast<std::size_t>(region.width) * 3) != 0) {
      return false;
    }
  }
  return true;
}

}  // namespace headrace::fuzz
