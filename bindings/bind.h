// What the parts of the module headrace._core share.
#pragma once

#include <pybind11/pybind11.h>

#include <string>

#include "headrace/field.h"

void bind_source(pybind11::module_& module);
void bind_image(pybind11::module_& module);
void bind_random(pybind11::module_& module);
void bind_samples(pybind11::module_& module);
void bind_transform(pybind11::module_& module);
void bind_watch(pybind11::module_& module);
void bind_engine(pybind11::module_& module);
void bind_trace(pybind11::module_& module);
void bind_device(pybind11::module_& module);

/// As torch calls it.
inline const char* name_of(headrace::Dtype dtype) {
  switch (dtype) {
    case headrace::Dtype::kUint8:
      return "uint8";
    case headrace::Dtype::kFloat16:
      return "float16";
    case headrace::Dtype::kBfloat16:
      return "bfloat16";
    case headrace::Dtype::kFloat32:
      return "float32";
    case headrace::Dtype::kInt64:
      return "int64";
  }
  return "";
}

/// A path, or a message with a path in it, as os.fsdecode() gives it: any bytes are possible.
inline pybind11::str to_python_path(const std::string& text) {
  PyObject* decoded =
      PyUnicode_DecodeFSDefaultAndSize(text.data(), static_cast<Py_ssize_t>(text.size()));
  if (decoded == nullptr) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::str>(decoded);
}

/// A path given as str, bytes or os.PathLike, as os.fsencode() gives it.
inline std::string from_python_path(const pybind11::object& path) {
  // Most are plain ASCII, which every encoding of file names leaves as it is.
  if (PyUnicode_CheckExact(path.ptr()) != 0 && PyUnicode_IS_COMPACT_ASCII(path.ptr()) != 0) {
    const auto* text = static_cast<const char*>(PyUnicode_DATA(path.ptr()));
    std::string name(text, static_cast<std::size_t>(PyUnicode_GET_LENGTH(path.ptr())));
    if (name.find('\0') == std::string::npos) return name;
  }
  PyObject* encoded = nullptr;
  if (PyUnicode_FSConverter(path.ptr(), &encoded) == 0) throw pybind11::error_already_set();
  return pybind11::reinterpret_steal<pybind11::bytes>(encoded);
}
