// SPDX-License-Identifier: Apache-2.0
// One client's connection: parses its frames, passes the requests to the engine, and sends the answers in the order in
// which they complete.
//
//   socket -> buffer -> frame -> operation -> engine ... completion -> outbox -> socket
//                          \-> bytes of a streamed value, straight into the arena
//
// Everything runs on the connection's executor; completions on the engine's threads are posted there. A closed session
// finishes what is in progress in the engine, then returns its grants and pins (orphaned_sessions.hpp says when).
#pragma once

#include <asio/post.hpp>
#include <asio/steady_timer.hpp>
#include <atomic>
#include <deque>
#include <memory>
#include <mutex>
#include <shared_mutex>
#include <unordered_map>

#include "store/cluster/value_service.hpp"
#include "store/engine/engine.hpp"
#include "store/engine/value_stream.hpp"
#include "store/server/access.hpp"
#include "store/server/accounts.hpp"
#include "store/server/device_imports.hpp"
#include "store/server/event_log.hpp"
#include "store/server/fair_workers.hpp"
#include "store/server/metrics.hpp"
#include "store/server/orphaned_sessions.hpp"
#include "store/server/outbox.hpp"
#include "store/server/quotas.hpp"
#include "store/server/receive_buffer.hpp"
#include "store/server/server_config.hpp"
#include "store/server/transport.hpp"
#include "store/server/ucx_listener.hpp"

namespace pl::store_server {

class session;
class watch_hub;
struct device_claim;
class segment_walk;
}  // namespace pl::store_server
namespace pl::store_client {
class checksum_pool;
}
namespace pl::store_protocol {
struct batch_item;
}
namespace pl::store_server {

constexpr std::uint64_t kInlineBytes = 64 << 10;  // values up to this size are sent within the answer
// A page that takes longer ends early and the next one continues, because other clients share the threads.
constexpr auto kLongestSearch = std::chrono::seconds(2);
// What a grant or pin counts at least: a small value's block is not available to others, and each has records.
constexpr std::uint64_t kMinHeldBytes = 4096;

// The event loop of this thread, also while the thread polls rings outside the loop. Null for a thread without an event
// loop.
inline thread_local const asio::io_context* served_here = nullptr;
// This thread's transfers to and from device memory. Null if it does not poll.
inline thread_local device_queue* transfers_here = nullptr;

// The objects that all sessions of a server share; they outlive the sessions.
struct server_parts {
  store::engine& engine;
  store_cluster::value_service& values;  // requests of sessions for values and pools
  store_cluster::value_service& copies;  // the plain service, for copies from other servers
  const server_config& config;
  const access_rules& access;
  metrics& counters;
  event_log& log;
  orphaned_sessions& orphans;
  accounts& principals;
  watch_hub& watches;
  fair_workers& blocking;           // for calls that wait for a disk
  const std::atomic<bool>& halted;  // nothing is served any more
  std::uint64_t instance = 0;       // random
  std::function<void(session*)> ended{};
  std::function<void(const pool_policy&)> policy_changed{};
  ucx_listener* ucx = nullptr;  // null: no UCX; `ucx_refusal` says why
  std::string ucx_refusal{};
  device_mover* device = nullptr;  // null: no DMA channels; `device_refusal` says why
  std::string device_refusal{};
  store_client::checksum_pool* sums = nullptr;
  // Pools of one thread each. A connection always uses the same one, whose cache then has the connection's part of the
  // table and its old values; several threads would take each other's cache lines away.
  std::vector<std::shared_ptr<store_client::checksum_pool>> commits{};
  const class quotas* quotas = nullptr;
};

// Creates server_parts::commits; the number depends on the CPUs.
std::vector<std::shared_ptr<store_client::checksum_pool>> make_commit_threads();

class session : public std::enable_shared_from_this<session> {
 public:
  session(asio::io_context& home, std::unique_ptr<transport> wire, server_parts& parts);
  ~session();
  // Handles the handshake and serves until the connection ends.
  void start();
  // From any thread: takes no more requests, answers those in progress, then closes.
  void drain();
  // From any thread: the policy of a pool has changed.
  void policy_changed(const pool_policy& changed);

  using clock = std::chrono::steady_clock;

  // A request that is not answered yet.
  struct pending_request {
    store_protocol::head head;
    store_protocol::tail fields;
    std::uint64_t began_ns = 0;
    clock::time_point deadline = clock::time_point::max();
    std::size_t promised_bytes = 0;  // its part of promised_bytes_: what it occupies, and what its answer may have
    bool bypasses_memory = false;    // the principal already holds enough of it
  };

 private:
  using mapping = access_rules::mapping;
  using self = std::shared_ptr<session>;

  using request_ptr = std::shared_ptr<pending_request>;

  // A streamed put: its bytes go to the memory of `granted`.
  struct upload {
    request_ptr request;
    std::string key;
    store::grant granted;
    std::uint64_t have_bytes = 0;
    std::uint64_t reported_bytes = 0;  // how much has been reported to the engine
    std::uint64_t held_bytes = 0;      // part of the connection's allowance
    std::uint64_t patch_at = 0;        // where the body starts in the grant's memory
    std::uint32_t crc = 0;             // of the bytes so far
    store::version_t base_version = 0;
    std::shared_ptr<store::value_writer> writer;  // replaces `granted` for a value that memory does not hold
    bool refused = false;                         // already answered with an error; the rest of its frames is dropped
  };

  // A value that memory does not hold, on its way to the client.
  struct outgoing {
    request_ptr request;
    std::shared_ptr<store::value_reader> reader;
    std::uint64_t unread_bytes = 0, unsent_bytes = 0;
    bool reading = false, sending = false, ended = false;
    std::optional<result<std::span<const std::byte>>> ready;
  };
  using outgoing_ptr = std::shared_ptr<outgoing>;

  // A frame's body that is being read straight to its destination.
  struct incoming_body {
    store_protocol::head frame;
    std::shared_ptr<upload> receiver;  // null: nobody wants it
    std::vector<std::span<std::byte>> room;
    std::uint64_t left_bytes = 0;
    std::uint32_t crc = 0;
  };

  // ---- session.cpp: frames in, answers out
  void read_more();
  void received(std::error_code error, std::size_t bytes);
  void parse();
  bool parse_one();
  bool take_frame(std::span<const std::byte> whole, const store_protocol::head& header, std::string_view body);
  bool may_parse() const;
  void resume();
  void fill_from_buffer();
  // `bytes` of the current frame have arrived in its room.
  void room_filled(std::size_t bytes);
  void body_complete();
  void report_arrival(upload& one);
  void fail_protocol(const failure& reason);
  void give_up_uploads();
  void close(const char* reason);
  void finish_if_drained();
  void watch();
  std::string_view buffered() const { return buffer_.bytes(); }
  // Makes room for the next bytes. Returns false if the principal's frames already take too much; the connection then
  // ends.
  bool make_buffer_room();
  void count_memory();  // after a change of granted_bytes_ or pinned_bytes_
  void count_buffers();
  // Answers that wait, plus the bound of those that requests in progress will have.
  std::size_t answer_bytes() const { return out_.waiting_bytes() + promised_bytes_; }
  bool may_buffer_more() const;
  // ENOSPC if the principal already holds as much of the memory tier as it may. A value of any length is allowed if the
  // principal holds nothing else. `others` belong to this request and are not counted yet.
  status may_hold(std::uint64_t bytes, std::uint64_t others = 0) const;
  std::uint64_t max_held_bytes() const;
  failure holds_enough(std::uint64_t held_bytes) const;
  // Whether a get waits until a put of its principal has found room.
  bool lets_puts_pass(const pending_request& request) const;
  void hold(std::uint64_t bytes);
  void release_hold(std::uint64_t bytes);
  void hold_pin(std::uint64_t pin, std::uint64_t bytes, bool is_leased = false);
  void made_progress();
  bool is_sending_something() const;
  bool holds_nothing() const;
  bool join_principal();
  void finish_handshake();
  // Runs `work` on this connection's thread: at once if this is that thread.
  template <class Then>
  void run_on_home_thread(Then work);
  // Sends the only answer to a request.
  void answer(const request_ptr& request, const status& outcome, store_protocol::tail fields = {},
              std::string_view body = {}, std::uint64_t value_bytes = 0, std::uint16_t flags = 0);
  void answer(const request_ptr& request, const failure& reason) { answer(request, status(reason)); }
  void count_and_log(const pending_request& request, const status& outcome, std::uint64_t took_ns);

  // ---- session_room.cpp
  // Whether a put that finds no room may still wait.
  bool may_wait(const pending_request& request) const;
  // Runs `again` after a while; the connection is not read meanwhile.
  void wait_for_room(std::function<void()> again);
  // Calls `attempt` until it returns true, after those that wait already. Meanwhile the connection is read if its next
  // frames may make room.
  void queue_for_room(std::size_t bytes, std::function<bool()> attempt);
  void try_queue();
  bool is_queue_full() const;
  bool may_make_room() const;
  bool has_waited(const pending_request& request) const;
  status may_begin(std::uint64_t held) const;
  std::size_t live_requests() const;
  // Runs `again` after a while; the connection continues meanwhile.
  void retry_later(std::function<void()> again);
  // Tries `step` until it does not answer ENOSPC or the request's deadline has passed. No bytes of the request may
  // follow it.
  void until_room(const request_ptr& request, std::function<status()> step, std::function<void(const status&)> callback);

  // ---- session_values.cpp
  void dispatch(const request_ptr& request, std::string_view key, std::string_view body);
  void dispatch_value(const request_ptr& request, const pool_policy& pool, std::string_view key, std::string_view body);
  const char* why_not_mapped(store_protocol::opcode op) const;
  void put_whole(const request_ptr& request, std::string_view key, std::string_view body);
  bool bypasses_memory(const pending_request& request) const;
  bool try_put(const request_ptr& request, std::string_view key, std::string_view body);
  void put_streamed(const request_ptr& request, std::string_view key);
  void begin_upload(const std::shared_ptr<upload>& one);
  void upload_complete(const std::shared_ptr<upload>& one);
  // Finds and pins the value that the request names, then calls `handler` on this session's strand, or answers why not.
  void find_value(const request_ptr& request, std::string_view key,
                  void (session::*handler)(const request_ptr&, const store::pinned_value&));
  // Returns true, and releases the value, if the request has to read it past memory.
  bool holds_too_much(const request_ptr& request, const store::pinned_value& value);
  bool retry_lookup(const request_ptr& request, const std::string& key,
                    void (session::*handler)(const request_ptr&, const store::pinned_value&));
  void look_up_later(const request_ptr& request, const std::string& key,
                     void (session::*handler)(const request_ptr&, const store::pinned_value&));
  void send_value(const request_ptr& request, const store::pinned_value& value);
  void alloc(const request_ptr& request, std::string_view key);
  void arrived(const request_ptr& request);
  void commit(const request_ptr& request);
  void send_extents(const request_ptr& request, const store::pinned_value& value);
  void erase(const request_ptr& request, std::string_view key);
  void stat(const request_ptr& request, std::string_view key);
  void let_go(std::span<const std::uint64_t> pins);
  // Unpins pins that a client names, if they were lent to it.
  void take_back(const std::vector<std::uint64_t>& pins);
  // The service for the request: changes from another server bypass the checks for clients.
  store_cluster::value_service& service_for(const pending_request& request) {
    return request.fields.copy ? parts_.copies : parts_.values;
  }
  // Whether the request is a copy from another server. Other clients are refused when they begin one, and cannot claim
  // it later (commit).
  bool comes_from_server(const store_protocol::tail& fields) const {
    return fields.copy && parts_.access.is_admin(wire_->other());
  }
  // Whose quota the value counts against: the client's or, for a copy from another server, that of whoever put it
  // there.
  store::owner_id owner_of(const store_protocol::tail& fields) const;
  static store::request_key request_of(const store_protocol::tail& fields) {
    if (!fields.request_number) return {};
    return {fields.request_number->client, fields.request_number->number};
  }
  // Options for every request that stores something.
  store::put_options put_options_of(const store_protocol::tail& fields, std::uint16_t request_group) const;
  status admits(const pending_request& request, std::string_view key, bool writes);
  bool may_still_write(std::uint32_t pool) const;
  failure permission_lost(std::uint32_t pool) const;
  std::shared_lock<std::shared_mutex> gate_of(const pending_request& request);
  status is_still_admitted(const pending_request& request, std::string_view key);
  result<store::grant> begin(const pending_request& request, std::string_view key, store::begin_options options,
                             std::uint64_t& patch_at);
  store_protocol::outcome outcome_of(const store::put_result& done, std::uint64_t bytes, store_protocol::path way) const;
  store_protocol::outcome outcome_of(const store::value_info& info) const;

  // ---- session_batches.cpp
  struct batch_work;
  void dispatch_batch(const request_ptr& request, const pool_policy& pool, std::string_view key, std::string_view body);
  bool put_run(const request_ptr& request, const std::shared_ptr<batch_work>& work, const pool_policy& pool,
               const std::vector<store_protocol::batch_item>& items);
  void note_run(batch_work& work, const std::vector<store::committed_value>& done, const std::vector<std::uint64_t>& sizes);
  bool get_run(const request_ptr& request, const std::shared_ptr<batch_work>& work,
               const std::vector<store_protocol::batch_item>& items);
  store::get_options batch_get_options(const pending_request& request) const;
  static bool take_room(batch_work& work, std::size_t number, std::uint64_t wanted);
  void batch_item_done(const request_ptr& request, const std::shared_ptr<batch_work>& work);
  void batch_put(const request_ptr& request, const std::shared_ptr<batch_work>& work, std::size_t number,
                 const store_protocol::batch_item& one);
  void batch_erase(const request_ptr& request, const std::shared_ptr<batch_work>& work, std::size_t number,
                   const store_protocol::batch_item& one);
  void batch_read(const request_ptr& request, const std::shared_ptr<batch_work>& work, std::size_t number,
                  const store_protocol::batch_item& one);
  void batch_atomic(const request_ptr& request, const std::vector<store_protocol::batch_item>& items);
  void append_pinned(const store::pinned_value& value, std::uint64_t bytes, std::string& destination) const;
  struct prefix_page;
  void erase_prefix(const request_ptr& request, std::string prefix);
  void erase_found(const request_ptr& request, const store::find_page& found,
                   const std::optional<store_client::unit_list>& listed);
  // Runs `search`. With a page come the units that this server served before and after it, thus all the time.
  result<std::pair<store::find_page, std::optional<store_client::unit_list>>> listed_during(
      store::pool_id pool, const std::function<result<store::find_page>()>& search) const;
  void prefix_item_done(const request_ptr& request, const std::shared_ptr<prefix_page>& page);

  // ---- session_streams.cpp: values that memory does not hold
  // How much of the connection's allowance a request for this many bytes takes.
  std::uint64_t held_bytes(std::uint64_t value_bytes) const;
  void put_in_windows(const request_ptr& request, std::string_view key);
  void open_writer(const std::shared_ptr<upload>& one);
  // Returns false if the current frame must wait for room; the writer calls back.
  bool more_room();
  void refuse_upload(const std::shared_ptr<upload>& one, const failure& reason);
  void send_in_windows(const request_ptr& request, const store::pinned_value& value);
  void next_window(const outgoing_ptr& one);
  void send_window(const outgoing_ptr& one);

  // ---- session_ucx.cpp: bytes that go by UCX
  std::string ucx_refusal(const store_protocol::tail& handshake) const;
  void join_ucx(const request_ptr& request, store_protocol::tail fields);
  bool uses_ucx(const pending_request& request) const;
  void receive_by_ucx(const request_ptr& request, const store::grant& granted, std::uint64_t patch_at, std::string key);
  void ucx_received(std::uint64_t token, const status& outcome, std::uint32_t crc);
  bool settle_ucx_grant(std::uint64_t token);
  void commit_ucx_grant(const request_ptr& request, std::uint64_t token);
  void abort_ucx_grant(const request_ptr& request, std::uint64_t token);
  void send_by_ucx(const request_ptr& request, store_protocol::tail fields, std::uint64_t pin,
                   const std::vector<std::span<const std::byte>>& pieces, std::uint64_t bytes);
  void expire_ucx_commits();
  void leave_ucx();

  // ---- session_device.cpp: bytes that this server moves to and from the client's device memory
  struct device_transfer;
  using device_transfer_ptr = std::shared_ptr<device_transfer>;
  void link_device(const request_ptr& request);
  void unlink_device();
  // Finds the memory that the request names. ENOTSUP if this connection has no such memory.
  status name_device_memory(const pending_request& request, device_claim& claim) const;
  result<device_transfer_ptr> make_device_transfer(const request_ptr& request, std::string_view key);
  // Calls `next` on this thread once these parts of the arena are bound for the GPU, or with the reason why they cannot
  // be.
  template <class Next>
  void bind_for_device(const std::shared_ptr<device_gpu>& gpu, const std::vector<store::segment>& pieces, Next next);
  failure device_refusal(const failure& reason);
  void refuse_device(const request_ptr& request, const failure& reason);
  void put_from_device(const request_ptr& request, std::string_view key);
  void abort_device_put(const device_transfer_ptr& one);
  void fetch_from_device(const device_transfer_ptr& one);
  void add_device_fetch(const device_transfer_ptr& one, segment_walk& walk, std::uint64_t device_address,
                        std::uint64_t size);
  bool device_sums_ended(const device_transfer_ptr& one);
  void device_put_arrived(const device_transfer_ptr& one);
  void send_to_device(const request_ptr& request, const store::pinned_value& value);
  void write_to_device(const device_transfer_ptr& one);
  void device_get_ended(const device_transfer_ptr& one);

  // ---- session_device_batches.cpp: the same for many values of one frame
  struct device_batch;
  using device_batch_ptr = std::shared_ptr<device_batch>;
  void dispatch_device_batch(const request_ptr& request, const pool_policy& pool, std::string_view body);
  template <class Work>
  void beside(const device_batch& one, store_client::checksum_pool& threads, Work work);
  void hold_device_batch(device_batch& one, std::uint64_t bytes);
  void put_device_batch(const device_batch_ptr& one, std::uint64_t asked_bytes);
  status begin_device_batch(device_batch& one, const store::begin_options& options);
  void device_batch_begun(const device_batch_ptr& one, const status& begun);
  void end_device_put(const device_batch_ptr& one, const failure& reason);
  void fetch_device_batch(const device_batch_ptr& one);
  void prepare_device_commits(device_batch& one);
  void device_batch_arrived(const device_batch_ptr& one);
  void sum_device_batch(const device_batch_ptr& one);
  void device_batch_ready(const device_batch_ptr& one);
  void commit_ready_batches();
  status pin_device_item(device_batch& one, std::uint64_t value_bytes) const;
  void found_device_item(const device_batch_ptr& one, std::size_t i, const result<store::pinned_value>& found);
  void take_device_item(const device_batch_ptr& one, std::size_t i, std::uint64_t pin, const store::value_info& info,
                        store::segment_list segments) const;
  void end_device_lookup(const device_batch_ptr& one);
  void commit_batches();
  void commit_device_batch(const device_batch_ptr& one);
  void device_batch_committed(const device_batch_ptr& one, const std::vector<store::committed_value>& done);
  void abort_device_batch(const device_batch_ptr& one);
  void answer_device_batch(const device_batch_ptr& one, status outcome);
  void get_device_batch(const device_batch_ptr& one, std::uint64_t asked_bytes);
  void pin_device_batch(const device_batch_ptr& one, const store::get_options& options);
  void device_batch_found(const device_batch_ptr& one);
  void write_device_batch(const device_batch_ptr& one);
  void end_device_batch(const device_batch_ptr& one);
  void unpin_device_batch(const device_batch_ptr& one);

  // ---- session_watches.cpp
  struct watching;
  void dispatch_watch(const request_ptr& request, std::string_view key);
  void begin_watch(const request_ptr& request, std::string_view prefix);
  void answer_watch(const std::shared_ptr<watching>& one, bool is_over);
  void end_watch(std::uint64_t token, const failure& reason);
  void end_watches(const failure& reason, std::optional<store::pool_id> pool = std::nullopt);
  void drop_watches();

  // ---- session_pools.cpp
  bool dispatch_other(const request_ptr& request, std::string_view key, std::string_view body);
  void do_handshake(const request_ptr& request);
  void attach(const request_ptr& request);
  void open_rings(const request_ptr& request);
  void answer_with_descriptor(const request_ptr& request, const store_protocol::tail& fields, int fd);
  void pool_create(const request_ptr& request, std::string name);
  void pool_open(const request_ptr& request, std::string_view name);
  void pool_opened(const request_ptr& request, const store::pool_info& pool);
  void pool_set(const request_ptr& request, std::string name);
  void pool_delete(const request_ptr& request, std::string name);
  void pool_list(const request_ptr& request);
  void stats(const request_ptr& request);
  void find(const request_ptr& request);
  void sync(const request_ptr& request);
  void cluster_map(const request_ptr& request);
  void sync_keys(const request_ptr& request, std::string_view key, std::string_view body);
  void sync_requests(const request_ptr& request, std::string_view body);
  // Runs `work` where it may block, then `on_done` with its outcome on this thread.
  template <class T>
  void aside(const request_ptr& request, std::function<result<T>()> work, std::function<void(T)> on_done,
             fair_workers::kind kind = fair_workers::kind::brief);
  result<pool_policy> admin_of(std::string_view name) const;

  asio::io_context& home_;
  std::unique_ptr<transport> wire_;
  server_parts& parts_;
  outbox out_;
  asio::steady_timer watch_timer_, room_timer_, queue_timer_;

  receive_buffer buffer_;
  std::size_t wanted_bytes_ = 0;  // of the frame that has begun
  bool sends_much_ = false;       // the last read filled the buffer
  bool reading_ = false, parsing_ = false, is_handshake_done_ = false, closed_ = false, draining_ = false;
  access_rules::mapping mapped_ = access_rules::mapping::none;
  bool waiting_for_room_ = false;
  struct room_waiter {
    std::size_t bytes = 0;
    std::function<bool()> attempt;
  };
  std::deque<room_waiter> room_queue_;
  std::size_t queued_bytes_ = 0;
  bool broken_ = false;  // what arrives can no longer be parsed
  std::uint64_t opened_ns_ = 0;
  std::uint64_t progress_ns_ = 0;     // when a frame, or a good part of one, last arrived
  std::uint64_t progress_bytes_ = 0;  // bytes since then
  account_ref account_;
  account_share connected_, buffers_, memory_, pins_;
  std::uint64_t parse_ns_ = 0;  // when the parsed bytes were read; requests of one read share it
  std::optional<incoming_body> incoming_;
  std::unordered_map<std::uint64_t, std::shared_ptr<upload>> uploads_;
  std::unordered_map<std::uint32_t, pool_policy> pools_;  // opened on this connection
  std::uint64_t in_flight_ = 0;                           // requests that are not answered yet
  std::size_t promised_bytes_ = 0;                        // bound of their answers
  std::atomic<bool> gone_{false};                         // closed_, for threads that block
  std::uint64_t granted_bytes_ = 0;                       // for grants and uploads
  std::uint64_t pinned_bytes_ = 0;
  struct held_pin {
    std::uint64_t bytes = 0;
    // The client reads the value itself and releases it; otherwise a transfer does, which the server ends
    bool is_leased = false;
  };
  std::unordered_map<std::uint64_t, held_pin> pinned_;
  struct shm_grant {
    std::uint64_t bytes = 0;
    std::uint32_t pool = 0;
    std::string key;
  };
  std::unordered_map<std::uint64_t, shm_grant> grants_;  // by token
  // A grant whose bytes arrive by UCX, which owns the memory until `arrived`.
  struct ucx_grant {
    shm_grant room;
    store::grant_id id = 0;
    bool whole = true;  // all of the value's bytes arrive, so their checksum is the value's
    std::optional<status> arrived;
    std::uint32_t crc = 0;
    bool given_up = false;
    request_ptr commit;  // waits for the bytes
  };
  std::unordered_map<std::uint64_t, ucx_grant> ucx_grants_;  // by token, which is random
  store_client::stream_session_ptr stream_session_;
  std::unique_ptr<asio::steady_timer> ucx_timer_;
  std::unordered_map<std::uint64_t, std::shared_ptr<watching>> watches_;  // by token
  std::shared_ptr<device_imports> imports_;                               // null: the client has handed over nothing
  struct {
    std::mutex mutex;
    std::deque<device_batch_ptr> in_order;                // puts that are not committed yet, in the order of their frames
    bool is_busy = false;                                 // a thread is committing the front one, or has been told to
    std::shared_ptr<store_client::checksum_pool> thread;  // one of parts_.commits; set before the first frame is begun
  } device_commits_;
  store::session_id engine_session_ = 0;
  mutable store::owner_id owner_ = 0;  // of this client, after the first request for it
};

template <class Then>
void session::run_on_home_thread(Then work) {
  if (served_here == &home_) work();
  else asio::post(home_, std::move(work));
}

template <class T>
void session::aside(const request_ptr& request, std::function<result<T>()> work, std::function<void(T)> on_done,
                    fair_workers::kind kind) {
  parts_.blocking.post(kind, wire_->other().principal, this,
                       [me = shared_from_this(), request, work = std::move(work), on_done = std::move(on_done)] {
                         auto done = std::make_shared<result<T>>(work());
                         me->run_on_home_thread([me, request, done, on_done] {
                           if (!*done) return me->answer(request, done->error());
                           on_done(*std::move(*done));
                         });
                       });
}

}  // namespace pl::store_server
