// SPDX-License-Identifier: Apache-2.0
#include "messaging/messenger_core.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/text.hpp"
#include "os/fork_guard.hpp"
#include "ucx/rdma_device.hpp"

namespace pl::messaging {
namespace {

constexpr std::uint64_t kCheckDeathsNs = 2'000'000;
constexpr unsigned kRoundsBetweenClocks = 256;
constexpr std::uint64_t kLeaveNs = 1'000'000'000;  // a peer that takes nothing any more must not keep us

// The rail of a process that uses a single one: ranks of the node take them in turn.
std::string one_of(const std::string& rails, int rank_on_node) {
  std::vector<std::string> each;
  for (std::size_t begin = 0; begin < rails.size();) {
    const auto comma = std::min(rails.find(',', begin), rails.size());
    each.push_back(rails.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return each.empty() ? std::string() : each[static_cast<std::size_t>(rank_on_node) % each.size()];
}

// A short name for a GPU, the same in every process: never 0.
std::uint16_t gpu_name(const cu::driver_table& cuda, int ordinal) {
  cu::device_t device = 0;
  cu::uuid_t uuid{};
  if (cuda.cuDeviceGet(&device, ordinal) != cu::error_code::success ||
      cuda.cuDeviceGetUuid_v2(&uuid, device) != cu::error_code::success)
    return 0;
  const auto hash = std::hash<std::string_view>{}({reinterpret_cast<const char*>(uuid.bytes), sizeof uuid.bytes});
  return static_cast<std::uint16_t>((hash ^ hash >> 16 ^ hash >> 32) | 1);
}

}  // namespace

messenger_core::messenger_core(const cu::driver_table* cuda, const messenger_options& wanted, int rank, int size)
    : epoch_(claim_process_epoch()),
      options_(wanted),
      rank_(rank),
      size_(size),
      memory_(nullptr, nullptr),
      peers_(static_cast<std::size_t>(size)),
      operations_(this),
      cuda_(cuda),
      ipc_(cuda) {
  for (int i = 0; i < size; ++i) peer(i).rank = i;
}

bool messenger_core::is_foreign_process() const noexcept { return process_epoch() != epoch_; }

// ---- Opening

status messenger_core::open(bootstrap& group) {
  if (cuda_ != nullptr) {
    copy::planner* planner = options_.planner;
    if (planner == nullptr) {
      auto made = copy::planner::open(*cuda_, copy::planner::options_from_environment());
      if (!made) return std::move(made).error();
      own_planner_ = *std::move(made);
      planner = own_planner_.get();
    }
    memory_ = memory_access(cuda_, planner);
    choose_gpu();
  }
  thresholds_ = thresholds::choose(options_, memory_.has_gpu() ? &memory_.planner()->costs() : nullptr);
  pinned_.emplace(memory_.planner(), thresholds_.network_chunk_bytes);
  if (size_ > 1)
    if (auto done = exchange_introductions(group); !done) return done;
  is_open_ = true;
  return {};
}

void messenger_core::choose_gpu() {
  cu::device_t device = -1;
  cu::context_t current = nullptr;
  if (cuda_->cuCtxGetCurrent(&current) == cu::error_code::success && current != nullptr &&
      cuda_->cuCtxGetDevice(&device) == cu::error_code::success)
    gpu_ = gpu_name(*cuda_, device);
}

status messenger_core::open_fabric(int rank_on_node) {
  ucx_fabric::options wanted;
  wanted.library = options_.ucx_library.empty() ? env_read("PEERLANE_UCX_LIBRARY").text : options_.ucx_library;
  wanted.rails = options_.fixed_rail ? one_of(options_.rails, rank_on_node) : options_.rails;
  wanted.stripe_threshold = options_.stripe_threshold;
  wanted.keepalive_ms = options_.peer_timeout.count();
  // UCX's CUDA modules cost 0.8 s at start, and pay where a NIC reads and writes GPU memory.
  wanted.has_rdma = ucx::has_rdma_device();
  wanted.gpu_lanes = options_.use_ucx_gpu_lanes && cuda_ != nullptr && wanted.has_rdma;
  auto made = ucx_fabric::open(wanted, size_, *this);
  if (!made) return std::move(made).error();
  fabric_ = *std::move(made);
  return {};
}

// Opens the queues to every process of the node whose memory can be reached. The others count as remote.
status messenger_core::open_queues(const std::vector<introduction>& known) {
  for (auto& remote : peers_) {
    const auto& theirs = known[static_cast<std::size_t>(remote.rank)];
    remote.pid = theirs.node.pid;
    const bool is_near =
        send_queues_ && theirs.node.is_same_node(known[static_cast<std::size_t>(rank_)].node) && theirs.send_queues.fd >= 0;
    if (remote.rank == rank_ || !is_near) continue;
    auto inbound = shm_queue_set::open_queue(theirs.send_queues, rank_);
    if (!inbound) continue;
    remote.queue_in = *inbound;
    auto out = send_queues_->queue_to(remote.rank);
    if (!out) return std::move(out).error();
    remote.queue_out = *out;
    remote.is_same_node = true;
    queue_peers_.push_back(remote.rank);
  }
  return {};
}

status messenger_core::exchange_introductions(bootstrap& group) {
  introduction mine;
  mine.node = node_identity::current();
  mine.wants_calibration = options_.calibrate ? 1 : 0;
  if (options_.path == messenger_options::path_t::automatic) {
    auto send_queues = shm_queue_set::make(size_);
    if (!send_queues) return std::move(send_queues).error();
    send_queues_ = *std::move(send_queues);
    mine.send_queues = send_queues_->own_name();
  }
  const auto bytes_of = [](const introduction& value) { return std::as_bytes(std::span(&value, 1)); };
  auto all = group.all_gather(bytes_of(mine));
  if (!all) return std::move(all).error();
  std::vector<introduction> known(static_cast<std::size_t>(size_));
  int rank_on_node = 0;
  do_all_calibrate_ = true;
  for (std::size_t i = 0; i < known.size(); ++i) {
    if ((*all)[i].size() == sizeof(introduction)) std::memcpy(&known[i], (*all)[i].data(), sizeof(introduction));
    if ((*all)[i].size() != sizeof(introduction) || known[i].protocol != kProtocol)
      return failure{EPROTO, format("rank %zu runs another version of this library", i)};
    do_all_calibrate_ = do_all_calibrate_ && known[i].wants_calibration != 0;
    if (static_cast<int>(i) < rank_ && known[i].node.is_same_node(mine.node)) ++rank_on_node;
  }
  // A process that fails from here on reports it, so that the others do not wait.
  auto opened = open_queues(known);
  if (opened && queue_peers_.size() + 1 < peers_.size()) opened = open_fabric(rank_on_node);
  mine.is_ready = opened ? 1 : 0;
  mine.has_gpu_lanes = fabric_ != nullptr && fabric_->has_gpu_lanes();
  if (fabric_ != nullptr) mine.ports = fabric_->ports();
  byte_string whole(bytes_of(mine).begin(), bytes_of(mine).end());
  for (const auto& each : peers_) whole.push_back(std::byte{each.is_same_node});
  if (fabric_ != nullptr) whole.insert(whole.end(), fabric_->address().begin(), fabric_->address().end());
  all = group.all_gather(whole);
  if (!opened) return opened;
  if (!all) return std::move(all).error();
  for (std::size_t i = 0; i < known.size(); ++i)
    if (auto done = accept_introduction(i, (*all)[i], mine); !done) return done;
  // After this barrier every process was alive when its watch was set, and all know their peers.
  return group.barrier();
}

status messenger_core::accept_introduction(std::size_t rank, const byte_string& text, const introduction& mine) {
  introduction theirs;
  const std::size_t before_address = sizeof theirs + peers_.size();
  if (text.size() < before_address) return failure{EPROTO, format("rank %zu runs another version of this library", rank)};
  std::memcpy(&theirs, text.data(), sizeof theirs);
  if (theirs.is_ready == 0)
    return failure{ENOSYS, format("rank %zu could not open its messenger; its own error says why", rank)};
  auto& remote = peers_[rank];
  if (remote.rank == rank_) return {};
  if (remote.is_same_node != (text[sizeof theirs + static_cast<std::size_t>(rank_)] != std::byte{0}))
    return failure{EPERM,
                   format("ranks %d and %zu share a node, and one of them may not open the other's memory: run both as "
                          "the same user, or set PEERLANE_LINK_PATH=network",
                          rank_, rank)};
  remote.can_take_gpu_pointers = mine.has_gpu_lanes != 0 && theirs.has_gpu_lanes != 0 && !remote.is_same_node;
  if (!remote.is_same_node)
    fabric_->set_peer(remote.rank, byte_string(text.begin() + static_cast<std::ptrdiff_t>(before_address), text.end()),
                      theirs.ports);
  if (theirs.node.is_same_node(mine.node)) deaths_.add(remote.rank, remote.pid);
  return {};
}

messenger_core::~messenger_core() {
  if (size_ > 1 && is_open_) leave();
  for (auto& each : peers_) {
    drop_rings(each);
    shm_queue_set::close(each.queue_out);
    shm_queue_set::close(each.queue_in);
    each.early.clear();
  }
  // Releases messages that were never received. Their senders have got `bye`.
  operations_.for_each([](operation& each) {
    each.data.reset();
    if (each.transfer != nullptr) each.transfer->data.reset();
  });
  fabric_.reset();
}

// Peers that receive `bye` end their pending operations. Frames sent before it arrive before it.
void messenger_core::leave() {
  is_leaving_ = true;
  for (auto& each : peers_)
    if (each.rank != rank_ && !each.is_dead && !each.has_left && each.sent + each.received > 0)
      send_control(each.rank, {.kind = frame_kind::bye});
  if (fabric_ != nullptr)
    for (auto& each : peers_) fabric_->close(each.rank, each.is_dead || each.has_left);
  const auto limit = monotonic_ns() + kLeaveNs;
  const auto is_unsent = [](const peer_state& each) { return !each.is_dead && !each.has_left && !each.unsent.empty(); };
  while (monotonic_ns() < limit &&
         ((fabric_ != nullptr && fabric_->is_closing()) || std::any_of(peers_.begin(), peers_.end(), is_unsent))) {
    if (fabric_ != nullptr) fabric_->progress(), fabric_->reap_closed();
    advance_queues();
    for (const int rank : deaths_.collect()) peer(rank).is_dead = true;
  }
}

// ---- Packets

void messenger_core::send_packet(int destination_rank, packet& outgoing) {
  auto& target = peer(destination_rank);
  outgoing.head.source = static_cast<std::uint32_t>(rank_);
  outgoing.head.sequence = target.sent++;
  outgoing.head.credit = target.reported_cost = target.taken_cost;
  outgoing.head.gpu = is_gpu_used_ ? gpu_ : 0;
  if (!target.queue_out.is_open()) return fabric_->send(destination_rank, outgoing);
  outgoing.outcome = 0;
  if (!target.unsent.empty() || !push(target, outgoing)) target.unsent.push_back(&outgoing);
}

bool messenger_core::push(peer_state& destination, packet& outgoing) {
  const auto& head = outgoing.head;
  const compact_frame brief{.kind = head.kind, .gpu = head.gpu, .tag = head.tag, .credit = head.credit};
  const bool is_brief = head.kind == frame_kind::eager;
  const std::size_t head_bytes = is_brief ? sizeof brief : sizeof head;
  static_assert(sizeof(frame) <= shm_queue::kMaxHead && thresholds::kMaxEager <= shm_queue::kMaxBody);
  const auto room = destination.queue_out.reserve(head_bytes, outgoing.payload);
  if (room.head == nullptr) return false;
  std::memcpy(room.head, is_brief ? static_cast<const void*>(&brief) : &head, head_bytes);
  if (outgoing.payload != 0) outgoing.outcome = outgoing.read(outgoing, 0, room.body, outgoing.payload);
  if (outgoing.outcome != 0) std::memset(room.body, 0, outgoing.payload);  // not the bytes of an older packet
  destination.queue_out.publish(outgoing.outcome);
  outgoing.done(outgoing, 0);
  return true;
}

// Reads a limited number of packets of one peer, so that no peer starves the others.
bool messenger_core::read_queue(peer_state& source) {
  constexpr int kAtOnce = 16;
  int taken = 0;
  for (; taken < kAtOnce; ++taken) {
    const auto whole = source.queue_in.peek();
    if (whole.head == nullptr) break;
    take_from_queue(source, whole);
    source.queue_in.release();
  }
  return taken > 0;
}

// Packets in a shm queue are whole and in order, and the queue identifies the sender.
void messenger_core::take_from_queue(peer_state& source, const shm_queue::view& whole) {
  if (is_leaving_ || source.is_dead) return;
  frame head;
  if (whole.head_bytes == sizeof head) {
    std::memcpy(&head, whole.head, sizeof head);
  } else if (compact_frame brief; whole.head_bytes == sizeof brief) {
    std::memcpy(&brief, whole.head, sizeof brief);
    head.kind = frame_kind::eager;
    head.gpu = brief.gpu;
    head.tag = brief.tag;
    head.bytes = whole.body_bytes;
    head.credit = brief.credit;
  } else {
    return;
  }
  ++source.received;
  dispatch(source, head, whole.body, whole.body_bytes, whole.outcome);
}

bool messenger_core::advance_queues() {
  bool has_moved = false;
  is_reading_ = true;
  for (const int rank : queue_peers_) {
    auto& remote = peer(rank);
    has_moved = read_queue(remote) || has_moved;
    while (!remote.unsent.empty() && push(remote, *remote.unsent.front())) remote.unsent.pop_front();
  }
  is_reading_ = false;
  return has_moved;
}

void messenger_core::send_operation(operation& op, frame_kind kind, std::size_t payload,
                                    int (*read)(packet&, std::size_t, void*, std::size_t)) {
  op.out.head.kind = kind;
  op.out.head.op = op.id();
  op.out.payload = payload;
  op.out.read = read;
  const bool is_data = kind == frame_kind::eager || kind == frame_kind::put_eager || kind == frame_kind::reply_eager;
  op.out.is_plain = !is_data || !op.range.is_device;
  op.out.plain = !op.out.is_plain ? nullptr : is_data ? copy::host_pointer(op.range.address) : &op.transfer->rts;
  op.out.done = &messenger_core::on_packet_sent;
  op.is_sending = true;
  send_packet(op.peer, op.out);
}

// An eager send is complete. Everything else waits for an answer.
void messenger_core::on_packet_sent(packet& outgoing, int code) {
  auto& op = *static_cast<operation*>(outgoing.owner);
  op.is_sending = false;
  if (op.has_ended()) {
    if (op.is_released) op.core->operations_.give_back(op);
    return;
  }
  if (outgoing.in_place != nullptr) return op.core->on_in_place_done(op, code);
  const bool is_whole = outgoing.head.kind == frame_kind::eager || outgoing.head.kind == frame_kind::reply_eager;
  if (code != 0) op.core->end(op, code, "the peer is gone");
  else if (is_whole)
    op.core->end(op, outgoing.outcome, outgoing.outcome == 0 ? "" : "the memory of the message could not be read");
}

void messenger_core::send_control(int destination_rank, frame head, const void* data, std::size_t bytes) {
  if (peer(destination_rank).is_dead || peer(destination_rank).has_left) return;
  if (free_control_ == nullptr) {
    controls_.push_back(std::make_unique<control_packet>());
    free_control_ = controls_.back().get();
    free_control_->core = this;
    free_control_->owner = free_control_;
    free_control_->done = &messenger_core::on_control_packet_sent;
    free_control_->read = [](packet& outgoing, std::size_t offset, void* out, std::size_t n) {
      std::memcpy(out, static_cast<control_packet*>(outgoing.owner)->inline_data.data() + offset, n);
      return 0;
    };
  }
  auto& taken = *std::exchange(free_control_, free_control_->next);
  taken.head = head;
  taken.payload = bytes;
  taken.is_plain = true;
  taken.plain = taken.inline_data.data();
  barrier_frames_ += head.kind == frame_kind::barrier ? 1 : 0;
  if (bytes != 0) std::memcpy(taken.inline_data.data(), data, bytes);
  send_packet(destination_rank, taken);
}

void messenger_core::on_control_packet_sent(packet& outgoing, int) {  // a failure is the endpoint's, which on_lost tells
  auto& sent = *static_cast<control_packet*>(outgoing.owner);
  sent.next = std::exchange(sent.core->free_control_, &sent);
  sent.core->barrier_frames_ -= outgoing.head.kind == frame_kind::barrier ? 1 : 0;
}

void messenger_core::on_packet(const std::byte* whole, std::size_t bytes) {
  frame head;
  trailer outcome;
  if (bytes < sizeof head.kind) return;
  std::memcpy(&head.kind, whole, sizeof head.kind);
  const std::size_t head_bytes = frame_bytes(head.kind), least = head_bytes + sizeof outcome;
  if (bytes < least) return;
  std::memcpy(&head, whole, head_bytes);
  std::memcpy(&outcome, whole + bytes - sizeof outcome, sizeof outcome);
  accept(head, whole + head_bytes, bytes - least, outcome);
  arriving_.reset();
}

void messenger_core::on_plain(const void* raw_head, std::size_t head_bytes, const std::byte* payload, std::size_t bytes) {
  frame head;
  if (head_bytes > sizeof head || head_bytes < frame_bytes(frame_kind::eager)) return;
  std::memcpy(static_cast<void*>(&head), raw_head, head_bytes);
  if (head_bytes != frame_bytes(head.kind)) return;
  accept(head, payload, bytes, 0);
  arriving_.reset();
}

// Handled as an RTS of host memory that UCX can also deliver in place.
void messenger_core::on_remote(const frame& head, remote_data data) {
  const rts_body rts;
  arriving_ = std::move(data);
  accept(head, reinterpret_cast<const std::byte*>(&rts), sizeof rts, 0);
  arriving_.reset();
}

void messenger_core::accept(const frame& head, const std::byte* payload, std::size_t bytes, int outcome) {
  if (is_leaving_ || head.source >= peers_.size()) return;
  auto& source = peers_[head.source];
  if (source.is_dead) return;
  const auto ahead = static_cast<std::int32_t>(head.sequence - source.received);
  if (ahead < 0) return;
  if (ahead > 0) {
    byte_string whole(sizeof head + sizeof outcome + bytes);
    std::memcpy(whole.data(), &head, sizeof head);
    std::memcpy(whole.data() + sizeof head, &outcome, sizeof outcome);
    if (bytes != 0) std::memcpy(whole.data() + sizeof head + sizeof outcome, payload, bytes);
    source.early.emplace(head.sequence, early_packet{std::move(whole), std::move(arriving_)});
    return;
  }
  if (++source.received == 1 && fabric_ != nullptr && !source.is_same_node) fabric_->keep_connections(source.rank);
  dispatch(source, head, payload, bytes, outcome);
  while (!source.early.empty()) {
    const auto next = source.early.find(source.received);
    if (next == source.early.end()) break;
    const byte_string whole = std::move(next->second.whole);
    arriving_ = std::move(next->second.data);
    source.early.erase(next);
    ++source.received;
    frame early_head;
    std::memcpy(&early_head, whole.data(), sizeof early_head);
    std::memcpy(&outcome, whole.data() + sizeof early_head, sizeof outcome);
    constexpr auto kBefore = sizeof early_head + sizeof outcome;
    dispatch(source, early_head, whole.data() + kBefore, whole.size() - kBefore, outcome);
  }
}

void messenger_core::dispatch(peer_state& source, const frame& head, const std::byte* payload, std::size_t bytes,
                              int outcome) {
  update_credit(source, head);
  switch (head.kind) {
    case frame_kind::eager:
    case frame_kind::rts:
      return on_message(source, head, payload, bytes, outcome);
    case frame_kind::put_eager:
    case frame_kind::put_rts:
      return on_put(source, head, payload, bytes, outcome);
    case frame_kind::reply_eager:
    case frame_kind::reply_rts:
      return on_reply(source, head, payload, bytes, outcome);
    case frame_kind::get:
      return on_get(source, head);
    case frame_kind::atomic:
      if (atomic_request request; bytes == sizeof request) {
        std::memcpy(&request, payload, sizeof request);
        on_atomic(source, head, request);
      }
      return;
    case frame_kind::atomic_reply:
      if (operation* const asked = operations_.find(head.peer_op); asked != nullptr && !asked->has_ended()) {
        if (asked->before != nullptr) *asked->before = head.tag;
        end(*asked, head.code);
      }
      return;
    case frame_kind::rtr:
      if (rtr_body request; bytes == sizeof request) {
        std::memcpy(&request, payload, sizeof request);
        on_rtr(source, head, request);
      }
      return;
    case frame_kind::parts:
      return on_parts(source, head);
    case frame_kind::ats:
      return on_ats(head);
    case frame_kind::retract:
      return on_retract(source, head);
    case frame_kind::withdraw:
      return on_withdraw(source, head);
    case frame_kind::check:
      return on_check(source, head);
    case frame_kind::checked:
      return on_checked(source, head);
    case frame_kind::barrier:
      return on_barrier(source, head);
    case frame_kind::bye:
      source.has_left = true;
      leaving_.emplace_back(source.rank, monotonic_ns() + kLeaveNs);
      return;
    case frame_kind::credit:
    case frame_kind::hello:
      return;
  }
}

// ---- Credit: what a peer's messages cost here before a receive takes them is bounded by its sender.

void messenger_core::update_credit(peer_state& remote, const frame& head) {
  if (head.gpu != 0 && head.gpu != remote.gpu) {
    remote.gpu = head.gpu;
    if (remote.is_same_node && head.gpu == gpu_) is_gpu_shared_ = true;
  }
  if (head.credit <= remote.granted_cost) return;
  remote.granted_cost = head.credit;
  if (!remote.waiting_sends.is_empty()) send_waiting(remote);
}

void messenger_core::send_credit(peer_state& remote) {
  if (remote.taken_cost - remote.reported_cost > thresholds_.unexpected_bytes / 4)
    send_control(remote.rank, {.kind = frame_kind::credit});
}

// ---- Operations

void messenger_core::end(operation& op, int code, std::string message) {
  if (op.has_ended()) return;
  op.state = operation_state::ended;
  op.code = code;
  if (code != 0 && !message.empty()) op.message = std::move(message);
  if (op.kind == operation_kind::put) --peer(op.peer).puts;
  if (op.transfer != nullptr && !op.is_sending) op.transfer.reset();
  if (op.is_released && !op.is_sending) operations_.give_back(op);
}

void messenger_core::release(operation& op) {
  if (op.is_unpooled) {
    delete &op;
    return;
  }
  op.is_released = true;
  if (op.has_ended() && !op.is_sending) operations_.give_back(op);
}

operation& messenger_core::failed(operation_kind kind, int code, std::string message) {
  auto* const made = new operation;  // outside the pool: a forked child must not touch what the parent's threads may hold
  made->kind = kind;
  made->is_unpooled = true;
  made->state = operation_state::ended;
  made->code = code;
  made->message = std::move(message);
  return *made;
}

std::optional<failure> messenger_core::refuses_peer(int rank) const {
  if (rank < 0 || rank >= size_) return failure{EINVAL, format("there is no rank %d among %d processes", rank, size_)};
  const auto& remote = peers_[static_cast<std::size_t>(rank)];
  if (remote.is_dead) return failure{ECONNRESET, format("rank %d is gone", rank)};
  return std::nullopt;
}

touch messenger_core::touch_of(const memory& range) {
  if (!range.is_device) return touch::any;
  is_gpu_used_ = true;
  return is_gpu_shared_ ? touch::cpu_only : touch::any;
}

// ---- Progress and death

bool messenger_core::progress(bool with_network) {
  bool has_moved = advance_queues();
  if (fabric_ != nullptr && with_network) has_moved = fabric_->progress() != 0 || has_moved;
  if (!moving_.is_empty()) advance();
  if (!ring_peers_.empty()) advance_rings();
  if (++rounds_ % kRoundsBetweenClocks == 0) check_deaths();
  if (!leaving_.empty()) drop_leavers();
  while (!lost_.empty()) {
    const auto [rank, cause] = std::move(lost_.back());
    lost_.pop_back();
    mark_lost(rank, cause);
  }
  return has_moved;
}

// The last check is more recent than the time in which a process number can be reused.
bool messenger_core::is_gone(const peer_state& remote) {
  check_deaths();
  return remote.is_dead ||
         std::any_of(lost_.begin(), lost_.end(), [&](const auto& each) { return each.first == remote.rank; });
}

void messenger_core::check_deaths() {
  const auto now = monotonic_ns();
  if (now - last_death_check_ns_ < kCheckDeathsNs) return;
  last_death_check_ns_ = now;
  for (const int rank : deaths_.collect())
    if (!peer(rank).has_left) lost_.emplace_back(rank, "has ended: its process is gone");
  if (fabric_ != nullptr) fabric_->reap_closed();
}

// Receives the data that a process sent before it left, then counts it as lost.
void messenger_core::drop_leavers() {
  const auto now = monotonic_ns();
  std::erase_if(leaving_, [&](const auto& each) {
    bool is_busy = false;
    operations_.for_each(
        [&](const operation& op) { is_busy = is_busy || (op.peer == each.first && op.state == operation_state::moving); });
    if (is_busy && now < each.second) return false;
    lost_.emplace_back(each.first, "has left: it closed its messenger");
    return true;
  });
}

void messenger_core::on_lost(int rank, const char* reason) {
  if (!is_leaving_ && !peer(rank).has_left) lost_.emplace_back(rank, format("is lost: %s", reason));
}

void messenger_core::mark_lost(int rank, const std::string& cause) {
  auto& remote = peer(rank);
  if (remote.is_dead) return;
  remote.refuses_cma = true;                                 // its number may be another process's by now
  while (remote.queue_in.is_open() && read_queue(remote)) {  // what it had sent whole
  }
  remote.is_dead = true;
  deaths_.remove(rank);
  while (!remote.unsent.empty()) {
    packet& never = *remote.unsent.front();
    remote.unsent.pop_front();
    never.done(never, ECONNRESET);
  }
  if (fabric_ != nullptr) fabric_->close(rank, true);
  fail_operations_of(rank, format("rank %d %s", rank, cause.c_str()));
  drop_rings(remote);
  remote.early.clear();
  ipc_.forget(rank);
}

void messenger_core::fail_operations_of(int rank, const std::string& cause) {
  while (operation* const waiting = peer(rank).waiting_sends.pop_front()) end(*waiting, ECONNRESET, cause);
  while (operation* const waiting_fill = peer(rank).fill_queue.pop_front()) end(*waiting_fill, ECONNRESET, cause);
  operations_.for_each([&](operation& each) {
    // A wildcard receive may have been meant for the lost peer, so it must report the loss.
    const bool is_of = each.peer == rank || (each.kind == operation_kind::receive && each.peer == kAnySource &&
                                             each.state == operation_state::waiting);
    if (is_of && !each.has_ended()) fail_operation_of(each, cause);
  });
}

void messenger_core::fail_operation_of(operation& op, const std::string& cause) {
  if (op.kind == operation_kind::unexpected) {
    if (!op.is_rendezvous || op.is_taken) return;  // complete messages stay receivable
    matcher_.remove_unexpected(op);
    op.state = operation_state::ended;
    operations_.give_back(op);
    return;
  }
  if (op.state == operation_state::moving && op.transfer != nullptr) {
    // These end by themselves: the IPC mapping lives until it is closed here, and the next CMA read fails.
    const auto transport = op.transfer->transport;
    if ((transport == transport_kind::cuda_ipc || transport == transport_kind::cma) && !op.transfer->is_checked) return;
    if (op.transfer->transport == transport_kind::ucx) {
      op.transfer->code = ECONNRESET;
      op.transfer->message = cause;
      op.transfer->is_withdrawn = true;
      op.transfer->lost_ns = monotonic_ns();
      return abandon_parts(op);
    }
  }
  if (op.kind == operation_kind::receive && op.state == operation_state::waiting) matcher_.remove_receive(op);
  end(op, ECONNRESET, cause);
}

}  // namespace pl::messaging
