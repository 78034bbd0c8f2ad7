// Memory on a device that is ours: blocks that come back with what their consumers still do.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <vector>

#include "cuda_driver.h"
#include "device_events.h"

namespace headrace {

class DeviceBlock;

/// What everything on one device shares. Kept alive by each tensor that is still out.
class DeviceMemory : public std::enable_shared_from_this<DeviceMemory> {
 public:
  explicit DeviceMemory(std::shared_ptr<const PrimaryContext> context);
  ~DeviceMemory();
  DeviceMemory(const DeviceMemory&) = delete;
  DeviceMemory& operator=(const DeviceMemory&) = delete;

  const std::shared_ptr<const PrimaryContext>& context() const noexcept { return context_; }
  const cuda::Functions& cu() const noexcept { return context_->driver().functions(); }
  EventPool& events() noexcept { return events_; }

  /// A block for `stream` to write to, which waits for what former consumers do to it.
  /// Needs the context current.
  /// @throws Error{kDeviceFailed}
  std::shared_ptr<DeviceBlock> acquire(std::size_t bytes, cuda::Stream stream);

 private:
  friend class DeviceBlock;
  struct Memory {
    cuda::DevicePointer address = 0;
    std::size_t bytes = 0;
    std::vector<EventRef> last_uses;
    /// It was used on a stream that we could not follow.
    bool unknown_use = false;
  };

  void give_back(Memory memory) noexcept;
  void release(const Memory& memory) noexcept;

  std::shared_ptr<const PrimaryContext> context_;
  EventPool events_;
  std::mutex mutex_;
  std::vector<Memory> idle_;
};

/// A block that is out: in the copier, or in tensors. Goes back when its last owner is gone.
class DeviceBlock {
 public:
  DeviceBlock(std::shared_ptr<DeviceMemory> home, DeviceMemory::Memory memory);
  ~DeviceBlock();
  DeviceBlock(const DeviceBlock&) = delete;
  DeviceBlock& operator=(const DeviceBlock&) = delete;

  cuda::DevicePointer address() const noexcept { return memory_.address; }
  DeviceMemory& home() const noexcept { return *home_; }

  /// Reached when the copy into it is over.
  EventRef copied;

  /// `stream` waits for what former consumers do to it. Needs the context current.
  /// @throws Error{kDeviceFailed}
  void wait_for_former_uses(cuda::Stream stream);

  /// A consumer lets go of it, whose work so far is on this stream. Never throws, needs no context.
  void used_on(cuda::Stream stream) noexcept;
  /// The same, on a stream that is not known.
  void used_somewhere() noexcept;

 private:
  std::shared_ptr<DeviceMemory> home_;
  std::mutex mutex_;
  DeviceMemory::Memory memory_;
};

}  // namespace headrace
