#include "engine_counters.h"

#include <utility>

namespace headrace {
namespace {

std::uint64_t nanoseconds_since(StageCounter::Clock::time_point start) noexcept {
  const auto passed = StageCounter::Clock::now() - start;
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
}

}  // namespace

void StageCounter::add(std::uint64_t out_bytes, Clock::time_point start) noexcept {
  items.fetch_add(1, std::memory_order_relaxed);
  bytes.fetch_add(out_bytes, std::memory_order_relaxed);
  busy_ns.fetch_add(nanoseconds_since(start), std::memory_order_relaxed);
}

EngineStats::Stage StageCounter::read(std::string name) const {
  return {.name = std::move(name), .items = items, .bytes = bytes, .busy_ns = busy_ns};
}

void EngineCounters::add_wait(Clock::time_point start) noexcept {
  consumer_wait_ns += nanoseconds_since(start);
  wall_ns = nanoseconds_since(begun);
}

EngineStats EngineCounters::read(const ReaderStats& reader) const {
  return {.reader = std::string(reader.name),
          .reader_note = reader.note,
          .read_depth = reader.depth,
          .read_ahead_bytes = reader.ahead_bytes,
          .stages = {{.name = "read",
                      .items = reader.reads,
                      .bytes = reader.bytes,
                      .busy_ns = reader.busy_ns,
                      .waiting_ns = reader.wait_budget_ns},
                     decode.read("decode"),
                     transform.read("transform")},
          .batches = batches,
          .consumer_wait_ns = consumer_wait_ns,
          .wall_ns = wall_ns,
          .ready_batches_sum = ready_batches_sum,
          .questions = questions};
}

}  // namespace headrace
