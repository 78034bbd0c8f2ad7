// Where CPU work runs.
#pragma once

#include <functional>
#include <memory>

namespace headrace {

/// Runs tasks on worker threads, first in, first out as far as the scheduler allows.
class Executor {
 public:
  /// `worker` lies in [0, workers()) and is held by no other running task, so that it can pick
  /// state which is one per thread. Must not throw.
  using Task = std::function<void(int worker)>;

  /// Drops the tasks that have not begun and waits for those that have.
  virtual ~Executor() = default;
  /// Never blocks. Thread-safe.
  virtual void submit(Task task) = 0;
  /// How many values `worker` takes, which may be more than there are threads.
  virtual int workers() const noexcept = 0;
};

/// A oneTBB arena, or plain threads in a process forked from one that had used oneTBB: its
/// scheduler believes in workers which exist in the parent only, and would wait for them forever.
std::unique_ptr<Executor> make_executor(int threads);

/// Plain threads behind one queue.
std::unique_ptr<Executor> make_thread_executor(int threads);

}  // namespace headrace
