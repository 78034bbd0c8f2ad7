// A double of the CUDA driver: a libcuda.so.1 without a GPU. This is what its tests steer it with;
// the code under test sees the driver's own functions only.
//
// Streams are queues. What is queued runs when the schedule says so, and a copy reads its source
// then. Two checks look for a missing wait, independently of each other:
//  - bits: memory that was freed or handed back is overwritten, so that late readers get garbage;
//  - order: each operation carries a vector clock, made from the order of calls, the events and the
//    host's waits. Two accesses to the same bytes, one of them writing, that no chain of waits
//    orders are a race, whatever the schedule did this time.
// All host threads count as one: what they owe each other ThreadSanitizer checks.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "cuda_abi.h"

#define FAKE_CUDA_API __attribute__((visibility("default")))

namespace fake_cuda {

using headrace::cuda::DevicePointer;
using headrace::cuda::Event;
using headrace::cuda::Result;
using headrace::cuda::Stream;

enum class Schedule {
  kEager,   ///< what is queued runs at once, if it can
  kLazy,    ///< nothing runs before somebody waits for it, or asks for the third time
  kRandom,  ///< at each call a random number of operations of random streams
  kStarved  ///< kernels run at once, copies as under kLazy
};

struct Setup {
  Schedule schedule = Schedule::kEager;
  std::uint64_t seed = 0;
  int devices = 1;
  std::size_t device_bytes = std::size_t{1} << 30;  ///< memory of each device
  std::size_t pinned_bytes = std::size_t{1} << 30;  ///< that can be pinned, in all
  bool modules_load = true;                         ///< false: as with a driver too old for them

  /// This call of the driver, counted from 0, fails once with `error`; -1: none. A call that waits
  /// for the device, or makes a context current, fails only when the device is lost: so it is then.
  std::int64_t failing_call = -1;
  Result error = headrace::cuda::kUnknownError;
  /// After so many operations the device is lost: every later call fails with `error`; -1: never.
  std::int64_t lost_after = -1;
  /// The place in the code under test whose calls are left out: see sites(); 0: none.
  std::uintptr_t left_out = 0;
};

/// Begins anew: forgets streams, events, memory and complaints.
FAKE_CUDA_API void reset(const Setup& setup);

/// Races, wrong uses, deadlocks: one line each, no duplicates.
FAKE_CUDA_API std::vector<std::string> complaints();

/// What was made and not destroyed: "1 stream", "2 events", ...; empty when all is gone. Contexts,
/// which the process shares, are counted by what was retained.
FAKE_CUDA_API std::string leaks();

/// Calls of the driver since reset().
FAKE_CUDA_API std::int64_t calls();

/// A place in the code under test that orders one thing after another: where it calls
/// cuStreamWaitEvent, cuEventRecord, cuEventQuery, cuEventSynchronize or cuStreamSynchronize. A
/// record counts if a wait or a query followed.
struct Site {
  std::uintptr_t address = 0;  ///< of the return, for Setup::left_out
  std::string call;
  std::int64_t times = 0;
};
FAKE_CUDA_API std::vector<Site> sites();

/// Whether the device is lost: what was not destroyed by then cannot be any more.
FAKE_CUDA_API bool lost();

/// How often the host waited for the device.
FAKE_CUDA_API std::int64_t host_waits();

/// Bytes of pinned memory and of device memory at present, and at most so far.
struct MemoryUse {
  std::size_t pinned = 0, pinned_peak = 0, device = 0, device_peak = 0;
};
FAKE_CUDA_API MemoryUse memory_use();

// --- a test's own part in the play --------------------------------------------------------------

/// Calls of the driver made meanwhile are the test's: they cannot fail and are no sites.
struct FAKE_CUDA_API TestsOwn {
  TestsOwn();
  ~TestsOwn();
};

/// The host reads or writes these bytes now, by itself.
FAKE_CUDA_API void host_access(const void* memory, std::size_t bytes, bool writes,
                               const char* what);

/// Memory that others made, such as a tensor on the CPU that stands for one on the device.
FAKE_CUDA_API void adopt_device_memory(DevicePointer memory, std::size_t bytes);
FAKE_CUDA_API void forget_device_memory(DevicePointer memory);

struct Range {
  DevicePointer memory = 0;
  std::size_t bytes = 0;
  bool writes = false;
};
/// Queues a kernel that touches these ranges and runs `body` when it executes.
FAKE_CUDA_API void launch(Stream stream, const char* name, std::vector<Range> ranges,
                          std::function<void()> body);

/// Runs what is queued in a random order, so many operations at most.
FAKE_CUDA_API void run(std::int64_t operations);

/// As cudaStreamBeginCapture in its strictest mode: until end_capture(), calls that would break a
/// capture are complained about on threads that did not exchange their mode.
FAKE_CUDA_API void begin_capture(Stream stream);
FAKE_CUDA_API void end_capture(Stream stream);

}  // namespace fake_cuda
