// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/pipeline_peers.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <cerrno>
#include <cstring>

#include "base/clock.hpp"
#include "base/fnv1a.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "os/abstract_address.hpp"
#include "os/descriptor_message.hpp"

namespace pl::mpi {
namespace {

constexpr std::size_t kSlotsBytes = kSlots * sizeof(message_slot);
constexpr std::size_t kLeastSegment = 256 * 1024;
constexpr int kBacklog = 512;
constexpr unsigned kMaxAccepted = 4096;  // at one look: strangers that connect without end do not keep us here
constexpr std::uint64_t kRetryNs = 1'000'000'000;
constexpr unsigned kQuickTries = 8;

unique_fd make_socket() { return {real_device_io(), socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0)}; }

// The process at the other end, if it is this user's.
std::optional<pid_t> own_peer(int fd) {
  ucred other{};
  socklen_t size = sizeof other;
  if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &other, &size) != 0 || other.uid != geteuid()) return std::nullopt;
  return other.pid;
}

bool is_hung_up(int fd) {
  pollfd one{fd, POLLIN, 0};
  return poll(&one, 1, 0) > 0 && (one.revents & (POLLHUP | POLLERR)) != 0;
}

failure foreign_header(const char* reason) {
  return {EPROTO, format("a message announced a pipelined one, but %s", reason)};
}

}  // namespace

bool sender::has_ended() const noexcept {
  if (is_hung_up(socket.get())) return true;
  return process.has_ended();  // a forked child may keep the socket open
}

std::string pipeline_peers::socket_name(const std::string& job_key, int ranks, int rank) {
  return format("peerlane-mpi/%u/%016llx/%d/%d", geteuid(), static_cast<unsigned long long>(fnv1a(job_key)), ranks, rank);
}

result<std::unique_ptr<pipeline_peers>> pipeline_peers::open(const std::string& job_key, int rank, int ranks,
                                                             const options& wanted) {
  std::unique_ptr<pipeline_peers> made(new pipeline_peers(job_key, rank, ranks, wanted));
  made->listener_ = make_socket();
  const abstract_address own(socket_name(job_key, ranks, rank));
  if (!made->listener_ || bind(made->listener_.get(), own.get(), own.size) != 0 ||
      listen(made->listener_.get(), kBacklog) != 0)
    return failure{errno, format("a socket for large messages of this host: %s", std::strerror(errno))};
  return made;
}

// ---- Sending ----------------------------------------------------------------------------------------------------------

std::shared_ptr<receiver> pipeline_peers::connect(int rank) {
  auto made = std::make_shared<receiver>();
  made->socket = make_socket();
  const abstract_address other(socket_name(job_key_, ranks_, rank));
  if (!made->socket || ::connect(made->socket.get(), other.get(), other.size) != 0 || !own_peer(made->socket.get()))
    return nullptr;
  auto file = sealed_memory::make("peerlane-mpi-slots", kSlotsBytes);
  if (!file || getrandom(made->nonce.data(), made->nonce.size(), 0) != static_cast<ssize_t>(made->nonce.size()))
    return nullptr;
  auto memory = shared_segment::map(file->fd.get(), kSlotsBytes);
  if (!memory) return nullptr;
  made->slots_file = std::move(*file);
  made->slots_memory = std::move(*memory);
  const pipeline_hello hello{pipeline_hello::kind::slots, 0, kSlotsBytes, made->nonce, rank_, ranks_};
  if (send_with_descriptor(made->socket.get(), std::as_bytes(std::span(&hello, 1)), made->slots_file.fd.get()) !=
      static_cast<ssize_t>(sizeof hello))
    return nullptr;
  return made;
}

std::shared_ptr<receiver> pipeline_peers::receiver_of(int rank) {
  if (const auto found = receivers_.find(rank); found != receivers_.end()) {
    if (!found->second->is_lost) return found->second;
    return nullptr;
  }
  auto& tried = tries_[rank];
  const std::uint64_t now = monotonic_ns();
  if (tried.failed >= kQuickTries && now < tried.next_ns) return nullptr;  // most likely it is on another host
  auto made = connect(rank);
  if (made != nullptr) return receivers_[rank] = made;
  ++tried.failed;
  tried.next_ns = now + kRetryNs;
  return nullptr;
}

// Frees what the receiver needs no more.
void pipeline_peers::reclaim(receiver& peer) {
  for (unsigned i = 0; i < peer.slots_tried; ++i) {
    message_slot& slot = peer.slots()[i];
    if (slot.is_used.load(std::memory_order_relaxed) == 0 || peer.uses[i].is_written) continue;
    if (!peer.is_lost && slot.is_done.load(std::memory_order_acquire) == 0) continue;
    peer.uses[i].ring->is_free = true;
    peer.uses[i] = {};
    slot.is_used.store(0, std::memory_order_release);
  }
}

void pipeline_peers::reclaim_all() {
  for (auto& [rank, peer] : receivers_) {
    if (!peer->is_lost && is_hung_up(peer->socket.get())) peer->is_lost = true;
    reclaim(*peer);
  }
}

result<std::shared_ptr<send_segment>> pipeline_peers::take_segment(std::size_t bytes, bool is_tail) {
  const std::size_t size = is_tail ? (bytes + 4095) / 4096 * 4096 : std::bit_ceil(std::max(bytes, kLeastSegment));
  if (!is_tail) {
    std::shared_ptr<send_segment> largest;
    for (const auto& one : segments_) {
      if (!one->is_free) continue;
      if (one->memory.size_bytes() == size) return one->is_free = false, one;
      if (largest == nullptr || one->memory.size_bytes() > largest->memory.size_bytes()) largest = one;
    }
    if (kept_bytes_ + size > options_.budget) {  // a ring of another size does as well
      if (largest != nullptr) return largest->is_free = false, largest;
      return failure{ENOBUFS, "the memory for pipelined messages is in use"};
    }
  }
  auto file = sealed_memory::make("peerlane-mpi-ring", size);
  if (!file) return file.error();
  auto memory = shared_segment::map(file->fd.get(), size);
  if (!memory) return memory.error();
  auto made = std::make_shared<send_segment>();
  made->id = next_segment_++;
  made->file = std::move(*file);
  made->memory = std::move(*memory);
  made->is_free = false;
  made->is_kept = !is_tail;
  if (!is_tail) {
    kept_bytes_ += size;
    segments_.push_back(made);
  }
  return made;
}

status pipeline_peers::give(receiver& peer, const send_segment& segment) {
  if (std::find(peer.sent.begin(), peer.sent.end(), segment.id) != peer.sent.end()) return {};
  const pipeline_hello hello{
      pipeline_hello::kind::segment, segment.id, segment.memory.size_bytes(), peer.nonce, rank_, ranks_};
  if (send_with_descriptor(peer.socket.get(), std::as_bytes(std::span(&hello, 1)), segment.file.fd.get()) !=
      static_cast<ssize_t>(sizeof hello))
    return failure{errno, format("handing memory to another process of the job: %s", std::strerror(errno))};
  if (segment.is_kept) peer.sent.push_back(segment.id);
  return {};
}

std::optional<outgoing_message> pipeline_peers::begin(int rank, int tag, std::uint64_t bytes) {
  const lock held(mutex_);
  auto peer = receiver_of(rank);
  if (peer == nullptr) return std::nullopt;
  if (is_hung_up(peer->socket.get())) peer->is_lost = true;
  reclaim(*peer);
  if (peer->is_lost) return std::nullopt;
  unsigned free_slot = 0;
  while (free_slot < kSlots && peer->slots()[free_slot].is_used.load(std::memory_order_relaxed) != 0) ++free_slot;
  if (free_slot == kSlots) return std::nullopt;
  peer->slots_tried = std::max(peer->slots_tried, free_slot + 1);
  const auto ring_bytes = static_cast<std::size_t>(std::min<std::uint64_t>(bytes, options_.ring));
  auto ring = take_segment(ring_bytes, false);
  if (!ring) {
    reclaim_all();
    ring = take_segment(ring_bytes, false);
  }
  if (!ring) return std::nullopt;
  if (auto given = give(*peer, **ring); !given) {
    PL_LOG(info, "peerlane-mpi: %s", given.error().message.c_str());
    (*ring)->is_free = true;
    return std::nullopt;
  }
  message_slot& slot = peer->slots()[free_slot];
  slot.is_done.store(0, std::memory_order_relaxed);
  slot.is_failed.store(0, std::memory_order_relaxed);
  slot.tag = tag;
  slot.serial = ++peer->serial;
  slot.bytes = bytes;
  slot.ring_bytes = (*ring)->memory.size_bytes();
  slot.ring_segment = (*ring)->id;
  slot.tail_from.store(kNoTail, std::memory_order_relaxed);
  slot.ready.store(0, std::memory_order_relaxed);
  slot.taken.store(0, std::memory_order_relaxed);
  slot.direct.store(direct_state::none, std::memory_order_relaxed);
  slot.is_used.store(1, std::memory_order_release);
  peer->uses[free_slot] = {*ring, nullptr, true};
  return outgoing_message{std::move(peer), free_slot, std::move(*ring)};
}

result<std::shared_ptr<send_segment>> pipeline_peers::add_tail(const outgoing_message& message, std::uint64_t origin) {
  const lock held(mutex_);
  message_slot& slot = message.shared();
  auto tail = take_segment(static_cast<std::size_t>(slot.bytes - origin), true);
  if (!tail) return tail.error();
  if (auto given = give(*message.peer, **tail); !given) return given.error();
  message.peer->uses[message.slot].tail = *tail;
  slot.tail_segment = (*tail)->id;
  slot.tail_from.store(origin, std::memory_order_release);
  return tail;
}

bool pipeline_peers::has_receiver(const outgoing_message& message) noexcept {
  return !is_hung_up(message.peer->socket.get());
}

void pipeline_peers::end_writing(const outgoing_message& message) {
  const lock held(mutex_);
  message.peer->uses[message.slot].is_written = false;
}

void pipeline_peers::withdraw(const outgoing_message& message) {
  const lock held(mutex_);
  message.peer->uses[message.slot].is_written = false;
  message.shared().is_done.store(1, std::memory_order_release);
  reclaim(*message.peer);
}

message_header pipeline_peers::header_of(const outgoing_message& message) const {
  const message_slot& slot = message.shared();
  message_header out;
  out.nonce = message.peer->nonce;
  out.rank = rank_;
  out.slot = message.slot;
  out.serial = slot.serial;
  out.bytes = slot.bytes;
  return out;
}

// ---- Receiving --------------------------------------------------------------------------------------------------------

void pipeline_peers::accept_one(unique_fd socket) {
  const auto process = own_peer(socket.get());
  if (!process) return;
  pipeline_hello hello;
  // A sender writes its first words before the header that made us look.
  const auto got = receive_with_descriptor(socket.get(), std::as_writable_bytes(std::span(&hello, 1)), MSG_DONTWAIT);
  if (got.bytes != static_cast<ssize_t>(sizeof hello) || !got.fd || hello.type != pipeline_hello::kind::slots ||
      hello.bytes != kSlotsBytes || hello.ranks != ranks_ || hello.rank < 0 || hello.rank >= ranks_)
    return;
  auto memory = shared_segment::map_received(got.fd.get(), kSlotsBytes);
  if (!memory) return;
  auto made = std::make_shared<sender>();
  made->socket = std::move(socket);
  if (*process > 0) made->process = process_end(*process);
  made->nonce = hello.nonce;
  made->rank = hello.rank;
  made->pid = static_cast<std::int32_t>(*process);
  made->slots_memory = std::move(*memory);
  const auto known = senders_.find(hello.rank);
  if (known != senders_.end() && !known->second->has_ended()) return;  // a rank is one process
  senders_[hello.rank] = std::move(made);
}

void pipeline_peers::accept_all() {
  for (unsigned i = 0; i < kMaxAccepted; ++i) {
    unique_fd socket(real_device_io(), accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    accept_one(std::move(socket));
  }
}

std::shared_ptr<sender> pipeline_peers::sender_of(int rank) {
  if (const auto found = senders_.find(rank); found != senders_.end()) return found->second;
  accept_all();
  const auto found = senders_.find(rank);
  return found == senders_.end() ? nullptr : found->second;
}

void pipeline_peers::read_segments(sender& origin) {
  pipeline_hello hello;
  for (;;) {
    const auto got =
        receive_with_descriptor(origin.socket.get(), std::as_writable_bytes(std::span(&hello, 1)), MSG_DONTWAIT);
    if (got.bytes <= 0) return;
    if (got.bytes != static_cast<ssize_t>(sizeof hello) || !got.fd || hello.type != pipeline_hello::kind::segment) continue;
    auto memory = shared_segment::map_received(got.fd.get(), static_cast<std::size_t>(hello.bytes));
    if (memory) origin.segments[hello.segment] = std::make_shared<shared_segment>(std::move(*memory));
  }
}

result<std::shared_ptr<shared_segment>> pipeline_peers::segment_of(sender& origin, std::uint32_t id) {
  if (origin.segments.count(id) == 0) read_segments(origin);
  const auto found = origin.segments.find(id);
  if (found == origin.segments.end()) return foreign_header("its sender has not handed over the memory that it names");
  return found->second;
}

result<incoming_message> pipeline_peers::find(const message_header& header) {
  const lock held(mutex_);
  const auto origin = header.slot < kSlots ? sender_of(header.rank) : nullptr;
  if (origin == nullptr || origin->nonce != header.nonce)
    return foreign_header("its sender did not connect: is the message one of another job?");
  const message_slot& slot = origin->slots()[header.slot];
  if (slot.is_used.load(std::memory_order_acquire) == 0 || slot.serial != header.serial || slot.bytes != header.bytes ||
      slot.is_done.load(std::memory_order_acquire) != 0)
    return foreign_header("its sender knows of none");
  auto ring = segment_of(*origin, slot.ring_segment);
  if (!ring) return ring.error();
  if (slot.ring_bytes == 0 || slot.ring_bytes > (*ring)->size_bytes()) return foreign_header("its ring has no sense");
  return incoming_message{origin, header.slot, std::move(*ring)};
}

result<std::shared_ptr<shared_segment>> pipeline_peers::tail_of(const incoming_message& message) {
  const lock held(mutex_);
  const message_slot& slot = message.shared();
  const std::uint32_t id = slot.tail_segment;
  auto tail = segment_of(*message.origin, id);
  if (!tail) return tail;
  message.origin->segments.erase(id);  // it serves this message only
  const std::uint64_t origin = slot.tail_from.load(std::memory_order_acquire);
  if (origin > slot.bytes || slot.bytes - origin > (*tail)->size_bytes()) return foreign_header("its tail has no sense");
  return tail;
}

std::uint64_t pipeline_peers::size_behind(int rank, unsigned slot_index, int tag) {
  const lock held(mutex_);
  const auto origin = sender_of(rank);
  if (origin == nullptr) return 0;
  const message_slot& slot = origin->slots()[slot_index];
  const bool is_in_flight =
      slot.is_used.load(std::memory_order_acquire) != 0 && slot.is_done.load(std::memory_order_acquire) == 0;
  return is_in_flight && slot.tag == tag ? slot.bytes : 0;
}

}  // namespace pl::mpi
