// What every thread of ours does first.
#pragma once

#include <pthread.h>
#include <signal.h>

#include <string>

namespace headrace {

/// Names the calling thread, and leaves signals to the program's own threads. Faults are left
/// alone: they concern the thread that makes them.
inline void become_own_thread(const std::string& name) {
  sigset_t blocked;
  sigfillset(&blocked);
  for (const int fault : {SIGSEGV, SIGBUS, SIGFPE, SIGILL}) sigdelset(&blocked, fault);
  pthread_sigmask(SIG_BLOCK, &blocked, nullptr);
  pthread_setname_np(pthread_self(), name.c_str());
}

}  // namespace headrace
