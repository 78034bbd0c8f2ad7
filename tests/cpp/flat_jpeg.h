// The smallest useful JPEG files: gray, one value all over, made bit by bit.
#pragma once

#include <cstddef>
#include <cstdint>
#include <initializer_list>
#include <vector>

namespace headrace::test {

/// A baseline JPEG whose pixels all decode to `value`.
inline std::vector<std::byte> flat_jpeg(int width, int height, int value) {
  std::vector<std::byte> file;
  const auto put = [&file](std::initializer_list<int> bytes) {
    for (const int byte : bytes) file.push_back(static_cast<std::byte>(byte));
  };
  put({0xFF, 0xD8});
  put({0xFF, 0xDB, 0, 67, 0});
  for (int i = 0; i < 64; ++i) put({8});  // a DC of 1 is then one gray level
  put({0xFF, 0xC0, 0, 11, 8, height >> 8, height & 255, width >> 8, width & 255, 1, 1, 0x11, 0});
  // DC: the twelve categories as codes of four bits. AC: only "end of block", one bit.
  put({0xFF, 0xC4, 0, 31, 0x00, 0, 0, 0, 12, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  for (int category = 0; category < 12; ++category) put({category});
  put({0xFF, 0xC4, 0, 20, 0x10, 1, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0});
  put({0xFF, 0xDA, 0, 8, 1, 1, 0, 0, 63, 0});

  unsigned bits = 0;
  int held = 0;
  const auto put_bits = [&](unsigned value_bits, int count) {
    for (int i = count - 1; i >= 0; --i) {
      bits = bits << 1 | (value_bits >> i & 1);
      if (++held < 8) continue;
      put({static_cast<int>(bits & 255)});
      if ((bits & 255) == 255) put({0});
      held = 0;
    }
  };
  const int blocks = ((width + 7) / 8) * ((height + 7) / 8);
  for (int block = 0; block < blocks; ++block) {
    const int difference = block == 0 ? value - 128 : 0;
    int category = 0;
    while (1 << category <= (difference < 0 ? -difference : difference)) ++category;
    put_bits(static_cast<unsigned>(category), 4);
    const int coded = difference < 0 ? difference + (1 << category) - 1 : difference;
    put_bits(static_cast<unsigned>(coded), category);
    put_bits(0, 1);
  }
  while (held != 0) put_bits(1, 1);
  put({0xFF, 0xD9});
  return file;
}

}  // namespace headrace::test
