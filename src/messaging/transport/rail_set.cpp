// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/rail_set.hpp"

#include <sys/epoll.h>
#include <sys/timerfd.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "messaging/transport/rail_kinds.hpp"
#include "os/device_io.hpp"

namespace pl::messaging {
namespace {

constexpr std::size_t kMinPart = 32u << 10;      // so that a message of 64 KiB uses two rails
constexpr std::size_t kMaxPart = 252u << 10;     // fits one packet of every UCX over TCP
constexpr std::size_t kDueBytes = 64u << 10;     // acknowledge at once when so many bytes are due
constexpr std::uint64_t kDueNs = 200'000;        // acknowledge no later than this
constexpr std::uint64_t kGraceNs = 200'000'000;  // time for UCX to complete sends after a connection has closed
constexpr std::uint64_t kSleepNs = 100'000'000;  // between two checks of the rails while the process sleeps
constexpr std::size_t kMaxCancelled = 1024;
// Limit of control messages on one rail that UCX has not sent. A peer with so many of them does not read.
constexpr std::size_t kMaxControls = 16u << 10;

void append(byte_string& out, const void* data, std::size_t bytes) {
  const auto* const first = static_cast<const std::byte*>(data);
  out.insert(out.end(), first, first + bytes);
}

// The first ports of all rails, as many as fit.
void add_ports(port_list& all, const port_list& more) {
  for (const auto port : more)
    if (const auto room = std::find(all.begin(), all.end(), 0); port != 0 && room != all.end()) *room = port;
}

}  // namespace

// ---- Opening, and the end

rail_set::rail_set(std::vector<std::string> devices, int ranks, int own_rank, listener& handler)
    : devices_(std::move(devices)), own_rank_(static_cast<std::uint32_t>(own_rank)), handler_(&handler) {
  for (int rank = 0; rank < ranks; ++rank) peers_.emplace_back(static_cast<unsigned>(devices_.size()));
}

result<std::unique_ptr<rail_set>> rail_set::open(const ucx_fabric::options& wanted, const std::vector<std::string>& devices,
                                                 int ranks, int own_rank, listener& handler) {
  std::unique_ptr<rail_set> made(new rail_set(devices, ranks, own_rank, handler));
  if (auto done = made->start(wanted, ranks); !done) return std::move(done).error();
  return made;
}

status rail_set::start(const ucx_fabric::options& wanted, int ranks) {
  for (unsigned i = 0; i < devices_.size(); ++i) {
    ends_.push_back(std::make_unique<end>(*this, i));
    auto one = wanted;
    one.rails = devices_[i];
    one.gpu_lanes = false;
    one.has_rdma = devices_[i].find(':') != std::string::npos;
    one.stripe_threshold = 0;
    auto opened = ucx_fabric::open(one, ranks, *ends_.back());
    if (!opened) return failure{opened.code(), format("rail %s: %s", devices_[i].c_str(), opened.error().message.c_str())};
    rails_.push_back(*std::move(opened));
    const auto bytes = static_cast<std::uint32_t>(rails_.back()->address().size());
    append(address_, &bytes, sizeof bytes);
    append(address_, rails_.back()->address().data(), bytes);
    add_ports(ports_, rails_.back()->ports());
    has_link_state_.push_back(has_link_state(devices_[i]));
  }
  const std::size_t fitting = rails_.front()->max_part_bytes();
  max_part_bytes_ = fitting != 0 ? fitting : kMaxPart;
  min_part_bytes_ = std::min(wanted.stripe_threshold != 0 ? wanted.stripe_threshold : kMinPart, max_part_bytes_);
  return {};
}

rail_set::~rail_set() {
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank) close(rank, true);
  rails_.clear();
}

void rail_set::set_peer(int rank, byte_string address, const port_list& ports) {
  if (peer(rank).is_closed) {
    const unsigned life = peer(rank).life + 1;
    peer(rank) = rail_peer(rails());
    peer(rank).life = life;
    std::erase_if(failing_, [&](const failing_rail& each) { return each.rank == rank; });
    std::erase(due_, rank);
  }
  std::size_t offset = 0;
  for (auto& rail : rails_) {
    std::uint32_t bytes = 0;
    if (address.size() - offset < sizeof bytes) return;
    std::memcpy(&bytes, address.data() + offset, sizeof bytes);
    offset += sizeof bytes;
    if (address.size() - offset < bytes) return;
    const auto first = address.begin() + static_cast<std::ptrdiff_t>(offset);
    rail->set_peer(rank, byte_string(first, first + bytes), ports);
    offset += bytes;
  }
}

void rail_set::keep_connections(int rank) const {
  for (const auto& rail : rails_) rail->keep_connections(rank);
}

std::string rail_set::description(int rank) const {
  std::string out = version() + ", rails";
  const auto& remote = peers_[static_cast<std::size_t>(rank)];
  for (unsigned i = 0; i < devices_.size(); ++i) out += " " + devices_[i] + (remote.rails[i].is_up ? "" : " (down)");
  return out;
}

// Makes the number of parts a multiple of the number of rails, so that all rails finish together.
std::uint64_t rail_set::part_bytes_of(std::uint64_t message) const noexcept {
  constexpr std::uint64_t kPage = 4096;
  const std::uint64_t count = (message + max_part_bytes_ - 1) / max_part_bytes_;
  const std::uint64_t even = std::max<std::uint64_t>((count + rails() - 1) / rails(), 1) * rails();
  const std::uint64_t bytes = ((message + even - 1) / even + kPage - 1) / kPage * kPage;
  return std::clamp<std::uint64_t>(bytes, min_part_bytes_, max_part_bytes_);
}

// ---- Sleeping

result<int> rail_set::descriptor() {
  if (epoll_) return epoll_.get();
  epoll_ = unique_fd(real_device_io(), epoll_create1(EPOLL_CLOEXEC));
  timer_ = unique_fd(real_device_io(), timerfd_create(CLOCK_MONOTONIC, TFD_CLOEXEC | TFD_NONBLOCK));
  if (!epoll_ || !timer_) return failure{errno, "no descriptor for the rails: " + errno_text(errno)};
  std::vector<int> all = {timer_.get()};
  for (auto& rail : rails_) {
    const auto one = rail->descriptor();
    if (!one) return one.error();
    all.push_back(*one);
  }
  for (const int fd : all) {
    epoll_event event{};
    event.events = EPOLLIN;
    if (epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event) != 0)
      return failure{errno, "no descriptor for the rails: " + errno_text(errno)};
  }
  return epoll_.get();
}

// While sent units are unacknowledged, the rails must be checked, and nothing else may wake this process for that.
bool rail_set::arm() {
  send_due(true);
  if (!failing_.empty() || draining_ != 0) return false;
  const bool must_look = !lingering_.empty() || has_outstanding();
  itimerspec timeout{};
  if (must_look) timeout.it_value.tv_nsec = kSleepNs;
  if (timer_) timerfd_settime(timer_.get(), 0, &timeout, nullptr);
  return std::all_of(rails_.begin(), rails_.end(), [](const auto& rail) { return rail->arm(); });
}

unsigned rail_set::progress() {
  unsigned moved = 0;
  for (auto& rail : rails_) moved += rail->progress();
  while (!failing_.empty()) {
    const auto failed = std::move(failing_.back());
    failing_.pop_back();
    fail_rail(failed);
  }
  if (!due_.empty()) send_due(moved == 0);
  if (!lingering_.empty()) sweep_lingering();
  if (draining_ != 0) close_drained();
  if (has_outstanding()) watch_rails();
  return moved;
}

// ---- Sending

std::unique_ptr<sent_unit> rail_set::make_sent_unit(int rank, std::uint32_t kind, std::uint64_t number) {
  auto made = std::make_unique<sent_unit>();
  made->head = {own_rank_, kind, number};
  made->done = &rail_set::on_transmitted;
  made->owner = this;
  made->rank = rank;
  made->life = peer(rank).life;
  return made;
}

void rail_set::transmit(sent_unit& unit, unsigned rail) {
  unit.rail = rail;
  unit.sent_ns = monotonic_ns();
  ++unit.with_ucx;
  peer(unit.rank).rails[rail].load += unit.bytes;
  rails_[rail]->send_on_rail(unit.rank, unit);
}

void rail_set::on_transmitted(rail_message& message) { --static_cast<sent_unit&>(message).with_ucx; }

void rail_set::send(int rank, packet& outgoing) {
  auto& remote = peer(rank);
  outgoing.outcome = 0;
  if (remote.is_closed || !remote.first_rail()) return outgoing.done(outgoing, ECONNRESET);
  if (remote.waiting.empty() && remote.has_room()) return keep_and_transmit(rank, outgoing);
  remote.waiting.push_back(&outgoing);
}

// The owner gets the packet back at once, because its bytes are copied and kept until the peer has acknowledged them.
void rail_set::keep_and_transmit(int rank, packet& outgoing) {
  auto& remote = peer(rank);
  const auto number = remote.next_number++;
  auto made = make_sent_unit(rank, kPacket, number);
  made->bytes = packed_bytes(outgoing);
  made->packed = std::make_unique_for_overwrite<std::byte[]>(made->bytes);
  pack(outgoing, 0, made->packed.get(), made->bytes);
  made->data = made->packed.get();
  remote.kept_bytes += made->bytes;
  auto& kept = *(remote.packets[number] = std::move(made));
  transmit(kept, *remote.first_rail());
  outgoing.done(outgoing, 0);
}

void rail_set::send_waiting(int rank) {
  auto& remote = peer(rank);
  while (!remote.waiting.empty() && remote.has_room() && remote.first_rail()) {
    packet& next = *remote.waiting.front();
    remote.waiting.pop_front();
    keep_and_transmit(rank, next);
  }
}

void rail_set::send_tagged(int rank, std::uint64_t tag, const void* source, std::size_t bytes, bool, ucx_part& part) {
  auto& remote = peer(rank);
  part.is_receive = false;
  const auto rail = remote.free_rail();
  if (remote.is_closed || !rail) return part.done(part, ECONNRESET, 0);
  // The receiver chooses the tags. UCX still reads the sent unit that has this one.
  if (remote.parts.contains(tag)) return part.done(part, EPROTO, 0);
  auto made = make_sent_unit(rank, kPart, tag);
  made->data = source;
  made->bytes = bytes;
  made->part = &part;
  auto& kept = *(remote.parts[tag] = std::move(made));
  transmit(kept, *rail);
}

void rail_set::send_control(int rank, unsigned rail, std::uint32_t kind, std::uint64_t number) {
  if (free_control_ == nullptr) {
    controls_.push_back(std::make_unique<control>());
    free_control_ = controls_.back().get();
    free_control_->owner = this;
    free_control_->done = &rail_set::on_control_sent;
  }
  auto& taken = *std::exchange(free_control_, free_control_->next);
  taken.head = {own_rank_, kind, number};
  taken.rank = rank;
  taken.rail = rail;
  taken.life = peer(rank).life;
  ++peer(rank).rails[rail].controls;
  rails_[rail]->send_on_rail(rank, taken);
}

void rail_set::on_control_sent(rail_message& message) {
  auto& sent = static_cast<control&>(message);
  auto& remote = sent.owner->peer(sent.rank);
  if (remote.life == sent.life) --remote.rails[sent.rail].controls;
  sent.next = std::exchange(sent.owner->free_control_, &sent);
}

// The peer has acknowledged the sent unit, or will never receive it. UCX may still read its bytes for a rail that has
// failed.
void rail_set::settle(std::unique_ptr<sent_unit> unit, int code) {
  auto& remote = peer(unit->rank);
  auto& load = remote.rails[unit->rail].load;
  load -= std::min(load, unit->bytes);
  unit->code = code;
  unit->settled_ns = monotonic_ns();
  if (unit->with_ucx == 0) return finish(*unit);
  if (unit->packed != nullptr) remote.lingering_bytes += unit->bytes;
  lingering_.push_back(std::move(unit));
}

void rail_set::finish(sent_unit& unit) {
  if (ucx_part* const part = std::exchange(unit.part, nullptr)) part->done(*part, unit.code, 0);
}

void rail_set::stop_counting(sent_unit& lingering) {
  auto& remote = peer(lingering.rank);
  if (lingering.life == remote.life && lingering.packed != nullptr && !std::exchange(lingering.is_uncounted, true))
    remote.lingering_bytes -= lingering.bytes;
}

// Some versions of UCX never complete a send whose peer is gone.
void rail_set::sweep_lingering() {
  const auto now = monotonic_ns();
  std::erase_if(lingering_, [&](const auto& each) {
    const auto& remote = peer(each->rank);
    const bool has_lost = remote.is_closed || std::any_of(remote.rails.begin(), remote.rails.end(),
                                                          [](const auto& rail) { return !rail.is_up; });
    if (each->with_ucx == 0 || (has_lost && now - each->settled_ns > kGraceNs)) finish(*each), stop_counting(*each);
    return each->with_ucx == 0;
  });
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank)
    if (!peer(rank).waiting.empty()) send_waiting(rank);
}

std::size_t rail_set::memory_held(int rank) const noexcept {
  std::size_t held = peer(rank).kept_bytes + peer(rank).lingering_bytes;
  for (const auto& rail : peer(rank).rails) held += rail.controls * sizeof(control);
  return held;
}

// ---- Receiving

void rail_set::take(unsigned rail, const rail_head& head, const std::byte* data, std::size_t bytes) {
  const int rank = static_cast<int>(head.source);
  auto& remote = peer(rank);
  if (!remote.rails[rail].is_up) return;
  remote.rails[rail].last_received_ns = monotonic_ns();
  remote.rails[rail].silent.end();
  if (remote.rails[rail].controls >= kMaxControls) {
    if (head.kind == kPing) return;
    if (head.kind == kPart) return failing_.push_back({rank, rail, "it takes no acknowledgements"});
  }
  switch (head.kind) {
    case kPacket:
      return take_packet(rank, head.number, data, bytes);
    case kPart:
      return take_part(rail, rank, head.number, data, bytes);
    case kPacketsAcknowledged:
      return take_packets_acknowledged(rank, head.number);
    case kPartAcknowledged:
      return take_part_acknowledged(rank, head.number);
    case kPing:
      return send_control(rank, rail, kPong, head.number);
    case kPong:
      return take_pong(rank, head.number);
    case kRailDown:
      if (head.number < rails()) failing_.push_back({rank, static_cast<unsigned>(head.number), "the peer gave it up"});
      return;
    default:
      return;
  }
}

void rail_set::take_packet(int rank, std::uint64_t number, const std::byte* data, std::size_t bytes) {
  note_due(rank, bytes);
  if (peer(rank).arrived.accept(number)) handler_->on_packet(data, bytes);
}

// A part without a posted receive is a duplicate, or is no longer needed.
void rail_set::take_part(unsigned rail, int rank, std::uint64_t tag, const std::byte* data, std::size_t bytes) {
  send_control(rank, rail, kPartAcknowledged, tag);
  const auto found = posted_.find(tag);
  if (found == posted_.end() || found->second.rank != rank) return;
  const posted wanted = found->second;
  if (wanted.part == nullptr) {
    found->second.has_arrived = true;
    return;
  }
  posted_.erase(found);
  const std::size_t fitting = std::min(bytes, wanted.bytes);
  if (fitting != 0) std::memcpy(wanted.destination, data, fitting);
  wanted.part->done(*wanted.part, bytes > wanted.bytes ? EMSGSIZE : 0, fitting);
}

void rail_set::receive_tagged(int rank, std::uint64_t tag, void* destination, std::size_t bytes, bool, ucx_part& part) {
  part.is_receive = true;
  part.tag = tag;
  const auto earlier = posted_.find(tag);
  const bool has_arrived = earlier != posted_.end() && earlier->second.has_arrived;
  if (!has_arrived) {
    posted_.insert_or_assign(tag, posted{rank, destination, bytes, &part, false});
    return;
  }
  posted_.erase(earlier);
  part.done(part, EMSGSIZE, 0);
}

void rail_set::receive_remote(remote_data, void*, std::size_t, ucx_part& part) { part.done(part, ENOTSUP, 0); }

// Keeps the entry for a while, because a receive with the same tag may follow to discard the bytes (ucx_rndv).
void rail_set::cancel_tagged(ucx_part& part) {
  const auto found = posted_.find(part.tag);
  if (!part.is_receive || found == posted_.end() || found->second.part != &part) return;
  found->second.part = nullptr;
  cancelled_.push_back(part.tag);
  if (cancelled_.size() > kMaxCancelled) {
    const auto oldest = posted_.find(cancelled_.front());
    if (oldest != posted_.end() && oldest->second.part == nullptr) posted_.erase(oldest);
    cancelled_.pop_front();
  }
  part.done(part, ECANCELED, 0);
}

void rail_set::take_packets_acknowledged(int rank, std::uint64_t next) {
  auto& remote = peer(rank);
  while (!remote.packets.empty() && remote.packets.begin()->first < next) {
    auto first = remote.packets.extract(remote.packets.begin());
    remote.kept_bytes -= first.mapped()->bytes;
    settle(std::move(first.mapped()), 0);
  }
  send_waiting(rank);
}

void rail_set::take_part_acknowledged(int rank, std::uint64_t tag) {
  auto& parts = peer(rank).parts;
  if (const auto found = parts.find(tag); found != parts.end()) settle(std::move(parts.extract(found).mapped()), 0);
}

void rail_set::note_due(int rank, std::size_t bytes) {
  auto& remote = peer(rank);
  remote.due_bytes += bytes;
  if (remote.due_since_ns != 0) return;
  remote.due_since_ns = monotonic_ns();
  due_.push_back(rank);
}

void rail_set::send_due(bool is_idle) {
  const auto now = monotonic_ns();
  std::erase_if(due_, [&](int rank) {
    auto& remote = peer(rank);
    const bool is_due = remote.due_bytes >= kDueBytes || (is_idle && now - remote.due_since_ns >= kDueNs);
    if (!is_due) return false;
    if (const auto rail = remote.first_rail(); rail && !remote.is_closed)
      send_control(rank, *rail, kPacketsAcknowledged, remote.arrived.next());
    remote.due_bytes = 0;
    remote.due_since_ns = 0;
    return true;
  });
}

// ---- The end of a peer

void rail_set::close(int rank, bool at_once) {
  auto& remote = peer(rank);
  if (remote.is_closed && !remote.is_draining) return;
  if (!remote.is_draining) remote.is_closed = true;
  const bool may_wait = !at_once && remote.has_outstanding() && remote.first_rail();
  if (may_wait && !remote.is_draining) ++draining_, remote.is_draining = true;
  if (may_wait) return;
  if (std::exchange(remote.is_draining, false)) --draining_;
  // A peer that leaves waits for the acknowledgement of its last packet.
  const auto rail = remote.first_rail();
  const bool is_awaited = rail && remote.due_since_ns != 0 && (!at_once || handler_->has_left(rank));
  if (is_awaited) send_control(rank, *rail, kPacketsAcknowledged, remote.arrived.next());
  for (auto& each : rails_) each->close(rank, at_once && !is_awaited);
  end_all(rank);
}

void rail_set::end_all(int rank) {
  auto& remote = peer(rank);
  while (!remote.waiting.empty()) {
    packet& never = *remote.waiting.front();
    remote.waiting.pop_front();
    never.done(never, ECONNRESET);
  }
  for (auto* const each : {&remote.packets, &remote.parts})
    while (!each->empty()) settle(std::move(each->extract(each->begin()).mapped()), ECONNRESET);
  remote.kept_bytes = 0;
  std::erase_if(posted_, [&](const auto& each) { return each.second.rank == rank && each.second.part == nullptr; });
}

void rail_set::close_drained() {
  for (int rank = 0; rank < static_cast<int>(peers_.size()); ++rank)
    if (peer(rank).is_draining && (!peer(rank).has_outstanding() || !peer(rank).first_rail())) close(rank, false);
}

bool rail_set::is_closing() const noexcept {
  return draining_ != 0 || std::any_of(rails_.begin(), rails_.end(), [](const auto& rail) { return rail->is_closing(); });
}

void rail_set::reap_closed() {
  for (auto& rail : rails_) rail->reap_closed();
}

}  // namespace pl::messaging
