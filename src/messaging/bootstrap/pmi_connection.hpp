// SPDX-License-Identifier: Apache-2.0
// The socket of a launcher that speaks PMI (PMI_FD), and both versions of what is said over it:
//
//   PMI 1    cmd=get kvsname=kvs_7 key=a                   a line; a value is one word
//   PMI 2    "    18" cmd=kvs-get;key=a;                   six digits tell how many bytes follow; ";;" is a ';' of a value
//
// Owns: nothing, the descriptor is the process's and an MPI in it may use it too. Threads: one.
// Errors: EPROTO: what came is neither; EIO: the connection is broken or closed; ETIMEDOUT.
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
  // A connection begins with lines, which agree on the version.
  void use_version(int version) noexcept { version_ = version; }
  int version() const noexcept { return version_; }

  status send(const std::string& command, words more = {}) const;
  // The next line or message.
  result<std::string> receive(std::uint64_t deadline_ns);
  // The answer to `command`, which the launcher gives by itself. EPROTO: it is no `reply`.
  result<std::string> ask(const std::string& command, words more, const char* reply);
  // What an answer says for `name`; empty: nothing.
  std::string value(const std::string& answer, const std::string& name) const;

 private:
  // Whether `out` is the next one, of what has come.
  result<bool> take(std::string& out);

  int socket_;
  int version_ = 1;
  std::string unread_;
};

}  // namespace pl::messaging
