// Python buffers as spans. No numpy needed.
#pragma once

#include <pybind11/pybind11.h>

#include <cstddef>
#include <span>

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

}  // namespace headrace
