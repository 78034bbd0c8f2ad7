#include "exif_orientation.h"

#include <algorithm>
#include <cstddef>
#include <optional>

#include "byte_order.h"

namespace headrace {
namespace {

using Bytes = std::span<const std::uint8_t>;
using namespace std::string_view_literals;

bool contains(Bytes bytes, std::string_view text) {
  return std::search(bytes.begin(), bytes.end(), text.begin(), text.end(),
                     [](std::uint8_t b, char t) { return b == static_cast<std::uint8_t>(t); }) !=
         bytes.end();
}

constexpr int kNoOrientation = -1;
constexpr std::uint32_t kShort = 3;

/// Of the types that Pillow knows; 0 for others.
std::size_t bytes_of_type(std::uint32_t type) {
  constexpr std::size_t kBytes[] = {0, 1, 1, 2, 4, 8, 1, 1, 2, 4, 8, 4, 8, 4};
  return type < std::size(kBytes) ? kBytes[type] : 0;
}

/// The orientation in the first directory, kNoOrientation without one; nothing when the directory
/// is not regular in every entry (Pillow's ImageFileDirectory_v2.load() would warn or fail).
std::optional<int> orientation_in(Bytes tiff) {
  if (tiff.size() < 8) return {};
  const std::string_view head(reinterpret_cast<const char*>(tiff.data()), 4);
  if (head != "MM\0*"sv && head != "II*\0"sv) return {};
  const Numbers numbers{tiff, head == "MM\0*"sv};
  constexpr std::size_t kCountSize = 2, kEntrySize = 12, kLinkSize = 4;
  const std::size_t directory = numbers.u32(4);
  if (directory + kCountSize > tiff.size()) return {};
  const std::size_t first = directory + kCountSize;
  const std::size_t end = first + numbers.u16(directory) * kEntrySize;
  if (end + kLinkSize > tiff.size()) return {};

  int orientation = kNoOrientation;
  std::size_t total = 0;
  for (std::size_t at = first; at < end; at += kEntrySize) {
    constexpr std::uint32_t kOrientation = 0x0112;
    const std::uint32_t tag = numbers.u16(at);
    const std::uint32_t type = numbers.u16(at + 2);
    const std::size_t count = numbers.u32(at + 4);
    const std::size_t size = count * bytes_of_type(type);
    if (size == 0) return {};
    if (size > 4) {
      const std::size_t value = numbers.u32(at + 8);
      total += size;
      if (total > tiff.size() || value > tiff.size() || size > tiff.size() - value) return {};
    }
    if (tag != kOrientation) continue;
    if (type != kShort || count != 1 || orientation != kNoOrientation) return {};
    orientation = static_cast<int>(numbers.u16(at + 8));
  }
  return orientation;
}

}  // namespace

void MetadataOrientation::add_exif(Bytes tiff) {
  ++exif_blocks_;
  exif_ = tiff;
}

void MetadataOrientation::add_xmp(Bytes xmp) {
  xmp_has_orientation_ = xmp_has_orientation_ || contains(xmp, "tiff:Orientation");
}

std::string_view MetadataOrientation::doubt() const {
  if (exif_blocks_ > 1) return "EXIF in several segments";
  const std::optional<int> found = exif_blocks_ == 1 ? orientation_in(exif_) : kNoOrientation;
  if (!found) return "irregular EXIF";
  if (*found == kNoOrientation) return xmp_has_orientation_ ? "an orientation in XMP"sv : ""sv;
  // Pillow knows of 2 to 8; 1 is upright, and others are as good as none.
  return *found >= 2 && *found <= 8 ? "EXIF asks for it to be turned"sv : ""sv;
}

}  // namespace headrace
