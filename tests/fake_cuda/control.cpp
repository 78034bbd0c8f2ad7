// The tests' control over the double, and what it tells them.
#include <utility>

#include "machine.h"

namespace fake_cuda {
namespace {

std::string plural(std::size_t count, const char* what) {
  return count == 0 ? "" : std::to_string(count) + " " + what + (count == 1 ? ", " : "s, ");
}

}  // namespace

void reset(const Setup& setup) { replace_machine(setup); }

std::vector<std::string> complaints() {
  const Locked locked;
  return {locked.machine.complaints.begin(), locked.machine.complaints.end()};
}

std::string leaks() {
  const Locked locked;
  const Machine& machine = locked.machine;
  std::size_t pinned = 0;
  std::size_t device = 0;
  for (const auto& [address, region] : machine.regions) {
    if (!region.alive) continue;
    pinned += region.kind == MemoryKind::kPinned ? 1 : 0;
    device += region.kind == MemoryKind::kDevice ? 1 : 0;
  }
  int contexts = 0;
  for (const auto& [ordinal, count] : machine.contexts) contexts += count;
  std::string text = plural(machine.streams.size(), "stream") +
                     plural(machine.events.size(), "event") + plural(pinned, "pinned block") +
                     plural(device, "device block") + plural(machine.modules.size(), "module") +
                     plural(static_cast<std::size_t>(contexts), "context");
  return text.substr(0, text.empty() ? 0 : text.size() - 2);
}

std::int64_t calls() { return Locked().machine.calls; }

std::vector<Site> sites() {
  const Locked locked;
  std::vector<Site> found;
  for (const auto& [address, site] : locked.machine.sites) {
    const bool orders =
        site.call != "cuEventRecord" || locked.machine.ordering_records.contains(address);
    if (orders) found.push_back(site);
  }
  return found;
}

std::int64_t host_waits() { return Locked().machine.host_waits; }

bool lost() { return Locked().machine.lost; }

MemoryUse memory_use() { return Locked().machine.memory; }

TestsOwn::TestsOwn() { ++tests_own; }
TestsOwn::~TestsOwn() { --tests_own; }

void host_access(const void* memory, std::size_t bytes, bool writes, const char* what) {
  const Locked locked;
  locked.machine.host.advance(0);
  if (locked.machine.find(address_of(memory)) == nullptr) return;  // ordinary memory
  locked.machine.access(0, locked.machine.host, address_of(memory), bytes, writes, what);
}

void adopt_device_memory(DevicePointer memory, std::size_t bytes) {
  const Locked locked;
  locked.machine.regions[memory] = Region{
      .begin = memory, .bytes = bytes, .kind = MemoryKind::kAdopted, .storage = {}, .accesses = {}};
}

void forget_device_memory(DevicePointer memory) {
  const Locked locked;
  locked.machine.host.advance(0);
  const Region* region = locked.machine.find(memory);
  if (region == nullptr) return;
  locked.machine.access(0, locked.machine.host, memory, region->bytes, true, "its end");
  locked.machine.regions.erase(memory);
}

void launch(Stream stream, const char* name, std::vector<Range> ranges,
            std::function<void()> body) {
  const Locked locked;
  Machine& machine = locked.machine;
  StreamState* state = find_stream(machine, stream);
  if (state == nullptr) return;
  machine.queue(*state, {.kind = Operation::Kind::kKernel, .body = std::move(body), .record = {}});
  for (const Range& range : ranges) {
    machine.access(state->actor, state->clock, range.memory, range.bytes, range.writes, name);
  }
  machine.run_by_schedule();
}

void run(std::int64_t operations) {
  const Locked locked;
  while (operations-- > 0 && locked.machine.run_one(/*copies=*/true)) {
  }
}

void begin_capture(Stream stream) {
  const Locked locked;
  find_stream(locked.machine, stream)->capturing = true;
  ++locked.machine.capturing_streams;
}

void end_capture(Stream stream) {
  const Locked locked;
  find_stream(locked.machine, stream)->capturing = false;
  --locked.machine.capturing_streams;
}

}  // namespace fake_cuda
