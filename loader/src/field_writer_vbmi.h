// Rows of pixels to the planes of a field, 32 pixels at a time: for AVX-512 VBMI, which looks up
// bytes in tables of 64.
#pragma once

#include <cstddef>
#include <cstdint>

#include "transform_impl.h"

namespace headrace {

/// The bytes of a table's values apart: [channel][byte of the value, low first][pixel value].
template <typename T>
struct alignas(32) BytePlanes {
  BytePlanes() = default;
  explicit BytePlanes(const ValueTable<T>& values) {
    for (std::size_t channel = 0; channel < 3; ++channel) {
      for (std::size_t byte = 0; byte < sizeof(T); ++byte) {
        for (std::size_t value = 0; value < 256; ++value) {
          bytes[channel][byte][value] =
              static_cast<std::uint8_t>(values[channel][value] >> (8 * byte));
        }
      }
    }
  }

  std::uint8_t bytes[3][sizeof(T)][256];
};

bool vbmi_runs_here();

/// Writes the first positions of a row, as many as whole blocks make. Needs vbmi_runs_here().
/// @param row  `width` pixels.
/// @param red  the row in its plane; green and blue follow, `plane` values apart.
/// @returns how many positions it wrote.
template <typename T>
std::size_t write_planes_vbmi(const std::uint8_t* row, std::size_t width, bool mirrored,
                              const BytePlanes<T>& tables, T* red, std::size_t plane);

}  // namespace headrace
