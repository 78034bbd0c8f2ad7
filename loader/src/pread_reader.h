// The reader for everywhere: threads that call pread().
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <functional>
#include <memory>

#include "reader.h"

namespace headrace {

struct PreadOptions {
  /// At least 1.
  int threads = 4;
  /// Compressed bytes read or being read and not yet given back, at most.
  std::size_t read_budget_bytes = std::size_t{64} << 20;
};

/// The system calls, with their own conventions: -1 and errno. Tests script them.
struct FileSystem {
  std::function<int(const char* path, int flags)> open;
  std::function<int(int file, struct stat* status)> fstat;
  std::function<ssize_t(int file, void* memory, std::size_t bytes, off_t offset)> pread;
  std::function<int(int file)> set_blocking;  ///< clears O_NONBLOCK
  std::function<int(int file)> close;

  static FileSystem real();
};

/// @param on_done  called on the reader's threads, several at a time. Must not throw, and must not
///                 wait for another read.
/// @throws Error{kInvalidArgument}: no threads. Error{kReadFailed}: they cannot be started.
std::unique_ptr<Reader> make_pread_reader(PreadOptions options,
                                          std::function<void(ReadResult)> on_done,
                                          FileSystem files = FileSystem::real());

}  // namespace headrace
