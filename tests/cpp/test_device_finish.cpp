// The kernels' own code, on the CPU, against the transform that does all of it by itself.
#include <cstdint>
#include <cstring>
#include <set>

#include "device_finish.h"
#include "headrace/error.h"
#include "headrace/transform.h"
#include "support.h"

namespace headrace {
namespace {

struct Case {
  std::string dtype;
  std::string memory_format;
};

Transform pipeline(const Case& each) {
  return Transform::from_json(R"({"headrace": 1, "memory_format": ")" + each.memory_format +
                              R"(", "ops": [{"op": "random_resized_crop", "size": [5, 7]},
                    {"op": "random_horizontal_flip", "p": 0.5},
                    {"op": "to_image"}, {"op": "to_dtype", "dtype": "float32", "scale": true},
                    {"op": "normalize", "mean": [0.485, 0.456, 0.406],
                     "std": [0.229, 0.224, 0.225]},
                    {"op": "to_dtype", "dtype": ")" +
                              each.dtype + R"("}]})");
}

template <typename Element, bool kChannelsLast>
void finish_all(const FinishArguments& arguments) {
  const auto* table = static_cast<const Element*>(arguments.table);
  for (long long i = 0; i < arguments.pixel_count; ++i) {
    finish_pixel<Element, kChannelsLast>(arguments, table, i);
  }
}

RgbImage random_image(ImageSize size, RandomStream& random) {
  RgbImage image;
  image.reshape(size);
  for (auto& value : image.pixels) value = static_cast<std::uint8_t>(random.next_word());
  return image;
}

/// A batch by the whole transform, and by the split one and the kernels' code.
void check_batch(const Case& each, const Transform& whole) {
  constexpr long long kRows = 16;
  const Transform split = whole.split();
  REQUIRE(split.finish() != nullptr);
  const std::size_t row_bytes = whole.output().row_bytes();
  const std::size_t pixel_bytes = split.output().row_bytes();
  std::vector<std::byte> wanted(kRows * row_bytes);
  std::vector<std::byte> pixels(kRows * pixel_bytes);
  std::vector<unsigned char> mirrored(kRows);
  RandomStream random(5);
  TransformScratch scratch;
  for (std::size_t row = 0; row < kRows; ++row) {
    const RgbImage image = random_image({40, 30}, random);
    const Plan plan = whole.plan(image.size, random);
    RgbImage part;
    part.reshape(plan.source.size());
    for (int y = 0; y < plan.source.height; ++y) {
      const auto from =
          static_cast<std::size_t>(3 * ((plan.source.top + y) * 40 + plan.source.left));
      const auto bytes = static_cast<std::size_t>(3 * plan.source.width);
      std::memcpy(part.pixels.data() + static_cast<std::size_t>(y) * bytes,
                  image.pixels.data() + from, bytes);
    }
    CHECK_FALSE(
        whole.run(part, plan, scratch, std::span(wanted).subspan(row * row_bytes, row_bytes)));
    mirrored[row] =
        split.run(part, plan, scratch, std::span(pixels).subspan(row * pixel_bytes, pixel_bytes));
  }
  CHECK(std::set(mirrored.begin(), mirrored.end()).size() == 2);  // both occur

  std::vector<std::byte> got(wanted.size());
  const FinishArguments arguments{.pixels = reinterpret_cast<const unsigned char*>(pixels.data()),
                                  .mirrored = mirrored.data(),
                                  .table = split.finish()->table.data(),
                                  .out = got.data(),
                                  .pixel_count = kRows * 5 * 7,
                                  .height = 5,
                                  .width = 7};
  const bool last = each.memory_format == "channels_last";
  if (each.dtype == "float32") {
    (last ? finish_all<std::uint32_t, true> : finish_all<std::uint32_t, false>)(arguments);
  } else {
    (last ? finish_all<std::uint16_t, true> : finish_all<std::uint16_t, false>)(arguments);
  }
  CHECK(got == wanted);

  // And back.
  for (std::size_t row = 0; row < kRows; ++row) {
    if (mirrored[row] != 0) continue;
    std::vector<std::byte> undone(pixel_bytes);
    split.unfinish(std::span(wanted).subspan(row * row_bytes, row_bytes), undone);
    CHECK(std::equal(undone.begin(), undone.end(),
                     pixels.begin() + static_cast<std::ptrdiff_t>(row * pixel_bytes)));
  }
}

TEST_CASE("pixels finished by the kernels' code equal the whole transform's", "[device_finish]") {
  for (const char* dtype : {"float32", "float16", "bfloat16"}) {
    for (const char* memory_format : {"contiguous", "channels_last"}) {
      const Case each{dtype, memory_format};
      INFO(dtype << ' ' << memory_format);
      check_batch(each, pipeline(each));
    }
  }
}

TEST_CASE("a value that no pixel becomes cannot be taken back", "[device_finish]") {
  const Transform split = pipeline({"float32", "contiguous"}).split();
  std::vector<std::byte> finished(split.finish()->output.row_bytes());
  std::vector<std::byte> pixels(split.output().row_bytes());
  const float odd = 0.123f;
  std::memcpy(finished.data(), &odd, sizeof odd);
  CHECK_THROWS_AS(split.unfinish(finished, pixels), Error);
}

TEST_CASE("a transform whose result is bytes already is not split", "[device_finish]") {
  const auto whole = Transform::from_json(
      R"({"headrace": 1, "ops": [{"op": "center_crop", "size": [4, 4]}, {"op": "to_image"}]})");
  CHECK(whole.finish() == nullptr);
  CHECK_THROWS_AS(whole.split(), Error);
}

}  // namespace
}  // namespace headrace
