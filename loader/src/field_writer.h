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
  /// @param spec    of shape [channels, height, width], with 3 channels or 1.
  /// @param field   such a field; must outlive the writer.
  /// @param blocks  many pixels at a time; needs vbmi_runs_here().
  FieldWriter(const ValueTable<T>& values, const FieldSpec& spec, bool mirrored, T* field,
              bool blocks = vbmi_runs_here())
      : values_(values),
        layout_(spec.shape[0] == 1                                  ? Layout::kGray
                : spec.memory_format == MemoryFormat::kChannelsLast ? Layout::kPixels
                                                                    : Layout::kPlanes),
        width_(static_cast<std::size_t>(spec.shape[2])),
        plane_(width_ * static_cast<std::size_t>(spec.shape[1])),
        mirrored_(mirrored),
        blocks_(blocks && layout_ == Layout::kPlanes),
        field_(field) {
    if (blocks_) byte_planes_ = BytePlanes<T>(values);
  }

  /// @param pixels  the row, red, green and blue; of one channel the red counts.
  void write(int y, const std::uint8_t* pixels) const {
    const auto row = static_cast<std::size_t>(y) * width_;
    switch (layout_) {
      case Layout::kGray:
        return write_gray(pixels, field_ + row);
      case Layout::kPixels:
        return write_pixels(pixels, field_ + 3 * row);
      case Layout::kPlanes:
        break;
    }
    T* const red = field_ + row;
    const std::size_t done =
        blocks_ ? write_planes_vbmi(pixels, width_, mirrored_, byte_planes_, red, plane_) : 0;
    write_planes(pixels, done, red);
  }

 private:
  enum class Layout { kPlanes, kPixels, kGray };

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

  void write_gray(const std::uint8_t* pixels, T* out) const {
    const std::uint8_t* pixel = pixel_at(pixels, 0);
    for (std::size_t x = 0; x < width_; ++x, pixel += step()) out[x] = values_[0][pixel[0]];
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
  Layout layout_;
  std::size_t width_;
  std::size_t plane_;
  bool mirrored_;
  bool blocks_;
  BytePlanes<T> byte_planes_;
  T* field_;
};

}  // namespace headrace
