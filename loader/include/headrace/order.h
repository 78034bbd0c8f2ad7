// Which samples an epoch consists of, and in which order.
#pragma once

#include <cstdint>
#include <vector>

#include "headrace/api.h"

namespace HEADRACE_API headrace {

/// A sequence of sample indices for each epoch. A pure function of epoch and position: an epoch can
/// be begun anywhere, and part of it read, without going through what comes before.
class Order {
 public:
  virtual ~Order() = default;
  /// Samples in an epoch.
  virtual std::int64_t size() const noexcept = 0;
  /// @param position  in [0, size()).
  /// @returns the index of a sample in the Source.
  virtual std::int64_t index(std::uint32_t epoch, std::int64_t position) const = 0;
};

/// 0, 1, 2, ...
class SequentialOrder final : public Order {
 public:
  /// @throws Error{kInvalidArgument}: a negative size.
  explicit SequentialOrder(std::int64_t size);
  std::int64_t size() const noexcept override { return size_; }
  std::int64_t index(std::uint32_t epoch, std::int64_t position) const override;

 private:
  std::int64_t size_;
};

/// The given indices, which may repeat and leave out samples; the same in every epoch.
class ListOrder final : public Order {
 public:
  explicit ListOrder(std::vector<std::int64_t> indices);
  std::int64_t size() const noexcept override;
  std::int64_t index(std::uint32_t epoch, std::int64_t position) const override;

 private:
  std::vector<std::int64_t> indices_;
};

/// A permutation of 0 ... size - 1 for each seed and epoch, which takes no memory.
///
/// The swap-or-not shuffle (Hoang, Morris, Rogaway: An Enciphering Scheme Based on a Card Shuffle,
/// CRYPTO 2012) of 128 rounds. Each pairs every x with `pivot - x mod size`, and swaps a pair when
/// a bit that is drawn for the larger of the two says so:
///
///     mix(x)  SplitMix64's output function on x + 0x9e3779b97f4a7c15
///     key     mix(mix(seed) ^ epoch)
///     pivot   mix(key ^ 2 * round) mod size
///     bit     the lowest of mix(mix(key ^ (2 * round + 1)) ^ larger)
///
/// The algorithm is part of the interface: another one would be a new major version.
class ShuffledOrder final : public Order {
 public:
  /// @throws Error{kInvalidArgument}: a negative size.
  ShuffledOrder(std::int64_t size, std::uint64_t seed);
  std::int64_t size() const noexcept override { return size_; }
  std::int64_t index(std::uint32_t epoch, std::int64_t position) const override;

 private:
  std::int64_t size_;
  std::uint64_t seed_;
};

}  // namespace headrace
