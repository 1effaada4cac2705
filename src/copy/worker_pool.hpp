// SPDX-License-Identifier: Apache-2.0
// A few threads near the GPU that help a caller with the parts of one job. They are woken by a store while they are hot
// (spinning), and by a futex when they sleep. Nobody waits for them to wake up: the caller takes every part that nobody
// else has taken.
#pragma once

#include <cstddef>
#include <memory>
#include <type_traits>
#include <vector>

#include "base/status.hpp"

namespace pl::copy {

class worker_pool {
 public:
  struct options {
    unsigned helpers = 3;        // threads besides the caller; 0: every job runs on the caller
    std::vector<int> cpus = {};  // where the helpers may run; empty: wherever the process may
    unsigned spin_us = 100;      // how long a helper stays hot after its last job
  };

  explicit worker_pool(options wanted);  // starts no thread: the first job that can use one does
  ~worker_pool();                        // stops and joins the helpers
  worker_pool(const worker_pool&) = delete;
  worker_pool& operator=(const worker_pool&) = delete;

  unsigned helpers() const noexcept;

  // Calls body(context, part) once for each part in [0, parts), on the caller and at most width - 1 helpers, claimed in
  // ascending order; returns when all have ended. What the parts wrote is visible to the caller. One job at a time:
  // meanwhile a second caller does its parts alone. A forked child has no helpers, and the caller does all parts.
  // `finish`, if given, is called once on each thread that had a part, after its last one and before run() returns.
  // Neither may throw or call run on the same pool.
  void run(unsigned width, std::size_t parts, void (*body)(void* context, std::size_t part), void* context,
           void (*finish)(void* context) = nullptr);

  template <class Body>
  void run(unsigned width, std::size_t parts, Body&& body) {
    run(
        width, parts, [](void* context, std::size_t part) { (*static_cast<std::remove_reference_t<Body>*>(context))(part); },
        const_cast<void*>(static_cast<const void*>(&body)));
  }
  // For a body with a finish() of its own.
  template <class Body>
  void run_and_finish(unsigned width, std::size_t parts, Body&& body) {
    using kind = std::remove_reference_t<Body>;
    run(
        width, parts, [](void* context, std::size_t part) { (*static_cast<kind*>(context))(part); },
        const_cast<void*>(static_cast<const void*>(&body)), [](void* context) { static_cast<kind*>(context)->finish(); });
  }

 private:
  struct state;
  std::unique_ptr<state> state_;
};

// CPUs that sysfs reports as local to the PCI device "0000:fe:00.0" and on which this process may run; empty if
// unknown.
std::vector<int> cpus_near(const char* pci_bus_id);

}  // namespace pl::copy
