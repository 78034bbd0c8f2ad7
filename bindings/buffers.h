// Python buffers as spans. No numpy needed.
#pragma once

#include <pybind11/pybind11.h>

#include <atomic>
#include <cstddef>
#include <memory>
#include <span>
#include <utility>

#include "headrace/source.h"

namespace headrace {

/// The bytes of a C-contiguous buffer, alive and pinned as long as this object lives.
class PinnedBuffer {
 public:
  explicit PinnedBuffer(const pybind11::buffer& buffer, bool writable = false) {
    const int flags = writable ? PyBUF_WRITABLE : PyBUF_SIMPLE;
    if (PyObject_GetBuffer(buffer.ptr(), &view_, flags) != 0) throw pybind11::error_already_set();
  }
  ~PinnedBuffer() { PyBuffer_Release(&view_); }
  PinnedBuffer(const PinnedBuffer&) = delete;
  PinnedBuffer& operator=(const PinnedBuffer&) = delete;

  std::span<const std::byte> bytes() const { return writable_bytes(); }
  /// Only of a buffer that was asked for as writable.
  std::span<std::byte> writable_bytes() const {
    return {static_cast<std::byte*>(view_.buf), static_cast<std::size_t>(view_.len)};
  }

 private:
  Py_buffer view_{};
};

/// Shares Python's buffers with threads that have no GIL: what they let go of stays pinned until
/// somebody who has it calls release_dropped().
class BufferKeeper : public std::enable_shared_from_this<BufferKeeper> {
 public:
  ~BufferKeeper() = default;  // leaks what was not released, as it may run without the GIL

  /// Needs the GIL. The bytes must not change as long as they are shared.
  MemoryBlock share(const pybind11::handle& object) {
    auto held = std::make_unique<Held>();
    if (PyObject_GetBuffer(object.ptr(), &held->view, PyBUF_SIMPLE) != 0) {
      throw pybind11::error_already_set();
    }
    const auto* data = static_cast<const std::byte*>(held->view.buf);
    const auto size = static_cast<std::size_t>(held->view.len);
    Held* raw = held.release();
    // An empty buffer may have no address, which would look like no buffer at all.
    static constexpr std::byte kNothing{};
    return {std::shared_ptr<const std::byte>(
                size == 0 ? &kNothing : data,
                [keeper = shared_from_this(), raw](const std::byte*) { keeper->drop(raw); }),
            size};
  }

  /// Needs the GIL.
  void release_dropped() {
    Held* held = dropped_.exchange(nullptr);
    while (held != nullptr) {
      const std::unique_ptr<Held> last(std::exchange(held, held->next));
      PyBuffer_Release(&last->view);
    }
  }

 private:
  struct Held {
    Py_buffer view{};
    Held* next = nullptr;
  };

  void drop(Held* held) noexcept {
    held->next = dropped_.load();
    while (!dropped_.compare_exchange_weak(held->next, held)) {
    }
  }

  std::atomic<Held*> dropped_{nullptr};
};

}  // namespace headrace
