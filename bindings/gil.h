// Leaving and taking the GIL, safely up to the interpreter's end.
#pragma once

#include <pybind11/pybind11.h>
#include <unistd.h>

#include <atomic>
#include <cstdint>
#include <ctime>
#include <exception>
#include <thread>

namespace headrace {

/// The thread that ends the interpreter; none before that.
inline std::atomic<std::thread::id> exiting_thread{};

/// To be called by it, before the engines are closed.
inline void begin_exit() { exiting_thread = std::this_thread::get_id(); }

/// Daemon threads that come back from an engine meanwhile stay where they are until the process is
/// gone. Back in Python, whatever lets go of the GIL next in a C++ destructor (torch's profiler
/// record around next() does) would end the process by std::terminate.
inline void stay_here_at_exit() {
  const std::thread::id exiting = exiting_thread;
  if (exiting == std::thread::id() || exiting == std::this_thread::get_id()) return;
  while (true) pause();
}

/// The processor's time that this thread has used, in nanoseconds.
inline std::int64_t cpu_ns_of_this_thread() {
  timespec now{};
  clock_gettime(CLOCK_THREAD_CPUTIME_ID, &now);
  return now.tv_sec * std::int64_t{1'000'000'000} + now.tv_nsec;
}

/// Of that, in without_gil().
inline thread_local std::int64_t cpu_ns_without_gil = 0;

/// Calls `function` without the GIL. Not for destructors.
template <class Function>
void without_gil(Function function) {
  std::exception_ptr failure;
  PyThreadState* thread = PyEval_SaveThread();
  const std::int64_t begin = cpu_ns_of_this_thread();
  try {
    function();
  } catch (...) {
    failure = std::current_exception();
  }
  cpu_ns_without_gil += cpu_ns_of_this_thread() - begin;
  stay_here_at_exit();
  // In no destructor: at the interpreter's end this ends a daemon thread, by unwinding its stack.
  PyEval_RestoreThread(thread);
  if (failure != nullptr) std::rethrow_exception(failure);
}

}  // namespace headrace
