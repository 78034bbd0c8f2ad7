#include "resample_kernels.h"

#include <algorithm>
#include <array>

namespace headrace {
namespace {

constexpr std::size_t kChannels = 3;

std::uint8_t to_pixel(std::int32_t sum) {
  return static_cast<std::uint8_t>(std::clamp(sum >> kWeightBits, 0, 255));
}

constexpr Kernels kPlainKernels{
    .name = "plain",
    .runs_here = [] { return true; },
    .prepare_columns = [](Weights&, std::size_t) {},
    .blend_columns = [](const std::uint8_t* row, std::size_t, const Weights& weights,
                        std::uint8_t* out) { blend_columns_from(0, row, weights, out); },
    .prepare_rows = [](Weights&) {},
    .blend_rows =
        [](const std::uint8_t* source, std::size_t stride, const Weights& weights,
           std::size_t position, std::size_t row_bytes, std::uint8_t* out) {
          blend_rows_from(0, source, stride, weights, position, row_bytes, out);
        },
};

}  // namespace

void blend_columns_from(std::size_t begin, const std::uint8_t* row, const Weights& weights,
                        std::uint8_t* out) {
  for (std::size_t x = begin; x < weights.positions(); ++x) {
    const std::uint8_t* pixel = row + static_cast<std::size_t>(weights.first[x]) * kChannels;
    const std::int32_t* weight = &weights.weight[x * weights.taps];
    std::int32_t red = kHalfWeight;
    std::int32_t green = kHalfWeight;
    std::int32_t blue = kHalfWeight;
    for (int tap = 0; tap < weights.count[x]; ++tap, pixel += kChannels) {
      red += weight[tap] * pixel[0];
      green += weight[tap] * pixel[1];
      blue += weight[tap] * pixel[2];
    }
    out[x * kChannels] = to_pixel(red);
    out[x * kChannels + 1] = to_pixel(green);
    out[x * kChannels + 2] = to_pixel(blue);
  }
}

void blend_rows_from(std::size_t begin, const std::uint8_t* source, std::size_t stride,
                     const Weights& weights, std::size_t position, std::size_t row_bytes,
                     std::uint8_t* out) {
  constexpr std::size_t kBlock = 64;  // sums that stay in registers or the nearest cache
  std::array<std::int32_t, kBlock> sums;
  const std::int32_t* const weight = &weights.weight[position * weights.taps];
  for (; begin < row_bytes; begin += kBlock) {
    const std::size_t bytes = std::min(kBlock, row_bytes - begin);
    sums.fill(kHalfWeight);
    for (int tap = 0; tap < weights.count[position]; ++tap) {
      const std::uint8_t* row = source + static_cast<std::size_t>(tap) * stride + begin;
      for (std::size_t i = 0; i < bytes; ++i) sums[i] += weight[tap] * row[i];
    }
    for (std::size_t i = 0; i < bytes; ++i) out[begin + i] = to_pixel(sums[i]);
  }
}

std::span<const Kernels> all_kernels() {
#if defined(__x86_64__)
  static const std::array kAll{kPlainKernels, kAvx2Kernels, kVnniKernels};
#else
  static const std::array kAll{kPlainKernels};
#endif
  return kAll;
}

const Kernels& best_kernels() {
  static const Kernels& best = []() -> const Kernels& {
    const auto all = all_kernels();
    return *std::find_if(all.rbegin(), all.rend(), [](const Kernels& k) { return k.runs_here(); });
  }();
  return best;
}

}  // namespace headrace
