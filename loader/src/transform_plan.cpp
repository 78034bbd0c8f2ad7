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
    crop({center(size_.width, op.size.width), center(size_.height, op.size.height), op.size.width,
          op.size.height});
  }

  void operator()(const RandomResizedCrop& op) {
    random_crop(op);
    if (plan_.doubt.empty()) resize(op.size.width, op.size.height, op.filter);
  }

  void operator()(const Pad& op) { pad(op.padding, op.border); }

  void operator()(const RandomCrop& op) {
    const auto missing = [&op](int wanted, int length) {
      return op.pad_if_needed ? std::max(wanted - length, 0) : 0;
    };
    if (op.api == Api::kV1) {
      pad(op.padding, op.border);
      const int x = missing(op.size.width, size_.width);
      pad({x, 0, x, 0}, op.border);
      const int y = missing(op.size.height, size_.height);
      pad({0, y, 0, y}, op.border);
    } else {
      auto [left, top, right, bottom] = op.padding;
      const int x = missing(op.size.width, left + size_.width + right);
      const int y = missing(op.size.height, top + size_.height + bottom);
      pad({left + x, top + y, right + x, bottom + y}, op.border);
    }
    if (!plan_.doubt.empty()) return;
    const int spare_x = size_.width - op.size.width;
    const int spare_y = size_.height - op.size.height;
    if (spare_x < 0 || spare_y < 0) {
      plan_.doubt = "random_crop: the crop is larger than the image";
      return;
    }
    // v1 draws both or none, v2 what is needed.
    const bool draws_both = op.api == Api::kV1 && (spare_x > 0 || spare_y > 0);
    const auto draw = [&](int spare) {
      return spare > 0 || draws_both ? static_cast<int>(random_.randint(0, spare + 1)) : 0;
    };
    const int top = draw(spare_y);
    const int left = draw(spare_x);
    crop({left, top, op.size.width, op.size.height});
  }

  void operator()(const RandomHorizontalFlip& op) {
    change_by_chance(op.p, PlanStep::Kind::kHorizontalFlip);
  }
  void operator()(const RandomVerticalFlip& op) {
    change_by_chance(op.p, PlanStep::Kind::kVerticalFlip);
  }

  void operator()(const Grayscale&) { change(PlanStep::Kind::kGray); }
  void operator()(const RandomGrayscale& op) { change_by_chance(op.p, PlanStep::Kind::kGray); }
  void operator()(const Rgb&) {}

  void operator()(const ToTensor&) {}
  void operator()(const PilToTensor&) {}
  void operator()(const ToImage&) {}
  void operator()(const ToDtype&) {}
  void operator()(const ConvertImageDtype&) {}
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
        crop({left, top, width, height});
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
    crop({(size_.width - width) / 2, (size_.height - height) / 2, width, height});
  }

  void pad(const Padding& padding, const Border& border) {
    const auto [left, top, right, bottom] = padding;
    if (!plan_.doubt.empty() || padding == Padding{}) return;
    // Beyond that numpy mirrors again and again, and torch refuses.
    const bool reflects = border.mode == Border::Mode::kReflect;
    if ((reflects || border.mode == Border::Mode::kSymmetric) &&
        (std::max(left, right) > size_.width - reflects ||
         std::max(top, bottom) > size_.height - reflects)) {
      plan_.doubt = "more padding than the image has pixels to mirror";
      return;
    }
    const ImageSize from = size_;
    const Region window{-left, -top, left + from.width + right, top + from.height + bottom};
    if (accept(window.width, window.height)) place(window, from, border);
  }

  void crop(const Region& window) {
    if (window == Region::whole(size_)) return;
    const ImageSize from = size_;
    if (!accept(window.width, window.height)) return;
    plan_.largest_crop = std::max(plan_.largest_crop, std::int64_t{window.width} * window.height);
    place(window, from, {});
  }

  /// Crops of a crop, padded or not, become one. What lies inside of the image is kept apart from
  /// what is put around it: it need not be decoded, or made by a resize, with what is cut away.
  void place(const Region& window, ImageSize from, const Border& border) {
    if (window == Region::whole(from)) return;
    if (!plan_.steps.empty() && plan_.steps.back().kind == PlanStep::Kind::kCrop &&
        window.inside(from)) {
      const PlanStep last = plan_.steps.back();
      plan_.steps.pop_back();
      return place({last.left + window.left, last.top + window.top, window.width, window.height},
                   last.from, last.border);
    }
    const Region reads = inside_part(window, from, border.mode);
    if (plan_.steps.empty()) {
      plan_.source = {plan_.source.left + reads.left, plan_.source.top + reads.top, reads.width,
                      reads.height};
    } else if (reads != Region::whole(from)) {
      push_crop(reads, from, {});
    }
    if (reads != window) {
      push_crop({window.left - reads.left, window.top - reads.top, window.width, window.height},
                reads.size(), border);
    }
  }

  void push_crop(const Region& window, ImageSize from, const Border& border) {
    plan_.steps.push_back({.kind = PlanStep::Kind::kCrop,
                           .left = window.left,
                           .top = window.top,
                           .width = window.width,
                           .height = window.height,
                           .from = from,
                           .border = border});
  }

  /// A part of the image from which the window can be made: cut out of the image as it is out of
  /// the part, but for the places.
  static Region inside_part(const Region& window, ImageSize image, Border::Mode mode) {
    const bool mirrors = mode == Border::Mode::kReflect || mode == Border::Mode::kSymmetric;
    const auto axis = [mirrors](int begin, int wanted, int length) {
      const int end = begin + wanted;
      if (mirrors && (begin < 0 || end > length)) return std::pair{0, length};
      const int first = std::clamp(begin, 0, length - 1);
      return std::pair{first, std::clamp(end, first + 1, length) - first};
    };
    const auto [left, width] = axis(window.left, window.width, image.width);
    const auto [top, height] = axis(window.top, window.height, image.height);
    return {left, top, width, height};
  }

  void change_by_chance(double p, PlanStep::Kind kind) {
    // torch compares float32 with float32.
    if (random_.rand() < static_cast<float>(p)) change(kind);
  }

  void change(PlanStep::Kind kind) {
    plan_.steps.push_back({.kind = kind, .width = size_.width, .height = size_.height});
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
