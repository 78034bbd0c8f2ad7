#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <memory>
#include <numeric>
#include <string>
#include <utility>
#include <vector>

#include "flat_jpeg.h"
#include "headrace/error.h"
#include "headrace/loader.h"
#include "support.h"

namespace headrace {
namespace {

using test::contains;
using test::flat_jpeg;

constexpr int kSamples = 10;

Transform flip_and_keep() {
  return Transform::from_json(R"({"headrace": 1, "ops": [
      {"op": "center_crop", "size": [2, 2]},
      {"op": "random_horizontal_flip"},
      {"op": "pil_to_tensor"}]})");
}

/// A folder of gray pictures: number i has the value 10 * i all over and the label i.
class Pictures {
 public:
  Pictures() {
    std::filesystem::create_directories(root_);
    for (int i = 0; i < kSamples; ++i) write(i, flat_jpeg(16, 16, 10 * i));
  }
  ~Pictures() { std::filesystem::remove_all(root_); }
  Pictures(const Pictures&) = delete;
  Pictures& operator=(const Pictures&) = delete;

  std::string path(int i) const { return root_ / (std::to_string(i) + ".jpg"); }
  void write(int i, const std::vector<std::byte>& file) const {
    std::ofstream out(path(i), std::ios::binary);
    out.write(reinterpret_cast<const char*>(file.data()), std::ssize(file));
  }
  std::shared_ptr<const Source> source() const {
    std::vector<FileListSource::Entry> entries;
    for (int i = 0; i < kSamples; ++i) entries.push_back({path(i), i});
    return std::make_shared<FileListSource>(std::move(entries));
  }

 private:
  const std::filesystem::path root_ =
      std::filesystem::temp_directory_path() / ("headrace-loader-" + std::to_string(getpid()));
};

using Labels = std::vector<std::int64_t>;

Labels labels_of(const Batch& batch) {
  const auto labels = batch.values<std::int64_t>("label");
  const auto pixels = batch.values<std::uint8_t>("image");
  REQUIRE(pixels.size() == labels.size() * 12);
  for (std::size_t i = 0; i < pixels.size(); ++i) {
    REQUIRE(pixels[i] == 10 * labels[i / 12]);
  }
  return {labels.begin(), labels.end()};
}

std::vector<Labels> loop(Loader& loader) {
  std::vector<Labels> batches;
  for (const Batch& batch : loader) batches.push_back(labels_of(batch));
  return batches;
}

Labels joined(const std::vector<Labels>& batches) {
  Labels all;
  for (const Labels& labels : batches) all.insert(all.end(), labels.begin(), labels.end());
  return all;
}

Error error_of(Loader& loader) {
  try {
    loader.next();
  } catch (const Error& error) {
    return error;
  }
  FAIL("next() did not throw");
  std::abort();
}

TEST_CASE("a loop over a loader is an epoch in the source's order", "[loader]") {
  const Pictures pictures;
  Loader loader(pictures.source(), flip_and_keep(), {.batch_size = 4});
  CHECK(loader.size() == 3);
  const std::vector<Labels> expected{{0, 1, 2, 3}, {4, 5, 6, 7}, {8, 9}};
  CHECK(loop(loader) == expected);
  CHECK(loop(loader) == expected);
  CHECK(loader.next() == std::nullopt);
  CHECK(loader.stats().batches == 3);
}

TEST_CASE("drop_last leaves out the batch that is not full", "[loader]") {
  const Pictures pictures;
  Loader loader(pictures.source(), flip_and_keep(), {.batch_size = 4, .drop_last = true});
  CHECK(loader.size() == 2);
  CHECK(loop(loader) == std::vector<Labels>{{0, 1, 2, 3}, {4, 5, 6, 7}});
}

TEST_CASE("a shuffle shows in epochs of their own, whatever the threads", "[loader]") {
  const Pictures pictures;
  const auto make = [&](int threads, std::size_t prefetch) {
    return Loader(pictures.source(), flip_and_keep(),
                  {.batch_size = 3,
                   .shuffle = true,
                   .seed = 7,
                   .threads = threads,
                   .prefetch_batches = prefetch});
  };
  Loader loader = make(1, 1);
  const ShuffledOrder order(kSamples, 7);
  for (std::uint32_t epoch = 0; epoch < 3; ++epoch) {
    Labels expected;
    for (std::int64_t i = 0; i < kSamples; ++i) expected.push_back(order.index(epoch, i));
    CHECK(joined(loop(loader)) == expected);
  }
  Loader other = make(3, 4);
  loader.set_epoch(1);
  other.set_epoch(1);
  CHECK(loop(loader) == loop(other));
}

TEST_CASE("a loop that was left is followed by a new epoch, set_epoch() goes back", "[loader]") {
  const Pictures pictures;
  Loader loader(pictures.source(), flip_and_keep(), {.batch_size = 4, .shuffle = true});
  const std::vector<Labels> first = loop(loader);
  const std::vector<Labels> second = loop(loader);
  CHECK(first != second);
  loader.set_epoch(0);
  CHECK(labels_of(*loader.next()) == first[0]);
  CHECK(loop(loader) == second);
  loader.set_epoch(0);
  CHECK(loop(loader) == first);
}

TEST_CASE("a sample draws from its own stream, in whatever batch", "[loader]") {
  const Pictures pictures;
  std::filesystem::remove(pictures.path(5));
  const auto order = std::make_shared<ListOrder>(Labels{3, 5, 7});
  int asked = 0;
  Loader loader(pictures.source(), order, flip_and_keep(),
                {.batch_size = 3,
                 .seed = 11,
                 .fallback = [&](const Question&, RandomStream& random, std::span<std::byte>) {
                   const SampleKey key{.seed = 11, .epoch = 6, .index = 5};
                   CHECK(random.same_position(RandomStream(key)));
                   ++asked;
                   return false;
                 }});
  loader.set_epoch(6);
  CHECK(loop(loader) == std::vector<Labels>{{3, 7}});
  CHECK(asked == 1);
}

TEST_CASE("an order of one's own may repeat and leave out samples", "[loader]") {
  const Pictures pictures;
  const auto order = std::make_shared<ListOrder>(Labels{9, 9, 2});
  Loader loader(pictures.source(), order, flip_and_keep(), {.batch_size = 2});
  CHECK(loop(loader) == std::vector<Labels>{{9, 9}, {2}});
}

TEST_CASE("a sample in doubt is an error of its batch alone", "[loader]") {
  const Pictures pictures;
  std::vector<std::byte> cut = flat_jpeg(16, 16, 50);
  cut.resize(cut.size() - 2);
  pictures.write(5, cut);
  std::filesystem::remove(pictures.path(9));
  Loader loader(pictures.source(), flip_and_keep(), {.batch_size = 4});
  CHECK(labels_of(*loader.next()) == Labels{0, 1, 2, 3});

  const Error damaged = error_of(loader);
  CHECK(damaged.code() == ErrorCode::kDoubtfulData);
  CHECK(damaged.context().path == pictures.path(5));
  CHECK(damaged.context().sample_index == 5);
  CHECK_THAT(damaged.what(), contains("(sample 5)"));
  CHECK_THAT(damaged.what(), contains("LoaderOptions::fallback"));
  CHECK_THAT(error_of(loader).what(), contains("No such file"));
  CHECK(loader.next() == std::nullopt);
}

TEST_CASE("a fallback makes the samples that are in doubt", "[loader]") {
  const Pictures pictures;
  pictures.write(5, {});
  Loader loader(
      pictures.source(), flip_and_keep(),
      {.batch_size = 4,
       .fallback = [](const Question& question, RandomStream& random, std::span<std::byte> row) {
         CHECK(question.sample.index == 5);
         random.next_word();
         std::ranges::fill(row, std::byte{50});
         return true;
       }});
  CHECK(joined(loop(loader)) == Labels{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
  CHECK(loader.stats().questions == 1);
}

TEST_CASE("what a fallback throws is thrown in its batch's turn", "[loader]") {
  const Pictures pictures;
  pictures.write(5, {});
  Loader loader(pictures.source(), flip_and_keep(),
                {.batch_size = 4,
                 .fallback = [](const Question&, RandomStream&, std::span<std::byte>) -> bool {
                   throw std::out_of_range("mine");
                 }});
  CHECK(labels_of(*loader.next()) == Labels{0, 1, 2, 3});
  CHECK_THROWS_AS(loader.next(), std::out_of_range);
  CHECK(labels_of(*loader.next()) == Labels{8, 9});
}

TEST_CASE("an index that the source does not have fails in its turn", "[loader]") {
  const Pictures pictures;
  const auto order = std::make_shared<ListOrder>(Labels{0, 1, 77, 3, 4, 5});
  Loader loader(pictures.source(), order, flip_and_keep(), {.batch_size = 2});
  CHECK(labels_of(*loader.next()) == Labels{0, 1});
  CHECK(error_of(loader).code() == ErrorCode::kInvalidArgument);
  CHECK(labels_of(*loader.next()) == Labels{4, 5});
  CHECK(loader.next() == std::nullopt);
}

TEST_CASE("a memory cap is kept, and said when held batches use it up", "[loader]") {
  const Pictures pictures;
  // A batch is two blocks of a page each: pixels and labels.
  constexpr std::size_t kBatchBytes = 2 * 4096;
  Loader loader(
      pictures.source(), flip_and_keep(),
      {.batch_size = 1, .prefetch_batches = 8, .memory_cap_bytes = 3 * kBatchBytes + 4096});
  std::vector<Batch> held;
  for (int i = 0; i < 3; ++i) held.push_back(*loader.next());
  const Error full = error_of(loader);
  CHECK(full.code() == ErrorCode::kMemoryCap);
  CHECK_THAT(full.what(), contains("release batches"));
  CHECK(error_of(loader).code() == ErrorCode::kMemoryCap);
  held.erase(held.begin());
  CHECK(labels_of(*loader.next()) == Labels{3});
  CHECK(joined(loop(loader)) == Labels{0, 1, 2, 3, 4, 5, 6, 7, 8, 9});
}

TEST_CASE("idle memory of another size does not use up the cap", "[loader]") {
  const Pictures pictures;
  const auto large = Transform::from_json(R"({"headrace": 1, "ops": [
      {"op": "resize", "size": [64, 64]}, {"op": "pil_to_tensor"}]})");
  // Three pages a sample: the last batch, of one sample, cannot use the blocks of nine.
  Loader loader(pictures.source(), large,
                {.batch_size = 9, .memory_cap_bytes = 9 * 3 * 4096 + 4096});
  int batches = 0;
  for (const Batch& batch : loader) batches += batch.rows > 0 ? 1 : 0;
  for (const Batch& batch : loader) batches += batch.rows > 0 ? 1 : 0;
  CHECK(batches == 4);
}

TEST_CASE("batches outlive their loader", "[loader]") {
  const Pictures pictures;
  auto loader = std::make_unique<Loader>(pictures.source(), flip_and_keep());
  const Batch batch = *loader->next();
  loader.reset();
  CHECK(labels_of(batch) == Labels{0});
}

TEST_CASE("a batch's values are asked for by name and size", "[loader]") {
  const Pictures pictures;
  Loader loader(pictures.source(), flip_and_keep());
  const Batch batch = *loader.next();
  CHECK(batch.field("image").spec.shape == std::vector<std::int64_t>{3, 2, 2});
  CHECK_THROWS_AS(batch.field("boxes"), Error);
  CHECK_THROWS_AS(batch.values<float>("image"), Error);
}

TEST_CASE("a loader refuses options that mean nothing", "[loader]") {
  const Pictures pictures;
  const auto source = pictures.source();
  const auto order = std::make_shared<SequentialOrder>(kSamples);
  CHECK_THROWS_AS(Loader(source, flip_and_keep(), {.batch_size = 0}), Error);
  CHECK_THROWS_AS(Loader(source, flip_and_keep(), {.threads = -1}), Error);
  CHECK_THROWS_AS(Loader(source, flip_and_keep(), {.io_threads = 0}), Error);
  CHECK_THROWS_AS(Loader(nullptr, flip_and_keep()), Error);
  CHECK_THROWS_AS(Loader(source, nullptr, flip_and_keep()), Error);
  CHECK_THROWS_AS(Loader(source, order, flip_and_keep(), {.shuffle = true}), Error);
}

}  // namespace
}  // namespace headrace
