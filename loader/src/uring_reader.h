// The reader for Linux's io_uring: one thread keeps many files in flight.
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "file_system.h"
#include "reader.h"
#include "uring_ring.h"

namespace headrace {

struct UringOptions {
  /// Files being opened, read or closed at a time, at first; at least 1.
  int depth = 16;
  /// As many as it may take to keep decoding busy.
  int most_depth = 4 * depth;
  /// Compressed bytes read or being read and not yet given back, at most.
  std::size_t read_budget_bytes = std::size_t{64} << 20;
  /// For its stats.
  std::string note = {};
};

/// @param on_done  called on the reader's thread. Must not throw, and must not wait for a read.
/// @param files    for what needs no ring: fstat, set_blocking, close.
/// @throws Error{kInvalidArgument}: no depth. Error{kReadFailed}: there is no ring to be had, with
///         the reason as its errno: EPERM or ENOSYS where it is forbidden or unknown (containers),
///         ENOMEM where too little memory may be locked (RLIMIT_MEMLOCK, on old kernels).
std::unique_ptr<Reader> make_uring_reader(UringOptions options,
                                          std::function<void(ReadResult)> on_done,
                                          const MakeRing& make_ring = make_kernel_ring,
                                          FileSystem files = FileSystem::real());

}  // namespace headrace
