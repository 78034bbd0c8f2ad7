// CPU time of threads.
#pragma once

#include <cstdint>

namespace headrace {

/// Of the calling thread, in nanoseconds.
std::uint64_t thread_cpu_ns() noexcept;

/// Of the kernel's threads that work on this process's io_uring operations: they are among its own.
/// 0 where there are none, or /proc is not to be had.
std::uint64_t ring_workers_cpu_ns() noexcept;

}  // namespace headrace
