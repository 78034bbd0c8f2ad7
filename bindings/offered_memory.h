// Memory for batches that Python brings along: torch's pinned memory.
#pragma once

#include <cstddef>
#include <deque>
#include <mutex>
#include <new>

#include "headrace/buffer.h"

namespace headrace {

/// Hands out blocks that were offered, in their order, and owns none of them: whoever offers a
/// block keeps it alive until the batch in it was delivered, or the engine is gone.
class OfferedMemory final : public Allocator {
 public:
  void offer(void* memory, std::size_t bytes) {
    const std::lock_guard lock(mutex_);
    blocks_.push_back({memory, bytes});
  }
  /// Takes back what nobody took.
  void withdraw() {
    const std::lock_guard lock(mutex_);
    blocks_.clear();
  }

  void* allocate(std::size_t bytes) override {
    const std::lock_guard lock(mutex_);
    if (blocks_.empty() || blocks_.front().bytes < bytes) throw std::bad_alloc();
    void* memory = blocks_.front().memory;
    blocks_.pop_front();
    return memory;
  }
  void deallocate(void* /*memory*/, std::size_t /*bytes*/) noexcept override {}

 private:
  struct Block {
    void* memory;
    std::size_t bytes;
  };
  std::mutex mutex_;
  std::deque<Block> blocks_;
};

}  // namespace headrace
