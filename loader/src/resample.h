// What Pillow does to 8-bit RGB pixels: resize, crop, mirror, make gray.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "headrace/image.h"
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

/// What is at hand of an image.
struct PartialView {
  RgbView pixels;
  ImageSize image;
  int left = 0;  ///< of the pixels in the image
  int top = 0;

  /// All of it.
  PartialView(const RgbView& view) : pixels(view), image(view.size) {}
  PartialView(const RgbView& view, ImageSize image_size, int pixels_left, int pixels_top)
      : pixels(view), image(image_size), left(pixels_left), top(pixels_top) {}
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
/// @param source  holds what needed() names, at least.
/// @param order   that the installed Pillow has.
/// @param window  must lie inside `size`.
/// @param memory  scratch, kept between calls.
void resize(const PartialView& source, ImageSize size, Filter filter, PassOrder order,
            const Region& window, const Kernels& kernels, std::vector<std::uint8_t>& memory,
            const RowSink& sink);

/// The part of an image of size `from` that such a resize reads.
Region needed(ImageSize from, ImageSize size, Filter filter, const Region& window);

/// Copies `window`, with `border` where it lies outside of the source. Mirrored borders must not be
/// wider than what there is to mirror.
void crop(const RgbView& source, const Region& window, const Border& border, RgbImage& out);

/// Mirrors left to right.
void flip(const RgbView& source, RgbImage& out);

/// Each value becomes its pixel's in Image.convert("L"); gray pixels stay what they are.
void gray(const RgbView& source, RgbImage& out);

}  // namespace headrace
