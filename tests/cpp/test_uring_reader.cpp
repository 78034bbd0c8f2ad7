#include <fcntl.h>

#include <cerrno>
#include <cstdint>
#include <deque>
#include <memory>
#include <string>
#include <system_error>
#include <thread>
#include <vector>

#include "headrace/error.h"
#include "reader_bench.h"
#include "support.h"
#include "uring_reader.h"

namespace headrace {
namespace {

using test::Bench;
using test::has_content;
using test::Kind;

TEST_CASE("ring's completions may come in any order, interrupted, put off or cancelled",
          "[uring_reader]") {
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

TEST_CASE("ring gives a call up that is put off again and again", "[uring_reader]") {
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
          "[uring_reader]") {
  Bench bench(Kind::kUring, 1);
  bench.files.add("a", {.size = 10});
  CHECK(bench.read("a").error == 0);
  CHECK(bench.files.count("set_blocking a") == 1);
}

TEST_CASE("ring makes do with the descriptors that are left", "[uring_reader]") {
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

TEST_CASE("ring's reader that is destroyed closes what is still being opened", "[uring_reader]") {
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

TEST_CASE("every read fails once the ring is lost, and none is waited for in vain",
          "[uring_reader]") {
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

TEST_CASE("a ring that cannot be had is an error with its reason", "[uring_reader]") {
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

}  // namespace
}  // namespace headrace
