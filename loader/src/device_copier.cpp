#include <algorithm>
#include <chrono>
#include <deque>
#include <exception>
#include <utility>

#include "cuda_driver.h"
#include "device_events.h"
#include "device_kernel.h"
#include "device_memory.h"
#include "headrace/device.h"
#include "headrace/error.h"
#include "nvtx.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kPixels = 0;  // the fields of a split transform's batch
constexpr std::size_t kMirrored = 2;

// Sources whose copies are not known to be over, beyond those of the batches in flight.
constexpr std::size_t kSpareSources = 2;
// Batches handed over whose times have not been read: a consumer far behind loses some.
constexpr std::size_t kMaxUntimed = 64;

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message, {.stage = "device"});
}

cuda::Stream stream_of(StreamHandle handle) { return reinterpret_cast<cuda::Stream>(handle); }

std::uint64_t nanoseconds(float milliseconds) {
  return static_cast<std::uint64_t>(std::max(0.0, static_cast<double>(milliseconds) * 1e6));
}

std::size_t bytes_of(const FieldSpec& spec, std::int64_t rows) {
  return spec.row_bytes() * static_cast<std::size_t>(rows);
}

}  // namespace

struct DeviceCopier::Impl {
  /// A batch from submit() until all is known about it.
  struct Transfer {
    DeviceBatch batch;
    bool ours = false;            // rule B
    std::vector<Buffer> sources;  // until `copied` was reached
    EventRef copied;
    std::uint64_t bytes = 0;
    // For the statistics alone: on our stream, and on the consumer's when it begins to wait.
    EventRef begun, ended, reached;
  };

  Impl(const DeviceCopierOptions& copier_options, std::span<const std::byte> kernel_image);
  ~Impl();

  void submit(Batch batch, std::span<const DeviceAddress> targets,
              std::optional<StreamHandle> allocated_on);
  void queue_copies(Transfer& transfer, const Batch& batch);
  void copy(const Buffer& from, std::size_t bytes, cuda::DevicePointer to);
  void finish_pixels(const Batch& batch, cuda::DevicePointer to);
  cuda::DevicePointer staging(std::size_t bytes);
  DeviceBatch hand_over(std::optional<StreamHandle> consumer);
  std::vector<FieldSpec> outputs(const std::vector<Field>& fields) const;
  void fail(const Error& error);
  void refuse_capture(StreamHandle stream) const;

  void limit_sources();
  void reap();
  void measure(const Transfer& transfer);
  void stop() noexcept;
  void check(const char* call, cuda::Result result) const { context->driver().check(call, result); }
  bool finishes(const std::vector<Field>& fields) const {
    return kernel != nullptr && fields.size() > kMirrored;
  }

  const DeviceCopierOptions options;
  std::shared_ptr<const PrimaryContext> context;
  const cuda::Functions& cu;
  std::shared_ptr<DeviceMemory> memory;
  EventPool timed_events;
  std::unique_ptr<DeviceKernel> kernel;
  cuda::Stream stream = nullptr;
  cuda::DevicePointer table = 0;
  cuda::DevicePointer staged = 0;  // pixels and marks on their way through the kernel
  std::size_t staged_bytes = 0;

  std::mutex mutex;
  bool stopped = false;
  std::exception_ptr failure;
  std::deque<Transfer> waiting;   // not handed over, oldest first
  std::deque<Transfer> settling;  // handed over; sources in use, or times not read
  DeviceStats stats;
};

DeviceCopier::Impl::Impl(const DeviceCopierOptions& copier_options,
                         std::span<const std::byte> kernel_image)
    : options(copier_options),
      context(std::make_shared<PrimaryContext>(options.device)),
      cu(context->driver().functions()),
      memory(std::make_shared<DeviceMemory>(context)),
      timed_events(context, cuda::kEventDefault) {
  stats.finish = "none";
  const PrimaryContext::Scope scope(*context);
  if (options.finish) {
    std::string why_not;
    kernel = DeviceKernel::load(context, kernel_image, options.finish->output, why_not);
    stats.finish = kernel != nullptr ? "kernel" : why_not;
  }
  try {
    check("cuStreamCreate", cu.cuStreamCreate(&stream, cuda::kStreamNonBlocking));
    if (kernel != nullptr) {
      const auto& values = options.finish->table;
      check("cuMemAlloc", cu.cuMemAlloc(&table, values.size()));
      // From pageable memory: read when the call returns.
      check("cuMemcpyHtoDAsync", cu.cuMemcpyHtoDAsync(table, values.data(), values.size(), stream));
    }
  } catch (...) {
    stop();
    throw;
  }
}

DeviceCopier::Impl::~Impl() { stop(); }

void DeviceCopier::Impl::refuse_capture(StreamHandle handle) const {
  int status = cuda::kCaptureStatusNone;
  const cuda::Result result = cu.cuStreamIsCapturing(stream_of(handle), &status);
  // Of the default stream: others that it would have to wait for are being captured.
  if (result != cuda::kStreamCaptureImplicit) {
    check("cuStreamIsCapturing", result);
    if (status == cuda::kCaptureStatusNone) return;
  }
  refuse(
      "the current stream is being captured into a CUDA graph: take the batch before the capture, "
      "and copy it into the graph's static input");
}

// NOLINTNEXTLINE(performance-unnecessary-value-param): its memory is this call's from now on
void DeviceCopier::Impl::submit(Batch batch, std::span<const DeviceAddress> targets,
                                std::optional<StreamHandle> allocated_on) {
  const std::lock_guard lock(mutex);
  if (stopped) throw Error(ErrorCode::kStopped, "this copier is stopped", {.stage = "device"});
  if (failure) std::rethrow_exception(failure);
  if (waiting.size() >= options.max_in_flight) {
    refuse("max_in_flight (" + std::to_string(options.max_in_flight) +
           ") batches are in flight: take one with next() first");
  }
  const NvtxRange range("headrace: copy a batch to the device");
  const PrimaryContext::Scope scope(*context);
  try {
    if (allocated_on) refuse_capture(*allocated_on);
    reap();
    limit_sources();
    Transfer transfer{.batch = {.id = batch.id, .rows = batch.rows, .fields = {}},
                      .ours = !allocated_on,
                      .sources = {},
                      .copied = memory->events().take(),
                      .bytes = 0,
                      .begun = timed_events.take(),
                      .ended = timed_events.take(),
                      .reached = {}};
    for (const Field& field : batch.fields) transfer.sources.push_back(field.memory);
    if (allocated_on) {
      // A stream-ordered allocator hands out memory that work on its stream may still use.
      const EventRef allocated = memory->events().take();
      check("cuEventRecord", cu.cuEventRecord(allocated.get(), stream_of(*allocated_on)));
      check("cuStreamWaitEvent", cu.cuStreamWaitEvent(stream, allocated.get(), 0));
    }
    const auto specs = outputs(batch.fields);
    for (std::size_t i = 0; i < specs.size(); ++i) {
      DeviceField field{.spec = specs[i], .block = {}};
      if (allocated_on) {
        field.memory = targets[i];
      } else {
        field.block = memory->acquire(bytes_of(specs[i], batch.rows), stream);
        field.block->copied = transfer.copied;
        field.memory = field.block->address();
      }
      transfer.batch.fields.push_back(std::move(field));
    }
    waiting.push_back(std::move(transfer));  // first: with copies under way nothing else may throw
    queue_copies(waiting.back(), batch);
  } catch (const Error& error) {
    fail(error);
    throw;
  }
}

void DeviceCopier::Impl::queue_copies(Transfer& transfer, const Batch& batch) {
  check("cuEventRecord", cu.cuEventRecord(transfer.begun.get(), stream));
  const auto& fields = batch.fields;
  for (std::size_t i = 0; i < transfer.batch.fields.size(); ++i) {
    const DeviceAddress target = transfer.batch.fields[i].memory;
    if (i == kPixels && finishes(fields)) {
      finish_pixels(batch, target);
    } else {
      copy(fields[i].memory, bytes_of(fields[i].spec, batch.rows), target);
    }
  }
  for (const Field& field : fields) transfer.bytes += bytes_of(field.spec, batch.rows);
  check("cuEventRecord", cu.cuEventRecord(transfer.ended.get(), stream));
  check("cuEventRecord", cu.cuEventRecord(transfer.copied.get(), stream));
}

void DeviceCopier::Impl::copy(const Buffer& from, std::size_t bytes, cuda::DevicePointer to) {
  if (bytes == 0) return;
  check("cuMemcpyHtoDAsync", cu.cuMemcpyHtoDAsync(to, from.get(), bytes, stream));
}

/// Pixels and marks go to memory of ours, from where the kernel writes the finished field. One such
/// place is enough: all its users are on one stream, one after another.
void DeviceCopier::Impl::finish_pixels(const Batch& batch, cuda::DevicePointer to) {
  const Field& pixels = batch.fields[kPixels];
  const Field& mirrored = batch.fields[kMirrored];
  const std::size_t pixel_bytes = bytes_of(pixels.spec, batch.rows);
  const std::size_t mark_bytes = bytes_of(mirrored.spec, batch.rows);
  if (pixel_bytes == 0) return;
  const cuda::DevicePointer place = staging(pixel_bytes + mark_bytes);
  copy(pixels.memory, pixel_bytes, place);
  copy(mirrored.memory, mark_bytes, place + pixel_bytes);
  const auto& shape = pixels.spec.shape;
  const auto pointer = [](cuda::DevicePointer address) {
    return reinterpret_cast<unsigned char*>(address);
  };
  kernel->launch({.pixels = pointer(place),
                  .mirrored = pointer(place + pixel_bytes),
                  .table = pointer(table),
                  .out = pointer(to),
                  .pixel_count = batch.rows * shape[1] * shape[2],
                  .height = static_cast<int>(shape[1]),
                  .width = static_cast<int>(shape[2])},
                 stream);
}

cuda::DevicePointer DeviceCopier::Impl::staging(std::size_t bytes) {
  if (bytes > staged_bytes) {
    if (staged != 0) {
      check("cuStreamSynchronize", cu.cuStreamSynchronize(stream));
      cu.cuMemFree(std::exchange(staged, 0));
      staged_bytes = 0;
    }
    check("cuMemAlloc", cu.cuMemAlloc(&staged, bytes));
    staged_bytes = bytes;
  }
  return staged;
}

DeviceBatch DeviceCopier::Impl::hand_over(std::optional<StreamHandle> consumer) {
  const std::lock_guard lock(mutex);
  if (stopped) throw Error(ErrorCode::kStopped, "this copier is stopped", {.stage = "device"});
  if (failure) std::rethrow_exception(failure);
  if (waiting.empty()) refuse("next() with no batch in flight");
  if (waiting.front().ours == consumer.has_value())
    refuse("next() by the other rule than submit()");
  const PrimaryContext::Scope scope(*context);
  Transfer& oldest = waiting.front();
  try {
    if (consumer) {
      refuse_capture(*consumer);
      oldest.reached = timed_events.take();
      check("cuEventRecord", cu.cuEventRecord(oldest.reached.get(), stream_of(*consumer)));
      check("cuStreamWaitEvent",
            cu.cuStreamWaitEvent(stream_of(*consumer), oldest.copied.get(), 0));
    }
  } catch (const Error& error) {
    fail(error);
    throw;
  }
  DeviceBatch batch = std::move(oldest.batch);
  settling.push_back(std::move(oldest));
  waiting.pop_front();
  return batch;
}

/// After an error of the device (not of the caller): what is queued still reads batches and writes
/// to memory whose owners will let go of it on hearing of the error. (If even this wait fails the
/// device is lost, and nothing runs any more.)
void DeviceCopier::Impl::fail(const Error& error) {
  if (error.code() != ErrorCode::kDeviceFailed) return;
  failure = std::make_exception_ptr(error);
  cu.cuStreamSynchronize(stream);
}

std::vector<FieldSpec> DeviceCopier::Impl::outputs(const std::vector<Field>& fields) const {
  std::vector<FieldSpec> specs;
  specs.reserve(fields.size());
  for (const Field& field : fields) specs.push_back(field.spec);
  if (finishes(fields)) {
    specs[kPixels] = options.finish->output;
    specs.resize(kMirrored);
  }
  return specs;
}

/// Bounds the pinned memory of a host that runs far ahead of its device.
void DeviceCopier::Impl::limit_sources() {
  std::vector<Transfer*> in_use;
  for (auto* list : {&settling, &waiting}) {
    for (Transfer& transfer : *list) {
      if (!transfer.sources.empty()) in_use.push_back(&transfer);
    }
  }
  const std::size_t limit = options.max_in_flight + kSpareSources;
  for (std::size_t i = 0; in_use.size() - i >= limit; ++i) {
    const auto start = Clock::now();
    check("cuEventSynchronize", cu.cuEventSynchronize(in_use[i]->copied.get()));
    in_use[i]->sources.clear();
    ++stats.host_waits;
    stats.host_wait_ns += static_cast<std::uint64_t>(
        std::chrono::duration_cast<std::chrono::nanoseconds>(Clock::now() - start).count());
  }
}

/// Lets go of sources that were read, and of transfers about which all is known. Never waits.
void DeviceCopier::Impl::reap() {
  bool over = true;  // copies end in the order of their beginning
  for (auto* list : {&settling, &waiting}) {
    for (Transfer& transfer : *list) {
      if (!over || transfer.sources.empty()) continue;
      const cuda::Result result = cu.cuEventQuery(transfer.copied.get());
      over = result == cuda::kSuccess;
      if (over) {
        transfer.sources.clear();
      } else if (result != cuda::kNotReady) {
        check("cuEventQuery", result);
      }
    }
  }
  while (!settling.empty() && settling.front().sources.empty()) {
    const Transfer& oldest = settling.front();
    if (oldest.reached != nullptr) {
      const cuda::Result result = cu.cuEventQuery(oldest.reached.get());
      if (result == cuda::kNotReady && settling.size() <= kMaxUntimed) break;
      if (result == cuda::kSuccess) measure(oldest);
    }
    settling.pop_front();
  }
}

void DeviceCopier::Impl::measure(const Transfer& transfer) {
  float copy_ms = 0;
  float wait_ms = 0;
  if (cu.cuEventElapsedTime(&copy_ms, transfer.begun.get(), transfer.ended.get()) !=
          cuda::kSuccess ||
      cu.cuEventElapsedTime(&wait_ms, transfer.reached.get(), transfer.ended.get()) !=
          cuda::kSuccess) {
    return;
  }
  ++stats.batches;
  stats.bytes += transfer.bytes;
  stats.copy_ns += nanoseconds(copy_ms);
  stats.wait_ns += nanoseconds(wait_ms);
}

void DeviceCopier::Impl::stop() noexcept {
  if (context->driver().forked()) return;  // nothing of the parent's may be touched, locks included
  const std::lock_guard lock(mutex);
  if (std::exchange(stopped, true)) return;
  try {
    const PrimaryContext::Scope scope(*context);
    if (stream != nullptr) {
      // The host waits: for the sources, and for the memory of batches that were never handed over,
      // whose allocator knows nothing of our stream. (A failure means that the device is lost, and
      // nothing runs any more.)
      cu.cuStreamSynchronize(stream);
      cu.cuStreamDestroy(std::exchange(stream, nullptr));
    }
    waiting.clear();
    settling.clear();
    for (cuda::DevicePointer* block : {&staged, &table}) {
      if (*block != 0) cu.cuMemFree(std::exchange(*block, 0));
    }
    kernel.reset();
  } catch (const Error&) {  // no context any more: the process is ending
  }
}

// --- the interface --------------------------------------------------------------------------

DeviceCopier::DeviceCopier(const DeviceCopierOptions& options)
    : DeviceCopier(options, built_in_kernel_image()) {}

DeviceCopier::DeviceCopier(const DeviceCopierOptions& options,
                           std::span<const std::byte> kernel_image) {
  if (options.max_in_flight < 1) refuse("max_in_flight must be at least 1");
  impl_ = std::make_unique<Impl>(options, kernel_image);
}

DeviceCopier::~DeviceCopier() = default;

std::vector<FieldSpec> DeviceCopier::outputs(const std::vector<Field>& fields) const {
  return impl_->outputs(fields);
}

std::size_t DeviceCopier::in_flight() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->waiting.size();
}

void DeviceCopier::submit(Batch batch, std::span<const DeviceAddress> targets,
                          StreamHandle stream) {
  const std::size_t wanted = impl_->outputs(batch.fields).size();
  if (targets.size() != wanted) {
    refuse(std::to_string(targets.size()) + " targets for " + std::to_string(wanted) + " fields");
  }
  impl_->submit(std::move(batch), targets, stream);
}

void DeviceCopier::submit(Batch batch) { impl_->submit(std::move(batch), {}, {}); }

DeviceBatch DeviceCopier::next(StreamHandle stream) { return impl_->hand_over(stream); }

DeviceBatch DeviceCopier::next() { return impl_->hand_over({}); }

void DeviceCopier::stop() noexcept { impl_->stop(); }

DeviceStats DeviceCopier::stats() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->stats;
}

}  // namespace headrace
