// SPDX-License-Identifier: Apache-2.0
// Device memory that the client of one connection has handed over: the server's end of its device link
// (device_link.hpp). Only this connection's requests can name the memory, and it counts for the connection's principal.
//
// Used by the connection's thread; importing runs on a thread that may block. Transfers in progress hold the object, so
// the client sees the end of the link only after them.
#pragma once

#include <asio/io_context.hpp>
#include <asio/posix/stream_descriptor.hpp>
#include <map>
#include <memory>
#include <string>

#include "os/unique_fd.hpp"
#include "store/protocol/device_link.hpp"
#include "store/server/accounts.hpp"
#include "store/server/device_mover.hpp"
#include "store/server/fair_workers.hpp"

namespace pl::store_server {

class device_imports : public std::enable_shared_from_this<device_imports> {
 public:
  struct limits {
    std::uint64_t bytes = 0, objects = 0;  // limits of the principal
  };
  struct environment {
    asio::io_context& home;
    device_mover& mover;
    fair_workers& blocking;
    std::string principal;
    limits most;
  };
  // ENOMEM or EMFILE on failure.
  static result<std::shared_ptr<device_imports>> open(const environment& around, account_share bytes, account_share objects);

  // The client's end, to be sent with an answer; this object owns it.
  int client_end() const noexcept { return client_end_.get(); }
  // Accepts no more memory. Memory that transfers use stays until they end.
  void close();

  // Returns null if the connection has no such memory.
  std::shared_ptr<device_memory> find(std::uint32_t number) const;
  const store_protocol::device_slots& slots() const noexcept { return slots_; }

 private:
  device_imports(const environment& around, dma::shared_host words, unique_fd ours, unique_fd theirs, account_share bytes,
                 account_share objects);
  void await_message();
  void take_message();
  void take_release();
  void import(dma::shared_region offered);
  void imported(result<std::shared_ptr<device_memory>> made);
  bool reply(const status& outcome, std::uint32_t number);
  void count();

  environment around_;
  dma::shared_host words_;
  store_protocol::device_slots slots_;
  unique_fd client_end_;
  asio::posix::stream_descriptor link_;
  account_share bytes_, objects_;
  bool closed_ = false;
  std::uint64_t coming_bytes_ = 0;  // of memory that is being imported; 0 if none is
  std::map<std::uint32_t, std::shared_ptr<device_memory>> memories_;
};

}  // namespace pl::store_server
