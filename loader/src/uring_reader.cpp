#include "uring_reader.h"

#include <fcntl.h>
#include <sys/resource.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <future>
#include <mutex>
#include <new>
#include <string>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include "headrace/error.h"
#include "own_thread.h"
#include "read_queue.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;
using std::chrono::milliseconds;

// A call that keeps being interrupted or put off is given up after so many times.
constexpr int kMaxTries = 16;

// After a shortage of descriptors, so many reads must go well before one more may be in flight.
constexpr int kReadsToRecover = 64;

bool try_again(int error) { return error == EINTR || error == EAGAIN || error == ECANCELED; }

/// Of the descriptors that this process may have, at most a quarter.
int descriptor_limit(int depth) {
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return depth;
  const rlim_t quarter = std::max<rlim_t>(1, limit.rlim_cur / 4);
  return static_cast<int>(std::min<rlim_t>(static_cast<rlim_t>(depth), quarter));
}

/// The queue, with what wakes the reader's thread.
struct State final : ReadQueue {
  using ReadQueue::ReadQueue;

  void room_came() noexcept override {
    const std::lock_guard lock(mutex);
    if (held_back) wake();
  }
  void ahead_changed() noexcept override {
    const std::lock_guard lock(mutex);
    wake();
  }
  /// The caller holds the lock.
  void wake() noexcept {
    if (sleeper != nullptr) std::exchange(sleeper, nullptr)->wake();
  }

  Ring* sleeper = nullptr;               // set while the thread waits or is about to
  std::condition_variable request_came;  // for a thread that has lost its ring
};

/// One request on its way.
struct Operation {
  enum class Phase {
    kFree,
    kParked,   // waits for a descriptor
    kOpening,  // in the ring
    kWaiting,  // measured, or failed; waits for admission
    kReading,  // in the ring
    kClosing,  // in the ring; the result was handed on
  };

  Phase phase = Phase::kFree;
  ReadRequest request{};
  std::uint64_t turn = 0;
  bool urgent = false;  // has no turn
  int flags = 0;
  int file = -1;
  int tries = 0;  // of the present call, in vain
  FileRange range{};
  std::size_t done = 0;
  std::unique_ptr<BudgetShare> share{};
  Buffer memory{};
};

std::uint64_t tag_of(const Operation& operation) {
  return reinterpret_cast<std::uintptr_t>(&operation);
}

class UringReader final : public Reader {
 public:
  UringReader(UringOptions options, std::function<void(ReadResult)> on_done,
              const MakeRing& make_ring, FileSystem files)
      : files_(std::move(files)),
        on_done_(std::move(on_done)),
        state_(std::make_shared<State>(options.read_budget_bytes, descriptor_limit(options.depth),
                                       descriptor_limit(options.most_depth))),
        memory_(options.read_budget_bytes),
        depth_(descriptor_limit(std::max(options.depth, options.most_depth))) {
    if (options.depth < 1) {
      throw Error(ErrorCode::kInvalidArgument, "at least one file must be in flight",
                  {.stage = "read"});
    }
    state_->stats.name = "io_uring";
    state_->stats.note = std::move(options.note);
    operations_.resize(2 * static_cast<std::size_t>(depth_));
    started_.reserve(operations_.size());
    for (auto& operation : operations_) free_.push_back(&operation);

    std::promise<void> ready;
    std::future<void> is_ready = ready.get_future();
    try {
      thread_ = std::thread([this, &make_ring, ready = std::move(ready)]() mutable {
        become_own_thread("hr-io");
        try {
          ring_ =
              make_ring(static_cast<unsigned>(operations_.size()));  // it serves its maker alone
        } catch (...) {
          ready.set_exception(std::current_exception());
          return;
        }
        ready.set_value();
        work();
        ring_.reset();
      });
      is_ready.get();
    } catch (const std::system_error& error) {
      if (thread_.joinable()) thread_.join();
      throw Error(ErrorCode::kReadFailed, "io_uring cannot be used",
                  {.stage = "read", .system_errno = error.code().value()});
    } catch (...) {
      if (thread_.joinable()) thread_.join();
      throw;
    }
  }

  ~UringReader() override {
    {
      const std::lock_guard lock(state_->mutex);
      state_->stopping = true;
      state_->wake();
    }
    state_->request_came.notify_one();
    thread_.join();
  }

  UringReader(const UringReader&) = delete;
  UringReader& operator=(const UringReader&) = delete;

  void submit(std::uint64_t ticket, const Sample& sample, bool urgent) override {
    ReadRequest request{ticket, sample};
    {
      const std::lock_guard lock(state_->mutex);
      (urgent ? state_->urgent : state_->queue).push_back(std::move(request));
      state_->wake();
    }
    state_->request_came.notify_one();
  }

  void decode_began(std::size_t ready) noexcept override { state_->decode_began(ready); }

  void set_budget(std::size_t bytes) noexcept override { state_->set_budget(bytes); }

  ReaderStats stats() const override { return state_->snapshot(); }

 private:
  using Phase = Operation::Phase;

  // All of this runs on the reader's thread, and without the lock unless said otherwise.

  void work() noexcept {
    while (begin_work()) {
      const auto start = Clock::now();
      const int error = ring_->submit();
      add_busy(start);
      if (error != 0 && !try_again(-error) && error != -EBUSY) return lose_ring(-error);
      if (handle_completions()) continue;
      if (error != 0) {
        std::this_thread::sleep_for(std::chrono::milliseconds{1});  // the kernel is short of memory
      } else if (const int failed = ring_->wait(); failed != 0 && failed != -EINTR) {
        return lose_ring(-failed);
      }
    }
  }

  /// Begins and admits what may be. @returns false when the reader stops and nothing is in flight.
  bool begin_work() noexcept {
    const auto start = Clock::now();
    bool stopping = false;
    {
      const std::lock_guard lock(state_->mutex);
      state_->sleeper = nullptr;
      stopping = state_->stopping;
      if (!stopping) take_requests();
    }
    for (Operation* operation : started_) open(*operation);
    started_.clear();
    if (stopping) {
      drop_waiting();
      return free_.size() < operations_.size();
    }
    while (Operation* operation = admit()) begin_reading(*operation);
    add_busy(start);
    return true;
  }

  /// Fills started_. The caller holds the lock.
  void take_requests() noexcept {
    while (may_take_urgent()) start(state_->urgent, /*urgent=*/true);
    while (may_take_parked()) {
      Operation* oldest = nullptr;
      for (auto& operation : operations_) {
        if (operation.phase == Phase::kParked &&
            (oldest == nullptr || before(operation, *oldest))) {
          oldest = &operation;
        }
      }
      --parked_;
      start(*oldest);
    }
    while (may_take_next()) start(state_->queue, /*urgent=*/false);
  }

  void start(std::deque<ReadRequest>& requests, bool urgent) noexcept {
    Operation& operation = *free_.back();
    free_.pop_back();
    operation.request = pop_request(requests);
    operation.urgent = urgent;
    operation.turn = urgent ? 0 : state_->turns++;
    start(operation);
  }

  void start(Operation& operation) noexcept {
    operation.phase = Phase::kOpening;
    ++(operation.urgent ? urgent_ : active_);
    started_.push_back(&operation);
  }

  static bool before(const Operation& a, const Operation& b) noexcept {
    return a.urgent != b.urgent ? a.urgent : a.turn < b.turn;
  }

  void open(Operation& operation) noexcept {
    const std::string& path = operation.request.sample.path;
    if (path.find('\0') != std::string::npos) return opened(operation, -ENOENT);
    // Without O_NONBLOCK, opening a FIFO waits for a writer, maybe forever.
    operation.flags = O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK;
    ring_->open(tag_of(operation), path.c_str(), operation.flags);
  }

  /// Whether there was any.
  bool handle_completions() noexcept {
    bool any = false;
    while (const auto completion = ring_->reap()) {
      any = true;
      auto& operation = *reinterpret_cast<Operation*>(completion->tag);
      switch (operation.phase) {
        case Phase::kOpening:
          opened(operation, completion->result);
          break;
        case Phase::kReading:
          read(operation, completion->result);
          break;
        case Phase::kClosing:
          closed(operation, completion->result);
          break;
        default:
          break;  // has nothing in the ring
      }
    }
    return any;
  }

  void opened(Operation& operation, int result) noexcept {
    if (result >= 0) {
      operation.file = result;
      measure(operation);
    } else if ((result == -EMFILE || result == -ENFILE) && wait_for_descriptor(operation)) {
      return;
    } else if (try_again(-result) && ++operation.tries < kMaxTries) {
      // EAGAIN: another process holds a lease, as only regular files have; the kernel ends it.
      if (result == -EAGAIN) operation.flags &= ~O_NONBLOCK;
      ring_->open(tag_of(operation), operation.request.sample.path.c_str(), operation.flags);
      return;
    } else {
      operation.range = {.failed_call = "open", .error = -result};
    }
    operation.tries = 0;
    operation.phase = Phase::kWaiting;
    if (operation.urgent) begin_reading(operation);
  }

  /// An fstat of an open file is answered at once; the ring would hand it to another thread.
  void measure(Operation& operation) noexcept {
    struct stat status {};
    int error = 0;
    do {
      error = files_.fstat(operation.file, &status) < 0 ? errno : 0;
    } while (error == EINTR);
    if (error != 0) {
      operation.range = {.failed_call = "stat", .error = error};
      return;
    }
    operation.range = range_of(operation.request.sample, status);
    // As it was opened, a read that had to wait would fail instead.
    if (operation.range.size > 0 && files_.set_blocking(operation.file) < 0) {
      operation.range = {.failed_call = "read", .error = errno};
    }
  }

  /// None are left in the process: fewer files at a time, the oldest requests first.
  /// @returns false if no file of ours could be closed for this one.
  bool wait_for_descriptor(Operation& operation) noexcept {
    // Later requests that wait for admission would wait for this one in turn.
    bool gave_way = false;
    for (auto& other : operations_) {
      if (other.phase != Phase::kWaiting || !before(operation, other)) continue;
      if (other.file >= 0) {
        files_.close(std::exchange(other.file, -1));
        gave_way = true;
      }
      other.range = {};
      park(other);
    }
    if (!gave_way && active_ + urgent_ == 1) return false;
    park(operation);
    limit_ = std::clamp(active_ + urgent_, 1, depth_);  // until one of these is done
    reads_since_shortage_ = 0;
    return true;
  }

  void park(Operation& operation) noexcept {
    operation.phase = Phase::kParked;
    ++parked_;
    --(operation.urgent ? urgent_ : active_);
  }

  /// The next operation in turn, if it may begin to read.
  Operation* admit() noexcept {
    State& state = *state_;
    const std::lock_guard lock(state.mutex);
    bool held_back = false;
    const auto next = std::ranges::find_if(operations_, [&](const Operation& operation) {
      return operation.phase == Phase::kWaiting && operation.turn == state.next_turn;
    });
    if (next != operations_.end()) {
      if (state.has_room(next->range.size)) {
        count_held_back(false);
        next->share.reset(new (std::nothrow) BudgetShare(state_));
        if (next->share != nullptr) {
          next->share->take(next->range.size);
        } else {
          next->range = {.failed_call = "allocate", .error = ENOMEM};
        }
        ++state.next_turn;
        return &*next;
      }
      held_back = true;
    }
    count_held_back(held_back);
    if (state.stopping || may_take_urgent() || may_take_parked() || may_take_next()) {
      ring_->wake();  // since begin_work() looked, some came or others went
    } else {
      state.sleeper = ring_.get();
    }
    return nullptr;
  }

  /// The caller holds the lock. Of the operations, depth_ are always left to the others.
  bool may_take_urgent() const noexcept {
    return urgent_ < depth_ && !free_.empty() && !state_->urgent.empty();
  }

  bool may_take_parked() const noexcept { return parked_ > 0 && active_ + urgent_ < limit_; }
  /// The caller holds the lock.
  bool may_take_next() const noexcept {
    return parked_ == 0 && active_ < std::min(limit_, state_->ahead.depth()) &&
           !state_->queue.empty();
  }

  /// The caller holds the lock.
  void count_held_back(bool held_back) noexcept {
    if (state_->held_back) state_->stats.wait_budget_ns += ns_since(held_back_since_);
    state_->held_back = held_back;
    if (held_back) held_back_since_ = Clock::now();
  }

  void begin_reading(Operation& operation) noexcept {
    operation.phase = Phase::kReading;
    if (operation.range.size > 0) {
      operation.memory = memory_.acquire(operation.range.size);
      if (operation.memory != nullptr) return read_on(operation);
      operation.range = {.failed_call = "allocate", .error = ENOMEM};
    }
    finish(operation);
  }

  void read_on(Operation& operation) noexcept {
    ring_->read(tag_of(operation), operation.file, operation.memory.get() + operation.done,
                operation.range.size - operation.done, operation.range.offset + operation.done);
  }

  void read(Operation& operation, int result) noexcept {
    if (result > 0) {
      operation.done += static_cast<std::size_t>(result);
      operation.tries = 0;
      if (operation.done < operation.range.size) return read_on(operation);
    } else if (result == 0) {
      operation.range = {.failed_call = "read", .error = ENODATA};  // it was longer when measured
    } else if (try_again(-result) && ++operation.tries < kMaxTries) {
      return read_on(operation);
    } else {
      operation.range = {.failed_call = "read", .error = -result};
    }
    finish(operation);
  }

  /// Closes the file and hands the result on.
  void finish(Operation& operation) noexcept {
    ReadResult result = result_of(operation);
    if (operation.file >= 0) {
      operation.phase = Phase::kClosing;
      ring_->close(tag_of(operation), operation.file);
    } else {
      forget(operation);
    }
    on_done_(std::move(result));
  }

  ReadResult result_of(Operation& operation) noexcept {
    const std::size_t size = operation.range.size;  // 0 if the read failed
    {
      const std::lock_guard lock(state_->mutex);
      ++state_->stats.reads;
      state_->stats.bytes += size;
    }
    ReadResult result{.ticket = operation.request.ticket,
                      .buffer = {},
                      .error = operation.range.error,
                      .what = operation.range.failed_call};
    if (size > 0) {
      result.buffer = ReadBuffer(std::move(operation.memory), size, std::move(operation.share));
    }
    operation.memory.reset();
    operation.share.reset();  // before the callback: who hears of the failure finds the budget free
    return result;
  }

  void closed(Operation& operation, int result) noexcept {
    // Put off, it has not been done. After any other failure the descriptor is gone.
    if (result == -ECANCELED || result == -EAGAIN) files_.close(operation.file);
    if (limit_ < depth_ && ++reads_since_shortage_ == kReadsToRecover) {
      reads_since_shortage_ = 0;
      ++limit_;
    }
    forget(operation);
  }

  void forget(Operation& operation) noexcept {
    --(operation.urgent ? urgent_ : active_);
    operation = Operation{};
    free_.push_back(&operation);  // never more than there were at first
  }

  void drop_waiting() noexcept {
    for (auto& operation : operations_) {
      if (operation.phase == Phase::kWaiting || operation.phase == Phase::kParked) {
        if (operation.file >= 0) files_.close(operation.file);
        if (operation.phase == Phase::kWaiting) park(operation);
        operation = Operation{};
        free_.push_back(&operation);
      }
    }
    parked_ = 0;
  }

  void add_busy(Clock::time_point start) noexcept {
    const std::uint64_t busy_ns = ns_since(start);
    const std::lock_guard lock(state_->mutex);
    state_->stats.busy_ns += busy_ns;
  }

  /// Somebody closed the ring's descriptor, or forbade it to this process only now. Nobody is left
  /// waiting: every read fails from here on.
  void lose_ring(int error) noexcept {
    for (auto& operation : operations_) {
      if (operation.phase == Phase::kFree || operation.phase == Phase::kClosing) continue;
      if (operation.phase == Phase::kReading) {
        // The kernel may still write into it, and will not say when it has done.
        (void)new (std::nothrow) Buffer(operation.memory);
      }
      if (operation.file >= 0) files_.close(operation.file);
      operation.range = {.failed_call = "io_uring", .error = error};
      on_done_(result_of(operation));
    }
    std::unique_lock lock(state_->mutex);
    state_->sleeper = nullptr;
    while (true) {
      state_->request_came.wait(lock, [this] {
        return state_->stopping || !state_->urgent.empty() || !state_->queue.empty();
      });
      if (state_->stopping) return;
      auto& requests = state_->urgent.empty() ? state_->queue : state_->urgent;
      const std::uint64_t ticket = pop_request(requests).ticket;
      lock.unlock();
      on_done_({.ticket = ticket, .buffer = {}, .error = error, .what = "io_uring"});
      lock.lock();
    }
  }

  const FileSystem files_;
  const std::function<void(ReadResult)> on_done_;
  const std::shared_ptr<State> state_;
  ReadMemory memory_;
  const int depth_;
  int limit_ = depth_;  // less than depth_ after a shortage of descriptors
  int reads_since_shortage_ = 0;
  int active_ = 0;  // operations that have or want a file, without the urgent ones
  int urgent_ = 0;  // these come on top, lest those that wait for admission keep them out
  int parked_ = 0;
  std::vector<Operation> operations_;
  std::vector<Operation*> free_;
  std::vector<Operation*> started_;
  Clock::time_point held_back_since_;
  std::unique_ptr<Ring> ring_;
  std::thread thread_;
};

}  // namespace

std::unique_ptr<Reader> make_uring_reader(UringOptions options,
                                          std::function<void(ReadResult)> on_done,
                                          const MakeRing& make_ring, FileSystem files) {
  return std::make_unique<UringReader>(std::move(options), std::move(on_done), make_ring,
                                       std::move(files));
}

}  // namespace headrace
