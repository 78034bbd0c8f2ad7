// An engine whose reads and tasks happen when the test says.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "engine_parts.h"
#include "executor.h"
#include "flat_jpeg.h"
#include "headrace/engine.h"
#include "reader.h"
#include "support.h"

namespace headrace::test {

// Flips are random, so that streams move; crops make all sizes equal.
inline Transform make_transform() {
  return Transform::from_json(R"({"headrace": 1, "ops": [
      {"op": "center_crop", "size": [2, 2]},
      {"op": "random_horizontal_flip", "p": 0.5},
      {"op": "pil_to_tensor"}]})");
}

inline EngineOptions make_options(std::size_t max_batches_in_flight) {
  EngineOptions options;
  options.max_batches_in_flight = max_batches_in_flight;
  options.pool = std::make_shared<BufferPool>(make_host_allocator(), 8);
  return options;
}

/// A reader that answers when, in which order and with what the test says.
class ScriptedReader final : public Reader {
 public:
  struct Request {
    std::uint64_t ticket;
    Sample sample;
    bool urgent;
  };
  struct Script {
    std::function<void(ReadResult)> on_done;
    std::vector<Request> requests;
    std::size_t ready = 0;  // as the engine said last

    void finish(std::size_t request, const std::vector<std::byte>& file) {
      Buffer memory(new std::byte[file.size()]);
      std::ranges::copy(file, memory.get());
      on_done({requests.at(request).ticket, ReadBuffer(memory, file.size(), nullptr), 0, ""});
    }
    void fail(std::size_t request, int error) {
      on_done({requests.at(request).ticket, ReadBuffer(), error, "open"});
    }
  };

  explicit ScriptedReader(Script& script) : script_(script) {}
  void submit(std::uint64_t ticket, const Sample& sample, bool urgent) override {
    script_.requests.push_back({ticket, sample, urgent});
  }
  void decode_began(std::size_t ready) noexcept override { script_.ready = ready; }
  void set_budget(std::size_t) noexcept override {}
  ReaderStats stats() const override {
    ReaderStats stats;
    stats.name = "scripted";
    return stats;
  }

 private:
  Script& script_;
};

/// An executor that runs its tasks when the test says.
class ManualExecutor final : public Executor {
 public:
  explicit ManualExecutor(std::vector<Task>& tasks) : tasks_(tasks) {}
  void submit(Task task) override { tasks_.push_back(std::move(task)); }
  int workers() const noexcept override { return 1; }

 private:
  std::vector<Task>& tasks_;
};

/// An engine over both, with the test as its clockwork.
struct Rig {
  explicit Rig(std::size_t max_batches_in_flight = 4, std::size_t streams = 1)
      : Rig(make_options(max_batches_in_flight), streams) {}
  Rig(const EngineOptions& options, std::size_t streams) {
    Engine::Parts parts;
    parts.make_reader = [this](std::function<void(ReadResult)> on_done) {
      script.on_done = std::move(on_done);
      return std::make_unique<ScriptedReader>(script);
    };
    parts.make_executor = [this] { return std::make_unique<ManualExecutor>(tasks); };
    engine = std::make_unique<Engine>(options, make_transform(),
                                      std::vector<RandomStream>(streams, RandomStream(1)), parts);
  }

  void run_tasks() {
    while (!tasks.empty()) {
      const auto task = tasks.back();  // the newest first: order must not matter
      tasks.pop_back();
      task(0);
    }
  }

  template <typename T>
  T expect() {
    run_tasks();
    Engine::Event event = engine->next(std::chrono::milliseconds(0));
    REQUIRE(std::holds_alternative<T>(event));
    return std::get<T>(std::move(event));
  }

  ScriptedReader::Script script;
  std::vector<Executor::Task> tasks;
  std::unique_ptr<Engine> engine;
};

}  // namespace headrace::test
