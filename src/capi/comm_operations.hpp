// SPDX-License-Identifier: Apache-2.0
// Messages in progress as operations (peerlane/operation.h).
#pragma once

#include <cstdint>

#include "capi/open_comm.hpp"

namespace pl {

// Stores what was begun and writes its operation. Refused calls get none: the call itself returns the error.
// `room_bytes` is the size of the buffer.
int keep(peerlane_comm_t comm, open_comm& communicator, messaging::request&& made, std::uint64_t room_bytes,
         peerlane_op_t* op);

// `room_bytes` is the size of the receiver's buffer.
inline peerlane_op_info message_op_info(const messaging::message_info& ended, int error,
                                        std::uint64_t room_bytes = UINT64_MAX) noexcept {
  peerlane_op_info out;
  peerlane_op_info_clear(&out);
  out.error = error;
  out.source = ended.source;
  out.tag = ended.tag;
  out.size_bytes = ended.bytes;
  if (error == 0 || error == EMSGSIZE) out.moved_bytes = std::min<std::uint64_t>(ended.bytes, room_bytes);
  return out;
}

}  // namespace pl
