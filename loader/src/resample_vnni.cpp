// Kernels for AVX-512 VNNI in registers of 256 bits (wider ones slow the processor down). It
// multiplies bytes and adds up fours, so weight = (top * 2^8 + middle) * 2^8 + bottom, all signed,
// each with a sum of its own.
#if defined(__x86_64__)
#include "resample_x86.h"

namespace headrace {
namespace {

constexpr std::size_t kParts = 3;  // bottom, middle, top
constexpr std::size_t kFour = 4;   // taps for one 32-bit lane

std::int8_t part_of(std::int32_t weight, std::size_t part) {
  for (; part > 0; --part) weight = (weight - static_cast<std::int8_t>(weight)) / 256;
  return static_cast<std::int8_t>(weight);
}

/// One part of the weights of four taps, for two output positions that are four apart.
Lanes fours_of(const Weights& weights, std::size_t position, std::size_t tap, std::size_t part) {
  Lanes lanes;
  for (std::size_t i = 0; i < lanes.bytes.size(); ++i) {
    lanes.bytes[i] = part_of(weights.at(position + i / 16 * 4, tap + i % kFour), part);
  }
  return lanes;
}

void prepare_columns(Weights& weights, std::size_t row_bytes) {
  divide_columns(weights, row_bytes);
  weights.column_groups.clear();
  for (std::size_t block = 0; block < weights.vector_positions; block += kColumnBlock) {
    for (std::size_t position = block; position < block + 4; ++position) {
      for (std::size_t tap = 0; tap < weights.groups * kColumnGroup; tap += kColumnGroup) {
        for (std::size_t part = 0; part < kParts; ++part) {
          weights.column_groups.push_back(fours_of(weights, position, tap, part));
        }
      }
    }
  }
}

struct Sums {
  __m256i part[kParts];
};

[[gnu::target("avx2,avx512vl,avx512vnni")]] inline Sums no_sums() {
  return {{_mm256_set1_epi32(kHalfWeight), _mm256_setzero_si256(), _mm256_setzero_si256()}};
}

[[gnu::target("avx2,avx512vl,avx512vnni")]] inline void add_products(__m256i values, __m256i bottom,
                                                                     __m256i middle, __m256i top,
                                                                     Sums& sums) {
  sums.part[0] = _mm256_dpbusd_epi32(sums.part[0], values, bottom);
  sums.part[1] = _mm256_dpbusd_epi32(sums.part[1], values, middle);
  sums.part[2] = _mm256_dpbusd_epi32(sums.part[2], values, top);
}

[[gnu::target("avx2,avx512vl,avx512vnni")]] inline __m256i values_of(const Sums& sums) {
  const __m256i upper = _mm256_add_epi32(_mm256_slli_epi32(sums.part[2], 8), sums.part[1]);
  return _mm256_srai_epi32(_mm256_add_epi32(_mm256_slli_epi32(upper, 8), sums.part[0]),
                           kWeightBits);
}

[[gnu::target("avx2,avx512vl,avx512vnni")]] void blend_columns(const std::uint8_t* row,
                                                               std::size_t spare_bytes,
                                                               const Weights& weights,
                                                               std::uint8_t* out) {
  const __m256i by_channel = _mm256_broadcastsi128_si256(
      _mm_setr_epi8(0, 3, 6, 9, 1, 4, 7, 10, 2, 5, 8, 11, -1, -1, -1, -1));
  const Lanes* lanes = weights.column_groups.data();
  const std::size_t positions = block_positions(weights, spare_bytes);
  for (std::size_t x = 0; x < positions; x += kColumnBlock) {
    __m256i values[4];
    for (std::size_t i = 0; i < 4; ++i) {
      const std::uint8_t* one = row + static_cast<std::size_t>(weights.first[x + i]) * 3;
      const std::uint8_t* other = row + static_cast<std::size_t>(weights.first[x + i + 4]) * 3;
      Sums sums = no_sums();
      for (std::size_t group = 0; group < weights.groups; ++group, lanes += kParts) {
        const __m256i pixels = load_two(one + group * kGroupBytes, other + group * kGroupBytes);
        add_products(_mm256_shuffle_epi8(pixels, by_channel), load(lanes), load(lanes + 1),
                     load(lanes + 2), sums);
      }
      values[i] = values_of(sums);
    }
    store_pixels(values, out + x * 3);
  }
  blend_columns_from(positions, row, weights, out);
}

void prepare_rows(Weights& weights) {
  weights.groups = (weights.taps + kFour - 1) / kFour;
  weights.row_groups.clear();
  for (std::size_t position = 0; position < weights.positions(); ++position) {
    for (std::size_t tap = 0; tap < weights.groups * kFour; tap += kFour) {
      for (std::size_t part = 0; part < kParts; ++part) {
        std::uint32_t four = 0;
        for (std::size_t i = 0; i < kFour; ++i) {
          const auto byte = static_cast<std::uint8_t>(part_of(weights.at(position, tap + i), part));
          four |= std::uint32_t{byte} << 8 * i;
        }
        weights.row_groups.push_back(static_cast<std::int32_t>(four));
      }
    }
  }
}

[[gnu::target("avx2,avx512vl,avx512vnni")]] inline void blend_block(const std::uint8_t* source,
                                                                    std::size_t stride,
                                                                    const std::int32_t* weight,
                                                                    std::size_t count,
                                                                    std::uint8_t* out) {
  Sums sums[4] = {no_sums(), no_sums(), no_sums(), no_sums()};
  for (std::size_t tap = 0; tap < count; tap += kFour, weight += kParts) {
    // Rows behind the last one have no weight: any will do.
    const std::uint8_t* const row = source + tap * stride;
    const std::size_t rest = count - tap - 1;
    const __m256i a = load(row);
    const __m256i b = load(row + std::min<std::size_t>(rest, 1) * stride);
    const __m256i c = load(row + std::min<std::size_t>(rest, 2) * stride);
    const __m256i d = load(row + std::min<std::size_t>(rest, 3) * stride);
    const __m256i bottom = _mm256_set1_epi32(weight[0]);
    const __m256i middle = _mm256_set1_epi32(weight[1]);
    const __m256i top = _mm256_set1_epi32(weight[2]);
    const __m256i ab_low = _mm256_unpacklo_epi8(a, b);
    const __m256i cd_low = _mm256_unpacklo_epi8(c, d);
    const __m256i ab_high = _mm256_unpackhi_epi8(a, b);
    const __m256i cd_high = _mm256_unpackhi_epi8(c, d);
    add_products(_mm256_unpacklo_epi16(ab_low, cd_low), bottom, middle, top, sums[0]);
    add_products(_mm256_unpackhi_epi16(ab_low, cd_low), bottom, middle, top, sums[1]);
    add_products(_mm256_unpacklo_epi16(ab_high, cd_high), bottom, middle, top, sums[2]);
    add_products(_mm256_unpackhi_epi16(ab_high, cd_high), bottom, middle, top, sums[3]);
  }
  const __m256i values[4] = {values_of(sums[0]), values_of(sums[1]), values_of(sums[2]),
                             values_of(sums[3])};
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(out), narrow(values));
}

[[gnu::target("avx2,avx512vl,avx512vnni")]] void blend_rows(
    const std::uint8_t* source, std::size_t stride, const Weights& weights, std::size_t position,
    std::size_t row_bytes, std::uint8_t* out) {
  if (row_bytes < kRowBlock) {
    return blend_rows_from(0, source, stride, weights, position, row_bytes, out);
  }
  const std::int32_t* const weight = &weights.row_groups[position * weights.groups * kParts];
  const auto count = static_cast<std::size_t>(weights.count[position]);
  const std::size_t last = row_bytes - kRowBlock;
  for (std::size_t at = 0; at < last; at += kRowBlock) {
    blend_block(source + at, stride, weight, count, out + at);
  }
  blend_block(source + last, stride, weight, count, out + last);  // partly once more
}

bool runs_here() {
  return __builtin_cpu_supports("avx2") && __builtin_cpu_supports("avx512vl") &&
         __builtin_cpu_supports("avx512vnni");
}

}  // namespace

const Kernels kVnniKernels{.name = "AVX-512 VNNI",
                           .runs_here = runs_here,
                           .prepare_columns = prepare_columns,
                           .blend_columns = blend_columns,
                           .prepare_rows = prepare_rows,
                           .blend_rows = blend_rows};

}  // namespace headrace
#endif
