// What is kept of a trace's events until its last one has come.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "headrace/trace.h"
#include "trace_event.h"

namespace headrace {

enum class DeviceWork : std::uint8_t { kCompute, kCommunication, kCopy };

enum class RuntimeCallKind : std::uint8_t {
  kLaunch,
  kGraphLaunch,
  kAllocate,
  kFree,
  kSync,  ///< the host waits for the device
  kOther,
};

struct DeviceEvent {
  TimeSpan span;
  std::int64_t correlation;
  std::int64_t bytes;
  std::uint32_t name;   // index into TraceRecord::names
  std::uint32_t group;  // of a collective: likewise
  std::int16_t device;
  DeviceWork work;
};

struct RuntimeCall {
  TimeSpan span;
  std::int64_t correlation;
  RuntimeCallKind kind;
};

struct HostStep {
  std::string name;
  TimeSpan span;
};

struct MemorySample {
  std::int64_t time_ns;
  std::int64_t device;
  std::int64_t allocated;
  std::int64_t reserved;
};

/// Events by what they say, each in the order of the file.
class TraceRecord {
 public:
  void add(const TraceEvent& event);

  std::vector<DeviceEvent> device_events;
  std::vector<RuntimeCall> runtime_calls;
  std::vector<HostStep> steps;
  std::vector<TimeSpan> loader_waits;
  std::string loader_name;
  std::vector<std::int64_t> items_ns;             // when aten::item and its like began
  std::vector<std::int64_t> compiled_regions_ns;  // when code of torch.compile began
  std::vector<MemorySample> memory;
  std::unordered_map<std::int64_t, std::int64_t> out_of_memory;  // by device
  std::vector<std::string> names;
  TimeSpan extent{INT64_MAX, INT64_MIN};  // of all host and device work
  std::int64_t events = 0;
  std::int64_t host_events = 0;  // operators, annotations, Python functions, runtime calls
  std::int64_t operators = 0;    // of these, all but runtime calls and steps

 private:
  void add_device(const TraceEvent& event, DeviceWork work);
  void add_runtime(const TraceEvent& event);
  void add_host(const TraceEvent& event);
  void add_memory(const TraceEvent& event);
  std::uint32_t intern(std::string_view name);

  std::unordered_map<std::string, std::uint32_t> ids_;
};

}  // namespace headrace
