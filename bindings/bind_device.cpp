#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <memory>
#include <optional>
#include <utility>
#include <vector>

#include "bind.h"
#include "gil.h"
#include "headrace/device.h"
#include "headrace/error.h"

namespace py = pybind11;

namespace {

using headrace::Batch;
using headrace::DeviceAddress;
using headrace::DeviceCopier;
using headrace::DeviceCopierOptions;
using headrace::DeviceStats;
using headrace::FieldSpec;
using headrace::StreamHandle;
using headrace::Transform;
using headrace::without_gil;

std::unique_ptr<DeviceCopier> make_copier(int device, std::size_t max_in_flight,
                                          const Transform& transform) {
  DeviceCopierOptions options{.device = device, .max_in_flight = max_in_flight};
  if (const auto* finish = transform.finish()) options.finish = *finish;
  return std::make_unique<DeviceCopier>(options);
}

/// (dtype, shape, channels_last) of each array that the batch has on the device.
py::list outputs(const DeviceCopier& self, const Batch& batch) {
  py::list result;
  for (const FieldSpec& spec : self.outputs(batch.fields)) {
    std::vector<std::int64_t> shape = spec.shape;
    shape.insert(shape.begin(), batch.rows);
    result.append(py::make_tuple(name_of(spec.dtype), py::tuple(py::cast(shape)),
                                 spec.memory_format == headrace::MemoryFormat::kChannelsLast));
  }
  return result;
}

void submit(DeviceCopier& self, Batch& batch, const std::vector<DeviceAddress>& targets,
            StreamHandle stream) {
  // The fields move, so that their memory is free as soon as it was read; what else there is to
  // know about the batch stays.
  Batch fields = batch;
  batch.fields.clear();
  without_gil([&] { self.submit(std::move(fields), targets, stream); });
}

py::dict stats(const DeviceCopier& self) {
  const DeviceStats stats = self.stats();
  py::dict result;
  result["batches"] = stats.batches;
  result["bytes"] = stats.bytes;
  result["copy_ns"] = stats.copy_ns;
  result["wait_ns"] = stats.wait_ns;
  result["host_waits"] = stats.host_waits;
  result["host_wait_ns"] = stats.host_wait_ns;
  result["finish"] = stats.finish;
  return result;
}

}  // namespace

void bind_device(py::module_& module) {
  py::class_<DeviceCopier>(module, "DeviceCopier",
                           "headrace::DeviceCopier by rule A; see loader/include/headrace.")
      .def(py::init(&make_copier), py::arg("device"), py::arg("max_in_flight"),
           py::arg("transform"))
      .def("outputs", &outputs, py::arg("batch"))
      .def("submit", &submit, py::arg("batch"), py::arg("targets"), py::arg("stream"),
           "Takes the batch's fields. Returns before they are copied.")
      .def(
          "next", [](DeviceCopier& self, StreamHandle stream) { self.next(stream); },
          py::arg("stream"), "Makes the stream wait for the oldest batch.")
      .def("stats", &stats)
      .def(
          "stop", [](DeviceCopier& self) { without_gil([&] { self.stop(); }); },
          "Waits for the copies under way. Idempotent.");
}
