#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <limits>
#include <mutex>
#include <optional>
#include <string>
#include <thread>
#include <vector>

#include "headrace/error.h"
#include "pread_reader.h"
#include "read_ahead.h"
#include "read_queue.h"
#include "reader_bench.h"
#include "scripted_files.h"
#include "support.h"
#include "temporary_folder.h"
#include "uring_reader.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

using test::Bench;
using test::byte_at;
using test::each_kind;
using test::has_content;
using test::Kind;
using test::kNever;
using test::Results;
using test::ScriptedFiles;

/// A reader of real files; of `kind`, unless the kernel forbids that one.
std::unique_ptr<Reader> make_real_reader(Kind kind, int in_flight, std::size_t budget,
                                         std::function<void(ReadResult)> on_done) {
  if (kind == Kind::kUring) {
    try {
      return make_uring_reader({.depth = in_flight, .read_budget_bytes = budget}, on_done);
    } catch (const Error& error) {
      WARN("tested with pread instead: " << error.what());
    }
  }
  return make_pread_reader({.threads = in_flight, .read_budget_bytes = budget}, on_done);
}

std::string write(const test::TemporaryFolder& folder, const std::string& name, std::size_t size) {
  std::string content(size, '\0');
  for (std::size_t i = 0; i < size; ++i) content[i] = static_cast<char>(byte_at(i));
  return folder.write(name, content);
}

TEST_CASE("reader fills buffers with whole files and ranges of files", "[reader]") {
  const test::TemporaryFolder folder;
  const std::string large = write(folder, "large", 300'000);
  const std::string empty = write(folder, "empty", 0);
  const Kind kind = each_kind();
  Results results;
  const auto reader = make_real_reader(kind, 3, std::size_t{1} << 20, results.callback());
  reader->submit(1, {.path = large}, false);
  reader->submit(2, {.path = large, .offset = 1234, .size = 5678}, false);
  reader->submit(3, {.path = large, .offset = 299'000}, true);
  reader->submit(4, {.path = large, .offset = 300'000}, false);
  reader->submit(5, {.path = empty}, false);
  CHECK(has_content(results.take(1).buffer, 0, 300'000));
  CHECK(has_content(results.take(2).buffer, 1234, 5678));
  CHECK(has_content(results.take(3).buffer, 299'000, 1000));
  for (const std::uint64_t ticket : {4, 5}) {
    const ReadResult nothing = results.take(ticket);
    CHECK(nothing.error == 0);
    CHECK(nothing.buffer.bytes().empty());
  }
  const ReaderStats stats = reader->stats();
  CHECK((stats.name == "pread" || kind == Kind::kUring));
  CHECK(stats.reads == 5);
  CHECK(stats.bytes == 300'000 + 5678 + 1000);
  CHECK(stats.busy_ns > 0);
  CHECK(stats.queued == 0);
}

TEST_CASE("reader says why a path cannot be read, and never waits for a FIFO", "[reader]") {
  const test::TemporaryFolder folder;
  const std::string file = write(folder, "file", 10);
  fs::create_directory(folder.path("directory"));
  REQUIRE(mkfifo(folder.path("fifo").c_str(), 0600) == 0);
  struct Case {
    Sample sample;
    int error;
    std::string what;
  };
  const std::vector<Case> cases = {
      {{.path = folder.path("absent")}, ENOENT, "open"},
      {{.path = file + "/x"}, ENOTDIR, "open"},
      {{.path = file + std::string(1, '\0')}, ENOENT, "open"},
      {{.path = folder.path("directory")}, EISDIR, "open"},
      {{.path = folder.path("fifo")}, ESPIPE, "open"},
      {{.path = "/dev/null"}, ESPIPE, "open"},
      {{.path = file, .offset = 11}, ENODATA, "read"},
      {{.path = file, .offset = 10, .size = 1}, ENODATA, "read"},
      {{.path = file, .offset = 1, .size = Sample::kWholeFile - 1}, ENODATA, "read"},
      {{.path = file, .offset = Sample::kWholeFile, .size = 2}, ENODATA, "read"},
  };
  Results results;
  const auto reader = make_real_reader(each_kind(), 2, std::size_t{1} << 20, results.callback());
  for (std::size_t i = 0; i < cases.size(); ++i) reader->submit(i, cases[i].sample, false);
  for (std::size_t i = 0; i < cases.size(); ++i) {
    INFO(cases[i].sample.path);
    const ReadResult result = results.take(i);
    CHECK(result.error == cases[i].error);
    CHECK(result.what == cases[i].what);
    CHECK(result.buffer.bytes().empty());
  }
}

TEST_CASE("reader goes on after short reads and interruptions", "[reader]") {
  Bench bench(each_kind(), 1);
  bench.files.add("a", {.size = 100,
                        .opens = {EINTR, EINTR},
                        .stats = {EINTR},
                        .reads = {-1, EINTR, -50, EINTR, EINTR, -48}});
  const ReadResult result = bench.read("a");
  CHECK(result.error == 0);
  CHECK(has_content(result.buffer, 0, 100));
  CHECK(bench.files.count("read a") == 7);  // three interrupted, four with bytes
  CHECK(bench.files.all_closed());
}

TEST_CASE("reader passes on failed calls, and closes the file", "[reader]") {
  Bench bench(each_kind(), 1);
  bench.files.add("open", {.size = 10, .opens = {EMFILE}});
  bench.files.add("stat", {.size = 10, .stats = {EIO}});
  bench.files.add("read", {.size = 10, .reads = {-3, EIO}});
  for (const std::string call : {"open", "stat", "read"}) {
    const ReadResult result = bench.read(call);
    CHECK(result.error == (call == "open" ? EMFILE : EIO));
    CHECK(result.what == call);
    CHECK(bench.files.all_closed());
    CHECK(bench.read(call).error == 0);  // the script has come to its end
  }
}

TEST_CASE("pread waits where a file system minds O_NONBLOCK, but not twice", "[reader]") {
  Bench bench(Kind::kPread, 1);
  bench.files.add("leased", {.size = 10, .opens = {EAGAIN}});
  bench.files.add("slow", {.size = 10, .reads = {-4, EAGAIN}});
  bench.files.add("stubborn", {.size = 10, .opens = {EAGAIN, EAGAIN}, .reads = {}});
  bench.files.add("endless", {.size = 10, .reads = {EAGAIN, EAGAIN}});

  CHECK(has_content(bench.read("leased").buffer, 0, 10));
  const auto flags = bench.files.open_flags();
  REQUIRE(flags.size() == 2);
  CHECK((flags[0] & O_NONBLOCK) != 0);
  CHECK((flags[1] & O_NONBLOCK) == 0);
  CHECK((flags[1] & O_CLOEXEC) != 0);

  CHECK(has_content(bench.read("slow").buffer, 0, 10));
  CHECK(bench.files.count("set_blocking slow") == 1);

  CHECK(bench.read("stubborn").error == EAGAIN);
  CHECK(bench.read("endless").error == EAGAIN);
}

TEST_CASE("file that shrinks while it is read is an error", "[reader]") {
  Bench bench(each_kind(), 1);
  bench.files.add("a", {.size = 100, .reads = {-60, ScriptedFiles::kEnd}});
  const ReadResult result = bench.read("a");
  CHECK(result.error == ENODATA);
  CHECK(result.what == "read");
  CHECK(result.buffer.bytes().empty());
}

TEST_CASE("reader reports that memory is short and works on", "[reader]") {
  Bench bench(each_kind(), 1);
  bench.files.add("huge", {.size = std::numeric_limits<std::int64_t>::max()});
  bench.files.add("a", {.size = 10});
  const ReadResult result = bench.read("huge");
  CHECK(result.error == ENOMEM);
  CHECK(result.what == "allocate");
  CHECK(bench.read("a").error == 0);
}

TEST_CASE("reader holds a read back until the budget has room", "[reader]") {
  Bench bench(each_kind(), 1, 100);
  for (const char* path : {"a", "b", "urgent"}) bench.files.add(path, {.size = 60});
  bench.submit(0, "a");
  std::optional<ReadResult> a = bench.take(0);
  bench.submit(1, "b");
  REQUIRE(bench.some_thread_waits_for_budget());
  CHECK(bench.files.count("read b") == 0);
  a.reset();
  CHECK(has_content(bench.take(1).buffer, 0, 60));
}

TEST_CASE("reader admits in the order of submission, even if a later file opens first",
          "[reader]") {
  Bench bench(each_kind(), 2, 100);
  for (const char* path : {"a", "b", "urgent"}) bench.files.add(path, {.size = 60});
  bench.files.hold("open a");
  bench.submit(0, "a");
  bench.submit(1, "b");
  bench.files.wait_for("stat b");
  bench.submit(2, "urgent", true);
  bench.take(2);  // by the thread that holds b
  bench.files.let_go("open a");
  // If b had taken the budget, a would wait for it in vain.
  std::optional<ReadResult> a = bench.take(0);
  a.reset();
  bench.take(1);
  CHECK(bench.results.order() == std::vector<std::uint64_t>{2, 0, 1});
}

TEST_CASE("a failed read keeps its turn and frees the budget", "[reader]") {
  Bench bench(each_kind(), 2, 100);
  bench.files.add("a", {.size = 60, .reads = {EIO}});
  bench.files.add("absent", {.opens = {ENOENT}});
  bench.files.add("b", {.size = 60});
  bench.submit(0, "a");
  bench.submit(1, "absent");
  bench.submit(2, "b");
  const ReadResult failed = bench.take(0);  // held: it must not hold the budget
  CHECK(failed.error == EIO);
  CHECK(bench.take(1).error == ENOENT);
  CHECK(bench.take(2).error == 0);
}

TEST_CASE("a file larger than the budget is read when nothing else is outstanding", "[reader]") {
  Bench bench(each_kind(), 2, 100);
  bench.files.add("small", {.size = 10});
  bench.files.add("large", {.size = 5000});
  bench.files.add("urgent", {.size = 5000});
  bench.submit(0, "small");
  std::optional<ReadResult> small = bench.take(0);
  bench.submit(1, "large");
  bench.submit(2, "small");
  REQUIRE(bench.some_thread_waits_for_budget());
  CHECK(bench.files.count("read large") == 0);
  small.reset();
  std::optional<ReadResult> large = bench.take(1);
  CHECK(has_content(large->buffer, 0, 5000));
  CHECK(bench.files.count("read small") == 1);
  large.reset();
  CHECK(bench.take(2).error == 0);
}

TEST_CASE("urgent reads are served while all threads wait for the budget", "[reader]") {
  Bench bench(each_kind(), 2, 100);
  for (const char* path : {"a", "b", "c", "d", "u", "v"}) bench.files.add(path, {.size = 100});
  bench.submit(0, "a");
  std::optional<ReadResult> a = bench.take(0);
  bench.submit(1, "b");
  bench.submit(2, "c");
  bench.submit(3, "d");  // stays in the queue
  bench.files.wait_for("stat b");
  bench.files.wait_for("stat c");
  CHECK(bench.reader().stats().queued == 1);
  bench.submit(4, "u", true);
  bench.submit(5, "v", true);
  const ReadResult u = bench.take(4);  // held, and yet the budget is not charged
  const ReadResult v = bench.take(5);
  a.reset();
  for (const std::uint64_t ticket : {1, 2, 3}) CHECK(bench.take(ticket).error == 0);
}

TEST_CASE("urgent reads go before those in the queue", "[reader]") {
  Bench bench(each_kind(), 1);
  for (const char* path : {"a", "b", "u"}) bench.files.add(path, {.size = 10});
  bench.files.hold("read a");
  bench.submit(0, "a");
  bench.files.wait_for("read a");
  bench.submit(1, "b");
  bench.submit(2, "u", true);
  bench.files.let_go("read a");
  bench.take(1);
  auto order = bench.results.order();
  std::erase(order, 0);  // not waited for by a ring
  CHECK(order == std::vector<std::uint64_t>{2, 1});
}

TEST_CASE("reader that is destroyed waits for reads in flight and drops the others", "[reader]") {
  Bench bench(each_kind(), 2, 100);
  bench.files.add("a", {.size = 60});
  bench.files.add("flying", {.size = 40});
  bench.files.add("waiting", {.size = 60});
  bench.submit(0, "a");
  ReadResult a = bench.take(0);
  bench.files.hold("read flying");
  bench.submit(1, "flying");
  bench.files.wait_for("read flying");
  bench.submit(2, "waiting");
  bench.submit(3, "waiting");
  bench.files.wait_for("stat waiting");
  std::atomic<bool> destroyed = false;
  {
    const std::jthread destroyer([&] {
      bench.destroy_reader();
      destroyed = true;
    });
    CHECK_FALSE(destroyed);
    bench.files.let_go("read flying");
  }
  CHECK(bench.results.order() == std::vector<std::uint64_t>{0, 1});
  CHECK(bench.files.open_files() == 0);
  // Buffers outlive the reader.
  CHECK(has_content(a.buffer, 0, 60));
  a = {};
  CHECK(has_content(bench.take(1).buffer, 0, 40));
}

TEST_CASE("reader uses buffers again", "[reader]") {
  Bench bench(each_kind(), 1);
  bench.files.add("a", {.size = 9000});
  bench.files.add("b", {.size = 8500});
  const std::byte* memory = nullptr;
  {
    const ReadResult a = bench.read("a");
    memory = a.buffer.bytes().data();
  }
  CHECK(bench.read("b").buffer.bytes().data() == memory);
}

TEST_CASE("reader's threads have names and leave signals to the program", "[reader]") {
  sigset_t before;
  pthread_sigmask(SIG_BLOCK, nullptr, &before);
  struct Seen {
    char name[16] = {};
    sigset_t blocked;
  } seen;
  std::mutex mutex;
  std::condition_variable called;
  bool done = false;
  const test::TemporaryFolder folder;
  {
    const auto reader = make_real_reader(each_kind(), 1, 1000, [&](const ReadResult&) {
      const std::lock_guard lock(mutex);
      pthread_getname_np(pthread_self(), seen.name, sizeof(seen.name));
      pthread_sigmask(SIG_BLOCK, nullptr, &seen.blocked);
      done = true;
      called.notify_all();
    });
    reader->submit(0, {.path = write(folder, "file", 1)}, false);
    std::unique_lock lock(mutex);
    REQUIRE(called.wait_for(lock, kNever, [&] { return done; }));
  }
  CHECK(std::string(seen.name).starts_with("hr-io"));
  for (const int signal : {SIGINT, SIGTERM, SIGCHLD, SIGALRM}) {
    CHECK(sigismember(&seen.blocked, signal) == 1);
  }
  CHECK(sigismember(&seen.blocked, SIGSEGV) == 0);
  sigset_t after;
  pthread_sigmask(SIG_BLOCK, nullptr, &after);
  CHECK(sigismember(&after, SIGINT) == sigismember(&before, SIGINT));
}

TEST_CASE("reader refuses to have no threads", "[reader]") {
  CHECK_THROWS_AS(make_pread_reader({.threads = 0}, [](ReadResult) {}), Error);
  CHECK_THROWS_AS(make_uring_reader({.depth = 0}, [](ReadResult) {}), Error);
}

TEST_CASE("reader keeps to its budget and loses nothing under load", "[reader]") {
  constexpr std::uint64_t kReads = 3000;
  constexpr std::size_t kBudget = 20'000;
  const test::TemporaryFolder folder;
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < 10; ++i) {
    paths.push_back(write(folder, std::to_string(i), 1 + i * 1'777));
  }
  Results results;
  std::atomic<std::size_t> held = 0;
  std::atomic<std::size_t> most_held = 0;
  const auto callback = results.callback();
  const auto reader = make_real_reader(each_kind(), 4, kBudget, [&](ReadResult result) {
    const std::size_t now = held += result.buffer.bytes().size();
    std::size_t most = most_held;
    while (now > most && !most_held.compare_exchange_weak(most, now)) {
    }
    callback(std::move(result));
  });
  for (std::uint64_t ticket = 0; ticket < kReads; ++ticket) {
    reader->submit(ticket, {.path = paths[ticket * 7 % paths.size()]}, false);
  }
  // Rows are taken in order, and some are read a second time before they are let go.
  std::uint64_t wrong = 0;
  for (std::uint64_t ticket = 0; ticket < kReads; ++ticket) {
    const ReadResult result = results.take(ticket);
    const std::size_t size = 1 + ticket * 7 % paths.size() * 1'777;
    wrong += has_content(result.buffer, 0, size) ? 0 : 1;
    held -= size;
    if (ticket % 50 == 0) {
      reader->submit(kReads + ticket, {.path = paths[1]}, true);
      held -= results.take(kReads + ticket).buffer.bytes().size();
    }
  }
  CHECK(wrong == 0);
  CHECK(most_held <= kBudget + 1'778);  // one urgent read at a time comes on top
  CHECK(reader->stats().reads == kReads + kReads / 50);
}

TEST_CASE("reader has more in flight when decoding runs dry for it", "[reader]") {
  Bench bench(each_kind(), 2, 1000);
  for (int i = 0; i < 10; ++i) {
    bench.files.add(std::to_string(i), {.size = 10});
    bench.files.hold("read " + std::to_string(i));
    bench.submit(static_cast<std::uint64_t>(i), std::to_string(i));
  }
  for (const char* call : {"read 0", "read 1"}) bench.files.wait_for(call);
  CHECK(bench.reader().stats().depth == 2);
  CHECK(bench.reader().stats().queued == 8);
  for (int period = 0; period < 5; ++period) {
    for (int i = 0; i < ReadAhead::kPeriod; ++i) bench.reader().decode_began(0);
    // pread has its threads come when one of them is free.
    if (period == 0) bench.files.let_go("read 0");
    if (period == 0) bench.take(0);
    if (period == 0) bench.files.wait_for("read 3");
    if (period == 1) bench.files.let_go("read 1");
    if (period == 1) bench.take(1);
  }
  CHECK(bench.reader().stats().depth == 8);
  for (int i = 2; i < 10; ++i) bench.files.wait_for("read " + std::to_string(i));
  for (int i = 2; i < 10; ++i) bench.files.let_go("read " + std::to_string(i));
  for (std::uint64_t i = 2; i < 10; ++i) CHECK(bench.take(i).error == 0);
  bench.destroy_reader();
  CHECK(bench.files.open_files() == 0);
}

TEST_CASE("reader reads further ahead when decoding runs dry for it", "[reader]") {
  const std::size_t first = ReadQueue::kFirstBytes;
  Bench bench(each_kind(), 1, 4 * first);
  bench.files.add("a", {.size = first});
  bench.files.add("urgent", {.size = 1});
  bench.submit(0, "a");
  const ReadResult held = bench.take(0);
  bench.submit(1, "a");
  REQUIRE(bench.some_thread_waits_for_budget());
  CHECK(bench.files.count("read a") == 1);
  for (int i = 0; i < ReadAhead::kPeriod; ++i) bench.reader().decode_began(0);
  CHECK(bench.take(1).error == 0);
  CHECK(bench.reader().stats().ahead_bytes == 2 * first);
}

}  // namespace
}  // namespace headrace
