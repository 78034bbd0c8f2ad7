#include "machine.h"

#include <algorithm>
#include <cstring>

namespace fake_cuda {
namespace {

constexpr int kFresh = 0xA5;  // what new memory holds
constexpr int kFreed = 0xDD;

std::recursive_mutex mutex;
// Never destroyed: deleters may come at the very end of the process.
std::unique_ptr<Machine>& instance() {
  static auto* machine = new std::unique_ptr<Machine>(std::make_unique<Machine>(Setup{}));
  return *machine;
}

}  // namespace

Locked::Locked() : machine(*instance()), lock_(mutex) {}

void replace_machine(const Setup& setup) {
  const std::lock_guard lock(mutex);
  const auto contexts = instance()->contexts;  // the process keeps them
  *instance() = Machine(setup);
  instance()->contexts = contexts;
}

void Clock::advance(std::size_t actor) {
  if (actor >= times_.size()) times_.resize(actor + 1);
  ++times_[actor];
}

void Clock::join(const Clock& other) {
  if (other.times_.size() > times_.size()) times_.resize(other.times_.size());
  for (std::size_t i = 0; i < other.times_.size(); ++i) {
    times_[i] = std::max(times_[i], other.times_[i]);
  }
}

Machine::Machine(const Setup& new_setup) : setup(new_setup), random(new_setup.seed) {}

// --- memory and races -----------------------------------------------------------------------

Region* Machine::find(std::uintptr_t address) {
  auto after = regions.upper_bound(address);
  if (after == regions.begin()) return nullptr;
  Region& region = std::prev(after)->second;
  return address < region.begin + region.bytes ? &region : nullptr;
}

void* Machine::allocate(MemoryKind kind, std::size_t bytes, int device) {
  std::size_t& used = kind == MemoryKind::kPinned ? memory.pinned : memory.device;
  const std::size_t limit = kind == MemoryKind::kPinned ? setup.pinned_bytes : setup.device_bytes;
  if (used + bytes > limit) return nullptr;
  used += bytes;
  memory.pinned_peak = std::max(memory.pinned_peak, memory.pinned);
  memory.device_peak = std::max(memory.device_peak, memory.device);
  constexpr std::size_t kAlignment = 256;
  Region region{.bytes = bytes, .kind = kind, .device = device, .storage = {}, .accesses = {}};
  region.storage = std::make_unique<std::byte[]>(bytes + kAlignment);
  const auto start = reinterpret_cast<std::uintptr_t>(region.storage.get());
  region.begin = (start + kAlignment - 1) / kAlignment * kAlignment;
  auto* address = reinterpret_cast<void*>(region.begin);
  std::memset(address, kFresh, bytes);
  regions[region.begin] = std::move(region);
  return address;
}

bool Machine::release(MemoryKind kind, std::uintptr_t address) {
  const auto found = regions.find(address);
  if (found == regions.end() || found->second.kind != kind || !found->second.alive) {
    complain("something is freed that is not allocated");
    return false;
  }
  Region& region = found->second;
  host.advance(0);
  access(0, host, region.begin, region.bytes, true, "its release");
  region.alive = false;
  std::memset(reinterpret_cast<void*>(region.begin), kFreed, region.bytes);
  (kind == MemoryKind::kPinned ? memory.pinned : memory.device) -= region.bytes;
  return true;
}

void Machine::access(std::size_t actor, const Clock& clock, std::uintptr_t address,
                     std::size_t bytes, bool writes, const std::string& what) {
  if (bytes == 0 || lost) return;  // on a lost device nothing runs any more
  Region* region = find(address);
  if (region == nullptr || address + bytes > region->begin + region->bytes) {
    complain(what + " touches memory that nobody allocated");
    return;
  }
  if (!region->alive) {
    complain(what + " touches memory that was freed");
    return;
  }
  const std::uintptr_t end = address + bytes;
  std::erase_if(region->accesses, [&](const Access& before) {
    if (before.end <= address || end <= before.begin) return false;
    const bool ordered = clock.of(before.actor) >= before.time;
    if (!ordered && (before.writes || writes)) complain("race: " + what + ", and " + before.what);
    const bool covered = address <= before.begin && before.end <= end;
    return ordered && covered && (writes || (!before.writes && before.actor == actor));
  });
  region->accesses.push_back({address, end, actor, clock.of(actor), writes, what});
}

// --- streams --------------------------------------------------------------------------------

StreamState* Machine::stream(Stream handle, int device) {
  const auto value = reinterpret_cast<std::uintptr_t>(handle);
  if (value > headrace::cuda::kPerThreadStream) {
    const auto found = streams.find(handle);
    return found == streams.end() ? nullptr : found->second.get();
  }
  const bool per_thread = value == headrace::cuda::kPerThreadStream;
  auto& state = default_streams[2 * device + (per_thread ? 1 : 0)];
  if (state == nullptr) {
    state = std::make_unique<StreamState>();
    state->actor = next_actor++;
    state->device = device;
  }
  return state.get();
}

void Machine::queue(StreamState& stream, Operation operation) {
  host.advance(0);
  stream.clock.join(host);
  stream.clock.advance(stream.actor);
  stream.queue.push_back(std::move(operation));
}

void Machine::record(EventState& event, StreamState& stream) {
  event.latest = std::make_shared<Record>();
  event.unready_queries = 0;
  queue(stream, {.kind = Operation::Kind::kRecord, .body = {}, .record = event.latest});
  event.latest->clock = stream.clock;
}

void Machine::wait(StreamState& stream, const EventState& event) {
  if (event.latest == nullptr) return;  // as in CUDA: nothing to wait for
  queue(stream, {.kind = Operation::Kind::kWait, .body = {}, .record = event.latest});
  stream.clock.join(event.latest->clock);
}

bool Machine::run_one(bool copies) {
  if (lost) return false;
  std::vector<StreamState*> ready;
  const auto consider = [&](StreamState& stream) {
    if (stream.queue.empty()) return;
    const Operation& head = stream.queue.front();
    if (head.kind == Operation::Kind::kCopy && !copies) return;
    const bool held = head.kind == Operation::Kind::kWait && !head.record->reached;
    if (!held) ready.push_back(&stream);
  };
  for (const auto& entry : streams) consider(*entry.second);
  for (const auto& entry : default_streams) consider(*entry.second);
  if (ready.empty()) return false;
  StreamState& chosen = *ready[random() % ready.size()];
  const Operation operation = std::move(chosen.queue.front());
  chosen.queue.pop_front();
  if (operation.body) operation.body();
  ++executed;
  if (operation.kind == Operation::Kind::kRecord) {
    operation.record->reached = true;
    operation.record->time_ms = static_cast<double>(executed);
  }
  if (executed == setup.lost_after) lost = true;
  return true;
}

void Machine::run_until(const std::function<bool()>& done) {
  while (!done() && !lost) {
    if (!run_one(/*copies=*/true)) {
      complain("deadlock: the host waits for what can never run");
      return;
    }
  }
}

void Machine::run_by_schedule() {
  switch (setup.schedule) {
    case Schedule::kEager:
      while (run_one(/*copies=*/true)) {
      }
      break;
    case Schedule::kStarved:
      while (run_one(/*copies=*/false)) {
      }
      break;
    case Schedule::kRandom:
      for (auto left = random() % 4; left > 0 && run_one(/*copies=*/true); --left) {
      }
      break;
    case Schedule::kLazy:
      break;
  }
}

}  // namespace fake_cuda
