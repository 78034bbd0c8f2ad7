#include "engine_parts.h"

#include <string>
#include <utility>

#include "auto_reader.h"
#include "headrace/error.h"
#include "pread_reader.h"
#include "uring_reader.h"

namespace headrace {
namespace {

/// What was measured holds for the process: an epoch is no reason to measure again.
std::shared_ptr<ReaderMemory> process_memory() {
  static const auto kMemory = std::make_shared<ReaderMemory>();
  return kMemory;
}

std::unique_ptr<Reader> choose_reader(const EngineOptions& options, OnDone on_done) {
  const int threads = options.io_threads;
  const auto make_pread = [threads](std::size_t budget, std::string note, OnDone done) {
    return make_pread_reader(
        {.threads = threads, .read_budget_bytes = budget, .note = std::move(note)},
        std::move(done));
  };
  const auto make_uring = [](std::size_t budget, std::string note, OnDone done) {
    return make_uring_reader({.read_budget_bytes = budget, .note = std::move(note)},
                             std::move(done));
  };
  switch (options.reader) {
    case EngineOptions::Reader::kAuto:
      return make_auto_reader({.make_pread = make_pread,
                               .make_uring = make_uring,
                               .read_budget_bytes = options.read_budget_bytes,
                               .memory = process_memory()},
                              std::move(on_done));
    case EngineOptions::Reader::kUring:
      try {
        return make_uring(options.read_budget_bytes, {}, on_done);
      } catch (const Error& error) {
        return make_pread(options.read_budget_bytes, error.what(), std::move(on_done));
      }
    case EngineOptions::Reader::kPread:
      break;
  }
  return make_pread(options.read_budget_bytes, {}, std::move(on_done));
}

}  // namespace

Engine::Parts Engine::Parts::real(const EngineOptions& options) {
  return {.make_reader =
              [options](OnDone on_done) { return choose_reader(options, std::move(on_done)); },
          .make_executor = [options] { return headrace::make_executor(options.threads); }};
}

}  // namespace headrace
