// Transforms as JSON text. The only file that knows the JSON library.
#include <algorithm>
#include <cmath>
#include <nlohmann/json.hpp>
#include <utility>

#include "headrace/error.h"
#include "transform_impl.h"

namespace headrace {
namespace {

using Json = nlohmann::ordered_json;

constexpr int kFormatVersion = 1;

constexpr std::array<std::pair<Filter, const char*>, 3> kFilters{{
    {Filter::kNearest, "nearest"},
    {Filter::kBilinear, "bilinear"},
    {Filter::kBicubic, "bicubic"},
}};

constexpr std::array<std::pair<PassOrder, const char*>, 3> kPassOrders{{
    {PassOrder::kWidthFirst, "width_first"},
    {PassOrder::kWidthFirstUnlessTall, "width_first_unless_tall"},
    {PassOrder::kBySize, "by_size"},
}};

constexpr std::array<std::pair<MemoryFormat, const char*>, 2> kMemoryFormats{{
    {MemoryFormat::kContiguous, "contiguous"},
    {MemoryFormat::kChannelsLast, "channels_last"},
}};

constexpr std::array<std::pair<Dtype, const char*>, 4> kDtypes{{
    {Dtype::kUint8, "uint8"},
    {Dtype::kFloat16, "float16"},
    {Dtype::kBfloat16, "bfloat16"},
    {Dtype::kFloat32, "float32"},
}};

constexpr std::array<std::pair<Border::Mode, const char*>, 4> kPaddingModes{{
    {Border::Mode::kConstant, "constant"},
    {Border::Mode::kEdge, "edge"},
    {Border::Mode::kReflect, "reflect"},
    {Border::Mode::kSymmetric, "symmetric"},
}};

constexpr std::array<std::pair<Api, const char*>, 2> kApis{{
    {Api::kV1, "v1"},
    {Api::kV2, "v2"},
}};

template <typename Names, typename Value>
const char* name_in(const Names& names, Value value) {
  return std::ranges::find(names, value, &Names::value_type::first)->second;
}

[[noreturn]] void refuse(const std::string& where, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, where + ": " + why, {.stage = "transform"});
}

/// One JSON object whose keys are taken one by one; none may be left over.
class Options {
 public:
  Options(std::string where, Json object) : where_(std::move(where)), object_(std::move(object)) {
    if (!object_.is_object()) refuse(where_, "is no JSON object");
  }

  /// Null when the key is absent.
  Json take_any(const char* key) {
    const auto found = object_.find(key);
    if (found == object_.end()) return nullptr;
    Json value = std::move(*found);
    object_.erase(found);
    return value;
  }

  double take_number(const char* key, double fallback) {
    const Json value = take_any(key);
    return value.is_null() ? fallback : number(key, value);
  }

  bool take_bool(const char* key, bool fallback) {
    const Json value = take_any(key);
    if (value.is_null()) return fallback;
    if (!value.is_boolean()) fail(key, "must be true or false");
    return value.get<bool>();
  }

  template <typename Names>
  auto take_name(const char* key, const Names& names, const char* fallback) {
    const Json value = take_any(key);
    const std::string name = value.is_null() ? fallback : value.is_string() ? value : Json("");
    const auto found = std::ranges::find(names, name, &Names::value_type::second);
    if (found == names.end()) fail(key, "is none of the known names");
    return found->first;
  }

  ImageSize take_size(const char* key) { return image_size(key, take_any(key)); }

  ImageSize image_size(const char* key, const Json& value) const {
    if (!value.is_array() || value.size() != 2) fail(key, "must be [height, width]");
    const ImageSize size{edge(key, value[1]), edge(key, value[0])};
    if (size.width > kPixelLimit / size.height) fail(key, "is too large");
    return size;
  }

  int edge(const char* key, const Json& value) const {
    return integer(key, value, 1, 1 << 20, "must be made of integers from 1 to 1048576");
  }

  Padding take_padding(const char* key, Json fallback) {
    Json value = take_any(key);
    if (value.is_null()) value = std::move(fallback);
    if (!value.is_array() || value.size() != 4) fail(key, "must be [left, top, right, bottom]");
    const auto side = [&](std::size_t i) {
      return integer(key, value[i], 0, 1 << 20, "must be made of integers from 0 to 1048576");
    };
    return {side(0), side(1), side(2), side(3)};
  }

  Border take_border() {
    Border border;
    border.mode = take_name("padding_mode", kPaddingModes, "constant");
    Json fill = take_any("fill");
    if (fill.is_null()) fill = 0;
    if (!fill.is_array()) fill = {fill, fill, fill};
    if (fill.size() != border.fill.size()) fail("fill", "must be one number, or three");
    for (std::size_t i = 0; i < border.fill.size(); ++i) {
      border.fill[i] = static_cast<std::uint8_t>(
          integer("fill", fill[i], 0, 255, "must be made of integers from 0 to 255"));
    }
    return border;
  }

  std::vector<double> take_numbers(const char* key, Json fallback = nullptr) {
    Json list = take_any(key);
    if (list.is_null()) list = std::move(fallback);
    if (!list.is_array()) fail(key, "must be a list of numbers");
    std::vector<double> numbers;
    for (const Json& value : list) numbers.push_back(number(key, value));
    return numbers;
  }

  /// [low, high], both of which torch can hold in float32.
  std::array<double, 2> take_range(const char* key, Json fallback) {
    const std::vector<double> numbers = take_numbers(key, std::move(fallback));
    if (numbers.size() != 2 || numbers[0] > numbers[1]) fail(key, "must be [low, high]");
    return {numbers[0], numbers[1]};
  }

  void finish() const {
    if (!object_.empty()) refuse(where_, "unknown option " + object_.begin().key());
  }

  [[noreturn]] void fail(const char* key, const char* why) const {
    refuse(where_, std::string(key) + " " + why);
  }

 private:
  int integer(const char* key, const Json& value, int least, int most, const char* rule) const {
    if (!value.is_number_integer() || value < least || value > most) fail(key, rule);
    return value.get<int>();
  }

  double number(const char* key, const Json& value) const {
    const double found = value.is_number() ? value.get<double>() : std::nan("");
    if (!std::isfinite(static_cast<float>(found))) fail(key, "must be made of finite numbers");
    return found;
  }

  std::string where_;
  Json object_;
};

Filter take_filter(Options& options) {
  return options.take_name("interpolation", kFilters, "bilinear");
}

Operation parse_resize(Options& options) {
  const Json size = options.take_any("size");
  const Json max_size = options.take_any("max_size");
  const Filter filter = take_filter(options);
  if (size.is_array()) {
    if (!max_size.is_null()) options.fail("max_size", "needs a size that is one integer");
    return ResizeExact{options.image_size("size", size), filter};
  }
  ResizeShorterEdge op{options.edge("size", size), std::nullopt, filter};
  if (!max_size.is_null()) {
    op.max_size = options.edge("max_size", max_size);
    if (*op.max_size <= op.edge) options.fail("max_size", "must be greater than size");
  }
  return op;
}

Operation parse_random_resized_crop(Options& options) {
  RandomResizedCrop op;
  op.size = options.take_size("size");
  op.scale = options.take_range("scale", {0.08, 1.0});
  if (op.scale[0] < 0.0) options.fail("scale", "must not be negative");
  op.ratio = options.take_range("ratio", {3.0 / 4.0, 4.0 / 3.0});
  if (!(static_cast<float>(op.ratio[0]) > 0.0f)) options.fail("ratio", "must be positive");
  const auto log_of = [](double ratio) { return std::log(static_cast<float>(ratio)); };
  const auto logs = options.take_range("log_ratio", {log_of(op.ratio[0]), log_of(op.ratio[1])});
  op.log_ratio = {static_cast<float>(logs[0]), static_cast<float>(logs[1])};
  op.filter = take_filter(options);
  return op;
}

Operation parse_pad(Options& options) {
  return Pad{options.take_padding("padding", nullptr), options.take_border()};
}

Operation parse_random_crop(Options& options) {
  RandomCrop op;
  op.size = options.take_size("size");
  op.padding = options.take_padding("padding", {0, 0, 0, 0});
  op.border = options.take_border();
  op.pad_if_needed = options.take_bool("pad_if_needed", false);
  op.api = options.take_name("api", kApis, "");
  return op;
}

double take_probability(Options& options, double fallback) {
  const double p = options.take_number("p", fallback);
  if (p < 0.0 || p > 1.0) options.fail("p", "must lie between 0 and 1");
  return p;
}

Operation parse_normalize(Options& options) {
  Normalize op{options.take_numbers("mean"), options.take_numbers("std")};
  for (const auto* list : {&op.mean, &op.std}) {
    if (list->size() != 1 && list->size() != 3) options.fail("mean, std", "need 1 or 3 numbers");
  }
  return op;
}

Operation parse_grayscale(Options& options) {
  const Json channels = options.take_any("num_output_channels");
  if (channels.is_null()) return Grayscale{};
  if (channels != 1 && channels != 3) options.fail("num_output_channels", "must be 1 or 3");
  return Grayscale{channels.get<int>()};
}

Operation parse_operation(const std::string& name, Options& options) {
  if (name == ResizeExact::kName) return parse_resize(options);
  if (name == CenterCrop::kName) return CenterCrop{options.take_size("size")};
  if (name == RandomResizedCrop::kName) return parse_random_resized_crop(options);
  if (name == Pad::kName) return parse_pad(options);
  if (name == RandomCrop::kName) return parse_random_crop(options);
  if (name == RandomHorizontalFlip::kName)
    return RandomHorizontalFlip{take_probability(options, 0.5)};
  if (name == RandomVerticalFlip::kName) return RandomVerticalFlip{take_probability(options, 0.5)};
  if (name == Grayscale::kName) return parse_grayscale(options);
  if (name == RandomGrayscale::kName) return RandomGrayscale{take_probability(options, 0.1)};
  if (name == Rgb::kName) return Rgb{};
  if (name == ToTensor::kName) return ToTensor{};
  if (name == PilToTensor::kName) return PilToTensor{};
  if (name == ToImage::kName) return ToImage{};
  if (name == ToDtype::kName) {
    const Dtype dtype = options.take_name("dtype", kDtypes, "");
    return ToDtype{dtype, options.take_bool("scale", false)};
  }
  if (name == ConvertImageDtype::kName) {
    return ConvertImageDtype{options.take_name("dtype", kDtypes, "")};
  }
  if (name == Normalize::kName) return parse_normalize(options);
  refuse(name, "unknown operation");
}

Recipe parse_document(const Json& document) {
  Recipe recipe;
  Options top("pipeline", document);
  if (top.take_any("headrace") != kFormatVersion) top.fail("headrace", "must be 1");
  recipe.pass_order = top.take_name("resize_passes", kPassOrders, "by_size");
  recipe.memory_format = top.take_name("memory_format", kMemoryFormats, "contiguous");
  const Json list = top.take_any("ops");
  if (!list.is_array()) top.fail("ops", "must be a list");
  top.finish();

  for (const Json& entry : list) {
    const std::string name = entry.is_object() ? entry.value("op", "") : "";
    Options options(name.empty() ? "operation without op" : name, entry);
    options.take_any("op");
    recipe.operations.push_back(parse_operation(name, options));
    options.finish();
  }
  return recipe;
}

Json size_json(ImageSize size) { return {size.height, size.width}; }

Json padding_json(const Padding& padding, const Border& border) {
  return {{"padding", {padding.left, padding.top, padding.right, padding.bottom}},
          {"fill", border.fill},
          {"padding_mode", name_in(kPaddingModes, border.mode)}};
}

struct Writer {
  Json operator()(const ResizeExact& op) const {
    return {{"size", size_json(op.size)}, {"interpolation", name_in(kFilters, op.filter)}};
  }
  Json operator()(const ResizeShorterEdge& op) const {
    return {{"size", op.edge},
            {"max_size", op.max_size ? Json(*op.max_size) : Json(nullptr)},
            {"interpolation", name_in(kFilters, op.filter)}};
  }
  Json operator()(const CenterCrop& op) const { return {{"size", size_json(op.size)}}; }
  Json operator()(const RandomResizedCrop& op) const {
    return {{"size", size_json(op.size)},
            {"scale", op.scale},
            {"ratio", op.ratio},
            {"log_ratio", {double{op.log_ratio[0]}, double{op.log_ratio[1]}}},
            {"interpolation", name_in(kFilters, op.filter)}};
  }
  Json operator()(const Pad& op) const { return padding_json(op.padding, op.border); }
  Json operator()(const RandomCrop& op) const {
    Json entry{{"size", size_json(op.size)},
               {"pad_if_needed", op.pad_if_needed},
               {"api", name_in(kApis, op.api)}};
    entry.update(padding_json(op.padding, op.border));
    return entry;
  }
  Json operator()(const RandomHorizontalFlip& op) const { return {{"p", op.p}}; }
  Json operator()(const RandomVerticalFlip& op) const { return {{"p", op.p}}; }
  Json operator()(const Grayscale& op) const {
    return {{"num_output_channels", op.num_output_channels}};
  }
  Json operator()(const RandomGrayscale& op) const { return {{"p", op.p}}; }
  Json operator()(const Rgb&) const { return Json::object(); }
  Json operator()(const ToTensor&) const { return Json::object(); }
  Json operator()(const PilToTensor&) const { return Json::object(); }
  Json operator()(const ToImage&) const { return Json::object(); }
  Json operator()(const ToDtype& op) const {
    return {{"dtype", name_in(kDtypes, op.dtype)}, {"scale", op.scale}};
  }
  Json operator()(const ConvertImageDtype& op) const {
    return {{"dtype", name_in(kDtypes, op.dtype)}};
  }
  Json operator()(const Normalize& op) const { return {{"mean", op.mean}, {"std", op.std}}; }
};

}  // namespace

Recipe parse_recipe(std::string_view json) {
  try {
    return parse_document(Json::parse(json));
  } catch (const Json::exception& error) {
    refuse("pipeline", error.what());
  }
}

std::string write_recipe(const Recipe& recipe) {
  Json ops = Json::array();
  for (const Operation& operation : recipe.operations) {
    Json entry{{"op", std::visit([](const auto& op) { return op.kName; }, operation)}};
    entry.update(std::visit(Writer(), operation));
    ops.push_back(std::move(entry));
  }
  return Json{{"headrace", kFormatVersion},
              {"resize_passes", name_in(kPassOrders, recipe.pass_order)},
              {"memory_format", name_in(kMemoryFormats, recipe.memory_format)},
              {"ops", std::move(ops)}}
      .dump();
}

}  // namespace headrace
