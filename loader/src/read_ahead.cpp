#include "read_ahead.h"

#include <algorithm>
#include <limits>
#include <utility>

namespace headrace {
namespace {

constexpr std::size_t kUnknown = std::numeric_limits<std::size_t>::max();

}  // namespace

ReadAhead::ReadAhead(Limits limits) noexcept
    : limits_(limits),
      depth_(limits.least_depth),
      bytes_(limits.least_bytes),
      fewest_ready_(kUnknown) {}

bool ReadAhead::decode_began(std::size_t ready, HeldBack held_back) noexcept {
  fewest_ready_ = std::min(fewest_ready_, ready);
  if (ready == 0 && held_back == HeldBack::kByDepth) ++dry_for_depth_;
  if (ready == 0 && held_back == HeldBack::kByBytes) ++dry_for_bytes_;
  if (++decodes_ < kPeriod) return false;

  const int depth = depth_;
  const std::size_t bytes = bytes_;
  if (dry_for_bytes_ > kPeriod / 2) {
    bytes_ = bytes_ > limits_.most_bytes / 2 ? limits_.most_bytes : bytes_ * 2;
  } else if (dry_for_depth_ > kPeriod / 2) {
    depth_ = std::min(limits_.most_depth, depth_ * 2);
  } else if (fewest_ready_ >= kPlenty) {
    bytes_ = std::max(limits_.least_bytes, bytes_ - bytes_ / 8);
    depth_ = std::max(limits_.least_depth, depth_ - 1);
  }
  decodes_ = dry_for_depth_ = dry_for_bytes_ = 0;
  fewest_ready_ = kUnknown;
  return depth != depth_ || bytes != bytes_;
}

}  // namespace headrace
