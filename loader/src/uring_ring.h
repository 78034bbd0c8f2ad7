// io_uring as the reader sees it. Tests put a scripted one in its place.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>

namespace headrace {

/// Operations that the kernel works on together. Used by the thread that made it, but for wake().
///
/// What an operation refers to (path, memory) must stay until its completion was reaped.
class Ring {
 public:
  struct Completion {
    std::uint64_t tag = 0;
    int result = 0;  ///< as the system call's, but -errno on failure
  };

  Ring() = default;
  virtual ~Ring() = default;
  Ring(const Ring&) = delete;
  Ring& operator=(const Ring&) = delete;

  // Not more of them at a time, from here to the completion, than the ring has entries.
  virtual void open(std::uint64_t tag, const char* path, int flags) = 0;
  virtual void read(std::uint64_t tag, int file, void* memory, std::size_t bytes,
                    std::uint64_t offset) = 0;
  virtual void close(std::uint64_t tag, int file) = 0;

  /// Hands over what was prepared. @returns 0 or -errno; then some of it is still prepared.
  virtual int submit() = 0;
  /// Waits until there is something to reap, or wake() was called. @returns 0 or -errno.
  virtual int wait() = 0;
  /// The next completion, if there is one.
  virtual std::optional<Completion> reap() = 0;

  /// Ends a wait(), now or the next one. Thread-safe.
  virtual void wake() noexcept = 0;
};

/// @throws std::system_error: the kernel forbids or lacks it (EPERM, ENOSYS), no memory may be
/// locked for it (ENOMEM), no descriptors are left (EMFILE).
using MakeRing = std::function<std::unique_ptr<Ring>(unsigned entries)>;

/// The kernel's.
std::unique_ptr<Ring> make_kernel_ring(unsigned entries);

}  // namespace headrace
