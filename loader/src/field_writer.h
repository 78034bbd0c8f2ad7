// Finished rows of pixels to the numbers of a field.
#pragma once

#include <cstddef>
#include <cstdint>

#include "headrace/field.h"
#include "transform_impl.h"

namespace headrace {

/// Writes the rows of one image, each value by its channel's table.
template <typename T>
class FieldWriter {
 public:
  /// @param field  of shape [3, height, width]; must outlive the writer.
  FieldWriter(const ValueTable<T>& values, MemoryFormat format, ImageSize size, bool mirrored,
              T* field)
      : values_(values),
        format_(format),
        width_(static_cast<std::size_t>(size.width)),
        plane_(width_ * static_cast<std::size_t>(size.height)),
        mirrored_(mirrored),
        field_(field) {}

  /// @param pixel  the row's first one, red, green and blue.
  void write(int y, const std::uint8_t* pixel) const {
    const auto row = static_cast<std::size_t>(y) * width_;
    if (mirrored_) pixel += 3 * (width_ - 1);
    const std::ptrdiff_t step = mirrored_ ? -3 : 3;
    if (format_ == MemoryFormat::kChannelsLast) {
      write_pixels(pixel, step, field_ + 3 * row);
    } else {
      write_planes(pixel, step, field_ + row);
    }
  }

 private:
  void write_planes(const std::uint8_t* pixel, std::ptrdiff_t step, T* red) const {
    T* green = red + plane_;
    T* blue = green + plane_;
    for (std::size_t x = 0; x < width_; ++x, pixel += step) {
      red[x] = values_[0][pixel[0]];
      green[x] = values_[1][pixel[1]];
      blue[x] = values_[2][pixel[2]];
    }
  }

  void write_pixels(const std::uint8_t* pixel, std::ptrdiff_t step, T* out) const {
    for (std::size_t x = 0; x < width_; ++x, pixel += step, out += 3) {
      out[0] = values_[0][pixel[0]];
      out[1] = values_[1][pixel[1]];
      out[2] = values_[2][pixel[2]];
    }
  }

  const ValueTable<T>& values_;
  MemoryFormat format_;
  std::size_t width_;
  std::size_t plane_;
  bool mirrored_;
  T* field_;
};

}  // namespace headrace
