// Whether an image's metadata asks for it to be turned, by the rules of Pillow's Image.getexif().
#pragma once

#include <cstdint>
#include <span>
#include <string_view>

namespace headrace {

/// Collects the metadata of one file; keeps it by reference.
///
/// Pillow reads the orientation from EXIF, and from XMP where EXIF has none. To find it, it reads
/// the first directory whole, and warns of entries or fails on them; to apply it, it writes the
/// directory anew. So only the regular case of an image that stays as it is can be told here.
class MetadataOrientation {
 public:
  /// @param tiff  what follows "Exif\0\0".
  void add_exif(std::span<const std::uint8_t> tiff);
  void add_xmp(std::span<const std::uint8_t> xmp);

  /// Why Pillow must see the image; empty if it stays as it is.
  std::string_view doubt() const;

 private:
  int exif_blocks_ = 0;
  std::span<const std::uint8_t> exif_;
  bool xmp_has_orientation_ = false;
};

}  // namespace headrace
