// The smallest useful PNG files, made byte by byte: 8-bit RGB, not compressed.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace headrace::test {

inline std::string big_endian(std::uint32_t value) {
  std::string bytes;
  for (int shift = 24; shift >= 0; shift -= 8) bytes += static_cast<char>(value >> shift & 255);
  return bytes;
}

inline std::string png_chunk(std::string_view name, std::string_view data) {
  const std::string body = std::string(name) + std::string(data);
  std::uint32_t crc = ~0U;
  for (const char byte : body) {
    crc ^= static_cast<unsigned char>(byte);
    for (int bit = 0; bit < 8; ++bit) crc = crc >> 1 ^ ((crc & 1) != 0 ? 0xEDB88320U : 0U);
  }
  return big_endian(static_cast<std::uint32_t>(data.size())) + body + big_endian(~crc);
}

/// Rows [filter byte, pixels...] as an image data chunk with one stored block.
inline std::string png_data(const std::string& rows) {
  std::uint32_t a = 1;
  std::uint32_t b = 0;
  for (const char byte : rows) {
    a = (a + static_cast<unsigned char>(byte)) % 65521;
    b = (b + a) % 65521;
  }
  const auto size = static_cast<unsigned>(rows.size());
  std::string stream = {0x78, 0x01, 0x01};
  for (const unsigned half : {size, ~size}) {
    stream += static_cast<char>(half & 255);
    stream += static_cast<char>(half >> 8 & 255);
  }
  return png_chunk("IDAT", stream + rows + big_endian(b << 16 | a));
}

inline std::string png_header(int width, int height, char bits = 8, char color_type = 2) {
  return std::string("\x89PNG\r\n\x1a\n") +
         png_chunk("IHDR", big_endian(static_cast<std::uint32_t>(width)) +
                               big_endian(static_cast<std::uint32_t>(height)) + bits + color_type +
                               std::string(3, '\0'));
}

/// A PNG whose pixels all have `value` in each channel, with `extra` chunks before the image data.
inline std::vector<std::byte> flat_png(int width, int height, int value,
                                       const std::string& extra = "") {
  std::string rows;
  for (int y = 0; y < height; ++y) {
    rows += '\0' + std::string(static_cast<std::size_t>(width) * 3, static_cast<char>(value));
  }
  const std::string file =
      png_header(width, height) + extra + png_data(rows) + png_chunk("IEND", "");
  const auto* bytes = reinterpret_cast<const std::byte*>(file.data());
  return {bytes, bytes + file.size()};
}

}  // namespace headrace::test
