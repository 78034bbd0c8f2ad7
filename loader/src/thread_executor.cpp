#include <condition_variable>
#include <deque>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "executor.h"
#include "own_thread.h"

namespace headrace {
namespace {

class ThreadExecutor final : public Executor {
 public:
  explicit ThreadExecutor(int threads) {
    threads_.reserve(static_cast<std::size_t>(threads));
    for (int worker = 0; worker < threads; ++worker) {
      threads_.emplace_back([this, worker](const std::stop_token& stop) { work(stop, worker); });
    }
  }

  ~ThreadExecutor() override {
    for (auto& thread : threads_) thread.request_stop();
    // jthread joins; the queue, declared before the threads, goes after them with what is left.
  }

  void submit(Task task) override {
    {
      const std::lock_guard lock(mutex_);
      queue_.push_back(std::move(task));
    }
    changed_.notify_one();
  }

  int workers() const noexcept override { return static_cast<int>(threads_.size()); }

 private:
  void work(const std::stop_token& stop, int worker) {
    become_own_thread("hr-cpu-" + std::to_string(worker));
    std::unique_lock lock(mutex_);
    while (changed_.wait(lock, stop, [this] { return !queue_.empty(); }) &&
           !stop.stop_requested()) {
      const Task task = std::move(queue_.front());
      queue_.pop_front();
      lock.unlock();
      task(worker);
      lock.lock();
    }
  }

  std::mutex mutex_;
  std::condition_variable_any changed_;
  std::deque<Task> queue_;
  std::vector<std::jthread> threads_;
};

}  // namespace

std::unique_ptr<Executor> make_thread_executor(int threads) {
  return std::make_unique<ThreadExecutor>(threads);
}

}  // namespace headrace
