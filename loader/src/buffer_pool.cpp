#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <limits>
#include <mutex>
#include <new>
#include <utility>
#include <vector>

#include "headrace/buffer.h"
#include "headrace/error.h"

namespace headrace {
namespace {

constexpr std::size_t kPageBytes = 4096;

class HostAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override {
    return ::operator new (bytes, std::align_val_t{kPageBytes});
  }
  void deallocate(void* memory, std::size_t /*bytes*/) noexcept override {
    ::operator delete (memory, std::align_val_t{kPageBytes});
  }
};

struct Block {
  void* memory = nullptr;
  std::size_t bytes = 0;
};

/// In whole pages, so that requests of nearly the same size can use each other's blocks.
std::size_t block_bytes(std::size_t bytes) {
  if (bytes > std::numeric_limits<std::ptrdiff_t>::max() - kPageBytes) throw std::bad_alloc();
  return std::max<std::size_t>(1, (bytes + kPageBytes - 1) / kPageBytes) * kPageBytes;
}

}  // namespace

std::shared_ptr<Allocator> make_host_allocator() { return std::make_shared<HostAllocator>(); }

/// Owned by the pool alone: buffers look at it through weak pointers, so that blocks which outlive
/// the pool go straight back to the allocator instead of lying idle.
///
/// A forked child has copies of all this, but not the threads: the mutex may be held forever, and
/// so may a lock of the allocator's (pinned memory cannot be freed in a child at all). There
/// nothing is locked or freed. The child's copies cost no memory until written to, and end with the
/// child.
struct BufferPool::Shared {
  const std::shared_ptr<Allocator> allocator;
  const std::size_t max_idle;
  const pid_t process = getpid();

  mutable std::mutex mutex;
  std::vector<Block> idle;  // in the order in which they came back
  std::size_t live_blocks = 0;
  std::size_t allocations = 0;

  Shared(std::shared_ptr<Allocator> allocator_in, std::size_t max_idle_in)
      : allocator(std::move(allocator_in)), max_idle(max_idle_in) {
    idle.reserve(max_idle);  // giving back must not throw
  }

  ~Shared() {
    if (getpid() != process) return;
    for (const Block& block : idle) allocator->deallocate(block.memory, block.bytes);
  }

  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  std::unique_lock<std::mutex> lock() const {
    if (getpid() != process) {
      throw Error(ErrorCode::kInvalidArgument,
                  "a buffer pool is of no use in a forked process: make a new one",
                  {.stage = "engine"});
    }
    return std::unique_lock(mutex);
  }

  /// The smallest idle block that is large enough, the warmest of equals; none that is more than
  /// twice too large, lest small requests sit on the large blocks. The caller holds the lock.
  Block take_idle(std::size_t bytes) {
    auto best = idle.end();
    for (auto block = idle.begin(); block != idle.end(); ++block) {
      const bool fits = block->bytes >= bytes && block->bytes / 2 <= bytes;
      if (fits && (best == idle.end() || block->bytes <= best->bytes)) best = block;
    }
    if (best == idle.end()) return {};
    const Block block = *best;
    idle.erase(best);
    return block;
  }

  void give_back(Block block) noexcept {
    Block surplus;
    {
      const std::lock_guard guard(mutex);
      --live_blocks;
      if (max_idle == 0) {
        surplus = block;
      } else {
        if (idle.size() == max_idle) {
          // The one that nobody wanted for the longest time: sizes follow what is asked for now.
          surplus = idle.front();
          idle.erase(idle.begin());
        }
        idle.push_back(block);
      }
    }
    if (surplus.memory != nullptr) allocator->deallocate(surplus.memory, surplus.bytes);
  }

  /// Deleter of a Buffer.
  struct Release {
    std::weak_ptr<Shared> pool;
    std::shared_ptr<Allocator> allocator;
    pid_t process;
    std::size_t bytes;

    void operator()(std::byte* memory) const noexcept {
      if (getpid() != process) return;
      if (const auto shared = pool.lock()) {
        shared->give_back({memory, bytes});
      } else {
        allocator->deallocate(memory, bytes);
      }
    }
  };
};

BufferPool::BufferPool(std::shared_ptr<Allocator> allocator, std::size_t max_idle)
    : shared_(std::make_shared<Shared>(std::move(allocator), max_idle)) {}

Buffer BufferPool::acquire(std::size_t bytes) {
  Shared& shared = *shared_;
  const std::size_t wanted = block_bytes(bytes);
  Block block;
  {
    const auto lock = shared.lock();
    block = shared.take_idle(wanted);
    if (block.memory != nullptr) ++shared.live_blocks;
  }
  if (block.memory == nullptr) {
    block = {shared.allocator->allocate(wanted), wanted};  // slow, hence without the lock
    const auto lock = shared.lock();
    ++shared.live_blocks;
    ++shared.allocations;
  }
  // Should the shared_ptr fail to be made, it calls the deleter itself.
  return Buffer(static_cast<std::byte*>(block.memory),
                Shared::Release{shared_, shared.allocator, shared.process, block.bytes});
}

void BufferPool::trim() {
  std::vector<Block> idle;
  idle.reserve(shared_->max_idle);  // it takes the place of the other: giving back must not throw
  {
    const auto lock = shared_->lock();
    idle.swap(shared_->idle);
  }
  for (const Block& block : idle) shared_->allocator->deallocate(block.memory, block.bytes);
}

BufferPool::Stats BufferPool::stats() const {
  const auto lock = shared_->lock();
  Stats stats;
  stats.idle_blocks = shared_->idle.size();
  for (const Block& block : shared_->idle) stats.idle_bytes += block.bytes;
  stats.live_blocks = shared_->live_blocks;
  stats.allocations = shared_->allocations;
  return stats;
}

}  // namespace headrace
