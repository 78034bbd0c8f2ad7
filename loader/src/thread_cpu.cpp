#include "thread_cpu.h"

#include <ctime>
#include <filesystem>
#include <fstream>
#include <string>

namespace headrace {

std::uint64_t thread_cpu_ns() noexcept {
  timespec time{};
  if (clock_gettime(CLOCK_THREAD_CPUTIME_ID, &time) != 0) return 0;
  return static_cast<std::uint64_t>(time.tv_sec) * 1'000'000'000 +
         static_cast<std::uint64_t>(time.tv_nsec);
}

std::uint64_t ring_workers_cpu_ns() noexcept {
  try {
    std::uint64_t sum_ns = 0;
    for (const auto& thread : std::filesystem::directory_iterator("/proc/self/task")) {
      std::string found;
      std::getline(std::ifstream(thread.path() / "comm"), found);
      std::uint64_t run_ns = 0;
      if (found.starts_with("iou-wrk-") && std::ifstream(thread.path() / "schedstat") >> run_ns)
        sum_ns += run_ns;
    }
    return sum_ns;
  } catch (...) {
    return 0;
  }
}

}  // namespace headrace
