// A training loop in small, on the double of the driver: batches go to the device by rule A or B,
// are used there by a consumer's kernels, and are let go of, in ways that a seed decides.
#pragma once

#include <cstring>
#include <deque>
#include <exception>
#include <memory>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "caching_allocator.h"
#include "cuda_driver.h"
#include "device_finish.h"
#include "fake_cuda.h"
#include "headrace/device.h"
#include "headrace/error.h"

namespace headrace::test {

enum class Rule { kA, kB };

struct Scenario {
  Rule rule = Rule::kA;
  fake_cuda::Setup setup;
  int steps = 12;
  bool other_streams = true;  ///< some batches are consumed on another stream than allocated on
};

/// What came of it.
struct Outcome {
  std::vector<std::string> complaints;
  std::string leaks;
  int wrong_batches = 0;
  int right_batches = 0;
  std::string error;  ///< of headrace, that ended it
  DeviceStats stats;

  bool clean() const { return complaints.empty() && leaks.empty() && wrong_batches == 0; }
  std::string text() const {
    std::string all = error.empty() ? "" : "error: " + error + "\n";
    for (const auto& complaint : complaints) all += complaint + "\n";
    return all + "leaks: " + leaks + "; wrong batches: " + std::to_string(wrong_batches);
  }
};

class Play {
 public:
  static constexpr std::int64_t kHeight = 3;
  static constexpr std::int64_t kWidth = 5;
  static constexpr std::size_t kAhead = 2;

  explicit Play(const Scenario& scenario) : scenario_(scenario), random_(scenario.setup.seed) {}

  Outcome run() {
    fake_cuda::reset(scenario_.setup);
    try {
      act();
    } catch (const Error& error) {
      outcome_.error = error.what();
    }
    outcome_.complaints = fake_cuda::complaints();
    if (!fake_cuda::lost()) outcome_.leaks = fake_cuda::leaks();
    return outcome_;
  }

 private:
  using Bytes = std::vector<std::byte>;

  struct Tensor {
    DeviceAddress memory = 0;
    Bytes expected;
    dlpack::ManagedTensor* managed = nullptr;  // rule B
  };
  struct Held {
    std::vector<Tensor> tensors;
    DeviceBatch batch;
  };

  std::size_t pick(std::size_t choices) { return random_() % choices; }

  /// The test's own half of the play: the consumer with its streams, its allocator, its context.
  struct Stage {
    explicit Stage(PrimaryContext& primary) : cu(primary.driver().functions()), scope(primary) {
      const fake_cuda::TestsOwn own;
      for (auto& stream : streams) cu.cuStreamCreate(&stream, cuda::kStreamNonBlocking);
      allocator = std::make_unique<fake_cuda::CachingAllocator>(cu);
    }
    ~Stage() {
      const fake_cuda::TestsOwn own;
      for (auto stream : streams) cu.cuStreamSynchronize(stream);
      cu.cuCtxSynchronize();
      allocator.reset();
      for (auto stream : streams) cu.cuStreamDestroy(stream);
    }
    Stage(const Stage&) = delete;
    Stage& operator=(const Stage&) = delete;

    const cuda::Functions& cu;
    PrimaryContext::Scope scope;
    cuda::Stream streams[2]{};
    std::unique_ptr<fake_cuda::CachingAllocator> allocator;
  };

  void act() {
    std::unique_ptr<PrimaryContext> context;
    std::unique_ptr<Stage> stage;
    {
      const fake_cuda::TestsOwn own;
      context = std::make_unique<PrimaryContext>(0);
      stage = std::make_unique<Stage>(*context);
    }
    stage_ = stage.get();
    std::exception_ptr error;
    try {
      train();
    } catch (const Error&) {
      error = std::current_exception();
    }
    // However it ended: tensors are let go of, and their memory is used again by the consumer.
    let_go_of_all();
    copier_.reset();
    pool_.reset();
    {
      const fake_cuda::TestsOwn own;
      stage.reset();
      context.reset();
    }
    if (error) std::rethrow_exception(error);
  }

  void train() {
    pool_ = std::make_unique<BufferPool>(std::make_shared<PinnedAllocator>(0), 8);
    static constexpr std::byte kAnyImage[1]{};
    DeviceCopierOptions options{.device = 0, .max_in_flight = kAhead, .finish = {}};
    options.finish = PixelFinish{{"image", Dtype::kFloat16, {3, kHeight, kWidth}}, table()};
    copier_ = std::make_unique<DeviceCopier>(options, kAnyImage);
    const int end = 1 + static_cast<int>(pick(static_cast<std::size_t>(scenario_.steps)));
    for (int step = 0; step < end; ++step) {
      while (copier_->in_flight() < kAhead) submit();
      hand_over();
      if (held_.size() > pick(4)) let_go();
    }
    outcome_.stats = copier_->stats();
    copier_->stop();
  }

  // --- the loader's side ------------------------------------------------------------------------

  static Bytes table() {
    Bytes bytes(3 * 256 * 2);
    for (std::size_t i = 0; i < bytes.size(); ++i) {
      bytes[i] = static_cast<std::byte>((i * 7 + i / 256) & 0xff);
    }
    return bytes;
  }

  Field make_field(FieldSpec spec, std::int64_t rows, unsigned modulus) {
    const std::size_t bytes = spec.row_bytes() * static_cast<std::size_t>(rows);
    Field field{std::move(spec), pool_->acquire(bytes)};
    fake_cuda::host_access(field.memory.get(), bytes, true, "the engine's writing");
    for (std::size_t i = 0; i < bytes; ++i) {
      field.memory[static_cast<std::ptrdiff_t>(i)] = static_cast<std::byte>(random_() % modulus);
    }
    return field;
  }

  Batch make_batch() {
    Batch batch{.id = next_id_++,
                .rows = static_cast<std::int64_t>(1 + pick(3)),
                .fields = {},
                .failed_row = {},
                .skipped_rows = {},
                .random_after = RandomStream(0)};
    batch.fields.push_back(
        make_field({"image", Dtype::kUint8, {3, kHeight, kWidth}, MemoryFormat::kChannelsLast},
                   batch.rows, 256));
    batch.fields.push_back(make_field({"label", Dtype::kInt64, {}}, batch.rows, 256));
    batch.fields.push_back(make_field({"mirrored", Dtype::kUint8, {}}, batch.rows, 2));
    return batch;
  }

  /// What must be on the device in the end.
  std::vector<Bytes> expected(const Batch& batch) const {
    if (copier_->stats().finish != "kernel") {  // a failure that it lives with
      std::vector<Bytes> fields;
      for (const Field& field : batch.fields) {
        const std::byte* first = field.memory.get();
        fields.emplace_back(first,
                            first + field.spec.row_bytes() * static_cast<std::size_t>(batch.rows));
      }
      return fields;
    }
    const auto& pixels = batch.fields[0].memory;
    const Bytes values = table();
    Bytes image(3 * 2 * static_cast<std::size_t>(batch.rows * kHeight * kWidth));
    for (std::int64_t row = 0; row < batch.rows; ++row) {
      const bool mirrored = batch.fields[2].memory[row] != std::byte{};
      for (std::int64_t y = 0; y < kHeight; ++y) {
        for (std::int64_t x = 0; x < kWidth; ++x) {
          const std::int64_t from = mirrored ? kWidth - 1 - x : x;
          for (std::int64_t channel = 0; channel < 3; ++channel) {
            const auto value = static_cast<std::size_t>(
                pixels[3 * ((row * kHeight + y) * kWidth + from) + channel]);
            const auto to =
                static_cast<std::size_t>(((row * 3 + channel) * kHeight + y) * kWidth + x);
            const std::size_t entry = static_cast<std::size_t>(channel) * 256 + value;
            std::memcpy(&image[2 * to], &values[2 * entry], 2);
          }
        }
      }
    }
    const auto* labels = batch.fields[1].memory.get();
    return {image, Bytes(labels, labels + 8 * batch.rows)};
  }

  // --- the consumer's side ----------------------------------------------------------------------

  void submit() {
    Batch batch = make_batch();
    Held held;
    for (Bytes& bytes : expected(batch)) held.tensors.push_back({.expected = std::move(bytes)});
    if (scenario_.rule == Rule::kB) {
      copier_->submit(std::move(batch));
      in_flight_.push_back(std::move(held));
      return;
    }
    std::vector<DeviceAddress> targets;
    for (Tensor& tensor : held.tensors) {
      tensor.memory = stage_->allocator->allocate(tensor.expected.size(), main_stream());
      targets.push_back(tensor.memory);
    }
    in_flight_.push_back(std::move(held));  // let go of even if this fails
    copier_->submit(std::move(batch), targets, handle(main_stream()));
  }

  void hand_over() {
    const bool elsewhere = scenario_.other_streams && pick(4) == 0;
    const cuda::Stream stream = stage_->streams[elsewhere ? 1 : 0];
    if (scenario_.rule == Rule::kA) {
      copier_->next(handle(stream));
      held_.push_back(std::move(in_flight_.front()));
      in_flight_.pop_front();
      for (const Tensor& tensor : held_.back().tensors) {
        stage_->allocator->record_stream(tensor.memory, stream);
        use(tensor, stream);
      }
      return;
    }
    DeviceBatch batch = copier_->next();
    held_.push_back(std::move(in_flight_.front()));  // first: what follows may fail
    in_flight_.pop_front();
    Held& held = held_.back();
    for (std::size_t i = 0; i < held.tensors.size(); ++i) {
      Tensor& tensor = held.tensors[i];
      const bool by_itself = pick(8) == 0;
      tensor.managed = to_dlpack(batch.fields[i], batch.rows, by_itself ? -1 : number(stream));
      tensor.memory = batch.fields[i].memory;
      if (by_itself) {
        const fake_cuda::TestsOwn own;
        stage_->cu.cuCtxSynchronize();
      }
      use(tensor, stream);
    }
    if (pick(2) == 0) held.batch = std::move(batch);
  }

  /// Two kernels: one that checks the bits when it runs, one that overwrites them.
  void use(const Tensor& tensor, cuda::Stream stream) {
    const auto* memory = reinterpret_cast<const void*>(tensor.memory);
    const std::size_t bytes = tensor.expected.size();
    fake_cuda::launch(stream, "the training's reading", {{tensor.memory, bytes, false}},
                      [this, memory, expected = tensor.expected] {
                        const bool right =
                            std::memcmp(memory, expected.data(), expected.size()) == 0;
                        ++(right ? outcome_.right_batches : outcome_.wrong_batches);
                      });
    overwrite(tensor, stream);
  }

  void overwrite(const Tensor& tensor, cuda::Stream stream) {
    auto* memory = reinterpret_cast<void*>(tensor.memory);
    const std::size_t bytes = tensor.expected.size();
    fake_cuda::launch(stream, "the training's writing", {{tensor.memory, bytes, true}},
                      [memory, bytes] { std::memset(memory, 0xEE, bytes); });
  }

  void let_go() {
    Held held = std::move(held_.front());
    held_.pop_front();
    for (const Tensor& tensor : held.tensors) let_go(tensor);
  }

  void let_go(const Tensor& tensor) {
    if (tensor.managed != nullptr) {
      // On whatever thread.
      std::thread([&] { tensor.managed->deleter(tensor.managed); }).join();
    } else if (scenario_.rule == Rule::kA && tensor.memory != 0) {
      stage_->allocator->free(tensor.memory);
    }
  }

  void let_go_of_all() {
    while (!held_.empty()) let_go();
    while (!in_flight_.empty()) {
      Held held = std::move(in_flight_.front());
      in_flight_.pop_front();
      for (const Tensor& tensor : held.tensors) {
        let_go(tensor);
        if (scenario_.rule == Rule::kB || tensor.memory == 0) continue;
        // The allocator hands the block out again at once.
        const auto again = stage_->allocator->allocate(tensor.expected.size(), main_stream());
        overwrite({.memory = again, .expected = tensor.expected}, main_stream());
        stage_->allocator->free(again);
      }
    }
  }

  cuda::Stream main_stream() const { return stage_->streams[0]; }
  static StreamHandle handle(cuda::Stream stream) { return reinterpret_cast<StreamHandle>(stream); }
  static std::int64_t number(cuda::Stream stream) {
    return static_cast<std::int64_t>(handle(stream));
  }

  Scenario scenario_;
  std::mt19937_64 random_;
  Outcome outcome_;
  Stage* stage_ = nullptr;
  std::unique_ptr<BufferPool> pool_;
  std::unique_ptr<DeviceCopier> copier_;
  std::uint64_t next_id_ = 0;
  std::deque<Held> in_flight_;
  std::deque<Held> held_;
};

inline Outcome play(const Scenario& scenario) { return Play(scenario).run(); }

}  // namespace headrace::test
