#include "pread_reader.h"

#include <fcntl.h>
#include <pthread.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "headrace/error.h"
#include "own_thread.h"
#include "read_queue.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

/// The queue, with what the threads wait for.
struct State final : ReadQueue {
  using ReadQueue::ReadQueue;
  void room_came() noexcept override { turn.notify_all(); }
  void ahead_changed() noexcept override {
    turn.notify_all();
    work.notify_all();
    surplus.notify_all();
  }

  std::condition_variable work;     // for idle threads: a request came
  std::condition_variable surplus;  // for idle threads that are more than the depth
  std::condition_variable turn;     // for threads before admission: anything that may let one pass
};

/// The byte range of one sample. The first failure sticks, and nothing is done after it.
class OpenRange {
 public:
  OpenRange(const FileSystem& files, const Sample& sample) noexcept : files_(files) {
    open(sample.path);
    measure(sample);
  }
  ~OpenRange() { close(); }
  OpenRange(const OpenRange&) = delete;
  OpenRange& operator=(const OpenRange&) = delete;

  /// Bytes to read; 0 after a failure.
  std::size_t size() const noexcept { return error_ == 0 ? size_ : 0; }
  int error() const noexcept { return error_; }
  const char* failed_call() const noexcept { return failed_call_; }

  void fail(const char* call, int error) noexcept {
    if (error_ != 0) return;
    failed_call_ = call;
    error_ = error;
  }

  void read(std::byte* memory) noexcept {
    bool blocking = false;
    for (std::size_t done = 0; done < size();) {
      const ssize_t count =
          files_.pread(file_, memory + done, size_ - done, static_cast<off_t>(offset_ + done));
      if (count > 0) {
        done += static_cast<std::size_t>(count);
      } else if (count == 0) {
        fail("read", ENODATA);  // it was longer when measured
      } else if (errno == EAGAIN && !blocking) {
        // A file system that minds O_NONBLOCK. The file is a regular one: waiting is safe.
        blocking = true;
        if (files_.set_blocking(file_) < 0) fail("read", errno);
      } else if (errno != EINTR) {
        fail("read", errno);
      }
    }
  }

  void close() noexcept {
    if (file_ >= 0) files_.close(file_);
    file_ = -1;
  }

 private:
  void open(const std::string& path) noexcept {
    if (path.find('\0') != std::string::npos) return fail("open", ENOENT);
    // Without O_NONBLOCK, opening a FIFO waits for a writer, maybe forever.
    int flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    while ((file_ = files_.open(path.c_str(), flags)) < 0) {
      if (errno == EAGAIN && (flags & O_NONBLOCK) != 0) {
        // Another process holds a lease, as only regular files have; the kernel ends it in time.
        flags &= ~O_NONBLOCK;
      } else if (errno != EINTR) {
        return fail("open", errno);
      }
    }
  }

  void measure(const Sample& sample) noexcept {
    if (error_ != 0) return;
    struct stat status {};
    while (files_.fstat(file_, &status) < 0) {
      if (errno != EINTR) return fail("stat", errno);
    }
    const FileRange range = range_of(sample, status);
    if (range.error != 0) return fail(range.failed_call, range.error);
    offset_ = range.offset;
    size_ = range.size;
  }

  const FileSystem& files_;
  int file_ = -1;
  std::uint64_t offset_ = 0;
  std::size_t size_ = 0;
  int error_ = 0;
  const char* failed_call_ = "";
};

class PreadReader final : public Reader {
 public:
  PreadReader(PreadOptions options, std::function<void(ReadResult)> on_done, FileSystem files)
      : files_(std::move(files)),
        on_done_(std::move(on_done)),
        state_(std::make_shared<State>(options.read_budget_bytes, options.threads,
                                       std::max(options.threads, options.most_threads))),
        memory_(options.read_budget_bytes) {
    if (options.threads < 1) {
      throw Error(ErrorCode::kInvalidArgument, "at least one thread must read", {.stage = "read"});
    }
    state_->stats.name = "pread";
    state_->stats.note = std::move(options.note);
    try {
      const std::lock_guard lock(state_->mutex);
      while (static_cast<int>(threads_.size()) < options.threads) start_thread();
    } catch (const std::system_error& error) {
      stop();
      throw Error(ErrorCode::kReadFailed, "cannot start a thread",
                  {.stage = "read", .system_errno = error.code().value()});
    } catch (...) {
      stop();
      throw;
    }
  }

  ~PreadReader() override { stop(); }

  PreadReader(const PreadReader&) = delete;
  PreadReader& operator=(const PreadReader&) = delete;

  void submit(std::uint64_t ticket, const Sample& sample, bool urgent) override {
    ReadRequest request{ticket, sample};
    {
      const std::lock_guard lock(state_->mutex);
      (urgent ? state_->urgent : state_->queue).push_back(std::move(request));
    }
    state_->work.notify_one();
    if (urgent) state_->turn.notify_all();  // perhaps no thread is idle
  }

  void decode_began(std::size_t ready) noexcept override { state_->decode_began(ready); }

  void set_budget(std::size_t bytes) noexcept override { state_->set_budget(bytes); }

  ReaderStats stats() const override { return state_->snapshot(); }

 private:
  using Lock = std::unique_lock<std::mutex>;

  void stop() noexcept {
    {
      const std::lock_guard lock(state_->mutex);
      state_->stopping = true;
    }
    state_->ahead_changed();
    // No thread is added any more.
    for (auto& thread : threads_) thread.join();
  }

  /// The caller holds the lock.
  void start_thread() {
    const int index = static_cast<int>(threads_.size());
    const std::string name = "hr-io-" + std::to_string(index);
    threads_.emplace_back([this, index, name] {
      become_own_thread(name);
      work(index);
    });
    pthread_setname_np(threads_.back().native_handle(), name.c_str());  // at once
  }

  void work(int index) noexcept {
    State& state = *state_;
    Lock lock(state.mutex);
    for (;;) {
      state.surplus.wait(lock,
                         [&state, index] { return state.stopping || index < state.ahead.depth(); });
      state.work.wait(lock, [&state] {
        return state.stopping || !state.urgent.empty() || !state.queue.empty();
      });
      if (state.stopping) return;
      add_threads();
      if (!state.urgent.empty()) {
        serve_urgent(lock);
      } else {
        serve_next(lock);
      }
    }
  }

  // The following are called with the lock held and return with it held.

  void add_threads() noexcept {
    while (static_cast<int>(threads_.size()) < state_->ahead.depth()) {
      try {
        start_thread();
      } catch (...) {
        return;  // no more are to be had: those that are here go on
      }
    }
  }

  void serve_urgent(Lock& lock) noexcept {
    const ReadRequest request = pop_request(state_->urgent);
    lock.unlock();
    const auto start = Clock::now();
    OpenRange range(files_, request.sample);
    finish(lock, request, range, nullptr, ns_since(start));
  }

  void serve_next(Lock& lock) noexcept {
    const ReadRequest request = pop_request(state_->queue);
    const std::uint64_t turn = state_->turns++;
    lock.unlock();
    const auto start = Clock::now();
    OpenRange range(files_, request.sample);
    std::unique_ptr<BudgetShare> share(new (std::nothrow) BudgetShare(state_));
    if (share == nullptr) range.fail("allocate", ENOMEM);
    const std::uint64_t busy_ns = ns_since(start);
    lock.lock();
    if (wait_for_admission(lock, turn, range.size())) {
      if (share != nullptr) share->take(range.size());
      lock.unlock();
      finish(lock, request, range, std::move(share), busy_ns);
    } else {
      lock.unlock();  // for the share's destructor
      share.reset();
      lock.lock();
    }
  }

  /// @returns false when the reader stops.
  bool wait_for_admission(Lock& lock, std::uint64_t turn, std::size_t bytes) noexcept {
    State& state = *state_;
    while (!state.stopping) {
      if (!state.urgent.empty()) {
        serve_urgent(lock);
      } else if (turn != state.next_turn) {
        state.turn.wait(lock);
      } else if (!state.has_room(bytes)) {
        const auto start = Clock::now();
        state.held_back = true;
        state.turn.wait(lock);
        state.stats.wait_budget_ns += ns_since(start);
      } else {
        state.held_back = false;
        ++state.next_turn;
        state.turn.notify_all();
        return true;
      }
    }
    return false;
  }

  /// Called without the lock, returns with it.
  void finish(Lock& lock, const ReadRequest& request, OpenRange& range,
              std::unique_ptr<BudgetShare> share, std::uint64_t busy_ns) noexcept {
    const auto start = Clock::now();
    Buffer memory = allocate(range);
    range.read(memory.get());
    range.close();
    const std::size_t size = range.size();  // 0 if the read failed

    lock.lock();
    ++state_->stats.reads;
    state_->stats.bytes += size;
    state_->stats.busy_ns += busy_ns + ns_since(start);
    lock.unlock();

    ReadResult result{.ticket = request.ticket,
                      .buffer = {},
                      .error = range.error(),
                      .what = range.failed_call()};
    if (size > 0) result.buffer = ReadBuffer(std::move(memory), size, std::move(share));
    memory.reset();
    share.reset();  // before the callback: whoever hears of the failure finds the budget free
    on_done_(std::move(result));
    lock.lock();
  }

  /// @returns null if there is nothing to read, or no memory.
  Buffer allocate(OpenRange& range) noexcept {
    if (range.size() == 0) return {};
    Buffer memory = memory_.acquire(range.size());
    if (memory == nullptr) range.fail("allocate", ENOMEM);
    return memory;
  }

  const FileSystem files_;
  const std::function<void(ReadResult)> on_done_;
  const std::shared_ptr<State> state_;
  ReadMemory memory_;
  std::vector<std::thread> threads_;
};

}  // namespace

std::unique_ptr<Reader> make_pread_reader(PreadOptions options,
                                          std::function<void(ReadResult)> on_done,
                                          FileSystem files) {
  return std::make_unique<PreadReader>(std::move(options), std::move(on_done), std::move(files));
}

}  // namespace headrace
