// SPDX-License-Identifier: Apache-2.0
// The collectives that combine elements. Large blocks go in segments, so that a segment is combined while the next one is on
// its way, and, if the CPU does it, while it is in the cache.
#include <algorithm>

#include "collectives/algorithms.hpp"

namespace pl::collectives {
namespace {

// By the length of the blocks, the same at every rank. Long ones have segments for which a GPU's kernel is worth its start.
std::size_t segment_elements(const summation& terms, std::size_t block_elements) noexcept {
  constexpr std::size_t kShortest = 256 << 10, kLongest = 4 << 20, kSegmentsOfBlock = 4;
  return std::clamp(terms.bytes(block_elements) / kSegmentsOfBlock, kShortest, kLongest) / size_of(terms.type);
}

// Elements of block `index` when `count` are divided among `parts`; all blocks but the first ones are one shorter.
struct element_division {
  std::size_t count = 0;
  int parts = 1;
  std::size_t begin(int index) const noexcept {
    const auto all = static_cast<std::size_t>(parts), i = static_cast<std::size_t>(index);
    return i * (count / all) + std::min(i, count % all);
  }
  std::size_t length(int index) const noexcept { return begin(index + 1) - begin(index); }
};

// Two halves of scratch memory in turns: a message arrives in one while the other one is combined.
class alternating_scratch {
 public:
  alternating_scratch(schedule& out, std::size_t bytes, messaging::memory_kind kind)
      : halves_{out.scratch(bytes, kind), out.scratch(bytes, kind)} {}
  place operator[](std::size_t index) const noexcept { return halves_[index % 2]; }

 private:
  place halves_[2];
};

void binomial_reduce(schedule& out, own_place own, summation terms, place source, place destination, std::size_t count,
                     int root) {
  const std::size_t bytes = terms.bytes(count);
  const int node = own.before(root);
  place held = source;  // the combination of this subtree so far
  place target = destination, received;
  for (int distance = 1; distance < own.size; distance *= 2) {
    if ((node & distance) != 0) {
      out.send(own.before(distance), held, bytes);
      return;
    }
    if (node + distance >= own.size) continue;
    if (received.address == 0) {
      received = out.scratch(bytes, source.kind);
      if (node != 0) target = out.scratch(bytes, source.kind);
    }
    out.wait(out.receive(own.after(distance), received, bytes));
    out.combine(terms.type, terms.op, held, received, target, count);
    held = target;
  }
  out.copy(own.rank, destination, held, bytes);
}

// After it, this rank has the combination of block `rank + 1`, at its place in `destination`. In round s, this rank sends
// its combination of block rank - s, and receives that of the block before it. With `goes_on`, the last round's segments are
// sent to the next rank, too: the begin of an all-gather.
void ring_reduce(schedule& out, own_place own, summation terms, place source, place destination, std::size_t count,
                 bool goes_on) {
  struct segment {
    int round = 0;
    std::size_t begin = 0, length = 0;
  };
  const element_division blocks{count, own.size};
  const std::size_t most = segment_elements(terms, count / static_cast<std::size_t>(own.size));
  const auto each_segment = [&](int block, auto&& body) {
    for (std::size_t begin = blocks.begin(block), end = blocks.begin(block + 1); begin < end; begin += most)
      body(begin, std::min(most, end - begin));
  };
  std::vector<segment> arriving;
  for (int round = 0; round + 1 < own.size; ++round)
    each_segment(own.before(round + 1), [&](std::size_t begin, std::size_t length) {
      arriving.push_back({round, begin, length});
    });
  const alternating_scratch received(out, terms.bytes(std::min(most, blocks.length(0))), source.kind);
  std::vector<schedule::token> tokens(arriving.size());
  const auto post = [&](std::size_t i) {
    if (i < arriving.size()) tokens[i] = out.receive(own.before(1), received[i], terms.bytes(arriving[i].length));
  };
  post(0);
  post(1);
  each_segment(own.rank, [&](std::size_t begin, std::size_t length) {
    out.send(own.after(1), source + terms.bytes(begin), terms.bytes(length));
  });
  for (std::size_t i = 0; i < arriving.size(); ++i) {
    const auto [round, begin, length] = arriving[i];
    const place target = destination + terms.bytes(begin);
    out.wait(tokens[i]);
    out.combine(terms.type, terms.op, received[i], source + terms.bytes(begin), target, length);
    if (goes_on || round + 2 < own.size) out.send(own.after(1), target, terms.bytes(length));
    post(i + 2);
  }
}

void ring_all_reduce(schedule& out, own_place own, summation terms, place source, place destination, std::size_t count) {
  ring_reduce(out, own, terms, source, destination, count, true);
  // The block of the last round has left already; the others go on as they come.
  const element_division blocks{count, own.size};
  const std::size_t most = segment_elements(terms, count / static_cast<std::size_t>(own.size));
  for (int round = 0; round + 1 < own.size; ++round) {
    const int block = own.before(round);
    for (std::size_t begin = blocks.begin(block), end = blocks.begin(block + 1); begin < end; begin += most) {
      const place target = destination + terms.bytes(begin);
      const std::size_t bytes = terms.bytes(std::min(most, end - begin));
      const auto arrived = out.receive(own.before(1), target, bytes);
      if (round + 2 == own.size) continue;
      out.wait(arrived);
      out.send(own.after(1), target, bytes);
    }
  }
}

// Each rank combines a block, and the root collects them.
void ring_gather_reduce(schedule& out, own_place own, summation terms, place source, place destination, std::size_t count,
                        int root) {
  const element_division blocks{count, own.size};
  const place held = own.rank == root ? destination : out.scratch(terms.bytes(count), source.kind);
  ring_reduce(out, own, terms, source, held, count, false);
  if (own.rank != root) {
    const int block = own.after(1);
    out.send(root, held + terms.bytes(blocks.begin(block)), terms.bytes(blocks.length(block)));
    return;
  }
  // Only now: until here the blocks may still be on their way from this rank.
  for (int i = 1; i < own.size; ++i) {
    const int peer = own.after(i), block = (peer + 1) % own.size;
    out.receive(peer, destination + terms.bytes(blocks.begin(block)), terms.bytes(blocks.length(block)));
  }
}

// Rank among the powers of two, or -1: folded into the rank before it.
struct folding {
  int pairs = 0;  // ranks 2i and 2i + 1 of i < pairs act as one
  int power = 1;
  explicit folding(int size) {
    while (power * 2 <= size) power *= 2;
    pairs = size - power;
  }
  int node_of(int rank) const noexcept { return rank >= 2 * pairs ? rank - pairs : rank % 2 == 0 ? rank / 2 : -1; }
  int rank_of(int node) const noexcept { return node < pairs ? 2 * node : node + pairs; }
};

void recursive_all_reduce(schedule& out, own_place own, summation terms, place source, place destination,
                          std::size_t count) {
  const std::size_t bytes = terms.bytes(count);
  const folding fold(own.size);
  const int node = fold.node_of(own.rank);
  if (node < 0) {
    const auto sent = out.send(own.rank - 1, source, bytes);
    out.wait(sent);
    out.receive(own.rank - 1, destination, bytes);
    return;
  }
  const place received = out.scratch(bytes, source.kind);
  place held = source;
  if (node < fold.pairs) {
    out.wait(out.receive(own.rank + 1, received, bytes));
    out.combine(terms.type, terms.op, held, received, destination, count);
    held = destination;
  }
  for (int distance = 1; distance < fold.power; distance *= 2) {
    const int peer = fold.rank_of(node ^ distance);
    const auto arrived = out.receive(peer, received, bytes);
    const auto sent = out.send(peer, held, bytes);
    out.wait(arrived);
    out.wait(sent);
    // The lower ranks' part stands first at both.
    const bool is_lower = own.rank < peer;
    out.combine(terms.type, terms.op, is_lower ? held : received, is_lower ? received : held, destination, count);
    held = destination;
  }
  if (node < fold.pairs) out.send(own.rank + 1, destination, bytes);
}

}  // namespace

void plan_reduce(schedule& out, own_place own, algorithm chosen, summation terms, place source, place destination,
                 std::size_t count, int root) {
  if (own.size == 1) return out.copy(own.rank, destination, source, terms.bytes(count));
  if (chosen == algorithm::ring_gather) return ring_gather_reduce(out, own, terms, source, destination, count, root);
  binomial_reduce(out, own, terms, source, destination, count, root);
}

void plan_all_reduce(schedule& out, own_place own, algorithm chosen, summation terms, place source, place destination,
                     std::size_t count) {
  if (own.size == 1) return out.copy(own.rank, destination, source, terms.bytes(count));
  if (chosen == algorithm::ring) return ring_all_reduce(out, own, terms, source, destination, count);
  recursive_all_reduce(out, own, terms, source, destination, count);
}

// Each block goes straight to its rank, which combines its own with those of the ranks before it, the nearest first.
void plan_reduce_scatter(schedule& out, own_place own, summation terms, place source, place destination,
                         std::span<const std::size_t> counts) {
  struct segment {
    int peer = 0;
    std::size_t begin = 0, length = 0;
  };
  const std::size_t most = segment_elements(terms, *std::max_element(counts.begin(), counts.end()));
  std::vector<std::size_t> begins(counts.size());
  for (std::size_t i = 1; i < counts.size(); ++i) begins[i] = begins[i - 1] + counts[i - 1];
  const auto mine = static_cast<std::size_t>(own.rank);
  const std::size_t count = counts[mine];
  std::vector<segment> arriving;
  for (int i = 1; i < own.size; ++i)
    for (std::size_t begin = 0; begin < count; begin += most)
      arriving.push_back({own.before(i), begin, std::min(most, count - begin)});
  const alternating_scratch received(out, terms.bytes(std::min(most, count)), source.kind);
  std::vector<schedule::token> tokens(arriving.size());
  const auto post = [&](std::size_t i) {
    if (i < arriving.size()) tokens[i] = out.receive(arriving[i].peer, received[i], terms.bytes(arriving[i].length));
  };
  post(0);
  post(1);
  for (int i = 1; i < own.size; ++i) {
    const auto peer = static_cast<std::size_t>(own.after(i));
    for (std::size_t begin = 0; begin < counts[peer]; begin += most)
      out.send(own.after(i), source + terms.bytes(begins[peer] + begin), terms.bytes(std::min(most, counts[peer] - begin)));
  }
  const place own_block = source + terms.bytes(begins[mine]);
  for (std::size_t i = 0; i < arriving.size(); ++i) {
    const auto [peer, begin, length] = arriving[i];
    const place target = destination + terms.bytes(begin);
    out.wait(tokens[i]);
    out.combine(terms.type, terms.op, received[i], peer == own.before(1) ? own_block + terms.bytes(begin) : target, target,
                length);
    post(i + 2);
  }
  if (own.size == 1) out.copy(own.rank, destination, own_block, terms.bytes(count));
}

}  // namespace pl::collectives
