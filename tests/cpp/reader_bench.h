// Readers of scripted files, and where their results arrive.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "pread_reader.h"
#include "scripted_files.h"
#include "scripted_ring.h"
#include "support.h"
#include "uring_reader.h"

namespace headrace::test {

inline bool has_content(const ReadBuffer& buffer, std::size_t offset, std::size_t size) {
  const auto bytes = buffer.bytes();
  if (bytes.size() != size) return false;
  for (std::size_t i = 0; i < size; ++i) {
    if (bytes[i] != byte_at(offset + i)) return false;
  }
  return true;
}

/// Where results arrive, for the test's thread to take.
class Results {
 public:
  std::function<void(ReadResult)> callback() {
    return [this](ReadResult result) {
      const std::lock_guard lock(mutex_);
      const auto ticket = result.ticket;
      order_.push_back(ticket);
      results_.insert_or_assign(ticket, std::move(result));
      arrived_.notify_all();
    };
  }

  /// Waits for the result and takes it out.
  ReadResult take(std::uint64_t ticket) {
    std::unique_lock lock(mutex_);
    if (!arrived_.wait_for(lock, kNever, [&] { return results_.contains(ticket); })) {
      throw std::runtime_error("no result for " + std::to_string(ticket));
    }
    return std::move(results_.extract(ticket).mapped());
  }

  /// Tickets in the order of their results.
  std::vector<std::uint64_t> order() {
    const std::lock_guard lock(mutex_);
    return order_;
  }

 private:
  std::mutex mutex_;
  std::condition_variable arrived_;
  std::map<std::uint64_t, ReadResult> results_;
  std::vector<std::uint64_t> order_;
};

enum class Kind { kPread, kUring };

/// Runs the test for each kind.
inline Kind each_kind() { return GENERATE(Kind::kPread, Kind::kUring); }

/// A reader of scripted files, and its results.
struct Bench {
  Bench(Kind reader_kind, int reads_in_flight, std::size_t budget_bytes = std::size_t{1} << 20)
      : kind(reader_kind), in_flight(reads_in_flight), budget(budget_bytes) {}

  Reader& reader() {
    if (reader_ != nullptr) return *reader_;
    if (kind == Kind::kPread) {
      reader_ = make_pread_reader({.threads = in_flight, .read_budget_bytes = budget},
                                  results.callback(), files.file_system());
    } else {
      reader_ =
          make_uring_reader({.depth = in_flight, .read_budget_bytes = budget}, results.callback(),
                            test::scripted_rings(files, ring), files.file_system());
    }
    return *reader_;
  }
  void submit(std::uint64_t ticket, const std::string& path, bool urgent = false) {
    reader().submit(ticket, {.path = path}, urgent);
  }
  ReadResult take(std::uint64_t ticket) { return results.take(ticket); }
  /// Reads one file, alone.
  ReadResult read(const std::string& path, std::uint64_t offset = 0,
                  std::uint64_t size = Sample::kWholeFile) {
    reader().submit(1000, {.path = path, .offset = offset, .size = size}, false);
    return take(1000);
  }
  /// Has the file "urgent" read until a thread served it out of a wait for the budget.
  /// @returns false if none ever waits.
  bool some_thread_waits_for_budget() {
    const auto give_up = std::chrono::steady_clock::now() + kNever;
    while (reader().stats().wait_budget_ns == 0) {
      if (std::chrono::steady_clock::now() > give_up) return false;
      submit(1001, "urgent", true);
      if (take(1001).error != 0) return false;
    }
    return true;
  }
  void destroy_reader() { reader_.reset(); }

  Kind kind;
  int in_flight;
  std::size_t budget;
  ScriptedFiles files;
  test::RingScript ring;
  Results results;

 private:
  std::unique_ptr<Reader> reader_;
};

}  // namespace headrace::test
