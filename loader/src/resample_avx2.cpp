// Kernels for AVX2. A weight of 22 bits is too wide for the 16-bit multiplier, so
// weight = high * 2^11 + low, each with a sum of its own. The multiplier adds up pairs of taps.
#if defined(__x86_64__)
#include "resample_x86.h"

namespace headrace {
namespace {

constexpr int kLowBits = 11;
constexpr std::size_t kPair = 2;

std::int16_t high_of(std::int32_t weight) { return static_cast<std::int16_t>(weight >> kLowBits); }
std::int16_t low_of(std::int32_t weight) {
  return static_cast<std::int16_t>(weight & ((1 << kLowBits) - 1));
}

/// One part of the weights of two taps, for two output positions that are four apart.
Lanes pairs_of(const Weights& weights, std::size_t position, std::size_t tap,
               std::int16_t (*part)(std::int32_t)) {
  std::int16_t values[16];
  for (std::size_t i = 0; i < 16; ++i) {
    values[i] = part(weights.at(position + i / 8 * 4, tap + i % kPair));
  }
  Lanes lanes;
  std::memcpy(lanes.bytes.data(), values, sizeof values);
  return lanes;
}

void prepare_columns(Weights& weights, std::size_t row_bytes) {
  divide_columns(weights, row_bytes);
  weights.column_groups.clear();
  for (std::size_t block = 0; block < weights.vector_positions; block += kColumnBlock) {
    for (std::size_t position = block; position < block + 4; ++position) {
      for (std::size_t tap = 0; tap < weights.groups * kColumnGroup; tap += kPair) {
        weights.column_groups.push_back(pairs_of(weights, position, tap, high_of));
        weights.column_groups.push_back(pairs_of(weights, position, tap, low_of));
      }
    }
  }
}

struct Sums {
  __m256i high;
  __m256i low;
};

[[gnu::target("avx2")]] inline Sums no_sums() {
  return {_mm256_setzero_si256(), _mm256_set1_epi32(kHalfWeight)};
}

[[gnu::target("avx2")]] inline void add_products(__m256i values, __m256i high_weights,
                                                 __m256i low_weights, Sums& sums) {
  sums.high = _mm256_add_epi32(sums.high, _mm256_madd_epi16(values, high_weights));
  sums.low = _mm256_add_epi32(sums.low, _mm256_madd_epi16(values, low_weights));
}

[[gnu::target("avx2")]] inline __m256i values_of(const Sums& sums) {
  return _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(sums.high, kLowBits), sums.low),
                           kWeightBits);
}

[[gnu::target("avx2")]] void blend_columns(const std::uint8_t* row, std::size_t spare_bytes,
                                           const Weights& weights, std::uint8_t* out) {
  // Of four pixels, the red ones of two, the green ones, the blue ones, widened to 16 bits.
  const __m256i pixels_0_1 = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, -1, 3, -1, 1, -1, 4, -1, 2, -1, 5, -1, -1, -1, -1, -1));
  const __m256i pixels_2_3 = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(6, -1, 9, -1, 7, -1, 10, -1, 8, -1, 11, -1, -1, -1, -1, -1));
  const Lanes* lanes = weights.column_groups.data();
  const std::size_t positions = block_positions(weights, spare_bytes);
  for (std::size_t x = 0; x < positions; x += kColumnBlock) {
    __m256i values[4];
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint8_t* one = row + static_cast<std::size_t>(weights.first[x + i]) * 3;
      const std::uint8_t* other = row + static_cast<std::size_t>(weights.first[x + i + 4]) * 3;
      Sums sums = no_sums();
      for (std::size_t group = 0; group < weights.groups; ++group, lanes += 4) {
        const __m256i pixels = load_two(one + group * kGroupBytes, other + group * kGroupBytes);
        add_products(_mm256_shuffle_epi8(pixels, pixels_0_1), load(lanes), load(lanes + 1), sums);
        add_products(_mm256_shuffle_epi8(pixels, pixels_2_3), load(lanes + 2), load(lanes + 3),
                     sums);
      }
      values[i] = values_of(sums);
    }
    store_pixels(values, out + x * 3);
  }
  blend_columns_from(positions, row, weights, out);
}

std::int32_t pair(std::int16_t first, std::int16_t second) {
  const std::uint32_t high = static_cast<std::uint16_t>(second);
  return static_cast<std::int32_t>(high << 16 | static_cast<std::uint16_t>(first));
}

void prepare_rows(Weights& weights) {
  weights.groups = (weights.taps + kPair - 1) / kPair;
  weights.row_groups.clear();
  for (std::size_t position = 0; position < weights.positions(); ++position) {
    for (std::size_t tap = 0; tap < weights.groups * kPair; tap += kPair) {
      const std::int32_t first = weights.at(position, tap);
      const std::int32_t second = weights.at(position, tap + 1);
      weights.row_groups.push_back(pair(high_of(first), high_of(second)));
      weights.row_groups.push_back(pair(low_of(first), low_of(second)));
    }
  }
}

[[gnu::target("avx2")]] inline void blend_block(const std::uint8_t* source, std::size_t stride,
                                                const std::int32_t* weight, std::size_t count,
                                                std::uint8_t* out) {
  const __m256i zero = _mm256_setzero_si256();
  Sums sums[4] = {no_sums(), no_sums(), no_sums(), no_sums()};
  for (std::size_t tap = 0; tap < count; tap += kPair, weight += 2) {
    const std::uint8_t* one = source + tap * stride;
    const std::uint8_t* other = tap + 1 < count ? one + stride : one;  // or its weight is zero
    const __m256i low = _mm256_unpacklo_epi8(load(one), load(other));
    const __m256i high = _mm256_unpackhi_epi8(load(one), load(other));
    const __m256i high_weights = _mm256_set1_epi32(weight[0]);
    const __m256i low_weights = _mm256_set1_epi32(weight[1]);
    add_products(_mm256_unpacklo_epi8(low, zero), high_weights, low_weights, sums[0]);
    add_products(_mm256_unpackhi_epi8(low, zero), high_weights, low_weights, sums[1]);
    add_products(_mm256_unpacklo_epi8(high, zero), high_weights, low_weights, sums[2]);
    add_products(_mm256_unpackhi_epi8(high, zero), high_weights, low_weights, sums[3]);
  }
  const __m256i values[4] = {values_of(sums[0]), values_of(sums[1]), values_of(sums[2]),
                             values_of(sums[3])};
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), narrow(values));
}

[[gnu::target("avx2")]] void blend_rows(const std::uint8_t* source, std::size_t stride,
                                        const Weights& weights, std::size_t position,
                                        std::size_t row_bytes, std::uint8_t* out) {
  if (row_bytes < kRowBlock) {
    return blend_rows_from(0, source, stride, weights, position, row_bytes, out);
  }
  const std::int32_t* const weight = &weights.row_groups[position * weights.groups * 2];
  const auto count = static_cast<std::size_t>(weights.count[position]);
  const std::size_t last = row_bytes - kRowBlock;
  for (std::size_t at = 0; at < last; at += kRowBlock) {
    blend_block(source + at, stride, weight, count, out + at);
  }
  blend_block(source + last, stride, weight, count, out + last);  // partly once more
}

bool runs_here() { return __builtin_cpu_supports("avx2") != 0; }

}  // namespace

const Kernels kAvx2Kernels{.name = "AVX2",
                           .runs_here = runs_here,
                           .prepare_columns = prepare_columns,
                           .blend_columns = blend_columns,
                           .prepare_rows = prepare_rows,
                           .blend_rows = blend_rows};

}  // namespace headrace
#endif
