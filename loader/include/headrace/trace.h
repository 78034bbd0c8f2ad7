// Reads a trace of torch.profiler and accounts for the time of its training steps.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "headrace/api.h"

namespace HEADRACE_API headrace {

/// What the device was doing, in the order in which a moment is attributed: the first that applies.
/// The kinds of a step add up to its whole time.
enum class TimeKind : std::size_t {
  kCompute,        ///< a kernel that is no communication ran
  kCommunication,  ///< only NCCL's or RCCL's kernels ran: communication that compute didn't hide
  kCopy,           ///< only copies and fills ran
  kLoader,         ///< idle, and the host waited for the data loader
  kAllocation,     ///< idle, and the host was in cudaMalloc, cudaFree or their like
  kHost,           ///< idle, and the host did something else
  kUnknown,        ///< idle, and the trace has nothing about the host
};
constexpr std::size_t kTimeKinds = 7;

/// Where a copy's bytes lay in the host's memory.
enum class HostMemory : std::size_t { kPageable, kPinned, kUnknown };
constexpr std::size_t kHostMemories = 3;

/// Half-open, in nanoseconds on the trace's own clock.
struct TimeSpan {
  std::int64_t begin_ns = 0;
  std::int64_t end_ns = 0;
};

/// One training step: from ProfilerStep#N's begin, or the end of the step before when that is
/// later, to the end of the last device work that it launched.
struct TraceStep {
  std::string name;
  TimeSpan span;
  std::array<std::int64_t, kTimeKinds> time_ns{};
  std::int64_t device_events = 0;  ///< launched in it
  // The following overlap with one another and with time_ns.
  std::int64_t loader_wait_ns = 0;    ///< the host waited for the loader, device idle or not
  std::int64_t communication_ns = 0;  ///< communication kernels, hidden or not
  std::int64_t sync_idle_ns = 0;      ///< of kHost: idle stretches that began in a host's sync
  std::int64_t long_idle_ns = 0;      ///< of kHost: idle stretches of a millisecond and more
  std::array<std::int64_t, kHostMemories> to_device_ns{};          ///< host-to-device copies
  std::array<std::int64_t, kHostMemories> to_device_exposed_ns{};  ///< of these, not hidden
};

/// All calls of one kernel, or copies of one kind, within the steps.
struct TraceKernel {
  std::string name;
  bool communication = false;
  bool copy = false;  ///< a copy or fill
  std::int64_t calls = 0;
  std::int64_t time_ns = 0;  ///< durations summed
  std::int64_t bytes = 0;    ///< of copies, where recorded
  TimeSpan longest;
};

/// One communication kernel within the steps.
struct TraceCollective {
  std::string name;
  TimeSpan span;
  std::size_t step = 0;     ///< index into `steps`
  std::int64_t bytes = -1;  ///< of the message; -1: not recorded
  std::string group;        ///< process group's name, empty if not recorded
};

/// Bytes of torch's caching allocator on one device.
struct TraceMemory {
  std::int64_t device = 0;
  std::int64_t peak_allocated = 0;
  std::int64_t peak_reserved = 0;
  std::int64_t peak_ns = 0;           ///< when `peak_allocated` was reached
  std::int64_t lowest_allocated = 0;  ///< what stays between the steps
  std::int64_t out_of_memory = 0;     ///< events named [OutOfMemory]
};

/// What is left of a trace: of the size of its device events, not of its file.
struct TraceSummary {
  /// Every member of the top-level object but the events: a JSON object.
  std::string metadata_json;
  /// False when there were no steps: `steps` is then one, the whole of the recorded time.
  bool has_steps = false;
  /// Last steps that were left out, for holding fewer than 0.8 of the device events of the one
  /// before.
  std::int64_t dropped_steps = 0;
  std::vector<TraceStep> steps;
  std::vector<TraceKernel> kernels;  ///< longest total first
  std::vector<TraceCollective> collectives;
  std::vector<TraceMemory> memory;
  std::vector<TimeSpan> loader_waits;  ///< merged
  std::string loader_name;             ///< of the event of the first: it names the iterator's class
  std::int64_t device = -1;            ///< the device with the most work, -1 without any
  std::int64_t median_kernel_ns = 0;   ///< compute kernels within the steps
  // Counts within the steps.
  std::int64_t launches = 0;  ///< of compute kernels
  std::int64_t syncs = 0;     ///< calls that wait for a stream, an event or the device
  std::int64_t items = 0;     ///< aten::item and its like
  std::int64_t allocations = 0;
  std::int64_t frees = 0;
  std::int64_t graph_launches = 0;
  std::int64_t compiled_regions = 0;  ///< torch.compile's
  // Counts of the whole file.
  std::int64_t events = 0;
  std::int64_t host_events = 0;
  std::int64_t runtime_calls = 0;
  std::int64_t device_events = 0;
  std::int64_t unlinked_device_events = 0;    ///< without the call that launched them
  std::int64_t control_characters = 0;        ///< inside strings: read as spaces
  std::int64_t first_control_character = -1;  ///< its byte
};

/// Takes a trace in pieces of any size; needs memory for one event and for what it keeps of them.
/// Not for several threads at once.
class TraceReader {
 public:
  /// @param path for error messages only.
  explicit TraceReader(const std::string& path);
  ~TraceReader();
  TraceReader(const TraceReader&) = delete;
  TraceReader& operator=(const TraceReader&) = delete;

  /// The next bytes of the uncompressed JSON text, borrowed for the call.
  /// @throws Error{kCorruptTrace}: not JSON, or not a trace; the message names the byte.
  void feed(std::span<const char> bytes);
  /// After the last byte; only once.
  /// @throws Error{kCorruptTrace}: the text ended too early, or holds no trace events.
  TraceSummary finish();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
