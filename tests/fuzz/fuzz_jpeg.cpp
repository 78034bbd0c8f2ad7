// Any bytes may be inspected, and decoded if accepted, without a crash or a wild access; a region
// has the pixels of the whole, and either entropy decoder the other's pixels and verdict:
//   fuzz_jpeg -max_total_time=60 -max_len=20000 FOLDER_OF_JPEG_FILES
#include <cstdint>
#include <cstring>
#include <optional>
#include <span>

#include "headrace/error.h"
#include "headrace/jpeg.h"
#include "jpeg_decoder.h"
#include "region.h"

namespace {

/// Whether it could be decoded.
bool decode(std::span<const std::byte> file, const std::optional<headrace::Region>& region,
            headrace::EntropyPath path, headrace::RgbImage& out) {
  try {
    static headrace::RegionDecoder decoder;  // which keeps its tables from file to file
    decoder.decode(file, region, out, path);
    return true;
  } catch (const headrace::Error&) {
    return false;  // left to Pillow
  }
}

/// The same by both entropy decoders.
bool decode(std::span<const std::byte> file, const std::optional<headrace::Region>& region,
            headrace::RgbImage& out) {
  headrace::RgbImage other;
  const bool decoded = decode(file, region, headrace::EntropyPath::kOwn, out);
  if (decode(file, region, headrace::EntropyPath::kLibjpeg, other) != decoded) __builtin_trap();
  if (decoded && out.pixels != other.pixels) __builtin_trap();
  return decoded;
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint64_t kPixelLimit = 1 << 20;
  const auto file = std::as_bytes(std::span(data, size));
  const auto found = headrace::inspect_jpeg(file, kPixelLimit);
  if (std::holds_alternative<headrace::Doubt>(found)) return 0;
  const auto& image_size = std::get<headrace::ImageSize>(found);
  const headrace::Region region = headrace::fuzz::some_region(image_size, data, size);
  headrace::RgbImage part;
  headrace::RgbImage image;
  const bool part_decoded = decode(file, region, part);
  if (!decode(file, std::nullopt, image)) return 0;
  if (!part_decoded || image.size != image_size || !headrace::fuzz::is_part(part, image, region))
    __builtin_trap();
  return 0;
}
