// Finished batches to a GPU: asynchronous copies on a stream of our own, and a hand-over that makes
// the consumer's stream wait and never the host.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <unordered_set>
#include <vector>

#include "headrace/api.h"
#include "headrace/buffer.h"
#include "headrace/dlpack.h"
#include "headrace/engine.h"
#include "headrace/field.h"
#include "headrace/transform.h"

namespace HEADRACE_API headrace {

/// A cudaStream_t or CUstream as a number; 0 is the default stream.
using StreamHandle = std::uintptr_t;
/// An address on a device, as a number.
using DeviceAddress = std::uint64_t;

class PrimaryContext;  // cuda_driver.h
class DeviceBlock;     // device_memory.h

/// Pinned memory, which the device reads by itself, for every device of the process. When the
/// system has no more to give the rest is pageable: copies from it are slower and may make the host
/// wait. Thread-safe. Freeing it is possible on any thread.
class PinnedAllocator final : public Allocator {
 public:
  /// @param device  ordinal of the device whose context does the pinning.
  /// @throws Error{kDeviceFailed}
  explicit PinnedAllocator(int device);
  ~PinnedAllocator() override;

  void* allocate(std::size_t bytes) override;
  void deallocate(void* memory, std::size_t bytes) noexcept override;

  struct Stats {
    std::size_t pinned_bytes = 0;    ///< at present
    std::size_t pageable_bytes = 0;  ///< at present: what could not be pinned
  };
  Stats stats() const;

 private:
  void* try_to_pin(std::size_t bytes);

  std::unique_ptr<PrimaryContext> context_;
  std::shared_ptr<Allocator> pageable_;
  mutable std::mutex mutex_;
  std::unordered_set<void*> pageable_blocks_;
  Stats stats_;
};

struct DeviceCopierOptions {
  /// Ordinal of the device, among those that CUDA_VISIBLE_DEVICES leaves.
  int device = 0;
  /// Batches submitted and not yet handed over, at most.
  std::size_t max_in_flight = 2;
  /// What the device has to make of a split transform's fields (Transform::split).
  std::optional<PixelFinish> finish = {};
};

/// One array of a batch on the device: shape [rows, spec.shape...].
struct DeviceField {
  FieldSpec spec;
  DeviceAddress memory = 0;
  /// Owner of memory of ours (rule B); none for memory that the caller brought (rule A).
  std::shared_ptr<DeviceBlock> block;
};

struct DeviceBatch {
  std::uint64_t id = 0;
  std::int64_t rows = 0;
  std::vector<DeviceField> fields;
};

/// Counters since construction.
struct DeviceStats {
  std::uint64_t batches = 0;       ///< whose copies are over
  std::uint64_t bytes = 0;         ///< that these copies moved
  std::uint64_t copy_ns = 0;       ///< that these copies and the kernel took, on the device's clock
  std::uint64_t wait_ns = 0;       ///< that consumers' streams waited for them, on the same clock
  std::uint64_t host_waits = 0;    ///< times that submit() waited: see there
  std::uint64_t host_wait_ns = 0;  ///< and for how long
  /// "kernel"; "none": there is nothing to finish; else why the kernel could not be loaded.
  std::string finish;
};

/// Copies batches to one device, one after another.
///
/// Rule A: the memory on the device belongs to another library's stream-ordered allocator
/// (torch's). The caller allocates with its stream current and gives the addresses to submit(),
/// which makes our stream wait for what that stream did before: the memory may have had another
/// user there. The memory must stay allocated until next() or stop() has returned.
///
/// Rule B: the memory is ours, and leaves as DLPack tensors.
///
/// Work is queued by the calling thread: with pinned sources none of the calls waits, and a thread
/// of ours would only add a hand-over. submit() and next() are for one thread at a time; stop() and
/// stats() may be called from any.
class DeviceCopier {
 public:
  /// @throws Error{kDeviceFailed}; Error{kInvalidArgument}: max_in_flight is 0.
  explicit DeviceCopier(const DeviceCopierOptions& options);
  /// For tests: another image of the kernels.
  DeviceCopier(const DeviceCopierOptions& options, std::span<const std::byte> kernel_image);
  ~DeviceCopier();
  DeviceCopier(const DeviceCopier&) = delete;
  DeviceCopier& operator=(const DeviceCopier&) = delete;

  /// The fields that a batch with these has on the device: finished ones, or, where the kernel
  /// cannot be loaded (see stats()), all as they are, for the caller to finish.
  std::vector<FieldSpec> outputs(const std::vector<Field>& fields) const;

  std::size_t in_flight() const;

  /// Rule A. Queues the copies of a batch, and keeps its memory until they are over.
  /// @param targets  where each of outputs() goes; aligned for its dtype.
  /// @param stream   that they were allocated on; must not be destroyed before stop().
  /// The host waits only when it runs more than max_in_flight + 2 batches ahead of the device, or
  /// when a source could not be pinned.
  /// @throws Error{kInvalidArgument}: max_in_flight batches are in flight, targets that do not fit,
  /// or a stream that is being captured. Error{kDeviceFailed}: from then on every call raises it,
  /// and no copy is in flight any more.
  void submit(Batch batch, std::span<const DeviceAddress> targets, StreamHandle stream);
  /// Rule B: into memory of ours.
  void submit(Batch batch);

  /// Rule A. Hands over the oldest batch: `stream` waits for its copies. If it is not the stream
  /// that the memory was allocated on, the caller has to tell the allocator (record_stream).
  /// @throws Error{kInvalidArgument}: none is in flight, or it is one of rule B.
  DeviceBatch next(StreamHandle stream);
  /// Rule B. Nothing waits here: to_dlpack() does.
  DeviceBatch next();

  /// Waits for the copies in flight, on the host: the memory of batches that were not handed over
  /// may be freed afterwards. Idempotent.
  void stop() noexcept;

  DeviceStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

/// A tensor on memory of ours, for any library that reads DLPack. Its deleter may be called on any
/// thread, and when the copier is gone; the memory is used again after what its consumer's stream
/// did until then.
/// @param stream  the consumer's, as `__dlpack__(stream=)` has it: 1 the legacy default stream, 2
/// the per-thread one, -1 the caller synchronises by itself, else a handle. It waits for the copy.
/// @throws Error{kInvalidArgument}: 0, which is ambiguous; a field of rule A; a stream that is
/// being captured.
dlpack::ManagedTensor* to_dlpack(const DeviceField& field, std::int64_t rows, std::int64_t stream);

}  // namespace headrace
