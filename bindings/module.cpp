#include "bind.h"
#include "headrace/error.h"
#include "headrace/version.h"

namespace py = pybind11;

namespace {

const char* code_name(headrace::ErrorCode code) {
  switch (code) {
    case headrace::ErrorCode::kInvalidArgument:
      return "invalid_argument";
    case headrace::ErrorCode::kNotFound:
      return "not_found";
    case headrace::ErrorCode::kReadFailed:
      return "read_failed";
    case headrace::ErrorCode::kDoubtfulData:
      return "doubtful_data";
    case headrace::ErrorCode::kCorruptTrace:
      return "corrupt_trace";
    case headrace::ErrorCode::kStopped:
      return "stopped";
    case headrace::ErrorCode::kDeviceFailed:
      return "device_failed";
    case headrace::ErrorCode::kMemoryCap:
      return "memory_cap";
  }
  return "";  // not reached: the switch is complete
}

PyObject* error_type = nullptr;  // never released: exceptions may be raised until the very end

void raise_in_python(const headrace::Error& error) {
  const auto& context = error.context();
  const py::object raised =
      py::reinterpret_borrow<py::object>(error_type)(to_python_path(error.what()));
  const auto set = [&raised](const char* name, bool known, const py::object& value) {
    raised.attr(name) = known ? value : py::none();
  };
  set("code", true, py::str(code_name(error.code())));
  set("stage", true, py::str(context.stage));
  set("path", !context.path.empty(), to_python_path(context.path));
  set("sample_index", context.sample_index >= 0, py::int_(context.sample_index));
  set("errno", context.system_errno != 0, py::int_(context.system_errno));
  PyErr_SetObject(error_type, raised.ptr());
}

void register_error(py::module_& module) {
  error_type = PyErr_NewExceptionWithDoc("headrace._core.Error",
                                         R"(What headrace's C++ core raises.

Attributes:
    code: "invalid_argument", "not_found", "read_failed", "doubtful_data", "corrupt_trace",
        "stopped" or "device_failed".
    stage: where it happened: "source", "read", "decode", "transform", "engine", "device" or
        "trace".
    path: the file, None if none is concerned.
    sample_index: index in the dataset, None if no sample is concerned.
    errno: of the failed system call, None if none failed.)",
                                         PyExc_RuntimeError, nullptr);
  if (error_type == nullptr) throw py::error_already_set();
  module.attr("Error") = py::reinterpret_borrow<py::object>(error_type);
  // For those that Python raises, or that come from another process as text.
  for (const char* name : {"code", "stage", "path", "sample_index", "errno"}) {
    py::setattr(module.attr("Error"), name, py::none());
  }
  py::register_exception_translator([](std::exception_ptr thrown) {
    try {
      if (thrown) std::rethrow_exception(thrown);
    } catch (const headrace::Error& error) {
      raise_in_python(error);
    }
  });
}

}  // namespace

PYBIND11_MODULE(_core, module) {
  module.doc() = "headrace's C++ core. Private: the package headrace is the interface.";
  module.attr("__version__") = headrace::version();
  register_error(module);
  bind_source(module);
  bind_image(module);
  bind_random(module);
  bind_transform(module);
  bind_samples(module);
  bind_watch(module);
  bind_engine(module);
  bind_device(module);
  bind_trace(module);
}
