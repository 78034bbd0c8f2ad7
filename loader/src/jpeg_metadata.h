// What Pillow reads of a JPEG file's application segments, and where it stumbles over them.
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

#include "exif_orientation.h"

namespace headrace {

/// Follows the segments that stand before the first scan. libjpeg skips nearly all of them; Pillow
/// parses some, and gives up on the whole file when an exception leaves its parser (all rules here
/// are those of PIL/JpegImagePlugin.py, version 13).
class JpegMetadata {
 public:
  /// One APPn segment without marker and length; the bytes are kept by reference. The answer is
  /// why Pillow may refuse the file, empty if it will not.
  std::string_view add(std::uint8_t marker, std::span<const std::uint8_t> payload);

  /// To be asked after the last segment, as EXIF matters only when no JFIF gave a resolution.
  std::string_view judge_exif() const;

  /// The same, when the image is to be turned as its metadata says.
  std::string_view judge_orientation() const { return orientation_.doubt(); }

 private:
  bool has_resolution_ = false;
  int exif_segments_ = 0;
  std::span<const std::uint8_t> exif_;
  MetadataOrientation orientation_;
};

}  // namespace headrace
