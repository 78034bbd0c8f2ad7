#include "cuda_driver.h"

#include <dlfcn.h>
#include <unistd.h>

#include <mutex>
#include <string>

#include "headrace/error.h"

namespace headrace {
namespace {

// The newest function used here is cuGetProcAddress itself. A later number would select later
// forms of some functions, with other parameters.
constexpr int kAbiVersion = 11030;

[[noreturn]] void fail(const std::string& message) {
  throw Error(ErrorCode::kDeviceFailed, message, {.stage = "device"});
}

const char* remedy(cuda::Result result) {
  switch (result) {
    case cuda::kOutOfMemory:
      return "free memory on the device, or lower batch_size or prefetch_to_device";
    case cuda::kNoDevice:
    case cuda::kInvalidDevice:
      return "see what nvidia-smi -L lists, and CUDA_VISIBLE_DEVICES";
    case cuda::kDeinitialized:
      return "the process is ending: nothing can be copied any more";
    default:
      return "if it is an earlier kernel that failed, CUDA_LAUNCH_BLOCKING=1 finds it; the "
             "process must be started again";
  }
}

/// Both forms of cuGetProcAddress take these; the later one also a place for a verdict.
using GetProcAddress = cuda::Result (*)(const char* name, void** function, int version,
                                        std::uint64_t flags, int* verdict);

}  // namespace

const CudaDriver& CudaDriver::get() {
  static std::mutex mutex;
  static CudaDriver driver;
  // Before the lock, which may have been held at the fork.
  if (driver.forked()) {
    fail(
        "CUDA was started before this process was forked, and cannot be used in the child. Start "
        "workers that use it by the method \"spawn\"");
  }
  const std::lock_guard lock(mutex);
  if (driver.process_ == 0) driver.start();
  return driver;
}

bool CudaDriver::forked() const noexcept {
  const pid_t process = process_;
  return process != 0 && process != getpid();
}

void CudaDriver::start() {
  if (library_ == nullptr) load();
  check("cuInit", functions_.cuInit(0));
  process_ = getpid();
}

void CudaDriver::load() {
  void* library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) {
    // NOLINTNEXTLINE(concurrency-mt-unsafe): the error is this thread's own
    fail("no CUDA driver: " + std::string(dlerror()) +
         ". Install NVIDIA's driver, or leave out device=");
  }
  void* found = dlsym(library, "cuGetProcAddress_v2");
  if (found == nullptr) found = dlsym(library, "cuGetProcAddress");
  if (found == nullptr) {
    dlclose(library);
    fail("the CUDA driver is older than 11.3: update it, or leave out device=");
  }
  const auto get_address = reinterpret_cast<GetProcAddress>(found);
  // Not dlsym: the plain names are those of an old ABI.
  const auto resolve = [&]<typename Pointer>(Pointer& function, const char* name) {
    void* address = nullptr;
    int verdict = 0;
    const cuda::Result result = get_address(name, &address, kAbiVersion, 0, &verdict);
    if (result != cuda::kSuccess || address == nullptr) {
      dlclose(library);
      fail("the CUDA driver has no " + std::string(name) +
           ": update it to 11.3 or newer, or leave out device=");
    }
    function = reinterpret_cast<Pointer>(address);
  };
  cuda::Functions& f = functions_;
  resolve(f.cuInit, "cuInit");
  resolve(f.cuDriverGetVersion, "cuDriverGetVersion");
  resolve(f.cuGetErrorName, "cuGetErrorName");
  resolve(f.cuGetErrorString, "cuGetErrorString");
  resolve(f.cuDeviceGet, "cuDeviceGet");
  resolve(f.cuDeviceGetCount, "cuDeviceGetCount");
  resolve(f.cuDevicePrimaryCtxRetain, "cuDevicePrimaryCtxRetain");
  resolve(f.cuDevicePrimaryCtxRelease, "cuDevicePrimaryCtxRelease");
  resolve(f.cuCtxPushCurrent, "cuCtxPushCurrent");
  resolve(f.cuCtxPopCurrent, "cuCtxPopCurrent");
  resolve(f.cuCtxSynchronize, "cuCtxSynchronize");
  resolve(f.cuThreadExchangeStreamCaptureMode, "cuThreadExchangeStreamCaptureMode");
  resolve(f.cuMemHostAlloc, "cuMemHostAlloc");
  resolve(f.cuMemFreeHost, "cuMemFreeHost");
  resolve(f.cuMemAlloc, "cuMemAlloc");
  resolve(f.cuMemFree, "cuMemFree");
  resolve(f.cuMemcpyHtoDAsync, "cuMemcpyHtoDAsync");
  resolve(f.cuStreamCreate, "cuStreamCreate");
  resolve(f.cuStreamDestroy, "cuStreamDestroy");
  resolve(f.cuStreamSynchronize, "cuStreamSynchronize");
  resolve(f.cuStreamWaitEvent, "cuStreamWaitEvent");
  resolve(f.cuStreamIsCapturing, "cuStreamIsCapturing");
  resolve(f.cuEventCreate, "cuEventCreate");
  resolve(f.cuEventDestroy, "cuEventDestroy");
  resolve(f.cuEventRecord, "cuEventRecord");
  resolve(f.cuEventQuery, "cuEventQuery");
  resolve(f.cuEventSynchronize, "cuEventSynchronize");
  resolve(f.cuEventElapsedTime, "cuEventElapsedTime");
  resolve(f.cuModuleLoadData, "cuModuleLoadData");
  resolve(f.cuModuleUnload, "cuModuleUnload");
  resolve(f.cuModuleGetFunction, "cuModuleGetFunction");
  resolve(f.cuLaunchKernel, "cuLaunchKernel");
  library_ = library;  // for good: contexts and deleters refer to it until the process ends
}

void CudaDriver::check(const char* call, cuda::Result result) const {
  if (result == cuda::kSuccess) return;
  const char* name = nullptr;
  const char* text = nullptr;
  functions_.cuGetErrorName(result, &name);
  functions_.cuGetErrorString(result, &text);
  const std::string number = "error " + std::to_string(result);
  fail(std::string(call) + ": " + (name != nullptr ? name : number) + " (" +
       (text != nullptr ? text : "no text") + "): " + remedy(result));
}

PrimaryContext::PrimaryContext(int ordinal) : driver_(CudaDriver::get()), ordinal_(ordinal) {
  const cuda::Functions& cu = driver_.functions();
  driver_.check("cuDeviceGet", cu.cuDeviceGet(&device_, ordinal));
  driver_.check("cuDevicePrimaryCtxRetain", cu.cuDevicePrimaryCtxRetain(&context_, device_));
}

PrimaryContext::~PrimaryContext() {
  if (!driver_.forked()) driver_.functions().cuDevicePrimaryCtxRelease(device_);
}

PrimaryContext::Scope::Scope(const PrimaryContext& context)
    : cu_(context.driver_.functions()), capture_mode_(cuda::kCaptureModeRelaxed) {
  const CudaDriver& driver = context.driver_;
  driver.check("cuThreadExchangeStreamCaptureMode",
               cu_.cuThreadExchangeStreamCaptureMode(&capture_mode_));
  const cuda::Result pushed = cu_.cuCtxPushCurrent(context.context_);
  if (pushed != cuda::kSuccess) {
    cu_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
    driver.check("cuCtxPushCurrent", pushed);
  }
}

PrimaryContext::Scope::~Scope() {
  cuda::Context popped = nullptr;
  cu_.cuCtxPopCurrent(&popped);
  cu_.cuThreadExchangeStreamCaptureMode(&capture_mode_);
}

}  // namespace headrace
