#include "headrace/random.h"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <string>
#include <utility>

#include "headrace/error.h"

namespace headrace {
namespace {

// torch.get_rng_state(): offsets of its fields. What follows the words are cached normal draws.
constexpr std::size_t kSeedOffset = 0;
constexpr std::size_t kLeftOffset = 8;
constexpr std::size_t kSeededOffset = 12;
constexpr std::size_t kNextOffset = 16;
constexpr std::size_t kWordsOffset = 24;

constexpr float kInverse24Bits = 1.0f / (1 << 24);
constexpr std::uint32_t kMask24Bits = (1u << 24) - 1;

template <typename T>
T load(std::span<const std::byte> bytes, std::size_t offset) {
  T value;
  std::memcpy(&value, bytes.data() + offset, sizeof value);
  return value;
}

template <typename T>
void store(std::span<std::byte> bytes, std::size_t offset, T value) {
  std::memcpy(bytes.data() + offset, &value, sizeof value);
}

[[noreturn]] void refuse_state(const char* why) {
  throw Error(ErrorCode::kInvalidArgument, std::string("not a torch CPU generator state: ") + why,
              {.stage = "random"});
}

void check_state(std::span<const std::byte> state, std::uint32_t words) {
  if (state.size() != RandomStream::kTorchStateBytes) {
    refuse_state("it must have 5056 bytes");
  }
  if (load<std::int32_t>(state, kSeededOffset) != 1) refuse_state("it was never seeded");
  const auto left = load<std::uint32_t>(state, kLeftOffset);
  const auto next = load<std::uint64_t>(state, kNextOffset);
  const bool fresh = left == 1 && next == 0;
  if (!fresh && (left < 1 || left > words || next != words + 1 - left)) {
    refuse_state("its position is out of range");
  }
}

/// The word of a mt19937 state that is handed out as `word`.
std::uint32_t untempered(std::uint32_t word) {
  word ^= word >> 18;
  word ^= (word << 15) & 0xefc60000u;
  std::uint32_t x = word;  // each round makes seven more bits right
  for (int round = 0; round < 4; ++round) x = word ^ ((x << 7) & 0x9d2c5680u);
  return x ^ (x >> 11) ^ (x >> 22);
}

}  // namespace

std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept {
  constexpr int kRounds = 10;
  for (int round = 0; round < kRounds; ++round) {
    const std::uint64_t first = std::uint64_t{0xd2511f53} * counter[0];
    const std::uint64_t second = std::uint64_t{0xcd9e8d57} * counter[2];
    counter = {static_cast<std::uint32_t>(second >> 32) ^ counter[1] ^ key[0],
               static_cast<std::uint32_t>(second),
               static_cast<std::uint32_t>(first >> 32) ^ counter[3] ^ key[1],
               static_cast<std::uint32_t>(first)};
    key[0] += 0x9e3779b9u;
    key[1] += 0xbb67ae85u;
  }
  return counter;
}

RandomStream::RandomStream(const SampleKey& key, RandomRules rules) : RandomStream(0, rules) {
  const std::array<std::uint32_t, 2> seed{static_cast<std::uint32_t>(key.seed),
                                          static_cast<std::uint32_t>(key.seed >> 32)};
  static_assert(kWords % 4 == 0);
  for (std::uint32_t i = 0; i < kWords; i += 4) {
    const auto words = philox4x32({i / 4, key.epoch, static_cast<std::uint32_t>(key.index),
                                   static_cast<std::uint32_t>(key.index >> 32)},
                                  seed);
    // The state's first word is never handed out before the next block.
    for (std::uint32_t j = 0; j < 4; ++j) state_[(i + j + 1) % kWords] = untempered(words[j]);
  }
  left_ = kWords;
  next_ = 1;
}

RandomStream::RandomStream(std::uint64_t seed, RandomRules rules) : seed_(seed), rules_(rules) {
  state_[0] = static_cast<std::uint32_t>(seed);
  for (std::uint32_t i = 1; i < kWords; ++i) {
    const std::uint32_t previous = state_[i - 1];
    state_[i] = 1812433253u * (previous ^ (previous >> 30)) + i;
  }
}

RandomStream RandomStream::from_torch_state(std::span<const std::byte> state, RandomRules rules) {
  check_state(state, kWords);
  RandomStream stream;
  stream.rules_ = rules;
  stream.seed_ = load<std::uint64_t>(state, kSeedOffset);
  stream.left_ = load<std::uint32_t>(state, kLeftOffset);
  stream.next_ = static_cast<std::uint32_t>(load<std::uint64_t>(state, kNextOffset));
  for (std::size_t i = 0; i < kWords; ++i) {
    const auto word = load<std::uint64_t>(state, kWordsOffset + 8 * i);
    if (!std::in_range<std::uint32_t>(word)) refuse_state("a word has more than 32 bits");
    stream.state_[i] = static_cast<std::uint32_t>(word);
  }
  std::ranges::copy(state.subspan(kWordsOffset + 8 * kWords), stream.normals_.begin());
  return stream;
}

void RandomStream::to_torch_state(std::span<std::byte> state) const {
  check_state(state, kWords);
  store<std::uint64_t>(state, kSeedOffset, seed_);
  store<std::uint32_t>(state, kLeftOffset, left_);
  store<std::uint64_t>(state, kNextOffset, next_);
  for (std::size_t i = 0; i < kWords; ++i) {
    store<std::uint64_t>(state, kWordsOffset + 8 * i, state_[i]);
  }
  std::ranges::copy(normals_, state.subspan(kWordsOffset + 8 * kWords).begin());
}

void RandomStream::refill() {
  constexpr std::size_t kMiddle = 397;
  const auto twist = [](std::uint32_t high, std::uint32_t low) {
    const std::uint32_t mixed = (high & 0x80000000u) | (low & 0x7fffffffu);
    return (mixed >> 1) ^ ((low & 1u) != 0 ? 0x9908b0dfu : 0u);
  };
  std::size_t i = 0;
  for (; i < kWords - kMiddle; ++i) {
    state_[i] = state_[i + kMiddle] ^ twist(state_[i], state_[i + 1]);
  }
  for (; i < kWords - 1; ++i) {
    state_[i] = state_[i + kMiddle - kWords] ^ twist(state_[i], state_[i + 1]);
  }
  state_[i] = state_[kMiddle - 1] ^ twist(state_[i], state_[0]);
  left_ = kWords;
  next_ = 0;
}

std::uint32_t RandomStream::next_word() {
  if (--left_ == 0) refill();
  ++words_drawn_;
  std::uint32_t word = state_[next_++];
  word ^= word >> 11;
  word ^= (word << 7) & 0x9d2c5680u;
  word ^= (word << 15) & 0xefc60000u;
  return word ^ (word >> 18);
}

float RandomStream::rand() {
  return static_cast<float>(next_word() & kMask24Bits) * kInverse24Bits;
}

float RandomStream::uniform(double from, double to) {
  // torch narrows the bounds first, so the width is a float32 difference.
  const auto low = static_cast<float>(from);
  const float width = static_cast<float>(to) - low;
  const float unit = rand();
  return rules_.fused_uniform ? std::fma(unit, width, low) : unit * width + low;
}

std::int64_t RandomStream::randint(std::int64_t low, std::int64_t high) {
  const std::uint64_t range = static_cast<std::uint64_t>(high) - static_cast<std::uint64_t>(low);
  std::uint64_t draw = next_word();
  if (range >= rules_.wide_range) draw = (draw << 32) | next_word();
  return static_cast<std::int64_t>(static_cast<std::uint64_t>(low) + draw % range);
}

void RandomStream::skip(std::uint64_t words) {
  words_drawn_ += words;
  // Whole blocks are refilled without looking at their words.
  while (words >= left_) {
    words -= left_;
    refill();
    next_ = 1;  // refill() readies a block for the draw that asked for it, as next_word() does
  }
  left_ -= static_cast<std::uint32_t>(words);
  next_ += static_cast<std::uint32_t>(words);
}

bool RandomStream::same_position(const RandomStream& other) const noexcept {
  return left_ == other.left_ && rules_ == other.rules_ && state_ == other.state_ &&
         normals_ == other.normals_;
}

}  // namespace headrace
