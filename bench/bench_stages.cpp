// What one sample costs on one core, stage by stage, and how far that is from the floor, which is
// the entropy decoding of a picture:
//   bench_stages [FOLDER [ROUNDS [STAGE]]]
//
// With a stage's name it runs that one alone and prints nothing: for counting instructions.
// Times are of the thread's own CPU clock, so that neighbours disturb less. Every sample is checked
// first against a plain path: decode all, cut, resize with scalar code, mirror, divide.
#include <sched.h>

#include <algorithm>
#include <array>
#include <cstdio>
#include <ctime>
#include <filesystem>
#include <fstream>
#include <functional>
#include <iterator>
#include <string>
#include <vector>

#include "entropy_floor.h"
#include "headrace/jpeg.h"
#include "headrace/random.h"
#include "headrace/transform.h"
#include "headrace/version.h"
#include "jpeg_decoder.h"
#include "made_picture.h"
#include "resample.h"

namespace {

using headrace::EntropyPath;
using headrace::ImageSize;
using headrace::Plan;
using headrace::PlanStep;
using headrace::Region;
using headrace::RgbImage;

constexpr int kEdge = 224;
constexpr std::array<float, 3> kMean{0.485f, 0.456f, 0.406f};
constexpr std::array<float, 3> kStd{0.229f, 0.224f, 0.225f};
constexpr const char* kRecipe = R"({"headrace": 1, "ops": [
    {"op": "random_resized_crop", "size": [224, 224]}, {"op": "random_horizontal_flip"},
    {"op": "to_tensor"},
    {"op": "normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}]})";
// The same steps without, and alone, what follows the geometry.
constexpr const char* kGeometry = R"({"headrace": 1, "ops": [
    {"op": "random_resized_crop", "size": [224, 224]}, {"op": "random_horizontal_flip"},
    {"op": "pil_to_tensor"}]})";
constexpr const char* kValues = R"({"headrace": 1, "ops": [
    {"op": "center_crop", "size": [224, 224]}, {"op": "to_tensor"},
    {"op": "normalize", "mean": [0.485, 0.456, 0.406], "std": [0.229, 0.224, 0.225]}]})";
constexpr std::uint64_t kPixelLimit = 89'478'485;

using File = std::vector<std::byte>;

struct Picture {
  std::string path;
  File file;
  Plan plan;
};

File read(const std::string& path) {
  std::ifstream in(path, std::ios::binary | std::ios::ate);
  File file(static_cast<std::size_t>(in.tellg()));
  in.seekg(0);
  in.read(reinterpret_cast<char*>(file.data()), static_cast<std::streamsize>(file.size()));
  return file;
}

std::vector<Picture> load(const std::string& folder, const headrace::Transform& transform) {
  std::vector<std::string> paths;
  for (const auto& entry : std::filesystem::recursive_directory_iterator(folder)) {
    if (entry.is_regular_file()) paths.push_back(entry.path());
  }
  std::ranges::sort(paths);
  headrace::RandomStream random(0);
  std::vector<Picture> pictures;
  for (const std::string& path : paths) {
    File file = read(path);
    const auto found = headrace::inspect_jpeg(file, kPixelLimit);
    const auto* size = std::get_if<ImageSize>(&found);
    if (size == nullptr) continue;
    Plan plan = transform.plan(*size, random);
    if (plan.doubt.empty()) pictures.push_back({path, std::move(file), std::move(plan)});
  }
  return pictures;
}

/// Nothing shared with the fast path but the arithmetic of single pixels.
std::vector<float> reference(const Picture& picture) {
  RgbImage whole;
  headrace::JpegDecoder().decode(picture.file, std::nullopt, whole);
  RgbImage cropped;
  headrace::crop(view_of(whole), picture.plan.source, {}, cropped);
  const ImageSize size{kEdge, kEdge};
  RgbImage resized;
  resized.reshape(size);
  std::vector<std::uint8_t> memory;
  headrace::resize(view_of(cropped), size, headrace::Filter::kBilinear,
                   headrace::PassOrder::kBySize, Region::whole(size),
                   headrace::all_kernels().front(), memory, headrace::copy_to(resized));
  const bool mirrored = std::ranges::any_of(picture.plan.steps, [](const PlanStep& step) {
    return step.kind == PlanStep::Kind::kHorizontalFlip;
  });
  std::vector<float> out;
  for (std::size_t channel = 0; channel < 3; ++channel) {
    for (std::size_t y = 0; y < kEdge; ++y) {
      for (std::size_t x = 0; x < kEdge; ++x) {
        const std::size_t from = mirrored ? kEdge - 1 - x : x;
        const float value = resized.pixels[(y * kEdge + from) * 3 + channel];
        out.push_back((value / 255.0f - kMean[channel]) / kStd[channel]);
      }
    }
  }
  return out;
}

int allowed_cores() {
  cpu_set_t cores;
  return sched_getaffinity(0, sizeof cores, &cores) == 0 ? CPU_COUNT(&cores) : 0;
}

double cpu_ms() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return static_cast<double>(now.tv_sec) * 1e3 + static_cast<double>(now.tv_nsec) * 1e-6;
}

double median(std::vector<double> values) {
  const auto middle = values.begin() + static_cast<std::ptrdiff_t>(values.size() / 2);
  std::ranges::nth_element(values, middle);
  return *middle;
}

struct Stage {
  const char* name;
  std::function<void(std::size_t)> work;  // on the picture of this number
  std::vector<double> ms{};               // mean over the pictures, for each round

  void run(std::size_t pictures) {
    const double start = cpu_ms();
    for (std::size_t i = 0; i < pictures; ++i) work(i);
    ms.push_back((cpu_ms() - start) / static_cast<double>(pictures));
  }
};

}  // namespace

int main(int argc, char** argv) {
  const std::string folder = argc > 1 ? argv[1] : "../shared/corpus/photos";
  const int rounds = argc > 2 ? std::stoi(argv[2]) : 7;
  if (!std::filesystem::is_directory(folder)) {
    std::fprintf(stderr, "bench_stages: no folder %s\n", folder.c_str());
    return 2;
  }
  const auto transform = headrace::Transform::from_json(kRecipe);
  const std::vector<Picture> pictures = load(folder, transform);
  if (pictures.empty()) {
    std::fprintf(stderr, "bench_stages: no pictures in %s\n", folder.c_str());
    return 2;
  }

  headrace::JpegDecoder decoder;
  headrace::TransformScratch scratch;
  RgbImage image;
  std::vector<float> row(transform.output().row_bytes() / sizeof(float));
  const auto sample = [&](const Picture& picture) {
    decoder.decode(picture.file, picture.plan.source, image);
    transform.run(image, picture.plan, scratch, std::as_writable_bytes(std::span(row)));
  };
  for (const Picture& picture : pictures) {
    sample(picture);
    if (row != reference(picture)) {
      std::fprintf(stderr, "bench_stages: wrong pixels: %s\n", picture.path.c_str());
      return 1;
    }
  }

  // The transform is timed on pixels that are at hand, as they are after decoding.
  std::vector<RgbImage> regions(pictures.size());
  for (std::size_t i = 0; i < pictures.size(); ++i) {
    decoder.decode(pictures[i].file, pictures[i].plan.source, regions[i]);
  }
  const auto geometry = headrace::Transform::from_json(kGeometry);
  const auto values = headrace::Transform::from_json(kValues);
  std::vector<std::byte> pixels(geometry.output().row_bytes());
  headrace::RandomStream unused(0);
  const Plan values_plan = values.plan({kEdge, kEdge}, unused);
  const RgbImage square = headrace::bench::made_pixels({kEdge, kEdge});
  // A region at the end has the rest decoded for its codes alone.
  std::vector<Region> last_pixels;
  for (const Picture& picture : pictures) {
    const auto found = headrace::inspect_jpeg(picture.file, kPixelLimit);
    const auto size = std::get<ImageSize>(found);
    last_pixels.push_back({size.width - 1, size.height - 1, 1, 1});
  }
  headrace::RegionDecoder region_decoder;
  Stage stages[] = {
      {"read, page cache", [&](std::size_t i) { read(pictures[i].path); }},
      {"inspect", [&](std::size_t i) { headrace::inspect_jpeg(pictures[i].file, kPixelLimit); }},
      {"entropy decoding alone",
       [&](std::size_t i) { headrace::bench::decode_entropy(pictures[i].file); }},
      {"entropy decoding, own",
       [&](std::size_t i) { region_decoder.decode(pictures[i].file, last_pixels[i], image); }},
      {"full decode, libjpeg's",
       [&](std::size_t i) {
         region_decoder.decode(pictures[i].file, std::nullopt, image, EntropyPath::kLibjpeg);
       }},
      {"full decode",
       [&](std::size_t i) { decoder.decode(pictures[i].file, std::nullopt, image); }},
      {"region decode, libjpeg's",
       [&](std::size_t i) {
         region_decoder.decode(pictures[i].file, pictures[i].plan.source, image,
                               EntropyPath::kLibjpeg);
       }},
      {"region decode",
       [&](std::size_t i) { decoder.decode(pictures[i].file, pictures[i].plan.source, image); }},
      {"resize, flip",
       [&](std::size_t i) { geometry.run(regions[i], pictures[i].plan, scratch, pixels); }},
      {"normalise",
       [&](std::size_t) {
         values.run(square, values_plan, scratch, std::as_writable_bytes(std::span(row)));
       }},
      {"resize, flip, normalise",
       [&](std::size_t i) {
         transform.run(regions[i], pictures[i].plan, scratch,
                       std::as_writable_bytes(std::span(row)));
       }},
      {"whole sample", [&](std::size_t i) { sample(pictures[i]); }}};
  if (argc > 3) {
    for (Stage& stage : stages) {
      for (int i = 0; stage.name == std::string(argv[3]) && i < rounds; ++i) {
        stage.run(pictures.size());
      }
    }
    return 0;
  }
  for (int round = 0; round < rounds; ++round) {
    for (Stage& stage : stages) stage.run(pictures.size());
  }

  std::printf("%-28s %8s\n", "stage", "ms");
  for (const Stage& stage : stages) std::printf("%-28s %8.3f\n", stage.name, median(stage.ms));
  const double floor = median(stages[2].ms);
  const double whole = median(std::end(stages)[-1].ms);
  std::printf("floor %.3f ms, whole %.3f ms: floor/whole = %.2f, %.3f ms above the floor\n", floor,
              whole, floor / whole, whole - floor);

  std::size_t bytes = 0;
  for (const Picture& picture : pictures) bytes += picture.file.size();
  std::printf(
      "{\"bench\": \"stages\", \"headrace\": \"%s\", \"cores_allowed\": %d, \"cache\": \"warm\", "
      "\"folder\": \"%s\", \"pictures\": %zu, \"mean_kb\": %.1f, "
      "\"rounds\": %d, \"clock\": \"thread CPU\", \"libjpeg_turbo\": %d, "
      "\"kernels\": \"%s\", \"compiler\": \"%s\"",
      headrace::version(), allowed_cores(), folder.c_str(), pictures.size(),
      static_cast<double>(bytes) / 1e3 / static_cast<double>(pictures.size()), rounds,
      LIBJPEG_TURBO_VERSION_NUMBER, headrace::best_kernels().name, __VERSION__);
  for (const Stage& stage : stages) std::printf(", \"%s\": %.4f", stage.name, median(stage.ms));
  std::printf(", \"floor/whole\": %.3f}\n", floor / whole);
}
