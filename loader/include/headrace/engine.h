// The loader's engine: batches of sample lists in, finished batches out, in order.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "headrace/api.h"
#include "headrace/buffer.h"
#include "headrace/field.h"
#include "headrace/random.h"
#include "headrace/source.h"
#include "headrace/transform.h"

namespace HEADRACE_API headrace {

struct EngineOptions {
  /// What reads files. kAuto shares the first reads of a process out between both and keeps the
  /// one that takes less time and CPU for a byte. Where the kernel forbids io_uring, as container
  /// runtimes have it do, both kAuto and kUring are kPread.
  enum class Reader { kAuto, kUring, kPread };

  /// Decoding and transforming threads, at least 1.
  int threads = 1;
  Reader reader = Reader::kAuto;
  /// Threads that read files with pread at first, at least 1: up to four times as many are started
  /// while they are what keeps decoding waiting.
  int io_threads = 4;
  /// Compressed bytes read ahead at most, in bytes; less while that keeps decoding busy. One larger
  /// sample passes when alone.
  std::size_t read_budget_bytes = std::size_t{64} << 20;
  /// Batches begun and not yet handed out, at most.
  std::size_t max_batches_in_flight = 2;
  /// Images of more pixels are doubtful: Pillow's MAX_IMAGE_PIXELS.
  std::uint64_t pixel_limit = 89'478'485;
  /// Set: each sample has a random stream of its own, which Sample::random_key names, and the
  /// engine is given no others. Results then depend on nothing that was submitted before.
  std::optional<RandomRules> own_streams = std::nullopt;
  /// The collate function draws random numbers after a batch's last sample: each batch brings a
  /// Question about them.
  bool collate_draws = false;
  /// Memory for the batches.
  std::shared_ptr<BufferPool> pool;
};

/// One array of a batch: shape [rows, spec.shape...], C order, at `memory`.
struct Field {
  FieldSpec spec;
  Buffer memory;
};

/// A finished batch. Its memory is the caller's until the last copy of each Buffer is gone.
struct Batch {
  std::uint64_t id = 0;
  std::int64_t rows = 0;  ///< without those that were skipped
  /// The transform's field, then "label" (int64); after a split transform also "mirrored" (uint8),
  /// not 0 where the row is still to be. None when a row failed, when every
  /// row was skipped, or when the batch is opaque.
  std::vector<Field> fields;
  /// The row that the oracle gave up (see Engine::fail): the batch has no data. Lower rows were
  /// fine, higher ones were not looked at.
  std::optional<std::int64_t> failed_row = {};
  /// The rows that the oracle left out (see Engine::skip), as they were submitted; those behind
  /// them have moved up.
  std::vector<std::int64_t> skipped_rows = {};
  /// The batch's random stream after its last draw. Without meaning where samples have their own.
  RandomStream random_after;
  /// Where the collate function's own draws begin, with EngineOptions::collate_draws.
  std::optional<RandomStream> random_before_collate = {};

  /// @throws Error{kInvalidArgument}: no field of this name.
  const Field& field(std::string_view name) const;

  /// The numbers of one field, row by row: batch.values<float>("image"). Of float16 and bfloat16
  /// the bits, as std::uint16_t. Valid while the field's Buffer is held.
  /// @throws Error{kInvalidArgument}: no field of this name, or its numbers have another size.
  template <typename T>
  std::span<T> values(std::string_view name) const {
    const std::span<std::byte> bytes = bytes_of(name, sizeof(T));
    return {reinterpret_cast<T*>(bytes.data()), bytes.size() / sizeof(T)};
  }

 private:
  std::span<std::byte> bytes_of(std::string_view name, std::size_t number_bytes) const;
};

/// A sample that the engine will not judge: damaged, of another format, unreadable, or planned
/// within the uncertainty of torch's arithmetic. Whoever drives the engine (in Python: the
/// installed torchvision and Pillow) computes it and calls answer() or fail().
///
/// Or, with EngineOptions::collate_draws, what the collate function of a batch draws.
struct Question {
  std::uint64_t batch = 0;
  std::int64_t row = 0;
  bool whole_batch = false;  ///< an opaque batch; `row` is 0 and `sample` empty
  /// The collate function's draws for a batch of `row` rows. Its answer has no image, and `random`
  /// is where they begin.
  bool collate = false;
  Sample sample;
  std::string reason;
  /// The random stream just before this sample's own draws.
  RandomStream random;
};

/// Counters since construction. Times are summed over threads.
struct EngineStats {
  struct Stage {
    std::string name;              ///< "read", "decode", "transform"
    std::uint64_t items = 0;       ///< samples that passed
    std::uint64_t bytes = 0;       ///< bytes that came out
    std::uint64_t busy_ns = 0;     ///< working
    std::uint64_t waiting_ns = 0;  ///< read only: held back by read_budget_bytes
  };
  std::string reader;  ///< "pread" or "io_uring"; "pread and io_uring" while kAuto measures
  std::string
      reader_note;     ///< kAuto: what was measured; why it is not what was asked for; or empty
  int read_depth = 0;  ///< reads in flight at most, as adjusted by now
  std::uint64_t read_ahead_bytes = 0;  ///< as adjusted by now; at most read_budget_bytes
  int threads = 0;
  int io_threads = 0;
  std::vector<Stage> stages;
  std::uint64_t batches = 0;            ///< handed out
  std::uint64_t consumer_wait_ns = 0;   ///< next() waited for data
  std::uint64_t wall_ns = 0;            ///< from the engine's begin to the end of the latest next()
  std::uint64_t ready_batches_sum = 0;  ///< ready batches seen by each next(), summed
  std::uint64_t questions = 0;          ///< samples that were not judged here
  std::uint64_t rollbacks = 0;          ///< times that plans were taken back
};

/// Loads batches: reads, decodes and transforms the samples of each on threads of its own.
///
/// Random streams stand for torch's workers: each batch is submitted to one, and its draws are made
/// as if that stream's batches were worked on one after another. Results depend on neither threads
/// nor timing.
///
/// submit(), next() and the answers are for one driving thread at a time; stop() and stats() may be
/// called from any.
class Engine {
 public:
  /// @param streams  one random stream a virtual worker; none with own_streams, where every batch
  ///                 goes to stream 0.
  /// @throws Error{kInvalidArgument}: an option out of range, no stream, no pool.
  Engine(const EngineOptions& options, Transform transform,
         const std::vector<RandomStream>& streams);
  struct Parts;  // the reader and the executor, for tests
  Engine(const EngineOptions& options, Transform transform,
         const std::vector<RandomStream>& streams, const Parts& parts);
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  /// Begins a batch. Never blocks.
  /// @returns the batch's id; ids count up from 0 by one, and next() hands them out in that order.
  /// @throws Error{kInvalidArgument}: max_batches_in_flight are in flight, or no such stream.
  std::uint64_t submit(std::size_t stream, std::vector<Sample> samples);

  /// Begins a batch that is computed elsewhere, as a whole: it takes its turn in the stream as a
  /// Question for row 0. It has no fields.
  std::uint64_t submit_opaque(std::size_t stream, std::string reason);

  struct Timeout {};
  using Event = std::variant<Timeout, Question, Batch>;

  /// Waits for the oldest batch, or for a question about any batch.
  /// The same question comes again until it is answered.
  /// @throws Error{kInvalidArgument}: no batch is in flight. Error{kStopped}: stop() was called.
  Event next(std::chrono::milliseconds timeout);

  /// The sample of the open question is this.
  /// @param image         the finished field, exactly one row's bytes; of a split transform the
  ///                      whole one's; empty for an opaque batch.
  /// @param random_after  the stream after the sample's draws.
  /// @param label         in place of the submitted sample's, when another sample replaces it.
  void answer(const Question& question, std::span<const std::byte> image,
              const RandomStream& random_after, std::optional<std::int64_t> label = std::nullopt);
  /// The sample of the open question cannot be had: its batch goes on without it.
  void skip(const Question& question, const RandomStream& random_after);
  /// The sample of the open question cannot be had: its batch ends there.
  void fail(const Question& question, const RandomStream& random_after);

  /// Sets where the stream stands before its oldest batch in flight. If the stream is elsewhere,
  /// what was planned ahead is planned again. For streams that other code draws from too.
  void rewind(std::size_t stream, const RandomStream& random);

  std::size_t in_flight() const;
  EngineStats stats() const;

  /// Ends all work; wakes next(). Idempotent.
  void stop();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace headrace
