// SPDX-License-Identifier: Apache-2.0
// The messages between two agents of one host over an abstract unix socket, and what an agent's metadata says of it.
//
//   hello            first on every connection: the secret of the metadata, and who speaks
//   want_memory      answered by memory: its pieces, then one descriptor for each (dma/shared_region.hpp)
//   notify           a notification
//   offer_memory     GPU memory of the sender, with descriptors, for copies that it will request; drop_memory ends it
//   copy             between offered memory and host memory of the receiver, by the receiver's channels; answered by copied
#pragma once

#include <algorithm>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "os/unique_fd.hpp"

namespace pl::nixl {

enum class message : std::uint32_t { hello = 1, want_memory, given_memory, notify, offer_memory, drop_memory, copy, copied };

struct frame {
  std::uint32_t magic = 0;
  message type = message::hello;
  std::uint64_t id = 0;   // of memory, or of a copy
  std::int32_t code = 0;  // an errno value of an answer; of copy: 1: into the listener's memory
  std::uint32_t pad = 0;
  std::uint64_t payload_bytes = 0;
};
static_assert(sizeof(frame) == 32);

inline std::span<const char> text_bytes(const std::string& text) { return {text.data(), text.size()}; }

struct copy_block {
  std::uint64_t device_id = 0, device_address = 0;  // the speaker's
  std::uint64_t host_id = 0, host_address = 0;      // the listener's
  std::uint64_t size_bytes = 0;
};

// EPIPE, ECONNRESET: the other end is gone. ETIMEDOUT: it reads nothing for 10 s.
status send_message(int socket, message type, std::uint64_t id, std::int32_t code, std::span<const char> payload);
struct received {
  frame head;
  std::string payload;
};
// Limits for unknown senders, and for peers.
inline constexpr std::uint64_t kMaxHandshakeBytes = 64u << 10, kMaxPayloadBytes = std::uint64_t{1} << 30;
// EPROTO if it is not one of ours, or too long.
result<received> receive_message(int socket, std::uint64_t max_payload_bytes = kMaxPayloadBytes);
// Receives the next part of a message into `begun`, which takes no more memory than has arrived; returns nothing if
// more is to come. Does not wait, and takes a bounded part of a long message at a time. ENOMEM.
result<std::optional<received>> receive_part(int socket, std::string& begun, std::uint64_t max_payload_bytes);
// A message as sent over the connection.
std::string encode_message(message type, std::uint64_t id, std::int32_t code, std::span<const char> payload);
// Sends as much of `bytes` as possible without waiting, and removes it.
status send_part(int socket, std::string& bytes);
inline constexpr int kTimeoutMs = 10'000;
void limit_waits(int socket);

template <class T>
std::span<const char> bytes_of(const std::vector<T>& items) {
  return {reinterpret_cast<const char*>(items.data()), items.size() * sizeof(T)};
}
// Returns nothing if the payload does not consist of whole items.
template <class T>
std::optional<std::vector<T>> items_of(const std::string& payload) {
  if (payload.size() % sizeof(T) != 0) return {};
  std::vector<T> out(payload.size() / sizeof(T));
  std::copy(payload.begin(), payload.end(), reinterpret_cast<char*>(out.data()));
  return out;
}

// Where an agent can be spoken to; the agents exchange it as text of their metadata.
struct address {
  std::string host;     // the boot of the machine and the network namespace: only within both the socket is found
  std::string socket;   // abstract name
  std::string secret;   // 32 hexadecimal digits, which every connection begins with
  std::string process;  // one text for all agents of a process

  std::string text() const;
  static result<address> parse(const std::string& text);
};
std::string this_host();
std::string this_process();
std::string random_text();

// A listening socket under the name, or a connection to it. EACCES: another user's.
result<unique_fd> listen_at(const std::string& name);
result<unique_fd> connect_to(const std::string& name);
// The process at the other end of a connection; 0 if it is not visible from here. Nothing if it belongs to another
// user, neither ours nor root.
std::optional<int> peer_process(int socket);

}  // namespace pl::nixl
