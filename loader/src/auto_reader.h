// The reader by measurement: threads with pread() or io_uring, whichever costs less here.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

#include "reader.h"
#include "thread_cpu.h"

namespace headrace {

/// What a reader's reads took.
struct ReadCost {
  std::uint64_t reads = 0;
  std::uint64_t bytes = 0;
  std::uint64_t cpu_ns = 0;      ///< of its threads and the kernel's for it, without callbacks
  std::uint64_t elapsed_ns = 0;  ///< while there were any, unless the budget held them back
};

/// Which of two readers is kept, and the figures that say so.
struct ReaderVerdict {
  bool uring = false;
  std::string note;
};

/// The sum of both times for each byte decides: CPU time is taken from decoding, and elapsed time
/// is waited for once decoding runs dry. io_uring has to cost a tenth less, since pread is to be
/// had everywhere and measuring is not exact.
ReaderVerdict judge(const ReadCost& pread, const ReadCost& uring);

/// A verdict, for later readers. Thread-safe.
class ReaderMemory {
 public:
  std::optional<ReaderVerdict> recall() const;
  void remember(ReaderVerdict verdict);

 private:
  mutable std::mutex mutex_;
  std::optional<ReaderVerdict> verdict_;
};

struct AutoReaderOptions {
  using Make = std::function<std::unique_ptr<Reader>(std::size_t read_budget_bytes,
                                                     std::string note, OnDone on_done)>;
  using Clock = std::chrono::steady_clock;

  /// Reads of each reader that count, and those before them, which meet cold caches and new
  /// threads.
  static constexpr std::uint64_t kReads = 64;
  static constexpr std::uint64_t kWarmUpReads = 16;

  Make make_pread;
  Make make_uring;  ///< may throw Error: there is no ring to be had
  std::size_t read_budget_bytes = std::size_t{64} << 20;
  std::shared_ptr<ReaderMemory> memory;
  std::function<Clock::time_point()> now = Clock::now;
  std::function<std::uint64_t()> cpu_ns = thread_cpu_ns;  ///< the calling thread's
};

/// A reader that shares its reads out between two, every other one to each, until it knows which is
/// better; from then on, and in readers to come with the same memory, that one reads. Meanwhile
/// each has half of the budget. Nothing is read twice, and nothing waits for the measurement.
///
/// The budget's halves are apart, lest the argument at Reader fail: in one for both, later reads of
/// one reader could take the room of an earlier one of the other.
///
/// @throws what make_pread throws.
std::unique_ptr<Reader> make_auto_reader(const AutoReaderOptions& options, OnDone on_done);

}  // namespace headrace
