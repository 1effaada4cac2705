// SPDX-License-Identifier: Apache-2.0
#include "messaging/peer_handshake.hpp"

#include <algorithm>
#include <cstring>

#include "base/text.hpp"

namespace pl::messaging {
namespace {

std::span<const std::byte> bytes_of(const peer_info& value) { return std::as_bytes(std::span(&value, 1)); }

failure another_version(std::size_t rank) { return {EPROTO, format("rank %zu runs another version of this library", rank)}; }

result<peer_info> read_peer_info(std::size_t rank, std::span<const std::byte> said) {
  peer_info out;
  if (said.size() < sizeof out) return another_version(rank);
  std::memcpy(&out, said.data(), sizeof out);
  if (out.protocol != kProtocol) return another_version(rank);
  return out;
}

}  // namespace

status peer_handshake::prepare(const bootstrap& group) {
  mine_.node = node_identity::current();
  mine_.wants_calibration = context_.options.calibrate ? 1 : 0;
  mine_.is_elastic = group.stays_open() ? 1 : 0;
  mine_.unexpected_bytes = context_.limits.unexpected_bytes;
  if (context_.options.path != messenger_options::path_t::automatic) return {};
  auto queues = channel_.make_queues();
  if (!queues) return std::move(queues).error();
  mine_.send_queues = *queues;
  auto pipe = context_.wake.make_pipe();
  if (!pipe) return std::move(pipe).error();
  mine_.pipe = *pipe;
  auto table = windows_.make_table();
  if (!table) return std::move(table).error();
  mine_.windows = *table;
  mine_.has_light_barrier = process_barrier::join() ? 1 : 0;
  return {};
}

// Marks a rank that is gone when this process rejoins.
void peer_handshake::miss(peer_state& remote) const {
  remote.is_lost = remote.is_dead = true;
  remote.loss = format("rank %d was gone when this process came back", remote.rank);
}

// Checks the first round. All ranks detect the same failures.
result<std::vector<peer_info>> peer_handshake::gather(bootstrap& group) {
  auto all = group.all_gather(bytes_of(mine_));
  if (!all) return std::move(all).error();
  std::vector<peer_info> known(all->size());
  for (std::size_t i = 0; i < all->size(); ++i) {
    if (group.incarnation() > 1 && (*all)[i].empty()) {
      miss(context_.peers[i]);
      continue;
    }
    auto received = read_peer_info(i, (*all)[i]);
    if (!received) return received.error();
    if (received->is_elastic != mine_.is_elastic)
      return failure{EINVAL, format("rank %zu %s elastic and rank %d %s: give all ranks the same option (elastic, or "
                                    "PEERLANE_LINK_ELASTIC)",
                                    i, received->is_elastic != 0 ? "is" : "is not", context_.rank,
                                    mine_.is_elastic != 0 ? "is" : "is not")};
    known[i] = *received;
    if (static_cast<int>(i) < context_.rank && received->node.is_same_node(mine_.node)) ++rank_on_node_;
  }
  return known;
}

// Opens the queues to a process of the node if its memory can be accessed. Otherwise the process counts as remote.
status peer_handshake::open_queues(peer_state& remote, const peer_info& received) {
  remote.pid = received.node.pid;
  remote.cost_limit = std::max<std::uint64_t>(received.unexpected_bytes, thresholds::kMinUnexpected);
  if (remote.rank == context_.rank || !received.node.is_same_node(mine_.node)) return {};
  auto opened = channel_.open_queues(remote, received.send_queues);
  if (!opened) return std::move(opened).error();
  remote.is_same_node = *opened;
  if (*opened) windows_.open_table(remote.rank, received.windows);
  remote.doorbell.set(remote.pid, received.pipe);
  remote.has_light_barrier = received.has_light_barrier != 0;
  return {};
}

status peer_handshake::open_fabric() {
  if (channel_.fabric() == nullptr)
    if (auto opened = channel_.open_fabric(rank_on_node_); !opened) return opened;
  const auto& fabric = *channel_.fabric();
  mine_.has_gpu_lanes = fabric.has_gpu_lanes();
  mine_.ports = fabric.ports();
  mine_.rails = static_cast<std::uint8_t>(fabric.rails());
  return {};
}

byte_string peer_handshake::second_peer_info() const {
  byte_string whole(bytes_of(mine_).begin(), bytes_of(mine_).end());
  for (const auto& each : context_.peers) whole.push_back(std::byte{each.is_same_node});
  const auto* const fabric = channel_.fabric();
  if (fabric != nullptr) whole.insert(whole.end(), fabric->address().begin(), fabric->address().end());
  return whole;
}

status peer_handshake::accept(std::size_t rank, std::span<const std::byte> text) {
  const auto received = read_peer_info(rank, text);
  if (!received) return received.error();
  const std::size_t before_address = sizeof *received + context_.peers.size();
  if (text.size() < before_address) return another_version(rank);
  if (received->is_ready == 0)
    return failure{ENOSYS, format("rank %zu could not open its messenger; its own error says why", rank)};
  auto& remote = context_.peers[rank];
  if (remote.rank == context_.rank) return {};
  if (remote.is_same_node != (text[sizeof *received + static_cast<std::size_t>(context_.rank)] != std::byte{0}))
    return failure{EPERM,
                   format("ranks %d and %zu share a node, and one of them may not open the other's memory: run both as "
                          "the same user, or set PEERLANE_LINK_PATH=network",
                          context_.rank, rank)};
  if (remote.is_same_node) return {};
  if (received->rails != mine_.rails)
    return failure{EINVAL, format("ranks %d and %zu use %u and %u rails: name as many for both (PEERLANE_LINK_RAILS)",
                                  context_.rank, rank, mine_.rails, received->rails)};
  remote.can_take_gpu_pointers = mine_.has_gpu_lanes != 0 && received->has_gpu_lanes != 0;
  const auto address = text.subspan(before_address);
  channel_.fabric()->set_peer(remote.rank, byte_string(address.begin(), address.end()), received->ports);
  return {};
}

result<bool> peer_handshake::run(bootstrap& group) {
  if (auto done = prepare(group); !done) return std::move(done).error();
  const auto known = gather(group);
  if (!known) return known.error();
  // A process that fails from here on reports it, so that the others do not wait.
  status opened;
  for (auto& each : context_.peers)
    if (opened && !each.is_dead) opened = open_queues(each, (*known)[static_cast<std::size_t>(each.rank)]);
  if (opened && channel_.has_remote_peers()) opened = open_fabric();
  mine_.is_ready = opened ? 1 : 0;
  auto all = group.all_gather(second_peer_info());
  if (!opened) return std::move(opened).error();
  if (!all) return std::move(all).error();
  for (auto& each : context_.peers) {
    const auto rank = static_cast<std::size_t>(each.rank);
    if (group.incarnation() > 1 && (*all)[rank].empty()) miss(each);
    if (each.is_dead) continue;
    if (auto done = accept(rank, (*all)[rank]); !done) return std::move(done).error();
    if (each.rank != context_.rank && (*known)[rank].node.is_same_node(mine_.node)) watch_.add(each.rank, each.pid);
  }
  // After this barrier every process was alive when its watch was set, and all know their peers.
  if (group.incarnation() == 1) {
    if (auto done = group.barrier(); !done) return std::move(done).error();
  } else {
    const auto numbers = group.all_gather({});
    if (!numbers) return numbers.error();
    if (auto done = take_incarnations(numbers->front()); !done) return std::move(done).error();
  }
  return std::all_of(known->begin(), known->end(), [](const auto& each) { return each.wants_calibration != 0; });
}

// Rank 0 sends the incarnation of each rank; 0: it is gone.
status peer_handshake::take_incarnations(std::span<const std::byte> numbers) {
  if (numbers.size() != context_.peers.size() * sizeof(std::uint32_t)) return another_version(0);
  for (auto& each : context_.peers) {
    std::memcpy(&each.incarnation, numbers.data() + static_cast<std::size_t>(each.rank) * sizeof each.incarnation,
                sizeof each.incarnation);
    if (each.rank != context_.rank && each.incarnation == 0) miss(each);
  }
  return {};
}

// ---- A rank has come back

result<byte_string> peer_handshake::answer_first(peer_state& remote, std::span<const std::byte> said) {
  const auto received = read_peer_info(static_cast<std::size_t>(remote.rank), said);
  if (!received) return received.error();
  auto queues = channel_.renew_queues(remote);
  if (!queues) return std::move(queues).error();
  peer_state fresh;
  fresh.rank = remote.rank;
  fresh.is_dead = fresh.is_lost = true;  // until it is back
  fresh.loss = remote.loss;
  remote = std::move(fresh);
  peer_info answer = mine_;
  answer.send_queues = *queues;
  answer.is_ready = answer.wants_calibration = 0;
  // The error at the other process says what does not match; this process continues in any case.
  static_cast<void>(open_queues(remote, *received));
  return byte_string(bytes_of(answer).begin(), bytes_of(answer).end());
}

bool peer_handshake::is_on_node(std::span<const std::byte> first) const {
  const auto received = read_peer_info(0, first);
  return received && received->node.is_same_node(mine_.node);
}

byte_string peer_handshake::answer_second(peer_state& remote, std::span<const std::byte> said) {
  const auto opened = remote.is_same_node ? status() : open_fabric();
  mine_.is_ready = opened && accept(static_cast<std::size_t>(remote.rank), said) ? 1 : 0;
  return second_peer_info();
}

}  // namespace pl::messaging
