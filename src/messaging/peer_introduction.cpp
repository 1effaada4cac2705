// SPDX-License-Identifier: Apache-2.0
#include "messaging/peer_introduction.hpp"

#include <cstring>

#include "base/text.hpp"

namespace pl::messaging {
namespace {

// Each process sends this to all others, twice: before it has opened its connections, and after. The second one is followed
// by a byte for each rank (whether it is on the same node) and by UCX's address.
struct introduction {
  std::uint32_t protocol = kProtocol;
  std::uint32_t is_ready = 0;
  node_identity node;
  shm_queue_set::name send_queues;
  wakeup::name pipe;
  window_table::name windows;
  std::uint8_t has_light_barrier = 0;
  std::uint8_t has_gpu_lanes = 0;
  std::uint8_t wants_calibration = 0;
  std::uint8_t rails = 0;
  port_list ports{};  // of UCX
};

std::span<const std::byte> bytes_of(const introduction& value) { return std::as_bytes(std::span(&value, 1)); }

struct first_round {
  std::vector<introduction> known;
  int rank_on_node = 0;
  bool do_all_calibrate = true;
};

result<first_round> gather(bootstrap& group, const messenger_context& context, const introduction& mine) {
  auto all = group.all_gather(bytes_of(mine));
  if (!all) return std::move(all).error();
  first_round out;
  out.known.resize(static_cast<std::size_t>(context.size));
  for (std::size_t i = 0; i < out.known.size(); ++i) {
    auto& received = out.known[i];
    if ((*all)[i].size() == sizeof received) std::memcpy(&received, (*all)[i].data(), sizeof received);
    if ((*all)[i].size() != sizeof received || received.protocol != kProtocol)
      return failure{EPROTO, format("rank %zu runs another version of this library", i)};
    out.do_all_calibrate = out.do_all_calibrate && received.wants_calibration != 0;
    if (static_cast<int>(i) < context.rank && received.node.is_same_node(mine.node)) ++out.rank_on_node;
  }
  return out;
}

// Opens the queues to every process of the node whose memory can be reached. The others count as remote.
status open_queues(messenger_context& context, packet_channel& channel, direct_windows& windows,
                   const std::vector<introduction>& known) {
  const auto& own_node = known[static_cast<std::size_t>(context.rank)].node;
  for (auto& remote : context.peers) {
    const auto& received = known[static_cast<std::size_t>(remote.rank)];
    remote.pid = received.node.pid;
    if (remote.rank == context.rank || !received.node.is_same_node(own_node)) continue;
    auto opened = channel.open_queues(remote, received.send_queues);
    if (!opened) return std::move(opened).error();
    remote.is_same_node = *opened;
    if (*opened) windows.open_table(remote.rank, received.windows);
    remote.doorbell.set(remote.pid, received.pipe);
    remote.has_light_barrier = received.has_light_barrier != 0;
  }
  return {};
}

status accept_introduction(messenger_context& context, packet_channel& channel, peer_watch& watch, std::size_t rank,
                           const byte_string& text, const introduction& mine) {
  introduction received;
  const std::size_t before_address = sizeof received + context.peers.size();
  if (text.size() < before_address) return failure{EPROTO, format("rank %zu runs another version of this library", rank)};
  std::memcpy(&received, text.data(), sizeof received);
  if (received.is_ready == 0)
    return failure{ENOSYS, format("rank %zu could not open its messenger; its own error says why", rank)};
  auto& remote = context.peers[rank];
  if (remote.rank == context.rank) return {};
  if (remote.is_same_node != (text[sizeof received + static_cast<std::size_t>(context.rank)] != std::byte{0}))
    return failure{EPERM,
                   format("ranks %d and %zu share a node, and one of them may not open the other's memory: run both as "
                          "the same user, or set PEERLANE_LINK_PATH=network",
                          context.rank, rank)};
  if (!remote.is_same_node && received.rails != mine.rails)
    return failure{EINVAL, format("ranks %d and %zu use %u and %u rails: name as many for both (PEERLANE_LINK_RAILS)",
                                  context.rank, rank, mine.rails, received.rails)};
  remote.can_take_gpu_pointers = mine.has_gpu_lanes != 0 && received.has_gpu_lanes != 0 && !remote.is_same_node;
  if (!remote.is_same_node)
    channel.fabric()->set_peer(
        remote.rank, byte_string(text.begin() + static_cast<std::ptrdiff_t>(before_address), text.end()), received.ports);
  if (received.node.is_same_node(mine.node)) watch.add(remote.rank, remote.pid);
  return {};
}

}  // namespace

result<bool> introduce_peers(bootstrap& group, messenger_context& context, packet_channel& channel, peer_watch& watch,
                             direct_windows& windows) {
  introduction mine;
  mine.node = node_identity::current();
  mine.wants_calibration = context.options.calibrate ? 1 : 0;
  if (context.options.path == messenger_options::path_t::automatic) {
    auto queues = channel.make_queues();
    if (!queues) return std::move(queues).error();
    mine.send_queues = *queues;
    auto pipe = context.wake.make_pipe();
    if (!pipe) return std::move(pipe).error();
    mine.pipe = *pipe;
    auto table = windows.make_table();
    if (!table) return std::move(table).error();
    mine.windows = *table;
    mine.has_light_barrier = process_barrier::join() ? 1 : 0;
  }
  auto first = gather(group, context, mine);
  if (!first) return std::move(first).error();
  // A process that fails from here on reports it, so that the others do not wait.
  auto opened = open_queues(context, channel, windows, first->known);
  if (opened && channel.has_remote_peers()) opened = channel.open_fabric(first->rank_on_node);
  const auto* const fabric = channel.fabric();
  mine.is_ready = opened ? 1 : 0;
  mine.has_gpu_lanes = fabric != nullptr && fabric->has_gpu_lanes();
  if (fabric != nullptr) {
    mine.ports = fabric->ports();
    mine.rails = static_cast<std::uint8_t>(fabric->rails());
  }
  byte_string whole(bytes_of(mine).begin(), bytes_of(mine).end());
  for (const auto& each : context.peers) whole.push_back(std::byte{each.is_same_node});
  if (fabric != nullptr) whole.insert(whole.end(), fabric->address().begin(), fabric->address().end());
  auto all = group.all_gather(whole);
  if (!opened) return std::move(opened).error();
  if (!all) return std::move(all).error();
  for (std::size_t i = 0; i < context.peers.size(); ++i)
    if (auto done = accept_introduction(context, channel, watch, i, (*all)[i], mine); !done) return std::move(done).error();
  // After this barrier every process was alive when its watch was set, and all know their peers.
  if (auto done = group.barrier(); !done) return std::move(done).error();
  return first->do_all_calibrate;
}

}  // namespace pl::messaging
