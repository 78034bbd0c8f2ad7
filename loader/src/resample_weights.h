// How much each source position counts for each output position of one axis.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <vector>

#include "headrace/transform.h"

namespace headrace {

/// Weights are fixed-point numbers; 22 bits leave room for 8-bit pixels and bicubic overshoot.
constexpr int kWeightBits = 22;
constexpr std::int32_t kHalfWeight = 1 << (kWeightBits - 1);

/// What one vector register holds.
struct alignas(32) Lanes {
  std::array<std::int8_t, 32> bytes;
};

struct Weights {
  std::vector<int> first;  // source position of the first tap
  std::vector<int> count;
  std::size_t taps = 0;              // row length of `weight`
  std::vector<std::int32_t> weight;  // [position, taps], zero behind `count`

  // The same numbers in the form that one of the kernels wants them in.
  std::size_t groups = 0;                // of taps, for each position
  std::size_t vector_positions = 0;      // the others are left to scalar code
  std::size_t safe_positions = 0;        // of those, the ones that read nothing behind the row
  std::size_t spare_bytes = 0;           // that the others read there
  std::vector<Lanes> column_groups;      // made by Kernels::prepare_columns
  std::vector<std::int32_t> row_groups;  // made by Kernels::prepare_rows

  std::size_t positions() const { return first.size(); }
  int begin() const { return first.front(); }
  int length() const { return first.back() + count.back() - begin(); }
  /// Lets the source start with the first position that counts.
  void rebase();
  /// Zero behind the last tap.
  std::int32_t at(std::size_t position, std::size_t tap) const {
    return tap < taps ? weight[position * taps + tap] : 0;
  }
};

/// The source positions [first, last) that count for the `wanted` output positions from `begin` on.
/// @param filter  not kNearest.
struct Reach {
  int first;
  int last;
};
Reach reach_of(int source_length, int length, Filter filter, int begin, int wanted);

/// For the `wanted` output positions from `begin` on, when `source_length` becomes `length`.
/// @param filter  not kNearest.
Weights make_weights(int source_length, int length, Filter filter, int begin, int wanted);

/// Source position of each output position with kNearest; -1 where there is none.
std::vector<int> nearest_positions(int source_length, int length);

}  // namespace headrace
