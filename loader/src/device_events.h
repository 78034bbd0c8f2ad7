// Events of the CUDA driver, used again and again.
#pragma once

#include <memory>

#include "cuda_driver.h"

namespace headrace {

/// Shared ownership of an event; the last owner gives it back, on any thread.
using EventRef = std::shared_ptr<std::remove_pointer_t<cuda::Event>>;

/// The events of one context. Thread-safe. Events may outlive it.
class EventPool {
 public:
  /// @param flags  kEventDefault, with times, or kEventDisableTiming.
  EventPool(std::shared_ptr<const PrimaryContext> context, unsigned flags);

  /// An event that may have been recorded before: record it first. Needs the context current.
  /// @throws Error{kDeviceFailed}
  EventRef take();

 private:
  struct Shared;
  std::shared_ptr<Shared> shared_;
};

}  // namespace headrace
