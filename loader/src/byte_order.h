// Unsigned numbers in a file's byte order.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace headrace {

/// Reading beyond the end is the caller's mistake.
struct Numbers {
  std::span<const std::uint8_t> bytes;
  bool big_endian = true;

  std::uint32_t u16(std::size_t at) const {
    const std::uint32_t a = bytes[at];
    const std::uint32_t b = bytes[at + 1];
    return big_endian ? a << 8 | b : b << 8 | a;
  }
  std::uint32_t u32(std::size_t at) const {
    return big_endian ? u16(at) << 16 | u16(at + 2) : u16(at + 2) << 16 | u16(at);
  }
};

}  // namespace headrace
