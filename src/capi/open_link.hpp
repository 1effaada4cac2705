// SPDX-License-Identifier: Apache-2.0
// What stands behind a C link: its messenger, and the objects that its numbers name.
#pragma once

#include <peerlane/link.h>

#include <atomic>
#include <memory>
#include <string>

#include "bootstrap.hpp"
#include "capi_call.hpp"
#include "errno_keeper.hpp"
#include "messenger.hpp"
#include "slot_table.hpp"

namespace pl {

struct open_link {
  ~open_link();
  peerlane_copier_t copier = nullptr;  // borrowed
  std::unique_ptr<link::bootstrap> with;
  std::unique_ptr<link::messenger> by;
  std::string cpus;  // where the thread that opened it runs
  // End before the messenger.
  slot_table<link::request> requests;
  slot_table<link::matched_message> matched;
  slot_table<link::window> windows;
  slot_table<link::messenger::registration> registrations;
};

}  // namespace pl

// Slots of a fixed table, so that any address can be checked without a lock on the way to a message.
struct peerlane_link {
  std::atomic<pl::open_link*> open{nullptr};
  std::uint32_t epoch = 0;
};

namespace pl {

// The link, or null with `code` and the thread's last error set: EINVAL, EACCES in a forked child.
open_link* link_of(peerlane_link_t handle, int& code) noexcept;

// One way in for the calls of a link. `act(open_link&)` answers with an errno value. errno is kept: CUDA and the kernel may
// be called.
template <class Act>
int with_link(peerlane_link_t handle, Act&& act) try {
  const errno_keeper keeper;
  int code = 0;
  open_link* const found = link_of(handle, code);
  return found != nullptr ? act(*found) : code;
}
PL_NO_EXCEPTIONS

}  // namespace pl
