// What the parts of the module headrace._core share.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

void bind_source(pybind11::module_& module);
void bind_image(pybind11::module_& module);
void bind_random(pybind11::module_& module);
void bind_transform(pybind11::module_& module);
void bind_engine(pybind11::module_& module);

/// A path, or a message with a path in it, as os.fsdecode() gives it: any bytes are possible.
inline pybind11::str to_python_path(const std::string& text) {
  PyObject* decoded =
      PyUnicode_DecodeFSDefaultAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  if (decoded == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::str>(decoded);
}

/// A path given as str, bytes or os.PathLike, as os.fsencode() gives it.
inline std::string from_python_path(const pybind11::object& path) {
  PyObject* encoded = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &encoded) == 0) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::bytes>(encoded);
}
