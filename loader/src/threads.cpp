#include "headrace/threads.h"

#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <charconv>
#include <cmath>
#include <cstddef>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace headrace {
namespace {

namespace fs = std::filesystem;

constexpr double kNoLimit = std::numeric_limits<double>::infinity();

std::optional<double> number(std::string_view text) {
  double value = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
  if (error != std::errc() || end != text.data() + text.size()) return {};
  return value;
}

std::vector<std::string> words_of(const fs::path& file) {
  std::ifstream stream(file);
  std::vector<std::string> words;
  for (std::string word; stream >> word;) words.push_back(word);
  return words;
}

double cpus(const std::string& quota, const std::string& period) {
  const auto granted = number(quota);  // v2 says "max", v1 -1, where there is no limit
  const auto of = number(period);
  return granted && of && *granted > 0 && *of > 0 ? *granted / *of : kNoLimit;
}

double limit_of_group(const fs::path& group, bool v2) {
  if (v2) {
    const auto words = words_of(group / "cpu.max");
    return words.size() == 2 ? cpus(words[0], words[1]) : kNoLimit;
  }
  const auto quota = words_of(group / "cpu.cfs_quota_us");
  const auto period = words_of(group / "cpu.cfs_period_us");
  return quota.size() == 1 && period.size() == 1 ? cpus(quota[0], period[0]) : kNoLimit;
}

/// Of the group and those above it the smallest. In a container without a namespace of its own the
/// group's path is the host's: of it only the end is there, which is the mount's root.
double limit_of_branch(const fs::path& mount, std::string_view path, bool v2) {
  double limit = limit_of_group(mount, v2);
  fs::path group = mount;
  for (const auto& part : fs::path(path).relative_path()) {
    if (part == "..") break;
    group /= part;
    limit = std::min(limit, limit_of_group(group, v2));
  }
  return limit;
}

double cgroup_limit(const fs::path& root) {
  const fs::path mounts = root / "sys/fs/cgroup";
  double limit = kNoLimit;
  std::ifstream groups(root / "proc/self/cgroup");
  // hierarchy:controllers:path; v2 has 0 and no controllers
  for (std::string line; std::getline(groups, line);) {
    const auto first = line.find(':');
    const auto second = line.find(':', first + 1);
    if (first == std::string::npos || second == std::string::npos) continue;
    const std::string controllers = line.substr(first + 1, second - first - 1);
    const std::string_view path = std::string_view(line).substr(second + 1);
    if (controllers.empty()) {
      limit = std::min(limit, limit_of_branch(mounts, path, /*v2=*/true));
      limit = std::min(limit, limit_of_branch(mounts / "unified", path, /*v2=*/true));
    } else if ((',' + controllers + ',').find(",cpu,") != std::string::npos) {
      limit = std::min(limit, limit_of_branch(mounts / controllers, path, /*v2=*/false));
      limit = std::min(limit, limit_of_branch(mounts / "cpu", path, /*v2=*/false));
    }
  }
  return limit;
}

/// Cores of the affinity; 0 if unknown.
int affinity_cpus() {
  for (int capacity = CPU_SETSIZE; capacity <= 1 << 20; capacity *= 2) {
    cpu_set_t* set = CPU_ALLOC(static_cast<std::size_t>(capacity));
    if (set == nullptr) return 0;
    const std::size_t bytes = CPU_ALLOC_SIZE(static_cast<std::size_t>(capacity));
    const int error = sched_getaffinity(0, bytes, set) == 0 ? 0 : errno;
    const int count = error == 0 ? CPU_COUNT_S(bytes, set) : 0;
    CPU_FREE(set);
    if (error != EINVAL) return count;  // EINVAL: a machine with more cores
  }
  return 0;
}

std::optional<int> positive(const char* variable) {
  const char* text = std::getenv(variable);  // NOLINT(concurrency-mt-unsafe): nothing sets it
  if (text == nullptr) return {};
  const auto value = number(text);
  if (!value || *value < 1 || *value > 1e6) return {};
  return static_cast<int>(*value);
}

}  // namespace

int available_cpus(const std::string& root) {
  const int allowed = std::max(1, affinity_cpus());
  const double limit = std::ceil(cgroup_limit(root));
  return limit < allowed ? std::max(1, static_cast<int>(limit)) : allowed;
}

int local_ranks() {
  if (const auto ranks = positive("LOCAL_WORLD_SIZE")) return *ranks;
  if (affinity_cpus() >= sysconf(_SC_NPROCESSORS_ONLN)) {
    for (const char* variable : {"OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"}) {
      if (const auto ranks = positive(variable)) return *ranks;
    }
  }
  return 1;
}

int default_threads(int reserve_cpus) {
  return std::max(1, available_cpus() / local_ranks() - std::max(0, reserve_cpus));
}

}  // namespace headrace
