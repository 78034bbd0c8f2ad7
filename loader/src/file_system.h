// The system calls of readers, replaceable by a test's script.
#pragma once

#include <sys/stat.h>
#include <sys/types.h>

#include <cstddef>
#include <functional>

namespace headrace {

/// With the calls' own conventions: -1 and errno.
struct FileSystem {
  std::function<int(const char* path, int flags)> open;
  std::function<int(int file, struct stat* status)> fstat;
  std::function<ssize_t(int file, void* memory, std::size_t bytes, off_t offset)> pread;
  std::function<int(int file)> set_blocking;  ///< clears O_NONBLOCK
  std::function<int(int file)> close;

  static FileSystem real();
};

}  // namespace headrace
