#include <memory>

#include "bind.h"
#include "headrace/source.h"

namespace py = pybind11;

using headrace::ImageFolderSource;

void bind_source(py::module_& module) {
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
