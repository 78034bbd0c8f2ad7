// What the readers have in common: the order of requests, the budget of bytes, the memory.
#pragma once

#include <sys/stat.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <mutex>

#include "headrace/buffer.h"
#include "read_ahead.h"
#include "reader.h"

namespace headrace {

struct ReadRequest {
  std::uint64_t ticket = 0;
  Sample sample;
};

/// Requests in order, and the bytes that are outstanding. Shared with the buffers that were handed
/// out, which may outlive the reader. `mutex` guards all of it.
struct ReadQueue {
  /// Reads up to kFirstBytes ahead at first.
  ReadQueue(std::size_t budget_bytes, int least_depth, int most_depth);
  virtual ~ReadQueue() = default;
  ReadQueue(const ReadQueue&) = delete;
  ReadQueue& operator=(const ReadQueue&) = delete;

  static constexpr std::size_t kFirstBytes = std::size_t{8} << 20;

  // Called without the lock, on any thread:
  virtual void room_came() noexcept = 0;  ///< bytes came back to the budget
  virtual void ahead_changed() noexcept = 0;

  /// As Reader::decode_began().
  void decode_began(std::size_t ready) noexcept;

  /// As Reader::set_budget().
  void set_budget(std::size_t bytes) noexcept;

  bool has_room(std::size_t bytes) const noexcept {
    return outstanding == 0 || (bytes <= ahead.bytes() && outstanding <= ahead.bytes() - bytes);
  }
  /// The counters as they stand.
  ReaderStats snapshot() const;

  mutable std::mutex mutex;
  ReadAhead ahead;
  std::deque<ReadRequest> urgent;
  std::deque<ReadRequest> queue;
  std::uint64_t turns = 0;      // requests taken from the queue; each has a number
  std::uint64_t next_turn = 0;  // the number that is admitted next
  std::size_t outstanding = 0;  // bytes admitted and not yet given back
  bool held_back = false;       // the next in turn has no room
  bool stopping = false;
  ReaderStats stats;
};

/// Takes the oldest request out. The caller holds the lock.
ReadRequest pop_request(std::deque<ReadRequest>& requests) noexcept;

/// A part of a queue's budget: none until take().
class BudgetShare final : public ReadShare {
 public:
  explicit BudgetShare(std::shared_ptr<ReadQueue> queue) noexcept : queue_(std::move(queue)) {}
  ~BudgetShare() override;

  /// The caller holds the lock.
  void take(std::size_t bytes) noexcept;

 private:
  std::shared_ptr<ReadQueue> queue_;
  std::size_t bytes_ = 0;
};

/// Memory for compressed bytes. Thread-safe.
class ReadMemory {
 public:
  explicit ReadMemory(std::size_t budget_bytes);
  /// @returns null where there is no memory.
  Buffer acquire(std::size_t bytes) noexcept;

 private:
  std::size_t budget_;
  BufferPool recycled_;
  BufferPool fresh_;
};

/// The bytes of a sample within its file, or why they cannot be read.
struct FileRange {
  std::uint64_t offset = 0;
  std::size_t size = 0;
  const char* failed_call = "";
  int error = 0;
};
FileRange range_of(const Sample& sample, const struct stat& status) noexcept;

/// Nanoseconds since `start`.
std::uint64_t ns_since(std::chrono::steady_clock::time_point start) noexcept;

}  // namespace headrace
