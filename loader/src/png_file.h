// PNG files to RGB pixels, bit for bit as Pillow gives them, or a doubt.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>

#include "headrace/image.h"

namespace headrace {

bool looks_like_png(std::span<const std::byte> file);

/// Reads every chunk of a whole PNG file without decompressing the pixels. A doubt is: damage, a
/// chunk that changes what Pillow shows (animation) or that Pillow could stumble over, 16-bit gray
/// (Pillow's versions differ), palette transparency that Pillow warns of.
/// @param file  borrowed for the call.
/// Never throws on data.
std::variant<ImageSize, Doubt> inspect_png(std::span<const std::byte> file,
                                           std::uint64_t pixel_limit, ExifOrientation orientation);

/// The parts of a PNG file that say what its pixels are: signature with header, palette (or
/// nothing), image data, end. Their chunks are whole, so that in a row they are a PNG file, too.
using PngParts = std::array<std::span<const std::byte>, 4>;

/// @param file  a file that inspect_png() accepted.
PngParts png_parts(std::span<const std::byte> file);

/// Decodes files that inspect_png() accepted. One decoder per thread.
class PngDecoder {
 public:
  PngDecoder();
  ~PngDecoder();
  PngDecoder(PngDecoder&&) noexcept;
  PngDecoder& operator=(PngDecoder&&) noexcept;

  /// As JpegDecoder::decode(). The whole file is decompressed whatever the region is: damage
  /// anywhere makes Pillow refuse it.
  void decode(std::span<const std::byte> file, const std::optional<Region>& region, RgbImage& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
