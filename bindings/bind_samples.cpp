#include <pybind11/stl.h>

#include <algorithm>
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

bool same_or_equal(const py::object& one, const py::object& other) {
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

/// first, second = pair
std::pair<py::object, py::object> unpacked(const py::object& pair) {
  PyObject* const* items = items_of(pair.ptr());
  if (items != nullptr && Py_SIZE(pair.ptr()) == 2) {
    return {borrowed(items[0]), borrowed(items[1])};
  }
  const auto both =
      py::reinterpret_steal<py::tuple>(stolen(PySequence_Tuple(pair.ptr())).release());
  if (both.size() != 2) throw py::value_error("a sample must be a pair");
  return {both[0], both[1]};
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

/// The same for the pairs there and what is in them.
void prefetch_pairs(const std::vector<PyObject* const*>& slots) {
  constexpr std::size_t kCacheLine = 64;
  for (PyObject* const* slot : slots) {
    __builtin_prefetch(*slot);
    __builtin_prefetch(reinterpret_cast<PyTupleObject*>(*slot)->ob_item + 1);
  }
  for (PyObject* const* slot : slots) {
    if (PyTuple_CheckExact(*slot) == 0 || PyTuple_GET_SIZE(*slot) != 2) continue;
    for (PyObject* const part : {PyTuple_GET_ITEM(*slot, 0), PyTuple_GET_ITEM(*slot, 1)}) {
      __builtin_prefetch(part);
      __builtin_prefetch(reinterpret_cast<const char*>(part) + kCacheLine);
    }
  }
}

/// Whether nothing in the pair can ever change.
bool is_constant(const py::object& pair, const py::object& content, const py::object& label) {
  return PyTuple_CheckExact(pair.ptr()) != 0 && PyLong_CheckExact(label.ptr()) != 0 &&
         (PyUnicode_CheckExact(content.ptr()) != 0 || PyBytes_CheckExact(content.ptr()) != 0);
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
std::string anchored(std::string path, const std::optional<std::string>& directory) {
  if (!directory || path.starts_with('/')) return path;
  return *directory + (directory->ends_with('/') ? "" : "/") + path;
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
    rows_.push_back({.pair = {},
                     .content = std::get<0>(fields),
                     .label = std::get<1>(fields),
                     .index = to_index(std::get<2>(fields)),
                     .upright = std::get<3>(fields)});
  }
}

Samples Samples::of_pairs(const py::object& table, const py::list& places, const py::object& kinds,
                          bool upright) {
  prefetch_pairs(prefetched_slots(table, places));
  Samples found;
  found.rows_.reserve(places.size());
  for (std::size_t i = 0; i < places.size(); ++i) {  // not fixed: what runs may change the list
    const py::object place = places[i];
    py::object pair = item(table, place.ptr());
    auto [content, label] = unpacked(pair);
    if (PyUnicode_CheckExact(content.ptr()) == 0) {
      const int known = PyObject_IsInstance(content.ptr(), kinds.ptr());
      if (known < 0) throw py::error_already_set();
      if (known == 0) throw py::type_error("a picture of a type that is not known");
    }
    if (!is_constant(pair, content, label)) pair = {};
    found.rows_.push_back({.pair = std::move(pair),
                           .content = std::move(content),
                           .label = std::move(label),
                           .index = to_index(place),
                           .upright = upright});
  }
  return found;
}

py::tuple Samples::row(std::size_t index) const {
  const Row& row = rows_.at(index);
  return py::make_tuple(row.content, row.label, row.index, row.upright);
}

bool Samples::same_as(const Samples& other) const {
  return std::ranges::equal(rows_, other.rows_, [](const Row& one, const Row& another) {
    return Py_TYPE(one.label.ptr()) == Py_TYPE(another.label.ptr()) &&
           same_or_equal(one.label, another.label) && same_or_equal(one.content, another.content);
  });
}

bool Samples::still_in(const py::object& table, const py::list& places) const {
  const auto slots = prefetched_slots(table, places);
  return std::ranges::equal(
      slots, rows_, [](PyObject* const* slot, const Row& row) { return row.pair.ptr() == *slot; });
}

std::vector<Sample> Samples::converted(const std::optional<std::string>& directory,
                                       BufferKeeper& keeper) const {
  std::vector<Sample> samples(rows_.size());
  for (std::size_t i = 0; i < rows_.size(); ++i) {
    const Row& row = rows_[i];
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
      .def_static("of_pairs", &Samples::of_pairs, py::arg("table"), py::arg("places"),
                  py::arg("kinds"), py::arg("upright") = false,
                  R"(Looks up `content, label = table[place]` for each place.

Args:
    places: a list.
    kinds: what a content may be an instance of.

Raises:
    TypeError: a content is something else.
    Exception: whatever the lookups raise.)")
      .def("__len__", &Samples::size)
      .def("__getitem__", &Samples::row)
      .def("__iter__",
           [](const py::object& self) {
             return py::reinterpret_steal<py::object>(PySeqIter_New(self.ptr()));
           })
      .def("same_as", &Samples::same_as, py::arg("other"),
           "Whether contents and labels are the same or equal. A label's type counts: 1 == True.")
      .def(
          "still_in", &Samples::still_in, py::arg("table"), py::arg("places"),
          "Whether of_pairs() would certainly find the same. Fast, and may be wrong in saying no.");
}
