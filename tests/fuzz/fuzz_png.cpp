// Any bytes may be inspected as a PNG file, and decoded if accepted, without a crash or a wild
// access, and a region has the pixels of the whole:
//   fuzz_png -max_total_time=60 -max_len=5000 FOLDER_OF_PNG_FILES
// Checksums are made right first: otherwise hardly any input would get beyond them.
#include <zlib.h>

#include <cstdint>
#include <optional>
#include <span>
#include <vector>

#include "headrace/error.h"
#include "headrace/image.h"
#include "region.h"

namespace {

std::vector<std::byte> with_right_checksums(const std::uint8_t* data, std::size_t size) {
  std::vector<std::byte> file(size);
  for (std::size_t i = 0; i < size; ++i) file[i] = static_cast<std::byte>(data[i]);
  constexpr std::size_t kSignature = 8, kOverhead = 12;
  for (std::size_t at = kSignature; at + kOverhead <= size;) {
    std::size_t length = 0;
    for (int i = 0; i < 4; ++i) length = length << 8 | data[at + static_cast<std::size_t>(i)];
    if (length > size - at - kOverhead) break;
    const std::size_t end = at + 8 + length;
    const uLong sum = crc32(0, data + at + 4, static_cast<uInt>(length + 4));
    for (std::size_t i = 0; i < 4; ++i) file[end + i] = static_cast<std::byte>(sum >> (24 - 8 * i));
    at = end + 4;
  }
  return file;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint64_t kPixelLimit = 1 << 16;
  const auto file = with_right_checksums(data, size);
  const auto found =
      headrace::inspect_image(file, kPixelLimit, headrace::ExifOrientation::kApplied);
  if (std::holds_alternative<headrace::Doubt>(found)) return 0;
  const auto& info = std::get<headrace::ImageInfo>(found);
  try {
    static headrace::ImageDecoder decoder;
    headrace::RgbImage part;
    const headrace::Region region = headrace::fuzz::some_region(info.size, data, size);
    decoder.decode(file, info, region, part);
    headrace::RgbImage image;
    decoder.decode(file, info, std::nullopt, image);
    if (image.size != info.size || !headrace::fuzz::is_part(part, image, region)) __builtin_trap();
  } catch (const headrace::Error&) {
    // left to Pillow
  }
  return 0;
}
