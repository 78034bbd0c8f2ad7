#include "slot_ring.h"

#include <algorithm>
#include <cassert>
#include <utility>

namespace headrace {

SlotRing::SlotRing(std::vector<FieldSpec> fields, std::shared_ptr<BufferPool> pool,
                   std::size_t capacity)
    : fields_(std::move(fields)), pool_(std::move(pool)), capacity_(capacity) {}

std::uint64_t SlotRing::begin(std::size_t rows) {
  assert(!full());
  Slot slot{.id = next_id_, .rows = rows, .fields = {}};
  slot.fields.reserve(fields_.size());
  for (const auto& field : fields_) {
    slot.fields.push_back(rows == 0 ? nullptr : pool_->acquire(rows * field.row_bytes()));
  }
  slots_.push_back(std::move(slot));
  return next_id_++;
}

std::span<std::byte> SlotRing::row(std::uint64_t id, std::size_t field, std::size_t row) {
  Slot& slot = at(id);
  assert(row < slot.rows);
  const std::size_t bytes = fields_[field].row_bytes();
  return {slot.fields[field].get() + row * bytes, bytes};
}

void SlotRing::close_gaps(std::uint64_t id, std::span<const std::size_t> gone) {
  std::size_t to = 0;
  for (std::size_t from = 0; from < at(id).rows; ++from) {
    if (!gone.empty() && gone.front() == from) {
      gone = gone.subspan(1);
      continue;
    }
    for (std::size_t field = 0; field < fields_.size() && from != to; ++field) {
      std::ranges::copy(row(id, field, from), row(id, field, to).begin());
    }
    ++to;
  }
}

SlotRing::Slot SlotRing::lease() {
  assert(!empty());
  Slot slot = std::move(slots_.front());
  slots_.pop_front();
  return slot;
}

SlotRing::Slot& SlotRing::at(std::uint64_t id) {
  assert(!slots_.empty() && id >= slots_.front().id && id - slots_.front().id < slots_.size());
  return slots_[static_cast<std::size_t>(id - slots_.front().id)];
}

}  // namespace headrace
