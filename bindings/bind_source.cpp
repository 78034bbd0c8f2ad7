#include <memory>
#include <string>

#include "bind.h"
#include "headrace/source.h"

namespace py = pybind11;

using headrace::ImageFolderSource;

namespace {

py::tuple to_tuple(const headrace::FolderStamp& stamp) {
  return py::make_tuple(stamp.inode, stamp.modified_ns, stamp.changed_ns);
}

py::tuple list_image_folder(const py::object& root, bool allow_empty, int threads) {
  const std::string path = from_python_path(root);
  headrace::FolderListing listing;
  {
    const py::gil_scoped_release unlocked;
    listing = headrace::list_image_folder(path, {.threads = threads, .allow_empty = allow_empty});
  }
  py::list classes;
  for (const auto& name : listing.classes) classes.append(to_python_path(name));
  py::list folders;
  std::string names;
  for (const auto& folder : listing.folders) {
    names.clear();
    for (const auto& image : folder.images) {
      if (!names.empty()) names += '\0';
      names += image;
    }
    folders.append(py::make_tuple(to_python_path(folder.path), folder.label, to_tuple(folder.stamp),
                                  to_python_path(names)));
  }
  return py::make_tuple(classes, to_tuple(listing.root_stamp), folders, listing.stable);
}

}  // namespace

void bind_source(py::module_& module) {
  module.def("list_image_folder", &list_image_folder, py::arg("root"), py::kw_only(),
             py::arg("allow_empty") = false, py::arg("threads") = 8,
             R"(Lists a directory with one folder per class, in torchvision's order.

Args:
    root: str, bytes or os.PathLike.
    allow_empty: whether a class without images is no error.
    threads: directories read at a time.

Returns:
    (classes, stamp, folders, stable): names of the classes; (inode, mtime, ctime) of root, times in
    nanoseconds; for each directory (path, label, stamp, names of its images with "\\0" between
    them); whether the listing is the same as long as no stamp changes.

Raises:
    Error: no such directory, no class folders in it, or a class without images.)");
  py::class_<ImageFolderSource>(module, "ImageFolderSource",
                                R"(The files of a directory with one folder per class.

Classes, labels and order are those of torchvision.datasets.ImageFolder (make_dataset in
torchvision/datasets/folder.py), without its expansion of "~".)")
      .def(py::init([](const py::object& root) {
             const std::string path = from_python_path(root);
             const py::gil_scoped_release unlocked;
             return std::make_unique<ImageFolderSource>(path);
           }),
           py::arg("root"),
           R"(Lists the directory.

Args:
    root: str, bytes or os.PathLike.

Raises:
    Error: no such directory, no class folders in it, or a class without images.)")
      .def_property_readonly(
          "classes",
          [](const ImageFolderSource& source) {
            py::list names;
            for (const auto& name : source.classes()) names.append(to_python_path(name));
            return names;
          },
          "Names of the classes, a list of str; a label is an index into it.")
      .def("__len__", &ImageFolderSource::size)
      .def(
          "sample",
          [](const ImageFolderSource& source, std::int64_t index) {
            const headrace::Sample sample = source.sample(index);
            return py::make_tuple(to_python_path(sample.path), sample.label);
          },
          py::arg("index"),
          R"(One sample.

Args:
    index: in [0, len(self)).

Returns:
    (path, label): str and int.

Raises:
    Error: outside that range.)");
}
