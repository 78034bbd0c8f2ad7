// The kernels that finish pixels on the device: found, loaded, launched.
#pragma once

#include <cstddef>
#include <memory>
#include <span>
#include <string>

#include "cuda_driver.h"
#include "device_finish.h"
#include "headrace/field.h"

namespace headrace {

/// The compiled kernels (fatbin), embedded in this library; empty where it was built without nvcc.
std::span<const std::byte> built_in_kernel_image() noexcept;

/// One kernel, on one device.
class DeviceKernel {
 public:
  /// @param why_not  set to the reason if there is no such kernel, or none for this device and
  /// driver; the result is then null.
  /// Needs the context current.
  static std::unique_ptr<DeviceKernel> load(std::shared_ptr<const PrimaryContext> context,
                                            std::span<const std::byte> image,
                                            const FieldSpec& output, std::string& why_not);
  ~DeviceKernel();
  DeviceKernel(const DeviceKernel&) = delete;
  DeviceKernel& operator=(const DeviceKernel&) = delete;

  /// Queues it. Needs the context current.
  /// @throws Error{kDeviceFailed}
  void launch(const FinishArguments& arguments, cuda::Stream stream) const;

 private:
  DeviceKernel(std::shared_ptr<const PrimaryContext> context, cuda::Module module,
               cuda::Function function);

  std::shared_ptr<const PrimaryContext> context_;
  cuda::Module module_;
  cuda::Function function_;
};

}  // namespace headrace
