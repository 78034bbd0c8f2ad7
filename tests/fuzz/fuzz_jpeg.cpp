// Any bytes may be inspected, and decoded if accepted, without a crash or a wild access:
//   fuzz_jpeg -max_total_time=60 -max_len=20000 FOLDER_OF_JPEG_FILES
#include <cstdint>
#include <span>

#include "headrace/error.h"
#include "headrace/jpeg.h"

extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  constexpr std::uint64_t kPixelLimit = 1 << 20;
  const auto file = std::as_bytes(std::span(data, size));
  const auto found = headrace::inspect_jpeg(file, kPixelLimit);
  if (std::holds_alternative<headrace::Doubt>(found)) return 0;
  try {
    headrace::RgbImage image;
    headrace::JpegDecoder().decode(file, image);
    if (image.size != std::get<headrace::ImageSize>(found)) __builtin_trap();
  } catch (const headrace::Error&) {
    // left to Pillow
  }
  return 0;
}
