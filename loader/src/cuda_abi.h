// The part of the CUDA driver's ABI that is used here, so that building needs no CUDA header.
// tests/cpp/test_cuda_abi.cpp holds it against cuda.h where there is one.
#pragma once

#include <cstddef>
#include <cstdint>

namespace headrace::cuda {

using Result = int;
using Device = int;
using DevicePointer = std::uint64_t;  // CUdeviceptr: an address on the device
using Context = struct ContextTag*;
using Stream = struct StreamTag*;
using Event = struct EventTag*;
using Module = struct ModuleTag*;
using Function = struct FunctionTag*;

inline constexpr Result kSuccess = 0;
inline constexpr Result kInvalidValue = 1;
inline constexpr Result kOutOfMemory = 2;
inline constexpr Result kNotInitialized = 3;
inline constexpr Result kDeinitialized = 4;
inline constexpr Result kNoDevice = 100;
inline constexpr Result kInvalidDevice = 101;
inline constexpr Result kNoBinaryForGpu = 209;
inline constexpr Result kInvalidHandle = 400;
inline constexpr Result kNotReady = 600;
inline constexpr Result kIllegalAddress = 700;
inline constexpr Result kLaunchFailed = 719;
inline constexpr Result kStreamCaptureImplicit = 906;
inline constexpr Result kUnknownError = 999;

inline constexpr unsigned kMemHostAllocPortable = 1;
inline constexpr unsigned kStreamNonBlocking = 1;
inline constexpr unsigned kEventDefault = 0;
inline constexpr unsigned kEventDisableTiming = 2;
inline constexpr int kCaptureModeRelaxed = 2;
inline constexpr int kCaptureStatusNone = 0;

// Stream handles that stand for a default stream; so does null, for the first.
inline constexpr std::uintptr_t kLegacyStream = 1;
inline constexpr std::uintptr_t kPerThreadStream = 2;

/// The driver's functions, under its own names (their unversioned form).
// NOLINTBEGIN(readability-identifier-naming)
struct Functions {
  Result (*cuInit)(unsigned flags);
  Result (*cuDriverGetVersion)(int* version);
  Result (*cuGetErrorName)(Result error, const char** text);
  Result (*cuGetErrorString)(Result error, const char** text);

  Result (*cuDeviceGet)(Device* device, int ordinal);
  Result (*cuDeviceGetCount)(int* count);
  Result (*cuDevicePrimaryCtxRetain)(Context* context, Device device);
  Result (*cuDevicePrimaryCtxRelease)(Device device);
  Result (*cuCtxPushCurrent)(Context context);
  Result (*cuCtxPopCurrent)(Context* context);
  Result (*cuCtxSynchronize)();
  Result (*cuThreadExchangeStreamCaptureMode)(int* mode);

  Result (*cuMemHostAlloc)(void** memory, std::size_t bytes, unsigned flags);
  Result (*cuMemFreeHost)(void* memory);
  Result (*cuMemAlloc)(DevicePointer* memory, std::size_t bytes);
  Result (*cuMemFree)(DevicePointer memory);
  Result (*cuMemcpyHtoDAsync)(DevicePointer to, const void* from, std::size_t bytes, Stream stream);

  Result (*cuStreamCreate)(Stream* stream, unsigned flags);
  Result (*cuStreamDestroy)(Stream stream);
  Result (*cuStreamSynchronize)(Stream stream);
  Result (*cuStreamWaitEvent)(Stream stream, Event event, unsigned flags);
  Result (*cuStreamIsCapturing)(Stream stream, int* status);

  Result (*cuEventCreate)(Event* event, unsigned flags);
  Result (*cuEventDestroy)(Event event);
  Result (*cuEventRecord)(Event event, Stream stream);
  Result (*cuEventQuery)(Event event);
  Result (*cuEventSynchronize)(Event event);
  Result (*cuEventElapsedTime)(float* milliseconds, Event start, Event end);

  Result (*cuModuleLoadData)(Module* module, const void* image);
  Result (*cuModuleUnload)(Module module);
  Result (*cuModuleGetFunction)(Function* function, Module module, const char* name);
  Result (*cuLaunchKernel)(Function function, unsigned grid_x, unsigned grid_y, unsigned grid_z,
                           unsigned block_x, unsigned block_y, unsigned block_z,
                           unsigned shared_bytes, Stream stream, void** parameters, void** extra);
};
// NOLINTEND(readability-identifier-naming)

}  // namespace headrace::cuda
