// How far reads run ahead of decoding.
#pragma once

#include <cstddef>

namespace headrace {

/// Finds the number of reads in flight and the bytes ahead that decoding needs: as few as will do,
/// since threads that wake for nothing and buffers that grow cold cost the decoders time.
///
/// It watches how many samples lie ready whenever a decode begins. Where decoding ran dry while
/// reads were held back, what held them back is doubled; where plenty lay ready all the time, it
/// goes back, a little at a time. No clock: a slow machine is no reason. Not thread-safe.
class ReadAhead {
 public:
  struct Limits {
    int least_depth = 1;
    int most_depth = 1;
    std::size_t least_bytes = 1;
    std::size_t most_bytes = 1;
  };
  enum class HeldBack { kNothing, kByDepth, kByBytes };

  /// Decodes between two decisions.
  static constexpr int kPeriod = 32;
  /// So many samples ready at all times are plenty.
  static constexpr std::size_t kPlenty = 64;

  explicit ReadAhead(Limits limits) noexcept;

  /// Reads in flight, at most.
  int depth() const noexcept { return depth_; }
  /// Bytes read or being read and not yet decoded, at most.
  std::size_t bytes() const noexcept { return bytes_; }

  /// Not fewer than before.
  void set_most_bytes(std::size_t bytes) noexcept { limits_.most_bytes = bytes; }

  /// A decode begins and `ready` more could.
  /// @param held_back  what keeps requests from being read, if there are any.
  /// @returns whether depth() or bytes() changed.
  bool decode_began(std::size_t ready, HeldBack held_back) noexcept;

 private:
  Limits limits_;
  int depth_;
  std::size_t bytes_;
  // Of the present period:
  int decodes_ = 0;
  int dry_for_depth_ = 0;
  int dry_for_bytes_ = 0;
  std::size_t fewest_ready_;
};

}  // namespace headrace
