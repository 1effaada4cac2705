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

namespace pl::link {
namespace {

constexpr std::uint64_t kLookForDeathsNs = 2'000'000;
constexpr unsigned kRoundsBetweenClocks = 256;
constexpr std::uint64_t kLeaveNs = 1'000'000'000;  // a peer that takes nothing any more must not keep us

// The rail of a process that is to use one: they go round the node.
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

engine::engine(const cu::driver_table* cuda, const messenger_options& wanted, int rank, int size)
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

bool engine::is_foreign_process() const noexcept { return process_epoch() != epoch_; }

// ---- Opening

status engine::open(bootstrap& with) {
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
  limits_ = crossovers::from(options_, memory_.has_gpu() ? &memory_.planner()->costs() : nullptr);
  pinned_.emplace(memory_.planner(), limits_.network_chunk_bytes);
  if (size_ > 1)
    if (auto done = introduce(with); !done) return done;
  is_open_ = true;
  return {};
}

void engine::choose_gpu() {
  cu::device_t device = -1;
  cu::context_t current = nullptr;
  if (cuda_->cuCtxGetCurrent(&current) == cu::error_code::success && current != nullptr &&
      cuda_->cuCtxGetDevice(&device) == cu::error_code::success)
    gpu_ = gpu_name(*cuda_, device);
}

status engine::open_fabric(int rank_on_node) {
  fabric::options wanted;
  wanted.library = options_.ucx_library.empty() ? env_read("PEERLANE_UCX_LIBRARY").text : options_.ucx_library;
  wanted.rails = options_.fixed_rail ? one_of(options_.rails, rank_on_node) : options_.rails;
  wanted.stripe_threshold = options_.stripe_threshold;
  wanted.keepalive_ms = options_.peer_timeout.count();
  // UCX's CUDA modules cost 0.8 s at start, and pay where a NIC reads and writes GPU memory.
  wanted.has_rdma = ucx::has_rdma_device();
  wanted.gpu_lanes = options_.use_ucx_gpu_lanes && cuda_ != nullptr && wanted.has_rdma;
  auto made = fabric::open(wanted, size_, *this);
  if (!made) return std::move(made).error();
  fabric_ = *std::move(made);
  return {};
}

// To every process of the node whose memory can be reached. Those that cannot count as on another node.
status engine::open_lanes(const std::vector<introduction>& known) {
  for (auto& of : peers_) {
    const auto& its = known[static_cast<std::size_t>(of.rank)];
    of.pid = its.node.pid;
    const bool is_near = outbox_ && its.node.is_same_node(known[static_cast<std::size_t>(rank_)].node) && its.outbox.fd >= 0;
    if (of.rank == rank_ || !is_near) continue;
    auto in = shm_outbox::open_lane(its.outbox, rank_);
    if (!in) continue;
    of.lane_in = *in;
    auto out = outbox_->lane_to(of.rank);
    if (!out) return std::move(out).error();
    of.lane_out = *out;
    of.is_same_node = true;
    lane_peers_.push_back(of.rank);
  }
  return {};
}

status engine::introduce(bootstrap& with) {
  introduction mine;
  mine.node = node_identity::here();
  mine.wants_calibration = options_.calibrate ? 1 : 0;
  if (options_.path == messenger_options::path_t::automatic) {
    auto outbox = shm_outbox::make(size_);
    if (!outbox) return std::move(outbox).error();
    outbox_ = *std::move(outbox);
    mine.outbox = outbox_->own_name();
  }
  const auto bytes_of = [](const introduction& what) { return std::as_bytes(std::span(&what, 1)); };
  auto all = with.all_gather(bytes_of(mine));
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
  // A process that fails from here on says so to the others instead of letting them wait.
  auto opened = open_lanes(known);
  if (opened && lane_peers_.size() + 1 < peers_.size()) opened = open_fabric(rank_on_node);
  mine.is_ready = opened ? 1 : 0;
  mine.has_gpu_lanes = fabric_ != nullptr && fabric_->has_gpu_lanes();
  if (fabric_ != nullptr) mine.ports = fabric_->ports();
  byte_string whole(bytes_of(mine).begin(), bytes_of(mine).end());
  for (const auto& each : peers_) whole.push_back(std::byte{each.is_same_node});
  if (fabric_ != nullptr) whole.insert(whole.end(), fabric_->address().begin(), fabric_->address().end());
  all = with.all_gather(whole);
  if (!opened) return opened;
  if (!all) return std::move(all).error();
  for (std::size_t i = 0; i < known.size(); ++i)
    if (auto done = meet(i, (*all)[i], mine); !done) return done;
  // Everyone lived when the watches were set; and nobody sends to a process that does not know its peers yet.
  return with.barrier();
}

status engine::meet(std::size_t rank, const byte_string& text, const introduction& mine) {
  introduction its;
  const std::size_t before_address = sizeof its + peers_.size();
  if (text.size() < before_address) return failure{EPROTO, format("rank %zu runs another version of this library", rank)};
  std::memcpy(&its, text.data(), sizeof its);
  if (its.is_ready == 0)
    return failure{ENOSYS, format("rank %zu could not open its messenger; its own error says why", rank)};
  auto& of = peers_[rank];
  if (of.rank == rank_) return {};
  if (of.is_same_node != (text[sizeof its + static_cast<std::size_t>(rank_)] != std::byte{0}))
    return failure{EPERM,
                   format("ranks %d and %zu share a node, and one of them may not open the other's memory: run both as "
                          "the same user, or set PEERLANE_LINK_PATH=network",
                          rank_, rank)};
  of.can_take_gpu_pointers = mine.has_gpu_lanes != 0 && its.has_gpu_lanes != 0 && !of.is_same_node;
  if (!of.is_same_node)
    fabric_->set_peer(of.rank, byte_string(text.begin() + static_cast<std::ptrdiff_t>(before_address), text.end()),
                      its.ports);
  if (its.node.is_same_node(mine.node)) deaths_.add(of.rank, of.pid);
  return {};
}

engine::~engine() {
  if (size_ > 1 && is_open_) leave();
  for (auto& each : peers_) {
    drop_rings(each);
    shm_outbox::close(each.lane_out);
    shm_outbox::close(each.lane_in);
    each.early.clear();
  }
  // What nobody has received: its senders were told that this process leaves.
  operations_.for_each([](operation& each) {
    each.data.reset();
    if (each.transfer != nullptr) each.transfer->data.reset();
  });
  fabric_.reset();
}

// Others see `bye` and end what they wait for; what was sent before it arrives before it.
void engine::leave() {
  is_leaving_ = true;
  for (auto& each : peers_)
    if (each.rank != rank_ && !each.is_dead && !each.has_left && each.sent + each.received > 0)
      control(each.rank, {.kind = frame_kind::bye});
  if (fabric_ != nullptr)
    for (auto& each : peers_) fabric_->close(each.rank, each.is_dead || each.has_left);
  const auto limit = monotonic_ns() + kLeaveNs;
  const auto is_unsent = [](const peer_state& each) { return !each.is_dead && !each.has_left && !each.unsent.empty(); };
  while (monotonic_ns() < limit &&
         ((fabric_ != nullptr && fabric_->is_closing()) || std::any_of(peers_.begin(), peers_.end(), is_unsent))) {
    if (fabric_ != nullptr) fabric_->progress(), fabric_->reap_closed();
    advance_lanes();
    for (const int rank : deaths_.look()) peer(rank).is_dead = true;
  }
}

// ---- Packets

void engine::depart(int to, packet& what) {
  auto& target = peer(to);
  what.head.source = static_cast<std::uint32_t>(rank_);
  what.head.sequence = target.sent++;
  what.head.credit = target.told_cost = target.taken_cost;
  what.head.gpu = is_gpu_used_ ? gpu_ : 0;
  if (!target.lane_out.is_open()) return fabric_->send(to, what);
  what.outcome = 0;
  if (!target.unsent.empty() || !push(target, what)) target.unsent.push_back(&what);
}

bool engine::push(peer_state& to, packet& what) {
  const auto& head = what.head;
  const lane_frame brief{.kind = head.kind, .gpu = head.gpu, .tag = head.tag, .credit = head.credit};
  const bool is_brief = head.kind == frame_kind::eager;
  const std::size_t head_bytes = is_brief ? sizeof brief : sizeof head;
  static_assert(sizeof(frame) <= shm_lane::kMostHead && crossovers::kMostEager <= shm_lane::kMostBody);
  const auto room = to.lane_out.reserve(head_bytes, what.payload);
  if (room.head == nullptr) return false;
  std::memcpy(room.head, is_brief ? static_cast<const void*>(&brief) : &head, head_bytes);
  if (what.payload != 0) what.outcome = what.read(what, 0, room.body, what.payload);
  if (what.outcome != 0) std::memset(room.body, 0, what.payload);  // not the bytes of an older packet
  to.lane_out.publish(what.outcome);
  what.done(what, 0);
  return true;
}

// Some packets of one peer, so that none keeps the others waiting.
bool engine::read_lane(peer_state& from) {
  constexpr int kAtOnce = 16;
  int taken = 0;
  for (; taken < kAtOnce; ++taken) {
    const auto whole = from.lane_in.peek();
    if (whole.head == nullptr) break;
    take_from_lane(from, whole);
    from.lane_in.release();
  }
  return taken > 0;
}

// In a lane packets are whole and in order, and the lane says whose they are.
void engine::take_from_lane(peer_state& from, const shm_lane::view& whole) {
  if (is_leaving_ || from.is_dead) return;
  frame head;
  if (whole.head_bytes == sizeof head) {
    std::memcpy(&head, whole.head, sizeof head);
  } else if (lane_frame brief; whole.head_bytes == sizeof brief) {
    std::memcpy(&brief, whole.head, sizeof brief);
    head.kind = frame_kind::eager;
    head.gpu = brief.gpu;
    head.tag = brief.tag;
    head.bytes = whole.body_bytes;
    head.credit = brief.credit;
  } else {
    return;
  }
  ++from.received;
  dispatch(from, head, whole.body, whole.body_bytes, whole.outcome);
}

bool engine::advance_lanes() {
  bool has_moved = false;
  is_reading_ = true;
  for (const int rank : lane_peers_) {
    auto& with = peer(rank);
    has_moved = read_lane(with) || has_moved;
    while (!with.unsent.empty() && push(with, *with.unsent.front())) with.unsent.pop_front();
  }
  is_reading_ = false;
  return has_moved;
}

void engine::depart_operation(operation& what, frame_kind kind, std::size_t payload,
                              int (*read)(packet&, std::size_t, void*, std::size_t)) {
  what.out.head.kind = kind;
  what.out.head.op = what.id();
  what.out.payload = payload;
  what.out.read = read;
  const bool is_data = kind == frame_kind::eager || kind == frame_kind::put_eager || kind == frame_kind::reply_eager;
  what.out.is_plain = !is_data || !what.at.is_device;
  what.out.plain = !what.out.is_plain ? nullptr : is_data ? copy::host_pointer(what.at.address) : &what.transfer->offer;
  what.out.done = &engine::on_departed;
  what.is_departing = true;
  depart(what.peer, what.out);
}

// A message sent whole has ended for its sender; everything else waits for an answer.
void engine::on_departed(packet& what, int code) {
  auto& of = *static_cast<operation*>(what.owner);
  of.is_departing = false;
  if (of.has_ended()) {
    if (of.is_released) of.home->operations_.give_back(of);
    return;
  }
  if (what.in_place != nullptr) return of.home->on_let_go(of, code);
  const bool is_whole = what.head.kind == frame_kind::eager || what.head.kind == frame_kind::reply_eager;
  if (code != 0) of.home->end(of, code, "the peer is gone");
  else if (is_whole) of.home->end(of, what.outcome, what.outcome == 0 ? "" : "the memory of the message could not be read");
}

void engine::control(int to, frame head, const void* data, std::size_t bytes) {
  if (peer(to).is_dead || peer(to).has_left) return;
  if (free_control_ == nullptr) {
    controls_.push_back(std::make_unique<control_packet>());
    free_control_ = controls_.back().get();
    free_control_->home = this;
    free_control_->owner = free_control_;
    free_control_->done = &engine::on_control_sent;
    free_control_->read = [](packet& from, std::size_t offset, void* out, std::size_t n) {
      std::memcpy(out, static_cast<control_packet*>(from.owner)->inline_data.data() + offset, n);
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
  depart(to, taken);
}

void engine::on_control_sent(packet& what, int) {  // a failure is the endpoint's, which on_lost tells
  auto& sent = *static_cast<control_packet*>(what.owner);
  sent.next = std::exchange(sent.home->free_control_, &sent);
  sent.home->barrier_frames_ -= what.head.kind == frame_kind::barrier ? 1 : 0;
}

void engine::on_packet(const std::byte* whole, std::size_t bytes) {
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

void engine::on_plain(const void* from, std::size_t head_bytes, const std::byte* payload, std::size_t bytes) {
  frame head;
  if (head_bytes > sizeof head || head_bytes < frame_bytes(frame_kind::eager)) return;
  std::memcpy(static_cast<void*>(&head), from, head_bytes);
  if (head_bytes != frame_bytes(head.kind)) return;
  accept(head, payload, bytes, 0);
  arriving_.reset();
}

// As if its sender had offered host memory, and UCX can bring it besides.
void engine::on_remote(const frame& head, remote_data what) {
  const bulk_offer offer;
  arriving_ = std::move(what);
  accept(head, reinterpret_cast<const std::byte*>(&offer), sizeof offer, 0);
  arriving_.reset();
}

void engine::accept(const frame& head, const std::byte* payload, std::size_t bytes, int outcome) {
  if (is_leaving_ || head.source >= peers_.size()) return;
  auto& from = peers_[head.source];
  if (from.is_dead) return;
  const auto ahead = static_cast<std::int32_t>(head.sequence - from.received);
  if (ahead < 0) return;
  if (ahead > 0) {
    byte_string whole(sizeof head + sizeof outcome + bytes);
    std::memcpy(whole.data(), &head, sizeof head);
    std::memcpy(whole.data() + sizeof head, &outcome, sizeof outcome);
    if (bytes != 0) std::memcpy(whole.data() + sizeof head + sizeof outcome, payload, bytes);
    from.early.emplace(head.sequence, early_packet{std::move(whole), std::move(arriving_)});
    return;
  }
  if (++from.received == 1 && fabric_ != nullptr && !from.is_same_node) fabric_->keep_connections(from.rank);
  dispatch(from, head, payload, bytes, outcome);
  while (!from.early.empty()) {
    const auto next = from.early.find(from.received);
    if (next == from.early.end()) break;
    const byte_string whole = std::move(next->second.whole);
    arriving_ = std::move(next->second.data);
    from.early.erase(next);
    ++from.received;
    frame then;
    std::memcpy(&then, whole.data(), sizeof then);
    std::memcpy(&outcome, whole.data() + sizeof then, sizeof outcome);
    constexpr auto kBefore = sizeof then + sizeof outcome;
    dispatch(from, then, whole.data() + kBefore, whole.size() - kBefore, outcome);
  }
}

void engine::dispatch(peer_state& from, const frame& head, const std::byte* payload, std::size_t bytes, int outcome) {
  update_credit(from, head);
  switch (head.kind) {
    case frame_kind::eager:
    case frame_kind::announce:
      return on_message(from, head, payload, bytes, outcome);
    case frame_kind::put_eager:
    case frame_kind::put_announce:
      return on_put(from, head, payload, bytes, outcome);
    case frame_kind::reply_eager:
    case frame_kind::reply_announce:
      return on_reply(from, head, payload, bytes, outcome);
    case frame_kind::get:
      return on_get(from, head);
    case frame_kind::atomic:
      if (atomic_request what; bytes == sizeof what) {
        std::memcpy(&what, payload, sizeof what);
        on_atomic(from, head, what);
      }
      return;
    case frame_kind::atomic_reply:
      if (operation* const asked = operations_.find(head.peer_op); asked != nullptr && !asked->has_ended()) {
        if (asked->before != nullptr) *asked->before = head.tag;
        end(*asked, head.code);
      }
      return;
    case frame_kind::start:
      if (start_order what; bytes == sizeof what) {
        std::memcpy(&what, payload, sizeof what);
        on_start(from, head, what);
      }
      return;
    case frame_kind::parts:
      return on_parts(from, head);
    case frame_kind::finish:
      return on_finish(head);
    case frame_kind::retract:
      return on_retract(from, head);
    case frame_kind::withdraw:
      return on_withdraw(from, head);
    case frame_kind::check:
      return on_check(from, head);
    case frame_kind::checked:
      return on_checked(from, head);
    case frame_kind::barrier:
      return on_barrier(from, head);
    case frame_kind::bye:
      from.has_left = true;
      leaving_.emplace_back(from.rank, monotonic_ns() + kLeaveNs);
      return;
    case frame_kind::credit:
    case frame_kind::hello:
      return;
  }
}

// ---- Credit: what a peer's messages cost here before a receive takes them is bounded by its sender.

void engine::update_credit(peer_state& with, const frame& head) {
  if (head.gpu != 0 && head.gpu != with.gpu) {
    with.gpu = head.gpu;
    if (with.is_same_node && head.gpu == gpu_) is_gpu_shared_ = true;
  }
  if (head.credit <= with.granted_cost) return;
  with.granted_cost = head.credit;
  if (!with.waiting_sends.is_empty()) send_waiting(with);
}

void engine::tell_credit(peer_state& with) {
  if (with.taken_cost - with.told_cost > limits_.unexpected_bytes / 4) control(with.rank, {.kind = frame_kind::credit});
}

// ---- Operations

void engine::end(operation& what, int code, std::string message) {
  if (what.has_ended()) return;
  what.state = operation_state::ended;
  what.code = code;
  if (code != 0 && !message.empty()) what.message = std::move(message);
  if (what.kind == operation_kind::put) --peer(what.peer).puts;
  if (what.transfer != nullptr && !what.is_departing) what.transfer.reset();
  if (what.is_released && !what.is_departing) operations_.give_back(what);
}

void engine::release(operation& what) {
  if (what.is_loose) {
    delete &what;
    return;
  }
  what.is_released = true;
  if (what.has_ended() && !what.is_departing) operations_.give_back(what);
}

operation& engine::failed(operation_kind kind, int code, std::string message) {
  auto* const made = new operation;  // outside the pool: a forked child must not touch what the parent's threads may hold
  made->kind = kind;
  made->is_loose = true;
  made->state = operation_state::ended;
  made->code = code;
  made->message = std::move(message);
  return *made;
}

std::optional<failure> engine::refuses_peer(int rank) const {
  if (rank < 0 || rank >= size_) return failure{EINVAL, format("there is no rank %d among %d processes", rank, size_)};
  const auto& of = peers_[static_cast<std::size_t>(rank)];
  if (of.is_dead) return failure{ECONNRESET, format("rank %d is gone", rank)};
  return std::nullopt;
}

touch engine::touch_of(const memory& what) {
  if (!what.is_device) return touch::any;
  is_gpu_used_ = true;
  return is_gpu_shared_ ? touch::cpu_only : touch::any;
}

// ---- Progress and death

bool engine::progress(bool with_network) {
  bool has_moved = advance_lanes();
  if (fabric_ != nullptr && with_network) has_moved = fabric_->progress() != 0 || has_moved;
  if (!moving_.is_empty()) advance();
  if (!ring_peers_.empty()) advance_rings();
  if (++rounds_ % kRoundsBetweenClocks == 0) look_for_deaths();
  if (!leaving_.empty()) see_off();
  while (!lost_.empty()) {
    const auto [rank, why] = std::move(lost_.back());
    lost_.pop_back();
    lose(rank, why);
  }
  return has_moved;
}

// By the last look, which is no older than a process number needs to be used again.
bool engine::is_gone(const peer_state& of) {
  look_for_deaths();
  return of.is_dead || std::any_of(lost_.begin(), lost_.end(), [&](const auto& each) { return each.first == of.rank; });
}

void engine::look_for_deaths() {
  const auto now = monotonic_ns();
  if (now - last_look_ns_ < kLookForDeathsNs) return;
  last_look_ns_ = now;
  for (const int rank : deaths_.look())
    if (!peer(rank).has_left) lost_.emplace_back(rank, "has ended: its process is gone");
  if (fabric_ != nullptr) fabric_->reap_closed();
}

// What a process has sent before it left is still taken; then it counts as lost.
void engine::see_off() {
  const auto now = monotonic_ns();
  std::erase_if(leaving_, [&](const auto& each) {
    bool is_busy = false;
    operations_.for_each(
        [&](const operation& of) { is_busy = is_busy || (of.peer == each.first && of.state == operation_state::moving); });
    if (is_busy && now < each.second) return false;
    lost_.emplace_back(each.first, "has left: it closed its messenger");
    return true;
  });
}

void engine::on_lost(int rank, const char* reason) {
  if (!is_leaving_ && !peer(rank).has_left) lost_.emplace_back(rank, format("is lost: %s", reason));
}

void engine::lose(int rank, const std::string& why) {
  auto& of = peer(rank);
  if (of.is_dead) return;
  of.refuses_pull = true;                          // its number may be another process's by now
  while (of.lane_in.is_open() && read_lane(of)) {  // what it had sent whole
  }
  of.is_dead = true;
  deaths_.remove(rank);
  while (!of.unsent.empty()) {
    packet& never = *of.unsent.front();
    of.unsent.pop_front();
    never.done(never, ECONNRESET);
  }
  if (fabric_ != nullptr) fabric_->close(rank, true);
  fail_operations_of(rank, format("rank %d %s", rank, why.c_str()));
  drop_rings(of);
  of.early.clear();
  ipc_.forget(rank);
}

void engine::fail_operations_of(int rank, const std::string& why) {
  while (operation* const waiting = peer(rank).waiting_sends.pop_front()) end(*waiting, ECONNRESET, why);
  while (operation* const filling = peer(rank).to_fill.pop_front()) end(*filling, ECONNRESET, why);
  operations_.for_each([&](operation& each) {
    // A receive from anybody may have been meant for it: the application must hear of the death somewhere.
    const bool is_of = each.peer == rank || (each.kind == operation_kind::receive && each.peer == kAnySource &&
                                             each.state == operation_state::waiting);
    if (is_of && !each.has_ended()) fail_operation_of(each, why);
  });
}

void engine::fail_operation_of(operation& what, const std::string& why) {
  if (what.kind == operation_kind::arrival) {
    if (!what.is_announced || what.is_taken) return;  // complete messages stay receivable
    matcher_.remove_arrival(what);
    what.state = operation_state::ended;
    operations_.give_back(what);
    return;
  }
  if (what.state == operation_state::moving && what.transfer != nullptr) {
    // These end by themselves: IPC's memory lives until it is closed here, and the next read finds nobody.
    const auto way = what.transfer->way;
    if ((way == bulk_way::ipc || way == bulk_way::pull) && !what.transfer->is_checked) return;
    if (what.transfer->way == bulk_way::network) {
      what.transfer->code = ECONNRESET;
      what.transfer->message = why;
      what.transfer->is_withdrawn = true;
      what.transfer->lost_ns = monotonic_ns();
      return abandon_parts(what);
    }
  }
  if (what.kind == operation_kind::receive && what.state == operation_state::waiting) matcher_.remove_receive(what);
  end(what, ECONNRESET, why);
}

}  // namespace pl::link
