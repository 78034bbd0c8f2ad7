#include "headrace/engine.h"

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <deque>
#include <exception>
#include <mutex>
#include <utility>

#include "decode_queue.h"
#include "engine_counters.h"
#include "engine_parts.h"
#include "executor.h"
#include "headrace/error.h"
#include "headrace/image.h"
#include "plan_stream.h"
#include "reader.h"
#include "slot_ring.h"

namespace headrace {
namespace {

using Clock = std::chrono::steady_clock;

constexpr std::size_t kImageField = 0;
constexpr std::size_t kLabelField = 1;
constexpr std::size_t kMirroredField = 2;  // with a split transform only

// A read's ticket says which row of which batch it is for.
constexpr unsigned kRowBits = 24;

std::uint64_t make_ticket(std::uint64_t batch, std::size_t row) { return batch << kRowBits | row; }

std::vector<FieldSpec> fields_of(const Transform& transform) {
  std::vector<FieldSpec> fields = {transform.output(),
                                   {.name = "label", .dtype = Dtype::kInt64, .shape = {}}};
  if (transform.finish() != nullptr) {
    fields.push_back({.name = "mirrored", .dtype = Dtype::kUint8, .shape = {}});
  }
  return fields;
}

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message, {.stage = "engine"});
}

/// Of a sample of pixels.
ImageFormat format_of(const Sample& sample) {
  constexpr std::size_t kRgbChannels = 3;
  const bool positive = sample.width > 0 && sample.height > 0;
  const std::size_t pixels =
      positive ? static_cast<std::size_t>(sample.width) * static_cast<std::size_t>(sample.height)
               : 0;
  if (positive && sample.memory.size == pixels) return ImageFormat::kGrayPixels;
  if (positive && sample.memory.size == pixels * kRgbChannels) return ImageFormat::kRgbPixels;
  refuse("a sample of pixels whose memory has another size than its shape");
}

void check(const Sample& sample) {
  if (sample.width != 0 || sample.height != 0) format_of(sample);
}

ExifOrientation orientation_of(const Sample& sample) {
  return sample.upright ? ExifOrientation::kApplied : ExifOrientation::kIgnored;
}

}  // namespace

struct Engine::Impl {
  struct Row {
    Sample sample;
    ReadBuffer bytes;  // from arrival to the end of decoding; none for a sample in memory
    ImageInfo image;   // from arrival on

    std::span<const std::byte> file() const noexcept {
      return sample.memory ? sample.memory.bytes() : bytes.bytes();
    }
  };

  /// A batch in flight. Stands still in memory, since tasks refer to it.
  struct Job {
    std::uint64_t id = 0;
    std::size_t stream = 0;
    bool opaque = false;
    std::vector<Row> rows;
  };

  /// What one worker thread needs for itself.
  struct Worker {
    ImageDecoder decoder;
    RgbImage image;
    TransformScratch scratch;
  };

  Impl(const EngineOptions& engine_options, Transform engine_transform,
       const std::vector<RandomStream>& random_streams, const Parts& parts)
      : options(engine_options),
        transform(std::move(engine_transform)),
        ring(fields_of(transform), options.pool, options.max_batches_in_flight),
        executor(parts.make_executor()),
        reader(parts.make_reader([this](ReadResult result) { on_read(std::move(result)); })) {
    const auto planner = [this](ImageSize size, RandomStream& stream) {
      Plan plan = transform.plan(size, stream);
      if (plan.doubt.empty() &&
          static_cast<std::uint64_t>(plan.largest_crop) > options.pixel_limit) {
        plan.doubt = "a crop of more pixels than Pillow takes without a word";
      }
      return plan;
    };
    for (const auto& random : random_streams) {
      streams.emplace_back(random, planner, options.collate_draws);
    }
    if (options.own_streams) {
      streams.emplace_back(
          [this](std::uint64_t id, std::size_t row) {
            const auto& rows = find(id)->rows;  // none in an opaque batch: it is not planned here
            return RandomStream(rows.empty() ? SampleKey{} : rows[row].sample.random_key,
                                *options.own_streams);
          },
          planner);
    }
    workers.resize(static_cast<std::size_t>(executor->workers()));
  }

  std::uint64_t begin(std::size_t stream, std::vector<Sample> samples, bool opaque);
  Event take_batch();
  PlanStream& open_question(const Question& question);
  void close(PlanStream& stream, const Question& question, PlanStream::Answer answer,
             const RandomStream& random_after);

  // All of these need the lock.
  Job* find(std::uint64_t id);
  bool front_settled() const;
  bool asks() const;
  void carry_out(PlanStream& stream);
  void fetch(Job& job, std::size_t row, bool urgent);
  void on_arrival(Job& job, std::size_t row, const std::variant<ImageInfo, Doubt>& verdict,
                  ReadBuffer bytes);

  // These take it themselves, on the reader's and the executor's threads.
  void on_read(ReadResult result) noexcept;
  void inspect(std::uint64_t id, std::size_t row, const MemoryBlock& file,
               ExifOrientation orientation) noexcept;
  void hand_in(std::uint64_t id, std::size_t row, const std::variant<ImageInfo, Doubt>& verdict,
               ReadBuffer bytes);
  void decode_next(Worker& worker) noexcept;
  void set_mirrored(std::uint64_t id, std::size_t row, bool mirrored);
  void publish(std::exception_ptr error) noexcept;

  const EngineOptions options;
  const Transform transform;

  mutable std::mutex mutex;
  std::condition_variable changed;  // front_settled(), asks(), stopping or fatal became true
  bool stopping = false;
  std::exception_ptr fatal;  // a thread of ours met what it can't attach to a sample
  SlotRing ring;
  std::vector<PlanStream> streams;
  std::deque<std::unique_ptr<Job>> jobs;  // oldest first; ids are consecutive

  DecodeQueue ready_decodes;  // a task of the executor is there for each

  EngineCounters counters;

  // Destroyed in this order, last first: the reader still writes into its buffers and calls
  // on_read(), which hands work to the executor, whose tasks write into the ring's memory.
  std::vector<Worker> workers;
  std::unique_ptr<Executor> executor;
  std::unique_ptr<Reader> reader;
};

std::uint64_t Engine::Impl::begin(std::size_t stream, std::vector<Sample> samples, bool opaque) {
  if (stream >= streams.size()) refuse("no random stream " + std::to_string(stream));
  if (samples.size() >= std::size_t{1} << kRowBits) refuse("a batch of more than 16 million rows");
  if (ring.full()) {
    refuse("max_batches_in_flight (" + std::to_string(options.max_batches_in_flight) +
           ") batches are in flight: take one with next() first");
  }
  std::ranges::for_each(samples, check);
  auto job = std::make_unique<Job>();
  job->id = ring.begin(samples.size());
  job->stream = stream;
  job->opaque = opaque;
  job->rows.resize(samples.size());
  for (std::size_t i = 0; i < samples.size(); ++i) {
    const auto label = ring.row(job->id, kLabelField, i);
    std::memcpy(label.data(), &samples[i].label, label.size());
    job->rows[i].sample = std::move(samples[i]);
  }
  jobs.push_back(std::move(job));
  return jobs.back()->id;
}

Engine::Event Engine::Impl::take_batch() {
  const std::unique_ptr<Job> job = std::move(jobs.front());
  jobs.pop_front();
  PlanStream::Outcome outcome = streams[job->stream].pop();
  if (!outcome.skipped_rows.empty()) ring.close_gaps(job->id, outcome.skipped_rows);
  SlotRing::Slot slot = ring.lease();
  Batch batch{.id = job->id,
              .rows = static_cast<std::int64_t>(job->rows.size() - outcome.skipped_rows.size()),
              .fields = {},
              .failed_row = {},
              .skipped_rows = {outcome.skipped_rows.begin(), outcome.skipped_rows.end()},
              .random_after = outcome.random_after,
              .random_before_collate = outcome.random_before_collate};
  const bool nothing_left = batch.rows == 0 && !outcome.skipped_rows.empty();
  if (outcome.failed_row) {
    batch.failed_row = static_cast<std::int64_t>(*outcome.failed_row);
  } else if (!job->opaque && !nothing_left) {
    for (std::size_t i = 0; i < slot.fields.size(); ++i) {
      batch.fields.push_back({ring.fields()[i], std::move(slot.fields[i])});
    }
  }
  ++counters.batches;
  return batch;
}

PlanStream& Engine::Impl::open_question(const Question& question) {
  const Job* job = find(question.batch);
  if (job != nullptr) {
    PlanStream& stream = streams[job->stream];
    if (question.collate) {
      const auto open = stream.collate_question();
      if (open && open->batch == question.batch) return stream;
    }
    const auto open = question.collate ? std::nullopt : stream.question();
    if (open && open->batch == question.batch &&
        open->row == static_cast<std::size_t>(question.row)) {
      return stream;
    }
  }
  refuse("batch " + std::to_string(question.batch) + " has no open question about row " +
         std::to_string(question.row));
}

void Engine::Impl::close(PlanStream& stream, const Question& question, PlanStream::Answer answer,
                         const RandomStream& random_after) {
  if (question.collate) refuse("draws cannot fail: answer with where they stopped");
  stream.answered(question.batch, static_cast<std::size_t>(question.row), answer, random_after);
  ++counters.questions;
  carry_out(stream);
}

Engine::Impl::Job* Engine::Impl::find(std::uint64_t id) {
  if (jobs.empty() || id < jobs.front()->id || id > jobs.back()->id) return nullptr;
  return jobs[static_cast<std::size_t>(id - jobs.front()->id)].get();
}

bool Engine::Impl::front_settled() const {
  return !jobs.empty() && streams[jobs.front()->stream].settled(jobs.front()->id);
}

bool Engine::Impl::asks() const {
  return std::ranges::any_of(streams, [](const PlanStream& stream) { return stream.asks(); });
}

void Engine::Impl::carry_out(PlanStream& stream) {
  if (stopping) return;
  // What is in memory arrives at once, which may cause more to be done.
  for (auto actions = stream.take_actions(); !actions.empty(); actions = stream.take_actions()) {
    for (const auto& action : actions) {
      Job& job = *find(action.batch);
      switch (action.kind) {
        case PlanStream::Action::Kind::kDecode:
          ready_decodes.push({action.batch, action.row, job.rows[action.row].file().size()});
          executor->submit(
              [this](int worker) { decode_next(workers[static_cast<std::size_t>(worker)]); });
          break;
        case PlanStream::Action::Kind::kRead:
          fetch(job, action.row, /*urgent=*/true);
          break;
        case PlanStream::Action::Kind::kRelease:
          job.rows[action.row].bytes = {};
          break;
      }
    }
  }
  if (front_settled() || stream.asks()) changed.notify_all();
}

void Engine::Impl::fetch(Job& job, std::size_t row, bool urgent) {
  const Sample& sample = job.rows[row].sample;
  if (!sample.memory) {
    reader->submit(make_ticket(job.id, row), sample, urgent);
  } else if (sample.width > 0) {
    on_arrival(job, row, ImageInfo{format_of(sample), {sample.width, sample.height}}, {});
  } else {
    executor->submit(
        [this, id = job.id, row, file = sample.memory, orientation = orientation_of(sample)](int) {
          inspect(id, row, file, orientation);
        });
  }
}

void Engine::Impl::on_arrival(Job& job, std::size_t row,
                              const std::variant<ImageInfo, Doubt>& verdict, ReadBuffer bytes) {
  PlanStream& stream = streams[job.stream];
  if (const auto* image = std::get_if<ImageInfo>(&verdict)) {
    if (stream.wanted(job.id, row)) job.rows[row].bytes = std::move(bytes);
    job.rows[row].image = *image;
    stream.arrived(job.id, row, image->size);
  } else {
    stream.doubtful(job.id, row, std::get<Doubt>(verdict).reason);
  }
}

void Engine::Impl::on_read(ReadResult result) noexcept {
  try {
    const std::uint64_t id = result.ticket >> kRowBits;
    const std::size_t row = result.ticket & ((std::uint64_t{1} << kRowBits) - 1);
    auto orientation = ExifOrientation::kIgnored;
    {
      const std::lock_guard lock(mutex);
      if (Job* job = find(id)) orientation = orientation_of(job->rows[row].sample);
    }
    std::variant<ImageInfo, Doubt> verdict;
    if (result.error != 0) {
      verdict = Doubt{result.what + ": " + std::generic_category().message(result.error)};
    } else {
      verdict = inspect_image(result.buffer.bytes(), options.pixel_limit, orientation);
    }
    hand_in(id, row, verdict, std::move(result.buffer));
  } catch (...) {
    publish(std::current_exception());
  }
}

void Engine::Impl::inspect(std::uint64_t id, std::size_t row, const MemoryBlock& file,
                           ExifOrientation orientation) noexcept {
  try {
    hand_in(id, row, inspect_image(file.bytes(), options.pixel_limit, orientation), {});
  } catch (...) {
    publish(std::current_exception());
  }
}

void Engine::Impl::hand_in(std::uint64_t id, std::size_t row,
                           const std::variant<ImageInfo, Doubt>& verdict, ReadBuffer bytes) {
  const std::lock_guard lock(mutex);
  Job* job = find(id);
  if (stopping || job == nullptr) return;  // nobody wants it: its batch failed at a lower row
  on_arrival(*job, row, verdict, std::move(bytes));
  carry_out(streams[job->stream]);
}

void Engine::Impl::decode_next(Worker& worker) noexcept {
  try {
    std::unique_lock lock(mutex);
    if (stopping) return;
    const auto [id, index, file_bytes] = ready_decodes.top();
    ready_decodes.pop();
    reader->decode_began(ready_decodes.size());
    Job& job = *find(id);  // stays until decoded()
    PlanStream& stream = streams[job.stream];
    const Plan& plan = stream.plan(id, index);
    const auto destination = ring.row(id, kImageField, index);
    Row& row = job.rows[index];
    const ImageInfo image = row.image;
    ReadBuffer bytes = std::move(row.bytes);
    lock.unlock();

    std::optional<std::string> doubt;
    bool mirrored = false;
    try {
      const auto start = Clock::now();
      const auto file = row.sample.memory ? row.sample.memory.bytes() : bytes.bytes();
      worker.decoder.decode(file, image, plan.source, worker.image);
      counters.decode.add(worker.image.pixels.size(), start);
      const auto decoded = Clock::now();
      mirrored = transform.run(worker.image, plan, worker.scratch, destination);
      counters.transform.add(destination.size(), decoded);
    } catch (const std::exception& error) {
      doubt = error.what();  // damage, or no memory: either way the oracle's verdict counts
    }
    bytes = {};

    lock.lock();
    set_mirrored(id, index, mirrored);
    stream.decoded(id, index, std::move(doubt));
    carry_out(stream);
  } catch (...) {
    publish(std::current_exception());
  }
}

void Engine::Impl::set_mirrored(std::uint64_t id, std::size_t index, bool mirrored) {
  if (transform.finish() == nullptr) return;
  ring.row(id, kMirroredField, index)[0] = std::byte{mirrored};
}

void Engine::Impl::publish(std::exception_ptr error) noexcept {
  const std::lock_guard lock(mutex);
  if (fatal == nullptr) fatal = std::move(error);
  changed.notify_all();
}

Engine::Engine(const EngineOptions& options, Transform transform,
               const std::vector<RandomStream>& streams)
    : Engine(options, std::move(transform), streams, Parts::real(options)) {}

Engine::Engine(const EngineOptions& options, Transform transform,
               const std::vector<RandomStream>& streams, const Parts& parts) {
  if (options.threads < 1) refuse("threads must be at least 1");
  if (options.io_threads < 1) refuse("io_threads must be at least 1");
  if (options.read_budget_bytes < 1) refuse("read_budget_bytes must be at least 1");
  if (options.max_batches_in_flight < 1) refuse("max_batches_in_flight must be at least 1");
  if (options.pool == nullptr) refuse("a buffer pool is needed");
  if (streams.empty() != options.own_streams.has_value()) {
    refuse("either random streams are needed, or own_streams for each sample");
  }
  impl_ = std::make_unique<Impl>(options, std::move(transform), streams, parts);
}

Engine::~Engine() { stop(); }

std::uint64_t Engine::submit(std::size_t stream, std::vector<Sample> samples) {
  const std::lock_guard lock(impl_->mutex);
  const std::size_t rows = samples.size();
  const std::uint64_t id = impl_->begin(stream, std::move(samples), /*opaque=*/false);
  impl_->streams[stream].add_batch(id, rows);
  auto& job = *impl_->find(id);
  for (std::size_t i = 0; i < rows; ++i) impl_->fetch(job, i, /*urgent=*/false);
  impl_->carry_out(impl_->streams[stream]);
  return id;
}

std::uint64_t Engine::submit_opaque(std::size_t stream, std::string reason) {
  const std::lock_guard lock(impl_->mutex);
  const std::uint64_t id = impl_->begin(stream, {}, /*opaque=*/true);
  impl_->streams[stream].add_opaque_batch(id, std::move(reason));
  impl_->carry_out(impl_->streams[stream]);
  return id;
}

Engine::Event Engine::next(std::chrono::milliseconds timeout) {
  std::unique_lock lock(impl_->mutex);
  Impl& impl = *impl_;
  if (impl.jobs.empty()) refuse("next() with no batch in flight");
  for (const auto& job : impl.jobs) {
    impl.counters.ready_batches_sum += impl.streams[job->stream].settled(job->id) ? 1 : 0;
  }
  const auto start = Clock::now();
  impl.changed.wait_for(lock, timeout, [&] {
    return impl.stopping || impl.fatal != nullptr || impl.asks() || impl.front_settled();
  });
  impl.counters.add_wait(start);
  if (impl.fatal != nullptr) std::rethrow_exception(impl.fatal);
  if (impl.stopping) throw Error(ErrorCode::kStopped, "stopped", {.stage = "engine"});

  // Questions first: rows behind an open one have no plan yet, so that the threads would run dry.
  for (const auto& job : impl.jobs) {
    auto open = impl.streams[job->stream].question();
    if (!open || open->batch != job->id) continue;
    return Question{.batch = open->batch,
                    .row = static_cast<std::int64_t>(open->row),
                    .whole_batch = job->opaque,
                    .sample = job->opaque ? Sample{} : job->rows[open->row].sample,
                    .reason = std::move(open->reason),
                    .random = open->random};
  }
  for (const auto& job : impl.jobs) {
    auto open = impl.streams[job->stream].collate_question();
    if (!open || open->batch != job->id) continue;
    const Sample none;
    return Question{.batch = open->batch,
                    .row = static_cast<std::int64_t>(open->rows),
                    .whole_batch = false,
                    .collate = true,
                    .sample = none,
                    .reason = "its collate function draws random numbers",
                    .random = open->random};
  }
  if (impl.front_settled()) return impl.take_batch();
  return Timeout{};
}

void Engine::answer(const Question& question, std::span<const std::byte> image,
                    const RandomStream& random_after, std::optional<std::int64_t> label) {
  const std::lock_guard lock(impl_->mutex);
  PlanStream& stream = impl_->open_question(question);
  const std::size_t row = static_cast<std::size_t>(question.row);
  const bool opaque = impl_->find(question.batch)->opaque;
  const bool has_image = !opaque && !question.collate;
  const PixelFinish* finish = impl_->transform.finish();
  const FieldSpec& whole = finish != nullptr ? finish->output : impl_->transform.output();
  const std::size_t row_bytes = !has_image ? 0 : whole.row_bytes();
  if (image.size() != row_bytes) {
    refuse("an answer of " + std::to_string(image.size()) + " bytes for a row of " +
           std::to_string(row_bytes));
  }
  if (question.collate) {
    stream.collated(question.batch, random_after);
    impl_->carry_out(stream);
    return;
  }
  if (has_image) {
    const auto destination = impl_->ring.row(question.batch, kImageField, row);
    if (finish != nullptr) {
      impl_->transform.unfinish(image, destination);
      impl_->set_mirrored(question.batch, row, false);
    } else {
      std::ranges::copy(image, destination.begin());
    }
    if (label) {
      std::memcpy(impl_->ring.row(question.batch, kLabelField, row).data(), &*label, sizeof *label);
    }
  }
  impl_->close(stream, question, PlanStream::Answer::kComputed, random_after);
}

void Engine::skip(const Question& question, const RandomStream& random_after) {
  const std::lock_guard lock(impl_->mutex);
  impl_->close(impl_->open_question(question), question, PlanStream::Answer::kSkipped,
               random_after);
}

void Engine::fail(const Question& question, const RandomStream& random_after) {
  const std::lock_guard lock(impl_->mutex);
  impl_->close(impl_->open_question(question), question, PlanStream::Answer::kFailed, random_after);
}

void Engine::rewind(std::size_t stream, const RandomStream& random) {
  const std::lock_guard lock(impl_->mutex);
  if (stream >= impl_->streams.size()) refuse("no random stream " + std::to_string(stream));
  impl_->streams[stream].rewind(random);
  impl_->carry_out(impl_->streams[stream]);
}

std::size_t Engine::in_flight() const {
  const std::lock_guard lock(impl_->mutex);
  return impl_->jobs.size();
}

EngineStats Engine::stats() const {
  const std::lock_guard lock(impl_->mutex);
  EngineStats stats = impl_->counters.read(impl_->reader->stats());
  stats.threads = impl_->options.threads;
  stats.io_threads = impl_->options.io_threads;
  for (const auto& stream : impl_->streams) stats.rollbacks += stream.rollbacks();
  return stats;
}

void Engine::stop() {
  const std::lock_guard lock(impl_->mutex);
  impl_->stopping = true;
  impl_->changed.notify_all();
}

}  // namespace headrace
