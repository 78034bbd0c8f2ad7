#include "read_queue.h"

#include <algorithm>
#include <cerrno>
#include <utility>

namespace headrace {
namespace {

// Blocks kept for reuse. Only blocks of up to a kIdleBlocks-th of the budget are, so that idle ones
// take no more memory than the budget; for larger files page faults do not matter beside decoding.
constexpr std::size_t kIdleBlocks = 64;

}  // namespace

ReadQueue::ReadQueue(std::size_t budget_bytes, int least_depth, int most_depth)
    : ahead({.least_depth = least_depth,
             .most_depth = most_depth,
             .least_bytes = std::min(budget_bytes, kFirstBytes),
             .most_bytes = budget_bytes}) {}

void ReadQueue::decode_began(std::size_t ready) noexcept {
  {
    const std::lock_guard lock(mutex);
    const auto reason = held_back       ? ReadAhead::HeldBack::kByBytes
                        : queue.empty() ? ReadAhead::HeldBack::kNothing
                                        : ReadAhead::HeldBack::kByDepth;
    if (!ahead.decode_began(ready, reason)) return;
  }
  ahead_changed();
}

void ReadQueue::set_budget(std::size_t bytes) noexcept {
  const std::lock_guard lock(mutex);
  ahead.set_most_bytes(bytes);
}

ReaderStats ReadQueue::snapshot() const {
  const std::lock_guard lock(mutex);
  ReaderStats result = stats;
  result.queued = urgent.size() + queue.size();
  result.outstanding = outstanding;
  result.depth = ahead.depth();
  result.ahead_bytes = ahead.bytes();
  return result;
}

ReadRequest pop_request(std::deque<ReadRequest>& requests) noexcept {
  ReadRequest request = std::move(requests.front());
  requests.pop_front();
  return request;
}

BudgetShare::~BudgetShare() {
  {
    const std::lock_guard lock(queue_->mutex);
    queue_->outstanding -= bytes_;
  }
  queue_->room_came();
}

void BudgetShare::take(std::size_t bytes) noexcept {
  bytes_ = bytes;
  queue_->outstanding += bytes;
}

ReadMemory::ReadMemory(std::size_t budget_bytes)
    : budget_(budget_bytes),
      recycled_(make_host_allocator(), kIdleBlocks),
      fresh_(make_host_allocator(), 0) {}

Buffer ReadMemory::acquire(std::size_t bytes) noexcept {
  try {
    return (bytes <= budget_ / kIdleBlocks ? recycled_ : fresh_).acquire(bytes);
  } catch (...) {
    return {};
  }
}

FileRange range_of(const Sample& sample, const struct stat& status) noexcept {
  if (!S_ISREG(status.st_mode)) {
    return {.failed_call = "open", .error = S_ISDIR(status.st_mode) ? EISDIR : ESPIPE};
  }
  const auto file_size = static_cast<std::uint64_t>(status.st_size);
  const bool whole = sample.size == Sample::kWholeFile;
  if (sample.offset > file_size || (!whole && sample.size > file_size - sample.offset)) {
    return {.failed_call = "read", .error = ENODATA};
  }
  return {.offset = sample.offset, .size = whole ? file_size - sample.offset : sample.size};
}

std::uint64_t ns_since(std::chrono::steady_clock::time_point start) noexcept {
  const auto passed = std::chrono::steady_clock::now() - start;
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

}  // namespace headrace
