// The reader for everywhere: threads that call pread().
#pragma once

#include <cstddef>
#include <functional>
#include <memory>
#include <string>

#include "file_system.h"
#include "reader.h"

namespace headrace {

struct PreadOptions {
  /// At first, and at least 1.
  int threads = 4;
  /// As many as it may take to keep decoding busy; started when they are needed.
  int most_threads = 4 * threads;
  /// Compressed bytes read or being read and not yet given back, at most.
  std::size_t read_budget_bytes = std::size_t{64} << 20;
  /// For its stats.
  std::string note = {};
};

/// @param on_done  called on the reader's threads, several at a time. Must not throw, and must not
///                 wait for another read.
/// @throws Error{kInvalidArgument}: no threads. Error{kReadFailed}: they cannot be started.
std::unique_ptr<Reader> make_pread_reader(PreadOptions options,
                                          std::function<void(ReadResult)> on_done,
                                          FileSystem files = FileSystem::real());

}  // namespace headrace
