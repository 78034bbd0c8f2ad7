#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <string>
#include <system_error>
#include <vector>

#include "auto_reader.h"
#include "headrace/error.h"
#include "pread_reader.h"
#include "scripted_files.h"
#include "scripted_ring.h"
#include "support.h"
#include "uring_reader.h"

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::contains;

constexpr std::uint64_t kTrial = AutoReaderOptions::kWarmUpReads + AutoReaderOptions::kReads;
constexpr std::size_t kBudget = 1000;
constexpr std::size_t kFileBytes = 10;
constexpr std::uint64_t kFiles = 300;

/// A reader of which the test says how reads end, and what they cost.
struct Script {
  OnDone on_done;
  std::vector<std::uint64_t> tickets;  // submitted
  std::size_t done = 0;
  std::size_t budget = 0;
  std::string note;
  ReaderStats stats;
  int decodes = 0;

  void finish(const std::string& what = "") {
    ReadResult result{.ticket = tickets.at(done++), .buffer = {}, .error = 0, .what = what};
    if (what.empty()) {
      result.buffer = ReadBuffer(Buffer(new std::byte[kFileBytes]), kFileBytes, nullptr);
    }
    ++stats.reads;
    on_done(std::move(result));
  }
};

class ScriptedReader final : public Reader {
 public:
  explicit ScriptedReader(Script& script) : script_(script) {}
  void submit(std::uint64_t ticket, const Sample&, bool) override {
    script_.tickets.push_back(ticket);
  }
  void decode_began(std::size_t) noexcept override { ++script_.decodes; }
  void set_budget(std::size_t bytes) noexcept override { script_.budget = bytes; }
  ReaderStats stats() const override { return script_.stats; }

 private:
  Script& script_;
};

struct Rig {
  std::unique_ptr<Reader> make() {
    return make_auto_reader(options(),
                            [this](ReadResult result) { results.push_back(result.ticket); });
  }

  AutoReaderOptions options() {
    const auto maker = [](Script& script, const char* name) {
      return [&script, name](std::size_t budget, std::string note, OnDone on_done) {
        script.on_done = std::move(on_done);
        script.budget = budget;
        script.stats.name = name;
        script.note = note;
        script.stats.note = std::move(note);
        return std::make_unique<ScriptedReader>(script);
      };
    };
    return {.make_pread = maker(pread, "pread"),
            .make_uring = maker(uring, "io_uring"),
            .read_budget_bytes = kBudget,
            .memory = memory,
            .now = [this] { return AutoReaderOptions::Clock::time_point(time); },
            .cpu_ns = [this] { return cpu_ns; }};
  }

  /// Submits reads and finishes them one after another, the warm-up's at a price that must not
  /// count.
  void run_trial(Reader& reader, std::chrono::nanoseconds pread_takes, std::uint64_t pread_cpu_ns,
                 std::chrono::nanoseconds uring_takes, std::uint64_t uring_cpu_ns) {
    for (std::uint64_t i = 0; i < kTrial; ++i) {
      const bool warm = i >= AutoReaderOptions::kWarmUpReads;
      reader.submit(2 * i, {}, false);
      time += warm ? pread_takes : 1s;
      cpu_ns += warm ? pread_cpu_ns : 123;
      pread.finish();
      reader.submit(2 * i + 1, {}, false);
      time += warm ? uring_takes : 2s;
      cpu_ns += warm ? uring_cpu_ns : 987;
      uring.finish();
    }
  }

  Script pread;
  Script uring;
  std::chrono::nanoseconds time{0};
  std::uint64_t cpu_ns = 0;
  std::vector<std::uint64_t> results;
  std::shared_ptr<ReaderMemory> memory = std::make_shared<ReaderMemory>();
};

TEST_CASE("auto gives every other read to each reader until both have been measured",
          "[auto_reader]") {
  Rig rig;
  const auto reader = rig.make();
  CHECK(rig.pread.budget == kBudget / 2);
  CHECK(rig.uring.budget == kBudget / 2);
  CHECK(reader->stats().name == "pread and io_uring");
  for (std::uint64_t i = 0; i < 10; ++i) reader->submit(i, {}, false);
  CHECK(rig.pread.tickets == std::vector<std::uint64_t>{0, 2, 4, 6, 8});
  CHECK(rig.uring.tickets == std::vector<std::uint64_t>{1, 3, 5, 7, 9});
  reader->decode_began(0);
  CHECK(rig.pread.decodes + rig.uring.decodes == 2);
  for (int i = 0; i < 5; ++i) rig.uring.finish();
  CHECK(rig.results == std::vector<std::uint64_t>{1, 3, 5, 7, 9});
  CHECK_FALSE(rig.memory->recall());
}

TEST_CASE("auto keeps the reader that takes less time and CPU for a byte", "[auto_reader]") {
  struct Case {
    std::chrono::nanoseconds pread_takes;
    std::uint64_t pread_cpu_ns;
    std::chrono::nanoseconds uring_takes;
    std::uint64_t uring_cpu_ns;
    const char* kept;
  };
  const Case one =
      GENERATE(Case{100ns, 100, 50ns, 100, "io_uring"},  // sooner
               Case{100ns, 100, 100ns, 50, "io_uring"},  // with less CPU
               Case{100ns, 100, 95ns, 95, "pread"},      // by less than a tenth
               Case{100ns, 100, 100ns, 100, "pread"}, Case{100ns, 100, 150ns, 60, "pread"});
  Rig rig;
  const auto reader = rig.make();
  rig.run_trial(*reader, one.pread_takes, one.pread_cpu_ns, one.uring_takes, one.uring_cpu_ns);
  const ReaderStats stats = reader->stats();
  CHECK(stats.name == one.kept);
  CHECK(stats.reads == 2 * kTrial);
  CHECK_THAT(stats.note, contains("measured: pread 64 reads, 10.000 ms of CPU and 10.000 ms in"));
  Script& kept = std::string(one.kept) == "pread" ? rig.pread : rig.uring;
  for (std::uint64_t i = 0; i < 6; ++i) reader->submit(5000 + i, {}, i == 3);
  CHECK(kept.tickets.size() == kTrial + 6);
}

TEST_CASE("the budget is the kept reader's once the other holds nothing", "[auto_reader]") {
  Rig rig;
  const auto reader = rig.make();
  reader->submit(0, {}, false);
  reader->submit(1, {}, false);  // io_uring's, left unfinished
  for (std::uint64_t i = 2; i < 2 * kTrial + 2; ++i) reader->submit(i, {}, false);
  for (std::uint64_t i = 0; i < kTrial; ++i) {
    rig.pread.finish();
    rig.uring.finish();
  }
  REQUIRE(rig.memory->recall());
  reader->decode_began(0);
  CHECK(rig.pread.budget == kBudget / 2);
  rig.uring.stats.outstanding = kFileBytes;
  rig.uring.finish();
  reader->decode_began(0);
  CHECK(rig.pread.budget == kBudget / 2);
  rig.uring.stats.outstanding = 0;
  reader->decode_began(0);
  CHECK(rig.pread.budget == kBudget);
  CHECK(rig.uring.budget == kBudget / 2);
}

TEST_CASE("time in which the budget held reads back is no reader's fault", "[auto_reader]") {
  Rig rig;
  const auto reader = rig.make();
  for (std::uint64_t i = 0; i < 2 * kTrial; ++i) reader->submit(i, {}, false);
  for (std::uint64_t i = 0; i < kTrial; ++i) {
    rig.time += 200ns;
    if (i >= AutoReaderOptions::kWarmUpReads) rig.uring.stats.wait_budget_ns += 150;
    rig.pread.finish();
    rig.uring.finish();
  }
  CHECK(reader->stats().name == "io_uring");
}

TEST_CASE("auto measures once, and later readers are the one that was kept", "[auto_reader]") {
  Rig rig;
  const bool uring_wins = GENERATE(false, true);
  {
    const auto first = rig.make();
    rig.run_trial(*first, 100ns, 0, uring_wins ? 10ns : 1000ns, 0);
  }
  const auto second = rig.make();
  CHECK(second->stats().name == (uring_wins ? "io_uring" : "pread"));
  CHECK_THAT(second->stats().note, contains("measured: pread 64 reads"));
  CHECK((uring_wins ? rig.uring : rig.pread).budget == kBudget);
}

TEST_CASE("without io_uring auto is pread and says why", "[auto_reader]") {
  Rig rig;
  AutoReaderOptions options = rig.options();
  if (GENERATE(false, true)) rig.memory->remember({.uring = true, .note = "as measured elsewhere"});
  options.make_uring = [](std::size_t, const std::string&,
                          const OnDone&) -> std::unique_ptr<Reader> {
    throw Error(ErrorCode::kReadFailed, "io_uring cannot be used",
                {.stage = "read", .system_errno = EPERM});
  };
  const auto reader = make_auto_reader(options, [](ReadResult) {});
  CHECK(reader->stats().name == "pread");
  CHECK_THAT(reader->stats().note, contains("io_uring cannot be used"));
  CHECK(rig.pread.budget == kBudget);
}

TEST_CASE("a ring that is lost while it is measured is not kept", "[auto_reader]") {
  Rig rig;
  const auto reader = rig.make();
  for (std::uint64_t i = 0; i < 4; ++i) reader->submit(i, {}, false);
  rig.uring.finish("io_uring");
  CHECK(reader->stats().name == "pread");
  CHECK_THAT(reader->stats().note, contains("lost"));
  reader->submit(10, {}, false);
  CHECK(rig.pread.tickets.back() == 10);
}

TEST_CASE("auto reads every file once, whatever is kept, and may be dropped at any time",
          "[auto_reader]") {
  test::ScriptedFiles files;
  test::RingScript ring;
  for (std::uint64_t i = 0; i < kFiles; ++i) {
    files.add(std::to_string(i), {.size = static_cast<std::size_t>(i) + 1});
  }
  std::mutex mutex;
  std::condition_variable changed;
  std::vector<int> seen(kFiles, 0);
  std::uint64_t done = 0;
  const AutoReaderOptions options = {
      .make_pread =
          [&](std::size_t budget, std::string note, OnDone on_done) {
            return make_pread_reader(
                {.threads = 3, .read_budget_bytes = budget, .note = std::move(note)},
                std::move(on_done), files.file_system());
          },
      .make_uring =
          [&](std::size_t budget, std::string note, OnDone on_done) {
            return make_uring_reader(
                {.depth = 4, .read_budget_bytes = budget, .note = std::move(note)},
                std::move(on_done), test::scripted_rings(files, ring), files.file_system());
          },
      .read_budget_bytes = 1200,
      .memory = std::make_shared<ReaderMemory>()};
  const std::uint64_t wait_for = GENERATE(as<std::uint64_t>{}, kFiles, 2 * kTrial, 5);
  {
    const auto reader = make_auto_reader(options, [&](ReadResult result) {
      const std::lock_guard lock(mutex);
      ++done;
      if (result.error == 0 && result.buffer.bytes().size() == result.ticket + 1 &&
          result.buffer.bytes().back() == test::byte_at(result.ticket)) {
        ++seen[result.ticket];
      }
      changed.notify_all();
    });
    for (std::uint64_t i = 0; i < kFiles; ++i) {
      reader->submit(i, {.path = std::to_string(i)}, i % 50 == 49);
      reader->decode_began(0);
    }
    std::unique_lock lock(mutex);
    REQUIRE(changed.wait_for(lock, test::kNever, [&] { return done >= wait_for; }));
  }
  CHECK(std::ranges::count(seen, 1) == static_cast<std::ptrdiff_t>(done));
  CHECK((wait_for < kFiles || options.memory->recall()));
  CHECK(files.open_files() == 0);
}

}  // namespace
}  // namespace headrace
