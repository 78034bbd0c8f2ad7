// What reading makes of an epoch, by reader, and whether adjusting its depth pays:
//   bench_reading FOLDER [ROUNDS [DELAY_MS [THREADS [BATCH_SIZE]]]]
//
// FOLDER is one of class folders. Each round runs an epoch with each way of reading in turn, the
// files thrown out of the page cache before. DELAY_MS makes a slow file system of a fast one: so
// long every open takes longer (with pread; a ring's calls cannot be put off from here).
// It checks first that every way gives the same batches.
#include <fcntl.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <thread>
#include <utility>
#include <variant>
#include <vector>

#include "engine_parts.h"
#include "headrace/engine.h"
#include "headrace/error.h"
#include "headrace/threads.h"
#include "headrace/version.h"
#include "pread_reader.h"
#include "uring_reader.h"

namespace {

using namespace headrace;
using Clock = std::chrono::steady_clock;

constexpr std::size_t kBudget = std::size_t{64} << 20;
constexpr std::size_t kInFlight = 4;
constexpr const char* kRecipe = R"({"headrace": 1, "ops": [
    {"op": "random_resized_crop", "size": [224, 224]}, {"op": "random_horizontal_flip"},
    {"op": "to_tensor"},
    {"op": "normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}]})";

struct Way {
  const char* name;
  std::function<std::unique_ptr<Reader>(OnDone)> make_reader;
  std::vector<double> images_per_s{};
  std::vector<double> cpu_s{};
  std::vector<double> first_batch_ms{};
  int depth = 0;
};

struct Settings {
  std::vector<Sample> samples;
  int threads;
  std::size_t batch_size;
};

double cpu_seconds() {
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  const auto seconds = [](const timeval& time) {
    return static_cast<double>(time.tv_sec) + 1e-6 * static_cast<double>(time.tv_usec);
  };
  return seconds(usage.ru_utime) + seconds(usage.ru_stime);
}

double seconds_since(Clock::time_point start) {
  return std::chrono::duration<double>(Clock::now() - start).count();
}

void forget(const std::vector<Sample>& samples) {
  for (const Sample& sample : samples) {
    const int file = open(sample.path.c_str(), O_RDONLY | O_CLOEXEC);
    if (file < 0) continue;
    posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED);
    close(file);
  }
}

/// @returns the sum of the batches' bytes.
std::uint64_t run_epoch(Way& way, const Settings& settings) {
  forget(settings.samples);
  EngineOptions options;
  options.threads = settings.threads;
  options.max_batches_in_flight = kInFlight;
  options.pool = std::make_shared<BufferPool>(make_host_allocator(), 2 * kInFlight);
  Engine::Parts parts = Engine::Parts::real(options);
  parts.make_reader = way.make_reader;
  const double cpu_before = cpu_seconds();
  const auto start = Clock::now();
  Engine engine(options, Transform::from_json(kRecipe), {RandomStream(1)}, parts);

  std::uint64_t sum = 0;
  auto next = settings.samples.begin();
  while (next != settings.samples.end() || engine.in_flight() > 0) {
    while (next != settings.samples.end() && engine.in_flight() < kInFlight) {
      const auto left = static_cast<std::size_t>(settings.samples.end() - next);
      const auto count = static_cast<std::ptrdiff_t>(std::min(settings.batch_size, left));
      engine.submit(0, {next, next + count});
      next += count;
    }
    const auto event = engine.next(std::chrono::seconds(10));
    if (const auto* question = std::get_if<Question>(&event)) {
      engine.skip(*question, question->random);
    } else if (const auto* batch = std::get_if<Batch>(&event)) {
      if (batch->id == 0) way.first_batch_ms.push_back(1e3 * seconds_since(start));
      if (batch->fields.empty()) continue;
      for (const std::byte byte : std::as_bytes(batch->values<float>("image"))) {
        sum += static_cast<std::uint64_t>(byte);
      }
    }
  }
  way.images_per_s.push_back(static_cast<double>(settings.samples.size()) / seconds_since(start));
  way.cpu_s.push_back(cpu_seconds() - cpu_before);
  way.depth = engine.stats().read_depth;
  return sum;
}

double median(std::vector<double> values) {
  std::ranges::sort(values);
  return values[values.size() / 2];
}

FileSystem slow_files(std::chrono::microseconds delay) {
  FileSystem files = FileSystem::real();
  files.open = [open = files.open, delay](const char* path, int flags) {
    if (delay.count() > 0) std::this_thread::sleep_for(delay);
    return open(path, flags);
  };
  return files;
}

int run(int argc, char** argv) {
  if (argc < 2) {
    std::fputs("usage: bench_reading FOLDER [ROUNDS [DELAY_MS [THREADS [BATCH_SIZE]]]]\n", stderr);
    return 2;
  }
  const auto number = [&](int index, double otherwise) {
    return argc > index ? std::atof(argv[index]) : otherwise;
  };
  const int rounds = static_cast<int>(number(2, 5));
  const double delay_ms = number(3, 0);
  Settings settings{.samples = {},
                    .threads = static_cast<int>(number(4, default_threads())),
                    .batch_size = static_cast<std::size_t>(number(5, 32))};
  const ImageFolderSource source(argv[1]);
  for (std::int64_t i = 0; i < source.size(); ++i) settings.samples.push_back(source.sample(i));
  std::uint32_t state = 1;  // in any order, but the same everywhere
  for (std::size_t i = settings.samples.size(); i > 1; --i) {
    state = state * 1664525u + 1013904223u;
    std::swap(settings.samples[i - 1], settings.samples[state % i]);
  }

  const auto files = slow_files(std::chrono::microseconds(static_cast<int>(1e3 * delay_ms)));
  const auto pread = [&files](int threads, int most_threads) {
    return [&files, threads, most_threads](OnDone on_done) {
      return make_pread_reader(
          {.threads = threads, .most_threads = most_threads, .read_budget_bytes = kBudget},
          std::move(on_done), files);
    };
  };
  const auto uring = [](int depth, int most_depth) {
    return [depth, most_depth](OnDone on_done) {
      return make_uring_reader(
          {.depth = depth, .most_depth = most_depth, .read_budget_bytes = kBudget},
          std::move(on_done));
    };
  };
  std::vector<Way> ways = {{"pread, 4 threads", pread(4, 4)},
                           {"pread, 16 threads", pread(16, 16)},
                           {"pread, 4 to 16 threads", pread(4, 16)}};
  if (delay_ms == 0) {
    ways.push_back({"io_uring, 16 in flight", uring(16, 16)});
    ways.push_back({"io_uring, 16 to 64", uring(16, 64)});
  }

  const std::uint64_t expected = run_epoch(ways[0], settings);
  for (Way& way : ways) {
    if (run_epoch(way, settings) != expected) {
      std::fprintf(stderr, "%s gives other batches\n", way.name);
      return 1;
    }
    way = {way.name, std::move(way.make_reader)};
  }
  for (int round = 0; round < rounds; ++round) {
    for (Way& way : ways) run_epoch(way, settings);
  }

  std::printf("%-24s %10s %22s %12s %15s %6s\n", "median of an epoch", "images/s",
              "slowest-fastest", "CPU s", "first batch ms", "depth");
  for (const Way& way : ways) {
    const auto [slowest, fastest] = std::ranges::minmax(way.images_per_s);
    std::printf("%-24s %10.1f %10.1f-%-11.1f %12.3f %15.1f %6d\n", way.name,
                median(way.images_per_s), slowest, fastest, median(way.cpu_s),
                median(way.first_batch_ms), way.depth);
  }
  std::printf(
      "{\"bench\": \"reading\", \"headrace\": \"%s\", \"folder\": \"%s\", \"images\": %zu, "
      "\"rounds\": %d, \"delay_ms\": %g, \"threads\": %d, \"batch_size\": %zu, \"cache\": "
      "\"cold\"}\n",
      version(), argv[1], settings.samples.size(), rounds, delay_ms, settings.threads,
      settings.batch_size);
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  try {
    return run(argc, argv);
  } catch (const std::exception& error) {
    std::fprintf(stderr, "%s\n", error.what());
    return 1;
  }
}
