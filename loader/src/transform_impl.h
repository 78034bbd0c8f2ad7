// What a Transform holds: the operations as written, and what follows from them alone.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "headrace/field.h"
#include "headrace/image.h"
#include "headrace/transform.h"
#include "resample.h"

namespace headrace {

/// More pixels than Pillow opens without a warning: such an image or crop is left to Pillow.
constexpr std::int64_t kPixelLimit = 89'478'485;

// The operations, under torchvision's names. kName is the JSON name.
struct ResizeExact {
  static constexpr const char* kName = "resize";
  ImageSize size;
  Filter filter = Filter::kBilinear;
};
struct ResizeShorterEdge {
  static constexpr const char* kName = "resize";
  int edge = 0;
  std::optional<int> max_size;
  Filter filter = Filter::kBilinear;
};
struct CenterCrop {
  static constexpr const char* kName = "center_crop";
  ImageSize size;
};
struct RandomResizedCrop {
  static constexpr const char* kName = "random_resized_crop";
  ImageSize size;
  std::array<double, 2> scale{};
  std::array<double, 2> ratio{};
  std::array<float, 2> log_ratio{};
  Filter filter = Filter::kBilinear;
};
/// Pixels added on each side; none is negative.
struct Padding {
  int left = 0;
  int top = 0;
  int right = 0;
  int bottom = 0;
  bool operator==(const Padding&) const = default;
};
struct Pad {
  static constexpr const char* kName = "pad";
  Padding padding;
  Border border;
};
/// Which of torchvision's two namespaces a transform is from, where they differ.
enum class Api { kV1, kV2 };
struct RandomCrop {
  static constexpr const char* kName = "random_crop";
  ImageSize size;
  Padding padding;
  Border border;
  bool pad_if_needed = false;
  Api api = Api::kV1;
};
struct RandomHorizontalFlip {
  static constexpr const char* kName = "random_horizontal_flip";
  double p = 0.5;
};
struct RandomVerticalFlip {
  static constexpr const char* kName = "random_vertical_flip";
  double p = 0.5;
};
struct Grayscale {
  static constexpr const char* kName = "grayscale";
  int num_output_channels = 1;
};
struct RandomGrayscale {
  static constexpr const char* kName = "random_grayscale";
  double p = 0.1;
};
struct Rgb {
  static constexpr const char* kName = "rgb";
};
struct ToTensor {
  static constexpr const char* kName = "to_tensor";
};
struct PilToTensor {
  static constexpr const char* kName = "pil_to_tensor";
};
struct ToImage {
  static constexpr const char* kName = "to_image";
};
struct ToDtype {
  static constexpr const char* kName = "to_dtype";
  Dtype dtype = Dtype::kFloat32;
  bool scale = false;
};
struct ConvertImageDtype {
  static constexpr const char* kName = "convert_image_dtype";
  Dtype dtype = Dtype::kFloat32;
};
struct Normalize {
  static constexpr const char* kName = "normalize";
  std::vector<double> mean;
  std::vector<double> std;
};

using Operation =
    std::variant<ResizeExact, ResizeShorterEdge, CenterCrop, RandomResizedCrop, Pad, RandomCrop,
                 RandomHorizontalFlip, RandomVerticalFlip, Grayscale, RandomGrayscale, Rgb,
                 ToTensor, PilToTensor, ToImage, ToDtype, ConvertImageDtype, Normalize>;

/// For each channel, what becomes of each pixel value; with one channel only the first counts.
template <typename T>
using ValueTable = std::array<std::array<T, 256>, 3>;

/// What the JSON text says.
struct Recipe {
  MemoryFormat memory_format = MemoryFormat::kContiguous;
  PassOrder pass_order = PassOrder::kBySize;
  std::vector<Operation> operations;
};

struct Pipeline {
  Recipe recipe;
  FieldSpec output;
  // Bit patterns of output.dtype; the one of its width is used.
  ValueTable<std::uint8_t> values_8{};
  ValueTable<std::uint16_t> values_16{};
  ValueTable<std::uint32_t> values_32{};
  // Of a split transform; flips at the end are then left to it.
  std::optional<PixelFinish> finish;
};
struct Transform::Impl : Pipeline {};

Recipe parse_recipe(std::string_view json);
std::string write_recipe(const Recipe& recipe);

}  // namespace headrace
