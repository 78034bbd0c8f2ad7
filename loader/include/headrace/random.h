// torch's CPU generator, draw for draw.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <span>

#include "headrace/api.h"
#include "headrace/sample_key.h"

namespace HEADRACE_API headrace {

/// Arithmetic of the installed torch that differs between builds and processors. It is measured by
/// the self-check, never assumed.
struct RandomRules {
  /// uniform_(a, b) computes x*(b-a)+a with one rounding (vectorised kernels) or with two.
  bool fused_uniform = true;
  /// randint draws two words per value from this range (hi - lo) on, one word below it.
  std::uint64_t wide_range = std::uint64_t{1} << 28;

  bool operator==(const RandomRules&) const = default;
};

/// Philox4x32-10 (Salmon et al.: Parallel Random Numbers: As Easy as 1, 2, 3, SC 2011).
std::array<std::uint32_t, 4> philox4x32(std::array<std::uint32_t, 4> counter,
                                        std::array<std::uint32_t, 2> key) noexcept;

/// A mt19937 stream that yields what torch's default CPU generator yields. A value type: copying it
/// takes a snapshot.
class RandomStream {
 public:
  /// Bytes of torch.get_rng_state() on a CPU generator.
  static constexpr std::size_t kTorchStateBytes = 5056;

  /// As torch.manual_seed(seed): the low 32 bits count.
  explicit RandomStream(std::uint64_t seed, RandomRules rules = {});

  /// The stream whose first 623 words are those of Philox4x32-10 with the key `seed` (low word
  /// first) and the counters (0, epoch, index, index >> 32), (1, ...), ... It is a mt19937 stream
  /// all the same: its state is the one that yields these words, so that torch's generator can go
  /// on with it anywhere; beyond them it continues as mt19937 does.
  explicit RandomStream(const SampleKey& key, RandomRules rules = {});

  /// @param state  torch.get_rng_state(), kTorchStateBytes bytes.
  /// @throws Error{kInvalidArgument}: another size, or contents that are no mt19937 state.
  static RandomStream from_torch_state(std::span<const std::byte> state, RandomRules rules = {});

  /// Writes the stream into `state`, which must hold a torch state already: the position, the
  /// initial seed, and the normal draws that torch has cached (none since construction from a
  /// seed).
  /// @throws Error{kInvalidArgument}: another size, or contents that are no mt19937 state.
  void to_torch_state(std::span<std::byte> state) const;

  /// One raw 32-bit word.
  std::uint32_t next_word();
  /// torch.rand(1).item(), as the float32 that torch holds.
  float rand();
  /// torch.empty(1).uniform_(from, to).item(); needs from <= to.
  float uniform(double from, double to);
  /// torch.randint(low, high, (1,)).item(); needs low < high.
  std::int64_t randint(std::int64_t low, std::int64_t high);

  /// Words drawn since construction; `skip(n)` on a snapshot of the start leads to the same place.
  std::uint64_t words_drawn() const noexcept { return words_drawn_; }
  void skip(std::uint64_t words);

  /// Same position, cached normals and rules, so that all later draws agree. The count of words is
  /// history and does not matter.
  bool same_position(const RandomStream& other) const noexcept;

 private:
  static constexpr std::size_t kWords = 624;

  RandomStream() = default;
  void refill();

  // The members torch keeps, so that a state goes back and forth without loss: a fresh seed
  // (left 1, next 0) and a used-up block (left 1, next 624) both ask for a refill.
  std::array<std::uint32_t, kWords> state_{};
  std::uint32_t left_ = 1;
  std::uint32_t next_ = 0;
  std::uint64_t words_drawn_ = 0;
  // Nothing here draws normals; torch's own code that continues this stream may.
  std::uint64_t seed_ = 0;
  std::array<std::byte, kTorchStateBytes - 24 - 8 * kWords> normals_{};
  RandomRules rules_;
};

}  // namespace headrace
