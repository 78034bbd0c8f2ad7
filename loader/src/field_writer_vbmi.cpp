#include "field_writer_vbmi.h"

#if defined(__x86_64__)
#include <immintrin.h>

#include <array>

#define HEADRACE_VBMI [[gnu::target("avx2,avx512f,avx512bw,avx512vl,avx512vbmi")]]

namespace headrace {
namespace {

constexpr std::size_t kBlock = 32;  // pixels

/// Which pixel of a block must stand at each place, so that the bytes of values come together in
/// the right order: unpacking works within each half of a register.
constexpr std::size_t pixel_at(std::size_t place, std::size_t value_bytes) {
  if (value_bytes == 1) return place;
  const std::size_t group = 16 / value_bytes;  // that unpacking leaves together
  const std::size_t half = place / 16;
  const std::size_t in_half = place % 16;
  return in_half / group * 2 * group + half * group + in_half % group;
}

/// For each place the offset of one channel's byte in the 96 bytes of a block.
template <std::size_t kValueBytes, bool kMirrored>
constexpr std::array<std::array<std::uint8_t, kBlock>, 3> kOffsets = [] {
  std::array<std::array<std::uint8_t, kBlock>, 3> offsets{};
  for (std::size_t channel = 0; channel < 3; ++channel) {
    for (std::size_t place = 0; place < kBlock; ++place) {
      const std::size_t pixel = pixel_at(place, kValueBytes);
      offsets[channel][place] =
          static_cast<std::uint8_t>(3 * (kMirrored ? kBlock - 1 - pixel : pixel) + channel);
    }
  }
  return offsets;
}();

HEADRACE_VBMI inline __m256i load(const std::uint8_t* from) {
  return _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
}

template <typename T>
HEADRACE_VBMI inline void store(T* to, __m256i values) {
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), values);
}

/// table[index] for each byte.
HEADRACE_VBMI inline __m256i look_up(const std::uint8_t (&table)[256], __m256i index) {
  __m256i quarters[4];
  for (std::size_t i = 0; i < 4; ++i) {
    quarters[i] =
        _mm256_permutex2var_epi8(load(table + 64 * i), index, load(table + 64 * i + kBlock));
  }
  const __mmask32 bit_6 = _mm256_movepi8_mask(_mm256_slli_epi16(index, 1));
  const __mmask32 bit_7 = _mm256_movepi8_mask(index);
  return _mm256_mask_blend_epi8(bit_7, _mm256_mask_blend_epi8(bit_6, quarters[0], quarters[1]),
                                _mm256_mask_blend_epi8(bit_6, quarters[2], quarters[3]));
}

HEADRACE_VBMI inline void write_block(const std::uint8_t (&tables)[1][256], __m256i index,
                                      std::uint8_t* out) {
  store(out, look_up(tables[0], index));
}

HEADRACE_VBMI inline void write_block(const std::uint8_t (&tables)[2][256], __m256i index,
                                      std::uint16_t* out) {
  const __m256i low = look_up(tables[0], index);
  const __m256i high = look_up(tables[1], index);
  store(out, _mm256_unpacklo_epi8(low, high));
  store(out + 16, _mm256_unpackhi_epi8(low, high));
}

HEADRACE_VBMI inline void write_block(const std::uint8_t (&tables)[4][256], __m256i index,
                                      std::uint32_t* out) {
  const __m256i byte_0 = look_up(tables[0], index);
  const __m256i byte_1 = look_up(tables[1], index);
  const __m256i byte_2 = look_up(tables[2], index);
  const __m256i byte_3 = look_up(tables[3], index);
  const __m256i low_begin = _mm256_unpacklo_epi8(byte_0, byte_1);
  const __m256i low_end = _mm256_unpackhi_epi8(byte_0, byte_1);
  const __m256i high_begin = _mm256_unpacklo_epi8(byte_2, byte_3);
  const __m256i high_end = _mm256_unpackhi_epi8(byte_2, byte_3);
  store(out, _mm256_unpacklo_epi16(low_begin, high_begin));
  store(out + 8, _mm256_unpackhi_epi16(low_begin, high_begin));
  store(out + 16, _mm256_unpacklo_epi16(low_end, high_end));
  store(out + 24, _mm256_unpackhi_epi16(low_end, high_end));
}

template <bool kMirrored, typename T>
HEADRACE_VBMI std::size_t write_planes(const std::uint8_t* row, std::size_t width,
                                       const BytePlanes<T>& tables, T* red, std::size_t plane) {
  const __m256i to_third = _mm256_set1_epi8(64);
  std::size_t x = 0;
  for (; x + kBlock <= width; x += kBlock) {
    const std::uint8_t* block = row + 3 * (kMirrored ? width - kBlock - x : x);
    const __m256i first = load(block);
    const __m256i second = load(block + kBlock);
    const __m256i third = load(block + 2 * kBlock);
    for (std::size_t channel = 0; channel < 3; ++channel) {
      const __m256i offsets = load(kOffsets<sizeof(T), kMirrored>[channel].data());
      const __mmask32 in_third = _mm256_cmpge_epu8_mask(offsets, to_third);
      const __m256i index = _mm256_mask_permutexvar_epi8(
          _mm256_permutex2var_epi8(first, offsets, second), in_third, offsets, third);
      write_block(tables.bytes[channel], index, red + channel * plane + x);
    }
  }
  return x;
}

}  // namespace

bool vbmi_runs_here() {
  return __builtin_cpu_supports("avx512bw") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vbmi");
}

template <typename T>
std::size_t write_planes_vbmi(const std::uint8_t* row, std::size_t width, bool mirrored,
                              const BytePlanes<T>& tables, T* red, std::size_t plane) {
  return mirrored ? write_planes<true>(row, width, tables, red, plane)
                  : write_planes<false>(row, width, tables, red, plane);
}

}  // namespace headrace

#else  // any other processor

namespace headrace {

bool vbmi_runs_here() { return false; }

template <typename T>
std::size_t write_planes_vbmi(const std::uint8_t*, std::size_t, bool, const BytePlanes<T>&, T*,
                              std::size_t) {
  return 0;
}

}  // namespace headrace
#endif

namespace headrace {

template std::size_t write_planes_vbmi(const std::uint8_t*, std::size_t, bool,
                                       const BytePlanes<std::uint8_t>&, std::uint8_t*, std::size_t);
template std::size_t write_planes_vbmi(const std::uint8_t*, std::size_t, bool,
                                       const BytePlanes<std::uint16_t>&, std::uint16_t*,
                                       std::size_t);
template std::size_t write_planes_vbmi(const std::uint8_t*, std::size_t, bool,
                                       const BytePlanes<std::uint32_t>&, std::uint32_t*,
                                       std::size_t);

}  // namespace headrace
