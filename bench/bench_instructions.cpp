// A fixed amount of work for each hot stage, for counting instructions under callgrind, whose parts
// of output are named after the stages. bench/instructions.py runs it and compares:
//   valgrind --tool=callgrind --collect-atstart=no build/release/bench/bench_instructions
#include <valgrind/callgrind.h>

#include <cstdint>
#include <cstdio>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "entropy_floor.h"
#include "headrace/jpeg.h"
#include "headrace/random.h"
#include "headrace/transform.h"
#include "made_picture.h"

namespace {

using headrace::ImageSize;
using headrace::JpegDecoder;
using headrace::Plan;
using headrace::RandomStream;
using headrace::RgbImage;
using headrace::Transform;
using headrace::TransformScratch;

constexpr ImageSize kSize{500, 375};  // ImageNet's median
constexpr std::uint64_t kPixelLimit = 89'478'485;

constexpr const char* kTrain = R"({"headrace": 1, "ops": [
    {"op": "random_resized_crop", "size": [224, 224]}, {"op": "random_horizontal_flip", "p": 1},
    {"op": "to_tensor"},
    {"op": "normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}]})";
constexpr const char* kEvaluation = R"({"headrace": 1, "ops": [
    {"op": "resize", "size": 256}, {"op": "center_crop", "size": [224, 224]}, {"op": "to_tensor"},
    {"op": "normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}]})";
constexpr const char* kBicubic = R"({"headrace": 1, "ops": [
    {"op": "resize", "size": [224, 224], "interpolation": "bicubic"}, {"op": "pil_to_tensor"}]})";
constexpr const char* kResize = R"({"headrace": 1, "ops": [
    {"op": "resize", "size": [224, 224]}, {"op": "pil_to_tensor"}]})";
constexpr const char* kNormalize = R"({"headrace": 1, "ops": [
    {"op": "center_crop", "size": [224, 224]}, {"op": "to_tensor"},
    {"op": "normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}]})";

/// Counts the second call of `work`: the first one allocates and binds what it needs.
template <typename Work>
void count(const char* stage, const Work& work) {
  work();
  CALLGRIND_TOGGLE_COLLECT;
  work();
  CALLGRIND_TOGGLE_COLLECT;
  CALLGRIND_DUMP_STATS_AT(stage);
}

/// One transform with what it needs around it.
struct Pipeline {
  explicit Pipeline(const char* json)
      : transform(Transform::from_json(json)), field(transform.output().row_bytes()) {}

  void decode(std::span<const std::byte> file) { decoder.decode(file, plan.source, image); }
  void run() { transform.run(image, plan, scratch, field); }

  Transform transform;
  RandomStream random{0};
  Plan plan = transform.plan(kSize, random);
  JpegDecoder decoder;
  RgbImage image;
  TransformScratch scratch;
  std::vector<std::byte> field;
};

/// What the counts depend on, for instructions.py.
int print_environment() {
  std::printf("compiler: %s\nlibjpeg-turbo: %d\n", __VERSION__, LIBJPEG_TURBO_VERSION_NUMBER);
#if defined(__x86_64__)
  std::printf("avx2: %s\n", __builtin_cpu_supports("avx2") ? "yes" : "no");
#endif
  return 0;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc > 1 && argv[1] == std::string_view("--environment")) return print_environment();
  const std::vector<std::byte> file = headrace::bench::made_jpeg(kSize);

  count("inspect", [&] { headrace::inspect_jpeg(file, kPixelLimit); });
  count("entropy_floor", [&] { headrace::bench::decode_entropy(file); });

  JpegDecoder decoder;
  RgbImage whole;
  count("decode_whole", [&] { decoder.decode(file, std::nullopt, whole); });
  count("decode_region", [&] { decoder.decode(file, headrace::Region{120, 90, 260, 200}, whole); });

  for (const auto& [stage, json] :
       {std::pair{"resize_bilinear", kResize}, std::pair{"resize_bicubic", kBicubic},
        std::pair{"crop_normalize", kNormalize}}) {
    Pipeline pipeline(json);
    pipeline.decode(file);
    count(stage, [&] { pipeline.run(); });
  }

  Pipeline train(kTrain);
  count("plan_100", [&] {
    for (int i = 0; i < 100; ++i) train.transform.plan(kSize, train.random);
  });
  // The random part stays what it was: not every crop costs the same.
  Pipeline evaluation(kEvaluation);
  for (const auto& [stage, pipeline] :
       {std::pair{"train_sample", &train}, std::pair{"evaluation_sample", &evaluation}}) {
    count(stage, [&] {
      headrace::inspect_jpeg(file, kPixelLimit);
      pipeline->decode(file);
      pipeline->run();
    });
  }
}
