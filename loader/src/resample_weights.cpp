#include "resample_weights.h"

#include <algorithm>
#include <cmath>

namespace headrace {
namespace {

double bilinear(double x) {
  x = std::abs(x);
  return x < 1.0 ? 1.0 - x : 0.0;
}

double bicubic(double x) {
  constexpr double kA = -0.5;
  x = std::abs(x);
  if (x < 1.0) return ((kA + 2.0) * x - (kA + 3.0)) * x * x + 1.0;
  if (x < 2.0) return (((x - 5.0) * x + 8.0) * x - 4.0) * kA;
  return 0.0;
}

/// Pillow's geometry of one axis. Every operation and its order matter: doubles decide the pixels.
struct Axis {
  Axis(int source_length, int length, Filter filter)
      : source_end(source_length),
        scale(static_cast<double>(source_length) / length),
        stretch(std::max(scale, 1.0)),
        support((filter == Filter::kBilinear ? 1.0 : 2.0) * stretch) {}

  double center(int position) const { return (position + 0.5) * scale; }
  Reach reach(double center) const {
    return {std::max(static_cast<int>(center - support + 0.5), 0),
            std::min(static_cast<int>(center + support + 0.5), source_end)};
  }

  int source_end;
  double scale;
  double stretch;  // antialiasing: wider when shrinking
  double support;
};

}  // namespace

Reach reach_of(int source_length, int length, Filter filter, int begin, int wanted) {
  const Axis axis(source_length, length, filter);
  return {axis.reach(axis.center(begin)).first, axis.reach(axis.center(begin + wanted - 1)).last};
}

void Weights::rebase() {
  const int origin = begin();
  for (int& position : first) position -= origin;
}

Weights make_weights(int source_length, int length, Filter filter, int begin, int wanted) {
  const auto kernel = filter == Filter::kBilinear ? bilinear : bicubic;
  const Axis axis(source_length, length, filter);
  const double inverse_stretch = 1.0 / axis.stretch;

  Weights weights;
  weights.taps = static_cast<std::size_t>(std::ceil(axis.support)) * 2 + 1;
  const auto positions = static_cast<std::size_t>(wanted);
  weights.first.resize(positions);
  weights.count.resize(positions);
  weights.weight.resize(positions * weights.taps);
  std::vector<double> exact(weights.taps);

  for (std::size_t i = 0; i < positions; ++i) {
    const double center = axis.center(begin + static_cast<int>(i));
    const auto [first, last] = axis.reach(center);
    const auto count = static_cast<std::size_t>(last - first);
    double sum = 0.0;
    for (std::size_t tap = 0; tap < count; ++tap) {
      exact[tap] = kernel((static_cast<int>(tap) + first - center + 0.5) * inverse_stretch);
      sum += exact[tap];
    }
    std::int32_t* out = &weights.weight[i * weights.taps];
    for (std::size_t tap = 0; tap < count; ++tap) {
      const double share = (sum != 0.0 ? exact[tap] / sum : exact[tap]) * (1 << kWeightBits);
      out[tap] = static_cast<std::int32_t>(share + (share < 0 ? -0.5 : 0.5));
    }
    weights.first[i] = first;
    weights.count[i] = static_cast<int>(count);
  }
  return weights;
}

// Pillow adds up steps, so rounding errors add up too, and the last ones may fall off the end.
std::vector<int> nearest_positions(int source_length, int length) {
  const double step = static_cast<double>(source_length) / length;
  std::vector<int> positions(static_cast<std::size_t>(length));
  double at = step * 0.5;
  for (int& position : positions) {
    const int rounded = static_cast<int>(at);
    position = rounded < source_length ? rounded : -1;
    at += step;
  }
  return positions;
}

}  // namespace headrace
