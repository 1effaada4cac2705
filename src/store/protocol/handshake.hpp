// SPDX-License-Identifier: Apache-2.0
// The first exchange on a connection: versions, previously opened pools, the arena.
#pragma once

#include <map>
#include <memory>
#include <optional>

#include "store/protocol/byte_channel.hpp"
#include "store/protocol/wire.hpp"

namespace pl::store_client {

struct handshake_result {
  store_protocol::hello server;
  std::optional<store_protocol::arena> memory;  // if attached
  int arena_fd = -1;                            // owned by the caller; -1 if not attached
  int rings_fd = -1;          // owned by the caller; if not -1, all bytes from here on go through the rings
  std::string why_no_shm;     // if not attached
  int device_fd = -1;         // owned by the caller; the client's end of the device link
  std::string why_no_device;  // if there is none
  std::optional<store_protocol::ucx_offer> ucx;
  std::string ucx_refusal;  // if the server gave one
};

struct handshake_request {
  std::uint64_t last_session = 0;
  bool attach = true;                            // the arena, if the server allows it
  bool device = false;                           // a device link, if the server has DMA channels
  bool rings = false;                            // for the connection's bytes, if the server has rings
  std::map<std::uint32_t, std::string> pools;    // to be opened again
  std::optional<store_protocol::ucx_offer> ucx;  // this end's
};

// Blocks for at most `timeout_ms`. EPROTO: not a store, or another version. Also EACCES and others.
result<handshake_result> do_handshake(byte_channel& wire, const handshake_request& request, unsigned timeout_ms);

}  // namespace pl::store_client
