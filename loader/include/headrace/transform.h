// torchvision's transforms on one image: compressed bytes and a random stream in, one field out.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "headrace/api.h"
#include "headrace/field.h"
#include "headrace/image.h"
#include "headrace/random.h"

namespace HEADRACE_API headrace {

enum class Filter { kNearest, kBilinear, kBicubic };

/// What stands outside of an image, where a crop reaches over its edge: torchvision's padding
/// modes.
struct Border {
  enum class Mode {
    kConstant,   ///< `fill`
    kEdge,       ///< the nearest pixel
    kReflect,    ///< the image, mirrored at the centre of the pixels of its edge
    kSymmetric,  ///< the image, mirrored at its edge
  };
  Mode mode = Mode::kConstant;
  std::array<std::uint8_t, 3> fill = {};

  bool operator==(const Border&) const = default;
};

/// One resolved step of a plan, on pixels: no randomness is left in it.
struct PlanStep {
  enum class Kind {
    kCrop,            ///< keep [left, left+width) x [top, top+height), outside the image `border`
    kResize,          ///< to width x height with `filter`, as Pillow's Image.resize
    kHorizontalFlip,  ///< mirror left to right
    kVerticalFlip,    ///< mirror top to bottom
    kGray,            ///< red, green and blue become the luminance of Pillow's mode L
  };
  Kind kind = Kind::kCrop;
  int left = 0;  ///< kCrop: of the result in the image. kResize: of the pixels at hand in it
  int top = 0;
  int width = 0;   ///< of the result
  int height = 0;  ///< of the result
  Filter filter = Filter::kBilinear;
  /// What the step is made from. Of a kResize that is the image, of which the first step may have a
  /// part only.
  ImageSize from = {};
  Border border = {};  ///< kCrop

  bool operator==(const PlanStep&) const = default;
};

/// Everything that randomness and the image's size decide.
struct Plan {
  /// What to decode: the pixels that the steps start with. Crops of the image itself end up here,
  /// and what is left of it when a resize is followed by a crop.
  Region source;
  std::vector<PlanStep> steps;
  /// Pixels of the largest crop that torchvision makes: Pillow holds its limit against it.
  std::int64_t largest_crop = 0;
  /// The plan could come out otherwise within the accuracy of torch's exp, or torchvision would
  /// fail on it: the installed torchvision must compute this sample. Empty when there is no doubt.
  std::string doubt;
};

/// Scratch memory of one thread.
struct TransformScratch {
  RgbImage image[2];
  std::vector<std::uint8_t> intermediate;
};

/// What is left to do after a split transform: each value of each channel becomes another, and rows
/// that are marked are mirrored. It needs no arithmetic, so a GPU does it without rounding anew.
struct PixelFinish {
  /// What comes out: the field of the whole transform.
  FieldSpec output;
  /// Bit patterns of output.dtype, shape [3, 256].
  std::vector<std::byte> table;
};

/// A pipeline of torchvision's operations. Immutable; one instance serves all threads.
///
/// JSON form: `{"headrace": 1, "ops": [{"op": "random_resized_crop", "size": [224, 224]}, ...]}`.
/// Unknown operations, options and values are refused. Options with `=` may be left out:
///
///     resize                  size: [height, width], or the length of the shorter edge;
///                             max_size=null: limit of the longer edge, with a shorter edge only;
///                             interpolation="bilinear" | "nearest" | "bicubic"
///     center_crop             size: [height, width]
///     random_resized_crop     size: [height, width]; scale=[0.08, 1]; ratio=[3/4, 4/3];
///                             log_ratio: float32 logarithms of ratio, computed when left out
///                             (torch's own may differ in the last bit); interpolation="bilinear"
///     pad                     padding: [left, top, right, bottom]; fill=0, or one number for each
///                             channel; padding_mode="constant" | "edge" | "reflect" | "symmetric"
///     random_crop             size: [height, width]; padding=[0, 0, 0, 0], fill and padding_mode
///                             as pad; pad_if_needed=false; api: "v1" or "v2", the torchvision
///                             namespace whose draws and order of padding it has
///     random_horizontal_flip  p=0.5
///     random_vertical_flip    p=0.5
///     grayscale               num_output_channels=1 | 3
///     random_grayscale        p=0.1
///     rgb                     three channels of one
///     to_tensor               float32: value / 255
///     pil_to_tensor           uint8
///     to_image                uint8
///     to_dtype                dtype: "float32" | "float16" | "bfloat16" | "uint8"; scale=false: as
///                             v2.ToDtype
///     convert_image_dtype     dtype: as v1.ConvertImageDtype, which divides by 255; v2.ToDtype
///                             multiplies by 1 / 255
///     normalize               mean, std: one number each or one for each channel, on float32
///
/// Beside "ops" may stand "memory_format", how the field lies in memory: "contiguous" (the default)
/// or "channels_last"; and "resize_passes", the order of a resize's two passes, which shows in the
/// last bit of pixels: "by_size" (Pillow 13, the default), "width_first_unless_tall" (12.2, 12.3)
/// or "width_first" (up to 12.1).
///
/// One conversion to a tensor is needed. What resizes or makes gray must come before it
/// (torchvision's tensor kernels differ from Pillow's), to_dtype and normalize after it. What only
/// moves pixels may stand anywhere, but a constant border must have a value there that some pixel
/// has.
class Transform {
 public:
  /// @throws Error{kInvalidArgument}: not JSON, an unknown operation or option, or a pipeline whose
  /// result has no constant shape or is no tensor; the message names the operation.
  static Transform from_json(std::string_view json);
  /// The same pipeline: from_json(to_json()) gives the same fields to the last bit.
  std::string to_json() const;

  /// The field that it makes: "image", uint8, float32, float16 or bfloat16, [channels, height,
  /// width] with 3 channels or 1.
  const FieldSpec& output() const noexcept;

  /// Makes the draws for one image, in torchvision's order. Cheap; depends on the size alone.
  /// With a doubt in the plan `random` is where it was before.
  Plan plan(ImageSize size, RandomStream& random) const;

  /// Applies `plan` to decoded pixels and writes the finished field.
  /// @param image    the decoded pixels of plan.source; not part of `scratch`.
  /// @param dst      output().row_bytes() bytes, aligned for its dtype, fully overwritten.
  /// @returns whether the field is still to be mirrored; only ever after a split.
  /// @throws Error{kInvalidArgument}: a plan or a `dst` that does not belong to this transform.
  bool run(const RgbImage& image, const Plan& plan, TransformScratch& scratch,
           std::span<std::byte> dst) const;

  /// All in one, for a single image (a serving program): inspect, plan, decode, run.
  /// @param file  whole JPEG or PNG file.
  /// @throws Error{kDoubtfulData}: only Pillow and torchvision may judge this image. `random` is
  /// then where it was before.
  void apply(std::span<const std::byte> file, RandomStream& random, std::span<std::byte> dst) const;

  /// The part that makes pixels: "image", uint8, channels_last; a flip that comes last is left to
  /// finish(). It has the plans of the whole, and its to_json().
  /// @throws Error{kInvalidArgument}: splits() is false.
  Transform split() const;
  /// Whether there is a split transform: not of one channel, nor where the output is uint8 already,
  /// so that nothing would be saved.
  bool splits() const noexcept;
  /// What is left to do; null unless this came from split().
  const PixelFinish* finish() const noexcept;
  /// Takes back finish(): the pixels of a field that the whole transform made.
  /// @param finished  finish()->output.row_bytes() bytes.
  /// @param pixels    output().row_bytes() bytes, not to be mirrored.
  /// @throws Error{kInvalidArgument}: a value that no pixel becomes, or the wrong sizes.
  void unfinish(std::span<const std::byte> finished, std::span<std::byte> pixels) const;

 private:
  struct Impl;
  explicit Transform(std::shared_ptr<const Impl> impl);
  std::shared_ptr<const Impl> impl_;
};

}  // namespace headrace
