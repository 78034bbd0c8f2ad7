#include "device_events.h"

#include <mutex>
#include <utility>
#include <vector>

#include "headrace/error.h"

namespace headrace {

struct EventPool::Shared {
  const std::shared_ptr<const PrimaryContext> context;
  const unsigned flags;
  std::mutex mutex;
  std::vector<cuda::Event> idle;

  Shared(std::shared_ptr<const PrimaryContext> event_context, unsigned event_flags)
      : context(std::move(event_context)), flags(event_flags) {}
  ~Shared() {
    if (context->driver().forked()) return;
    try {
      const PrimaryContext::Scope scope(*context);
      for (cuda::Event event : idle) context->driver().functions().cuEventDestroy(event);
    } catch (const Error&) {  // no context any more: the process is ending
    }
  }
  Shared(const Shared&) = delete;
  Shared& operator=(const Shared&) = delete;

  cuda::Event take() {
    {
      const std::lock_guard lock(mutex);
      if (!idle.empty()) {
        cuda::Event event = idle.back();
        idle.pop_back();
        return event;
      }
    }
    cuda::Event event = nullptr;
    const CudaDriver& driver = context->driver();
    driver.check("cuEventCreate", driver.functions().cuEventCreate(&event, flags));
    return event;
  }

  void give_back(cuda::Event event) noexcept {
    if (context->driver().forked()) return;
    try {
      const std::lock_guard lock(mutex);
      idle.push_back(event);
    } catch (...) {  // no memory to remember it: it ends with the context
    }
  }
};

EventPool::EventPool(std::shared_ptr<const PrimaryContext> context, unsigned flags)
    : shared_(std::make_shared<Shared>(std::move(context), flags)) {}

EventRef EventPool::take() {
  // Should the shared_ptr fail to be made, it calls the deleter itself.
  return {shared_->take(), [shared = shared_](cuda::Event event) { shared->give_back(event); }};
}

}  // namespace headrace
