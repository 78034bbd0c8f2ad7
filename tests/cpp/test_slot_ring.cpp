#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <optional>
#include <vector>

#include "slot_ring.h"
#include "support.h"

namespace headrace {
namespace {

SlotRing make_ring(std::size_t capacity) {
  return SlotRing({{.name = "image", .dtype = Dtype::kFloat32, .shape = {2, 3}},
                   {.name = "label", .dtype = Dtype::kInt64, .shape = {}}},
                  std::make_shared<BufferPool>(make_host_allocator(), 4), capacity);
}

TEST_CASE("slot ring hands out batches in submission order", "[slot_ring]") {
  SlotRing ring = make_ring(3);
  CHECK(ring.begin(4) == 0);
  CHECK(ring.begin(4) == 1);
  CHECK(ring.front_id() == 0);
  CHECK(ring.lease().id == 0);
  CHECK(ring.begin(2) == 2);
  CHECK(ring.lease().id == 1);
  const auto slot = ring.lease();
  CHECK(slot.id == 2);
  CHECK(slot.rows == 2);
  CHECK(ring.empty());
}

TEST_CASE("a slot ring is full at its capacity, and a leased slot does not count", "[slot_ring]") {
  SlotRing ring = make_ring(2);
  ring.begin(1);
  CHECK_FALSE(ring.full());
  ring.begin(1);
  CHECK(ring.full());
  const auto leased = ring.lease();
  CHECK_FALSE(ring.full());
}

TEST_CASE("rows of a slot lie one after another in their field's memory", "[slot_ring]") {
  SlotRing ring = make_ring(1);
  const auto id = ring.begin(3);
  for (std::size_t row = 0; row < 3; ++row) {
    std::memset(ring.row(id, 0, row).data(), static_cast<int>(row) + 1, 24);
    CHECK(ring.row(id, 0, row).size() == 2 * 3 * sizeof(float));
    CHECK(ring.row(id, 1, row).size() == sizeof(std::int64_t));
  }
  const auto slot = ring.lease();
  for (std::size_t i = 0; i < 3 * 24; ++i) {
    REQUIRE(static_cast<std::size_t>(slot.fields[0][static_cast<std::ptrdiff_t>(i)]) == i / 24 + 1);
  }
}

TEST_CASE("a leased slot keeps its memory after the ring is gone", "[slot_ring]") {
  std::optional<SlotRing> ring(make_ring(1));
  const auto id = ring->begin(1);
  std::memset(ring->row(id, 0, 0).data(), 7, 24);
  const auto slot = ring->lease();
  ring.reset();
  CHECK(slot.fields[0][23] == std::byte{7});
}

TEST_CASE("rows behind those left out move up in every field", "[slot_ring]") {
  SlotRing ring = make_ring(1);
  const auto id = ring.begin(6);
  for (std::size_t row = 0; row < 6; ++row) {
    for (std::size_t field = 0; field < 2; ++field) {
      std::ranges::fill(ring.row(id, field, row), static_cast<std::byte>(10 * row + field));
    }
  }
  ring.close_gaps(id, std::vector<std::size_t>{0, 2, 3, 5});
  for (std::size_t field = 0; field < 2; ++field) {
    CHECK(ring.row(id, field, 0).back() == static_cast<std::byte>(10 + field));
    CHECK(ring.row(id, field, 1).back() == static_cast<std::byte>(40 + field));
  }
}

TEST_CASE("a batch without rows has no memory", "[slot_ring]") {
  SlotRing ring = make_ring(1);
  ring.begin(0);
  CHECK(ring.lease().fields[0] == nullptr);
}

}  // namespace
}  // namespace headrace
