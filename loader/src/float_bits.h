// float32 to the 16-bit formats, rounded to nearest, ties to even: as torch's Tensor.to().
#pragma once

#include <bit>
#include <cmath>
#include <cstdint>

namespace headrace {

/// The bits of IEEE binary16. Values from 65520 on become infinite.
inline std::uint16_t float16_bits(float value) {
  constexpr std::uint32_t kInfinite = 0x477f'f000;  // 65520, half-way to what has no room
  constexpr std::uint32_t kNormal = 0x3880'0000;    // 2^-14
  constexpr std::uint32_t kBiasGap = 112u << 23;    // of the two exponents' offsets
  constexpr std::uint32_t kHalfStep = 0x0fff;       // just below half of the last bit that stays
  const auto bits = std::bit_cast<std::uint32_t>(value);
  const std::uint32_t sign = bits >> 16 & 0x8000;
  const std::uint32_t size = bits & 0x7fff'ffff;
  std::uint32_t result = 0;
  if (std::isnan(value)) {
    result = 0x7e00;
  } else if (size >= kInfinite) {
    result = 0x7c00;
  } else if (size >= kNormal) {
    result = (size + kHalfStep + (size >> 13 & 1) - kBiasGap) >> 13;
  } else {  // in steps of 2^-24; an exact product
    result = static_cast<std::uint32_t>(std::nearbyint(std::bit_cast<float>(size) * 0x1p24f));
  }
  return static_cast<std::uint16_t>(sign | result);
}

/// The upper half of a float32.
inline std::uint16_t bfloat16_bits(float value) {
  if (std::isnan(value)) return 0x7fc0;
  const auto bits = std::bit_cast<std::uint32_t>(value);
  return static_cast<std::uint16_t>((bits + 0x7fff + (bits >> 16 & 1)) >> 16);
}

}  // namespace headrace
