// SPDX-License-Identifier: Apache-2.0
// Connection to a launcher with PMI (the descriptor in PMI_FD), for both versions of the protocol:
//
//   PMI 1    cmd=get kvsname=kvs_7 key=a                   one line; a value is one word
//   PMI 2    "    18" cmd=kvs-get;key=a;                   six characters of length, then the message; ";;" is a ';'
//
// Owns: nothing; the descriptor belongs to the process, and an MPI library in it may use it too. Threads: one.
// Errors: EPROTO: the data is in neither format; EIO: the connection is broken or closed; ETIMEDOUT.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <string>
#include <utility>

#include "base/status.hpp"

namespace pl::messaging {

class pmi_connection {
 public:
  using words = std::initializer_list<std::pair<const char*, std::string>>;

  explicit pmi_connection(int socket) : socket_(socket) {}
  // Every connection starts with version 1; the first exchange agrees on the version to use after it.
  void use_version(int version) noexcept { version_ = version; }
  int version() const noexcept { return version_; }

  status send(const std::string& command, words more = {}) const;
  // Waits for the next line or message. `deadline_ns`: absolute, as monotonic_ns().
  result<std::string> receive(std::uint64_t deadline_ns);
  // Sends `command` and waits for its answer. For commands that the launcher answers without waiting for other ranks.
  // EPROTO: the answer is not `reply`.
  result<std::string> ask(const std::string& command, words more, const char* reply);
  // The value of `name` in an answer; empty: it has none.
  std::string value(const std::string& answer, const std::string& name) const;

 private:
  // Extracts the next line or message from the received bytes. False: it is not complete yet.
  result<bool> take(std::string& out);

  int socket_;
  int version_ = 1;
  std::string unread_;
};

}  // namespace pl::messaging
