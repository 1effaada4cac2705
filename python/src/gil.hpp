// SPDX-License-Identifier: Apache-2.0
// The GIL, let go for calls that take time and taken again, also where the interpreter ends meanwhile.
//
// CPython before 3.14 ends a daemon thread that asks for the GIL then by pthread_exit(), which unwinds the frames of C++ and
// meets destructors: std::terminate ends the process with SIGABRT. Such a thread sleeps here until the process has ended, as
// CPython 3.14 lets it do.
#pragma once

#include <cxxabi.h>
#include <nanobind/nanobind.h>
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
      for (;;) pause();  // who leaves this handler without throwing ends the process
    }
  }
  gil_release(const gil_release&) = delete;
  gil_release& operator=(const gil_release&) = delete;

 private:
  PyThreadState* const state_;
};

// Whether the interpreter ends: from then on nobody who holds something that its end needs may ask for the GIL.
class interpreter_end {
 public:
  // The body with the GIL, or not at all. Any thread that does not hold it.
  template <class Body>
  static void before(Body&& body) {
    const std::shared_lock asking(mutex());
    if (has_come()) return;
    const nb::gil_scoped_acquire held;
    body();
  }
  // For each module: when it is imported.
  static void expect() {
    // The unwinder that is linked into this module makes its tables at its first use. pthread_exit() begins with the
    // system's one, and this one's part in it would find none.
    _Unwind_Backtrace([](_Unwind_Context*, void*) { return _URC_END_OF_STACK; }, nullptr);
    nb::module_::import_("atexit").attr("register")(nb::cpp_function([] {
      const gil_release waiting;  // for bodies that wait for it
      const std::unique_lock alone(mutex());
      has_come() = true;
    }));
  }
  static bool is_over() {
    const std::shared_lock asking(mutex());
    return has_come();
  }

 private:
  static std::shared_mutex& mutex() {
    static std::shared_mutex only;
    return only;
  }
  static bool& has_come() {
    static bool only = false;
    return only;
  }
};

}  // namespace pl::py
