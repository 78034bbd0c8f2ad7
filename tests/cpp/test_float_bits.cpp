#include <cmath>
#include <limits>

#include "float_bits.h"
#include "support.h"

namespace headrace {
namespace {

constexpr float kInfinity = std::numeric_limits<float>::infinity();

/// What the bits of a positive, finite binary16 stand for.
float float16_value(int bits) {
  const int exponent = bits >> 10;
  const float fraction = static_cast<float>(bits & 0x3ff) / 1024;
  return exponent == 0 ? std::ldexp(fraction, -14) : std::ldexp(1 + fraction, exponent - 15);
}

/// What lies on the upper half of a float32's bits.
float bfloat16_value(int bits) {
  return std::bit_cast<float>(static_cast<std::uint32_t>(bits) << 16);
}

/// Every finite value of the format, what lies half-way between two, and the neighbours of that.
template <typename Value, typename Convert>
void check_all(int infinity, const Value& value, const Convert& convert) {
  for (int bits = 0; bits + 1 < infinity; ++bits) {
    const float middle = value(bits) / 2 + value(bits + 1) / 2;
    const bool right = convert(value(bits)) == bits && convert(-value(bits)) == (bits | 0x8000) &&
                       convert(middle) == bits + bits % 2 &&
                       convert(std::nextafter(middle, 0.0f)) == bits &&
                       convert(std::nextafter(middle, kInfinity)) == bits + 1;
    if (!right) FAIL("wrong at " << bits);
  }
  CHECK(convert(value(infinity - 1)) == infinity - 1);
  CHECK(convert(std::numeric_limits<float>::max()) == infinity);
  CHECK(convert(kInfinity) == infinity);
  CHECK(convert(-kInfinity) == (infinity | 0x8000));
  CHECK(convert(std::nanf("")) > infinity);
}

TEST_CASE("float16 is the nearest value, the even one of two", "[float_bits]") {
  check_all(0x7c00, float16_value, float16_bits);
}

TEST_CASE("bfloat16 is the nearest value, the even one of two", "[float_bits]") {
  check_all(0x7f80, bfloat16_value, bfloat16_bits);
}

}  // namespace
}  // namespace headrace
