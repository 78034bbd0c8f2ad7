// Our declarations of the driver's ABI against NVIDIA's, where its header is installed.
#include <cuda.h>
#include <cudaTypedefs.h>

#include <type_traits>

#include "cuda_abi.h"
#include "support.h"

namespace headrace {
namespace {

/// What is passed for a type: pointers and handles are addresses, enums are ints.
template <typename T>
using Passed =
    std::conditional_t<std::is_pointer_v<T>, void*, std::conditional_t<std::is_enum_v<T>, int, T>>;

template <typename Ours, typename Theirs>
constexpr bool kSame = false;
template <typename R1, typename... A1, typename R2, typename... A2>
constexpr bool kSame<R1 (*)(A1...), R2 (*)(A2...)> =
    std::is_same_v<R1 (*)(Passed<A1>...), Passed<R2> (*)(Passed<A2>...)>;

#define HEADRACE_CHECK_FUNCTION(name, version) \
  static_assert(kSame<decltype(cuda::Functions::name), PFN_##name##_v##version>)

HEADRACE_CHECK_FUNCTION(cuInit, 2000);
HEADRACE_CHECK_FUNCTION(cuDriverGetVersion, 2020);
HEADRACE_CHECK_FUNCTION(cuGetErrorName, 6000);
HEADRACE_CHECK_FUNCTION(cuGetErrorString, 6000);
HEADRACE_CHECK_FUNCTION(cuDeviceGet, 2000);
HEADRACE_CHECK_FUNCTION(cuDeviceGetCount, 2000);
HEADRACE_CHECK_FUNCTION(cuDevicePrimaryCtxRetain, 7000);
HEADRACE_CHECK_FUNCTION(cuDevicePrimaryCtxRelease, 11000);
HEADRACE_CHECK_FUNCTION(cuCtxPushCurrent, 4000);
HEADRACE_CHECK_FUNCTION(cuCtxPopCurrent, 4000);
HEADRACE_CHECK_FUNCTION(cuCtxSynchronize, 2000);
HEADRACE_CHECK_FUNCTION(cuMemHostAlloc, 2020);
HEADRACE_CHECK_FUNCTION(cuMemFreeHost, 2000);
HEADRACE_CHECK_FUNCTION(cuStreamCreate, 2000);
HEADRACE_CHECK_FUNCTION(cuStreamDestroy, 4000);
HEADRACE_CHECK_FUNCTION(cuStreamSynchronize, 2000);
HEADRACE_CHECK_FUNCTION(cuStreamWaitEvent, 3020);
HEADRACE_CHECK_FUNCTION(cuEventCreate, 2000);
HEADRACE_CHECK_FUNCTION(cuEventDestroy, 4000);
HEADRACE_CHECK_FUNCTION(cuEventRecord, 2000);
HEADRACE_CHECK_FUNCTION(cuEventQuery, 2000);
HEADRACE_CHECK_FUNCTION(cuEventSynchronize, 2000);
HEADRACE_CHECK_FUNCTION(cuEventElapsedTime, 2000);
HEADRACE_CHECK_FUNCTION(cuModuleLoadData, 2000);
HEADRACE_CHECK_FUNCTION(cuModuleUnload, 2000);
HEADRACE_CHECK_FUNCTION(cuModuleGetFunction, 2000);
HEADRACE_CHECK_FUNCTION(cuLaunchKernel, 4000);
HEADRACE_CHECK_FUNCTION(cuStreamIsCapturing, 10000);
HEADRACE_CHECK_FUNCTION(cuThreadExchangeStreamCaptureMode, 10010);
// Theirs has `unsigned long long` for a device's address, ours uint64_t: the same 8 bytes.
static_assert(sizeof(cuda::DevicePointer) == sizeof(CUdeviceptr) &&
              std::is_unsigned_v<CUdeviceptr>);

TEST_CASE("the constants of the driver's ABI are NVIDIA's", "[cuda_abi]") {
  CHECK(cuda::kSuccess == CUDA_SUCCESS);
  CHECK(cuda::kInvalidValue == CUDA_ERROR_INVALID_VALUE);
  CHECK(cuda::kOutOfMemory == CUDA_ERROR_OUT_OF_MEMORY);
  CHECK(cuda::kNotInitialized == CUDA_ERROR_NOT_INITIALIZED);
  CHECK(cuda::kDeinitialized == CUDA_ERROR_DEINITIALIZED);
  CHECK(cuda::kNoDevice == CUDA_ERROR_NO_DEVICE);
  CHECK(cuda::kInvalidDevice == CUDA_ERROR_INVALID_DEVICE);
  CHECK(cuda::kNoBinaryForGpu == CUDA_ERROR_NO_BINARY_FOR_GPU);
  CHECK(cuda::kInvalidHandle == CUDA_ERROR_INVALID_HANDLE);
  CHECK(cuda::kNotReady == CUDA_ERROR_NOT_READY);
  CHECK(cuda::kIllegalAddress == CUDA_ERROR_ILLEGAL_ADDRESS);
  CHECK(cuda::kLaunchFailed == CUDA_ERROR_LAUNCH_FAILED);
  CHECK(cuda::kStreamCaptureImplicit == CUDA_ERROR_STREAM_CAPTURE_IMPLICIT);
  CHECK(cuda::kUnknownError == CUDA_ERROR_UNKNOWN);
  CHECK(cuda::kMemHostAllocPortable == CU_MEMHOSTALLOC_PORTABLE);
  CHECK(cuda::kStreamNonBlocking == CU_STREAM_NON_BLOCKING);
  CHECK(cuda::kEventDefault == CU_EVENT_DEFAULT);
  CHECK(cuda::kEventDisableTiming == CU_EVENT_DISABLE_TIMING);
  CHECK(cuda::kCaptureModeRelaxed == CU_STREAM_CAPTURE_MODE_RELAXED);
  CHECK(cuda::kCaptureStatusNone == CU_STREAM_CAPTURE_STATUS_NONE);
  CHECK(reinterpret_cast<CUstream>(cuda::kLegacyStream) == CU_STREAM_LEGACY);
  CHECK(reinterpret_cast<CUstream>(cuda::kPerThreadStream) == CU_STREAM_PER_THREAD);
}

}  // namespace
}  // namespace headrace
