// A model of torch's caching allocator, as far as rule A depends on it.
#pragma once

#include <cstddef>
#include <map>
#include <vector>

#include "cuda_driver.h"
#include "fake_cuda.h"

namespace fake_cuda {

/// A block belongs to the stream that it was allocated on. Freed, it is handed out again on that
/// stream at once, whatever the stream still does with it; if it was used on others (record_stream)
/// only after what those did by then.
class CachingAllocator {
 public:
  explicit CachingAllocator(const headrace::cuda::Functions& functions) : cu_(functions) {}
  ~CachingAllocator() {
    const TestsOwn own;
    for (auto& [memory, block] : blocks_) cu_.cuMemFree(memory);
    for (Event event : events_) cu_.cuEventDestroy(event);
  }
  CachingAllocator(const CachingAllocator&) = delete;
  CachingAllocator& operator=(const CachingAllocator&) = delete;

  DevicePointer allocate(std::size_t bytes, Stream stream) {
    const TestsOwn own;
    for (auto& [memory, block] : blocks_) {
      if (block.used || block.stream != stream || block.bytes != bytes || !quiet(block)) continue;
      block.used = true;
      return memory;
    }
    DevicePointer memory = 0;
    cu_.cuMemAlloc(&memory, bytes);
    blocks_[memory] = {.bytes = bytes, .stream = stream, .used = true, .others = {}, .pending = {}};
    return memory;
  }

  void record_stream(DevicePointer memory, Stream stream) {
    Block& block = blocks_.at(memory);
    if (stream != block.stream) block.others.push_back(stream);
  }

  void free(DevicePointer memory) {
    const TestsOwn own;
    Block& block = blocks_.at(memory);
    block.used = false;
    for (Stream stream : block.others) {
      Event event = nullptr;
      cu_.cuEventCreate(&event, headrace::cuda::kEventDisableTiming);
      cu_.cuEventRecord(event, stream);
      events_.push_back(event);
      block.pending.push_back(event);
    }
    block.others.clear();
  }

 private:
  struct Block {
    std::size_t bytes;
    Stream stream;
    bool used;
    std::vector<Stream> others;
    std::vector<Event> pending;
  };

  bool quiet(Block& block) {
    std::erase_if(block.pending, [this](Event event) {
      return cu_.cuEventQuery(event) == headrace::cuda::kSuccess;
    });
    return block.pending.empty();
  }

  const headrace::cuda::Functions& cu_;
  std::map<DevicePointer, Block> blocks_;
  std::vector<Event> events_;
};

}  // namespace fake_cuda
