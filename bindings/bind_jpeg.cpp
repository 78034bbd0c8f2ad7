#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <optional>
#include <string_view>

#include "bind.h"
#include "headrace/jpeg.h"

namespace py = pybind11;

namespace {

// Pillow's MAX_IMAGE_PIXELS unless somebody changed it.
constexpr std::uint64_t kPillowPixelLimit = std::uint64_t{1024} * 1024 * 1024 / 4 / 3;

std::span<const std::byte> as_span(const py::bytes& bytes) {
  const std::string_view view = bytes;
  return std::as_bytes(std::span(view));
}

py::object inspect(const py::bytes& file, std::uint64_t pixel_limit) {
  const auto found = headrace::inspect_jpeg(as_span(file), pixel_limit);
  if (const auto* doubt = std::get_if<headrace::Doubt>(&found)) return py::str(doubt->reason);
  const auto& size = std::get<headrace::ImageSize>(found);
  return py::make_tuple(size.width, size.height);
}

py::tuple decode(const py::bytes& file, const std::optional<std::array<int, 4>>& region) {
  const auto span = as_span(file);
  std::optional<headrace::Region> part;
  if (region) part = {(*region)[0], (*region)[1], (*region)[2], (*region)[3]};
  headrace::RgbImage image;
  {
    py::gil_scoped_release unlocked;
    headrace::JpegDecoder().decode(span, part, image);
  }
  return py::make_tuple(
      image.size.width, image.size.height,
      py::bytes(reinterpret_cast<const char*>(image.pixels.data()), image.pixels.size()));
}

}  // namespace

void bind_jpeg(py::module_& module) {
  module.def("inspect_jpeg", &inspect, py::arg("file"), py::arg("pixel_limit") = kPillowPixelLimit,
             R"(Judges the structure of a whole JPEG file without decoding it.

Args:
    file: the compressed file, bytes.
    pixel_limit: more pixels than this are doubtful.

Returns:
    (width, height), or a str that says why only Pillow may judge the file.)");
  module.def("decode_jpeg", &decode, py::arg("file"), py::arg("region") = py::none(),
             R"(Decodes a JPEG file that inspect_jpeg() accepted, with Pillow's pixels.

Args:
    file: the compressed file, bytes.
    region: (left, top, width, height) of the part that is wanted; all of it by default.

Returns:
    (width, height, pixels): pixels is bytes, uint8 RGB of shape [height, width, 3].

Raises:
    Error: libjpeg failed or warned, so that only Pillow may judge the file.)");
}
