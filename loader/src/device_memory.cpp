#include "device_memory.h"

#include <algorithm>
#include <utility>

#include "headrace/device.h"
#include "headrace/error.h"

namespace headrace {

// --- on the device --------------------------------------------------------------------------

DeviceMemory::DeviceMemory(std::shared_ptr<const PrimaryContext> context)
    : context_(std::move(context)), events_(context_, cuda::kEventDisableTiming) {}

DeviceMemory::~DeviceMemory() {
  for (const Memory& memory : idle_) release(memory);
}

std::shared_ptr<DeviceBlock> DeviceMemory::acquire(std::size_t bytes, cuda::Stream stream) {
  Memory memory;
  {
    const std::lock_guard lock(mutex_);
    const auto fits = [bytes](const Memory& idle) {
      return idle.bytes >= bytes && idle.bytes / 2 <= bytes;
    };
    const auto found = std::ranges::find_if(idle_, fits);
    if (found != idle_.end()) {
      memory = std::move(*found);
      idle_.erase(found);
    }
  }
  const CudaDriver& driver = context_->driver();
  if (memory.address == 0) {
    driver.check("cuMemAlloc", cu().cuMemAlloc(&memory.address, std::max<std::size_t>(1, bytes)));
    memory.bytes = bytes;
  }
  auto block = std::make_shared<DeviceBlock>(shared_from_this(), std::move(memory));
  block->wait_for_former_uses(stream);
  return block;
}

void DeviceMemory::give_back(Memory memory) noexcept {
  if (context_->driver().forked()) return;
  try {
    const std::lock_guard lock(mutex_);
    idle_.push_back(std::move(memory));
  } catch (...) {  // no memory to remember it
    release(memory);
  }
}

void DeviceMemory::release(const Memory& memory) noexcept {
  if (context_->driver().forked()) return;
  try {
    const PrimaryContext::Scope scope(*context_);
    bool over = true;
    for (const EventRef& use : memory.last_uses) {
      over = cu().cuEventSynchronize(use.get()) == cuda::kSuccess && over;
    }
    if (memory.unknown_use) over = cu().cuCtxSynchronize() == cuda::kSuccess && over;
    // After an error the context is dead, and its memory with it.
    if (over) cu().cuMemFree(memory.address);
  } catch (const Error&) {  // no context any more: the process is ending
  }
}

DeviceBlock::DeviceBlock(std::shared_ptr<DeviceMemory> home, DeviceMemory::Memory memory)
    : home_(std::move(home)), memory_(std::move(memory)) {}

DeviceBlock::~DeviceBlock() { home_->give_back(std::move(memory_)); }

void DeviceBlock::wait_for_former_uses(cuda::Stream stream) {
  const CudaDriver& driver = home_->context()->driver();
  const cuda::Functions& cu = driver.functions();
  for (const EventRef& use : memory_.last_uses) {
    driver.check("cuStreamWaitEvent", cu.cuStreamWaitEvent(stream, use.get(), 0));
  }
  if (memory_.unknown_use) driver.check("cuCtxSynchronize", cu.cuCtxSynchronize());
  memory_.last_uses.clear();
  memory_.unknown_use = false;
}

void DeviceBlock::used_on(cuda::Stream stream) noexcept {
  const CudaDriver& driver = home_->context()->driver();
  if (driver.forked()) return;
  const cuda::Functions& cu = driver.functions();
  try {
    const PrimaryContext::Scope scope(*home_->context());
    int capturing = 0;
    driver.check("cuStreamIsCapturing", cu.cuStreamIsCapturing(stream, &capturing));
    if (capturing != cuda::kCaptureStatusNone) return used_somewhere();
    EventRef event = home_->events().take();
    driver.check("cuEventRecord", cu.cuEventRecord(event.get(), stream));
    const std::lock_guard lock(mutex_);
    memory_.last_uses.push_back(std::move(event));
  } catch (...) {
    used_somewhere();
  }
}

void DeviceBlock::used_somewhere() noexcept {
  const std::lock_guard lock(mutex_);
  memory_.unknown_use = true;
}

// --- on the host ----------------------------------------------------------------------------

PinnedAllocator::PinnedAllocator(int device)
    : context_(std::make_unique<PrimaryContext>(device)), pageable_(make_host_allocator()) {}

PinnedAllocator::~PinnedAllocator() = default;

void* PinnedAllocator::try_to_pin(std::size_t bytes) {
  try {
    const PrimaryContext::Scope scope(*context_);
    void* memory = nullptr;
    const CudaDriver& driver = context_->driver();
    const cuda::Result result =
        driver.functions().cuMemHostAlloc(&memory, bytes, cuda::kMemHostAllocPortable);
    return result == cuda::kSuccess ? memory : nullptr;
  } catch (const Error&) {
    return nullptr;
  }
}

void* PinnedAllocator::allocate(std::size_t bytes) {
  void* memory = try_to_pin(bytes);
  const bool pinned = memory != nullptr;
  if (!pinned) memory = pageable_->allocate(bytes);
  const std::lock_guard lock(mutex_);
  (pinned ? stats_.pinned_bytes : stats_.pageable_bytes) += bytes;
  if (!pinned) pageable_blocks_.insert(memory);
  return memory;
}

void PinnedAllocator::deallocate(void* memory, std::size_t bytes) noexcept {
  {
    const std::lock_guard lock(mutex_);
    const bool pageable = pageable_blocks_.erase(memory) != 0;
    (pageable ? stats_.pageable_bytes : stats_.pinned_bytes) -= bytes;
    if (pageable) return pageable_->deallocate(memory, bytes);
  }
  if (context_->driver().forked()) return;
  try {
    const PrimaryContext::Scope scope(*context_);
    context_->driver().functions().cuMemFreeHost(memory);
  } catch (const Error&) {  // no context any more: the process is ending
  }
}

PinnedAllocator::Stats PinnedAllocator::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

}  // namespace headrace
