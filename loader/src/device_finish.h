// What the kernel computes, in one header for the device and the host: the CPU's tests run the very
// code that the GPU runs.
#pragma once

#ifdef __CUDACC__
#define HEADRACE_HOST_DEVICE __host__ __device__
#else
#define HEADRACE_HOST_DEVICE
#endif

namespace headrace {

/// A batch of pixels, and what becomes of it. All memory is the device's.
struct FinishArguments {
  const unsigned char* pixels;    ///< uint8 [rows, height, width, 3]
  const unsigned char* mirrored;  ///< uint8 [rows]; not 0: the row is mirrored left to right
  const void* table;              ///< Element [3, 256]: for each channel, what each value becomes
  void* out;                      ///< Element, [rows, 3, height, width] or [rows, height, width, 3]
  long long pixel_count;          ///< rows * height * width
  int height;
  int width;
};

/// Finishes one pixel of `out`. The table's entries are copied as bits: whoever made the table has
/// done the arithmetic, so that nothing here can round in another way.
/// @tparam Element  unsigned integer of the result's size: 2 bytes (float16, bfloat16) or 4.
/// @param index     of the pixel, from 0 to pixel_count - 1.
template <typename Element, bool kChannelsLast>
HEADRACE_HOST_DEVICE inline void finish_pixel(const FinishArguments& arguments,
                                              const Element* table, long long index) {
  const long long plane = static_cast<long long>(arguments.height) * arguments.width;
  const long long row = index / plane;
  const long long place = index - row * plane;
  const int x = static_cast<int>(place % arguments.width);
  const long long line = index - x;  // where the pixel's line begins
  const int from = arguments.mirrored[row] != 0 ? arguments.width - 1 - x : x;
  const unsigned char* pixel = arguments.pixels + 3 * (line + from);
  Element* out = static_cast<Element*>(arguments.out);
  out += kChannelsLast ? 3 * index : 3 * row * plane + place;
  const long long step = kChannelsLast ? 1 : plane;
  out[0] = table[pixel[0]];
  out[step] = table[256 + pixel[1]];
  out[2 * step] = table[512 + pixel[2]];
}

}  // namespace headrace
