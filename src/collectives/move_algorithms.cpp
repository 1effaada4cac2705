// SPDX-License-Identifier: Apache-2.0
// The collectives that move bytes only.
#include <algorithm>

#include "collectives/algorithms.hpp"

namespace pl::collectives {
namespace {

// Of block `index` when `bytes` are divided among `parts`.
struct division {
  std::size_t bytes = 0;
  int parts = 1;
  std::size_t begin(int index) const noexcept {
    const std::size_t block = (bytes + static_cast<std::size_t>(parts) - 1) / static_cast<std::size_t>(parts);
    return std::min(bytes, block * static_cast<std::size_t>(index));
  }
  std::size_t length(int index) const noexcept { return begin(index + 1) - begin(index); }
};

int lowest_bit(int value) noexcept { return value & -value; }
// Ranks below `node` in a binomial tree with its root at 0, and itself.
int subtree(int node, int size) noexcept { return node == 0 ? size : std::min(lowest_bit(node), size - node); }

void binomial_broadcast(schedule& out, own_place own, place data, std::size_t bytes, int root) {
  const int node = own_place{own.rank, own.size}.before(root);
  if (node != 0) out.wait(out.receive(own.before(lowest_bit(node)), data, bytes));
  int reach = 1;
  while (reach < (node == 0 ? own.size : lowest_bit(node))) reach *= 2;
  for (int distance = reach / 2; distance > 0; distance /= 2)
    if (node + distance < own.size) out.send(own.after(distance), data, bytes);
}

// Blocks by distance from the root. A block of no bytes is sent, too, so that both sides agree.
void scatter_ring_broadcast(schedule& out, own_place own, place data, std::size_t bytes, int root) {
  const division blocks{bytes, own.size};
  const int node = own.before(root);
  if (node == 0)
    for (int i = 1; i < own.size; ++i) out.send(own.after(i), data + blocks.begin(i), blocks.length(i));
  else out.wait(out.receive(root, data + blocks.begin(node), blocks.length(node)));
  // The root has all, so the last one need not send to it.
  for (int round = 0; round + 1 < own.size; ++round) {
    const int sent = (node - round + own.size) % own.size, received = (sent - 1 + own.size) % own.size;
    schedule::token arrived = 0;
    if (node != 0) arrived = out.receive(own.before(1), data + blocks.begin(received), blocks.length(received));
    if (node != own.size - 1) out.send(own.after(1), data + blocks.begin(sent), blocks.length(sent));
    if (node != 0) out.wait(arrived);
  }
}

// [0, count) blocks of the subtree's scratch from or to the blocks of ranks, which begin at rank `first` and wrap around.
void rotate(schedule& out, own_place own, place blocks, place scratch, std::size_t bytes, int first, bool is_into_scratch) {
  const auto until_wrap = static_cast<std::size_t>(own.size - first), wrapped = static_cast<std::size_t>(first);
  const place front = blocks + wrapped * bytes, scratch_back = scratch + until_wrap * bytes;
  out.copy(own.rank, is_into_scratch ? scratch : front, is_into_scratch ? front : scratch, until_wrap * bytes);
  out.copy(own.rank, is_into_scratch ? scratch_back : blocks, is_into_scratch ? blocks : scratch_back, wrapped * bytes);
}

void binomial_gather(schedule& out, own_place own, place source, place destination, std::size_t bytes, int root) {
  const int node = own.before(root), below = subtree(node, own.size);
  if (below == 1 && node != 0) {
    out.send(own.before(lowest_bit(node)), source, bytes);
    return;
  }
  const place held = out.scratch(static_cast<std::size_t>(below) * bytes);
  out.copy(own.rank, held, source, bytes);
  const auto first = out.messages();
  for (int distance = 1; distance < below; distance *= 2)
    out.receive(own.after(distance), held + static_cast<std::size_t>(distance) * bytes,
                static_cast<std::size_t>(subtree(node + distance, own.size)) * bytes);
  for (auto each = first, end = out.messages(); each < end; ++each) out.wait(each);
  if (node != 0) out.send(own.before(lowest_bit(node)), held, static_cast<std::size_t>(below) * bytes);
  else rotate(out, own, destination, held, bytes, root, false);
}

void binomial_scatter(schedule& out, own_place own, place source, place destination, std::size_t bytes, int root) {
  const int node = own.before(root), below = subtree(node, own.size);
  if (below == 1 && node != 0) {
    out.receive(own.before(lowest_bit(node)), destination, bytes);
    return;
  }
  const place held = out.scratch(static_cast<std::size_t>(below) * bytes);
  if (node == 0) rotate(out, own, source, held, bytes, root, true);
  else out.wait(out.receive(own.before(lowest_bit(node)), held, static_cast<std::size_t>(below) * bytes));
  int reach = 1;
  while (reach < below) reach *= 2;
  for (int distance = reach / 2; distance > 0; distance /= 2)
    if (distance < below)
      out.send(own.after(distance), held + static_cast<std::size_t>(distance) * bytes,
               static_cast<std::size_t>(subtree(node + distance, own.size)) * bytes);
  out.copy(own.rank, destination, held, bytes);
}

void ring_all_gather(schedule& out, own_place own, place destination, std::size_t bytes) {
  for (int round = 0; round + 1 < own.size; ++round) {
    const auto sent = static_cast<std::size_t>(own.before(round)),
               received = static_cast<std::size_t>(own.before(round + 1));
    const auto arrived = out.receive(own.before(1), destination + received * bytes, bytes);
    out.send(own.after(1), destination + sent * bytes, bytes);
    out.wait(arrived);
  }
}

void linear_all_gather(schedule& out, own_place own, place source, place destination, std::size_t bytes) {
  for (int i = 1; i < own.size; ++i)
    out.receive(own.before(i), destination + static_cast<std::size_t>(own.before(i)) * bytes, bytes);
  for (int i = 1; i < own.size; ++i) out.send(own.after(i), source, bytes);
}

void recursive_all_gather(schedule& out, own_place own, place destination, std::size_t bytes) {
  for (int distance = 1; distance < own.size; distance *= 2) {
    const int peer = own.rank ^ distance;
    const auto mine = static_cast<std::size_t>(own.rank & ~(distance - 1)),
               theirs = static_cast<std::size_t>(peer & ~(distance - 1));
    const std::size_t length = static_cast<std::size_t>(distance) * bytes;
    const auto arrived = out.receive(peer, destination + theirs * bytes, length);
    out.send(peer, destination + mine * bytes, length);
    out.wait(arrived);
  }
}

// The blocks from this rank on, wrapping around, double in each round.
void bruck_all_gather(schedule& out, own_place own, place source, place destination, std::size_t bytes) {
  const place held = out.scratch(static_cast<std::size_t>(own.size) * bytes);
  out.copy(own.rank, held, source, bytes);
  for (int distance = 1; distance < own.size; distance *= 2) {
    const auto length = static_cast<std::size_t>(std::min(distance, own.size - distance)) * bytes;
    const auto arrived = out.receive(own.after(distance), held + static_cast<std::size_t>(distance) * bytes, length);
    out.send(own.before(distance), held, length);
    out.wait(arrived);
  }
  rotate(out, own, destination, held, bytes, own.rank, false);
}

}  // namespace

void plan_barrier(schedule& out, own_place own) {
  for (int distance = 1; distance < own.size; distance *= 2) {
    const auto arrived = out.receive(own.before(distance), {}, 0);
    out.send(own.after(distance), {}, 0);
    out.wait(arrived);
  }
}

void plan_broadcast(schedule& out, own_place own, algorithm chosen, place data, std::size_t bytes, int root) {
  if (chosen == algorithm::binomial) return binomial_broadcast(out, own, data, bytes, root);
  if (chosen == algorithm::scatter_ring) return scatter_ring_broadcast(out, own, data, bytes, root);
  if (own.rank != root) out.receive(root, data, bytes);
  else
    for (int i = 1; i < own.size; ++i) out.send(own.after(i), data, bytes);
}

void plan_gather(schedule& out, own_place own, algorithm chosen, place source, place destination, std::size_t bytes,
                 int root) {
  if (chosen == algorithm::binomial) return binomial_gather(out, own, source, destination, bytes, root);
  if (own.rank != root) {
    out.send(root, source, bytes);
    return;
  }
  for (int i = 1; i < own.size; ++i)
    out.receive(own.after(i), destination + static_cast<std::size_t>(own.after(i)) * bytes, bytes);
  out.copy(own.rank, destination + static_cast<std::size_t>(root) * bytes, source, bytes);
}

void plan_scatter(schedule& out, own_place own, algorithm chosen, place source, place destination, std::size_t bytes,
                  int root) {
  if (chosen == algorithm::binomial) return binomial_scatter(out, own, source, destination, bytes, root);
  if (own.rank != root) {
    out.receive(root, destination, bytes);
    return;
  }
  for (int i = 1; i < own.size; ++i) out.send(own.after(i), source + static_cast<std::size_t>(own.after(i)) * bytes, bytes);
  out.copy(own.rank, destination, source + static_cast<std::size_t>(root) * bytes, bytes);
}

void plan_all_gather(schedule& out, own_place own, algorithm chosen, place source, place destination, std::size_t bytes) {
  const place own_block = destination + static_cast<std::size_t>(own.rank) * bytes;
  const bool is_power_of_two = (own.size & (own.size - 1)) == 0;
  if (chosen == algorithm::bruck || (chosen == algorithm::recursive_doubling && !is_power_of_two))
    return bruck_all_gather(out, own, source, destination, bytes);
  if (chosen == algorithm::linear) {
    linear_all_gather(out, own, source, destination, bytes);
    return out.copy(own.rank, own_block, source, bytes);
  }
  out.copy(own.rank, own_block, source, bytes);
  if (chosen == algorithm::ring) ring_all_gather(out, own, destination, bytes);
  else recursive_all_gather(out, own, destination, bytes);
}

void plan_all_to_all_v(schedule& out, own_place own, algorithm chosen, const block_list& source,
                       const block_list& destination) {
  for (int i = 1; i < own.size; ++i) {
    const int input = own.before(i), output = own.after(i);
    const auto arrived = out.receive(input, destination.block_of(input), destination.bytes_of(input));
    if (chosen == algorithm::linear) continue;
    const auto sent = out.send(output, source.block_of(output), source.bytes_of(output));
    out.wait(arrived);
    out.wait(sent);
  }
  if (chosen == algorithm::linear)
    for (int i = 1; i < own.size; ++i) out.send(own.after(i), source.block_of(own.after(i)), source.bytes_of(own.after(i)));
  out.copy(own.rank, destination.block_of(own.rank), source.block_of(own.rank), source.bytes_of(own.rank));
}

// held[i] is for the rank i after this one. In the round of `distance`, the blocks whose i has that bit move on together.
void plan_bruck_all_to_all(schedule& out, own_place own, place source, place destination, std::size_t bytes) {
  const auto blocks = static_cast<std::size_t>(own.size);
  const place held = out.scratch(blocks * bytes), sent = out.scratch(blocks * bytes), received = out.scratch(blocks * bytes);
  rotate(out, own, source, held, bytes, own.rank, true);
  for (int distance = 1; distance < own.size; distance *= 2) {
    std::size_t packed = 0;
    for (int i = 0; i < own.size; ++i)
      if ((i & distance) != 0)
        out.copy(own.rank, sent + packed++ * bytes, held + static_cast<std::size_t>(i) * bytes, bytes);
    const auto arrived = out.receive(own.before(distance), received, packed * bytes);
    const auto left = out.send(own.after(distance), sent, packed * bytes);
    out.wait(arrived);
    out.wait(left);
    packed = 0;
    for (int i = 0; i < own.size; ++i)
      if ((i & distance) != 0)
        out.copy(own.rank, held + static_cast<std::size_t>(i) * bytes, received + packed++ * bytes, bytes);
  }
  for (int i = 0; i < own.size; ++i)
    out.copy(own.rank, destination + static_cast<std::size_t>(own.before(i)) * bytes,
             held + static_cast<std::size_t>(i) * bytes, bytes);
}

}  // namespace pl::collectives
