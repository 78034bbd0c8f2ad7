#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <cstring>
#include <stdexcept>

#include "bind.h"
#include "buffers.h"
#include "headrace/transform.h"

namespace py = pybind11;

namespace {

using headrace::Filter;
using headrace::PinnedBuffer;
using headrace::Plan;
using headrace::PlanStep;
using headrace::RandomStream;
using headrace::Region;
using headrace::RgbImage;
using headrace::Transform;

const char* name_of(Filter filter) {
  switch (filter) {
    case Filter::kNearest:
      return "nearest";
    case Filter::kBilinear:
      return "bilinear";
    case Filter::kBicubic:
      return "bicubic";
  }
  return "";
}

py::tuple step_tuple(const PlanStep& step) {
  switch (step.kind) {
    case PlanStep::Kind::kCrop:
      return py::make_tuple("crop", step.left, step.top, step.width, step.height);
    case PlanStep::Kind::kResize:
      return py::make_tuple("resize", step.width, step.height, name_of(step.filter));
    case PlanStep::Kind::kHorizontalFlip:
      return py::make_tuple("horizontal_flip");
    case PlanStep::Kind::kVerticalFlip:
      return py::make_tuple("vertical_flip");
    case PlanStep::Kind::kGray:
      return py::make_tuple("gray");
  }
  return py::tuple();
}

py::tuple plan(const Transform& self, int width, int height, RandomStream& random) {
  const Plan made = self.plan({width, height}, random);
  const Region& source = made.source;
  py::list steps;
  steps.append(py::make_tuple("source", source.left, source.top, source.width, source.height));
  for (const PlanStep& step : made.steps) steps.append(step_tuple(step));
  return py::make_tuple(steps, made.doubt);
}

std::size_t pixels(int length) { return static_cast<std::size_t>(length); }

/// What a decoder would give for the region.
RgbImage part_of(std::span<const std::byte> rgb, int image_width, const Region& region) {
  RgbImage image;
  image.reshape(region.size());
  const std::size_t row_bytes = pixels(region.width) * 3;
  for (int y = 0; y < region.height; ++y) {
    std::memcpy(&image.pixels[pixels(y) * row_bytes],
                &rgb[(pixels(region.top + y) * pixels(image_width) + pixels(region.left)) * 3],
                row_bytes);
  }
  return image;
}

/// Calls `work(random, dst)` without the GIL on a private stream and hands both back.
template <typename Work>
py::bytes produce(const Transform& self, RandomStream& random, const Work& work) {
  const std::size_t size = self.output().row_bytes();
  py::bytes result(nullptr, size);
  const auto dst = std::as_writable_bytes(std::span(PyBytes_AS_STRING(result.ptr()), size));
  RandomStream draws = random;
  {
    const py::gil_scoped_release release;
    work(draws, dst);
  }
  random = draws;
  return result;
}

py::bytes run(const Transform& self, int width, int height, const py::buffer& rgb,
              RandomStream& random) {
  if (width < 1 || height < 1) throw std::invalid_argument("width and height must be positive");
  const PinnedBuffer pinned(rgb);
  if (pinned.bytes().size() != pixels(width) * pixels(height) * 3) {
    throw std::invalid_argument("rgb must hold width * height * 3 bytes");
  }
  return produce(self, random, [&](RandomStream& draws, std::span<std::byte> dst) {
    const Plan made = self.plan({width, height}, draws);
    if (!made.doubt.empty()) throw std::runtime_error(made.doubt);
    headrace::TransformScratch scratch;
    self.run(part_of(pinned.bytes(), width, made.source), made, scratch, dst);
  });
}

py::bytes apply(const Transform& self, const py::buffer& file, RandomStream& random) {
  const PinnedBuffer pinned(file);
  return produce(self, random, [&](RandomStream& draws, std::span<std::byte> dst) {
    self.apply(pinned.bytes(), draws, dst);
  });
}

}  // namespace

void bind_transform(py::module_& module) {
  py::class_<Transform>(module, "Transform",
                        "A pipeline of torchvision's operations on one image.\n\n"
                        "Args:\n"
                        "    json: the operations; the C++ header transform.h lists them.\n\n"
                        "Raises:\n"
                        "    Error: an unknown operation or option, or a result without constant\n"
                        "        shape; the message names the operation.")
      .def(py::init(&Transform::from_json), py::arg("json"))
      .def("to_json", &Transform::to_json)
      .def_property_readonly(
          "output",
          [](const Transform& self) {
            const headrace::FieldSpec& field = self.output();
            return py::make_tuple(field.name, name_of(field.dtype),
                                  py::tuple(py::cast(field.shape)));
          },
          "(name, dtype, shape) of the field that it makes.")
      .def_property_readonly("splits", &Transform::splits, "Whether split() has something to give.")
      .def("split", &Transform::split, "The part that makes pixels; `finish` is what is left.")
      .def_property_readonly(
          "finish",
          [](const Transform& self) -> py::object {
            const headrace::PixelFinish* finish = self.finish();
            if (finish == nullptr) return py::none();
            const auto* table = reinterpret_cast<const char*>(finish->table.data());
            return py::make_tuple(name_of(finish->output.dtype),
                                  py::bytes(table, finish->table.size()));
          },
          "(dtype, table) of a split transform: bytes, values of that dtype, shape [3, 256].")
      .def(
          "plan", &plan, py::arg("width"), py::arg("height"), py::arg("random"),
          "Makes the draws for an image of this size.\n\n"
          "Returns:\n"
          "    (steps, doubt). The first step is (\"source\", left, top, width, height): the part\n"
          "    of the image that must be decoded. The others are (\"crop\", left, top, width,\n"
          "    height), (\"resize\", width, height, filter), (\"horizontal_flip\",),\n"
          "    (\"vertical_flip\",) or (\"gray\",). A doubt that is not empty asks for "
          "torchvision; `random` has\n"
          "    not moved then.")
      .def("run", &run, py::arg("width"), py::arg("height"), py::arg("rgb"), py::arg("random"),
           "Plans and transforms given pixels: rgb is uint8 [height, width, 3].\n\n"
           "Returns:\n"
           "    The bytes of `output`.\n\n"
           "Raises:\n"
           "    RuntimeError: the plan is in doubt; `random` has not moved.")
      .def("apply", &apply, py::arg("file"), py::arg("random"),
           "Decodes and transforms the bytes of one JPEG file.\n\n"
           "Returns:\n"
           "    The bytes of `output`.\n\n"
           "Raises:\n"
           "    Error: only Pillow and torchvision may judge this file; `random` has not moved.");
}
