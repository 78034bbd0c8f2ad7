// Finished rows of pixels to the numbers of a field.
#pragma once

#include <cstddef>
#include <cstdint>

#include "field_writer_vbmi.h"
#include "headrace/field.h"
#include "transform_impl.h"

namespace headrace {

/// Writes the rows of one image, each value by its channel's table.
template <typename T>
class FieldWriter {
 public:
  /// @param field   of shape [3, height, width]; must outlive the writer.
  /// @param blocks  many pixels at a time; needs vbmi_runs_here().
  FieldWriter(const ValueTable<T>& values, MemoryFormat format, ImageSize size, bool mirrored,
              T* field, bool blocks = vbmi_runs_here())
      : values_(values),
        format_(format),
        width_(static_cast<std::size_t>(size.width)),
        plane_(width_ * static_cast<std::size_t>(size.height)),
        mirrored_(mirrored),
        blocks_(blocks && format == MemoryFormat::kContiguous),
        field_(field) {
    if (blocks_) byte_planes_ = BytePlanes<T>(values);
  }

  /// @param pixels  the row, red, green and blue.
  void write(int y, const std::uint8_t* pixels) const {
    const auto row = static_cast<std::size_t>(y) * width_;
    if (format_ == MemoryFormat::kChannelsLast) return write_pixels(pixels, field_ + 3 * row);
    T* const red = field_ + row;
    const std::size_t done =
        blocks_ ? write_planes_vbmi(pixels, width_, mirrored_, byte_planes_, red, plane_) : 0;
    write_planes(pixels, done, red);
  }

 private:
  const std::uint8_t* pixel_at(const std::uint8_t* pixels, std::size_t x) const {
    return pixels + 3 * (mirrored_ ? width_ - 1 - x : x);
  }

  std::ptrdiff_t step() const { return mirrored_ ? -3 : 3; }

  void write_planes(const std::uint8_t* pixels, std::size_t begin, T* red) const {
    T* green = red + plane_;
    T* blue = green + plane_;
    const std::uint8_t* pixel = pixel_at(pixels, begin);
    for (std::size_t x = begin; x < width_; ++x, pixel += step()) {
      red[x] = values_[0][pixel[0]];
      green[x] = values_[1][pixel[1]];
      blue[x] = values_[2][pixel[2]];
    }
  }

  void write_pixels(const std::uint8_t* pixels, T* out) const {
    const std::uint8_t* pixel = pixel_at(pixels, 0);
    for (std::size_t x = 0; x < width_; ++x, pixel += step(), out += 3) {
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
  bool blocks_;
  BytePlanes<T> byte_planes_;
  T* field_;
};

}  // namespace headrace
