// The CUDA driver: loaded when it is first asked for, never linked.
#pragma once

#include <sys/types.h>

#include <atomic>

#include "cuda_abi.h"

namespace headrace {

/// The process's CUDA driver. All of it may be used from any thread.
class CudaDriver {
 public:
  /// Loads libcuda.so.1 and initialises it, at the first call that succeeds.
  /// @throws Error{kDeviceFailed}: no driver, a driver that lacks a function (older than 11.3) or
  /// that fails to start; or a forked child of a process that had started it, where CUDA cannot be
  /// used at all.
  static const CudaDriver& get();

  const cuda::Functions& functions() const noexcept { return functions_; }

  /// @throws Error{kDeviceFailed}, with the driver's name and text for `result` and a remedy,
  /// unless it is a success.
  void check(const char* call, cuda::Result result) const;

  /// Whether this process is a forked child of the one that started the driver.
  bool forked() const noexcept;

 private:
  CudaDriver() = default;
  void load();
  void start();

  void* library_ = nullptr;
  cuda::Functions functions_{};
  std::atomic<pid_t> process_ = 0;
};

/// The primary context of one device, shared with everything else in the process that uses the
/// device (torch does). Kept as long as this object lives.
class PrimaryContext {
 public:
  /// @param ordinal  of the device, among those that CUDA_VISIBLE_DEVICES leaves.
  /// @throws Error{kDeviceFailed}
  explicit PrimaryContext(int ordinal);
  ~PrimaryContext();
  PrimaryContext(const PrimaryContext&) = delete;
  PrimaryContext& operator=(const PrimaryContext&) = delete;

  const CudaDriver& driver() const noexcept { return driver_; }
  int ordinal() const noexcept { return ordinal_; }

  /// While it lives the context is this thread's current one, and what the thread calls does not
  /// break a CUDA graph's capture that goes on in another thread.
  class Scope {
   public:
    /// @throws Error{kDeviceFailed}
    explicit Scope(const PrimaryContext& context);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const cuda::Functions& cu_;
    int capture_mode_;
  };

 private:
  const CudaDriver& driver_;
  int ordinal_;
  cuda::Device device_ = 0;
  cuda::Context context_ = nullptr;
};

}  // namespace headrace
