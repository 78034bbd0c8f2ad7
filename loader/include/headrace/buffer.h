// Where a batch's memory comes from, and how it comes back.
#pragma once

#include <cstddef>
#include <memory>
#include <span>

#include "headrace/api.h"

namespace HEADRACE_API headrace {

/// A source of raw memory: plain, pinned, another library's. Must be callable from any thread.
class Allocator {
 public:
  virtual ~Allocator() = default;
  /// @returns at least `bytes` bytes aligned to 64.
  /// @throws std::bad_alloc
  virtual void* allocate(std::size_t bytes) = 0;
  virtual void deallocate(void* memory, std::size_t bytes) noexcept = 0;
};

/// Ordinary page-aligned memory.
std::shared_ptr<Allocator> make_host_allocator();

/// Shared ownership of one block of a pool; the last owner gives the block back. May be released on
/// any thread, in a forked child, and after the pool's own last owner is gone.
using Buffer = std::shared_ptr<std::byte[]>;

/// Recycles blocks, since fresh large ones cost page faults. Thread-safe.
class BufferPool {
 public:
  /// @param max_idle  blocks kept for reuse; more than that go back to the allocator.
  BufferPool(std::shared_ptr<Allocator> allocator, std::size_t max_idle);

  /// A block of at least `bytes` bytes with unspecified contents.
  Buffer acquire(std::size_t bytes);

  /// Gives the idle blocks back to the allocator.
  void trim();

  struct Stats {
    std::size_t idle_blocks = 0;
    std::size_t idle_bytes = 0;
    std::size_t live_blocks = 0;  ///< handed out and not yet back
    std::size_t allocations = 0;  ///< times that the allocator was asked
  };
  Stats stats() const;

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace headrace
