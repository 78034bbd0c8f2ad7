#include <pybind11/stl.h>

#include <algorithm>
#include <string_view>
#include <tuple>
#include <utility>

#include "bind.h"
#include "samples.h"

namespace py = pybind11;

namespace headrace {
namespace {

py::object stolen(PyObject* object) {
  if (object == nullptr) throw py::error_already_set();
  return py::reinterpret_steal<py::object>(object);
}

py::object borrowed(PyObject* object) { return py::reinterpret_borrow<py::object>(object); }

/// Equal, and of one type.
bool same(const py::object& one, const py::object& other) {
  if (Py_TYPE(one.ptr()) != Py_TYPE(other.ptr())) return false;
  const int equal = PyObject_RichCompareBool(one.ptr(), other.ptr(), Py_EQ);
  if (equal < 0) throw py::error_already_set();
  return equal != 0;
}

/// The items of a list or a tuple; null for anything else, which may run Python code.
PyObject* const* items_of(PyObject* object) {
  const bool plain = PyList_CheckExact(object) != 0 || PyTuple_CheckExact(object) != 0;
  return plain ? PySequence_Fast_ITEMS(object) : nullptr;
}

/// Where the place is in a list or tuple of this size; none for what only Python can look up.
std::optional<std::size_t> plain_index(PyObject* place, std::size_t size) {
  if (PyLong_CheckExact(place) == 0) return std::nullopt;
  int overflow = 0;
  const auto index = static_cast<std::uint64_t>(PyLong_AsLongLongAndOverflow(place, &overflow));
  if (overflow != 0 || index >= size) return std::nullopt;  // negative ones are large here
  return index;
}

/// table[place]
py::object item(const py::object& table, PyObject* place) {
  PyObject* const* items = items_of(table.ptr());
  if (items != nullptr) {
    const auto index = plain_index(place, static_cast<std::size_t>(Py_SIZE(table.ptr())));
    if (index) return borrowed(items[*index]);
  }
  return stolen(PyObject_GetItem(table.ptr(), place));
}

/// As a tuple, which cannot change.
py::object as_tuple(py::object pair) {
  if (PyTuple_CheckExact(pair.ptr()) == 0) pair = stolen(PySequence_Tuple(pair.ptr()));
  if (PyTuple_GET_SIZE(pair.ptr()) != 2) throw py::value_error("a sample must be a pair");
  return pair;
}

/// The slots of a list or tuple at these places, fetched into the processor's caches all at a time.
/// A random batch of a large dataset is nowhere near them, so that looking at one after the other
/// would mean to wait for memory at each. Empty where only Python can look something up.
std::vector<PyObject* const*> prefetched_slots(const py::object& table, const py::list& places) {
  PyObject* const* items = items_of(table.ptr());
  if (items == nullptr) return {};
  std::vector<PyObject* const*> slots;
  slots.reserve(places.size());
  for (const py::handle place : places) {
    const auto index = plain_index(place.ptr(), static_cast<std::size_t>(Py_SIZE(table.ptr())));
    if (!index) return {};
    slots.push_back(items + *index);
    __builtin_prefetch(slots.back());
  }
  return slots;
}

constexpr std::size_t kCacheLine = 64;

/// A path that is the same in every encoding of file names; none for another object.
std::optional<std::string_view> plain_path(PyObject* content) {
  if (PyUnicode_CheckExact(content) == 0 || PyUnicode_IS_COMPACT_ASCII(content) == 0) {
    return std::nullopt;
  }
  const std::string_view path(static_cast<const char*>(PyUnicode_DATA(content)),
                              static_cast<std::size_t>(PyUnicode_GET_LENGTH(content)));
  if (path.find('\0') != std::string_view::npos) return std::nullopt;
  return path;
}

std::int64_t to_int64(const py::object& number) {
  const std::int64_t value = PyLong_AsLongLong(number.ptr());
  if (value == -1 && PyErr_Occurred() != nullptr) throw py::error_already_set();  // OverflowError
  return value;
}

/// int(place)
std::int64_t to_index(const py::object& place) {
  return to_int64(PyLong_CheckExact(place.ptr()) != 0 ? place : stolen(PyNumber_Long(place.ptr())));
}

/// As os.path.join() does it.
std::string anchored(std::string_view path, const std::optional<std::string>& directory) {
  if (!directory || path.starts_with('/')) return std::string(path);
  return (*directory + (directory->ends_with('/') ? "" : "/")).append(path);
}

/// Where an image is: the path of a file; its bytes, in any object with the buffer protocol; or
/// (RGB bytes, width, height).
void set_content(Sample& sample, const py::object& content,
                 const std::optional<std::string>& directory, BufferKeeper& keeper) {
  if (py::isinstance<py::str>(content)) {
    sample.path = anchored(from_python_path(content), directory);
  } else if (py::isinstance<py::tuple>(content)) {
    const auto [pixels, width, height] = content.cast<std::tuple<py::object, int, int>>();
    sample.memory = keeper.share(pixels);
    sample.width = width;
    sample.height = height;
  } else if (PyObject_CheckBuffer(content.ptr()) != 0) {
    sample.memory = keeper.share(content);
  } else {
    sample.path = anchored(from_python_path(content), directory);
  }
}

}  // namespace

Samples::Samples(const py::list& rows) {
  rows_.reserve(rows.size());
  for (const py::handle row : rows) {
    const auto fields = row.cast<std::tuple<py::object, py::object, py::object, bool>>();
    rows_.push_back({.content = std::get<0>(fields),
                     .label = std::get<1>(fields),
                     .index = to_index(std::get<2>(fields)),
                     .upright = std::get<3>(fields)});
  }
}

Samples::Samples(const py::object& table, const py::list& places, py::object kinds)
    : kinds_(std::move(kinds)) {
  for (PyObject* const* slot : prefetched_slots(table, places)) __builtin_prefetch(*slot);
  pairs_.reserve(places.size());
  indices_.reserve(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {  // not fixed: what runs may change the list
    const py::object place = places[i];
    pairs_.push_back(as_tuple(item(table, place.ptr())));
    indices_.push_back(to_index(place));
  }
}

Samples::Row Samples::at(std::size_t index) const {
  if (pairs_.empty()) return rows_.at(index);
  const py::object& pair = pairs_.at(index);
  return {.content = borrowed(PyTuple_GET_ITEM(pair.ptr(), 0)),
          .label = borrowed(PyTuple_GET_ITEM(pair.ptr(), 1)),
          .index = indices_[index],
          .upright = false};
}

Samples::Row Samples::known(std::size_t index) const {
  Row row = at(index);
  if (!pairs_.empty()) {
    const int known = PyObject_IsInstance(row.content.ptr(), kinds_.ptr());
    if (known < 0) throw py::error_already_set();
    if (known == 0) throw py::type_error("a picture of a type that is not known");
  }
  return row;
}

py::tuple Samples::row(std::size_t index) const {
  const Row row = known(index);
  return py::make_tuple(row.content, row.label, row.index, row.upright);
}

bool Samples::same_as(const Samples& other) const {
  if (size() != other.size()) return false;
  for (std::size_t i = 0; i < size(); ++i) {
    const Row one = at(i);
    const Row another = other.at(i);
    if (!same(one.label, another.label) || !same(one.content, another.content)) return false;
  }
  return true;
}

bool Samples::still_in(const py::object& table, const py::list& places) const {
  const auto slots = prefetched_slots(table, places);
  return plain_ && std::ranges::equal(slots, pairs_, [](PyObject* const* slot, const auto& pair) {
           return pair.ptr() == *slot;
         });
}

std::optional<std::vector<Sample>> Samples::convert_plain(
    const std::optional<std::string>& directory) {
  for (const auto& pair : pairs_) {
    for (const Py_ssize_t part : {0, 1}) {
      const auto* address = reinterpret_cast<const char*>(PyTuple_GET_ITEM(pair.ptr(), part));
      __builtin_prefetch(address);
      __builtin_prefetch(address + kCacheLine);
    }
  }
  std::vector<Sample> samples(pairs_.size());
  for (std::size_t i = 0; i < pairs_.size(); ++i) {
    const auto path = plain_path(PyTuple_GET_ITEM(pairs_[i].ptr(), 0));
    PyObject* label = PyTuple_GET_ITEM(pairs_[i].ptr(), 1);
    if (!path || PyLong_CheckExact(label) == 0) return std::nullopt;
    int overflow = 0;
    samples[i].label = PyLong_AsLongLongAndOverflow(label, &overflow);
    if (overflow != 0) return std::nullopt;
    samples[i].path = anchored(*path, directory);
    samples[i].index = indices_[i];
  }
  plain_ = !pairs_.empty();
  if (!plain_) return std::nullopt;
  return samples;
}

std::vector<Sample> Samples::convert(const std::optional<std::string>& directory,
                                     BufferKeeper& keeper) const {
  std::vector<Sample> samples(size());
  for (std::size_t i = 0; i < size(); ++i) {
    const Row row = known(i);
    if (PyLong_CheckExact(row.label.ptr()) == 0) throw py::type_error("a label must be an int");
    samples[i].label = to_int64(row.label);
    samples[i].index = row.index;
    samples[i].upright = row.upright;
    set_content(samples[i], row.content, directory, keeper);
  }
  return samples;
}

}  // namespace headrace

void bind_samples(py::module_& module) {
  using headrace::Samples;
  py::class_<Samples>(module, "Samples",
                      R"(The samples of a batch; a sequence of (content, label, index, upright).

The content is the path of an image file; its bytes, in any object with the buffer protocol; or
(RGB bytes, width, height). The index is that in the dataset. With `upright` the picture is turned as
its EXIF orientation says.)")
      .def(py::init<const py::list&>(), py::arg("rows"))
      .def(py::init<const py::object&, const py::list&, py::object>(), py::arg("table"),
           py::arg("places"), py::arg("kinds"),
           R"(Looks up `content, label = table[place]` for each place.

Args:
    places: a list.
    kinds: what a content may be an instance of. TypeError where it is needed, if it is not.

Raises:
    ValueError: something looked up is no pair.
    Exception: whatever the lookups raise.)")
      .def("__len__", &Samples::size)
      .def("__getitem__", &Samples::row)
      .def("__iter__",
           [](const py::object& self) {
             return py::reinterpret_steal<py::object>(PySeqIter_New(self.ptr()));
           })
      .def("same_as", &Samples::same_as, py::arg("other"),
           "Whether contents and labels are equal and of the same types: 1 == True.")
      .def("still_in", &Samples::still_in, py::arg("table"), py::arg("places"),
           "Whether the table certainly holds the same. Fast, and may be wrong in saying no.");
}
