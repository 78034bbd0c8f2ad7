// The draws and sizes of each operation, as torchvision makes them.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <utility>

#include "transform_impl.h"

namespace headrace {
namespace {

/// Python's round(): ties go to the even neighbour.
double round_half_even(double value) { return std::nearbyint(value); }

struct CropSize {
  double width;
  double height;
  bool operator==(const CropSize&) const = default;
};

CropSize crop_size(double area, float aspect_ratio) {
  return {round_half_even(std::sqrt(area * aspect_ratio)),
          round_half_even(std::sqrt(area / aspect_ratio))};
}

/// Two float32 steps up or down: torch's exp errs by one at most.
float nudge(float value, float towards) {
  return std::nextafter(std::nextafter(value, towards), towards);
}

class Planner {
 public:
  Planner(ImageSize size, RandomStream& random) : size_(size), random_(random) {
    plan_.source = Region::whole(size);
  }

  void operator()(const ResizeExact& op) { resize(op.size.width, op.size.height, op.filter); }

  void operator()(const ResizeShorterEdge& op) {
    const bool upright = size_.width <= size_.height;
    const std::int64_t old_short = upright ? size_.width : size_.height;
    const std::int64_t old_long = upright ? size_.height : size_.width;
    std::int64_t new_short = op.edge;
    std::int64_t new_long = scaled(op.edge, old_long, old_short);
    if (op.max_size && new_long > *op.max_size) {
      new_short = scaled(*op.max_size, new_short, new_long);
      new_long = *op.max_size;
    }
    resize(upright ? new_short : new_long, upright ? new_long : new_short, op.filter);
  }

  void operator()(const CenterCrop& op) {
    crop(center(size_.width, op.size.width), center(size_.height, op.size.height), op.size.width,
         op.size.height);
  }

  void operator()(const RandomResizedCrop& op) {
    random_crop(op);
    if (plan_.doubt.empty()) resize(op.size.width, op.size.height, op.filter);
  }

  void operator()(const RandomHorizontalFlip& op) {
    // torch compares float32 with float32.
    if (random_.rand() >= static_cast<float>(op.p)) return;
    plan_.steps.push_back(
        {.kind = PlanStep::Kind::kFlip, .width = size_.width, .height = size_.height});
  }

  void operator()(const ToTensor&) {}
  void operator()(const PilToTensor&) {}
  void operator()(const ToImage&) {}
  void operator()(const ToDtype&) {}
  void operator()(const Normalize&) {}

  Plan& plan() { return plan_; }

  /// Leaves out of the source what a first resize makes only for a crop to cut away.
  void narrow_source() {
    if (plan_.steps.size() < 2) return;
    PlanStep& resize = plan_.steps[0];
    const PlanStep& crop = plan_.steps[1];
    const Region window{crop.left, crop.top, crop.width, crop.height};
    const ImageSize size{resize.width, resize.height};
    if (resize.kind != PlanStep::Kind::kResize || crop.kind != PlanStep::Kind::kCrop ||
        !window.inside(size)) {
      return;
    }
    const Region reads = needed(resize.from, size, resize.filter, window);
    resize.left = reads.left;
    resize.top = reads.top;
    plan_.source = {plan_.source.left + reads.left, plan_.source.top + reads.top, reads.width,
                    reads.height};
  }

 private:
  /// int(length * numerator / denominator), truncated as torchvision does.
  static std::int64_t scaled(std::int64_t length, std::int64_t numerator,
                             std::int64_t denominator) {
    return static_cast<std::int64_t>(static_cast<double>(length * numerator) /
                                     static_cast<double>(denominator));
  }

  /// Offset of a centred crop; negative where the image is smaller and is padded first, one pixel
  /// more after than before when the difference is odd.
  static int center(int length, int wanted) {
    if (wanted > length) return -((wanted - length) / 2);
    return static_cast<int>(round_half_even((length - wanted) / 2.0));
  }

  void random_crop(const RandomResizedCrop& op) {
    constexpr int kAttempts = 10;
    constexpr float kInfinity = std::numeric_limits<float>::infinity();
    const double area = static_cast<double>(size_.width) * size_.height;
    for (int attempt = 0; attempt < kAttempts; ++attempt) {
      const double target_area = area * random_.uniform(op.scale[0], op.scale[1]);
      const double log_ratio = random_.uniform(op.log_ratio[0], op.log_ratio[1]);
      const auto aspect_ratio = static_cast<float>(std::exp(log_ratio));
      const CropSize found = crop_size(target_area, aspect_ratio);
      if (crop_size(target_area, nudge(aspect_ratio, 0.0f)) != found ||
          crop_size(target_area, nudge(aspect_ratio, kInfinity)) != found) {
        plan_.doubt = "random_resized_crop: the crop's size hangs on the last bit of torch.exp";
        return;
      }
      if (found.width > 0 && found.width <= size_.width && found.height > 0 &&
          found.height <= size_.height) {
        const auto width = static_cast<int>(found.width);
        const auto height = static_cast<int>(found.height);
        const auto top = static_cast<int>(random_.randint(0, size_.height - height + 1));
        const auto left = static_cast<int>(random_.randint(0, size_.width - width + 1));
        crop(left, top, width, height);
        return;
      }
    }
    fallback_crop(std::min(op.ratio[0], op.ratio[1]), std::max(op.ratio[0], op.ratio[1]));
  }

  /// The largest central crop within the allowed ratios.
  void fallback_crop(double min_ratio, double max_ratio) {
    const double ratio = static_cast<double>(size_.width) / size_.height;
    int width = size_.width;
    int height = size_.height;
    if (ratio < min_ratio) {
      height = static_cast<int>(round_half_even(width / min_ratio));
    } else if (ratio > max_ratio) {
      width = static_cast<int>(round_half_even(height * max_ratio));
    }
    crop((size_.width - width) / 2, (size_.height - height) / 2, width, height);
  }

  void crop(int left, int top, int width, int height) {
    const bool inside = Region{left, top, width, height}.inside(size_);
    if (!accept(width, height)) return;
    if (inside && plan_.steps.empty()) {
      plan_.source = {plan_.source.left + left, plan_.source.top + top, width, height};
    } else {
      plan_.steps.push_back({PlanStep::Kind::kCrop, left, top, width, height});
    }
  }

  void resize(std::int64_t width, std::int64_t height, Filter filter) {
    const ImageSize from = size_;
    if (!accept(width, height)) return;
    plan_.steps.push_back({.kind = PlanStep::Kind::kResize,
                           .width = size_.width,
                           .height = size_.height,
                           .filter = filter,
                           .from = from});
  }

  bool accept(std::int64_t width, std::int64_t height) {
    if (width < 1 || height < 1) {
      plan_.doubt = "torchvision fails on an image without pixels";
    } else if (width > kPixelLimit / height) {
      plan_.doubt = "an image of " + std::to_string(width) + "x" + std::to_string(height) +
                    " pixels on the way is too large";
    } else {
      size_ = {static_cast<int>(width), static_cast<int>(height)};
    }
    return plan_.doubt.empty();
  }

  ImageSize size_;
  RandomStream& random_;
  Plan plan_;
};

}  // namespace

Plan Transform::plan(ImageSize size, RandomStream& random) const {
  const RandomStream start = random;
  Planner planner(size, random);
  for (const Operation& operation : impl_->recipe.operations) {
    std::visit(planner, operation);
    if (!planner.plan().doubt.empty()) {
      random = start;
      break;
    }
  }
  planner.narrow_source();
  return std::move(planner.plan());
}

}  // namespace headrace
