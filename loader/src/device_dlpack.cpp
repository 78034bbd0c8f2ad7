#include <memory>
#include <utility>

#include "device_memory.h"
#include "headrace/device.h"
#include "headrace/error.h"

namespace headrace {
namespace {

[[noreturn]] void refuse(const char* message) {
  throw Error(ErrorCode::kInvalidArgument, message, {.stage = "device"});
}

constexpr std::int64_t kNoSynchronisation = -1;

/// A tensor's share in a block. Ends wherever the tensor does: on any thread, at the end of the
/// process.
struct Consumer {
  std::shared_ptr<DeviceBlock> block;
  std::int64_t stream;

  Consumer(std::shared_ptr<DeviceBlock> owned, std::int64_t reading)
      : block(std::move(owned)), stream(reading) {}
  ~Consumer() {
    if (stream == kNoSynchronisation) {
      block->used_somewhere();
    } else {
      block->used_on(reinterpret_cast<cuda::Stream>(stream));
    }
  }
};

}  // namespace

dlpack::ManagedTensor* to_dlpack(const DeviceField& field, std::int64_t rows, std::int64_t stream) {
  if (field.block == nullptr) refuse("to_dlpack: the memory belongs to the caller's allocator");
  if (stream == 0 || stream < kNoSynchronisation) {
    refuse("to_dlpack: stream must be -1, 1, 2 or a handle; 0 could mean either default stream");
  }
  const DeviceMemory& home = field.block->home();
  const PrimaryContext& context = *home.context();
  // Whose last owner, should this fail below, records the stream: harmless.
  auto consumer = std::make_shared<Consumer>(field.block, stream);
  if (stream != kNoSynchronisation) {
    const CudaDriver& driver = context.driver();
    const auto handle = reinterpret_cast<cuda::Stream>(stream);
    const PrimaryContext::Scope scope(context);
    int capturing = cuda::kCaptureStatusNone;
    driver.check("cuStreamIsCapturing", home.cu().cuStreamIsCapturing(handle, &capturing));
    if (capturing != cuda::kCaptureStatusNone) {
      refuse(
          "to_dlpack: the stream is being captured into a CUDA graph: export before the capture");
    }
    driver.check("cuStreamWaitEvent",
                 home.cu().cuStreamWaitEvent(handle, field.block->copied.get(), 0));
  }
  return dlpack::make_tensor(field.spec, rows, reinterpret_cast<void*>(field.memory),
                             {dlpack::kCuda, context.ordinal()}, std::move(consumer));
}

}  // namespace headrace
