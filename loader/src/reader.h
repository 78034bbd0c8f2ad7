// Byte ranges in, filled buffers out.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "headrace/buffer.h"
#include "headrace/source.h"

namespace headrace {

/// Part of the read budget; gives it back when destroyed, on any thread.
class ReadShare {
 public:
  ReadShare() = default;
  virtual ~ReadShare() = default;
  ReadShare(const ReadShare&) = delete;
  ReadShare& operator=(const ReadShare&) = delete;
};

/// A filled buffer of compressed bytes; gives its share of the read budget back when destroyed. May
/// outlive its reader.
class ReadBuffer {
 public:
  ReadBuffer() = default;
  /// @param share  may be null: nothing to give back.
  ReadBuffer(Buffer memory, std::size_t size, std::unique_ptr<ReadShare> share)
      : share_(std::move(share)), memory_(std::move(memory)), size_(size) {}

  std::span<const std::byte> bytes() const noexcept { return {memory_.get(), size_}; }

 private:
  std::unique_ptr<ReadShare> share_;  // first, so that it goes last: the block is idle by then
  Buffer memory_;
  std::size_t size_ = 0;
};

struct ReadResult {
  std::uint64_t ticket = 0;
  ReadBuffer buffer;
  int error = 0;     ///< errno of the failed call, 0 on success; ENODATA when the file is too short
  std::string what;  ///< which call failed: "open", "stat", "allocate", "read"; or
                     ///< "io_uring", once the ring is lost for all reads
};

using OnDone = std::function<void(ReadResult)>;

/// Counters since construction.
struct ReaderStats {
  std::string_view name;             ///< "pread", "io_uring"
  std::string note;                  ///< why it is this one and not another, if there is a reason
  std::uint64_t reads = 0;           ///< finished, failed ones included
  std::uint64_t bytes = 0;           ///< read
  std::uint64_t busy_ns = 0;         ///< in system calls and allocation, summed over threads
  std::uint64_t wait_budget_ns = 0;  ///< the next read in turn was held back by the budget
  std::size_t queued = 0;            ///< submitted and not yet begun
  std::size_t outstanding = 0;       ///< bytes admitted to the budget and not yet given back
  int depth = 0;                     ///< reads in flight at most, as adjusted by now
  std::size_t ahead_bytes = 0;       ///< of the budget, what is made use of by now
};

/// Reads in the background, ahead of the consumer but within a budget of bytes.
///
/// Reads are admitted to the budget strictly in the order of submission. One that is larger than
/// the whole budget is admitted when nothing else is outstanding. An urgent read passes by queue
/// and budget: its bytes were admitted once already.
///
/// Why this cannot deadlock, given that the owner of a buffer waits for nothing but reads submitted
/// before its own and urgent ones: take the oldest read that is not admitted. The shares that hold
/// it back belong to older reads, which are admitted and come to their end. Their owners wait for
/// older reads still, all admitted, or for urgent ones, which need no share and are served by any
/// thread, even one that waits for the budget. So every share comes back, and with none outstanding
/// any size is admitted.
///
/// Not for use in a forked child, not even to be destroyed: the threads are the parent's.
class Reader {
 public:
  /// Drops what has not begun, waits for reads in flight; no callback comes afterwards. Not to be
  /// called from the callback.
  virtual ~Reader() = default;

  /// Queues one read. Never blocks. Thread-safe. The callback given at construction is called once
  /// a ticket on a thread of the reader, unless the reader is destroyed first.
  /// @param urgent  goes first and ignores the budget.
  virtual void submit(std::uint64_t ticket, const Sample& sample, bool urgent) = 0;

  /// A decode begins, and `ready` more have the bytes that they need: tells whether to read more
  /// at a time, and further ahead. Thread-safe.
  virtual void decode_began(std::size_t ready) noexcept = 0;

  /// A larger budget than at construction. Thread-safe.
  virtual void set_budget(std::size_t bytes) noexcept = 0;

  virtual ReaderStats stats() const = 0;
};

}  // namespace headrace
