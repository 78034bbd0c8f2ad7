// A file system that does what a test's script says: short reads, errors, late completions.
#pragma once

#include <sys/stat.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <limits>
#include <map>
#include <mutex>
#include <set>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

#include "file_system.h"

namespace headrace::test {

// A wait this long means that a thing will never happen.
inline constexpr std::chrono::seconds kNever{60};

/// The contents of every file.
inline std::byte byte_at(std::size_t offset) {
  return static_cast<std::byte>(offset * 7 + offset / 251);
}

/// Files that exist in the test's script only. Must outlive the reader.
class ScriptedFiles {
 public:
  struct File {
    std::size_t size = 0;
    mode_t mode = S_IFREG;
    // What happens on each call, then all goes well: 0 is success, or an errno.
    std::deque<int> opens = {};
    std::deque<int> stats = {};
    // The same, or a negative number: at most so many bytes. kEnd: end of file.
    std::deque<int> reads = {};
    // Of closes in a ring: on ECANCELED or EAGAIN the file stays open.
    std::deque<int> closes = {};
  };
  static constexpr int kEnd = std::numeric_limits<int>::min();

  void add(const std::string& path, File file) { files_[path] = std::move(file); }

  /// Holds the calls "open PATH" or "read PATH" until let_go().
  void hold(const std::string& call) {
    const std::lock_guard lock(mutex_);
    held_.insert(call);
  }
  void let_go(const std::string& call) {
    const std::lock_guard lock(mutex_);
    held_.erase(call);
    ++changes_;
    changed_.notify_all();
  }

  /// Files that the process may have open at a time.
  void allow_open_files(int count) {
    const std::lock_guard lock(mutex_);
    most_open_ = count;
  }

  /// Waits until a call has begun.
  void wait_for(const std::string& call) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kNever, [&] { return count_locked(call) > 0; })) {
      throw std::runtime_error("never came: " + call);
    }
  }
  /// How often a call has begun.
  std::ptrdiff_t count(const std::string& call) {
    const std::lock_guard lock(mutex_);
    return count_locked(call);
  }
  std::ptrdiff_t open_files() {
    const std::lock_guard lock(mutex_);
    return static_cast<std::ptrdiff_t>(open_.size());
  }
  /// Whether every file is closed in the end.
  bool all_closed() {
    std::unique_lock lock(mutex_);
    return changed_.wait_for(lock, kNever, [&] { return open_.empty(); });
  }
  std::vector<int> open_flags() {
    const std::lock_guard lock(mutex_);
    return flags_;
  }

  FileSystem file_system() {
    return {
        .open =
            [this](const char* path, int flags) {
              begin(std::string("open ") + path);
              return open(path, flags);
            },
        .fstat = [this](int file, struct stat* status) { return stat(file, status); },
        .pread =
            [this](int file, void* memory, std::size_t bytes, off_t offset) {
              begin("read " + path_of(file));
              return read(file, memory, bytes, offset);
            },
        .set_blocking =
            [this](int file) {
              begin("set_blocking " + path_of(file));
              return 0;
            },
        .close =
            [this](int file) {
              const std::lock_guard lock(mutex_);
              open_.erase(file);
              changed_.notify_all();
              return 0;
            },
    };
  }

  // What a scripted ring is made of.

  std::string path_of(int file) {
    const std::lock_guard lock(mutex_);
    return open_.at(file);
  }
  void announce(const std::string& call) {
    const std::lock_guard lock(mutex_);
    calls_.push_back(call);
    changed_.notify_all();
  }
  bool is_held(const std::string& call) {
    const std::lock_guard lock(mutex_);
    return held_.contains(call);
  }
  /// Waits for a poke(), or until a call is let go. @returns what has been seen then.
  std::uint64_t wait_for_change(std::uint64_t seen) {
    std::unique_lock lock(mutex_);
    if (!changed_.wait_for(lock, kNever, [&] { return changes_ != seen; })) {
      throw std::runtime_error("nothing ever changed");
    }
    return changes_;
  }
  void poke() {
    const std::lock_guard lock(mutex_);
    ++changes_;
    changed_.notify_all();
  }

  int open(const std::string& path, int flags) {
    const std::lock_guard lock(mutex_);
    flags_.push_back(flags);
    errno = next(files_.at(path).opens);
    if (errno == 0 && static_cast<int>(open_.size()) >= most_open_) errno = EMFILE;
    if (errno != 0) return -1;
    open_[++last_file_] = path;
    return last_file_;
  }

  ssize_t read(int file, void* memory, std::size_t bytes, off_t offset_in) {
    const std::lock_guard lock(mutex_);
    File& script = files_.at(open_.at(file));
    const auto offset = static_cast<std::size_t>(offset_in);
    const int step = next(script.reads);
    if (step == kEnd) return 0;
    if (step > 0) {
      errno = step;
      return -1;
    }
    if (step < 0) bytes = std::min(bytes, static_cast<std::size_t>(-step));
    bytes = std::min(bytes, script.size - std::min(offset, script.size));
    for (std::size_t i = 0; i < bytes; ++i) {
      static_cast<std::byte*>(memory)[i] = byte_at(offset + i);
    }
    return static_cast<ssize_t>(bytes);
  }

  int close(int file) {
    const std::lock_guard lock(mutex_);
    const int error = next(files_.at(open_.at(file)).closes);
    if (error != ECANCELED && error != EAGAIN) open_.erase(file);
    changed_.notify_all();
    errno = error;
    return error == 0 ? 0 : -1;
  }

 private:
  std::ptrdiff_t count_locked(const std::string& call) const {
    return std::count(calls_.begin(), calls_.end(), call);
  }

  void begin(const std::string& call) {
    announce(call);
    std::unique_lock lock(mutex_);
    changed_.wait(lock, [&] { return !held_.contains(call); });
  }

  static int next(std::deque<int>& script) {
    if (script.empty()) return 0;
    const int step = script.front();
    script.pop_front();
    return step;
  }

  int stat(int file, struct stat* status) {
    begin("stat " + path_of(file));
    const std::lock_guard lock(mutex_);
    File& script = files_.at(open_.at(file));
    errno = next(script.stats);
    status->st_mode = script.mode;
    status->st_size = static_cast<off_t>(script.size);
    return errno == 0 ? 0 : -1;
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, File> files_;
  std::map<int, std::string> open_;
  std::set<std::string> held_;
  std::vector<std::string> calls_;
  std::vector<int> flags_;
  int last_file_ = 100;
  int most_open_ = std::numeric_limits<int>::max();
  std::uint64_t changes_ = 0;
};

}  // namespace headrace::test
