// Pillow's geometry on 8-bit RGB pixels: resize, crop, mirror.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "headrace/jpeg.h"
#include "headrace/transform.h"
#include "resample_kernels.h"

namespace headrace {

/// Borrowed RGB pixels whose rows lie `stride` bytes apart: an image, or a crop of one.
struct RgbView {
  const std::uint8_t* pixels = nullptr;
  std::size_t stride = 0;
  ImageSize size;

  const std::uint8_t* row(int y) const noexcept {
    return pixels + static_cast<std::size_t>(y) * stride;
  }
};

/// Which pass Pillow runs first when both axes change. Pixels are rounded in between, so the
/// order shows.
enum class PassOrder {
  kWidthFirst,            ///< up to Pillow 12.1
  kWidthFirstUnlessTall,  ///< 12.2, 12.3: not where a height of over 100 widths shrinks
  kBySize,                ///< 13: height first when it loses over twice what the width loses
};

RgbView view_of(const RgbImage& image) noexcept;

/// The part of `view` that `window` names; it must lie inside.
RgbView part_of(const RgbView& view, const Region& window) noexcept;

/// Takes the rows of a result from the top down: y, and pixels that stay until it returns.
using RowSink = std::function<void(int y, const std::uint8_t* row)>;

/// A sink that fills `image`, which must have the size of the result and outlive the sink.
RowSink copy_to(RgbImage& image);

/// Bit for bit `Image.resize(size, filter).crop(window)` of Pillow's 8-bit code: the window is cut
/// while resizing, so that what lies outside of it costs nothing.
/// @param order   that the installed Pillow has.
/// @param window  must lie inside `size`.
/// @param memory  scratch, kept between calls.
void resize(const RgbView& source, ImageSize size, Filter filter, PassOrder order,
            const Region& window, const Kernels& kernels, std::vector<std::uint8_t>& memory,
            const RowSink& sink);

/// Copies `window`; what lies outside of the source is black.
void crop(const RgbView& source, const Region& window, RgbImage& out);

/// Mirrors left to right.
void flip(const RgbView& source, RgbImage& out);

}  // namespace headrace
