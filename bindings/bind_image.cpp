#include <pybind11/pybind11.h>
#include <pybind11/stl.h>

#include <array>
#include <optional>
#include <string_view>

#include "bind.h"
#include "headrace/error.h"
#include "headrace/image.h"

namespace py = pybind11;

namespace {

// Pillow's MAX_IMAGE_PIXELS unless somebody changed it.
constexpr std::uint64_t kPillowPixelLimit = std::uint64_t{1024} * 1024 * 1024 / 4 / 3;

std::span<const std::byte> as_span(const py::bytes& bytes) {
  const std::string_view view = bytes;
  return std::as_bytes(std::span(view));
}

py::object inspect(const py::bytes& file, std::uint64_t pixel_limit, bool upright) {
  const auto orientation =
      upright ? headrace::ExifOrientation::kApplied : headrace::ExifOrientation::kIgnored;
  const auto found = headrace::inspect_image(as_span(file), pixel_limit, orientation);
  if (const auto* doubt = std::get_if<headrace::Doubt>(&found)) return py::str(doubt->reason);
  const headrace::ImageSize size = std::get<headrace::ImageInfo>(found).size;
  return py::make_tuple(size.width, size.height);
}

std::optional<headrace::Region> as_region(const std::optional<std::array<int, 4>>& region) {
  if (!region) return {};
  return headrace::Region{(*region)[0], (*region)[1], (*region)[2], (*region)[3]};
}

py::tuple decode(const py::bytes& file, const std::optional<std::array<int, 4>>& region) {
  const auto span = as_span(file);
  headrace::RgbImage image;
  {
    py::gil_scoped_release unlocked;
    const auto found = headrace::inspect_image(span, kPillowPixelLimit);
    if (const auto* doubt = std::get_if<headrace::Doubt>(&found)) {
      throw headrace::Error(headrace::ErrorCode::kDoubtfulData, doubt->reason, {.stage = "decode"});
    }
    headrace::ImageDecoder().decode(span, std::get<headrace::ImageInfo>(found), as_region(region),
                                    image);
  }
  return py::make_tuple(
      image.size.width, image.size.height,
      py::bytes(reinterpret_cast<const char*>(image.pixels.data()), image.pixels.size()));
}

}  // namespace

void bind_image(py::module_& module) {
  module.def("inspect_image", &inspect, py::arg("file"), py::arg("pixel_limit") = kPillowPixelLimit,
             py::arg("upright") = false,
             R"(Judges an image file of any format without decoding it.

Args:
    file: the compressed file, bytes.
    pixel_limit: more pixels than this are doubtful.
    upright: the image is to be turned as its EXIF says, which is doubtful where it says so.

Returns:
    (width, height), or a str that says why only Pillow may judge the file.)");
  module.def("decode_image", &decode, py::arg("file"), py::arg("region") = py::none(),
             R"(Decodes an image file with Pillow's pixels.

Args:
    file: the compressed file, bytes.
    region: (left, top, width, height) of the part that is wanted; all of it by default.

Returns:
    (width, height, pixels): pixels is bytes, uint8 RGB of shape [height, width, 3].

Raises:
    Error: only Pillow may judge the file.)");
}
