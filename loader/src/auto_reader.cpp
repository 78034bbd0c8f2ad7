#include "auto_reader.h"

#include <algorithm>
#include <array>
#include <cstdio>
#include <string_view>
#include <utility>

#include "headrace/error.h"

namespace headrace {
namespace {

using Clock = AutoReaderOptions::Clock;

constexpr double kUringMustCost = 0.9;  // of pread's, at most
constexpr std::size_t kPread = 0;
constexpr std::size_t kUring = 1;

std::uint64_t ns_between(Clock::time_point start, Clock::time_point end) {
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(end - start).count());
}

/// Counters of other threads may be read a little out of step.
std::uint64_t less(std::uint64_t value, std::uint64_t part) {
  return value - std::min(value, part);
}

double per_byte(std::uint64_t ns, const ReadCost& cost) {
  return static_cast<double>(ns) / static_cast<double>(std::max<std::uint64_t>(cost.bytes, 1));
}

std::string in_words(const char* name, const ReadCost& cost) {
  // Nanoseconds a byte are milliseconds a megabyte.
  std::array<char, 160> text{};
  std::snprintf(text.data(), text.size(), "%s %llu reads, %.3f ms of CPU and %.3f ms in all a MB",
                name, static_cast<unsigned long long>(cost.reads), per_byte(cost.cpu_ns, cost),
                per_byte(cost.elapsed_ns, cost));
  return text.data();
}

class AutoReader final : public Reader {
 public:
  AutoReader(AutoReaderOptions options, const OnDone& on_done) : options_(std::move(options)) {
    const std::size_t half = std::max<std::size_t>(1, options_.read_budget_bytes / 2);
    rivals_[kUring].reader = options_.make_uring(half, {}, counted(kUring, on_done));
    rivals_[kPread].reader = options_.make_pread(half, {}, counted(kPread, on_done));
  }

  ~AutoReader() override {
    const std::lock_guard lock(mutex_);
    over_ = true;  // one reader's last callbacks must not ask the other, which is gone
  }
  AutoReader(const AutoReader&) = delete;
  AutoReader& operator=(const AutoReader&) = delete;

  void submit(std::uint64_t ticket, const Sample& sample, bool urgent) override {
    const std::lock_guard lock(mutex_);
    const std::size_t index = chosen_.value_or(urgent ? kPread : turns_++ % 2);
    Rival& rival = rivals_[index];
    if (rival.submitted++ == rival.finished) rival.busy_since = options_.now();
    rival.reader->submit(ticket, sample, urgent);
  }

  void decode_began(std::size_t ready) noexcept override {
    const std::lock_guard lock(mutex_);
    for (std::size_t i = 0; i < rivals_.size(); ++i) {
      if (chosen_.value_or(i) == i) rivals_[i].reader->decode_began(ready);
    }
    if (chosen_ && !has_whole_budget_) hand_over_budget();
  }

  void set_budget(std::size_t bytes) noexcept override {
    const std::lock_guard lock(mutex_);
    options_.read_budget_bytes = bytes;
    has_whole_budget_ = false;
    for (auto& rival : rivals_) rival.reader->set_budget(std::max<std::size_t>(1, bytes / 2));
  }

  ReaderStats stats() const override {
    const std::lock_guard lock(mutex_);
    const std::array<ReaderStats, 2> each = {rivals_[kPread].reader->stats(),
                                             rivals_[kUring].reader->stats()};
    ReaderStats all = each[chosen_.value_or(kPread)];
    const ReaderStats& other = each[1 - chosen_.value_or(kPread)];
    all.reads += other.reads;
    all.bytes += other.bytes;
    all.busy_ns += other.busy_ns;
    all.wait_budget_ns += other.wait_budget_ns;
    all.queued += other.queued;
    all.outstanding += other.outstanding;
    if (chosen_) {
      all.note = note_;
    } else {
      all.name = "pread and io_uring";
      all.note = "being measured: every other read is io_uring's";
      all.depth += other.depth;
      all.ahead_bytes += other.ahead_bytes;
    }
    return all;
  }

 private:
  struct Rival {
    std::unique_ptr<Reader> reader;
    std::uint64_t submitted = 0;
    std::uint64_t finished = 0;
    std::uint64_t bytes = 0;
    std::uint64_t cpu_ns = 0;      // without the kernel's threads
    std::uint64_t elapsed_ns = 0;  // up to the last time that nothing was left to read
    Clock::time_point busy_since;
    ReadCost warm_up;
  };

  /// The callback, with its share in the measurement.
  OnDone counted(std::size_t index, const OnDone& on_done) {
    return [this, index, on_done](ReadResult result) {
      const std::size_t bytes = result.buffer.bytes().size();
      const bool lost_ring = std::string_view(result.what) == "io_uring";
      // All that a reader's thread does between two callbacks is reading.
      thread_local std::uint64_t began_to_read_ns = 0;
      const std::uint64_t cpu_ns = less(options_.cpu_ns(), began_to_read_ns);
      on_done(std::move(result));
      began_to_read_ns = options_.cpu_ns();
      finished(index, bytes, lost_ring, cpu_ns);
    };
  }

  void finished(std::size_t index, std::size_t bytes, bool lost_ring, std::uint64_t cpu_ns) {
    const std::lock_guard lock(mutex_);
    Rival& rival = rivals_[index];
    rival.bytes += bytes;
    rival.cpu_ns += cpu_ns;
    if (++rival.finished == rival.submitted) {
      rival.elapsed_ns += ns_between(rival.busy_since, options_.now());
    }
    if (over_) return;
    if (lost_ring && chosen_.value_or(kUring) == kUring) {
      choose({.uring = false, .note = "io_uring was lost"});
      return;
    }
    if (chosen_) return;
    if (rival.finished == AutoReaderOptions::kWarmUpReads) rival.warm_up = cost(rival);
    if (std::min(rivals_[kPread].finished, rivals_[kUring].finished) >=
        AutoReaderOptions::kWarmUpReads + AutoReaderOptions::kReads) {
      choose(judge(cost_without_warm_up(rivals_[kPread]), cost_without_warm_up(rivals_[kUring])));
    }
  }

  // The following need the lock.

  ReadCost cost(const Rival& rival) const {
    const std::uint64_t running_ns =
        rival.finished < rival.submitted ? ns_between(rival.busy_since, options_.now()) : 0;
    return {
        .reads = rival.finished,
        .bytes = rival.bytes,
        .cpu_ns = rival.cpu_ns + (&rival == &rivals_[kUring] ? ring_workers_cpu_ns() : 0),
        .elapsed_ns = less(rival.elapsed_ns + running_ns, rival.reader->stats().wait_budget_ns)};
  }

  ReadCost cost_without_warm_up(const Rival& rival) const {
    const ReadCost& before = rival.warm_up;
    const ReadCost now = cost(rival);
    return {.reads = now.reads - before.reads,
            .bytes = now.bytes - before.bytes,
            .cpu_ns = less(now.cpu_ns, before.cpu_ns),
            .elapsed_ns = less(now.elapsed_ns, before.elapsed_ns)};
  }

  void choose(ReaderVerdict verdict) {
    chosen_ = verdict.uring ? kUring : kPread;
    note_ = verdict.note;
    options_.memory->remember(std::move(verdict));
  }

  /// Once the other holds nothing any more.
  void hand_over_budget() noexcept {
    const Rival& other = rivals_[1 - *chosen_];
    if (other.finished < other.submitted || other.reader->stats().outstanding > 0) return;
    rivals_[*chosen_].reader->set_budget(options_.read_budget_bytes);
    has_whole_budget_ = true;
  }

  AutoReaderOptions options_;
  mutable std::mutex mutex_;
  std::uint64_t turns_ = 0;
  std::optional<std::size_t> chosen_;
  std::string note_;
  bool has_whole_budget_ = false;
  bool over_ = false;
  std::array<Rival, 2> rivals_;  // last: their threads use the rest
};

}  // namespace

ReaderVerdict judge(const ReadCost& pread, const ReadCost& uring) {
  const double pread_cost = per_byte(pread.cpu_ns + pread.elapsed_ns, pread);
  const double uring_cost = per_byte(uring.cpu_ns + uring.elapsed_ns, uring);
  return {.uring = uring.bytes > 0 && uring_cost < kUringMustCost * pread_cost,
          .note = "measured: " + in_words("pread", pread) + "; " + in_words("io_uring", uring)};
}

std::optional<ReaderVerdict> ReaderMemory::recall() const {
  // A child may have been forked while another thread held it: then nothing is known.
  const std::unique_lock lock(mutex_, std::try_to_lock);
  return lock ? verdict_ : std::nullopt;
}

void ReaderMemory::remember(ReaderVerdict verdict) {
  const std::lock_guard lock(mutex_);
  verdict_ = std::move(verdict);
}

std::unique_ptr<Reader> make_auto_reader(const AutoReaderOptions& options, OnDone on_done) {
  ReaderVerdict verdict;
  if (auto known = options.memory->recall()) {
    verdict = std::move(*known);
    if (!verdict.uring) {
      return options.make_pread(options.read_budget_bytes, verdict.note, std::move(on_done));
    }
  }
  try {
    if (verdict.uring) {
      return options.make_uring(options.read_budget_bytes, verdict.note, on_done);
    }
    return std::make_unique<AutoReader>(options, on_done);
  } catch (const Error& error) {
    return options.make_pread(options.read_budget_bytes, error.what(), std::move(on_done));
  }
}

}  // namespace headrace
