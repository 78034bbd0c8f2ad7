// The control over the double, for ctypes.
#include <cstring>

#include "fake_cuda.h"
#include "machine.h"

namespace {

using fake_cuda::Stream;

Stream stream_of(std::uint64_t handle) { return reinterpret_cast<Stream>(handle); }

}  // namespace

extern "C" {

/// @param schedule  of fake_cuda::Schedule, by its place.
FAKE_CUDA_API void fake_cuda_reset(int schedule, std::uint64_t seed, int modules_load,
                                   std::uint64_t pinned_bytes, std::int64_t lost_after) {
  fake_cuda::reset({.schedule = static_cast<fake_cuda::Schedule>(schedule),
                    .seed = seed,
                    .pinned_bytes = pinned_bytes,
                    .modules_load = modules_load != 0,
                    .lost_after = lost_after});
}

/// Complaints and leaks, line by line; cut to `size` bytes.
FAKE_CUDA_API void fake_cuda_report(char* text, std::uint64_t size) {
  std::string all;
  for (const auto& complaint : fake_cuda::complaints()) all += complaint + '\n';
  if (const std::string leaks = fake_cuda::leaks(); !leaks.empty()) all += "leaks: " + leaks + '\n';
  std::strncpy(text, all.c_str(), size - 1);
  text[size - 1] = '\0';
}

FAKE_CUDA_API std::uint64_t fake_cuda_make_stream() {
  const fake_cuda::Locked locked;
  auto state = std::make_unique<fake_cuda::StreamState>();
  state->actor = locked.machine.next_actor++;
  const auto handle = reinterpret_cast<Stream>(locked.machine.next_handle++);
  locked.machine.streams[handle] = std::move(state);
  return reinterpret_cast<std::uint64_t>(handle);
}

FAKE_CUDA_API void fake_cuda_destroy_stream(std::uint64_t handle) {
  const fake_cuda::Locked locked;
  locked.machine.streams.erase(stream_of(handle));
}

FAKE_CUDA_API void fake_cuda_adopt(std::uint64_t memory, std::uint64_t bytes) {
  fake_cuda::adopt_device_memory(memory, bytes);
}

/// A kernel of the consumer's reads the memory, and the host waits for it.
FAKE_CUDA_API void fake_cuda_read(std::uint64_t handle, std::uint64_t memory, std::uint64_t bytes) {
  fake_cuda::launch(stream_of(handle), "the consumer's reading", {{memory, bytes, false}}, [] {});
  const fake_cuda::Locked locked;
  auto& machine = locked.machine;
  fake_cuda::StreamState& stream = *machine.stream(stream_of(handle), 0);
  machine.run_until([&stream] { return stream.queue.empty(); });
  machine.host_saw(stream.clock);
}

FAKE_CUDA_API std::int64_t fake_cuda_host_waits() { return fake_cuda::host_waits(); }

}  // extern "C"
