// SPDX-License-Identifier: Apache-2.0
// The store's end of UCX: one thread, which sleeps while nothing moves, and one worker; over TCP one worker for each
// session. With UCX 1.22 stores ended that had closed a TCP connection by force while its peer stood still (SIGSTOP), when
// the peer went on (no trace was had; what fits is an event of that connection): a session's worker goes with it, so nothing
// can be heard. Sessions pass it the memory they have granted and are called back at the end. Every call from any thread.
//
//   session ── receive(token, extents) ──▶ thread: ucx_value_stream ── chunks ──▶ the arena ── done(crc) ──▶ session: commit
//
// The arena is registered once, and no key to it leaves the process (am_port.hpp): no client can write into it or read it
// but through this end, which looks at every chunk's head first.
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
  // The end of a transfer: `crc` of all its bytes. UCX no longer touches its memory.
  using done = std::function<void(const status& outcome, std::uint32_t crc)>;

  // ENODEV, ENOSYS: why UCX cannot be used.
  static result<std::unique_ptr<ucx_listener>> open(const options& wanted, metrics& counters, event_log& log);
  // Transfers under way end without their done().
  ~ucx_listener();

  const store_protocol::ucx_offer& offer() const noexcept { return offer_; }

  struct joined_stream {
    store_client::stream_session_ptr session;
    store_protocol::ucx_offer offer;  // of the worker that the client shall reach, and the session's secret
  };
  // `joined` and `lost` are called by the listener's thread.
  void join(const store_protocol::ucx_offer& client, std::function<void(result<joined_stream>)> joined,
            std::function<void()> lost);
  // Calls `callback` once, from the listener's thread, when all has moved or after the first failure. ECONNABORTED: UCX
  // broke, ECANCELED: stop(). Names a transfer by its token.
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
  // Of the thread: the one for all, and those of sessions with one of their own.
  std::unique_ptr<store_client::ucx_value_stream> ucx_stream_;
  std::map<store_client::stream_session_ptr, std::unique_ptr<store_client::ucx_value_stream>> own_;
  std::uint64_t refused_by_closed_ = 0;
  bool each_its_own_ = false;
  std::mutex lock_;
  std::vector<std::function<void()>> posted_;
  // Incoming transfers of those. A client may send as soon as it has its grant, while the thread is busy.
  std::vector<std::pair<store_client::stream_session_ptr, store_client::stream_transfer_ptr>> receives_;
  bool ending_ = false;
  int wake_fd_ = -1;
  std::thread thread_;
};

}  // namespace pl::store_server
