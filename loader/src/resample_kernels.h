// The two passes of a resize, one row at a time: plain code, and the same for wide registers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "resample_weights.h"

namespace headrace {

/// One implementation. All give the same bits: sums are exact in 32-bit integers, in any order.
struct Kernels {
  const char* name;
  bool (*runs_here)();

  /// To be called once before blend_columns, for rows of `row_bytes`.
  void (*prepare_columns)(Weights& weights, std::size_t row_bytes);
  /// The horizontal pass of one row.
  /// @param spare_bytes  that may be read behind the row; whatever they are, they don't count.
  void (*blend_columns)(const std::uint8_t* row, std::size_t spare_bytes, const Weights& weights,
                        std::uint8_t* out);

  /// To be called once before blend_rows.
  void (*prepare_rows)(Weights& weights);
  /// The vertical pass for one output row, all bytes alike.
  /// @param source    row of the first tap; the others follow `stride` bytes apart.
  /// @param position  of the output row in `weights`.
  void (*blend_rows)(const std::uint8_t* source, std::size_t stride, const Weights& weights,
                     std::size_t position, std::size_t row_bytes, std::uint8_t* out);
};

/// Plain code first, the fastest last; some may not run on this processor.
std::span<const Kernels> all_kernels();

/// The fastest that this processor runs.
const Kernels& best_kernels();

/// Plain code for the output positions from `begin` on; `out` is the whole row's.
void blend_columns_from(std::size_t begin, const std::uint8_t* row, const Weights& weights,
                        std::uint8_t* out);

/// Plain code for the bytes from `begin` on.
void blend_rows_from(std::size_t begin, const std::uint8_t* source, std::size_t stride,
                     const Weights& weights, std::size_t position, std::size_t row_bytes,
                     std::uint8_t* out);

#if defined(__x86_64__)
extern const Kernels kAvx2Kernels;
extern const Kernels kVnniKernels;
#endif

}  // namespace headrace
