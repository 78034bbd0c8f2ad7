// The one exception type of the library.
#pragma once

#include <cstdint>
#include <stdexcept>
#include <string>

#include "headrace/api.h"

namespace HEADRACE_API headrace {

enum class ErrorCode {
  kInvalidArgument,  ///< the caller's mistake: an option, a shape, an unknown operation
  kNotFound,         ///< a file or directory that is not there
  kReadFailed,       ///< open, stat or read failed; `system_errno` says why
  kDoubtfulData,     ///< bytes that only Pillow may judge: damaged, or outside what is decoded here
  kCorruptTrace,     ///< not what torch.profiler writes, or damaged
  kStopped,          ///< the engine was stopped while the call waited
  kDeviceFailed,     ///< the CUDA driver is missing, or a call of it failed
  kMemoryCap,        ///< LoaderOptions::memory_cap_bytes is used up
};

/// Where an error happened. Stages throw with what they know; the engine fills in the rest once.
struct ErrorContext {
  std::string stage;               ///< "source", "read", "decode", "transform", "engine", ...
  std::string path = {};           ///< the file, empty if none is concerned
  std::int64_t sample_index = -1;  ///< index in the dataset, -1 if none is concerned
  int system_errno = 0;            ///< errno of the failed call, 0 if none failed
};

/// what() reads `stage: path (sample 812): message: No such file or directory`; the last part is
/// there when an errno is known.
class Error : public std::runtime_error {
 public:
  Error(ErrorCode code, const std::string& message, ErrorContext context);

  ErrorCode code() const noexcept { return code_; }
  /// What was thrown, without the context; for throwing it again with more context.
  const std::string& message() const noexcept { return message_; }
  const ErrorContext& context() const noexcept { return context_; }

 private:
  ErrorCode code_;
  std::string message_;
  ErrorContext context_;
};

}  // namespace headrace
