#include <memory>
#include <span>

#include "bind.h"
#include "buffers.h"
#include "headrace/trace.h"

namespace py = pybind11;

using headrace::PinnedBuffer;
using headrace::TraceReader;
using headrace::TraceSummary;

namespace {

py::tuple to_python(const headrace::TimeSpan& span) {
  return py::make_tuple(span.begin_ns, span.end_ns);
}

template <typename Array>
py::tuple numbers(const Array& values) {
  py::tuple result(values.size());
  for (std::size_t i = 0; i < values.size(); ++i) result[i] = py::int_(values[i]);
  return result;
}

template <typename Values>
py::list listed(const Values& values, auto&& convert) {
  py::list result;
  for (const auto& value : values) result.append(convert(value));
  return result;
}

py::dict to_python(const headrace::TraceStep& step) {
  using py::literals::operator""_a;
  return py::dict("name"_a = to_python_path(step.name), "span_ns"_a = to_python(step.span),
                  "time_ns"_a = numbers(step.time_ns), "device_events"_a = step.device_events,
                  "loader_wait_ns"_a = step.loader_wait_ns,
                  "communication_ns"_a = step.communication_ns,
                  "sync_idle_ns"_a = step.sync_idle_ns, "long_idle_ns"_a = step.long_idle_ns,
                  "to_device_ns"_a = numbers(step.to_device_ns),
                  "to_device_exposed_ns"_a = numbers(step.to_device_exposed_ns));
}

py::dict to_python(const headrace::TraceKernel& kernel) {
  using py::literals::operator""_a;
  return py::dict("name"_a = to_python_path(kernel.name), "communication"_a = kernel.communication,
                  "copy"_a = kernel.copy, "calls"_a = kernel.calls, "time_ns"_a = kernel.time_ns,
                  "bytes"_a = kernel.bytes, "longest_ns"_a = to_python(kernel.longest));
}

py::dict to_python(const headrace::TraceCollective& collective) {
  using py::literals::operator""_a;
  return py::dict("name"_a = to_python_path(collective.name),
                  "span_ns"_a = to_python(collective.span), "step"_a = collective.step,
                  "bytes"_a = collective.bytes, "group"_a = to_python_path(collective.group));
}

py::dict to_python(const headrace::TraceMemory& memory) {
  using py::literals::operator""_a;
  return py::dict("device"_a = memory.device, "peak_allocated"_a = memory.peak_allocated,
                  "peak_reserved"_a = memory.peak_reserved, "peak_ns"_a = memory.peak_ns,
                  "lowest_allocated"_a = memory.lowest_allocated,
                  "out_of_memory"_a = memory.out_of_memory);
}

py::dict to_python(const TraceSummary& summary) {
  using py::literals::operator""_a;
  const auto convert = [](const auto& value) { return to_python(value); };
  return py::dict(
      "metadata_json"_a = to_python_path(summary.metadata_json), "has_steps"_a = summary.has_steps,
      "dropped_steps"_a = summary.dropped_steps, "steps"_a = listed(summary.steps, convert),
      "kernels"_a = listed(summary.kernels, convert),
      "collectives"_a = listed(summary.collectives, convert),
      "memory"_a = listed(summary.memory, convert),
      "loader_waits_ns"_a = listed(summary.loader_waits, convert),
      "loader_name"_a = to_python_path(summary.loader_name), "device"_a = summary.device,
      "median_kernel_ns"_a = summary.median_kernel_ns, "launches"_a = summary.launches,
      "syncs"_a = summary.syncs, "items"_a = summary.items, "allocations"_a = summary.allocations,
      "frees"_a = summary.frees, "graph_launches"_a = summary.graph_launches,
      "compiled_regions"_a = summary.compiled_regions, "events"_a = summary.events,
      "host_events"_a = summary.host_events, "runtime_calls"_a = summary.runtime_calls,
      "device_events"_a = summary.device_events,
      "unlinked_device_events"_a = summary.unlinked_device_events,
      "control_characters"_a = summary.control_characters,
      "first_control_character"_a = summary.first_control_character);
}

}  // namespace

void bind_trace(py::module_& module) {
  py::class_<TraceReader>(module, "TraceReader",
                          R"(Reads a torch.profiler trace piece by piece; see headrace/trace.h.)")
      .def(py::init([](const py::object& path) {
             return std::make_unique<TraceReader>(from_python_path(path));
           }),
           py::arg("path"))
      .def(
          "feed",
          [](TraceReader& self, const py::buffer& bytes) {
            const PinnedBuffer pinned(bytes);
            const auto view = pinned.bytes();
            const py::gil_scoped_release unlocked;
            self.feed({reinterpret_cast<const char*>(view.data()), view.size()});
          },
          py::arg("bytes"),
          R"(Takes the next bytes of the uncompressed JSON text.

Raises:
    Error: not a trace; the message names the byte.)")
      .def(
          "finish",
          [](TraceReader& self) {
            TraceSummary summary;
            {
              const py::gil_scoped_release unlocked;
              summary = self.finish();
            }
            return to_python(summary);
          },
          R"(After the last byte, once.

Returns:
    The members of headrace::TraceSummary, as a dict; times in nanoseconds.

Raises:
    Error: the text ended too early, or holds no trace events.)");
}
