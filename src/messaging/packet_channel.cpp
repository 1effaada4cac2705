// SPDX-License-Identifier: Apache-2.0
#include "messaging/packet_channel.hpp"

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/text.hpp"
#include "messaging/messenger_core.hpp"
#include "messaging/transport/rail_set.hpp"
#include "ucx/rdma_device.hpp"

namespace pl::messaging {
namespace {

// Limit of frames that arrived too early, in addition to the cost of messages. UCX lanes overtake each other by a few
// packets.
constexpr std::size_t kMaxEarly = 64u << 20;
constexpr std::uint64_t kLeaveNs = 1'000'000'000;  // limit for a peer that no longer reads

std::vector<std::string> devices_in(const std::string& rails) {
  std::vector<std::string> each;
  for (std::size_t begin = 0; begin < rails.size();) {
    const auto comma = std::min(rails.find(',', begin), rails.size());
    each.push_back(rails.substr(begin, comma - begin));
    begin = comma + 1;
  }
  return each;
}

// Selects the rail of a process that uses a single one: the ranks of a node take the rails in turn.
std::string one_of(const std::vector<std::string>& rails, int rank_on_node) {
  return rails.empty() ? std::string() : rails[static_cast<std::size_t>(rank_on_node) % rails.size()];
}

// UCX itself spreads messages over RDMA adapters (mlx5_0:1), without a copy, so a rail set of such adapters is used only on
// request.
bool is_adapter(const std::string& device) { return device.find(':') != std::string::npos; }

bool must_be_set(const messenger_options& options, const std::vector<std::string>& rails) {
  using choice = messenger_options::rail_failover_t;
  if (rails.size() < 2 || options.fixed_rail || options.rail_failover == choice::never) return false;
  return options.rail_failover == choice::always || std::none_of(rails.begin(), rails.end(), is_adapter);
}

}  // namespace

// ---- Opening, and the end

result<shm_queue_set::name> packet_channel::make_queues() {
  auto made = shm_queue_set::make(context_.size);
  if (!made) return std::move(made).error();
  send_queues_ = *std::move(made);
  return send_queues_->own_name();
}

result<shm_queue_set::name> packet_channel::renew_queues(peer_state& remote) {
  shm_queue_set::close(remote.queue_out);
  shm_queue_set::close(remote.queue_in);
  std::erase(queue_peers_, remote.rank);
  renewed_queues_.erase(remote.rank);
  if (!send_queues_) return shm_queue_set::name{};  // every peer is remote
  auto made = shm_queue_set::make(context_.size);
  if (!made) return std::move(made).error();
  const auto name = made->own_name();
  renewed_queues_.emplace(remote.rank, *std::move(made));
  return name;
}

result<bool> packet_channel::open_queues(peer_state& remote, const shm_queue_set::name& its_queues) {
  if (!send_queues_ || its_queues.fd < 0) return false;
  auto inbound = shm_queue_set::open_queue(its_queues, context_.rank);
  if (!inbound) return false;
  remote.queue_in = *inbound;
  const auto renewed = renewed_queues_.find(remote.rank);
  auto out = (renewed != renewed_queues_.end() ? renewed->second : *send_queues_).queue_to(remote.rank);
  if (!out) return std::move(out).error();
  remote.queue_out = *out;
  queue_peers_.push_back(remote.rank);
  return true;
}

status packet_channel::open_fabric(int rank_on_node) {
  const auto& options = context_.options;
  ucx_fabric::options wanted;
  wanted.library = options.ucx_library.empty() ? env_read("PEERLANE_UCX_LIBRARY").text : options.ucx_library;
  const auto rails = devices_in(options.rails);
  wanted.rails = options.fixed_rail ? one_of(rails, rank_on_node) : options.rails;
  wanted.stripe_threshold = options.stripe_threshold;
  wanted.keepalive_ms = options.peer_timeout.count();
  if (must_be_set(options, rails)) return open_rails(wanted, rails);
  // UCX's CUDA modules cost 0.8 s at start, and pay where a NIC reads and writes GPU memory.
  wanted.has_rdma = ucx::has_rdma_device();
  wanted.gpu_lanes = options.use_ucx_gpu_lanes && context_.cuda != nullptr && wanted.has_rdma;
  auto made = ucx_fabric::open(wanted, context_.size, *this);
  if (!made) return std::move(made).error();
  fabric_ = *std::move(made);
  return {};
}

status packet_channel::open_rails(const ucx_fabric::options& wanted, const std::vector<std::string>& rails) {
  auto made = rail_set::open(wanted, rails, context_.size, context_.rank, *this);
  if (!made) return std::move(made).error();
  fabric_ = *std::move(made);
  return {};
}

void packet_channel::close_all() {
  for (auto& each : context_.peers) {
    shm_queue_set::close(each.queue_out);
    shm_queue_set::close(each.queue_in);
    each.early.clear();
    each.early_bytes = 0;
  }
  fabric_.reset();
}

// Peers that receive `bye` end their pending operations. Frames sent before it arrive before it.
void packet_channel::leave() {
  is_leaving_ = true;
  auto& peers = context_.peers;
  for (auto& each : peers)
    if (each.rank != context_.rank && !each.is_dead && !each.has_left && each.sent + each.received > 0)
      send_control(each.rank, {.kind = frame_kind::bye});
  if (fabric_ != nullptr)
    for (auto& each : peers) fabric_->close(each.rank, each.is_dead || each.has_left);
  const auto limit = monotonic_ns() + kLeaveNs;
  const auto is_unsent = [](const peer_state& each) { return !each.is_dead && !each.has_left && !each.unsent.empty(); };
  while (monotonic_ns() < limit &&
         ((fabric_ != nullptr && fabric_->is_closing()) || std::any_of(peers.begin(), peers.end(), is_unsent))) {
    if (fabric_ != nullptr) fabric_->progress(), fabric_->reap_closed();
    advance_queues();
    for (const int rank : watch_.collect()) {
      context_.peer(rank).is_dead = true;
      context_.peer(rank).loss = format("rank %d has ended: its process is gone", rank);
    }
  }
}

// ---- Sleeping

void packet_channel::mark_sleeping(bool is_sleeping) {
  const bool waits_for_room =
      std::any_of(queue_peers_.begin(), queue_peers_.end(), [&](int rank) { return !context_.peer(rank).unsent.empty(); });
  const std::uint32_t reasons = !is_sleeping ? 0 : shm_queue::kForPackets | (waits_for_room ? shm_queue::kForRoom : 0);
  for (const int rank : queue_peers_) context_.peer(rank).queue_in.set_waiter(reasons);
}

status packet_channel::order_marks() const {
  if (queue_peers_.empty() || process_barrier::heavy()) return {};
  const bool all_fence = std::all_of(queue_peers_.begin(), queue_peers_.end(),
                                     [&](int rank) { return !context_.peer(rank).has_light_barrier; });
  if (all_fence) return {};
  return failure{ENOSYS,
                 "this process may not call membarrier, so it cannot sleep until a message comes (a filter of system "
                 "calls?): allow membarrier, or poll"};
}

void packet_channel::ring(peer_state& remote) {
  const std::uint32_t reasons = remote.queue_out.take_waiter();
  if (reasons == 0 || remote.doorbell.ring() || remote.is_lost) return;
  remote.is_wakeup_failed = has_failed_wakeup_ = true;  // for example at the limit of open files
}

void packet_channel::ring_again() {
  has_failed_wakeup_ = false;
  for (const int rank : queue_peers_) {
    auto& remote = context_.peer(rank);
    remote.is_wakeup_failed = remote.is_wakeup_failed && !remote.is_lost && !remote.doorbell.ring();
    has_failed_wakeup_ = has_failed_wakeup_ || remote.is_wakeup_failed;
  }
}

// ---- Sending

void packet_channel::send_packet(int rank, packet& outgoing) {
  auto& target = context_.peer(rank);
  outgoing.head.source = static_cast<std::uint32_t>(context_.rank);
  outgoing.head.sequence = target.sent++;
  outgoing.head.credit = target.reported_cost = target.taken_cost;
  outgoing.head.gpu = context_.gpu_use.last_used();
  if (!target.queue_out.is_open()) {
    context_.wake.note();  // a waiter must make the progress that UCX needs now
    return fabric_->send(rank, outgoing);
  }
  outgoing.outcome = 0;
  if (target.unsent.empty() && push(target, outgoing)) return;
  target.unsent.push_back(&outgoing);
  context_.wake.note();  // a waiter must wait for room, too
}

bool packet_channel::push(peer_state& destination, packet& outgoing) {
  const auto& head = outgoing.head;
  const compact_frame brief{.kind = head.kind, .space = head.space, .gpu = head.gpu, .tag = head.tag, .credit = head.credit};
  const bool is_brief = head.kind == frame_kind::eager;
  const std::size_t head_bytes = is_brief ? sizeof brief : sizeof head;
  static_assert(sizeof(frame) <= shm_queue::kMaxHead && thresholds::kMaxEager <= shm_queue::kMaxBody);
  const auto room = destination.queue_out.reserve(head_bytes, outgoing.payload);
  if (room.head == nullptr) return false;
  std::memcpy(room.head, is_brief ? static_cast<const void*>(&brief) : &head, head_bytes);
  if (outgoing.payload != 0) outgoing.outcome = outgoing.read(outgoing, 0, room.body, outgoing.payload);
  if (outgoing.outcome != 0) std::memset(room.body, 0, outgoing.payload);  // not the bytes of an older packet
  destination.queue_out.publish(outgoing.outcome);
  wake_peer(destination);
  outgoing.done(outgoing, 0);
  return true;
}

void packet_channel::send_operation(operation& op, frame_kind kind, std::size_t payload,
                                    int (*read)(packet&, std::size_t, void*, std::size_t), void (*done)(packet&, int)) {
  op.out.head.kind = kind;
  op.out.head.op = op.id();
  op.out.payload = payload;
  op.out.read = read;
  const bool is_data = kind == frame_kind::eager || kind == frame_kind::put_eager || kind == frame_kind::reply_eager;
  op.out.is_plain = kind != frame_kind::put_signal && (!is_data || !op.range.is_device);
  op.out.plain = !op.out.is_plain ? nullptr : is_data ? copy::host_pointer(op.range.address) : &op.transfer->rts;
  op.out.done = done;
  op.is_sending = true;
  send_packet(op.peer, op.out);
}

bool packet_channel::note_sent(operation& op) {
  op.is_sending = false;
  if (!op.has_ended()) return true;
  if (op.is_released) op.context->operations.give_back(op);
  return false;
}

// An eager send is complete. Everything else waits for an answer.
void packet_channel::on_operation_sent(packet& outgoing, int code) {
  auto& op = *static_cast<operation*>(outgoing.owner);
  if (!note_sent(op)) return;
  const bool is_whole = outgoing.head.kind == frame_kind::eager || outgoing.head.kind == frame_kind::reply_eager;
  if (code != 0) op.context->end(op, code, "the peer is gone");
  else if (is_whole)
    op.context->end(op, outgoing.outcome, outgoing.outcome == 0 ? "" : "the memory of the message could not be read");
}

control_packet& packet_channel::take_control() {
  if (free_control_ == nullptr) {
    controls_.push_back(std::make_unique<control_packet>());
    free_control_ = controls_.back().get();
    free_control_->channel = this;
    free_control_->owner = free_control_;
    free_control_->done = &packet_channel::on_control_sent;
    free_control_->read = [](packet& outgoing, std::size_t offset, void* out, std::size_t n) {
      std::memcpy(out, static_cast<control_packet*>(outgoing.owner)->inline_data.data() + offset, n);
      return 0;
    };
  }
  return *std::exchange(free_control_, free_control_->next);
}

void packet_channel::send_control(int rank, frame head, const void* data, std::size_t bytes) {
  if (context_.peer(rank).is_dead || context_.peer(rank).has_left) return;
  auto& taken = take_control();
  taken.head = head;
  taken.payload = bytes;
  taken.is_plain = true;
  taken.plain = taken.inline_data.data();
  barrier_frames_ += head.kind == frame_kind::barrier ? 1 : 0;
  if (bytes != 0) std::memcpy(taken.inline_data.data(), data, bytes);
  send_packet(rank, taken);
}

void packet_channel::on_control_sent(packet& outgoing, int) {  // on_lost reports failures of the endpoint
  auto& sent = *static_cast<control_packet*>(outgoing.owner);
  sent.next = std::exchange(sent.channel->free_control_, &sent);
  sent.channel->barrier_frames_ -= outgoing.head.kind == frame_kind::barrier ? 1 : 0;
}

void packet_channel::send_credit(peer_state& remote) {
  if (remote.taken_cost - remote.reported_cost > context_.limits.unexpected_bytes / 4)
    send_control(remote.rank, {.kind = frame_kind::credit});
}

std::size_t packet_channel::eager_limit(const memory& source, const peer_state& destination) const {
  const auto& limits = context_.limits;
  if (!source.is_device && destination.is_same_node) return limits.eager_host;
  if (!source.is_device)
    return fabric_->has_rdma_lane(destination.rank) ? limits.eager_host_rdma : limits.eager_host_network;
  if (context_.gpu_use.is_shared(source.device.device_ordinal)) return limits.eager_shared_gpu;
  return destination.is_same_node ? limits.eager_device : limits.eager_device_network;
}

// ---- Receiving, from a shm queue

void packet_channel::reap_closed() {
  if (fabric_ != nullptr) fabric_->reap_closed();
}

bool packet_channel::advance_queues() {
  bool has_moved = false;
  is_reading_ = true;
  for (const int rank : queue_peers_) {
    auto& remote = context_.peer(rank);
    if (read_queue(remote)) {
      has_moved = true;
      if (remote.queue_out.waiter() >= shm_queue::kForRoom) ring(remote);
    }
    while (!remote.unsent.empty() && push(remote, *remote.unsent.front())) {
      remote.unsent.pop_front();
      has_moved = true;
    }
  }
  is_reading_ = false;
  if (has_failed_wakeup_) ring_again();
  return has_moved;
}

// Reads a limited number of packets of one peer, so that no peer starves the others.
bool packet_channel::read_queue(peer_state& source) {
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
void packet_channel::take_from_queue(peer_state& source, const shm_queue::view& whole) {
  if (is_leaving_ || source.is_dead) return;
  if (compact_frame brief; whole.head_bytes == sizeof brief) {
    std::memcpy(&brief, whole.head, sizeof brief);
    ++source.received;
    receiver_.take_eager(source, brief, whole.body, whole.body_bytes, whole.outcome);
  } else if (frame head; whole.head_bytes == sizeof head) {
    std::memcpy(&head, whole.head, sizeof head);
    ++source.received;
    receiver_.dispatch(source, head, whole.body, whole.body_bytes, whole.outcome);
  }
}

void packet_channel::drain(peer_state& source) {
  while (source.queue_in.is_open() && read_queue(source)) {}
}

// ---- Receiving, from UCX, whose lanes may overtake each other

void packet_channel::on_packet(const std::byte* whole, std::size_t bytes) {
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

void packet_channel::on_plain(const void* raw_head, std::size_t head_bytes, const std::byte* payload, std::size_t bytes) {
  frame head;
  if (head_bytes > sizeof head || head_bytes < frame_bytes(frame_kind::eager)) return;
  std::memcpy(static_cast<void*>(&head), raw_head, head_bytes);
  if (head_bytes != frame_bytes(head.kind)) return;
  accept(head, payload, bytes, 0);
  arriving_.reset();
}

// Handled as an RTS of host memory that UCX can also deliver in place.
void packet_channel::on_remote(const frame& head, remote_data data) {
  const rts_body rts;
  arriving_ = std::move(data);
  accept(head, reinterpret_cast<const std::byte*>(&rts), sizeof rts, 0);
  arriving_.reset();
}

void packet_channel::accept(const frame& head, const std::byte* payload, std::size_t bytes, int outcome) {
  if (head.source >= context_.peers.size()) return;
  auto& source = context_.peers[head.source];
  if (is_leaving_) {
    source.has_left = source.has_left || head.kind == frame_kind::bye;  // its connections end now, which is no failure
    return;
  }
  if (source.is_dead) return;
  const auto ahead = static_cast<std::int32_t>(head.sequence - source.received);
  if (ahead < 0) return;
  if (ahead > 0) {
    byte_string whole(sizeof head + sizeof outcome + bytes);
    std::memcpy(whole.data(), &head, sizeof head);
    std::memcpy(whole.data() + sizeof head, &outcome, sizeof outcome);
    if (bytes != 0) std::memcpy(whole.data() + sizeof head + sizeof outcome, payload, bytes);
    const auto kept = whole.size() + sizeof(early_packet);
    if (source.early_bytes + kept > kMaxEarly + 4 * context_.limits.unexpected_bytes)
      return watch_.report(source.rank,
                           format("is lost: it sends frames, and not the one before them (number %u)", source.received));
    if (source.early.emplace(head.sequence, early_packet{std::move(whole), std::move(arriving_)}).second)
      source.early_bytes += kept;
    return;
  }
  if (++source.received == 1 && fabric_ != nullptr && !source.is_same_node) fabric_->keep_connections(source.rank);
  receiver_.dispatch(source, head, payload, bytes, outcome);
  if (!source.early.empty()) accept_early(source);
}

void packet_channel::accept_early(peer_state& source) {
  for (auto next = source.early.find(source.received); next != source.early.end();
       next = source.early.find(source.received)) {
    const byte_string whole = std::move(next->second.whole);
    arriving_ = std::move(next->second.data);
    source.early_bytes -= whole.size() + sizeof(early_packet);
    source.early.erase(next);
    ++source.received;
    frame head;
    trailer outcome;
    std::memcpy(&head, whole.data(), sizeof head);
    std::memcpy(&outcome, whole.data() + sizeof head, sizeof outcome);
    constexpr auto kBefore = sizeof head + sizeof outcome;
    receiver_.dispatch(source, head, whole.data() + kBefore, whole.size() - kBefore, outcome);
  }
}

// ---- The loss of a peer

void packet_channel::on_lost(int rank, const char* reason) {
  if (!is_leaving_ && !context_.peer(rank).has_left) watch_.report(rank, format("is lost: %s", reason));
}

void packet_channel::close(peer_state& destination) {
  while (!destination.unsent.empty()) {
    packet& never = *destination.unsent.front();
    destination.unsent.pop_front();
    never.done(never, ECONNRESET);
  }
  if (fabric_ != nullptr) fabric_->close(destination.rank, true);
}

}  // namespace pl::messaging
