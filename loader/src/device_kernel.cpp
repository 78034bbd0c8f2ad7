#include "device_kernel.h"

#include <algorithm>
#include <utility>

#ifdef HEADRACE_HAS_KERNEL_IMAGE
#include "device_kernel_image.inc"
#endif

namespace headrace {

std::span<const std::byte> built_in_kernel_image() noexcept {
#ifdef HEADRACE_HAS_KERNEL_IMAGE
  return std::as_bytes(std::span(kKernelImage));
#else
  return {};
#endif
}

DeviceKernel::DeviceKernel(std::shared_ptr<const PrimaryContext> context, cuda::Module module,
                           cuda::Function function)
    : context_(std::move(context)), module_(module), function_(function) {}

DeviceKernel::~DeviceKernel() {
  if (context_->driver().forked()) return;
  context_->driver().functions().cuModuleUnload(module_);
}

std::unique_ptr<DeviceKernel> DeviceKernel::load(std::shared_ptr<const PrimaryContext> context,
                                                 std::span<const std::byte> image,
                                                 const FieldSpec& output, std::string& why_not) {
  if (image.empty()) {
    why_not = "headrace was built without nvcc";
    return nullptr;
  }
  const std::size_t width = dtype_bytes(output.dtype);
  if (width != 2 && width != 4) {
    why_not = "there is no kernel for this dtype";
    return nullptr;
  }
  const cuda::Functions& cu = context->driver().functions();
  cuda::Module module = nullptr;
  cuda::Result result = cu.cuModuleLoadData(&module, image.data());
  cuda::Function function = nullptr;
  if (result == cuda::kSuccess) {
    const bool channels_last = output.memory_format == MemoryFormat::kChannelsLast;
    const std::string name =
        "headrace_finish_" + std::to_string(8 * width) + "bit_" + (channels_last ? "nhwc" : "nchw");
    result = cu.cuModuleGetFunction(&function, module, name.c_str());
    if (result != cuda::kSuccess) cu.cuModuleUnload(module);
  }
  if (result != cuda::kSuccess) {
    // Not an error: an older driver refuses what a newer nvcc made.
    const char* name = nullptr;
    cu.cuGetErrorName(result, &name);
    why_not = "the driver refuses the kernels: " +
              (name != nullptr ? std::string(name) : std::to_string(result));
    return nullptr;
  }
  return std::unique_ptr<DeviceKernel>(new DeviceKernel(std::move(context), module, function));
}

void DeviceKernel::launch(const FinishArguments& arguments, cuda::Stream stream) const {
  constexpr long long kThreads = 256;
  constexpr long long kMaxBlocks = 4096;  // enough for every device; threads go on in strides
  const long long blocks =
      std::clamp((arguments.pixel_count + kThreads - 1) / kThreads, 1LL, kMaxBlocks);
  FinishArguments copy = arguments;
  void* parameters[] = {&copy};
  const CudaDriver& driver = context_->driver();
  driver.check("cuLaunchKernel",
               driver.functions().cuLaunchKernel(function_, static_cast<unsigned>(blocks), 1, 1,
                                                 static_cast<unsigned>(kThreads), 1, 1, 0, stream,
                                                 parameters, nullptr));
}

}  // namespace headrace
