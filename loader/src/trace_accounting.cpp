#include "trace_accounting.h"

#include <algorithm>
#include <functional>
#include <iterator>
#include <map>
#include <optional>
#include <utility>

#include "trace_intervals.h"

namespace headrace {
namespace {

constexpr double kKeptShare = 0.8;  // of the device events of the step before
constexpr std::int64_t kLongIdleNs = 1'000'000;

// Finds the call that launched a device event.
class Launches {
 public:
  explicit Launches(const std::vector<RuntimeCall>& calls) {
    for (const auto& call : calls) {
      if (call.correlation >= 0) begins_.emplace_back(call.correlation, call.span.begin_ns);
    }
    std::ranges::sort(begins_);  // of several calls with one correlation the first comes first
  }

  std::optional<std::int64_t> begin_ns(std::int64_t correlation) const {
    const auto at = std::ranges::lower_bound(begins_, std::pair{correlation, INT64_MIN});
    if (correlation < 0 || at == begins_.end() || at->first != correlation) return std::nullopt;
    return at->second;
  }

 private:
  std::vector<std::pair<std::int64_t, std::int64_t>> begins_;
};

// The device with the most work: a process may use several, and idle means one of them.
std::int64_t busiest_device(const std::vector<DeviceEvent>& events) {
  std::map<std::int64_t, std::int64_t> time_ns;
  for (const auto& event : events) time_ns[event.device] += event.span.end_ns - event.span.begin_ns;
  const auto most = std::ranges::max_element(time_ns, {}, [](const auto& d) { return d.second; });
  return most == time_ns.end() ? -1 : most->first;
}

HostMemory host_memory(std::string_view copy) {
  if (copy.find("Pageable") != std::string_view::npos) return HostMemory::kPageable;
  if (copy.find("Pinned") != std::string_view::npos) return HostMemory::kPinned;
  return HostMemory::kUnknown;  // ROCm says only Host
}

class Accounting {
 public:
  explicit Accounting(TraceRecord record) : record_(std::move(record)) {
    summary_.events = record_.events;
    summary_.host_events = record_.host_events;
    summary_.runtime_calls = static_cast<std::int64_t>(record_.runtime_calls.size());
    summary_.device_events = static_cast<std::int64_t>(record_.device_events.size());
    summary_.device = busiest_device(record_.device_events);
    std::erase_if(record_.device_events,
                  [this](const auto& event) { return event.device != summary_.device; });
  }

  TraceSummary result() {
    find_steps();
    for (const auto& step : summary_.steps) windows_.push_back(step.span);
    attribute_time();
    attribute_copies();
    collect_kernels();
    collect_counts();
    collect_memory();
    return std::move(summary_);
  }

 private:
  void find_steps();
  void drop_last_steps();
  void attribute_time();
  void attribute_copies();
  void collect_kernels();
  void collect_counts();
  void collect_memory();

  Intervals device_time(DeviceWork work) const {
    std::vector<TimeSpan> spans;
    for (const auto& event : record_.device_events) {
      if (event.work == work) spans.push_back(event.span);
    }
    return merged(std::move(spans));
  }

  Intervals call_time(std::initializer_list<RuntimeCallKind> kinds) const {
    std::vector<TimeSpan> spans;
    for (const auto& call : record_.runtime_calls) {
      if (std::ranges::find(kinds, call.kind) != kinds.end()) spans.push_back(call.span);
    }
    return merged(std::move(spans));
  }

  std::optional<std::size_t> step_at(std::int64_t time_ns) const {
    const auto after = std::ranges::upper_bound(windows_, time_ns, {}, &TimeSpan::begin_ns);
    if (after == windows_.begin() || std::prev(after)->end_ns <= time_ns) return std::nullopt;
    return static_cast<std::size_t>(after - windows_.begin() - 1);
  }

  // @param of_step  a member of TraceStep, or what gives one.
  void fill(const Intervals& set, auto&& of_step) {
    const auto times = time_within(set, windows_);
    for (std::size_t i = 0; i < times.size(); ++i)
      std::invoke(of_step, summary_.steps[i]) = times[i];
  }

  TraceRecord record_;
  TraceSummary summary_;
  std::vector<TimeSpan> windows_;  // the steps'
  Intervals compute_, communication_;
};

void Accounting::find_steps() {
  auto& steps = record_.steps;
  std::ranges::stable_sort(steps, {}, [](const HostStep& step) { return step.span.begin_ns; });
  const auto same = [](const HostStep& a, const HostStep& b) { return a.name == b.name; };
  steps.erase(std::unique(steps.begin(), steps.end(), same), steps.end());
  summary_.has_steps = !steps.empty();
  if (steps.empty()) steps.push_back({"", record_.extent});

  // The last device work of each step, by the time of its launch.
  std::vector<std::int64_t> device_end_ns(steps.size(), INT64_MIN);
  std::int64_t before_ns = INT64_MIN;
  summary_.steps.resize(steps.size());
  const Launches launches(record_.runtime_calls);
  for (const auto& event : record_.device_events) {
    const auto launch_ns = launches.begin_ns(event.correlation);
    if (!launch_ns) {
      ++summary_.unlinked_device_events;
      continue;
    }
    const auto after = std::ranges::upper_bound(
        steps, *launch_ns, {}, [](const HostStep& step) { return step.span.begin_ns; });
    if (after == steps.begin()) {
      before_ns = std::max(before_ns, event.span.end_ns);
      continue;
    }
    const auto index = static_cast<std::size_t>(after - steps.begin() - 1);
    if (*launch_ns > steps[index].span.end_ns) continue;
    ++summary_.steps[index].device_events;
    device_end_ns[index] = std::max(device_end_ns[index], event.span.end_ns);
  }
  for (std::size_t i = 0; i < steps.size(); ++i) {
    TimeSpan span = steps[i].span;
    span.begin_ns = std::max(span.begin_ns, before_ns);
    span.end_ns = std::max({span.begin_ns, span.end_ns, device_end_ns[i]});
    before_ns = span.end_ns;
    summary_.steps[i].name = std::move(steps[i].name);
    summary_.steps[i].span = span;
  }
  drop_last_steps();
}

// As torch-tb-profiler: what the profiler cut off says nothing about a step.
void Accounting::drop_last_steps() {
  auto& steps = summary_.steps;
  const std::size_t all = steps.size();
  if (std::ranges::any_of(steps, [](const auto& step) { return step.device_events > 0; })) {
    while (steps.back().device_events == 0) steps.pop_back();
    if (steps.size() > 1 && static_cast<double>(steps.back().device_events) <
                                kKeptShare * static_cast<double>(steps.end()[-2].device_events)) {
      steps.pop_back();
    }
  }
  summary_.dropped_steps = static_cast<std::int64_t>(all - steps.size());
}

void Accounting::attribute_time() {
  compute_ = device_time(DeviceWork::kCompute);
  communication_ = device_time(DeviceWork::kCommunication);
  const Intervals copies = device_time(DeviceWork::kCopy);
  const Intervals kernels = united(compute_, communication_);
  const Intervals loader = merged(record_.loader_waits);
  const Intervals allocation = call_time({RuntimeCallKind::kAllocate, RuntimeCallKind::kFree});

  Intervals idle = subtracted(merged(windows_), united(kernels, copies));
  const auto take_idle = [&idle](const Intervals& reason) {
    Intervals taken = intersected(idle, reason);
    idle = subtracted(idle, reason);
    return taken;
  };
  const auto store = [this](TimeKind kind, const Intervals& set) {
    fill(set, [kind](TraceStep& step) -> std::int64_t& {
      return step.time_ns[static_cast<std::size_t>(kind)];
    });
  };
  store(TimeKind::kCompute, compute_);
  store(TimeKind::kCommunication, subtracted(communication_, compute_));
  store(TimeKind::kCopy, subtracted(copies, kernels));
  store(TimeKind::kLoader, take_idle(loader));
  store(TimeKind::kAllocation, take_idle(allocation));
  // Without operators only the time inside runtime calls is known to be the host's.
  Intervals host = idle;
  if (record_.operators == 0) {
    std::vector<TimeSpan> calls;
    for (const auto& call : record_.runtime_calls) calls.push_back(call.span);
    host = intersected(idle, merged(std::move(calls)));
  }
  store(TimeKind::kHost, host);
  store(TimeKind::kUnknown, subtracted(idle, host));

  // The device ran dry while the host waited for it: the host had stopped launching.
  const Intervals syncs = call_time({RuntimeCallKind::kSync});
  Intervals after_sync;
  auto sync = syncs.begin();
  for (const auto& stretch : host) {
    while (sync != syncs.end() && sync->end_ns < stretch.begin_ns) ++sync;
    if (sync != syncs.end() && sync->begin_ns <= stretch.begin_ns) after_sync.push_back(stretch);
  }
  // Launching leaves short gaps: in a long one the host does something else.
  Intervals long_stretches;
  std::ranges::copy_if(host, std::back_inserter(long_stretches), [](const TimeSpan& stretch) {
    return stretch.end_ns - stretch.begin_ns >= kLongIdleNs;
  });
  fill(long_stretches, &TraceStep::long_idle_ns);
  fill(after_sync, &TraceStep::sync_idle_ns);
  fill(loader, &TraceStep::loader_wait_ns);
  fill(communication_, &TraceStep::communication_ns);
  summary_.loader_waits = loader;
  summary_.loader_name = record_.loader_name;
}

void Accounting::attribute_copies() {
  std::array<std::vector<TimeSpan>, kHostMemories> spans;
  for (const auto& event : record_.device_events) {
    const std::string& name = record_.names[event.name];
    if (event.work != DeviceWork::kCopy || name.find("HtoD") == std::string::npos) continue;
    spans[static_cast<std::size_t>(host_memory(name))].push_back(event.span);
  }
  const Intervals kernels = united(compute_, communication_);
  for (std::size_t kind = 0; kind < kHostMemories; ++kind) {
    const Intervals copies = merged(std::move(spans[kind]));
    fill(copies, [kind](TraceStep& step) -> std::int64_t& { return step.to_device_ns[kind]; });
    fill(subtracted(copies, kernels),
         [kind](TraceStep& step) -> std::int64_t& { return step.to_device_exposed_ns[kind]; });
  }
}

void Accounting::collect_kernels() {
  std::vector<TraceKernel> by_name(record_.names.size());
  std::vector<std::int64_t> compute_ns;
  for (const auto& event : record_.device_events) {
    const auto step = step_at(event.span.begin_ns);
    if (!step) continue;
    const std::int64_t duration_ns = event.span.end_ns - event.span.begin_ns;
    TraceKernel& kernel = by_name[event.name];
    kernel.communication = event.work == DeviceWork::kCommunication;
    kernel.copy = event.work == DeviceWork::kCopy;
    ++kernel.calls;
    kernel.time_ns += duration_ns;
    kernel.bytes += std::max<std::int64_t>(0, event.bytes);
    if (duration_ns >= kernel.longest.end_ns - kernel.longest.begin_ns) {
      kernel.longest = event.span;
    }
    if (event.work == DeviceWork::kCompute) compute_ns.push_back(duration_ns);
    if (kernel.communication) {
      summary_.collectives.push_back({.name = record_.names[event.name],
                                      .span = event.span,
                                      .step = *step,
                                      .bytes = event.bytes,
                                      .group = record_.names[event.group]});
    }
  }
  for (std::size_t id = 0; id < by_name.size(); ++id) {
    if (by_name[id].calls == 0) continue;
    by_name[id].name = record_.names[id];
    summary_.kernels.push_back(std::move(by_name[id]));
  }
  std::ranges::stable_sort(summary_.kernels, std::greater{}, &TraceKernel::time_ns);
  std::ranges::stable_sort(summary_.collectives, {},
                           [](const TraceCollective& c) { return c.span.begin_ns; });
  summary_.launches = static_cast<std::int64_t>(compute_ns.size());
  if (!compute_ns.empty()) {
    const auto middle = compute_ns.begin() + static_cast<std::ptrdiff_t>(compute_ns.size() / 2);
    std::ranges::nth_element(compute_ns, middle);
    summary_.median_kernel_ns = *middle;
  }
}

void Accounting::collect_counts() {
  for (const auto& call : record_.runtime_calls) {
    if (!step_at(call.span.begin_ns)) continue;
    summary_.syncs += call.kind == RuntimeCallKind::kSync;
    summary_.allocations += call.kind == RuntimeCallKind::kAllocate;
    summary_.frees += call.kind == RuntimeCallKind::kFree;
    summary_.graph_launches += call.kind == RuntimeCallKind::kGraphLaunch;
  }
  const auto within = [this](const std::vector<std::int64_t>& times) {
    return std::ranges::count_if(times, [this](auto time) { return step_at(time).has_value(); });
  };
  summary_.items = within(record_.items_ns);
  summary_.compiled_regions = within(record_.compiled_regions_ns);
}

void Accounting::collect_memory() {
  std::map<std::int64_t, TraceMemory> devices;
  for (const auto& sample : record_.memory) {
    const auto [at, is_new] = devices.try_emplace(sample.device);
    TraceMemory& memory = at->second;
    if (is_new) memory.lowest_allocated = sample.allocated;
    if (sample.allocated > memory.peak_allocated) {
      memory.peak_allocated = sample.allocated;
      memory.peak_ns = sample.time_ns;
    }
    memory.peak_reserved = std::max(memory.peak_reserved, sample.reserved);
    memory.lowest_allocated = std::min(memory.lowest_allocated, sample.allocated);
  }
  for (const auto& [device, count] : record_.out_of_memory) devices[device].out_of_memory = count;
  for (auto& [device, memory] : devices) {
    memory.device = device;
    summary_.memory.push_back(memory);
  }
}

}  // namespace

TraceSummary account(TraceRecord record) { return Accounting(std::move(record)).result(); }

}  // namespace headrace
