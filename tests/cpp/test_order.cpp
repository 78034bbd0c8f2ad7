#include <algorithm>
#include <numeric>
#include <vector>

#include "headrace/error.h"
#include "headrace/order.h"
#include "support.h"

namespace headrace {
namespace {

using Indices = std::vector<std::int64_t>;

Indices epoch_of(const Order& order, std::uint32_t epoch) {
  Indices indices;
  for (std::int64_t i = 0; i < order.size(); ++i) indices.push_back(order.index(epoch, i));
  return indices;
}

Indices counting(std::int64_t size) {
  Indices indices(static_cast<std::size_t>(size));
  std::iota(indices.begin(), indices.end(), 0);
  return indices;
}

TEST_CASE("a shuffled order is a permutation, another one for each seed and epoch", "[order]") {
  for (const std::int64_t size : {1, 2, 3, 10, 1000, 4096, 10007}) {
    const ShuffledOrder order(size, 1);
    const Indices first = epoch_of(order, 0);
    Indices sorted = first;
    std::ranges::sort(sorted);
    REQUIRE(sorted == counting(size));
    if (size < 10) continue;
    CHECK(first != counting(size));
    CHECK(first == epoch_of(order, 0));
    CHECK(first != epoch_of(order, 1));
    CHECK(first != epoch_of(ShuffledOrder(size, 2), 0));
  }
}

TEST_CASE("shuffled orders stay as they are documented", "[order]") {
  // Computed by a program of its own, from the header's description.
  CHECK(epoch_of(ShuffledOrder(10, 0), 0) == Indices{4, 8, 6, 2, 5, 1, 3, 0, 9, 7});
  CHECK(epoch_of(ShuffledOrder(10, 42), 3) == Indices{1, 3, 2, 6, 4, 5, 0, 7, 8, 9});
  CHECK(ShuffledOrder(1'281'167, 42).index(7, 1'000'000) == 17'678);
}

TEST_CASE("every index comes to every position equally often", "[order]") {
  constexpr std::int64_t kSize = 12;
  constexpr std::uint32_t kEpochs = 12'000;
  std::vector<int> times(kSize * kSize);
  for (std::uint32_t epoch = 0; epoch < kEpochs; ++epoch) {
    const Indices indices = epoch_of(ShuffledOrder(kSize, 5), epoch);
    for (std::size_t i = 0; i < kSize; ++i) {
      ++times[i * kSize + static_cast<std::size_t>(indices[i])];
    }
  }
  const double expected = static_cast<double>(kEpochs) / kSize;
  double chi_square = 0;
  for (const int n : times) chi_square += (n - expected) * (n - expected) / expected;
  // 121 degrees of freedom: a fair shuffle exceeds 180 once in 2,500 times; the seed is fixed.
  CHECK(chi_square < 180);
}

TEST_CASE("neighbours are torn apart", "[order]") {
  constexpr std::int64_t kSize = 10'000;
  const Indices indices = epoch_of(ShuffledOrder(kSize, 3), 0);
  int neighbours = 0;
  for (std::size_t i = 1; i < kSize; ++i) neighbours += indices[i] == indices[i - 1] + 1 ? 1 : 0;
  CHECK(neighbours < 8);  // 1 is expected
}

TEST_CASE("a list is an order, whatever the epoch", "[order]") {
  CHECK(epoch_of(ListOrder({3, 3, 0}), 0) == Indices{3, 3, 0});
  CHECK(epoch_of(ListOrder({3, 3, 0}), 9) == Indices{3, 3, 0});
  CHECK(epoch_of(SequentialOrder(4), 9) == Indices{0, 1, 2, 3});
}

TEST_CASE("orders refuse negative sizes and positions outside", "[order]") {
  CHECK_THROWS_AS(SequentialOrder(-1), Error);
  CHECK_THROWS_AS(ShuffledOrder(-1, 0), Error);
  CHECK_THROWS_AS(SequentialOrder(2).index(0, 2), Error);
  CHECK_THROWS_AS(ShuffledOrder(2, 0).index(0, -1), Error);
  CHECK_THROWS_AS(ShuffledOrder(0, 0).index(0, 0), Error);
  CHECK_THROWS_AS(ListOrder({1}).index(0, 1), Error);
}

}  // namespace
}  // namespace headrace
