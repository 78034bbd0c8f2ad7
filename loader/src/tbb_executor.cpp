#include <tbb/global_control.h>
#include <tbb/info.h>
#include <tbb/task_arena.h>
#include <tbb/task_group.h>
#include <tbb/task_scheduler_observer.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstddef>
#include <memory>
#include <mutex>
#include <string>
#include <utility>

#include "executor.h"
#include "own_thread.h"

namespace headrace {
namespace {

/// oneTBB allows the whole process cores-1 workers unless a global_control says otherwise, and of
/// several controls the smallest counts. So all arenas of ours share one, as large as they need
/// together, and never smaller than the default, which may be serving the program's own arenas.
class ParallelismLease {
 public:
  explicit ParallelismLease(int threads) : threads_(threads) { change(threads_); }
  ~ParallelismLease() { change(-threads_); }
  ParallelismLease(const ParallelismLease&) = delete;
  ParallelismLease& operator=(const ParallelismLease&) = delete;

 private:
  static void change(int delta) {
    static std::mutex mutex;
    static int total = 0;
    // Never destroyed: at the end of a forked child that would wait for a lock which a thread of
    // the parent's held when it forked.
    static auto& control = *new std::unique_ptr<tbb::global_control>;
    const std::lock_guard lock(mutex);
    total += delta;
    control.reset();
    if (total == 0) return;
    const int wanted = std::max(tbb::info::default_concurrency(), total + 1);
    control = std::make_unique<tbb::global_control>(tbb::global_control::max_allowed_parallelism,
                                                    static_cast<std::size_t>(wanted));
  }

  int threads_;
};

class OwnThreads final : public tbb::task_scheduler_observer {
 public:
  explicit OwnThreads(tbb::task_arena& arena) : tbb::task_scheduler_observer(arena) {
    observe(true);
  }
  ~OwnThreads() override { observe(false); }
  void on_scheduler_entry(bool is_worker) override {
    if (!is_worker) return;
    become_own_thread("hr-cpu-" + std::to_string(tbb::this_task_arena::current_thread_index()));
  }
};

class TbbExecutor final : public Executor {
 public:
  explicit TbbExecutor(int threads) : lease_(threads), arena_(threads, 0), own_threads_(arena_) {}

  ~TbbExecutor() noexcept override {
    // Cancelled tasks are destroyed without being run, but somebody must take them off the arena:
    // wait inside it, so that this thread can when no worker does.
    group_.cancel();
    arena_.execute([this] { group_.wait(); });
  }

  void submit(Task task) override {
    arena_.enqueue(group_.defer(
        [task = std::move(task)] { task(tbb::this_task_arena::current_thread_index()); }));
  }

  // oneTBB gives every arena at least two slots, and one thread alone takes now this, now that one.
  int workers() const noexcept override { return std::max(2, arena_.max_concurrency()); }

 private:
  ParallelismLease lease_;
  tbb::task_arena arena_;
  OwnThreads own_threads_;
  tbb::task_group group_;
};

}  // namespace

std::unique_ptr<Executor> make_executor(int threads) {
  static std::atomic<pid_t> tbb_process{0};
  const pid_t here = getpid();
  pid_t owner = 0;
  if (tbb_process.compare_exchange_strong(owner, here) || owner == here) {
    return std::make_unique<TbbExecutor>(threads);
  }
  return make_thread_executor(threads);
}

}  // namespace headrace
