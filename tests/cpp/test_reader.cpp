#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdlib.h>
#include <sys/stat.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <stdexcept>
#include <string>
#include <thread>
#include <vector>

#include "headrace/error.h"
#include "pread_reader.h"
#include "read_ahead.h"
#include "read_queue.h"
#include "scripted_files.h"
#include "scripted_ring.h"
#include "support.h"
#include "uring_reader.h"

namespace headrace {
namespace {

namespace fs = std::filesystem;

using test::byte_at;
using test::kNever;
using test::ScriptedFiles;

bool has_content(const ReadBuffer& buffer, std::size_t offset, std::size_t size) {
  const auto bytes = buffer.bytes();
  if (bytes.size() != size) return false;
  for (std::size_t i = 0; i < size; ++i) {
    if (bytes[i] != byte_at(offset + i)) return false;
  }
  return true;
}

/// Where results arrive, for the test's thread to take.
class Results {
 public:
  std::function<void(ReadResult)> callback() {
    return [this](ReadResult result) {
      const std::lock_guard lock(mutex_);
      const auto ticket = result.ticket;
      order_.push_back(ticket);
      results_.insert_or_assign(ticket, std::move(result));
      arrived_.notify_all();
    };
  }

  /// Waits for the result and takes it out.
  ReadResult take(std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, kNever, [&] { return results_.contains(ticket); })) {
      throw std::runtime_error("no result for " + std::to_string(ticket));
    }
    return std::move(results_.extract(ticket).mapped());
  }

  /// Tickets in the order of their results.
  std::vector<std::uint64_t> order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::uint64_t, ReadResult> results_;
  std::vector<std::uint64_t> order_;
};

enum class Kind { kPread, kUring };

/// Runs the test for each kind.
Kind each_kind() { return GENERATE(Kind::kPread, Kind::kUring); }

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

/// A reader of scripted files, and its results.
struct Bench {
  Bench(Kind reader_kind, int reads_in_flight, std::size_t budget_bytes = std::size_t{1} << 20)
      : kind(reader_kind), in_flight(reads_in_flight), budget(budget_bytes) {}

  Reader& reader() {
    if (reader_ != nullptr) return *reader_;
    if (kind == Kind::kPread) {
      reader_ = make_pread_reader({.threads = in_flight, .read_budget_bytes = budget},
                                  results.callback(), files.file_system());
    } else {
      reader_ =
          make_uring_reader({.depth = in_flight, .read_budget_bytes = budget}, results.callback(),
                            test::scripted_rings(files, ring), files.file_system());
    }
    return *reader_;
  }
  void submit(std::uint64_t ticket, const std::string& path, bool urgent = false) {
    reader().submit(ticket, {.path = path}, urgent);
  }
  ReadResult take(std::uint64_t ticket) { return results.take(ticket); }
  /// Reads one file, alone.
  ReadResult read(const std::string& path, std::uint64_t offset = 0,
                  std::uint64_t size = Sample::kWholeFile) {
    reader().submit(1000, {.path = path, .offset = offset, .size = size}, false);
    return take(1000);
  }
  /// Has the file "urgent" read until a thread served it out of a wait for the budget.
  /// @returns false if none ever waits.
  bool some_thread_waits_for_budget() {
    const auto give_up = std::chrono::steady_clock::now() + kNever;
    while (reader().stats().wait_budget_ns == 0) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      submit(1001, "urgent", true);
      if (take(1001).error != 0) return false;
    }
    return true;
  }
  void destroy_reader() { reader_.reset(); }

  Kind kind;
  int in_flight;
  std::size_t budget;
  ScriptedFiles files;
  test::RingScript ring;
  Results results;

 private:
  std::unique_ptr<Reader> reader_;
};

/// A directory that goes away again.
class TemporaryFolder {
 public:
  TemporaryFolder() {
    std::string pattern = (fs::temp_directory_path() / "headrace-XXXXXX").string();
    root_ = mkdtemp(pattern.data());
  }
  ~TemporaryFolder() { fs::remove_all(root_); }
  TemporaryFolder(const TemporaryFolder&) = delete;
  TemporaryFolder& operator=(const TemporaryFolder&) = delete;

  std::string path(const std::string& name) const { return (root_ / name).string(); }
  std::string write(const std::string& name, std::size_t size) const {
    std::vector<char> content(size);
    for (std::size_t i = 0; i < size; ++i) content[i] = static_cast<char>(byte_at(i));
    std::ofstream(path(name)).write(content.data(), static_cast<std::streamsize>(size));
    return path(name);
  }

 private:
  fs::path root_;
};

TEST_CASE("reader fills buffers with whole files and ranges of files", "[reader]") {
  const TemporaryFolder folder;
  const std::string large = folder.write("large", 300'000);
  const std::string empty = folder.write("empty", 0);
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
  const TemporaryFolder folder;
  const std::string file = folder.write("file", 10);
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
  const TemporaryFolder folder;
  {
    const auto reader = make_real_reader(each_kind(), 1, 1000, [&](const ReadResult&) {
      const std::lock_guard lock(mutex);
      pthread_getname_np(pthread_self(), seen.name, sizeof(seen.name));
      pthread_sigmask(SIG_BLOCK, nullptr, &seen.blocked);
      done = true;
      called.notify_all();
    });
    reader->submit(0, {.path = folder.write("file", 1)}, false);
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
  const TemporaryFolder folder;
  std::vector<std::string> paths;
  for (std::size_t i = 0; i < 10; ++i) {
    paths.push_back(folder.write(std::to_string(i), 1 + i * 1'777));
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

TEST_CASE("ring's completions may come in any order, interrupted, put off or cancelled",
          "[reader]") {
  constexpr std::uint64_t kFiles = 60;
  Bench bench(Kind::kUring, 8, 500);
  bench.ring.newest_first = true;
  bench.ring.submits = {0, -EAGAIN, -EBUSY, 0, -EINTR, -EAGAIN};
  for (std::uint64_t i = 0; i < kFiles; ++i) {
    const int size = static_cast<int>(i) + 20;
    const std::deque<int> trouble[] = {
        {}, {-7, EINTR, -1}, {ECANCELED, -size + 1}, {EAGAIN, EAGAIN}};
    bench.files.add(std::to_string(i),
                    {.size = static_cast<std::size_t>(size),
                     .opens = i % 5 == 0 ? std::deque{ECANCELED, EINTR} : std::deque<int>{},
                     .reads = trouble[i % 4],
                     .closes = i % 7 == 0   ? std::deque{ECANCELED}
                               : i % 7 == 1 ? std::deque{EIO}
                                            : std::deque<int>{}});
  }
  for (std::uint64_t i = 0; i < kFiles; ++i) bench.submit(i, std::to_string(i));
  for (std::uint64_t i = 0; i < kFiles; ++i) {
    const ReadResult result = bench.take(i);
    CHECK(result.error == 0);
    CHECK(has_content(result.buffer, 0, static_cast<std::size_t>(i) + 20));
  }
  CHECK(bench.ring.most_in_flight > 4);
  bench.destroy_reader();
  CHECK(bench.files.open_files() == 0);
}

TEST_CASE("ring gives a call up that is put off again and again", "[reader]") {
  Bench bench(Kind::kUring, 1);
  bench.files.add("leased", {.size = 10, .opens = {EAGAIN}});
  bench.files.add("unopened", {.size = 10, .opens = std::deque<int>(16, EAGAIN)});
  bench.files.add("unread", {.size = 10, .reads = std::deque<int>(16, EAGAIN)});
  CHECK(has_content(bench.read("leased").buffer, 0, 10));
  const auto flags = bench.files.open_flags();
  REQUIRE(flags.size() == 2);
  CHECK((flags[0] & O_NONBLOCK) != 0);
  CHECK((flags[1] & O_NONBLOCK) == 0);
  for (const std::string path : {"unopened", "unread"}) {
    const ReadResult result = bench.read(path);
    CHECK(result.error == EAGAIN);
    CHECK(result.what == (path == "unread" ? "read" : "open"));
    CHECK(bench.read(path).error == 0);
  }
}

TEST_CASE("ring reads what it opened without O_NONBLOCK, which would fail instead of waiting",
          "[reader]") {
  Bench bench(Kind::kUring, 1);
  bench.files.add("a", {.size = 10});
  CHECK(bench.read("a").error == 0);
  CHECK(bench.files.count("set_blocking a") == 1);
}

TEST_CASE("ring makes do with the descriptors that are left", "[reader]") {
  const int allowed = GENERATE(1, 2, 3, 7);
  constexpr std::uint64_t kFiles = 300;
  Bench bench(Kind::kUring, 8, 100);
  bench.ring.newest_first = GENERATE(false, true);
  bench.files.allow_open_files(allowed);
  bench.files.add("absent", {.opens = std::deque<int>(kFiles, ENOENT)});
  for (std::uint64_t i = 0; i < kFiles; ++i) {
    bench.files.add(std::to_string(i), {.size = 10 + static_cast<std::size_t>(i) % 60});
  }
  for (std::uint64_t i = 0; i < kFiles; ++i) {
    bench.submit(i, i % 9 == 4 ? "absent" : std::to_string(i));
    // With one descriptor no file but the next in turn may keep it.
    if (i % 10 == 0) bench.submit(kFiles + i, std::to_string(i), true);
  }
  for (std::uint64_t i = 0; i < kFiles; ++i) {
    INFO(i);
    const ReadResult result = bench.take(i);
    CHECK(result.error == (i % 9 == 4 ? ENOENT : 0));
    if (i % 10 == 0) CHECK(bench.take(kFiles + i).error == 0);
  }
  bench.destroy_reader();
  CHECK(bench.files.open_files() == 0);
}

TEST_CASE("ring's reader that is destroyed closes what is still being opened", "[reader]") {
  Bench bench(Kind::kUring, 4, 100);
  for (const char* path : {"opening", "reading", "closing"}) bench.files.add(path, {.size = 60});
  bench.files.hold("close closing");
  bench.submit(0, "closing");
  bench.take(0);
  bench.files.hold("read reading");
  bench.submit(1, "reading");
  bench.files.wait_for("read reading");
  bench.files.hold("open opening");
  bench.submit(2, "opening");
  bench.files.wait_for("open opening");
  {
    const std::jthread destroyer([&] { bench.destroy_reader(); });
    for (const char* call : {"open opening", "read reading", "close closing"}) {
      bench.files.let_go(call);
    }
  }
  CHECK(bench.files.open_files() == 0);
  CHECK(bench.results.order() == std::vector<std::uint64_t>{0, 1});
}

TEST_CASE("every read fails once the ring is lost, and none is waited for in vain", "[reader]") {
  Bench bench(Kind::kUring, 2, 100);
  for (const char* path : {"a", "b", "c"}) bench.files.add(path, {.size = 60});
  bench.files.hold("read a");
  bench.submit(0, "a");
  bench.files.wait_for("read a");
  bench.ring.submits = {-EPERM};
  for (const std::uint64_t ticket : {1, 2}) bench.submit(ticket, "b");
  bench.submit(3, "c", true);
  for (const std::uint64_t ticket : {0, 1, 2, 3}) {
    const ReadResult result = bench.take(ticket);
    CHECK(result.error == EPERM);
    CHECK(result.what == "io_uring");
  }
  CHECK(bench.read("c").error == EPERM);
}

TEST_CASE("a ring that cannot be had is an error with its reason", "[reader]") {
  for (const int reason : {EPERM, ENOSYS, ENOMEM}) {
    try {
      make_uring_reader(
          {}, [](ReadResult) {},
          [&](unsigned) -> std::unique_ptr<Ring> {
            throw std::system_error(reason, std::generic_category(), "io_uring_setup");
          });
      FAIL("there is a reader");
    } catch (const Error& error) {
      CHECK(error.context().system_errno == reason);
    }
  }
}

using HeldBack = ReadAhead::HeldBack;

/// Lets one period of decodes begin.
bool pass_period(ReadAhead& ahead, std::size_t ready, HeldBack held_back) {
  bool changed = false;
  for (int i = 0; i < ReadAhead::kPeriod; ++i) changed |= ahead.decode_began(ready, held_back);
  return changed;
}

TEST_CASE("read-ahead grows where decoding runs dry, by what holds it back", "[reader]") {
  ReadAhead ahead({.least_depth = 4, .most_depth = 12, .least_bytes = 100, .most_bytes = 350});
  CHECK(ahead.depth() == 4);
  CHECK(ahead.bytes() == 100);
  CHECK(pass_period(ahead, 0, HeldBack::kByDepth));
  CHECK(ahead.depth() == 8);
  CHECK(ahead.bytes() == 100);
  CHECK(pass_period(ahead, 0, HeldBack::kByBytes));
  CHECK(ahead.depth() == 8);
  CHECK(ahead.bytes() == 200);
  pass_period(ahead, 0, HeldBack::kByDepth);
  CHECK(ahead.depth() == 12);
  CHECK_FALSE(pass_period(ahead, 0, HeldBack::kByDepth));
  pass_period(ahead, 0, HeldBack::kByBytes);
  CHECK(ahead.bytes() == 350);
  CHECK_FALSE(pass_period(ahead, 0, HeldBack::kByBytes));
}

TEST_CASE("read-ahead stays where more of it would not help", "[reader]") {
  ReadAhead ahead({.least_depth = 4, .most_depth = 12, .least_bytes = 100, .most_bytes = 350});
  CHECK_FALSE(pass_period(ahead, 0, HeldBack::kNothing));  // the training is what takes time
  CHECK_FALSE(pass_period(ahead, 1, HeldBack::kByDepth));
  CHECK_FALSE(pass_period(ahead, 1, HeldBack::kByBytes));
  for (int i = 0; i < 100 * ReadAhead::kPeriod; ++i) {
    CHECK_FALSE(ahead.decode_began(i % 2, HeldBack::kByDepth));  // dry half of the time
  }
}

TEST_CASE("read-ahead goes back while plenty lies ready, to where it began", "[reader]") {
  ReadAhead ahead({.least_depth = 4, .most_depth = 8, .least_bytes = 100, .most_bytes = 200});
  pass_period(ahead, 0, HeldBack::kByDepth);
  pass_period(ahead, 0, HeldBack::kByBytes);
  CHECK(pass_period(ahead, ReadAhead::kPlenty, HeldBack::kByBytes));
  CHECK(ahead.depth() == 7);
  CHECK(ahead.bytes() == 175);
  CHECK_FALSE(pass_period(ahead, ReadAhead::kPlenty - 1, HeldBack::kByBytes));
  for (int i = 0; i < 10; ++i) pass_period(ahead, 1000, HeldBack::kNothing);
  CHECK(ahead.depth() == 4);
  CHECK(ahead.bytes() == 100);
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
