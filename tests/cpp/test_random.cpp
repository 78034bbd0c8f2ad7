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
using headrace::philox4x32;
using headrace::RandomRules;
using headrace::RandomStream;
using headrace::SampleKey;

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

TEST_CASE("Philox4x32-10 gives its published words", "[random]") {
  using Words = std::array<std::uint32_t, 4>;
  constexpr std::uint32_t kOnes = 0xffffffff;
  CHECK(philox4x32({0, 0, 0, 0}, {0, 0}) == Words{0x6627e8d5, 0xe169c58d, 0xbc57ac4c, 0x9b00dbd8});
  CHECK(philox4x32({kOnes, kOnes, kOnes, kOnes}, {kOnes, kOnes}) ==
        Words{0x408f276d, 0x41c83b0e, 0xa20bc7c6, 0x6d5451fd});
  CHECK(philox4x32({0x243f6a88, 0x85a308d3, 0x13198a2e, 0x03707344}, {0xa4093822, 0x299f31d0}) ==
        Words{0xd16cfe09, 0x94fdcceb, 0x5001e420, 0x24126ea1});
}

TEST_CASE("a sample's stream yields the words of Philox, keyed by seed, epoch and index",
          "[random]") {
  const SampleKey key{.seed = 0x1234'5678'9abc'def0, .epoch = 7, .index = 0x3'0000'0002};
  RandomStream stream(key);
  std::vector<std::uint32_t> words;
  for (std::uint32_t block = 0; block < 156; ++block) {
    for (const auto word : philox4x32({block, 7, 2, 3}, {0x9abc'def0, 0x1234'5678})) {
      words.push_back(word);
    }
  }
  words.pop_back();
  for (const auto word : words) REQUIRE(stream.next_word() == word);
}

TEST_CASE("a sample's stream goes through torch's state and beyond its block", "[random]") {
  RandomStream stream(SampleKey{.seed = 1, .epoch = 2, .index = 3});
  TorchState state = seeded_state(42);
  stream.to_torch_state(state);
  RandomStream resumed = RandomStream::from_torch_state(state);
  for (int i = 0; i < 2'000; ++i) REQUIRE(resumed.next_word() == stream.next_word());
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
