#include "file_system.h"

#include <fcntl.h>
#include <unistd.h>

namespace headrace {

FileSystem FileSystem::real() {
  return {
      .open = [](const char* path, int flags) { return ::open(path, flags); },
      .fstat = [](int file, struct stat* status) { return ::fstat(file, status); },
      .pread = [](int file, void* memory, std::size_t bytes,
                  off_t offset) { return ::pread(file, memory, bytes, offset); },
      .set_blocking =
          [](int file) {
            const int flags = ::fcntl(file, F_GETFL);
            return flags < 0 ? -1 : ::fcntl(file, F_SETFL, flags & ~O_NONBLOCK);
          },
      .close = [](int file) { return ::close(file); },
  };
}

}  // namespace headrace
