// What the engine counts for its stats.
#pragma once

#include <atomic>
#include <chrono>
#include <cstdint>
#include <string>

#include "headrace/engine.h"
#include "reader.h"

namespace headrace {

/// Added to by all worker threads.
struct StageCounter {
  using Clock = std::chrono::steady_clock;

  std::atomic<std::uint64_t> items{0};
  std::atomic<std::uint64_t> bytes{0};
  std::atomic<std::uint64_t> busy_ns{0};

  void add(std::uint64_t out_bytes, Clock::time_point start) noexcept;
  EngineStats::Stage read(std::string name) const;
};

/// Guarded by the engine's lock, but for the stages.
struct EngineCounters {
  using Clock = StageCounter::Clock;

  StageCounter decode;
  StageCounter transform;
  Clock::time_point begun = Clock::now();
  std::uint64_t batches = 0;
  std::uint64_t consumer_wait_ns = 0;
  std::uint64_t wall_ns = 0;
  std::uint64_t ready_batches_sum = 0;
  std::uint64_t questions = 0;

  /// next() has waited since `start`.
  void add_wait(Clock::time_point start) noexcept;
  /// All but what only the engine knows: its threads, and its streams' rollbacks.
  EngineStats read(const ReaderStats& reader) const;
};

}  // namespace headrace
