#include "headrace/loader.h"

#include <algorithm>
#include <atomic>
#include <chrono>
#include <exception>
#include <map>
#include <new>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "headrace/error.h"
#include "headrace/threads.h"

namespace headrace {
namespace {

[[noreturn]] void refuse(const std::string& message) {
  throw Error(ErrorCode::kInvalidArgument, message, {.stage = "loader"});
}

struct CapReached : std::bad_alloc {};

class CappedAllocator final : public Allocator {
 public:
  CappedAllocator(std::shared_ptr<Allocator> memory, std::size_t cap_bytes)
      : memory_(std::move(memory)), cap_bytes_(cap_bytes) {}

  void* allocate(std::size_t bytes) override {
    if (used_bytes_.fetch_add(bytes) + bytes > cap_bytes_) {
      used_bytes_ -= bytes;
      throw CapReached();
    }
    try {
      return memory_->allocate(bytes);
    } catch (...) {
      used_bytes_ -= bytes;
      throw;
    }
  }
  void deallocate(void* memory, std::size_t bytes) noexcept override {
    memory_->deallocate(memory, bytes);
    used_bytes_ -= bytes;
  }

  std::size_t used_bytes() const noexcept { return used_bytes_; }

 private:
  const std::shared_ptr<Allocator> memory_;
  const std::size_t cap_bytes_;
  std::atomic<std::size_t> used_bytes_{0};
};

LoaderOptions completed(LoaderOptions options) {
  if (options.batch_size < 1) refuse("batch_size must be at least 1");
  if (options.threads < 0) refuse("threads must be at least 1, or 0 for all cores");
  if (options.threads == 0) options.threads = default_threads();
  if (options.prefetch_batches == 0) {
    // As many samples as keep the threads busy while others are being handed out.
    const std::size_t samples = 4 * static_cast<std::size_t>(options.threads);
    options.prefetch_batches = 1 + (samples + options.batch_size - 1) / options.batch_size;
  }
  if (options.memory_cap_bytes == 0) options.memory_cap_bytes = ~std::size_t{0};
  if (options.allocator == nullptr) options.allocator = make_host_allocator();
  return options;
}

std::shared_ptr<const Order> order_of(const Source* source, const LoaderOptions& options) {
  if (source == nullptr) refuse("a source is needed");
  if (options.shuffle) return std::make_shared<ShuffledOrder>(source->size(), options.seed);
  return std::make_shared<SequentialOrder>(source->size());
}

Error doubtful(const Question& question) {
  return Error(
      ErrorCode::kDoubtfulData,
      question.reason +
          "; what to do with it is left to you: mend, convert (to a plain JPEG or PNG) or remove "
          "the file, or set LoaderOptions::fallback",
      {.stage = "loader", .path = question.sample.path, .sample_index = question.sample.index});
}

}  // namespace

struct Loader::Impl {
  Impl(std::shared_ptr<const Source> the_source, std::shared_ptr<const Order> the_order,
       Transform the_transform, LoaderOptions the_options)
      : options(completed(std::move(the_options))),
        source(std::move(the_source)),
        order(std::move(the_order)),
        transform(std::move(the_transform)),
        memory(std::make_shared<CappedAllocator>(options.allocator, options.memory_cap_bytes)),
        pool(std::make_shared<BufferPool>(memory, 2 * (options.prefetch_batches + 1))) {
    if (source == nullptr) refuse("a source is needed");
    if (order == nullptr) refuse("an order is needed");
    start();  // refuses the engine's own options
  }

  void start();
  bool more() const { return begun < batches(); }
  std::int64_t batches() const;
  std::vector<Sample> samples_of(std::int64_t batch) const;
  bool submit(const std::vector<Sample>& samples);
  void begin_due();
  void begin_ahead() noexcept;
  void answer(const Question& question);

  const LoaderOptions options;
  const std::shared_ptr<const Source> source;
  const std::shared_ptr<const Order> order;
  const Transform transform;
  const std::shared_ptr<CappedAllocator> memory;
  const std::shared_ptr<BufferPool> pool;

  std::uint32_t epoch = 0;
  std::unique_ptr<Engine> engine;  // one for each epoch
  std::int64_t begun = 0;          // batches given to the engine, or lost before
  bool taken = false;              // a batch of this epoch was asked for
  std::map<std::uint64_t, std::exception_ptr> failures;  // by the engine's number of the batch
};

void Loader::Impl::start() {
  engine.reset();  // first, so that its memory can be used again
  begun = 0;
  taken = false;
  failures.clear();
  engine = std::make_unique<Engine>(EngineOptions{.threads = options.threads,
                                                  .reader = options.reader,
                                                  .io_threads = options.io_threads,
                                                  .read_budget_bytes = options.read_budget_bytes,
                                                  .max_batches_in_flight = options.prefetch_batches,
                                                  .pixel_limit = options.pixel_limit,
                                                  .own_streams = RandomRules(),
                                                  .pool = pool},
                                    transform, std::vector<RandomStream>());
}

std::int64_t Loader::Impl::batches() const {
  const auto batch_size = static_cast<std::int64_t>(options.batch_size);
  const std::int64_t samples = order->size();
  return samples / batch_size + (!options.drop_last && samples % batch_size != 0 ? 1 : 0);
}

std::vector<Sample> Loader::Impl::samples_of(std::int64_t batch) const {
  const auto batch_size = static_cast<std::int64_t>(options.batch_size);
  const std::int64_t end = std::min((batch + 1) * batch_size, order->size());
  std::vector<Sample> samples;
  for (std::int64_t position = batch * batch_size; position < end; ++position) {
    samples.push_back(source->sample(order->index(epoch, position)));
    Sample& sample = samples.back();
    sample.random_key = {
        .seed = options.seed, .epoch = epoch, .index = static_cast<std::uint64_t>(sample.index)};
  }
  return samples;
}

/// Begins the next batch; false when memory_cap_bytes does not allow it.
bool Loader::Impl::submit(const std::vector<Sample>& samples) {
  for (const bool trimmed : {false, true}) {
    try {
      engine->submit(0, samples);
      ++begun;
      return true;
    } catch (const CapReached&) {
      if (!trimmed) pool->trim();  // blocks of other sizes may lie there
    }
  }
  return false;
}

/// The batch whose turn it is.
void Loader::Impl::begin_due() {
  std::vector<Sample> samples;
  try {
    samples = samples_of(begun);
  } catch (...) {
    ++begun;
    throw;
  }
  if (submit(samples)) return;
  throw Error(ErrorCode::kMemoryCap,
              "no batch fits memory_cap_bytes (" + std::to_string(options.memory_cap_bytes) +
                  ") beside the " + std::to_string(memory->used_bytes()) +
                  " bytes of batches that are still held: release batches before next(), or raise "
                  "the cap",
              {.stage = "loader"});
}

/// As many more as may be in flight.
void Loader::Impl::begin_ahead() noexcept {
  try {
    while (more() && engine->in_flight() < options.prefetch_batches) {
      if (!submit(samples_of(begun))) return;
    }
  } catch (...) {
    // Comes again in the batch's turn.
  }
}

void Loader::Impl::answer(const Question& question) {
  RandomStream random = question.random;
  try {
    if (options.fallback == nullptr) throw doubtful(question);
    std::vector<std::byte> row(transform.output().row_bytes());
    if (options.fallback(question, random, row)) {
      engine->answer(question, row, random);
    } else {
      engine->skip(question, random);
    }
  } catch (...) {
    failures[question.batch] = std::current_exception();
    engine->fail(question, random);
  }
}

Loader::Loader(std::shared_ptr<const Source> source, Transform transform, LoaderOptions options) {
  std::shared_ptr<const Order> order = order_of(source.get(), options);
  impl_ = std::make_unique<Impl>(std::move(source), std::move(order), std::move(transform),
                                 std::move(options));
}

Loader::Loader(std::shared_ptr<const Source> source, std::shared_ptr<const Order> order,
               Transform transform, LoaderOptions options) {
  if (options.shuffle) refuse("shuffle and an order of one's own: choose one of the two");
  impl_ = std::make_unique<Impl>(std::move(source), std::move(order), std::move(transform),
                                 std::move(options));
}

Loader::~Loader() = default;
Loader::Loader(Loader&&) noexcept = default;
Loader& Loader::operator=(Loader&&) noexcept = default;

std::int64_t Loader::size() const noexcept { return impl_->batches(); }

void Loader::set_epoch(std::uint32_t epoch) {
  impl_->epoch = epoch;
  impl_->start();
}

std::optional<Batch> Loader::next() {
  Impl& impl = *impl_;
  impl.taken = true;
  if (impl.engine->in_flight() == 0 && impl.more()) impl.begin_due();
  impl.begin_ahead();
  while (impl.engine->in_flight() > 0) {
    Engine::Event event = impl.engine->next(std::chrono::hours(1));
    if (const auto* question = std::get_if<Question>(&event)) impl.answer(*question);
    auto* batch = std::get_if<Batch>(&event);
    if (batch == nullptr) continue;
    if (const auto failure = impl.failures.extract(batch->id)) {
      std::rethrow_exception(failure.mapped());
    }
    impl.begin_ahead();
    return std::move(*batch);
  }
  return std::nullopt;
}

Loader::Iterator Loader::begin() {
  if (impl_->taken) set_epoch(impl_->epoch + 1);
  return Iterator(*this);
}

Loader::Iterator& Loader::Iterator::operator++() {
  batch_.reset();  // its memory may be the next one's
  batch_ = loader_->next();
  return *this;
}

EngineStats Loader::stats() const { return impl_->engine->stats(); }

}  // namespace headrace
