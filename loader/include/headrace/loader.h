// Batches of a dataset, epoch after epoch: Source, Order, Transform and Engine put together.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <iterator>
#include <memory>
#include <optional>
#include <span>

#include "headrace/api.h"
#include "headrace/buffer.h"
#include "headrace/engine.h"
#include "headrace/order.h"
#include "headrace/random.h"
#include "headrace/source.h"
#include "headrace/transform.h"

namespace HEADRACE_API headrace {

/// Makes the sample of a Question where Python would ask torchvision and Pillow: for programs that
/// link another decoder. Called by next(), on its thread. What it throws is thrown by next() in the
/// batch's turn.
/// @param random  the sample's own random stream.
/// @param row     one row of the transform's field, to be overwritten.
/// @returns false: the batch goes on without the sample.
using Fallback =
    std::function<bool(const Question& question, RandomStream& random, std::span<std::byte> row)>;

struct LoaderOptions {
  /// Samples in a batch, at least 1.
  std::size_t batch_size = 1;
  /// A ShuffledOrder of `seed` instead of the source's own order. Not for a loader that is given
  /// an Order.
  bool shuffle = false;
  /// Decides the shuffle and, with SampleKey, the random numbers of each sample, which depend on
  /// nothing but this, the epoch and its index in the source.
  std::uint64_t seed = 0;
  /// Leaves out a last batch of fewer samples.
  bool drop_last = false;

  /// Decoding and transforming threads; 0: as default_threads() has it.
  int threads = 0;
  EngineOptions::Reader reader = EngineOptions::Reader::kAuto;
  /// Threads that read files with pread at first, at least 1.
  int io_threads = 4;
  /// Batches made ahead at most; 0: enough for all threads.
  std::size_t prefetch_batches = 0;
  /// Compressed bytes read ahead at most, in bytes.
  std::size_t read_budget_bytes = std::size_t{64} << 20;
  /// Memory of all batches, in bytes: those being made, those that the caller still holds, and what
  /// is kept for reuse. As little is made ahead as fits; when not even one batch does, next()
  /// throws at once. 0: no cap.
  std::size_t memory_cap_bytes = 0;
  /// Images of more pixels are doubtful.
  std::uint64_t pixel_limit = EngineOptions{}.pixel_limit;

  /// Where batches lie; null: ordinary memory.
  std::shared_ptr<Allocator> allocator = nullptr;
  /// Null: a sample that cannot be judged is an Error.
  Fallback fallback = nullptr;
};

/// Loads the batches of one epoch after another.
///
///     Loader loader(std::make_shared<ImageFolderSource>("train"), transform,
///                   {.batch_size = 64, .shuffle = true});
///     for (const Batch& batch : loader) learn(batch.values<float>("image"));
///
/// Each loop is an epoch: number 0 at first, or what set_epoch() says, then one after another.
/// Equal options, source and epoch give equal batches, whatever the threads. A Batch's memory is
/// the caller's for as long as a Buffer of it is held, also when the loader is gone. One thread at
/// a time.
class Loader {
 public:
  /// @throws Error{kInvalidArgument}: an option out of range, or a missing source or order.
  Loader(std::shared_ptr<const Source> source, Transform transform, LoaderOptions options = {});
  /// Samples in an order of the caller's.
  Loader(std::shared_ptr<const Source> source, std::shared_ptr<const Order> order,
         Transform transform, LoaderOptions options = {});
  ~Loader();
  Loader(Loader&&) noexcept;
  Loader& operator=(Loader&&) noexcept;

  /// Batches in an epoch.
  std::int64_t size() const noexcept;

  /// Begins this epoch anew; batches that were made ahead are dropped.
  void set_epoch(std::uint32_t epoch);

  /// Waits for the epoch's next batch; none after the last one. An exception stands for the batch
  /// whose turn it is, and the next call goes on behind it, except after kMemoryCap, where it tries
  /// the same batch again.
  /// @throws Error{kDoubtfulData}: a sample that only Pillow may judge, and no fallback: damaged,
  /// unreadable, of another format. Error{kMemoryCap}: not one batch fits memory_cap_bytes beside
  /// those that the caller holds. What the fallback, the order or the source throws.
  std::optional<Batch> next();

  /// A single pass over what next() gives.
  class Iterator {
   public:
    using value_type = Batch;
    using difference_type = std::ptrdiff_t;

    const Batch& operator*() const { return *batch_; }
    const Batch* operator->() const { return &*batch_; }
    Iterator& operator++();
    void operator++(int) { ++*this; }
    bool operator==(std::default_sentinel_t) const { return !batch_; }

   private:
    friend class Loader;
    explicit Iterator(Loader& loader) : loader_(&loader) { ++*this; }

    Loader* loader_;
    std::optional<Batch> batch_;
  };

  /// Begins an epoch: the one of set_epoch(), or when a batch of it was taken already the next.
  Iterator begin();
  std::default_sentinel_t end() const noexcept { return {}; }

  /// Counters since the epoch began.
  EngineStats stats() const;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
