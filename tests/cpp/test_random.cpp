#include <cmath>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <random>
#include <vector>

#include "headrace/error.h"
#include "headrace/random.h"
#include "support.h"

using headrace::Error;
using headrace::RandomRules;
using headrace::RandomStream;

namespace {

using TorchState = std::vector<std::byte>;

void put(TorchState& state, std::size_t offset, std::uint64_t value, std::size_t bytes) {
  std::memcpy(state.data() + offset, &value, bytes);
}

/// What torch.get_rng_state() holds right after torch.manual_seed(seed).
TorchState seeded_state(std::uint32_t seed) {
  TorchState state(RandomStream::kTorchStateBytes);
  put(state, 0, seed, 8);
  put(state, 8, 1, 4);
  put(state, 12, 1, 4);
  put(state, 16, 0, 8);
  std::uint32_t word = seed;
  for (std::uint32_t i = 0; i < 624; ++i) {
    if (i > 0) word = 1812433253u * (word ^ (word >> 30)) + i;
    put(state, 24 + 8 * i, word, 8);
  }
  return state;
}

}  // namespace

TEST_CASE("random stream gives the words of mt19937", "[random]") {
  for (const std::uint32_t seed : {0u, 5489u, 0xffffffffu}) {
    RandomStream stream(seed);
    std::mt19937 reference(seed);
    for (int i = 0; i < 10'000; ++i) REQUIRE(stream.next_word() == reference());
  }
}

TEST_CASE("random stream counts only the low 32 bits of a seed", "[random]") {
  RandomStream a(7);
  RandomStream b(7 + (std::uint64_t{9} << 32));
  REQUIRE(a.same_position(b));
  REQUIRE_FALSE(a.same_position(RandomStream(8)));
}

TEST_CASE("rand has 24 bits of a word", "[random]") {
  RandomStream stream(3);
  std::mt19937 words(3);
  for (int i = 0; i < 1'000; ++i) {
    const std::uint32_t low_bits = words() & 0xffffffu;
    REQUIRE(stream.rand() == static_cast<float>(std::ldexp(low_bits, -24)));
  }
}

TEST_CASE("uniform rounds once or twice, as the rules say", "[random]") {
  RandomStream fused(1, {.fused_uniform = true});
  RandomStream unfused(1, {.fused_uniform = false});
  std::mt19937 words(1);
  int different = 0;
  for (int i = 0; i < 1'000; ++i) {
    const auto unit = static_cast<float>(std::ldexp(words() & 0xffffffu, -24));
    const float low = 0.08f;
    const float width = 1.0f - 0.08f;
    const float once = std::fma(unit, width, low);
    const float twice = unit * width + low;
    REQUIRE(fused.uniform(0.08, 1.0) == once);
    REQUIRE(unfused.uniform(0.08, 1.0) == twice);
    different += once != twice;
  }
  REQUIRE(different > 100);
}

TEST_CASE("randint draws a second word from the wide range on", "[random]") {
  RandomStream stream(2, {.wide_range = 1000});
  std::mt19937 words(2);
  REQUIRE(stream.randint(-5, 994) == -5 + static_cast<std::int64_t>(words() % 999));
  REQUIRE(stream.words_drawn() == 1);

  const std::uint64_t high = words();
  const std::uint64_t both = (high << 32) | words();
  REQUIRE(stream.randint(-5, 995) == -5 + static_cast<std::int64_t>(both % 1000));
  REQUIRE(stream.words_drawn() == 3);
}

TEST_CASE("randint covers all of int64", "[random]") {
  RandomStream stream(2);
  bool negative = false;
  bool positive = false;
  for (int i = 0; i < 100; ++i) {
    const std::int64_t value = stream.randint(INT64_MIN, INT64_MAX);
    negative |= value < -(std::int64_t{1} << 61);
    positive |= value > (std::int64_t{1} << 61);
  }
  REQUIRE(negative);
  REQUIRE(positive);
}

TEST_CASE("skipping words leads to where drawing them leads", "[random]") {
  for (const std::uint64_t before : {0u, 1u, 623u, 624u, 625u}) {
    for (const std::uint64_t words : {0u, 1u, 2u, 622u, 623u, 624u, 625u, 1248u, 5000u}) {
      RandomStream drawn(11);
      for (std::uint64_t i = 0; i < before; ++i) drawn.next_word();
      RandomStream skipped = drawn;
      for (std::uint64_t i = 0; i < words; ++i) drawn.next_word();
      skipped.skip(words);
      REQUIRE(skipped.same_position(drawn));
      REQUIRE(skipped.words_drawn() == before + words);
      REQUIRE(skipped.next_word() == drawn.next_word());
    }
  }
}

TEST_CASE("torch states go in and out at every position", "[random]") {
  const TorchState fresh = seeded_state(42);
  RandomStream stream = RandomStream::from_torch_state(fresh);
  RandomStream reference(42);
  TorchState state = fresh;
  for (int i = 0; i < 1'300; ++i) {
    stream.to_torch_state(state);
    RandomStream resumed = RandomStream::from_torch_state(state);
    REQUIRE(resumed.same_position(reference));
    REQUIRE(resumed.next_word() == reference.next_word());
    stream.next_word();
  }
}

TEST_CASE("writing a state back unmoved changes no byte", "[random]") {
  const TorchState fresh = seeded_state(42);
  TorchState state = fresh;
  RandomStream::from_torch_state(fresh).to_torch_state(state);
  REQUIRE(state == fresh);
}

TEST_CASE("a state carries the initial seed and the cached normals", "[random]") {
  TorchState with_normal = seeded_state(42);
  put(with_normal, 24 + 624 * 8 + 8, 0x3fe8, 8);
  TorchState state = seeded_state(1);
  const RandomStream stream = RandomStream::from_torch_state(with_normal);
  stream.to_torch_state(state);
  REQUIRE(state == with_normal);
  REQUIRE_FALSE(stream.same_position(RandomStream(42)));
}

TEST_CASE("what is no torch state is refused", "[random]") {
  const auto refused = [](const TorchState& state) {
    REQUIRE_THROWS_AS(RandomStream::from_torch_state(state), Error);
    TorchState target = state;
    REQUIRE_THROWS_AS(RandomStream(1).to_torch_state(target), Error);
  };
  TorchState state = seeded_state(1);
  state.pop_back();
  refused(state);
  state = seeded_state(1);
  put(state, 12, 0, 4);
  refused(state);
  state = seeded_state(1);
  put(state, 8, 625, 4);
  refused(state);
  state = seeded_state(1);
  put(state, 16, 700, 8);
  refused(state);
  state = seeded_state(1);
  put(state, 28, 1, 1);
  REQUIRE_THROWS_AS(RandomStream::from_torch_state(state), Error);
}
