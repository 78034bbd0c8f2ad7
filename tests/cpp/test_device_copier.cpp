#include <iostream>
#include <map>

#include "device_scenario.h"
#include "support.h"

namespace headrace {
namespace {

using fake_cuda::Schedule;
using test::Outcome;
using test::play;
using test::Rule;
using test::Scenario;

constexpr Schedule kSchedules[] = {Schedule::kEager, Schedule::kLazy, Schedule::kRandom,
                                   Schedule::kStarved};

Scenario scenario(Rule rule, std::uint64_t seed) {
  return {.rule = rule, .setup = {.schedule = kSchedules[seed % 4], .seed = seed}};
}

/// A batch of one field, of pinned memory, with these bytes.
Batch one_field(BufferPool& pool, std::size_t bytes, std::byte value) {
  Field field{{"image", Dtype::kUint8, {static_cast<std::int64_t>(bytes)}}, pool.acquire(bytes)};
  std::memset(field.memory.get(), static_cast<int>(value), bytes);
  Batch batch{.id = 0,
              .rows = 1,
              .fields = {},
              .failed_row = {},
              .skipped_rows = {},
              .random_after = RandomStream(0)};
  batch.fields.push_back(std::move(field));
  return batch;
}

TEST_CASE("batches arrive with the right bits, without races or leaks, on any schedule",
          "[device_copier]") {
  for (const Rule rule : {Rule::kA, Rule::kB}) {
    int batches = 0;
    for (std::uint64_t seed = 0; seed < 2000; ++seed) {
      const Outcome outcome = play(scenario(rule, seed));
      INFO("rule " << (rule == Rule::kA ? 'A' : 'B') << ", seed " << seed << '\n'
                   << outcome.text());
      REQUIRE(outcome.clean());
      REQUIRE(outcome.error.empty());
      batches += outcome.right_batches;
    }
    CHECK(batches > 10'000);
  }
}

// --- mutation: each wait is left out in turn ------------------------------------------------

/// The scenarios that a mutant has to survive, among them some that end in an error.
bool survives(std::uintptr_t left_out) {
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    for (const Rule rule : {Rule::kA, Rule::kB}) {
      Scenario each = scenario(rule, seed);
      each.setup.left_out = left_out;
      if (seed % 3 == 2) each.setup.failing_call = 20 + static_cast<std::int64_t>(seed * 7 % 150);
      if (!play(each).clean()) return false;
    }
  }
  return true;
}

TEST_CASE("without any one of its waits the hand-over fails its tests", "[device_copier]") {
  std::map<std::uintptr_t, fake_cuda::Site> sites;
  const auto collect = [&](const Scenario& each) {
    const Outcome outcome = play(each);
    INFO("seed " << each.setup.seed << '\n' << outcome.text());
    REQUIRE(outcome.clean());
    for (const auto& site : fake_cuda::sites()) sites[site.address] = site;
  };
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    for (const Rule rule : {Rule::kA, Rule::kB}) {
      Scenario each = scenario(rule, seed);
      if (seed % 3 == 2) each.setup.failing_call = 20 + static_cast<std::int64_t>(seed * 7 % 150);
      collect(each);
    }
  }
  std::size_t killed = 0;
  for (const auto& [address, site] : sites) {
    INFO(site.call << " at " << std::hex << address << ", called " << std::dec << site.times);
    const bool survivor = survives(address);
    CHECK_FALSE(survivor);
    killed += survivor ? 0 : 1;
    std::cout << "  " << (survivor ? "SURVIVES" : "killed") << ": without " << site.call
              << " of place " << std::hex << address << std::dec << '\n';
  }
  std::cout << "mutants killed: " << killed << " of " << sites.size() << '\n';
  CHECK(sites.size() >= 10);
}

// --- failures -------------------------------------------------------------------------------

TEST_CASE("whichever call of the driver fails, it ends in an error and nothing leaks",
          "[device_copier]") {
  for (const Rule rule : {Rule::kA, Rule::kB}) {
    const std::uint64_t seed = rule == Rule::kA ? 40 : 44;
    play(scenario(rule, seed));
    const std::int64_t calls = fake_cuda::calls();
    REQUIRE(calls > 100);
    int errors = 0;
    for (std::int64_t call = 0; call < calls; ++call) {
      Scenario failing = scenario(rule, seed);
      failing.setup.failing_call = call;
      failing.setup.error = call % 2 == 0 ? cuda::kOutOfMemory : cuda::kUnknownError;
      const Outcome outcome = play(failing);
      INFO("call " << call << '\n' << outcome.text());
      REQUIRE(outcome.clean());
      errors += outcome.error.empty() ? 0 : 1;
    }
    CHECK(errors > calls / 2);
  }
}

TEST_CASE("a device that is lost ends in an error, and the end comes", "[device_copier]") {
  for (std::int64_t operations = 1; operations < 60; ++operations) {
    Scenario losing = scenario(operations % 2 == 0 ? Rule::kA : Rule::kB,
                               static_cast<std::uint64_t>(operations) + 100);
    losing.steps = 40;
    losing.setup.lost_after = operations;
    losing.setup.error = cuda::kLaunchFailed;
    const Outcome outcome = play(losing);
    INFO("lost after " << operations << '\n' << outcome.text());
    REQUIRE(outcome.clean());
    if (fake_cuda::lost() && !outcome.error.empty()) {
      REQUIRE_THAT(outcome.error, test::contains("the process must be started again"));
    }
  }
}

TEST_CASE("what cannot be pinned is pageable, and still arrives", "[device_copier]") {
  Scenario poor = scenario(Rule::kA, 3);
  poor.setup.pinned_bytes = 4 * 4096;  // a few of the blocks
  const Outcome some = play(poor);
  INFO(some.text());
  CHECK(some.clean());
  CHECK(some.error.empty());
  poor.setup.pinned_bytes = 0;
  const Outcome none = play(poor);
  INFO(none.text());
  CHECK(none.clean());
  CHECK(none.error.empty());
  CHECK(none.right_batches == some.right_batches);

  fake_cuda::reset({.pinned_bytes = 5000});
  PinnedAllocator allocator(0);
  void* pinned = allocator.allocate(4096);
  void* pageable = allocator.allocate(4096);
  CHECK(allocator.stats().pinned_bytes == 4096);
  CHECK(allocator.stats().pageable_bytes == 4096);
  allocator.deallocate(pinned, 4096);
  allocator.deallocate(pageable, 4096);
  CHECK(allocator.stats().pinned_bytes + allocator.stats().pageable_bytes == 0);
  CHECK(fake_cuda::memory_use().pinned == 0);
}

TEST_CASE("a device short of memory is an error with a remedy", "[device_copier]") {
  Scenario poor = scenario(Rule::kB, 0);
  poor.setup.device_bytes = 2000;
  const Outcome outcome = play(poor);
  INFO(outcome.text());
  CHECK(outcome.clean());
  CHECK_THAT(outcome.error, test::contains("lower batch_size or prefetch_to_device"));
}

TEST_CASE("without the kernel fields arrive as they are, and stats say why", "[device_copier]") {
  fake_cuda::reset({.modules_load = false});
  {
    const PixelFinish finish{{"image", Dtype::kFloat32, {3, 2, 2}}, std::vector<std::byte>(3072)};
    static constexpr std::byte kAnyImage[1]{};
    const DeviceCopier refused({.finish = finish}, kAnyImage);
    CHECK_THAT(refused.stats().finish, test::contains("refuses the kernels"));
    const DeviceCopier without({.finish = finish}, {});
    CHECK_THAT(without.stats().finish, test::contains("without nvcc"));
    const std::vector<Field> fields = {{{"image", Dtype::kUint8, {3, 2, 2}}, nullptr},
                                       {{"label", Dtype::kInt64, {}}, nullptr},
                                       {{"mirrored", Dtype::kUint8, {}}, nullptr}};
    CHECK(without.outputs(fields).size() == 3);
    CHECK(without.outputs(fields)[0].dtype == Dtype::kUint8);
  }
  CHECK(fake_cuda::leaks().empty());
}

// --- bounds, waits, captures, devices -------------------------------------------------------

struct Bench {
  explicit Bench(const fake_cuda::Setup& setup, int device = 0) {
    fake_cuda::reset(setup);
    pool.emplace(std::make_shared<PinnedAllocator>(device), 2);
    copier.emplace(DeviceCopierOptions{.device = device, .max_in_flight = 2, .finish = {}});
  }
  std::optional<BufferPool> pool;
  std::optional<DeviceCopier> copier;
};

TEST_CASE("a host that runs ahead is held up, so that pinned memory is bounded",
          "[device_copier]") {
  {
    Bench bench({.schedule = Schedule::kLazy});
    for (int i = 0; i < 50; ++i) {
      bench.copier->submit(one_field(*bench.pool, 4096, std::byte{1}));
      bench.copier->next();
    }
    CHECK(fake_cuda::memory_use().pinned_peak <= 6 * 4096);
    CHECK(bench.copier->stats().host_waits > 0);
  }
  CHECK(fake_cuda::leaks().empty());
  CHECK(fake_cuda::complaints().empty());
}

TEST_CASE("the host waits for nothing while the device keeps up", "[device_copier]") {
  Bench bench({.schedule = Schedule::kEager});
  for (int i = 0; i < 50; ++i) {
    bench.copier->submit(one_field(*bench.pool, 4096, std::byte{1}));
    bench.copier->next();
  }
  CHECK(fake_cuda::host_waits() == 0);
  CHECK(fake_cuda::memory_use().pinned_peak <= 3 * 4096);
  CHECK(bench.copier->stats().host_waits == 0);
}

TEST_CASE("a capture elsewhere goes on; on the captured stream batches are refused",
          "[device_copier]") {
  fake_cuda::reset({.schedule = Schedule::kRandom});
  {
    BufferPool pool(std::make_shared<PinnedAllocator>(0), 2);
    DeviceCopier copier({.max_in_flight = 2});
    std::vector<std::byte> target(64);
    const auto address = reinterpret_cast<DeviceAddress>(target.data());
    fake_cuda::adopt_device_memory(address, target.size());
    const PrimaryContext context(0);
    const PrimaryContext::Scope scope(context);
    const cuda::Functions& cu = context.driver().functions();
    cuda::Stream captured = nullptr;
    cu.cuStreamCreate(&captured, cuda::kStreamNonBlocking);
    fake_cuda::begin_capture(captured);
    const auto handle = reinterpret_cast<StreamHandle>(captured);
    const DeviceAddress targets[] = {address};
    CHECK_THROWS_AS(copier.submit(one_field(pool, 64, std::byte{7}), targets, handle), Error);
    copier.submit(one_field(pool, 64, std::byte{7}), targets, 0);
    CHECK_THROWS_AS(copier.next(handle), Error);
    copier.next(0);
    fake_cuda::end_capture(captured);
    fake_cuda::begin_capture(nullptr);
    CHECK_THROWS_AS(copier.submit(one_field(pool, 64, std::byte{7}), targets, 0), Error);
    fake_cuda::end_capture(nullptr);
    cu.cuStreamSynchronize(nullptr);
    CHECK(target == std::vector<std::byte>(64, std::byte{7}));
    CHECK(fake_cuda::complaints().empty());
    copier.stop();
    cu.cuStreamDestroy(captured);
    fake_cuda::forget_device_memory(address);
  }
  CHECK(fake_cuda::complaints().empty());
  CHECK(fake_cuda::leaks().empty());
}

TEST_CASE("several devices in one process work side by side", "[device_copier]") {
  Bench first({.schedule = Schedule::kRandom, .devices = 2}, 1);
  DeviceCopier second({.device = 0, .max_in_flight = 2});
  for (int i = 0; i < 10; ++i) {
    first.copier->submit(one_field(*first.pool, 64, std::byte{1}));
    second.submit(one_field(*first.pool, 64, std::byte{2}));  // pinned for all devices
    for (auto* copier : {&*first.copier, &second}) {
      const DeviceBatch batch = copier->next();
      auto* tensor = to_dlpack(batch.fields[0], batch.rows, 1);
      CHECK(tensor->tensor.device.type == dlpack::kCuda);
      CHECK(tensor->tensor.device.id == (copier == &second ? 0 : 1));
      tensor->deleter(tensor);
    }
  }
  CHECK(fake_cuda::complaints().empty());
}

TEST_CASE("tensors outlive the copier that made them", "[device_copier]") {
  dlpack::ManagedTensor* tensor = nullptr;
  {
    Bench bench({.schedule = Schedule::kLazy});
    bench.copier->submit(one_field(*bench.pool, 64, std::byte{9}));
    const DeviceBatch batch = bench.copier->next();
    tensor = to_dlpack(batch.fields[0], batch.rows, 2);
  }
  CHECK(std::memcmp(tensor->tensor.data, std::vector<std::byte>(64, std::byte{9}).data(), 64) == 0);
  std::thread([&] { tensor->deleter(tensor); }).join();
  CHECK(fake_cuda::complaints().empty());
  CHECK(fake_cuda::leaks().empty());
}

TEST_CASE("calls out of turn are refused, and change nothing", "[device_copier]") {
  Bench bench({});
  CHECK_THROWS_AS(bench.copier->next(), Error);
  bench.copier->submit(one_field(*bench.pool, 64, std::byte{1}));
  CHECK_THROWS_AS(bench.copier->next(0), Error);  // of the other rule
  bench.copier->submit(one_field(*bench.pool, 64, std::byte{1}));
  CHECK_THROWS_AS(bench.copier->submit(one_field(*bench.pool, 64, std::byte{1})), Error);
  CHECK_THROWS_AS(bench.copier->submit(one_field(*bench.pool, 64, std::byte{1}), {}, 0), Error);
  const DeviceBatch batch = bench.copier->next();
  CHECK_THROWS_AS(to_dlpack(batch.fields[0], 1, 0), Error);
  CHECK_THROWS_AS(to_dlpack(batch.fields[0], 1, -2), Error);
  bench.copier->stop();
  bench.copier->stop();
  CHECK_THROWS_AS(bench.copier->next(), Error);
}

TEST_CASE("stats measure copies and waits by the device's clock", "[device_copier]") {
  const Outcome outcome = play({.rule = Rule::kA, .setup = {.seed = 12}, .steps = 30});
  CHECK(outcome.stats.finish == "kernel");
  CHECK(outcome.stats.batches > 0);
  CHECK(outcome.stats.bytes > 0);
  CHECK(outcome.stats.copy_ns > 0);
}

}  // namespace
}  // namespace headrace
