// SPDX-License-Identifier: Apache-2.0
// Collectives of communicators, and of streams.
#pragma once

#include <peerlane/triggered.hpp>

#include "communicator.hpp"
#include "gil.hpp"

namespace pl::py {

void bind_collectives(nb::class_<communicator>& type);

// Collectives that CUDA streams execute. The object keeps its stream context alive.
struct stream_collectives {
  nb::object context;
  peerlane::triggered::stream_collectives all;
  ~stream_collectives() {
    const gil_release waiting;
    all.reset();
  }
};
void bind_stream_collectives(nb::module_& module);

}  // namespace pl::py
