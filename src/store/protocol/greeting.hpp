// SPDX-License-Identifier: Apache-2.0
// The first exchange on a connection: versions, pools that were open before, the arena.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "store/protocol/byte_channel.hpp"
#include "store/protocol/wire.hpp"

namespace pl::store_client {

struct greeted {
  store_protocol::hello server;
  std::optional<store_protocol::arena> memory;  // attached
  int arena_fd = -1;                            // the caller's; -1 if not attached
  int rings_fd = -1;                            // the caller's; not -1: all bytes from here on go through them
  std::string why_no_shm;                       // if not attached
  int device_fd = -1;                           // the caller's; the client's end of the device link
  std::string why_no_device;                    // if there is none
  std::optional<store_protocol::ucx_offer> ucx;
  std::string ucx_refusal;  // if the server said it
};

struct greeting_request {
  std::uint64_t last_session = 0;
  bool attach = true;                            // the arena, if the server allows it
  bool device = false;                           // a device link, if the server has DMA channels
  bool rings = false;                            // for the connection's bytes, if the server has them
  std::map<std::uint32_t, std::string> pools;    // opened again
  std::optional<store_protocol::ucx_offer> ucx;  // this end's
};

// Blocks, at most `timeout_ms`. EPROTO: not a store, or another version; EACCES, ...
result<greeted> greet(byte_channel& wire, const greeting_request& request, unsigned timeout_ms);

}  // namespace pl::store_client
