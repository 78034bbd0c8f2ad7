#include "headrace/order.h"

#include <algorithm>
#include <string>
#include <utility>

#include "headrace/error.h"

namespace headrace {
namespace {

constexpr std::uint64_t kRounds = 128;

/// SplitMix64 (Steele, Lea, Flood: Fast Splittable Pseudorandom Number Generators, OOPSLA 2014):
/// its first output when seeded with `x`.
std::uint64_t mix(std::uint64_t x) {
  x += 0x9e3779b97f4a7c15;
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9;
  x = (x ^ (x >> 27)) * 0x94d049bb133111eb;
  return x ^ (x >> 31);
}

std::int64_t checked_size(std::int64_t size) {
  if (size < 0) {
    throw Error(ErrorCode::kInvalidArgument, "size must not be negative", {.stage = "order"});
  }
  return size;
}

void check_position(std::int64_t position, std::int64_t size) {
  if (position < 0 || position >= size) {
    throw Error(ErrorCode::kInvalidArgument,
                "no position " + std::to_string(position) + ": there are " + std::to_string(size),
                {.stage = "order"});
  }
}

}  // namespace

SequentialOrder::SequentialOrder(std::int64_t size) : size_(checked_size(size)) {}

std::int64_t SequentialOrder::index(std::uint32_t /*epoch*/, std::int64_t position) const {
  check_position(position, size_);
  return position;
}

ListOrder::ListOrder(std::vector<std::int64_t> indices) : indices_(std::move(indices)) {}

std::int64_t ListOrder::size() const noexcept { return static_cast<std::int64_t>(indices_.size()); }

std::int64_t ListOrder::index(std::uint32_t /*epoch*/, std::int64_t position) const {
  check_position(position, size());
  return indices_[static_cast<std::size_t>(position)];
}

ShuffledOrder::ShuffledOrder(std::int64_t size, std::uint64_t seed)
    : size_(checked_size(size)), seed_(seed) {}

std::int64_t ShuffledOrder::index(std::uint32_t epoch, std::int64_t position) const {
  check_position(position, size_);
  const auto size = static_cast<std::uint64_t>(size_);
  const std::uint64_t key = mix(mix(seed_) ^ epoch);
  auto x = static_cast<std::uint64_t>(position);
  for (std::uint64_t round = 0; round < kRounds; ++round) {
    const std::uint64_t pivot = mix(key ^ 2 * round) % size;
    const std::uint64_t partner = pivot >= x ? pivot - x : pivot + size - x;
    const std::uint64_t larger = std::max(x, partner);
    if ((mix(mix(key ^ (2 * round + 1)) ^ larger) & 1) != 0) x = partner;
  }
  return static_cast<std::int64_t>(x);
}

}  // namespace headrace
