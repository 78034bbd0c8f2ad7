#include <cstring>
#include <string>
#include <vector>

#include "headrace/error.h"
#include "headrace/transform.h"
#include "resample.h"
#include "support.h"

using headrace::Dtype;
using headrace::Error;
using headrace::ErrorCode;
using headrace::Filter;
using headrace::ImageSize;
using headrace::Plan;
using headrace::PlanStep;
using headrace::RandomStream;
using headrace::Region;
using headrace::RgbImage;
using headrace::Transform;
using headrace::TransformScratch;
using headrace::test::contains;

namespace {

Transform pipeline(const std::string& ops) {
  return Transform::from_json(R"({"headrace": 1, "ops": [)" + ops + "]}");
}

std::string refusal(const std::string& json) {
  try {
    Transform::from_json(json);
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::kInvalidArgument);
    return error.what();
  }
  return "accepted";
}

std::string refusal_of_ops(const std::string& ops) {
  return refusal(R"({"headrace": 1, "ops": [)" + ops + "]}");
}

constexpr const char* kResize = R"({"op": "resize", "size": [2, 3]},)";

/// A row of pixels 0, 1, 2, ... in red, 100 more in green, 200 in blue.
RgbImage ramp(int width, int height) {
  RgbImage image;
  image.reshape({width, height});
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    image.pixels[i] = static_cast<std::uint8_t>(i / 3 + 100 * (i % 3));
  }
  return image;
}

template <typename T>
std::vector<T> run(const Transform& transform, const RgbImage& image) {
  RandomStream random(0);
  const Plan plan = transform.plan(image.size, random);
  TransformScratch scratch;
  std::vector<T> out(transform.output().row_bytes() / sizeof(T));
  RgbImage decoded;
  headrace::crop(view_of(image), plan.source, {}, decoded);
  transform.run(decoded, plan, scratch, std::as_writable_bytes(std::span(out)));
  return out;
}

}  // namespace

TEST_CASE("transform describes its field", "[transform]") {
  const Transform transform = pipeline(std::string(kResize) + R"({"op": "to_tensor"})");
  REQUIRE(transform.output().name == "image");
  REQUIRE(transform.output().dtype == Dtype::kFloat32);
  REQUIRE(transform.output().shape == std::vector<std::int64_t>{3, 2, 3});
}

TEST_CASE("transform survives a round trip through JSON", "[transform]") {
  const char* ops = R"(
      {"op": "resize", "size": 256, "max_size": 400, "interpolation": "bicubic"},
      {"op": "random_resized_crop", "size": [224, 192], "scale": [0.1, 0.7],
       "ratio": [0.75, 1.3333333333333333], "log_ratio": [-0.2876821, 0.28768211603164673],
       "interpolation": "nearest"},
      {"op": "random_horizontal_flip", "p": 0.3}, {"op": "resize", "size": [7, 5]},
      {"op": "pad", "padding": [1, 2, 3, 4], "fill": [9, 8, 7]},
      {"op": "random_crop", "size": [5, 6], "padding": [0, 1, 0, 0], "padding_mode": "symmetric",
       "pad_if_needed": true, "api": "v2"}, {"op": "random_vertical_flip", "p": 0.25},
      {"op": "random_grayscale", "p": 0.125}, {"op": "grayscale", "num_output_channels": 1},
      {"op": "rgb"},
      {"op": "center_crop", "size": [4, 3]}, {"op": "pil_to_tensor"},
      {"op": "to_dtype", "dtype": "float32", "scale": true},
      {"op": "normalize", "mean": [0.1, 0.2, 0.3], "std": [0.7]})";
  const std::string json = pipeline(ops).to_json();
  REQUIRE(Transform::from_json(json).to_json() == json);
  for (const char* part : {"\"max_size\":400", "[0.1,0.7]", "0.28768211603164673", "\"p\":0.3",
                           "[0.1,0.2,0.3]", "\"bicubic\"", "\"size\":[224,192]", "[1,2,3,4]",
                           "[9,8,7]", "\"symmetric\"", "\"pad_if_needed\":true", "\"api\":\"v2\"",
                           "\"p\":0.25", "\"p\":0.125", "\"num_output_channels\":1"}) {
    REQUIRE_THAT(json, contains(part));
  }
}

TEST_CASE("transform computes log_ratio in float32 when it is left out", "[transform]") {
  const std::string json =
      pipeline(R"({"op": "random_resized_crop", "size": [2, 2]}, {"op": "to_image"})").to_json();
  REQUIRE_THAT(json, contains("\"log_ratio\":[-0.2876820"));
  REQUIRE_THAT(json, contains("\"scale\":[0.08,1.0]"));
}

TEST_CASE("transform refuses what it does not know, by name", "[transform]") {
  const std::string tail = R"(, {"op": "to_tensor"})";
  REQUIRE_THAT(refusal("nonsense"), contains("parse error"));
  REQUIRE_THAT(refusal(R"({"headrace": 2, "ops": []})"), contains("headrace must be 1"));
  REQUIRE_THAT(refusal(R"({"headrace": 1, "ops": [], "more": 1})"), contains("more"));
  REQUIRE_THAT(refusal_of_ops(R"({"op": "color_jitter"})"), contains("color_jitter"));
  REQUIRE_THAT(refusal_of_ops(R"({"op": "to_tensor", "scale": 1})"), contains("scale"));
  REQUIRE_THAT(refusal_of_ops("3"), contains("without op"));
  for (const char* resize :
       {R"({"op": "resize"})", R"({"op": "resize", "size": 0})",
        R"({"op": "resize", "size": [1, 2, 3]})", R"({"op": "resize", "size": 1.5})",
        R"({"op": "resize", "size": [1000000, 1000000]})",
        R"({"op": "resize", "size": [4, 4], "max_size": 5})",
        R"({"op": "resize", "size": 4, "max_size": 4})",
        R"({"op": "resize", "size": [4, 4], "interpolation": "lanczos"})"}) {
    CAPTURE(resize);
    REQUIRE_THAT(refusal_of_ops(resize + tail), contains("transform: resize: "));
  }
  for (const char* options :
       {R"("scale": [0.5, 0.1])", R"("scale": [-0.5, 0.1])", R"("ratio": [0, 1])",
        R"("ratio": [1])", R"("scale": [0.1, 1e39])", R"("scale": ["a", "b"])"}) {
    CAPTURE(options);
    const std::string op = R"({"op": "random_resized_crop", "size": [4, 4], )";
    REQUIRE_THAT(refusal_of_ops(op + options + "}" + tail), contains("random_resized_crop: "));
  }
  REQUIRE_THAT(refusal_of_ops(R"({"op": "random_horizontal_flip", "p": 1.5})" + tail),
               contains("random_horizontal_flip: p"));
  for (const char* options :
       {R"("padding": [1, 2], "api": "v1")", R"("padding": [1, 2, 3, -1], "api": "v1")",
        R"("fill": 256, "api": "v1")", R"("fill": [1, 2], "api": "v1")",
        R"("fill": 0.5, "api": "v1")", R"("padding_mode": "wrap", "api": "v1")",
        R"("api": "v3")"}) {
    CAPTURE(options);
    const std::string op = R"({"op": "random_crop", "size": [4, 4], )";
    REQUIRE_THAT(refusal_of_ops(op + options + "}" + tail), contains("random_crop: "));
  }
  REQUIRE_THAT(refusal_of_ops(R"({"op": "pad"})" + tail), contains("pad: padding"));
}

TEST_CASE("transform refuses a result that is no tensor of constant shape", "[transform]") {
  REQUIRE_THAT(refusal_of_ops(R"({"op": "resize", "size": 4}, {"op": "to_tensor"})"),
               contains("resize: the size of the result"));
  REQUIRE_THAT(refusal_of_ops(R"({"op": "to_tensor"})"), contains("pipeline: the size"));
  REQUIRE_THAT(refusal_of_ops(R"({"op": "resize", "size": [4, 4]})"), contains("to_tensor"));
  REQUIRE(refusal_of_ops(R"({"op": "resize", "size": 4}, {"op": "center_crop", "size": [3, 3]},
                             {"op": "to_tensor"})") == "accepted");
}

TEST_CASE("transform refuses operations in the wrong place", "[transform]") {
  const auto after_resize = [](const std::string& ops) { return refusal_of_ops(kResize + ops); };
  REQUIRE_THAT(after_resize(R"({"op": "to_tensor"}, {"op": "resize", "size": [1, 1]})"),
               contains("resize: on tensors"));
  REQUIRE_THAT(after_resize(R"({"op": "to_image"}, {"op": "to_tensor"})"), contains("to_tensor: "));
  REQUIRE_THAT(after_resize(R"({"op": "to_dtype", "dtype": "float32"}, {"op": "to_image"})"),
               contains("to_dtype: "));
  REQUIRE_THAT(after_resize(R"({"op": "to_image"}, {"op": "normalize", "mean": [0], "std": [1]})"),
               contains("normalize: needs float32"));
  REQUIRE_THAT(
      after_resize(R"({"op": "to_tensor"}, {"op": "normalize", "mean": [0], "std": [1e-60]})"),
      contains("normalize: std is zero"));
  REQUIRE_THAT(after_resize(R"({"op": "to_tensor"}, {"op": "normalize", "mean": [1], "std": [1]},
                               {"op": "to_dtype", "dtype": "uint8"})"),
               contains("to_dtype: values"));
  REQUIRE(after_resize(R"({"op": "to_tensor"}, {"op": "center_crop", "size": [9, 9]})") ==
          "accepted");
  const std::string normalized =
      R"({"op": "to_tensor"}, {"op": "normalize", "mean": [1], "std": [1]},)";
  REQUIRE_THAT(after_resize(normalized + R"({"op": "center_crop", "size": [9, 9]})"),
               contains("center_crop: its border"));
  REQUIRE(after_resize(normalized + R"({"op": "pad", "padding": [1, 1, 1, 1],
                                        "padding_mode": "edge"})") == "accepted");
}

TEST_CASE("plan resizes the shorter edge and truncates the longer one", "[transform]") {
  const Transform transform =
      pipeline(R"({"op": "resize", "size": 10, "max_size": 25, "interpolation": "bicubic"},
                  {"op": "center_crop", "size": [8, 9]}, {"op": "to_tensor"})");
  RandomStream random(0);
  const auto resized = [&](int width, int height) {
    const PlanStep step = transform.plan({width, height}, random).steps.at(0);
    REQUIRE(step.kind == PlanStep::Kind::kResize);
    REQUIRE(step.from == ImageSize{width, height});
    return ImageSize{step.width, step.height};
  };
  REQUIRE(resized(30, 50) == ImageSize{10, 16});
  REQUIRE(resized(50, 30) == ImageSize{16, 10});
  REQUIRE(resized(100, 30) == ImageSize{25, 7});  // max_size * 10 / 33
  REQUIRE(random.words_drawn() == 0);
}

TEST_CASE("plan centres crops with ties to even and pads less before than after", "[transform]") {
  const auto left_of = [](int image, int wanted) {
    const std::string size = "[5, " + std::to_string(wanted) + "]";
    RandomStream random(0);
    const Plan plan =
        pipeline(R"({"op": "center_crop", "size": )" + size + R"(}, {"op": "to_tensor"})")
            .plan({image, 5}, random);
    return plan.steps.empty() ? plan.source.left : plan.steps.at(0).left;
  };
  REQUIRE(left_of(10, 5) == 2);  // 2.5
  REQUIRE(left_of(12, 5) == 4);  // 3.5
  REQUIRE(left_of(5, 10) == -2);
  REQUIRE(left_of(5, 12) == -3);
  REQUIRE(left_of(5, 5) == 0);
}

TEST_CASE("plan decodes only what crops of the image itself leave", "[transform]") {
  RandomStream random(0);
  const auto plan_of = [&](const std::string& ops) {
    return pipeline(ops + R"({"op": "pil_to_tensor"})").plan({20, 10}, random);
  };
  const std::string crop8 = R"({"op": "center_crop", "size": [8, 8]},)";
  const std::string crop4 = R"({"op": "center_crop", "size": [4, 4]},)";
  REQUIRE(plan_of(crop8 + crop4).source == Region{8, 3, 4, 4});
  REQUIRE(plan_of(crop8 + crop4).steps.empty());
  // The second crop pads what the first one left.
  const Plan padded = plan_of(crop4 + crop8);
  REQUIRE(padded.source == Region{8, 3, 4, 4});
  const PlanStep border{.left = -2, .top = -2, .width = 8, .height = 8, .from = {4, 4}};
  REQUIRE(padded.steps.at(0) == border);
  REQUIRE(plan_of(R"({"op": "random_horizontal_flip", "p": 1},)" + crop8).source ==
          Region{0, 0, 20, 10});
}

TEST_CASE("plan makes one crop of padding and a crop", "[transform]") {
  RandomStream random(0);
  const auto plan_of = [&](const std::string& ops) {
    return pipeline(ops + R"({"op": "pil_to_tensor"})").plan({20, 10}, random);
  };
  const auto padded = [](const char* mode) {
    return R"({"op": "pad", "padding": [3, 1, 2, 4], "fill": 7, "padding_mode": ")" +
           std::string(mode) + R"("},)";
  };
  const std::string crop = R"({"op": "center_crop", "size": [11, 23]},)";  // at left 1, top 2
  const auto mode = GENERATE("constant", "edge", "reflect", "symmetric");
  const Plan plan = plan_of(padded(mode) + crop);
  const bool mirrors = mode[0] == 'r' || mode[0] == 's';
  // Rows that are cut off again are not decoded, unless others mirror them.
  REQUIRE(plan.source == (mirrors ? Region{0, 0, 20, 10} : Region{0, 1, 20, 9}));
  REQUIRE(plan.steps.size() == 1);
  REQUIRE(plan.steps[0].left == -2);
  REQUIRE(plan.steps[0].top == (mirrors ? 1 : 0));
  REQUIRE(plan.steps[0].border.fill[0] == 7);

  const Plan inside = plan_of(padded(mode) + R"({"op": "center_crop", "size": [4, 6]},)");
  REQUIRE(inside.source == Region{7, 5, 6, 4});
  REQUIRE(inside.steps.empty());
  // A border around other borders is a step of its own.
  const std::string twice = padded(mode) + padded("constant");
  REQUIRE(plan_of(twice + R"({"op": "center_crop", "size": [18, 28]},)").steps.size() == 2);
}

TEST_CASE("plan makes of a resize only what a padded crop keeps", "[transform]") {
  RandomStream random(0);
  const Plan plan = pipeline(R"({"op": "resize", "size": [40, 40]}, {"op": "pad",
      "padding": [5, 5, 5, 5]}, {"op": "random_crop", "api": "v1", "size": [50, 10]},
      {"op": "to_tensor"})")
                        .plan({40, 20}, random);
  REQUIRE(plan.steps.at(1).width <= 10);
  REQUIRE(plan.steps.at(1).height == 40);
  REQUIRE(plan.source.width <= 10);
}

TEST_CASE("plan doubts padding that has too little to mirror", "[transform]") {
  RandomStream random(0);
  const auto doubt = [&](const std::string& mode, int padding) {
    return pipeline(R"({"op": "pad", "padding": [)" + std::to_string(padding) +
                    R"(, 0, 0, 0], "padding_mode": ")" + mode +
                    R"("}, {"op": "center_crop", "size": [2, 2]}, {"op": "to_tensor"})")
        .plan({5, 5}, random)
        .doubt;
  };
  REQUIRE(doubt("reflect", 4).empty());
  REQUIRE_THAT(doubt("reflect", 5), contains("to mirror"));
  REQUIRE(doubt("symmetric", 5).empty());
  REQUIRE_THAT(doubt("symmetric", 6), contains("to mirror"));
  REQUIRE(doubt("edge", 100).empty());
}

TEST_CASE("plan decodes only what a crop leaves of a resize", "[transform]") {
  RandomStream random(0);
  const auto plan_of = [&](const std::string& filter) {
    return pipeline(R"({"op": "resize", "size": [30, 40], "interpolation": ")" + filter +
                    R"("}, {"op": "center_crop", "size": [10, 20]}, {"op": "to_tensor"})")
        .plan({80, 60}, random);
  };
  const Plan plan = plan_of("bilinear");
  REQUIRE(plan.source == Region{19, 19, 42, 22});  // one pixel more than the crop's own, doubled
  REQUIRE(plan.steps.at(0).left == 19);
  REQUIRE(plan.steps.at(0).top == 19);
  REQUIRE(plan.steps.at(0).from == ImageSize{80, 60});
  REQUIRE(plan_of("bicubic").source == Region{17, 17, 46, 26});
  REQUIRE(plan_of("nearest").source == Region{0, 0, 80, 60});
}

TEST_CASE("a resize and a crop give the same from all pixels and from those needed",
          "[transform]") {
  const auto [from, filter] =
      GENERATE(std::pair{ImageSize{61, 47}, "bilinear"}, std::pair{ImageSize{61, 47}, "bicubic"},
               std::pair{ImageSize{40, 300}, "bilinear"}, std::pair{ImageSize{300, 30}, "bicubic"},
               std::pair{ImageSize{40, 30}, "bilinear"}, std::pair{ImageSize{33, 30}, "bicubic"});
  CAPTURE(from.width, from.height, filter);
  const Transform transform =
      pipeline(R"({"op": "resize", "size": [30, 40], "interpolation": ")" + std::string(filter) +
               R"("}, {"op": "center_crop", "size": [11, 22]}, {"op": "pil_to_tensor"})");
  RgbImage image;
  image.reshape(from);
  for (std::size_t i = 0; i < image.pixels.size(); ++i) {
    image.pixels[i] = static_cast<std::uint8_t>(i * i % 251);
  }
  RandomStream random(0);
  Plan plan = transform.plan(from, random);
  const std::vector<std::uint8_t> found = run<std::uint8_t>(transform, image);

  plan.source = Region::whole(from);
  plan.steps.at(0).left = plan.steps.at(0).top = 0;
  std::vector<std::uint8_t> expected(found.size());
  TransformScratch scratch;
  transform.run(image, plan, scratch, std::as_writable_bytes(std::span(expected)));
  REQUIRE(found == expected);
}

TEST_CASE("plan doubts what torchvision would fail on, and draws nothing then", "[transform]") {
  RandomStream random(4);
  const RandomStream before = random;
  const Transform flat = pipeline(R"({"op": "random_horizontal_flip"},
      {"op": "resize", "size": 2, "max_size": 3}, {"op": "center_crop", "size": [1, 1]},
      {"op": "to_tensor"})");
  REQUIRE_THAT(flat.plan({5000, 1}, random).doubt, contains("without pixels"));
  REQUIRE(random.same_position(before));

  const Transform large = pipeline(R"({"op": "resize", "size": 30000},
      {"op": "center_crop", "size": [1, 1]}, {"op": "to_tensor"})");
  REQUIRE_THAT(large.plan({5000, 1000}, random).doubt, contains("150000x30000"));
}

TEST_CASE("plan doubts a crop that hangs on the last bit of exp", "[transform]") {
  const Transform transform =
      pipeline(R"({"op": "random_resized_crop", "size": [4, 4]}, {"op": "to_tensor"})");
  RandomStream random(0);
  constexpr int kPlans = 200'000;
  int doubts = 0;
  for (int i = 0; i < kPlans; ++i) {
    const RandomStream before = random;
    if (transform.plan({500, 375}, random).doubt.empty()) continue;
    ++doubts;
    REQUIRE(random.same_position(before));
    random.next_word();
  }
  REQUIRE(doubts > 0);
  REQUIRE(doubts < kPlans / 1'000);
}

TEST_CASE("run writes planes of plain bytes", "[transform]") {
  const Transform transform =
      pipeline(R"({"op": "center_crop", "size": [1, 3]}, {"op": "pil_to_tensor"})");
  REQUIRE(run<std::uint8_t>(transform, ramp(3, 1)) ==
          std::vector<std::uint8_t>{0, 1, 2, 100, 101, 102, 200, 201, 202});
}

TEST_CASE("run gives one channel or three, as the last step about them says", "[transform]") {
  const std::string crop = R"({"op": "center_crop", "size": [1, 2]},)";
  const std::string gray = R"({"op": "grayscale"},)";
  const char* tensor = R"({"op": "pil_to_tensor"})";
  const RgbImage image = ramp(2, 1);  // 0, 100, 200 and 1, 101, 201
  const Transform one = pipeline(crop + gray + tensor);
  REQUIRE(one.output().shape == std::vector<std::int64_t>{1, 1, 2});
  REQUIRE(run<std::uint8_t>(one, image) == std::vector<std::uint8_t>{82, 83});
  for (const char* three :
       {R"({"op": "grayscale", "num_output_channels": 3},)",
        R"({"op": "grayscale"}, {"op": "rgb"},)", R"({"op": "random_grayscale", "p": 1},)"}) {
    REQUIRE(run<std::uint8_t>(pipeline(crop + three + tensor), image) ==
            std::vector<std::uint8_t>{82, 83, 82, 83, 82, 83});
  }
}

TEST_CASE("transform refuses what one channel cannot be", "[transform]") {
  const std::string gray = R"({"op": "center_crop", "size": [4, 4]}, {"op": "grayscale"},)";
  const std::string tensor = R"({"op": "to_tensor"})";
  REQUIRE_THAT(refusal_of_ops(gray + R"({"op": "pad", "padding": [1, 1, 1, 1],
                                        "fill": [1, 2, 3]},)" +
                              tensor),
               contains("pad: a fill of three numbers"));
  REQUIRE_THAT(
      refusal_of_ops(gray + tensor + R"(, {"op": "normalize", "mean": [1, 2, 3], "std": [1]})"),
      contains("normalize: the image has one channel"));
  REQUIRE_THAT(refusal_of_ops(gray + tensor + R"(, {"op": "rgb"})"), contains("rgb: on tensors"));
  REQUIRE_THAT(refusal_of_ops(R"({"op": "grayscale", "num_output_channels": 2})"),
               contains("grayscale: num_output_channels"));
  REQUIRE_FALSE(pipeline(gray + tensor).splits());
  REQUIRE_THROWS_WITH(pipeline(gray + tensor).split(), contains("split: "));
}

TEST_CASE("run divides, subtracts and divides in float32", "[transform]") {
  const Transform transform = pipeline(R"({"op": "center_crop", "size": [1, 2]},
      {"op": "to_tensor"}, {"op": "normalize", "mean": [0.5, 0.4, 0.3], "std": [0.2]})");
  const std::vector<float> out = run<float>(transform, ramp(2, 1));
  REQUIRE(out[1] == (1 / 255.0f - 0.5f) / 0.2f);
  REQUIRE(out[2] == (100 / 255.0f - 0.4f) / 0.2f);
  REQUIRE(out[5] == (201 / 255.0f - 0.3f) / 0.2f);
}

TEST_CASE("run mirrors before or after other steps, as written", "[transform]") {
  const char* flip = R"({"op": "random_horizontal_flip", "p": 1},)";
  const char* crop = R"({"op": "center_crop", "size": [1, 2]},)";
  const char* tensor = R"({"op": "pil_to_tensor"})";
  const RgbImage image = ramp(3, 1);  // the crop starts at 0: 0.5 goes to even
  const auto red = [&](const std::string& ops) {
    const auto out = run<std::uint8_t>(pipeline(ops), image);
    return std::vector<std::uint8_t>(out.begin(), out.begin() + 2);
  };
  REQUIRE(red(std::string(crop) + tensor) == std::vector<std::uint8_t>{0, 1});
  REQUIRE(red(std::string(crop) + flip + tensor) == std::vector<std::uint8_t>{1, 0});
  REQUIRE(red(std::string(flip) + crop + tensor) == std::vector<std::uint8_t>{2, 1});
  REQUIRE(red(std::string(flip) + crop + flip + tensor) == std::vector<std::uint8_t>{1, 2});
}

TEST_CASE("run refuses a destination of another size", "[transform]") {
  const Transform transform =
      pipeline(R"({"op": "center_crop", "size": [1, 3]}, {"op": "pil_to_tensor"})");
  RandomStream random(0);
  const RgbImage image = ramp(3, 1);
  const Plan plan = transform.plan(image.size, random);
  TransformScratch scratch;
  std::vector<std::byte> dst(8);
  REQUIRE_THROWS_AS(transform.run(image, plan, scratch, dst), Error);
}

TEST_CASE("apply leaves the stream alone when it doubts the file", "[transform]") {
  const Transform transform =
      pipeline(R"({"op": "random_resized_crop", "size": [4, 4]}, {"op": "to_tensor"})");
  RandomStream random(6);
  const RandomStream before = random;
  std::vector<std::byte> dst(transform.output().row_bytes());
  const std::vector<std::byte> file(100);
  try {
    transform.apply(file, random, dst);
    FAIL("accepted");
  } catch (const Error& error) {
    REQUIRE(error.code() == ErrorCode::kDoubtfulData);
  }
  REQUIRE(random.same_position(before));
}
