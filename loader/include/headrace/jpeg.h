// JPEG files to RGB pixels, bit for bit as Pillow gives them, or a doubt.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <variant>

#include "headrace/api.h"
#include "headrace/image.h"

namespace HEADRACE_API headrace {

/// Reads the structure of a whole JPEG file, every marker up to the end of the image, without
/// decoding. Gives the size, or a doubt about anything that Pillow might refuse or read otherwise
/// than libjpeg does: other formats, stray markers, a missing end, 12 bits, arithmetic coding,
/// incomplete progressive scans, two components, ...
/// @param file         whole compressed file; borrowed for the call.
/// @param pixel_limit  more pixels than this are doubtful (Pillow's MAX_IMAGE_PIXELS).
/// @param orientation  whether an EXIF orientation, or irregular EXIF, is a doubt.
/// Cheap beside decoding (a memchr over the entropy-coded data). Never blocks, never throws on
/// data.
std::variant<ImageSize, Doubt> inspect_jpeg(
    std::span<const std::byte> file, std::uint64_t pixel_limit,
    ExifOrientation orientation = ExifOrientation::kIgnored);

/// Decodes files that inspect_jpeg() accepted. One decoder per thread.
class JpegDecoder {
 public:
  JpegDecoder();
  ~JpegDecoder();
  JpegDecoder(JpegDecoder&&) noexcept;
  JpegDecoder& operator=(JpegDecoder&&) noexcept;

  /// Decodes one region as Pillow's `Image.open(f).convert("RGB").crop(region)` would; grayscale,
  /// CMYK and YCCK included. What lies below the region costs nothing, what lies beside and above
  /// it little more than its entropy decoding.
  /// @param file    whole compressed file that inspect_jpeg() accepted; borrowed for the call.
  /// @param region  of the image; the whole of it when absent.
  /// @param out     reshaped and overwritten; unspecified after an error.
  /// @throws Error{kDoubtfulData}: libjpeg failed or warned, so that Pillow must decide.
  /// @throws Error{kInvalidArgument}: the region does not lie inside the image.
  void decode(std::span<const std::byte> file, const std::optional<Region>& region, RgbImage& out);

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
