// A picture and its JPEG file that are the same on every machine, with no data from elsewhere.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

// jpeglib.h wants size_t and FILE declared before it.
#include <jpeglib.h>

#include "headrace/image.h"

namespace headrace::bench {

/// Slopes, edges and noise: something for every part of a decoder to do. Integers alone.
inline RgbImage made_pixels(ImageSize size) {
  RgbImage image;
  image.reshape(size);
  std::uint32_t noise = 1;
  std::size_t at = 0;
  for (int y = 0; y < size.height; ++y) {
    for (int x = 0; x < size.width; ++x) {
      for (int channel = 0; channel < 3; ++channel) {
        noise = noise * 1664525u + 1013904223u;
        const int slope = (x * (channel + 2) + y * (4 - channel)) / 8 % 192;
        const int edge = ((x / 32 + y / 24) & 1) * 32;
        image.pixels[at++] =
            static_cast<std::uint8_t>(slope + edge + static_cast<int>(noise >> 27));
      }
    }
  }
  return image;
}

/// Quality 90, 4:2:0, baseline.
inline std::vector<std::byte> made_jpeg(ImageSize size) {
  const RgbImage image = made_pixels(size);
  jpeg_compress_struct info{};
  jpeg_error_mgr errors{};
  info.err = jpeg_std_error(&errors);
  jpeg_create_compress(&info);
  unsigned char* memory = nullptr;
  unsigned long bytes = 0;  // NOLINT(google-runtime-int): libjpeg's type
  jpeg_mem_dest(&info, &memory, &bytes);
  info.image_width = static_cast<JDIMENSION>(size.width);
  info.image_height = static_cast<JDIMENSION>(size.height);
  info.input_components = 3;
  info.in_color_space = JCS_RGB;
  jpeg_set_defaults(&info);
  jpeg_set_quality(&info, 90, TRUE);
  jpeg_start_compress(&info, TRUE);
  while (info.next_scanline < info.image_height) {
    const std::size_t row = std::size_t{info.next_scanline} * info.image_width * 3;
    auto* pixels = const_cast<JSAMPROW>(&image.pixels[row]);
    jpeg_write_scanlines(&info, &pixels, 1);
  }
  jpeg_finish_compress(&info);
  jpeg_destroy_compress(&info);
  const auto* begin = reinterpret_cast<const std::byte*>(memory);
  std::vector<std::byte> file(begin, begin + bytes);
  std::free(memory);
  return file;
}

}  // namespace headrace::bench
