// What the kernels for x86-64 share. Their functions name their target one by one: a whole file
// compiled for a newer processor would spill its inline functions into the rest of the program.
#pragma once

#include <immintrin.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <cstring>

#include "resample_kernels.h"

namespace headrace {

constexpr std::size_t kColumnBlock = 8;  ///< output positions that blend_columns makes in one go
constexpr std::size_t kColumnGroup = 4;  ///< taps for which it loads pixels in one go
constexpr std::size_t kGroupBytes = 12;  ///< of four pixels
constexpr std::size_t kRowBlock = 32;    ///< bytes that blend_rows makes in one go

/// Sets groups and how many positions are made in blocks: loads take 16 bytes for 12, and as many
/// groups for every position, so that the last ones read behind the row.
inline void divide_columns(Weights& weights, std::size_t row_bytes) {
  std::size_t longest = 1;
  for (const int count : weights.count) longest = std::max(longest, std::size_t(count));
  weights.groups = (longest + kColumnGroup - 1) / kColumnGroup;
  weights.vector_positions = weights.positions() / kColumnBlock * kColumnBlock;
  const auto load_end = [&](std::size_t positions) {
    if (positions == 0) return std::size_t{0};
    return std::size_t(weights.first[positions - 1]) * 3 + weights.groups * kGroupBytes + 4;
  };
  weights.spare_bytes = std::max(load_end(weights.vector_positions), row_bytes) - row_bytes;
  weights.safe_positions = weights.vector_positions;
  while (load_end(weights.safe_positions) > row_bytes) weights.safe_positions -= kColumnBlock;
}

/// How many positions blend_columns makes in blocks.
inline std::size_t block_positions(const Weights& weights, std::size_t spare_bytes) {
  return spare_bytes < weights.spare_bytes ? weights.safe_positions : weights.vector_positions;
}

[[gnu::target("avx2")]] inline __m256i load(const void* from) {
  return _mm256_loadu_si256(static_cast<const __m256i*>(from));
}

/// The pixels of two output positions.
[[gnu::target("avx2")]] inline __m256i load_two(const std::uint8_t* one,
                                                const std::uint8_t* other) {
  return _mm256_inserti128_si256(
      _mm256_castsi128_si256(_mm_loadu_si128(reinterpret_cast<const __m128i*>(one))),
      _mm_loadu_si128(reinterpret_cast<const __m128i*>(other)), 1);
}

/// 32 values in the order of their registers' halves, cut off at 0 and 255.
[[gnu::target("avx2")]] inline __m256i narrow(const __m256i (&values)[4]) {
  return _mm256_packus_epi16(_mm256_packs_epi32(values[0], values[1]),
                             _mm256_packs_epi32(values[2], values[3]));
}

[[gnu::target("avx2")]] inline void store_twelve(__m128i bytes, std::uint8_t* out) {
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), bytes);
  const int rest = _mm_extract_epi32(bytes, 2);
  std::memcpy(out + 8, &rest, sizeof rest);
}

/// Eight pixels; each register holds red, green, blue and nothing of two that are four apart.
[[gnu::target("avx2")]] inline void store_pixels(const __m256i (&values)[4], std::uint8_t* out) {
  const __m256i without_gaps = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 1, 2, 4, 5, 6, 8, 9, 10, 12, 13, 14, -128, -128, -128, -128));
  const __m256i bytes = _mm256_shuffle_epi8(narrow(values), without_gaps);
  store_twelve(_mm256_castsi256_si128(bytes), out);
  store_twelve(_mm256_extracti128_si256(bytes, 1), out + 12);
}

}  // namespace headrace
