#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <latch>
#include <map>
#include <random>
#include <thread>
#include <utility>
#include <vector>

#include "engine_parts.h"
#include "engine_rig.h"
#include "flat_jpeg.h"
#include "headrace/error.h"
#include "pread_reader.h"
#include "support.h"
#include "temporary_folder.h"

namespace headrace {
namespace {

using namespace std::chrono_literals;
using test::contains;
using test::flat_jpeg;
using test::make_options;
using test::make_transform;
using test::ManualExecutor;
using test::Rig;
using test::ScriptedReader;

constexpr auto kLong = 60s;  // a watchdog: reached only when something hangs

std::vector<Sample> samples(std::initializer_list<int> labels) {
  std::vector<Sample> result;
  for (const int label : labels) {
    result.push_back({.path = std::to_string(label) + ".jpg", .label = label, .index = label});
  }
  return result;
}

std::vector<int> grays(const Batch& batch) {
  std::vector<int> result;
  for (std::int64_t row = 0; row < batch.rows; ++row) {
    const auto* pixels = batch.fields.at(0).memory.get() + row * 12;
    const auto all_equal = std::all_of(pixels, pixels + 12, [&](auto p) { return p == *pixels; });
    REQUIRE(all_equal);
    result.push_back(static_cast<int>(*pixels));
  }
  return result;
}

std::vector<std::int64_t> labels(const Batch& batch) {
  std::vector<std::int64_t> result(static_cast<std::size_t>(batch.rows));
  std::memcpy(result.data(), batch.fields.at(1).memory.get(), result.size() * 8);
  return result;
}

TEST_CASE("engine hands out batches in submission order, in whatever order reads end", "[engine]") {
  Rig rig;
  CHECK(rig.engine->submit(0, samples({10, 20})) == 0);
  CHECK(rig.engine->submit(0, samples({30})) == 1);
  rig.script.finish(2, flat_jpeg(9, 5, 30));
  rig.script.finish(1, flat_jpeg(20, 30, 20));
  rig.expect<Engine::Timeout>();
  rig.script.finish(0, flat_jpeg(3, 3, 10));
  const auto first = rig.expect<Batch>();
  CHECK(first.id == 0);
  CHECK(grays(first) == std::vector{10, 20});
  CHECK(labels(first) == std::vector<std::int64_t>{10, 20});
  const auto second = rig.expect<Batch>();
  CHECK(grays(second) == std::vector{30});
}

MemoryBlock in_memory(const std::vector<std::byte>& bytes) {
  const auto owner = std::make_shared<std::vector<std::byte>>(bytes);
  return {std::shared_ptr<const std::byte>(owner, owner->data()), bytes.size()};
}

Sample pixels_sample(int gray) {
  Sample sample = samples({gray})[0];
  sample.memory = in_memory(std::vector<std::byte>(4 * 3 * 3, static_cast<std::byte>(gray)));
  sample.width = 4;
  sample.height = 3;
  return sample;
}

TEST_CASE("samples in memory are not read, and stand beside files", "[engine]") {
  Rig rig;
  auto batch = samples({10, 20, 30});
  batch[0].memory = in_memory(flat_jpeg(9, 5, 10));
  batch[2] = pixels_sample(30);
  rig.engine->submit(0, batch);
  REQUIRE(rig.script.requests.size() == 1);
  CHECK(rig.script.requests[0].sample.path == "20.jpg");
  rig.script.finish(0, flat_jpeg(4, 4, 20));
  const auto done = rig.expect<Batch>();
  CHECK(grays(done) == std::vector{10, 20, 30});
  CHECK(labels(done) == std::vector<std::int64_t>{10, 20, 30});
}

TEST_CASE("a batch of pixels is ready without any other event", "[engine]") {
  Rig rig;
  rig.engine->submit(0, {pixels_sample(5), pixels_sample(6)});
  CHECK(grays(rig.expect<Batch>()) == std::vector{5, 6});
}

TEST_CASE("memory of samples is let go of with their batch", "[engine]") {
  Rig rig;
  const Sample file = pixels_sample(7);
  const long before = file.memory.data.use_count();
  rig.engine->submit(0, {file, file});
  rig.expect<Batch>();
  CHECK(file.memory.data.use_count() == before);
  rig.engine->submit(0, {file});
  rig.engine.reset();
  rig.tasks.clear();
  CHECK(file.memory.data.use_count() == before);
}

TEST_CASE("samples in memory are planned again after a failure before them", "[engine]") {
  // Rows that were planned on a wrong guess end as in an engine that never guessed.
  const auto flips = [](bool damaged_first) {
    Rig rig;
    auto first = samples({10});
    first[0].memory = in_memory(damaged_first ? std::vector<std::byte>(20) : flat_jpeg(4, 4, 10));
    auto second = samples({20, 30});
    second[0].memory = in_memory(flat_jpeg(4, 4, 20));
    second[1] = pixels_sample(30);
    rig.engine->submit(0, first);
    rig.engine->submit(0, second);
    if (damaged_first) {
      const auto question = rig.expect<Question>();
      RandomStream after = question.random;
      after.rand();
      rig.engine->fail(question, after);
    }
    rig.expect<Batch>();
    const auto batch = rig.expect<Batch>();
    CHECK(grays(batch) == std::vector{20, 30});
    return batch.random_after.words_drawn();
  };
  CHECK(flips(true) == flips(false));
}

TEST_CASE("pixels whose memory does not fit their shape are refused", "[engine]") {
  Rig rig;
  Sample sample = pixels_sample(5);
  sample.width = 5;
  CHECK_THROWS_WITH(rig.engine->submit(0, {sample}), contains("another size than its shape"));
  sample.width = -4;
  CHECK_THROWS_WITH(rig.engine->submit(0, {sample}), contains("another size than its shape"));
  CHECK(rig.engine->in_flight() == 0);
}

TEST_CASE("a batch stays as it is while it is held", "[engine]") {
  Rig rig;
  rig.engine->submit(0, samples({1}));
  rig.script.finish(0, flat_jpeg(4, 4, 1));
  const auto held = rig.expect<Batch>();
  for (int i = 0; i < 5; ++i) {
    rig.engine->submit(0, samples({2}));
    rig.script.finish(rig.script.requests.size() - 1, flat_jpeg(4, 4, 200));
    rig.expect<Batch>();
  }
  rig.engine.reset();
  CHECK(grays(held) == std::vector{1});
}

TEST_CASE("a damaged sample is asked about and the answer becomes its row", "[engine]") {
  Rig rig;
  rig.engine->submit(0, samples({10, 20}));
  rig.script.finish(0, flat_jpeg(4, 4, 10));
  auto damaged = flat_jpeg(4, 4, 20);
  damaged.resize(damaged.size() - 2);
  rig.script.finish(1, damaged);
  const auto question = rig.expect<Question>();
  CHECK(question.row == 1);
  CHECK(question.sample.path == "20.jpg");
  CHECK_FALSE(question.reason.empty());
  const auto again = rig.expect<Question>();
  CHECK(again.row == 1);
  RandomStream after = question.random;
  after.rand();
  rig.engine->answer(question, std::vector<std::byte>(12, std::byte{77}), after);
  const auto batch = rig.expect<Batch>();
  CHECK(grays(batch) == std::vector{10, 77});
  CHECK(batch.random_after.same_position(after));
}

TEST_CASE("a skipped sample leaves its batch shorter", "[engine]") {
  Rig rig;
  rig.engine->submit(0, samples({10, 20, 30, 40, 50}));
  for (const std::size_t read : {0, 2, 4}) {
    rig.script.finish(read, flat_jpeg(4, 4, static_cast<int>(10 * (read + 1))));
  }
  for (const std::size_t read : {1, 3}) rig.script.fail(read, ENOENT);
  for (int i = 0; i < 2; ++i) {
    const auto question = rig.expect<Question>();
    rig.engine->skip(question, question.random);
  }
  const auto batch = rig.expect<Batch>();
  CHECK(batch.rows == 3);
  CHECK(batch.skipped_rows == std::vector<std::int64_t>{1, 3});
  CHECK(grays(batch) == std::vector{10, 30, 50});
  CHECK(labels(batch) == std::vector<std::int64_t>{10, 30, 50});
}

TEST_CASE("a batch of which every sample is skipped has no rows", "[engine]") {
  Rig rig;
  rig.engine->submit(0, samples({10}));
  rig.script.fail(0, ENOENT);
  const auto question = rig.expect<Question>();
  rig.engine->skip(question, question.random);
  const auto batch = rig.expect<Batch>();
  CHECK(batch.rows == 0);
  CHECK(batch.fields.empty());
}

TEST_CASE("a sample that replaces another brings its label", "[engine]") {
  Rig rig;
  rig.engine->submit(0, samples({10, 20}));
  rig.script.finish(1, flat_jpeg(4, 4, 20));
  rig.script.fail(0, ENOENT);
  const auto question = rig.expect<Question>();
  rig.engine->answer(question, std::vector<std::byte>(12, std::byte{77}), question.random, 99);
  const auto batch = rig.expect<Batch>();
  CHECK(grays(batch) == std::vector{77, 20});
  CHECK(labels(batch) == std::vector<std::int64_t>{99, 20});
}

TEST_CASE("with streams of their own, samples depend on nothing that came before", "[engine]") {
  const auto flips = [](const std::vector<std::vector<int>>& batches) {
    EngineOptions options = make_options(8);
    options.own_streams = RandomRules();
    Rig rig(options, 0);
    std::vector<RandomStream> result;
    std::size_t read = 0;
    for (const auto& batch : batches) {
      std::vector<Sample> list;
      for (const int index : batch) {
        list.push_back({.path = "x.jpg", .random_key = {.seed = 4, .index = std::uint64_t(index)}});
      }
      rig.engine->submit(0, list);
      for (std::size_t i = 0; i < batch.size(); ++i) rig.script.fail(read++, ENOENT);
      for (std::size_t i = 0; i < batch.size(); ++i) {
        const auto question = rig.expect<Question>();
        result.push_back(question.random);
        rig.engine->skip(question, RandomStream(77));
      }
      rig.expect<Batch>();
    }
    return result;
  };
  const auto one = flips({{0, 1, 2}, {3}});
  const auto other = flips({{3, 2}, {1, 0}});
  for (std::size_t i = 0; i < 4; ++i) {
    CHECK(one[i].same_position(other[3 - i]));
    CHECK(one[i].same_position(RandomStream(SampleKey{.seed = 4, .index = i})));
  }
}

TEST_CASE("a failed sample ends its batch and the next one still comes", "[engine]") {
  Rig rig;
  rig.engine->submit(0, samples({10, 20, 30}));
  rig.engine->submit(0, samples({40}));
  rig.script.finish(3, flat_jpeg(4, 4, 40));
  rig.script.finish(0, flat_jpeg(4, 4, 10));
  rig.script.fail(1, ENOENT);
  const auto question = rig.expect<Question>();
  CHECK_THAT(question.reason, contains("open") && contains("No such file"));
  rig.engine->fail(question, question.random);
  const auto failed = rig.expect<Batch>();
  CHECK(failed.failed_row == std::int64_t{1});
  CHECK(failed.fields.empty());
  rig.script.finish(2, flat_jpeg(4, 4, 30));  // too late: its batch is gone
  const auto next = rig.expect<Batch>();
  CHECK(grays(next) == std::vector{40});
}

TEST_CASE("an answer of the wrong size or to no question is refused", "[engine]") {
  Rig rig;
  rig.engine->submit(0, samples({10}));
  rig.script.fail(0, EIO);
  auto question = rig.expect<Question>();
  const std::vector<std::byte> image(11);
  CHECK_THROWS_WITH(rig.engine->answer(question, image, question.random), contains("11 bytes"));
  question.row = 5;
  CHECK_THROWS_WITH(rig.engine->fail(question, question.random), contains("no open question"));
  question.batch = 9;
  CHECK_THROWS_WITH(rig.engine->fail(question, question.random), contains("no open question"));
}

TEST_CASE("an opaque batch is asked about as a whole", "[engine]") {
  Rig rig;
  rig.engine->submit_opaque(0, "odd labels");
  const auto question = rig.expect<Question>();
  CHECK(question.whole_batch);
  rig.engine->answer(question, {}, question.random);
  const auto batch = rig.expect<Batch>();
  CHECK(batch.rows == 0);
  CHECK(batch.fields.empty());
  CHECK_FALSE(batch.failed_row.has_value());
}

TEST_CASE("a rewound stream reads its batches again", "[engine]") {
  Rig rig;
  rig.engine->submit(0, samples({10}));
  rig.script.finish(0, flat_jpeg(4, 4, 10));
  rig.run_tasks();
  rig.engine->rewind(0, RandomStream(99));
  REQUIRE(rig.script.requests.size() == 2);
  CHECK(rig.script.requests[1].urgent);
  rig.expect<Engine::Timeout>();
  rig.script.finish(1, flat_jpeg(4, 4, 10));
  RandomStream expected(99);
  expected.rand();
  CHECK(rig.expect<Batch>().random_after.same_position(expected));
}

TEST_CASE("misuse of the engine is refused with the remedy", "[engine]") {
  Rig rig(1);
  CHECK_THROWS_WITH(rig.engine->next(0ms), contains("no batch in flight"));
  CHECK_THROWS_WITH(rig.engine->submit(3, samples({1})), contains("no random stream 3"));
  rig.engine->submit(0, samples({1}));
  CHECK_THROWS_WITH(rig.engine->submit(0, samples({1})), contains("take one with next()"));
  auto options = make_options(1);
  options.threads = 0;
  CHECK_THROWS_WITH(Engine(options, make_transform(), {RandomStream(1)}), contains("threads"));
}

TEST_CASE("stop wakes a waiting consumer", "[engine]") {
  Rig rig;
  rig.engine->submit(0, samples({1}));
  std::jthread stopper([&] { rig.engine->stop(); });
  try {
    rig.engine->next(std::chrono::milliseconds(kLong));
    FAIL("next() returned");
  } catch (const Error& error) {
    CHECK(error.code() == ErrorCode::kStopped);
  }
}

TEST_CASE("an engine can be dropped with reads, decodes and questions open", "[engine]") {
  auto rig = std::make_unique<Rig>();
  rig->engine->submit(0, samples({10, 20}));
  rig->engine->submit(0, samples({30}));
  rig->script.finish(0, flat_jpeg(4, 4, 10));
  rig->script.fail(2, EIO);
  rig->engine->stop();
  const auto tasks = rig->tasks;
  for (const auto& task : tasks) task(0);  // one that began just before the stop
  rig->engine.reset();
  SUCCEED();
}

std::string write(const test::TemporaryFolder& folder, const std::string& name,
                  const std::vector<std::byte>& bytes) {
  return folder.write(name, {reinterpret_cast<const char*>(bytes.data()), bytes.size()});
}

/// Everything that an epoch gave: grays and labels of each batch, or the row that failed.
struct Epoch {
  std::vector<std::vector<int>> batches;
  std::vector<std::uint32_t> next_words;  // of each batch's stream
  bool operator==(const Epoch&) const = default;
};

// Odd files are broken in one of three ways; the "oracle" computes some and gives up on others.
Epoch run_epoch(const std::vector<Sample>& files, int threads, bool use_tbb) {
  constexpr std::size_t kStreams = 3;
  auto options = make_options(2 * kStreams);
  options.threads = threads;
  options.read_budget_bytes = 2000;  // a few files: the budget works all the time
  Engine::Parts parts;
  parts.make_reader = [&](std::function<void(ReadResult)> on_done) {
    return make_pread_reader({.threads = 3, .read_budget_bytes = options.read_budget_bytes},
                             std::move(on_done));
  };
  parts.make_executor = [&] {
    return use_tbb ? make_executor(threads) : make_thread_executor(threads);
  };
  std::vector<RandomStream> streams;
  for (std::size_t i = 0; i < kStreams; ++i) streams.emplace_back(100 + i);
  Engine engine(options, make_transform(), streams, parts);

  Epoch epoch;
  std::size_t submitted = 0;
  const auto submit_one = [&] {
    constexpr std::size_t kRows = 5;
    if (submitted * kRows >= files.size()) return;
    const auto first = files.begin() + static_cast<std::ptrdiff_t>(submitted * kRows);
    const auto rows = std::min<std::ptrdiff_t>(kRows, files.end() - first);
    engine.submit(submitted++ % kStreams, {first, first + rows});
  };
  for (std::size_t i = 0; i < 2 * kStreams; ++i) submit_one();
  while (engine.in_flight() > 0) {
    auto event = engine.next(std::chrono::milliseconds(kLong));
    REQUIRE_FALSE(std::holds_alternative<Engine::Timeout>(event));
    if (auto* question = std::get_if<Question>(&event)) {
      RandomStream after = question->random;
      if (question->sample.index % 2 == 0) {
        engine.fail(*question, after);
      } else {
        after.skip(static_cast<std::uint64_t>(question->sample.index % 3));
        engine.answer(*question, std::vector<std::byte>(12, std::byte{250}), after);
      }
      continue;
    }
    auto& batch = std::get<Batch>(event);
    if (batch.failed_row) {
      epoch.batches.push_back({-1, static_cast<int>(*batch.failed_row)});
    } else {
      epoch.batches.push_back(grays(batch));
    }
    epoch.next_words.push_back(batch.random_after.next_word());
    submit_one();
  }
  return epoch;
}

#ifndef __SANITIZE_THREAD__  // Debian's oneTBB is not instrumented
TEST_CASE("worker numbers stay below workers(), with one thread too", "[engine]") {
  for (int round = 0; round < 30; ++round) {
    std::atomic<int> highest = 0;
    std::latch done(50);
    const auto executor = make_executor(1);
    for (int i = 0; i < 50; ++i) {
      executor->submit([&](int worker) {
        int seen = highest;
        while (worker > seen && !highest.compare_exchange_weak(seen, worker)) {
        }
        done.count_down();
      });
    }
    done.wait();
    CHECK(highest < executor->workers());
  }
}
#endif

TEST_CASE("the same batches come for 1, 2 and 8 threads, broken files among them", "[engine]") {
  const test::TemporaryFolder folder;
  std::mt19937 random(5);
  std::vector<Sample> files;
  for (int i = 0; i < 300; ++i) {
    const int width = 2 + static_cast<int>(random() % 40);
    const int height = 2 + static_cast<int>(random() % 40);
    auto file = flat_jpeg(width, height, i % 200);
    const auto kind = random() % 12;
    if (kind == 0) file.resize(file.size() / 2);                // doubtful at arrival
    if (kind == 1) file[file.size() - 3] = std::byte{0xAA};     // perhaps at decoding
    if (kind == 2) file.erase(file.end() - 4, file.end() - 2);  // too little data: a warning
    auto path = write(folder, std::to_string(i) + ".jpg", file);
    if (kind == 3) path += ".missing";
    files.push_back({.path = path, .label = i, .index = i});
  }
  const Epoch reference = run_epoch(files, 1, false);
  CHECK(reference.batches.size() == 60);
  CHECK(std::ranges::any_of(reference.batches, [](const auto& b) { return b[0] == -1; }));
  CHECK(run_epoch(files, 2, false) == reference);
  CHECK(run_epoch(files, 8, false) == reference);
#ifndef __SANITIZE_THREAD__  // Debian's oneTBB is not instrumented
  CHECK(run_epoch(files, 1, true) == reference);
  CHECK(run_epoch(files, 2, true) == reference);
  CHECK(run_epoch(files, 8, true) == reference);
#endif
}

TEST_CASE("of the decodes that are ready the oldest batch's largest file goes first", "[engine]") {
  Rig rig;
  rig.engine->submit(0, samples({10, 20, 30}));
  rig.engine->submit(0, samples({40}));
  std::vector<int> order;
  struct Logged final : ReadShare {
    Logged(std::vector<int>& log_in, int request_in) : log(log_in), request(request_in) {}
    ~Logged() override { log.push_back(request); }
    std::vector<int>& log;
    int request;
  };
  const std::vector<int> widths = {40, 9, 200, 400};
  for (const int request : {3, 1, 0, 2}) {
    const auto file = flat_jpeg(widths.at(static_cast<std::size_t>(request)), 90, request);
    Buffer memory(new std::byte[file.size()]);
    std::ranges::copy(file, memory.get());
    rig.script.on_done({rig.script.requests.at(static_cast<std::size_t>(request)).ticket,
                        ReadBuffer(memory, file.size(), std::make_unique<Logged>(order, request)),
                        0, ""});
  }
  CHECK(order.empty());
  rig.run_tasks();  // whichever task it is
  CHECK(order == std::vector{2, 0, 1, 3});
  CHECK(rig.script.ready == 0);
}

TEST_CASE("stats count what passed", "[engine]") {
  Rig rig;
  rig.engine->submit(0, samples({10, 20}));
  rig.script.finish(0, flat_jpeg(4, 4, 10));
  rig.script.fail(1, EIO);
  const auto question = rig.expect<Question>();
  rig.engine->answer(question, std::vector<std::byte>(12), question.random);
  rig.expect<Batch>();
  const auto stats = rig.engine->stats();
  CHECK(stats.reader == "scripted");
  CHECK(stats.batches == 1);
  CHECK(stats.questions == 1);
  REQUIRE(stats.stages.size() == 3);
  CHECK(stats.stages[1].name == "decode");
  CHECK(stats.stages[1].items == 1);
  CHECK(stats.stages[1].bytes == 2 * 2 * 3);  // the crop alone is decoded
  CHECK(stats.stages[2].bytes == 12);
}

}  // namespace
}  // namespace headrace
