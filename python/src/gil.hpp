// SPDX-License-Identifier: Apache-2.0
// Releases the GIL for calls that take time, and is safe if the interpreter ends meanwhile.
//
// When the interpreter is ending, CPython before 3.14 calls pthread_exit() in a daemon thread that requests the GIL. That
// unwinds C++ frames through destructors, so std::terminate ends the process with SIGABRT. Here, such a thread sleeps
// until the process ends, which is what CPython 3.14 does.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
#include <pthread.h>
#include <unistd.h>
#include <unwind.h>

#include <mutex>
#include <shared_mutex>

namespace nb = nanobind;

namespace pl::py {

class gil_release {
 public:
  gil_release() : state_(PyEval_SaveThread()) {}
  ~gil_release() {
    try {
      PyEval_RestoreThread(state_);
    } catch (const abi::__forced_unwind&) {
      for (;;) pause();  // a forced unwind that is not rethrown ends the process
    }
  }
  gil_release(const gil_release&) = delete;
  gil_release& operator=(const gil_release&) = delete;

 private:
  PyThreadState* const state_;
};

// Knows whether the interpreter is ending. From then on, a thread that holds something that the end needs (a lock, a call)
// must not request the GIL.
class interpreter_end {
 public:
  // Runs `body` with the GIL, or skips it if the interpreter is ending. Any thread that does not hold the GIL.
  template <class Body>
  static void before(Body&& body) {
    const std::shared_lock asking(mutex());
    if (has_come()) return;
    const nb::gil_scoped_acquire held;
    body();
  }
  // Registers the handler that detects the end. Each extension module calls it when it is imported.
  static void expect() {
    // In a forked child, threads that held the mutex are missing. The thread that forks may hold it, too, and unlocks the
    // former one.
    pthread_atfork(nullptr, nullptr, [] { current_mutex() = new std::shared_mutex; });
    // The unwinder linked into this module builds its tables at first use. pthread_exit() starts in the system's unwinder
    // and continues in this one, which then needs the tables.
    _Unwind_Backtrace([](_Unwind_Context*, void*) { return _URC_END_OF_STACK; }, nullptr);
    nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
      const gil_release waiting;  // before() may wait for the GIL while it holds the mutex
      const std::unique_lock alone(mutex());
      has_come() = true;
    }));
  }
  static bool is_over() {
    const std::shared_lock asking(mutex());
    return has_come();
  }

 private:
  static std::shared_mutex& mutex() { return *current_mutex(); }
  // Not freed: threads may wait for it while the process ends.
  static std::shared_mutex*& current_mutex() {
    static std::shared_mutex* current = new std::shared_mutex;
    return current;
  }
  static bool& has_come() {
    static bool only = false;
    return only;
  }
};

}  // namespace pl::py
