#include <random>
#include <vector>

#include "field_writer.h"
#include "support.h"

namespace headrace {
namespace {

template <typename T>
ValueTable<T> random_table(std::mt19937& random) {
  ValueTable<T> table;
  for (auto& channel : table) {
    for (T& value : channel) value = static_cast<T>(random());
  }
  return table;
}

template <typename T>
std::vector<T> written(const ValueTable<T>& table, const std::vector<std::uint8_t>& pixels,
                       ImageSize size, MemoryFormat format, bool mirrored, bool blocks) {
  std::vector<T> field(pixels.size());
  const FieldSpec spec{"image", Dtype::kUint8, {3, size.height, size.width}, format};
  const FieldWriter<T> writer(table, spec, mirrored, field.data(), blocks);
  for (int y = 0; y < size.height; ++y) writer.write(y, &pixels[std::size_t(3 * y * size.width)]);
  return field;
}

std::vector<std::uint8_t> noise(ImageSize size, std::mt19937& random) {
  std::vector<std::uint8_t> pixels(static_cast<std::size_t>(3 * size.width * size.height));
  for (auto& value : pixels) value = static_cast<std::uint8_t>(random());
  return pixels;
}

}  // namespace

TEMPLATE_TEST_CASE("a field's values come from their channel's table", "[field_writer]",
                   std::uint8_t, std::uint16_t, std::uint32_t) {
  std::mt19937 random(5);
  const auto table = random_table<TestType>(random);
  const ImageSize size{5, 2};
  const auto pixels = noise(size, random);
  const bool mirrored = GENERATE(false, true);
  const auto planes = written(table, pixels, size, MemoryFormat::kContiguous, mirrored, false);
  const auto last = written(table, pixels, size, MemoryFormat::kChannelsLast, mirrored, false);
  for (std::size_t y = 0; y < 2; ++y) {
    for (std::size_t x = 0; x < 5; ++x) {
      for (std::size_t channel = 0; channel < 3; ++channel) {
        const std::size_t from = mirrored ? 4 - x : x;
        const TestType value = table[channel][pixels[(y * 5 + from) * 3 + channel]];
        REQUIRE(planes[channel * 10 + y * 5 + x] == value);
        REQUIRE(last[(y * 5 + x) * 3 + channel] == value);
      }
    }
  }
}

TEST_CASE("a field of one channel has the red values", "[field_writer]") {
  std::mt19937 random(7);
  const auto table = random_table<std::uint16_t>(random);
  const auto pixels = noise({40, 1}, random);
  const bool mirrored = GENERATE(false, true);
  const auto format = GENERATE(MemoryFormat::kContiguous, MemoryFormat::kChannelsLast);
  std::vector<std::uint16_t> field(40);
  const FieldSpec spec{"image", Dtype::kFloat16, {1, 1, 40}, format};
  FieldWriter<std::uint16_t>(table, spec, mirrored, field.data()).write(0, pixels.data());
  for (std::size_t x = 0; x < 40; ++x) {
    REQUIRE(field[x] == table[0][pixels[3 * (mirrored ? 39 - x : x)]]);
  }
}

TEMPLATE_TEST_CASE("blocks of pixels give what single ones give", "[field_writer]", std::uint8_t,
                   std::uint16_t, std::uint32_t) {
  if (!vbmi_runs_here()) {
    WARN("skipped: this processor has no AVX-512 VBMI");
    return;
  }
  std::mt19937 random(6);
  const auto table = random_table<TestType>(random);
  for (const int width : {1, 31, 32, 33, 64, 95, 224, 1000}) {
    for (const bool mirrored : {false, true}) {
      CAPTURE(width, mirrored);
      const ImageSize size{width, 3};
      const auto pixels = noise(size, random);
      const auto format = MemoryFormat::kContiguous;
      REQUIRE(written(table, pixels, size, format, mirrored, true) ==
              written(table, pixels, size, format, mirrored, false));
    }
  }
}

}  // namespace headrace
