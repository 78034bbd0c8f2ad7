#include "uring_ring.h"

#include <fcntl.h>
#include <liburing.h>
#include <poll.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cassert>
#include <cerrno>
#include <system_error>
#include <utility>

namespace headrace {
namespace {

constexpr std::size_t kLongestRead = std::size_t{1} << 30;  // the kernel takes 32 bits
constexpr std::uint64_t kWakeTag = ~std::uint64_t{0};

[[noreturn]] void fail(int error, const char* call) {
  throw std::system_error(error, std::generic_category(), call);
}

class KernelRing final : public Ring {
 public:
  explicit KernelRing(unsigned entries) {
    wake_ = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    if (wake_ < 0) fail(errno, "eventfd");
    try {
      set_up(entries + 1);  // one for the wait for wake_
      check_operations();
      arm_wake();
    } catch (...) {
      tear_down();
      throw;
    }
  }
  ~KernelRing() override { tear_down(); }

  void open(std::uint64_t tag, const char* path, int flags) override {
    io_uring_sqe* entry = next_entry();
    io_uring_prep_openat(entry, AT_FDCWD, path, flags, 0);
    entry->user_data = tag;
  }

  void read(std::uint64_t tag, int file, void* memory, std::size_t bytes,
            std::uint64_t offset) override {
    io_uring_sqe* entry = next_entry();
    io_uring_prep_read(entry, file, memory, static_cast<unsigned>(std::min(bytes, kLongestRead)),
                       offset);
    entry->user_data = tag;
  }

  void close(std::uint64_t tag, int file) override {
    io_uring_sqe* entry = next_entry();
    io_uring_prep_close(entry, file);
    entry->user_data = tag;
  }

  int submit() override {
    const int submitted = io_uring_submit(&ring_);
    return submitted < 0 ? submitted : io_uring_sq_ready(&ring_) > 0 ? -EAGAIN : 0;
  }

  int wait() override {
    if (std::exchange(woken_, false)) return 0;
    io_uring_cqe* completion = nullptr;
    return io_uring_wait_cqe(&ring_, &completion);
  }

  std::optional<Completion> reap() override {
    io_uring_cqe* completion = nullptr;
    while (io_uring_peek_cqe(&ring_, &completion) == 0 && completion != nullptr) {
      const Completion found{completion->user_data, completion->res};
      io_uring_cqe_seen(&ring_, completion);
      if (found.tag != kWakeTag) return found;
      std::uint64_t count = 0;
      (void)!::read(wake_, &count, sizeof(count));
      arm_wake();
      woken_ = true;
    }
    return {};
  }

  void wake() noexcept override {
    const std::uint64_t one = 1;
    (void)!::write(wake_, &one, sizeof(one));
  }

 private:
  void set_up(unsigned entries) {
    // Completions are worked on only when this thread asks: fewer interruptions. Older kernels know
    // neither flag.
    int error = 0;
    for (const unsigned flags : {IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN,
                                 IORING_SETUP_SINGLE_ISSUER, 0u}) {
      error = -io_uring_queue_init(entries, &ring_, flags);
      if (error != EINVAL) break;
    }
    if (error != 0) fail(error, "io_uring_setup");
    is_set_up_ = true;
  }

  void check_operations() {
    io_uring_probe* probe = io_uring_get_probe_ring(&ring_);
    const bool all = probe != nullptr && io_uring_opcode_supported(probe, IORING_OP_OPENAT) != 0 &&
                     io_uring_opcode_supported(probe, IORING_OP_READ) != 0 &&
                     io_uring_opcode_supported(probe, IORING_OP_CLOSE) != 0 &&
                     io_uring_opcode_supported(probe, IORING_OP_POLL_ADD) != 0;
    io_uring_free_probe(probe);
    if (!all) fail(ENOSYS, "io_uring: open, read and close");
  }

  // A poll and no read: there is no memory that the kernel might still write to at the end.
  void arm_wake() {
    io_uring_sqe* entry = next_entry();
    io_uring_prep_poll_add(entry, wake_, POLLIN);
    entry->user_data = kWakeTag;
  }

  io_uring_sqe* next_entry() {
    io_uring_sqe* entry = io_uring_get_sqe(&ring_);
    assert(entry != nullptr);  // by the contract of Ring
    return entry;
  }

  void tear_down() noexcept {
    if (is_set_up_) io_uring_queue_exit(&ring_);
    ::close(wake_);
  }

  io_uring ring_{};
  int wake_ = -1;
  bool is_set_up_ = false;
  bool woken_ = false;  // and wait() has not returned since
};

}  // namespace

std::unique_ptr<Ring> make_kernel_ring(unsigned entries) {
  return std::make_unique<KernelRing>(entries);
}

}  // namespace headrace
