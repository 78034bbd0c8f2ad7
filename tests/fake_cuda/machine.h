// The inside of the double: streams, events, memory, vector clocks. One lock guards all of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <random>
#include <set>
#include <string>
#include <vector>

#include "fake_cuda.h"

namespace fake_cuda {

/// How far each actor was, as seen from somewhere; actor 0 is the host, the others are streams.
class Clock {
 public:
  std::uint64_t of(std::size_t actor) const { return actor < times_.size() ? times_[actor] : 0; }
  void advance(std::size_t actor);
  void join(const Clock& other);

 private:
  std::vector<std::uint64_t> times_;
};

/// One record of an event. Who waits waits for the latest at that time, whatever is recorded later.
struct Record {
  bool reached = false;
  Clock clock;
  double time_ms = 0;
};

struct EventState {
  unsigned flags = 0;
  int device = 0;
  std::shared_ptr<Record> latest;
  int unready_queries = 0;
  std::uintptr_t record_site = 0;

  bool reached() const { return latest == nullptr || latest->reached; }
};

struct Operation {
  enum class Kind { kCopy, kKernel, kRecord, kWait };
  Kind kind;
  std::function<void()> body;      // kCopy, kKernel
  std::shared_ptr<Record> record;  // kRecord, kWait
};

struct StreamState {
  std::size_t actor = 0;
  int device = 0;
  bool capturing = false;
  Clock clock;
  std::deque<Operation> queue;
};

enum class MemoryKind { kDevice, kPinned, kAdopted };

struct Access {
  std::uintptr_t begin, end;
  std::size_t actor;
  std::uint64_t time;
  bool writes;
  std::string what;
};

struct Region {
  std::uintptr_t begin = 0;
  std::size_t bytes = 0;
  MemoryKind kind = MemoryKind::kDevice;
  int device = 0;
  bool alive = true;
  std::unique_ptr<std::byte[]> storage;  // none for adopted memory; kept when freed
  std::vector<Access> accesses;          // those that a later one may still race with
};

struct Machine {
  explicit Machine(const Setup& setup);

  // --- memory and races
  Region* find(std::uintptr_t address);
  void* allocate(MemoryKind kind, std::size_t bytes, int device);
  bool release(MemoryKind kind, std::uintptr_t address);
  void access(std::size_t actor, const Clock& clock, std::uintptr_t address, std::size_t bytes,
              bool writes, const std::string& what);
  void complain(std::string text) { complaints.insert(std::move(text)); }

  // --- streams
  StreamState* stream(Stream handle, int device);
  /// What is queued now comes after all that the host and the stream did before.
  void queue(StreamState& stream, Operation operation);
  void record(EventState& event, StreamState& stream);
  void wait(StreamState& stream, const EventState& event);

  /// Runs one operation that can run, of a random stream; false if there is none.
  bool run_one(bool copies);
  void run_until(const std::function<bool()>& done);
  /// What the schedule runs by itself after each call.
  void run_by_schedule();
  void host_saw(const Clock& clock) { host.join(clock); }

  Setup setup;
  std::mt19937_64 random;
  std::set<std::string> complaints;
  std::map<std::uintptr_t, Region> regions;  // by begin
  MemoryUse memory;
  std::map<Stream, std::unique_ptr<StreamState>> streams;
  std::map<int, std::unique_ptr<StreamState>> default_streams;  // by 2 * device + per-thread
  std::map<Event, std::shared_ptr<EventState>> events;
  std::set<std::uintptr_t> modules;
  std::map<int, int> contexts;  // device -> times retained
  std::map<std::uintptr_t, Site> sites;
  std::set<std::uintptr_t> ordering_records;  // sites of records that something waited for
  Clock host;
  std::size_t next_actor = 1;
  std::uintptr_t next_handle = 0x1000;
  std::int64_t calls = 0;
  std::int64_t executed = 0;
  std::int64_t host_waits = 0;
  bool lost = false;
  int capturing_streams = 0;
};

/// The machine, locked.
struct Locked {
  Locked();
  Machine& machine;

 private:
  std::unique_lock<std::recursive_mutex> lock_;
};

void replace_machine(const Setup& setup);

/// Above 0 while calls are the tests' own, which are neither counted nor judged.
extern thread_local int tests_own;

/// The stream of the current device; null, and a complaint, if there is none.
StreamState* find_stream(Machine& machine, Stream handle);

inline std::uintptr_t address_of(const void* pointer) {
  return reinterpret_cast<std::uintptr_t>(pointer);
}

}  // namespace fake_cuda
