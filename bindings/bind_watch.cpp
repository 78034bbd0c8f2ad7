#include <pybind11/pybind11.h>

#include <algorithm>
#include <cstddef>

#include "bind.h"

namespace py = pybind11;

namespace {

py::handle at(const py::handle& tuple, Py_ssize_t index) {
  return PyTuple_GET_ITEM(tuple.ptr(), index);
}

bool attribute_is(const py::handle& owner, const py::handle& name, const py::handle& value) {
  const auto found = py::reinterpret_steal<py::object>(PyObject_GetAttr(owner.ptr(), name.ptr()));
  if (!found) PyErr_Clear();
  return found.is(value);
}

bool list_has(const py::handle& list, const py::handle& items) {
  return PyList_GET_SIZE(list.ptr()) == PyTuple_GET_SIZE(items.ptr()) &&
         std::equal(PySequence_Fast_ITEMS(list.ptr()),
                    PySequence_Fast_ITEMS(list.ptr()) + PyList_GET_SIZE(list.ptr()),
                    PySequence_Fast_ITEMS(items.ptr()));
}

/// `items`: keys and values in turn, in the dict's order.
bool dict_has(const py::handle& dict, const py::handle& items) {
  if (2 * PyDict_Size(dict.ptr()) != PyTuple_GET_SIZE(items.ptr())) return false;
  Py_ssize_t position = 0;
  PyObject* key = nullptr;
  PyObject* value = nullptr;
  for (Py_ssize_t i = 0; PyDict_Next(dict.ptr(), &position, &key, &value) != 0; i += 2) {
    if (at(items, i).ptr() != key || at(items, i + 1).ptr() != value) return false;
  }
  return true;
}

bool all_same(const py::list& attributes, const py::list& lists, const py::list& dicts) {
  return std::ranges::all_of(attributes,
                             [](const py::handle& entry) {
                               return attribute_is(at(entry, 0), at(entry, 1), at(entry, 2));
                             }) &&
         std::ranges::all_of(
             lists, [](const py::handle& entry) { return list_has(at(entry, 0), at(entry, 1)); }) &&
         std::ranges::all_of(
             dicts, [](const py::handle& entry) { return dict_has(at(entry, 0), at(entry, 1)); });
}

}  // namespace

void bind_watch(py::module_& module) {
  module.def("all_same", all_same, py::arg("attributes"), py::arg("lists"), py::arg("dicts"),
             R"(Whether objects still refer to the very same others as they did.

Args:
    attributes: of (owner, name, value): owner.name was value.
    lists: of (list, its items as a tuple).
    dicts: of (dict, its keys and values in turn as a tuple).)");
}
