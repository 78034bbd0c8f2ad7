#include "pread_reader.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <deque>
#include <mutex>
#include <new>
#include <system_error>
#include <thread>
#include <vector>

#include "headrace/error.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

// Blocks kept for reuse. Only blocks of up to a kIdleBlocks-th of the budget are, so that idle ones
// take no more memory than the budget; for larger files page faults do not matter beside decoding.
constexpr std::size_t kIdleBlocks = 64;

std::uint64_t ns_since(Clock::time_point start) {
  const auto passed = std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start);
  return static_cast<std::uint64_t>(passed.count());
}

/// Threads started while this lives get no signals: those are for the program's own threads. Faults
/// are left alone, they concern the thread that makes them.
class SignalsBlocked {
 public:
  SignalsBlocked() {
    sigset_t blocked;
    sigfillset(&blocked);
    for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&blocked, fault);
    pthread_sigmask(SIG_BLOCK, &blocked, &before_);
  }
  ~SignalsBlocked() { pthread_sigmask(SIG_SETMASK, &before_, nullptr); }
  SignalsBlocked(const SignalsBlocked&) = delete;
  SignalsBlocked& operator=(const SignalsBlocked&) = delete;

 private:
  sigset_t before_;
};

struct Request {
  std::uint64_t ticket = 0;
  Sample sample;
};

/// Shared with the buffers that were handed out, which may outlive the reader.
struct State {
  explicit State(std::size_t budget_in) : budget(budget_in) {}

  const std::size_t budget;
  std::mutex mutex;
  std::condition_variable work;  // for idle threads: a request came
  std::condition_variable turn;  // for threads before admission: anything that may let one pass
  std::deque<Request> urgent;
  std::deque<Request> queue;
  std::uint64_t turns = 0;      // requests taken from the queue; each has a number
  std::uint64_t next_turn = 0;  // the number that is admitted next
  std::size_t outstanding = 0;  // bytes admitted and not yet given back
  bool stopping = false;
  ReaderStats stats{.name = "pread"};

  bool has_room(std::size_t bytes) const {
    return outstanding == 0 || (bytes <= budget && outstanding <= budget - bytes);
  }
};

class Share final : public ReadShare {
 public:
  explicit Share(std::shared_ptr<State> state) noexcept : state_(std::move(state)) {}

  ~Share() override {
    {
      const std::lock_guard lock(state_->mutex);
      state_->outstanding -= bytes_;
    }
    state_->turn.notify_all();
  }

  /// The caller holds the lock.
  void take(std::size_t bytes) noexcept {
    bytes_ = bytes;
    state_->outstanding += bytes;
  }

 private:
  std::shared_ptr<State> state_;
  std::size_t bytes_ = 0;
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
    if (!S_ISREG(status.st_mode)) return fail("open", S_ISDIR(status.st_mode) ? EISDIR : ESPIPE);
    const auto file_size = static_cast<std::uint64_t>(status.st_size);
    const bool whole = sample.size == Sample::kWholeFile;
    if (sample.offset > file_size || (!whole && sample.size > file_size - sample.offset)) {
      return fail("read", ENODATA);
    }
    offset_ = sample.offset;
    size_ = whole ? file_size - sample.offset : sample.size;
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
        state_(std::make_shared<State>(options.read_budget_bytes)),
        recycled_(make_host_allocator(), kIdleBlocks),
        fresh_(make_host_allocator(), 0) {
    if (options.threads < 1) {
      throw Error(ErrorCode::kInvalidArgument, "at least one thread must read", {.stage = "read"});
    }
    const SignalsBlocked blocked;
    try {
      for (int i = 0; i < options.threads; ++i) {
        threads_.emplace_back([this] { work(); });
        pthread_setname_np(threads_.back().native_handle(), ("hr-io-" + std::to_string(i)).c_str());
      }
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
    Request request{ticket, sample};
    {
      const std::lock_guard lock(state_->mutex);
      (urgent ? state_->urgent : state_->queue).push_back(std::move(request));
    }
    state_->work.notify_one();
    if (urgent) state_->turn.notify_all();  // perhaps no thread is idle
  }

  ReaderStats stats() const override {
    const std::lock_guard lock(state_->mutex);
    ReaderStats stats = state_->stats;
    stats.queued = state_->urgent.size() + state_->queue.size();
    return stats;
  }

 private:
  using Lock = std::unique_lock<std::mutex>;

  void stop() noexcept {
    {
      const std::lock_guard lock(state_->mutex);
      state_->stopping = true;
    }
    state_->work.notify_all();
    state_->turn.notify_all();
    for (auto& thread : threads_) thread.join();
  }

  void work() noexcept {
    State& state = *state_;
    Lock lock(state.mutex);
    for (;;) {
      state.work.wait(lock, [&state] {
        return state.stopping || !state.urgent.empty() || !state.queue.empty();
      });
      if (state.stopping) return;
      if (!state.urgent.empty()) {
        serve_urgent(lock);
      } else {
        serve_next(lock);
      }
    }
  }

  // The following are called with the lock held and return with it held.

  void serve_urgent(Lock& lock) noexcept {
    const Request request = pop(state_->urgent);
    lock.unlock();
    const auto start = Clock::now();
    OpenRange range(files_, request.sample);
    finish(lock, request, range, nullptr, ns_since(start));
  }

  void serve_next(Lock& lock) noexcept {
    const Request request = pop(state_->queue);
    const std::uint64_t turn = state_->turns++;
    lock.unlock();
    const auto start = Clock::now();
    OpenRange range(files_, request.sample);
    std::unique_ptr<Share> share(new (std::nothrow) Share(state_));
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
        state.turn.wait(lock);
        state.stats.wait_budget_ns += ns_since(start);
      } else {
        ++state.next_turn;
        state.turn.notify_all();
        return true;
      }
    }
    return false;
  }

  /// Called without the lock, returns with it.
  void finish(Lock& lock, const Request& request, OpenRange& range, std::unique_ptr<Share> share,
              std::uint64_t busy_ns) noexcept {
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
    const bool small = range.size() <= state_->budget / kIdleBlocks;
    try {
      return (small ? recycled_ : fresh_).acquire(range.size());
    } catch (...) {
      range.fail("allocate", ENOMEM);
      return {};
    }
  }

  static Request pop(std::deque<Request>& queue) noexcept {
    Request request = std::move(queue.front());
    queue.pop_front();
    return request;
  }

  const FileSystem files_;
  const std::function<void(ReadResult)> on_done_;
  const std::shared_ptr<State> state_;
  BufferPool recycled_;
  BufferPool fresh_;
  std::vector<std::thread> threads_;
};

}  // namespace

FileSystem FileSystem::real() {
  return {
      .open = [](const char* path, int flags) { return ::open(path, flags); },
      .fstat = [](int file, struct stat* status) { return ::fstat(file, status); },
      .pread = [](int file, void* memory, std::size_t bytes,
                  off_t offset) { return ::pread(file, memory, bytes, offset); },
      .set_blocking =
          [](int file) {
            const int flags = ::fcntl(file, F_GETFL);
            return flags < 0 ? -1 : ::fcntl(file, F_SETFL, flags & ~O_NONBLOCK);
          },
      .close = [](int file) { return ::close(file); },
  };
}

std::unique_ptr<Reader> make_pread_reader(PreadOptions options,
                                          std::function<void(ReadResult)> on_done,
                                          FileSystem files) {
  return std::make_unique<PreadReader>(options, std::move(on_done), std::move(files));
}

}  // namespace headrace
