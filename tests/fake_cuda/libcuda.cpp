// The driver's functions as the double has them.
#include <cstring>
#include <string_view>
#include <unordered_map>
#include <utility>

#include "device_finish.h"
#include "machine.h"

namespace fake_cuda {

thread_local int tests_own = 0;

namespace {

namespace cuda = headrace::cuda;

thread_local int capture_mode = 0;  // global: the strictest, as in every new thread
thread_local std::vector<int> current_devices;

int current_device() { return current_devices.empty() ? -1 : current_devices.back(); }

/// One call of the driver: counted, made to fail, left out; and afterwards the schedule's turn.
class Call {
 public:
  enum Trait { kPlain, kSwitchesContext, kNeedsContext, kBreaksCaptures, kWaits };

  explicit Call(Trait trait, const char* name = "") : machine(locked_.machine) {
    if (tests_own > 0) return;
    const std::int64_t number = machine.calls++;
    if (trait != kPlain && trait != kSwitchesContext && current_device() < 0) {
      machine.complain(std::string(name) + " without a current context");
      result = 201;  // CUDA_ERROR_INVALID_CONTEXT
    }
    if ((trait == kBreaksCaptures || trait == kWaits) && machine.capturing_streams > 0 &&
        capture_mode != cuda::kCaptureModeRelaxed) {
      machine.complain(std::string(name) + " breaks a capture");
    }
    if (number == machine.setup.failing_call) {
      result = machine.setup.error;
      // These fail only when all is lost.
      if (trait == kWaits || trait == kSwitchesContext) machine.lost = true;
    }
    if (machine.lost) result = machine.setup.error;
  }
  ~Call() { machine.run_by_schedule(); }
  Call(const Call&) = delete;
  Call& operator=(const Call&) = delete;

  /// Whether this call, which orders things, is the one to leave out.
  bool left_out(const char* name, void* return_address) {
    if (tests_own > 0) return false;
    site_ = reinterpret_cast<std::uintptr_t>(return_address);
    Site& site = machine.sites[site_];
    site.address = site_;
    site.call = name;
    ++site.times;
    return site_ == machine.setup.left_out;
  }
  std::uintptr_t site() const { return site_; }

 private:
  Locked locked_;
  std::uintptr_t site_ = 0;

 public:
  Machine& machine;
  Result result = cuda::kSuccess;
};

std::shared_ptr<EventState> find_event(Machine& machine, Event event) {
  const auto found = machine.events.find(event);
  if (found != machine.events.end()) return found->second;
  machine.complain("an event is used that does not exist");
  return nullptr;
}

void check_capture(Machine& machine, const StreamState& stream, const char* what) {
  if (stream.capturing && tests_own == 0) {
    machine.complain(std::string(what) + " on a stream that is being captured");
  }
}

/// Events with times are there to be measured: nothing is ordered by them.
bool orders(const EventState& event) { return (event.flags & cuda::kEventDisableTiming) != 0; }

// --- process, devices, contexts -------------------------------------------------------------

Result init(unsigned) { return Call(Call::kPlain).result; }

Result driver_get_version(int* version) {
  *version = 13000;
  return Call(Call::kPlain).result;
}

// Errors are told of while others are: these two never fail themselves.
Result get_error_name(Result error, const char** text) {
  *text = error == cuda::kOutOfMemory ? "CUDA_ERROR_OUT_OF_MEMORY" : "CUDA_ERROR_OF_THE_DOUBLE";
  return cuda::kSuccess;
}
Result get_error_string(Result error, const char** text) {
  *text = error == cuda::kOutOfMemory ? "out of memory" : "as the test wants it";
  return cuda::kSuccess;
}

Result device_get(cuda::Device* device, int ordinal) {
  const Call call(Call::kPlain);
  if (call.result != cuda::kSuccess) return call.result;
  if (ordinal < 0 || ordinal >= call.machine.setup.devices) return cuda::kInvalidDevice;
  *device = ordinal;
  return cuda::kSuccess;
}

Result device_get_count(int* count) {
  const Call call(Call::kPlain);
  *count = call.machine.setup.devices;
  return call.result;
}

// A context's handle is its device's number and one.
cuda::Context context_of(int device) {
  return reinterpret_cast<cuda::Context>(static_cast<std::uintptr_t>(device) + 1);
}

Result primary_retain(cuda::Context* context, cuda::Device device) {
  const Call call(Call::kPlain);
  if (call.result != cuda::kSuccess) return call.result;
  ++call.machine.contexts[device];
  *context = context_of(device);
  return cuda::kSuccess;
}

Result primary_release(cuda::Device device) {
  const Call call(Call::kPlain);
  if (--call.machine.contexts[device] < 0) call.machine.complain("a context is released twice");
  return call.result;
}

Result push_current(cuda::Context context) {
  const Call call(Call::kSwitchesContext);
  if (call.result != cuda::kSuccess) return call.result;
  current_devices.push_back(static_cast<int>(address_of(context)) - 1);
  return cuda::kSuccess;
}

Result pop_current(cuda::Context* context) {
  const Call call(Call::kSwitchesContext);
  if (current_devices.empty()) {
    call.machine.complain("a context is popped that was not pushed");
    return 201;
  }
  *context = context_of(current_device());
  current_devices.pop_back();
  return call.result;
}

Result exchange_capture_mode(int* mode) {
  const Call call(Call::kSwitchesContext);
  if (call.result == cuda::kSuccess) std::swap(*mode, capture_mode);
  return call.result;
}

// --- memory ---------------------------------------------------------------------------------

Result host_alloc(void** memory, std::size_t bytes, unsigned flags) {
  const Call call(Call::kBreaksCaptures, "cuMemHostAlloc");
  if (call.result != cuda::kSuccess) return call.result;
  if ((flags & cuda::kMemHostAllocPortable) == 0) {
    call.machine.complain("pinned memory is not portable: other devices could not use it");
  }
  *memory = call.machine.allocate(MemoryKind::kPinned, bytes, current_device());
  return *memory == nullptr ? cuda::kOutOfMemory : cuda::kSuccess;
}

Result free_host(void* memory) {
  const Call call(Call::kBreaksCaptures, "cuMemFreeHost");
  call.machine.release(MemoryKind::kPinned, address_of(memory));
  return call.result;
}

Result device_alloc(DevicePointer* memory, std::size_t bytes) {
  const Call call(Call::kBreaksCaptures, "cuMemAlloc");
  if (call.result != cuda::kSuccess) return call.result;
  *memory = address_of(call.machine.allocate(MemoryKind::kDevice, bytes, current_device()));
  return *memory == 0 ? cuda::kOutOfMemory : cuda::kSuccess;
}

Result device_free(DevicePointer memory) {
  const Call call(Call::kBreaksCaptures, "cuMemFree");
  call.machine.release(MemoryKind::kDevice, memory);
  return call.result;
}

Result copy_to_device(DevicePointer to, const void* from, std::size_t bytes, Stream handle) {
  const Call call(Call::kNeedsContext, "cuMemcpyHtoDAsync");
  if (call.result != cuda::kSuccess) return call.result;
  Machine& machine = call.machine;
  StreamState* stream = find_stream(machine, handle);
  if (stream == nullptr) return cuda::kInvalidHandle;
  check_capture(machine, *stream, "a copy");
  auto* target = reinterpret_cast<void*>(to);
  const Region* source = machine.find(address_of(from));
  if (source != nullptr && source->kind == MemoryKind::kPinned) {
    machine.queue(*stream, {.kind = Operation::Kind::kCopy,
                            .body = [=] { std::memcpy(target, from, bytes); },
                            .record = {}});
    machine.access(stream->actor, stream->clock, address_of(from), bytes, false,
                   "a copy's reading");
  } else {  // pageable: the source has been read when the call returns
    std::vector<std::byte> staged(bytes);
    std::memcpy(staged.data(), from, bytes);
    machine.queue(*stream, {.kind = Operation::Kind::kCopy,
                            .body = [=] { std::memcpy(target, staged.data(), bytes); },
                            .record = {}});
  }
  machine.access(stream->actor, stream->clock, to, bytes, true, "a copy's writing");
  return cuda::kSuccess;
}

// --- streams --------------------------------------------------------------------------------

Result stream_create(Stream* handle, unsigned flags) {
  const Call call(Call::kNeedsContext, "cuStreamCreate");
  if (call.result != cuda::kSuccess) return call.result;
  Machine& machine = call.machine;
  if (flags != cuda::kStreamNonBlocking) {
    machine.complain("a stream waits for the default stream, and that for it");
  }
  auto state = std::make_unique<StreamState>();
  state->actor = machine.next_actor++;
  state->device = std::max(0, current_device());
  *handle = reinterpret_cast<Stream>(machine.next_handle++);
  machine.streams[*handle] = std::move(state);
  return cuda::kSuccess;
}

Result stream_destroy(Stream handle) {
  const Call call(Call::kNeedsContext, "cuStreamDestroy");
  StreamState* stream = find_stream(call.machine, handle);
  if (stream == nullptr) return cuda::kInvalidHandle;
  // The real one lets the stream finish what is queued; so does this.
  call.machine.run_until([&] { return stream->queue.empty(); });
  call.machine.streams.erase(handle);
  return call.result;
}

Result stream_synchronize(Stream handle) {
  Call call(Call::kWaits, "cuStreamSynchronize");
  if (call.result != cuda::kSuccess) return call.result;
  if (call.left_out("cuStreamSynchronize", __builtin_return_address(0))) return cuda::kSuccess;
  Machine& machine = call.machine;
  StreamState* stream = find_stream(machine, handle);
  if (stream == nullptr) return cuda::kInvalidHandle;
  if (tests_own == 0) ++machine.host_waits;
  machine.run_until([&] { return stream->queue.empty(); });
  machine.host_saw(stream->clock);
  return machine.lost ? machine.setup.error : cuda::kSuccess;
}

Result context_synchronize() {
  Call call(Call::kWaits, "cuCtxSynchronize");
  if (call.result != cuda::kSuccess) return call.result;
  if (call.left_out("cuCtxSynchronize", __builtin_return_address(0))) return cuda::kSuccess;
  Machine& machine = call.machine;
  if (machine.capturing_streams > 0) return 900;  // CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED
  if (tests_own == 0) ++machine.host_waits;
  const auto wait_for = [&](StreamState& stream) {
    machine.run_until([&] { return stream.queue.empty(); });
    machine.host_saw(stream.clock);
  };
  for (const auto& entry : machine.streams) wait_for(*entry.second);
  for (const auto& entry : machine.default_streams) wait_for(*entry.second);
  return machine.lost ? machine.setup.error : cuda::kSuccess;
}

Result stream_wait_event(Stream handle, Event event, unsigned) {
  Call call(Call::kNeedsContext, "cuStreamWaitEvent");
  if (call.result != cuda::kSuccess) return call.result;
  if (call.left_out("cuStreamWaitEvent", __builtin_return_address(0))) return cuda::kSuccess;
  StreamState* stream = find_stream(call.machine, handle);
  const auto state = find_event(call.machine, event);
  if (stream == nullptr || state == nullptr) return cuda::kInvalidHandle;
  check_capture(call.machine, *stream, "a wait");
  if (state->record_site != 0) call.machine.ordering_records.insert(state->record_site);
  call.machine.wait(*stream, *state);
  return cuda::kSuccess;
}

Result stream_is_capturing(Stream handle, int* status) {
  const Call call(Call::kNeedsContext, "cuStreamIsCapturing");
  if (call.result != cuda::kSuccess) return call.result;
  const StreamState* stream = find_stream(call.machine, handle);
  if (stream == nullptr) return cuda::kInvalidHandle;
  *status = stream->capturing ? 1 : cuda::kCaptureStatusNone;
  return stream->capturing && handle == nullptr ? cuda::kStreamCaptureImplicit : cuda::kSuccess;
}

// --- events ---------------------------------------------------------------------------------

Result event_create(Event* event, unsigned flags) {
  const Call call(Call::kNeedsContext, "cuEventCreate");
  if (call.result != cuda::kSuccess) return call.result;
  auto state = std::make_shared<EventState>();
  state->flags = flags;
  state->device = std::max(0, current_device());
  *event = reinterpret_cast<Event>(call.machine.next_handle++);
  call.machine.events[*event] = std::move(state);
  return cuda::kSuccess;
}

Result event_destroy(Event event) {
  const Call call(Call::kNeedsContext, "cuEventDestroy");
  if (find_event(call.machine, event) == nullptr) return cuda::kInvalidHandle;
  call.machine.events.erase(event);  // operations that are queued still own its state
  return call.result;
}

Result event_record(Event event, Stream handle) {
  Call call(Call::kNeedsContext, "cuEventRecord");
  if (call.result != cuda::kSuccess) return call.result;
  StreamState* stream = find_stream(call.machine, handle);
  const auto state = find_event(call.machine, event);
  if (stream == nullptr || state == nullptr) return cuda::kInvalidHandle;
  if (orders(*state) && call.left_out("cuEventRecord", __builtin_return_address(0))) {
    return cuda::kSuccess;
  }
  check_capture(call.machine, *stream, "a record");
  if (state->device != stream->device) {
    call.machine.complain("an event is recorded on another device's stream");
    return cuda::kInvalidHandle;
  }
  state->record_site = call.site();
  call.machine.record(*state, *stream);
  return cuda::kSuccess;
}

Result event_query(Event event) {
  Call call(Call::kWaits, "cuEventQuery");
  if (call.result != cuda::kSuccess) return call.result;
  const auto state = find_event(call.machine, event);
  if (state == nullptr) return cuda::kInvalidHandle;
  if (orders(*state) && call.left_out("cuEventQuery", __builtin_return_address(0))) {
    return cuda::kSuccess;
  }
  Machine& machine = call.machine;
  if (state->record_site != 0) machine.ordering_records.insert(state->record_site);
  constexpr int kPatience = 3;
  if (!state->reached() && ++state->unready_queries >= kPatience) {
    machine.run_one(/*copies=*/true);
  }
  if (machine.lost) return machine.setup.error;
  if (!state->reached()) return cuda::kNotReady;
  if (state->latest != nullptr) machine.host_saw(state->latest->clock);
  return cuda::kSuccess;
}

Result event_synchronize(Event event) {
  Call call(Call::kWaits, "cuEventSynchronize");
  if (call.result != cuda::kSuccess) return call.result;
  if (call.left_out("cuEventSynchronize", __builtin_return_address(0))) return cuda::kSuccess;
  const auto state = find_event(call.machine, event);
  if (state == nullptr) return cuda::kInvalidHandle;
  Machine& machine = call.machine;
  if (state->record_site != 0) machine.ordering_records.insert(state->record_site);
  if (tests_own == 0) ++machine.host_waits;
  machine.run_until([&] { return state->reached(); });
  if (state->latest != nullptr) machine.host_saw(state->latest->clock);
  return machine.lost ? machine.setup.error : cuda::kSuccess;
}

Result event_elapsed(float* milliseconds, Event start, Event end) {
  const Call call(Call::kNeedsContext, "cuEventElapsedTime");
  if (call.result != cuda::kSuccess) return call.result;
  const auto first = find_event(call.machine, start);
  const auto second = find_event(call.machine, end);
  if (first == nullptr || second == nullptr) return cuda::kInvalidHandle;
  for (const auto& event : {first, second}) {
    if (event->latest == nullptr || (event->flags & cuda::kEventDisableTiming) != 0) {
      call.machine.complain("the time is asked of an event that has none");
      return cuda::kInvalidHandle;
    }
    if (!event->reached()) return cuda::kNotReady;
  }
  *milliseconds = static_cast<float>(second->latest->time_ms - first->latest->time_ms);
  return cuda::kSuccess;
}

// --- kernels --------------------------------------------------------------------------------

Result module_load(cuda::Module* module, const void*) {
  const Call call(Call::kBreaksCaptures, "cuModuleLoadData");
  if (call.result != cuda::kSuccess) return call.result;
  if (!call.machine.setup.modules_load) return cuda::kNoBinaryForGpu;
  const std::uintptr_t handle = call.machine.next_handle++;
  call.machine.modules.insert(handle);
  *module = reinterpret_cast<cuda::Module>(handle);
  return cuda::kSuccess;
}

Result module_unload(cuda::Module module) {
  const Call call(Call::kNeedsContext, "cuModuleUnload");
  if (call.machine.modules.erase(address_of(module)) == 0) return cuda::kInvalidHandle;
  return call.result;
}

using headrace::FinishArguments;

template <typename Element, bool kChannelsLast>
void finish_all(const FinishArguments& arguments) {
  for (long long i = 0; i < arguments.pixel_count; ++i) {
    headrace::finish_pixel<Element, kChannelsLast>(arguments,
                                                   static_cast<const Element*>(arguments.table), i);
  }
}

struct Kernel {
  const char* name;
  void (*run)(const FinishArguments&);
  std::size_t element_bytes;
};
constexpr Kernel kKernels[] = {
    {"headrace_finish_16bit_nchw", finish_all<std::uint16_t, false>, 2},
    {"headrace_finish_16bit_nhwc", finish_all<std::uint16_t, true>, 2},
    {"headrace_finish_32bit_nchw", finish_all<std::uint32_t, false>, 4},
    {"headrace_finish_32bit_nhwc", finish_all<std::uint32_t, true>, 4},
};

Result module_get_function(cuda::Function* function, cuda::Module, const char* name) {
  const Call call(Call::kNeedsContext, "cuModuleGetFunction");
  if (call.result != cuda::kSuccess) return call.result;
  for (const Kernel& kernel : kKernels) {
    if (std::string_view(kernel.name) == name) {
      *function = reinterpret_cast<cuda::Function>(const_cast<Kernel*>(&kernel));
      return cuda::kSuccess;
    }
  }
  return 500;  // CUDA_ERROR_NOT_FOUND
}

Result launch_kernel(cuda::Function function, unsigned grid_x, unsigned, unsigned, unsigned block_x,
                     unsigned, unsigned, unsigned, Stream handle, void** parameters, void**) {
  const Call call(Call::kNeedsContext, "cuLaunchKernel");
  if (call.result != cuda::kSuccess) return call.result;
  Machine& machine = call.machine;
  StreamState* stream = find_stream(machine, handle);
  if (stream == nullptr || grid_x == 0 || block_x == 0 || block_x > 1024) {
    return cuda::kInvalidValue;
  }
  const auto& kernel = *reinterpret_cast<const Kernel*>(function);
  FinishArguments arguments{};  // read at the call, as the real one does
  std::memcpy(&arguments, parameters[0], sizeof arguments);
  machine.queue(*stream, {.kind = Operation::Kind::kKernel,
                          .body = [&kernel, arguments] { kernel.run(arguments); },
                          .record = {}});
  const auto pixels = static_cast<std::size_t>(arguments.pixel_count);
  const auto plane =
      static_cast<std::size_t>(arguments.height) * static_cast<std::size_t>(arguments.width);
  const auto touch = [&](const void* memory, std::size_t bytes, bool writes, const char* what) {
    machine.access(stream->actor, stream->clock, address_of(memory), bytes, writes, what);
  };
  touch(arguments.pixels, 3 * pixels, false, "the kernel's reading of pixels");
  touch(arguments.mirrored, pixels / plane, false, "the kernel's reading of flips");
  touch(arguments.table, 3 * 256 * kernel.element_bytes, false,
        "the kernel's reading of the table");
  touch(arguments.out, 3 * pixels * kernel.element_bytes, true, "the kernel's writing");
  return cuda::kSuccess;
}

template <typename Pointer>
void* erased(Pointer* function) {
  return reinterpret_cast<void*>(function);
}

const std::unordered_map<std::string_view, void*>& functions() {
  static const std::unordered_map<std::string_view, void*> table = {
      {"cuInit", erased(init)},
      {"cuDriverGetVersion", erased(driver_get_version)},
      {"cuGetErrorName", erased(get_error_name)},
      {"cuGetErrorString", erased(get_error_string)},
      {"cuDeviceGet", erased(device_get)},
      {"cuDeviceGetCount", erased(device_get_count)},
      {"cuDevicePrimaryCtxRetain", erased(primary_retain)},
      {"cuDevicePrimaryCtxRelease", erased(primary_release)},
      {"cuCtxPushCurrent", erased(push_current)},
      {"cuCtxPopCurrent", erased(pop_current)},
      {"cuCtxSynchronize", erased(context_synchronize)},
      {"cuThreadExchangeStreamCaptureMode", erased(exchange_capture_mode)},
      {"cuMemHostAlloc", erased(host_alloc)},
      {"cuMemFreeHost", erased(free_host)},
      {"cuMemAlloc", erased(device_alloc)},
      {"cuMemFree", erased(device_free)},
      {"cuMemcpyHtoDAsync", erased(copy_to_device)},
      {"cuStreamCreate", erased(stream_create)},
      {"cuStreamDestroy", erased(stream_destroy)},
      {"cuStreamSynchronize", erased(stream_synchronize)},
      {"cuStreamWaitEvent", erased(stream_wait_event)},
      {"cuStreamIsCapturing", erased(stream_is_capturing)},
      {"cuEventCreate", erased(event_create)},
      {"cuEventDestroy", erased(event_destroy)},
      {"cuEventRecord", erased(event_record)},
      {"cuEventQuery", erased(event_query)},
      {"cuEventSynchronize", erased(event_synchronize)},
      {"cuEventElapsedTime", erased(event_elapsed)},
      {"cuModuleLoadData", erased(module_load)},
      {"cuModuleUnload", erased(module_unload)},
      {"cuModuleGetFunction", erased(module_get_function)},
      {"cuLaunchKernel", erased(launch_kernel)},
  };
  return table;
}

}  // namespace

StreamState* find_stream(Machine& machine, Stream handle) {
  StreamState* stream = machine.stream(handle, std::max(0, current_device()));
  if (stream == nullptr) machine.complain("a stream is used that does not exist");
  return stream;
}

}  // namespace fake_cuda

// The only name of the driver that is exported: who resolves others by dlsym gets an old ABI.
extern "C" FAKE_CUDA_API int cuGetProcAddress_v2(const char* name, void** function, int version,
                                                 std::uint64_t /*flags*/, int* verdict) {
  const auto found = fake_cuda::functions().find(name);
  *function = found == fake_cuda::functions().end() ? nullptr : found->second;
  *verdict = *function == nullptr ? 1 : 0;
  // From 12.8 on cuEventElapsedTime, from 13.0 on cuCtxSynchronize are others.
  return version <= 12070 && *function != nullptr ? 0 : 500;
}
