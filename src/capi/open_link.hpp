// SPDX-License-Identifier: Apache-2.0
// What stands behind a C link: its messenger, and the objects that its numbers name.
#pragma once

#include <peerlane/link.h>

#include <memory>
#include <string>

#include "capi/capi_call.hpp"
#include "capi/open_table.hpp"
#include "capi/slot_table.hpp"
#include "messaging/bootstrap/bootstrap.hpp"
#include "messaging/messenger.hpp"

namespace pl {

struct open_link {
  ~open_link();
  peerlane_copier_t copier = nullptr;  // borrowed
  std::unique_ptr<messaging::bootstrap> group;
  std::unique_ptr<messaging::messenger> messenger;
  std::string cpus;  // where the thread that opened it runs
  // End before the messenger.
  slot_table<messaging::request> requests;
  slot_table<messaging::matched_message> matched;
  slot_table<messaging::window> windows;
  slot_table<messaging::messenger::registration> registrations;
};

}  // namespace pl

struct peerlane_link : pl::open_slot<pl::open_link> {};

namespace pl {

// What a caller's options say, for everything that opens a messenger. EINVAL: struct_bytes is none.
result<peerlane_link_options> read_link_options(const peerlane_link_options* options);
result<std::unique_ptr<messaging::bootstrap>> meet(const peerlane_link_options& given);
messaging::messenger_options messenger_options_from(const peerlane_link_options& given);

// `bytes` of every rank into `all`, for setting up: an errno value, with the thread's last error set.
int all_gather_equal(messaging::bootstrap& group, const void* mine, std::size_t bytes, void* all);

// The link, or null with `code` and the thread's last error set: EINVAL, EACCES in a forked child.
open_link* link_of(peerlane_link_t handle, int& code) noexcept;

// One way in for the calls of a link: with_open() of `act(open_link&)`.
template <class Act>
int with_link(peerlane_link_t handle, Act&& act) {
  return with_open(handle, link_of, act);
}

}  // namespace pl
