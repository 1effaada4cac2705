// SPDX-License-Identifier: Apache-2.0
// The store's end of UCX: one thread, which sleeps while nothing moves, and one worker; over TCP, one worker for each
// session. With UCX 1.22, stores crashed that had forcibly closed a TCP connection to a stopped peer (SIGSTOP) when the
// peer continued. (There is no trace of it; an event of that connection would explain it.) A worker per session is
// destroyed with the connection, so no event can arrive. Sessions pass in the memory they have granted and are called
// back at the end. Thread-safe.
//
//   session ── receive(token, extents) ──▶ thread: ucx_value_stream ── chunks ──▶ the arena ── done(crc) ──▶ session: commit
//
// The arena is registered once, and no key to it leaves the process (am_port.hpp): clients can access it only through
// this end, which checks the head of every chunk first.
#pragma once

#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "store/client/ucx_value_stream.hpp"
#include "store/server/event_log.hpp"
#include "store/server/metrics.hpp"

namespace pl::store_server {

class ucx_listener {
 public:
  struct options {
    store_client::ucx_mode mode = store_client::ucx_mode::automatic;
    void* arena = nullptr;
    std::size_t arena_bytes = 0;
  };
  // The end of a transfer: `crc` covers all its bytes. UCX no longer touches the memory.
  using done = std::function<void(const status& outcome, std::uint32_t crc)>;

  // ENODEV or ENOSYS if UCX cannot be used; the message says why.
  static result<std::unique_ptr<ucx_listener>> open(const options& wanted, metrics& counters, event_log& log);
  // Transfers in progress end without a call of done().
  ~ucx_listener();

  const store_protocol::ucx_offer& offer() const noexcept { return offer_; }

  struct joined_stream {
    store_client::stream_session_ptr session;
    store_protocol::ucx_offer offer;  // names the worker that the client has to reach, and the session's secret
  };
  // The listener's thread calls `joined` and `lost`.
  void join(const store_protocol::ucx_offer& client, std::function<void(result<joined_stream>)> joined,
            std::function<void()> lost);
  // Calls `callback` once, from the listener's thread, when everything has been transferred or after the first failure.
  // ECONNABORTED: UCX broke. ECANCELED: stop(). The token identifies the transfer.
  void receive(const store_client::stream_session_ptr& session, std::uint64_t token, std::vector<iovec> destination,
               std::uint64_t bytes, done callback);
  void send(const store_client::stream_session_ptr& session, std::uint64_t token, std::vector<iovec> pieces,
            std::uint64_t bytes, done callback);
  void stop(const store_client::stream_session_ptr& session, std::uint64_t token);
  void close(const store_client::stream_session_ptr& one);

 private:
  ucx_listener(const options& wanted, metrics& counters) : wanted_(wanted), counters_(counters) {}
  void post(std::function<void()> task);
  void serve();
  result<joined_stream> joined_with(const store_protocol::ucx_offer& client);
  store_client::ucx_value_stream& stream_of(const store_client::stream_session_ptr& one);
  result<std::unique_ptr<store_client::ucx_value_stream>> open_end();
  void take_receives();
  bool progress();
  bool arm();
  void sleep();
  std::uint64_t refused() const;
  void begin(const store_client::stream_session_ptr& session, store_client::stream_transfer_ptr transfer, done callback);

  const options wanted_;
  metrics& counters_;
  store_protocol::ucx_offer offer_;
  // Used by the thread: the shared worker, and those of sessions with their own.
  std::unique_ptr<store_client::ucx_value_stream> ucx_stream_;
  std::map<store_client::stream_session_ptr, std::unique_ptr<store_client::ucx_value_stream>> own_;
  std::uint64_t refused_by_closed_ = 0;
  bool each_its_own_ = false;
  std::mutex lock_;
  std::vector<std::function<void()>> posted_;
  // Incoming transfers of such sessions. A client may send as soon as it has its grant, while the thread is busy.
  std::vector<std::pair<store_client::stream_session_ptr, store_client::stream_transfer_ptr>> receives_;
  bool ending_ = false;
  int wake_fd_ = -1;
  std::thread thread_;
};

}  // namespace pl::store_server
