#include "jpeg_metadata.h"

#include <algorithm>
#include <cstddef>

#include "byte_order.h"

namespace headrace {
namespace {

using Bytes = std::span<const std::uint8_t>;
using namespace std::string_view_literals;

bool starts_with(Bytes bytes, std::string_view prefix) {
  return bytes.size() >= prefix.size() &&
         std::equal(prefix.begin(), prefix.end(), bytes.begin(),
                    [](char a, std::uint8_t b) { return static_cast<std::uint8_t>(a) == b; });
}

/// Pillow walks the image resource blocks; running out of bytes is caught everywhere but at the
/// length byte of a block's name.
bool photoshop_name_is_cut(Bytes segment) {
  const Numbers numbers{segment};
  std::size_t at = "Photoshop 3.0\0"sv.size();
  while (at < segment.size() && starts_with(segment.subspan(at), "8BIM")) {
    at += 6;  // signature and code
    if (at >= segment.size()) return at == segment.size();
    at += 1 + segment[at];
    at += at & 1;
    if (at + 4 > segment.size()) return false;
    at += 4 + std::size_t{numbers.u32(at)};
    at += at & 1;
  }
  return false;
}

/// Pillow evaluates two tags of the first directory. They are harmless when they have the types
/// that the EXIF standard gives them; everything else in the directory is never evaluated.
bool resolution_tags_are_regular(Bytes tiff) {
  const bool big_endian = starts_with(tiff, "MM\0*"sv);
  if (tiff.size() < 8 || !(big_endian || starts_with(tiff, "II*\0"sv))) return false;
  const Numbers numbers{tiff, big_endian};
  const std::size_t directory = numbers.u32(4);
  if (directory + 2 > tiff.size()) return false;

  constexpr std::size_t kEntrySize = 12;
  const std::size_t entries = directory + 2;
  const std::size_t count = numbers.u16(directory);
  if (entries + count * kEntrySize > tiff.size()) return false;
  for (std::size_t at = entries; at < entries + count * kEntrySize; at += kEntrySize) {
    const std::uint32_t tag = numbers.u16(at);
    const std::uint32_t type = numbers.u16(at + 2);
    constexpr std::uint32_t kXResolution = 0x011A, kResolutionUnit = 0x0128;
    constexpr std::uint32_t kShort = 3, kRational = 5;
    if (tag != kXResolution && tag != kResolutionUnit) continue;
    if (type != (tag == kXResolution ? kRational : kShort) || numbers.u32(at + 4) != 1) {
      return false;
    }
  }
  return true;
}

/// Pillow warns of a multi-picture index that it can't read in full, and a warning may be an
/// exception. None comes of an index as the standard (CIPA DC-007) has it: tags in rising order and
/// of their types, a whole entry for each picture, and only JPEG pictures.
bool multi_picture_index_is_regular(Bytes tiff) {
  const bool big_endian = starts_with(tiff, "MM\0*"sv);
  if (tiff.size() < 8 || !(big_endian || starts_with(tiff, "II*\0"sv))) return false;
  const Numbers numbers{tiff, big_endian};
  constexpr std::size_t kEntrySize = 12, kLinkSize = 4, kPictureSize = 16;
  constexpr std::uint32_t kVersion = 0xB000, kPictureCount = 0xB001, kPictures = 0xB002,
                          kUniqueIds = 0xB003, kFrameCount = 0xB004;
  const std::size_t directory = numbers.u32(4);
  if (directory + 2 > tiff.size()) return false;
  const std::size_t entries = directory + 2;
  const std::size_t links = entries + numbers.u16(directory) * kEntrySize;
  if (links + kLinkSize > tiff.size()) return false;

  std::uint32_t last_tag = 0;
  std::size_t picture_count = 0;
  Bytes pictures;
  for (std::size_t at = entries; at < links; at += kEntrySize) {
    const std::uint32_t tag = numbers.u16(at);
    const std::uint32_t type = numbers.u16(at + 2);
    const std::size_t count = numbers.u32(at + 4);
    constexpr std::uint32_t kLong = 4, kUndefined = 7;
    const bool is_number = tag == kPictureCount || tag == kFrameCount;
    const bool is_known = is_number || tag == kVersion || tag == kPictures || tag == kUniqueIds;
    if (!is_known || tag <= last_tag || type != (is_number ? kLong : kUndefined)) return false;
    last_tag = tag;
    if (is_number && count != 1) return false;
    const std::size_t value = is_number || count <= 4 ? at + 8 : std::size_t{numbers.u32(at + 8)};
    if (value > tiff.size() || count > tiff.size() - value) return false;
    if (tag == kPictureCount) picture_count = numbers.u32(value);
    if (tag == kPictures) pictures = tiff.subspan(value, count);
  }
  if (picture_count == 0 || picture_count > pictures.size() / kPictureSize) return false;
  const Numbers attributes{pictures, big_endian};
  for (std::size_t i = 0; i < picture_count; ++i) {
    if ((attributes.u32(i * kPictureSize) >> 24 & 7) != 0) return false;
  }
  return true;
}

}  // namespace

std::string_view JpegMetadata::add(std::uint8_t marker, Bytes payload) {
  switch (marker) {
    case 0xE0:
      if (!starts_with(payload, "JFIF")) break;
      if (payload.size() < 7) return "JFIF segment is too short";
      if (payload.size() >= 12 && (payload[7] == 1 || payload[7] == 2)) has_resolution_ = true;
      break;
    case 0xE1:
      if (starts_with(payload, "Exif\0\0"sv)) {
        ++exif_segments_;
        exif_ = payload.subspan(6);
        orientation_.add_exif(exif_);
      } else if (starts_with(payload, "http://ns.adobe.com/xap/1.0/\0"sv)) {
        orientation_.add_xmp(payload);
      }
      break;
    case 0xE2:
      if (starts_with(payload, "MPF\0"sv) && !multi_picture_index_is_regular(payload.subspan(4))) {
        return "irregular multi-picture index";
      }
      if (starts_with(payload, "ICC_PROFILE\0"sv) && payload.size() < 14) {
        return "ICC segment is too short";
      }
      break;
    case 0xED:
      if (starts_with(payload, "Photoshop 3.0\0"sv) && photoshop_name_is_cut(payload)) {
        return "Photoshop segment is cut off";
      }
      break;
    case 0xEE:
      if (starts_with(payload, "Adobe") && payload.size() < 7) {
        return "Adobe segment is too short";
      }
      break;
    default:
      break;
  }
  return {};
}

std::string_view JpegMetadata::judge_exif() const {
  if (has_resolution_ || exif_segments_ == 0) return {};
  if (exif_segments_ > 1) return "EXIF in several segments";
  return resolution_tags_are_regular(exif_) ? ""sv : "irregular EXIF"sv;
}

}  // namespace headrace
