// The batches in flight: memory by address, handed on in the order in which they were begun.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <span>
#include <vector>

#include "headrace/buffer.h"
#include "headrace/field.h"

namespace headrace {

/// A slot is Free, then Filling from begin() to lease(), then Leased: its memory is the caller's
/// and comes back to the pool by itself. Whether a Filling slot is ready to be leased is not known
/// here: that follows from its rows (PlanStream::settled).
///
/// Not thread-safe by itself: the engine's lock guards it. Rows are written without that lock: a
/// row's address is fixed from begin() to lease(), and has one writer at a time.
class SlotRing {
 public:
  struct Slot {
    std::uint64_t id = 0;
    std::size_t rows = 0;
    std::vector<Buffer> fields;  // one block a field, `rows` rows each
  };

  /// @param capacity  slots that may be Filling; leased ones have left the ring.
  SlotRing(std::vector<FieldSpec> fields, std::shared_ptr<BufferPool> pool, std::size_t capacity);

  const std::vector<FieldSpec>& fields() const noexcept { return fields_; }
  bool full() const noexcept { return slots_.size() >= capacity_; }
  bool empty() const noexcept { return slots_.empty(); }

  /// Takes a free slot for `rows` rows and returns its id; ids count up by one. Needs !full().
  std::uint64_t begin(std::size_t rows);

  /// The memory of one row, for its only writer.
  std::span<std::byte> row(std::uint64_t id, std::size_t field, std::size_t row);

  /// Moves rows up so that `gone` (ascending) are left out, and the slot's last rows are free.
  /// A row's address is fixed before anyone knows whether its sample can be had: rare enough.
  void close_gaps(std::uint64_t id, std::span<const std::size_t> gone);

  /// The oldest slot. Needs !empty().
  std::uint64_t front_id() const noexcept { return slots_.front().id; }

  /// Takes the oldest slot out of the ring with its memory. Needs !empty(), and no writer left in
  /// it.
  Slot lease();

 private:
  Slot& at(std::uint64_t id);

  std::vector<FieldSpec> fields_;
  std::shared_ptr<BufferPool> pool_;
  std::size_t capacity_;
  std::uint64_t next_id_ = 0;
  std::deque<Slot> slots_;  // oldest first
};

}  // namespace headrace
