// A ring over scripted files: completions late, in any order, or failing.
#pragma once

#include <cerrno>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "scripted_files.h"
#include "uring_ring.h"

namespace headrace::test {

/// What a test says about the ring itself. Must outlive the reader.
struct RingScript {
  bool newest_first = false;     // of the completions that are due
  std::deque<int> submits = {};  // results of submit(), then all goes well
  unsigned entries = 0;          // as asked for
  std::size_t most_in_flight = 0;
};

class ScriptedRing final : public Ring {
 public:
  ScriptedRing(ScriptedFiles& files, RingScript& script) : files_(files), script_(script) {}

  void open(std::uint64_t tag, const char* path, int flags) override {
    prepare({tag, std::string("open ") + path,
             [this, name = std::string(path), flags] { return files_.open(name, flags); }});
  }
  void read(std::uint64_t tag, int file, void* memory, std::size_t bytes,
            std::uint64_t offset) override {
    prepare({tag, "read " + files_.path_of(file), [this, file, memory, bytes, offset] {
               return static_cast<int>(
                   files_.read(file, memory, bytes, static_cast<off_t>(offset)));
             }});
  }
  void close(std::uint64_t tag, int file) override {
    prepare({tag, "close " + files_.path_of(file), [this, file] { return files_.close(file); }});
  }

  int submit() override {
    if (!script_.submits.empty()) {
      const int result = script_.submits.front();
      script_.submits.pop_front();
      if (result != 0) return result;
    }
    for (auto& operation : prepared_) {
      files_.announce(operation.call);
      in_flight_.push_back(std::move(operation));
    }
    prepared_.clear();
    script_.most_in_flight = std::max(script_.most_in_flight, in_flight_.size());
    return 0;
  }

  int wait() override {
    seen_ = files_.wait_for_change(seen_);
    return 0;
  }

  std::optional<Completion> reap() override {
    const auto is_due = [this](const Operation& operation) {
      return !files_.is_held(operation.call);
    };
    auto due = std::find_if(in_flight_.begin(), in_flight_.end(), is_due);
    if (due == in_flight_.end()) return {};
    if (script_.newest_first) {
      due = std::find_if(in_flight_.rbegin(), in_flight_.rend(), is_due).base() - 1;
    }
    const Operation operation = std::move(*due);
    in_flight_.erase(due);
    const int result = operation.run();
    return Completion{operation.tag, result < 0 ? -errno : result};
  }

  void wake() noexcept override { files_.poke(); }

 private:
  struct Operation {
    std::uint64_t tag;
    std::string call;
    std::function<int()> run;
  };

  void prepare(Operation operation) {
    if (prepared_.size() + in_flight_.size() >= script_.entries) {
      throw std::logic_error("more in flight than the ring has entries");
    }
    prepared_.push_back(std::move(operation));
  }

  ScriptedFiles& files_;
  RingScript& script_;
  std::uint64_t seen_ = 0;
  std::vector<Operation> prepared_;
  std::vector<Operation> in_flight_;
};

inline MakeRing scripted_rings(ScriptedFiles& files, RingScript& script) {
  return [&](unsigned entries) {
    script.entries = entries;
    return std::make_unique<ScriptedRing>(files, script);
  };
}

}  // namespace headrace::test
