#include "headrace/transform.h"

#include <algorithm>
#include <bit>
#include <iterator>
#include <optional>
#include <utility>

#include "field_writer.h"
#include "float_bits.h"
#include "headrace/error.h"
#include "resample.h"
#include "transform_impl.h"

namespace headrace {
namespace {

constexpr std::int64_t kRgbChannels = 3;

[[noreturn]] void refuse(const char* operation, const std::string& why) {
  throw Error(ErrorCode::kInvalidArgument, std::string(operation) + ": " + why,
              {.stage = "transform"});
}

/// Follows the operations with the shape, the type and the value of each possible pixel.
class Checker {
 public:
  Checker() {
    for (auto& channel : values_) {
      for (std::size_t i = 0; i < channel.size(); ++i) channel[i] = static_cast<float>(i);
    }
  }

  void operator()(const ResizeExact& op) { give_size(op.kName, op.size); }
  void operator()(const CenterCrop& op) {
    need_border(op.kName, {});
    size_ = op.size;
  }
  void operator()(const RandomResizedCrop& op) { give_size(op.kName, op.size); }
  void operator()(const Pad& op) {
    need_border(op.kName, op.border);
    if (!size_) return;
    size_->width += op.padding.left + op.padding.right;
    size_->height += op.padding.top + op.padding.bottom;
    if (size_->width > kPixelLimit / size_->height) refuse(op.kName, "the result is too large");
  }
  void operator()(const RandomCrop& op) {
    if (op.pad_if_needed || op.padding != Padding{}) need_border(op.kName, op.border);
    size_ = op.size;
  }
  void operator()(const ResizeShorterEdge& op) {
    need_pixels(op.kName);
    size_.reset();
    size_lost_by_ = op.kName;
  }
  void operator()(const RandomHorizontalFlip&) {}
  void operator()(const RandomVerticalFlip&) {}
  void operator()(const Grayscale& op) {
    need_pixels(op.kName);
    channels_ = op.num_output_channels;
  }
  void operator()(const RandomGrayscale& op) { need_pixels(op.kName); }
  void operator()(const Rgb& op) {
    need_pixels(op.kName);
    channels_ = kRgbChannels;
  }

  void operator()(const ToTensor& op) {
    become_tensor(op.kName);
    dtype_ = Dtype::kFloat32;
    each_value([](float value) { return value / 255.0f; });
  }
  void operator()(const PilToTensor& op) { become_tensor(op.kName); }
  void operator()(const ToImage& op) { become_tensor(op.kName); }

  void operator()(const ToDtype& op) {
    need_tensor(op.kName);
    if (op.dtype == dtype_) return;
    const Dtype from = std::exchange(dtype_, op.dtype);
    if (from == Dtype::kFloat16 || from == Dtype::kBfloat16) {
      refuse(op.kName, "float16 and bfloat16 must come last");
    }
    if (dtype_ != Dtype::kUint8) {
      if (op.scale && from == Dtype::kUint8) {
        each_value([](float value) { return value * static_cast<float>(1.0 / 255); });
      }
      return;  // 16 bits: rounded at the end, once
    }
    each_value([&op](float value) {
      if (op.scale) value *= 255.999f;
      // What becomes of others depends on torch's kernel.
      if (!(value >= 0.0f && value < 256.0f)) refuse(op.kName, "values outside of uint8");
      return static_cast<float>(static_cast<std::uint8_t>(value));
    });
  }

  void operator()(const ConvertImageDtype& op) {
    need_tensor(op.kName);
    if (dtype_ != Dtype::kUint8) return (*this)(ToDtype{op.dtype, /*scale=*/true});
    if (op.dtype != Dtype::kUint8) {
      each_value([](float value) { return value / 255.0f; });
    }
    dtype_ = op.dtype;
  }

  void operator()(const Normalize& op) {
    need_tensor(op.kName);
    if (dtype_ != Dtype::kFloat32) refuse(op.kName, "needs float32 values");
    for (const auto* list : {&op.mean, &op.std}) {
      if (channels_ == 1 && list->size() != 1) refuse(op.kName, "the image has one channel");
    }
    for (std::size_t channel = 0; channel < values_.size(); ++channel) {
      const auto of_channel = [channel](const std::vector<double>& list) {
        return static_cast<float>(list.size() == 1 ? list[0] : list[channel]);
      };
      const float mean = of_channel(op.mean);
      const float std = of_channel(op.std);
      if (std == 0.0f) refuse(op.kName, "std is zero in float32");
      for (float& value : values_[channel]) value = (value - mean) / std;
    }
  }

  void finish(Pipeline& pipeline) const {
    if (!tensor_) refuse("pipeline", "ends without to_tensor, pil_to_tensor or to_image");
    if (!size_) refuse(size_lost_by_, "the size of the result depends on the image");
    pipeline.output = {
        "image", dtype_, {channels_, size_->height, size_->width}, pipeline.recipe.memory_format};
    switch (dtype_) {
      case Dtype::kUint8:
        fill(pipeline.values_8, [](float value) { return static_cast<std::uint8_t>(value); });
        break;
      case Dtype::kFloat16:
        fill(pipeline.values_16, float16_bits);
        break;
      case Dtype::kBfloat16:
        fill(pipeline.values_16, bfloat16_bits);
        break;
      default:
        fill(pipeline.values_32, [](float value) { return std::bit_cast<std::uint32_t>(value); });
    }
  }

 private:
  void need_pixels(const char* operation) const {
    if (tensor_) refuse(operation, "on tensors torchvision computes otherwise than Pillow");
  }
  void need_tensor(const char* operation) const {
    if (!tensor_) refuse(operation, "needs a tensor");
  }
  /// A constant border is a value, which has to come out of the table as those of pixels do.
  void need_border(const char* operation, const Border& border) const {
    if (border.mode != Border::Mode::kConstant) return;
    const auto [red, green, blue] = border.fill;
    if (channels_ == 1 && (red != green || red != blue)) {
      refuse(operation, "a fill of three numbers for one channel");
    }
    if (!tensor_) return;
    for (std::size_t channel = 0; channel < values_.size(); ++channel) {
      const std::uint8_t fill = border.fill[channel];
      if (values_[channel][fill] != static_cast<float>(fill)) {
        refuse(operation, "its border is no value of a pixel there");
      }
    }
  }
  void give_size(const char* operation, ImageSize size) {
    need_pixels(operation);
    size_ = size;
  }
  void become_tensor(const char* operation) {
    if (tensor_) refuse(operation, "the image is a tensor already");
    tensor_ = true;
  }
  template <typename T, typename Function>
  void fill(ValueTable<T>& table, const Function& bits_of) const {
    for (std::size_t channel = 0; channel < values_.size(); ++channel) {
      std::ranges::transform(values_[channel], table[channel].begin(), bits_of);
    }
  }
  template <typename Function>
  void each_value(const Function& function) {
    for (auto& channel : values_) std::ranges::transform(channel, channel.begin(), function);
  }

  std::optional<ImageSize> size_;
  const char* size_lost_by_ = "pipeline";
  bool tensor_ = false;
  std::int64_t channels_ = kRgbChannels;
  Dtype dtype_ = Dtype::kUint8;
  ValueTable<float> values_;
};

/// The picture on its way through a plan: a view, and what has not been done to it yet because the
/// rows may go straight into the field.
class Canvas {
 public:
  Canvas(const RgbImage& image, PassOrder pass_order, TransformScratch& scratch)
      : view_(view_of(image)), pass_order_(pass_order), scratch_(scratch) {}

  void flip_horizontally() { mirrored_ = !mirrored_; }
  void flip_vertically() { upside_down_ = !upside_down_; }

  void crop(const Region& window, const Border& border) {
    settle();
    if (window.inside(view_.size)) {
      view_ = part_of(view_, window);
    } else {
      headrace::crop(view_, window, border, spare());
      adopt_spare();
    }
  }

  void gray() {
    settle();
    headrace::gray(view_, spare());
    adopt_spare();
  }

  /// @param window  of the result: what else there is in it need not be made.
  void resize(const PlanStep& step, const Region& window) {
    settle();
    pending_ = {step.from, step.left, step.top, {step.width, step.height}, step.filter, window};
  }

  /// Of the rows that the sink will get.
  ImageSize size() const { return pending_ ? pending_->window.size() : view_.size; }
  /// Whether the sink must mirror them left to right.
  bool mirrored() const { return mirrored_; }

  void finish(const RowSink& sink) {
    if (upside_down_) {
      const int last_y = size().height - 1;
      make_rows([&](int y, const std::uint8_t* row) { sink(last_y - y, row); });
    } else {
      make_rows(sink);
    }
  }

 private:
  struct Resize {
    ImageSize from;
    int left;  // of view_ in an image of that size
    int top;
    ImageSize size;
    Filter filter;
    Region window;
  };

  void make_rows(const RowSink& sink) {
    const Resize none{view_.size, 0, 0, view_.size, Filter::kNearest, Region::whole(view_.size)};
    const Resize last = pending_.value_or(none);
    headrace::resize({view_, last.from, last.left, last.top}, last.size, last.filter, pass_order_,
                     last.window, best_kernels(), scratch_.intermediate, sink);
  }

  void settle() {
    if (pending_ || upside_down_) {
      spare().reshape(size());
      finish(copy_to(spare()));
      pending_.reset();
      upside_down_ = false;
      adopt_spare();
    }
    if (std::exchange(mirrored_, false)) {
      flip(view_, spare());
      adopt_spare();
    }
  }

  RgbImage& spare() { return scratch_.image[spare_]; }
  void adopt_spare() {
    view_ = view_of(spare());
    spare_ = 1 - spare_;
  }

  RgbView view_;
  PassOrder pass_order_;
  TransformScratch& scratch_;
  int spare_ = 0;
  std::optional<Resize> pending_;
  bool mirrored_ = false;  // after the pending resize
  bool upside_down_ = false;
};

Region window_of(const PlanStep& step) { return {step.left, step.top, step.width, step.height}; }

void apply_steps(const std::vector<PlanStep>& steps, Canvas& canvas) {
  for (auto step = steps.begin(); step != steps.end(); ++step) {
    switch (step->kind) {
      case PlanStep::Kind::kHorizontalFlip:
        canvas.flip_horizontally();
        break;
      case PlanStep::Kind::kVerticalFlip:
        canvas.flip_vertically();
        break;
      case PlanStep::Kind::kGray:
        canvas.gray();
        break;
      case PlanStep::Kind::kCrop:
        canvas.crop(window_of(*step), step->border);
        break;
      case PlanStep::Kind::kResize: {
        const PlanStep& full = *step;
        const ImageSize size{full.width, full.height};
        Region window = Region::whole(size);
        // What the next step would cut away need not be computed.
        const auto next = std::next(step);
        if (next != steps.end() && next->kind == PlanStep::Kind::kCrop &&
            window_of(*next).inside(size)) {
          window = window_of(*next);
          step = next;
        }
        canvas.resize(full, window);
        break;
      }
    }
  }
}

}  // namespace

Transform::Transform(std::shared_ptr<const Impl> impl) : impl_(std::move(impl)) {}

Transform Transform::from_json(std::string_view json) {
  auto impl = std::make_shared<Impl>();
  impl->recipe = parse_recipe(json);
  Checker checker;
  for (const Operation& operation : impl->recipe.operations) std::visit(checker, operation);
  checker.finish(*impl);
  return Transform(std::move(impl));
}

std::string Transform::to_json() const { return write_recipe(impl_->recipe); }

const FieldSpec& Transform::output() const noexcept { return impl_->output; }

bool Transform::run(const RgbImage& image, const Plan& plan, TransformScratch& scratch,
                    std::span<std::byte> dst) const {
  if (image.size != plan.source.size()) {
    throw Error(ErrorCode::kInvalidArgument, "the image is not what the plan asks for",
                {.stage = "transform"});
  }
  Canvas canvas(image, impl_->recipe.pass_order, scratch);
  apply_steps(plan.steps, canvas);
  const FieldSpec& output = impl_->output;
  const ImageSize size = canvas.size();
  if (dst.size() != output.row_bytes() || size.height != output.shape[1] ||
      size.width != output.shape[2]) {
    throw Error(ErrorCode::kInvalidArgument, "the plan or the destination is another transform's",
                {.stage = "transform"});
  }
  const bool mirror_later = canvas.mirrored() && impl_->finish.has_value();
  const auto write = [&]<typename T>(const ValueTable<T>& values) {
    const FieldWriter<T> writer(values, output, canvas.mirrored() && !mirror_later,
                                reinterpret_cast<T*>(dst.data()));
    canvas.finish([&writer](int y, const std::uint8_t* row) { writer.write(y, row); });
  };
  switch (dtype_bytes(output.dtype)) {
    case 1:
      write(impl_->values_8);
      break;
    case 2:
      write(impl_->values_16);
      break;
    default:
      write(impl_->values_32);
  }
  return mirror_later;
}

void Transform::apply(std::span<const std::byte> file, RandomStream& random,
                      std::span<std::byte> dst) const {
  const auto doubt = [](const char* stage, const std::string& reason) {
    return Error(ErrorCode::kDoubtfulData, reason, {.stage = stage});
  };
  const auto inspected = inspect_image(file, static_cast<std::uint64_t>(kPixelLimit));
  if (const auto* found = std::get_if<Doubt>(&inspected)) throw doubt("decode", found->reason);

  const auto& info = std::get<ImageInfo>(inspected);
  RandomStream draws = random;
  const Plan made = plan(info.size, draws);
  if (!made.doubt.empty()) throw doubt("transform", made.doubt);
  RgbImage image;
  ImageDecoder().decode(file, info, made.source, image);
  TransformScratch scratch;
  run(image, made, scratch, dst);
  random = draws;
}

}  // namespace headrace
