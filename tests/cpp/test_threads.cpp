#include <sched.h>
#include <stdlib.h>

#include <string>
#include <thread>

#include "headrace/threads.h"
#include "support.h"
#include "temporary_folder.h"

namespace headrace {
namespace {

/// A machine's /proc and /sys, as files.
struct Root : test::TemporaryFolder {
  void write(const std::string& name, const std::string& text) const {
    TemporaryFolder::write(name, text + '\n');
  }
  int cpus() const { return available_cpus(path()); }
};

/// This thread's affinity as it was, at the end.
class KeptAffinity {
 public:
  KeptAffinity() { sched_getaffinity(0, sizeof(before_), &before_); }
  ~KeptAffinity() { sched_setaffinity(0, sizeof(before_), &before_); }
  KeptAffinity(const KeptAffinity&) = delete;
  KeptAffinity& operator=(const KeptAffinity&) = delete;

  int cpus() const { return CPU_COUNT(&before_); }
  void pin_to_one() const {
    int core = 0;
    while (!CPU_ISSET(core, &before_)) ++core;
    cpu_set_t one;
    CPU_ZERO(&one);
    CPU_SET(core, &one);
    sched_setaffinity(0, sizeof(one), &one);
  }

 private:
  cpu_set_t before_;
};

/// An environment variable, set until the end.
class Variable {
 public:
  Variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~Variable() { unsetenv(name_); }
  Variable(const Variable&) = delete;
  Variable& operator=(const Variable&) = delete;

 private:
  const char* name_;
};

TEST_CASE("cores are those of the affinity where no control group limits them", "[threads]") {
  const KeptAffinity affinity;
  Root root;
  CHECK(root.cpus() == affinity.cpus());
  root.write("proc/self/cgroup", "0::/user.slice/training");
  root.write("sys/fs/cgroup/user.slice/training/cpu.max", "max 100000");
  CHECK(root.cpus() == affinity.cpus());
  affinity.pin_to_one();
  CHECK(root.cpus() == 1);
}

TEST_CASE("a control group's quota counts in whole cores, rounded up", "[threads]") {
  const KeptAffinity affinity;
  Root root;
  root.write("proc/self/cgroup", "0::/");
  for (const auto& [quota, cores] : {std::pair{"50000 100000", 1},
                                     {"100000 100000", 1},
                                     {"100001 100000", 2},
                                     {"1000 100000", 1},
                                     {"99900000 100000", affinity.cpus()},
                                     {"nonsense", affinity.cpus()},
                                     {"0 0", affinity.cpus()}}) {
    INFO(quota);
    root.write("sys/fs/cgroup/cpu.max", quota);
    CHECK(root.cpus() == std::min(cores, affinity.cpus()));
  }
}

TEST_CASE("the quota of a group above counts too", "[threads]") {
  Root root;
  root.write("proc/self/cgroup", "0::/pod/container");
  root.write("sys/fs/cgroup/pod/container/cpu.max", "max 100000");
  root.write("sys/fs/cgroup/pod/cpu.max", "100000 100000");
  CHECK(root.cpus() == 1);
}

TEST_CASE("a host's path that the container does not see means the mount itself", "[threads]") {
  Root root;
  root.write("proc/self/cgroup", "0::/docker/0123456789abcdef");
  root.write("sys/fs/cgroup/cpu.max", "80000 100000");
  CHECK(root.cpus() == 1);
}

TEST_CASE("control groups of version 1 are understood", "[threads]") {
  const std::string folder = GENERATE("cpu,cpuacct", "cpu");
  const KeptAffinity affinity;
  Root root;
  root.write("proc/self/cgroup", "5:cpuset:/a\n4:cpu,cpuacct:/a\n1:name=systemd:/b");
  root.write("sys/fs/cgroup/" + folder + "/a/cpu.cfs_quota_us", "-1");
  root.write("sys/fs/cgroup/" + folder + "/a/cpu.cfs_period_us", "100000");
  CHECK(root.cpus() == affinity.cpus());
  root.write("sys/fs/cgroup/" + folder + "/a/cpu.cfs_quota_us", "90000");
  CHECK(root.cpus() == 1);
}

TEST_CASE("ranks on this machine share the cores", "[threads]") {
  const KeptAffinity affinity;
  unsetenv("LOCAL_WORLD_SIZE");
  const int cpus = available_cpus();
  CHECK(local_ranks() == 1);
  CHECK(default_threads() == cpus);
  CHECK(default_threads(1) == std::max(1, cpus - 1));
  CHECK(default_threads(1000) == 1);
  {
    const Variable ranks("LOCAL_WORLD_SIZE", "2");
    const Variable mpi("OMPI_COMM_WORLD_LOCAL_SIZE", "5");
    CHECK(local_ranks() == 2);
    CHECK(default_threads() == std::max(1, cpus / 2));
  }
  for (const char* odd : {"0", "-3", "", "two", "2 ", "99999999999"}) {
    const Variable ranks("LOCAL_WORLD_SIZE", odd);
    CHECK(local_ranks() == 1);
  }
}

TEST_CASE("a launcher's ranks that were given cores of their own do not share them", "[threads]") {
  const KeptAffinity affinity;
  unsetenv("LOCAL_WORLD_SIZE");
  const Variable ranks(GENERATE("OMPI_COMM_WORLD_LOCAL_SIZE", "MPI_LOCALNRANKS"), "4");
  const bool all = affinity.cpus() >= static_cast<int>(std::thread::hardware_concurrency());
  if (all) CHECK(local_ranks() == 4);
  affinity.pin_to_one();
  if (sysconf(_SC_NPROCESSORS_ONLN) > 1) CHECK(local_ranks() == 1);
}

}  // namespace
}  // namespace headrace
