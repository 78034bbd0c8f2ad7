// How many threads this process may keep busy.
#pragma once

#include <string>

#include "headrace/api.h"

namespace HEADRACE_API headrace {

/// Cores that this process may use: those of its affinity, or fewer where its control groups (v2 or
/// v1, and those above it) grant it less time, rounded up. At least 1.
/// @param root  where /proc and /sys are looked for; tests give a directory of their own.
int available_cpus(const std::string& root = "/");

/// Processes of the same training on this machine: LOCAL_WORLD_SIZE, as torchrun sets it. Else
/// OMPI_COMM_WORLD_LOCAL_SIZE (Open MPI) or MPI_LOCALNRANKS (MPICH), if this process may use every
/// core: these launchers mostly give each process cores of its own, and then there is nothing left
/// to share. Slurm's variables are not asked: it binds its tasks, and sets the same variables for
/// the batch script, which is one process. At least 1.
int local_ranks();

/// Threads for a loader: this process's part of the available cores, without `reserve_cpus` of
/// them for the training itself. At least 1.
int default_threads(int reserve_cpus = 0);

}  // namespace headrace
