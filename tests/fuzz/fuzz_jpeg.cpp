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

namespace {

/// Follows from the file alone, so that a crash can be repeated.
headrace::Region some_region(headrace::ImageSize image, const std::uint8_t* data,
                             std::size_t size) {
  unsigned seed = 0;
  for (std::size_t i = 0; i < size; ++i) seed = seed * 31 + data[i];
  const auto draw = [&seed](int below) {
    seed = seed * 1664525 + 1013904223;
    return static_cast<int>((seed >> 8) % static_cast<unsigned>(below));
  };
  const int width = 1 + draw(image.width);
  const int height = 1 + draw(image.height);
  return {draw(image.width - width + 1), draw(image.height - height + 1), width, height};
}

bool is_part(const headrace::RgbImage& part, const headrace::RgbImage& image,
             const headrace::Region& region) {
  const auto at = [](const headrace::RgbImage& of, int x, int y) {
    return &of.pixels[(static_cast<std::size_t>(y) * static_cast<std::size_t>(of.size.width) +
                       static_cast<std::size_t>(x)) *
                      3];
  };
  for (int y = 0; y < region.height; ++y) {
    if (std::memcmp(at(part, 0, y), at(image, region.left, region.top + y),
                    static_cast<std::size_t>(region.width) * 3) != 0) {
      return false;
    }
  }
  return true;
}

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
  const headrace::Region region = some_region(image_size, data, size);
  headrace::RgbImage part;
  headrace::RgbImage image;
  const bool part_decoded = decode(file, region, part);
  if (!decode(file, std::nullopt, image)) return 0;
  if (!part_decoded || image.size != image_size || !is_part(part, image, region)) __builtin_trap();
  return 0;
}
