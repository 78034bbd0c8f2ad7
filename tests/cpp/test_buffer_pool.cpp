#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <cstring>
#include <functional>
#include <limits>
#include <memory>
#include <new>
#include <thread>
#include <vector>

#include "headrace/buffer.h"
#include "headrace/error.h"
#include "support.h"

namespace headrace {
namespace {

constexpr std::size_t kPage = 4096;

/// Host memory with a count, and failure on demand.
class CountingAllocator final : public Allocator {
 public:
  void* allocate(std::size_t bytes) override {
    if (fail) throw std::bad_alloc();
    void* memory = host_->allocate(bytes);
    blocks += 1;
    return memory;
  }
  void deallocate(void* memory, std::size_t bytes) noexcept override {
    if (on_deallocate) on_deallocate();
    blocks -= 1;
    freed_bytes += bytes;
    host_->deallocate(memory, bytes);
  }

  std::atomic<bool> fail = false;
  std::atomic<int> blocks = 0;
  std::atomic<std::size_t> freed_bytes = 0;
  std::function<void()> on_deallocate;

 private:
  std::shared_ptr<Allocator> host_ = make_host_allocator();
};

/// Whether `check` returns true in a forked child, within a while.
bool holds_in_child(const std::function<bool()>& check) {
  const pid_t child = fork();
  if (child == 0) {
    alarm(20);  // a deadlock ends here
    _exit(check() ? 0 : 1);
  }
  int status = 0;
  return waitpid(child, &status, 0) == child && WIFEXITED(status) && WEXITSTATUS(status) == 0;
}

TEST_CASE("pool hands out aligned blocks that can be written to the end", "[buffer_pool]") {
  BufferPool pool(make_host_allocator(), 4);
  for (const std::size_t bytes : {std::size_t{0}, std::size_t{1}, kPage, kPage + 1, 100 * kPage}) {
    const Buffer buffer = pool.acquire(bytes);
    REQUIRE(buffer != nullptr);
    CHECK(reinterpret_cast<std::uintptr_t>(buffer.get()) % 64 == 0);
    std::memset(buffer.get(), 1, bytes);
  }
}

TEST_CASE("pool uses a block again when its last owner is gone", "[buffer_pool]") {
  const auto allocator = std::make_shared<CountingAllocator>();
  BufferPool pool(allocator, 4);
  Buffer first = pool.acquire(10 * kPage);
  Buffer copy = first;
  const std::byte* memory = first.get();
  first.reset();
  CHECK(pool.acquire(10 * kPage).get() != memory);
  CHECK(pool.stats().live_blocks == 1);
  copy.reset();
  CHECK(pool.stats().live_blocks == 0);
  const Buffer again = pool.acquire(10 * kPage);
  CHECK(again.get() == memory);
  CHECK(pool.stats().allocations == 2);
}

TEST_CASE("pool takes the idle block that fits best", "[buffer_pool]") {
  BufferPool pool(make_host_allocator(), 4);
  std::vector<Buffer> buffers;
  for (const std::size_t pages : {20, 12, 16}) buffers.push_back(pool.acquire(pages * kPage));
  const std::byte* twelve = buffers[1].get();
  const std::byte* sixteen = buffers[2].get();
  buffers.clear();
  const Buffer ten = pool.acquire(10 * kPage);
  const Buffer eleven = pool.acquire(11 * kPage);
  CHECK(ten.get() == twelve);
  CHECK(eleven.get() == sixteen);
}

TEST_CASE("pool does not waste a large block on a small request", "[buffer_pool]") {
  BufferPool pool(make_host_allocator(), 4);
  const std::byte* large = pool.acquire(100 * kPage).get();
  const Buffer small = pool.acquire(10 * kPage);
  CHECK(small.get() != large);
  CHECK(pool.acquire(100 * kPage).get() == large);
}

TEST_CASE("pool keeps max_idle blocks, those that came back last", "[buffer_pool]") {
  const auto allocator = std::make_shared<CountingAllocator>();
  BufferPool pool(allocator, 2);
  std::vector<Buffer> buffers;
  for (std::size_t i = 0; i < 4; ++i) buffers.push_back(pool.acquire((i + 1) * kPage));
  for (auto& buffer : buffers) buffer.reset();
  CHECK(pool.stats().idle_blocks == 2);
  CHECK(pool.stats().idle_bytes == (3 + 4) * kPage);
  CHECK(allocator->freed_bytes == (1 + 2) * kPage);
  CHECK(allocator->blocks == 2);
}

TEST_CASE("pool without idle blocks gives everything back at once", "[buffer_pool]") {
  const auto allocator = std::make_shared<CountingAllocator>();
  BufferPool pool(allocator, 0);
  pool.acquire(kPage);
  CHECK(allocator->blocks == 0);
}

TEST_CASE("pool trims its idle blocks and works on", "[buffer_pool]") {
  const auto allocator = std::make_shared<CountingAllocator>();
  BufferPool pool(allocator, 4);
  const Buffer live = pool.acquire(kPage);
  pool.acquire(3 * kPage).reset();
  REQUIRE(pool.stats().idle_blocks == 1);
  pool.trim();
  CHECK(pool.stats().idle_blocks == 0);
  CHECK(allocator->blocks == 1);
  pool.acquire(kPage).reset();
  CHECK(pool.stats().idle_blocks == 1);
}

TEST_CASE("pool's idle blocks go with it, live ones when they are released", "[buffer_pool]") {
  const auto allocator = std::make_shared<CountingAllocator>();
  Buffer held;
  {
    BufferPool pool(allocator, 4);
    held = pool.acquire(kPage);
    const Buffer other = pool.acquire(kPage);
  }
  CHECK(allocator->blocks == 1);
  std::memset(held.get(), 1, kPage);
  held.reset();
  CHECK(allocator->blocks == 0);
}

TEST_CASE("pool passes on that memory is short and works on afterwards", "[buffer_pool]") {
  const auto allocator = std::make_shared<CountingAllocator>();
  BufferPool pool(allocator, 4);
  allocator->fail = true;
  CHECK_THROWS_AS(pool.acquire(kPage), std::bad_alloc);
  CHECK(pool.stats().live_blocks == 0);
  allocator->fail = false;
  CHECK_THROWS_AS(pool.acquire(std::numeric_limits<std::size_t>::max()), std::bad_alloc);
  CHECK(pool.acquire(kPage) != nullptr);
}

TEST_CASE("pool never hands one block to two owners", "[buffer_pool]") {
  const auto allocator = std::make_shared<CountingAllocator>();
  std::atomic<int> mixed_up = 0;
  {
    BufferPool pool(allocator, 3);
    std::vector<std::jthread> threads;
    for (int thread = 0; thread < 4; ++thread) {
      threads.emplace_back([&pool, &mixed_up, thread] {
        Buffer held;
        for (std::size_t round = 0; round < 500; ++round) {
          Buffer buffer = pool.acquire((1 + round % 3) * kPage);
          std::memset(buffer.get(), thread, kPage);
          if (held != nullptr && held[kPage - 1] != static_cast<std::byte>(thread)) ++mixed_up;
          // Released on another thread half of the time.
          if (round % 100 == 0) {
            std::jthread([moved = std::move(buffer)] {});
          } else {
            held = std::move(buffer);
          }
        }
      });
    }
  }
  CHECK(mixed_up == 0);
  CHECK(allocator->blocks == 0);
}

TEST_CASE("pool's last reference may go while buffers are released", "[buffer_pool]") {
  for (int round = 0; round < 50; ++round) {
    const auto allocator = std::make_shared<CountingAllocator>();
    {
      auto pool = std::make_unique<BufferPool>(allocator, 4);
      std::vector<std::jthread> threads;
      for (int i = 0; i < 3; ++i) {
        threads.emplace_back([buffer = pool->acquire(kPage)]() mutable { buffer.reset(); });
      }
      pool.reset();
    }
    REQUIRE(allocator->blocks == 0);
  }
}

TEST_CASE("a forked child frees nothing, since locks may be lost there", "[buffer_pool]") {
  const auto allocator = std::make_shared<CountingAllocator>();
  auto pool = std::make_unique<BufferPool>(allocator, 1);
  Buffer buffer = pool->acquire(kPage);
  pool->acquire(2 * kPage);
  const int blocks = allocator->blocks;
  CHECK(holds_in_child([&] {
    buffer.reset();
    pool.reset();
    return allocator->blocks == blocks;
  }));
  std::memset(buffer.get(), 1, kPage);
  buffer.reset();
  CHECK(pool->stats().live_blocks == 0);
}

// The sanitizers' own allocators may lose a lock in such a fork.
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)
TEST_CASE("buffer can be released in a child forked while threads use the pool", "[buffer_pool]") {
  BufferPool pool(make_host_allocator(), 1);
  Buffer buffer = pool.acquire(kPage);
  const std::jthread busy([&pool](const std::stop_token& stop) {
    while (!stop.stop_requested()) (void)pool.stats();
  });
  int failures = 0;
  for (int round = 0; round < 50; ++round) {
    failures += holds_in_child([&buffer] {
      buffer.reset();
      return true;
    })
                    ? 0
                    : 1;
  }
  CHECK(failures == 0);
}
#endif

TEST_CASE("pool refuses work in a forked child instead of waiting for a lost lock",
          "[buffer_pool]") {
  BufferPool pool(make_host_allocator(), 1);
  CHECK(holds_in_child([&] {
    try {
      pool.acquire(kPage);
    } catch (const Error& error) {
      return error.code() == ErrorCode::kInvalidArgument;
    }
    return false;
  }));
}

}  // namespace
}  // namespace headrace
