// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/loops.hpp"

#include "base/clock.hpp"
#include "tools/p2p/pattern.hpp"

namespace pl::p2p {
namespace {

enum class role { first, second, idle };

role role_of(const transport& world, const loop_plan& plan) {
  if (world.rank() < plan.pairs) return role::first;
  return world.rank() < 2 * plan.pairs ? role::second : role::idle;
}

int peer_of(const transport& world, const loop_plan& plan) {
  return world.rank() < plan.pairs ? world.rank() + plan.pairs : world.rank() - plan.pairs;
}

// With one buffer each, all messages of a window bring the iteration's data; with several, each brings its own.
std::uint64_t salt_of(const loop_plan& plan, std::uint64_t iteration, std::size_t slot) {
  return plan.multiple_buffers ? slot : iteration;
}

void prepare(const buffer_set& set, const loop_plan& plan, std::uint64_t iteration) {
  std::vector<std::uint8_t> bytes(plan.size_bytes);
  for (std::size_t slot = 0; slot < set.send.size(); ++slot) {
    const auto salt = salt_of(plan, iteration, slot);
    fill_pattern(bytes, salt);
    set.send[slot]->store(bytes);
    for (auto& one : bytes) one = static_cast<std::uint8_t>(~one);  // nothing that was here before may pass
    set.receive[slot]->store(bytes);
  }
}

std::int64_t verify(const buffer_set& set, const loop_plan& plan, std::uint64_t iteration) {
  std::vector<std::uint8_t> bytes(plan.size_bytes);
  std::int64_t errors = 0;
  for (std::size_t slot = 0; slot < set.receive.size(); ++slot) {
    set.receive[slot]->load(bytes);
    errors += static_cast<std::int64_t>(count_errors(bytes, salt_of(plan, iteration, slot)));
  }
  return errors;
}

// The frame that all loops share: warm-up, validation around the exchanges, and which of them counts. `exchange(set)` is
// what is timed; `receives` says whether this rank has data to verify.
template <class Exchange>
loop_outcome iterate(transport& world, buffer_pool& buffers, const loop_plan& plan, bool measures, bool receives,
                     Exchange&& exchange) {
  loop_outcome out;
  if (measures) out.samples_ns.reserve(static_cast<std::size_t>(plan.iterations));
  const int exchanges = plan.validate ? plan.validation_warm_up + 1 : 1;
  std::int64_t errors = 0;
  world.barrier();
  for (int i = 0; i < plan.warm_up + plan.iterations; ++i) {
    const auto iteration = static_cast<std::uint64_t>(i);
    const auto& set = buffers.at_iteration(iteration);
    if (plan.validate) prepare(set, plan, iteration);
    if (plan.validate || plan.barrier_each_iteration) world.barrier();
    for (int turn = 0; turn < exchanges; ++turn) {
      const std::uint64_t begin_ns = monotonic_ns();
      exchange(set);
      const std::uint64_t end_ns = monotonic_ns();
      if (measures && i >= plan.warm_up && turn + 1 == exchanges)
        out.samples_ns.push_back(static_cast<double>(end_ns - begin_ns));
    }
    if (plan.validate && receives) errors += verify(set, plan, iteration);
  }
  if (plan.validate) out.errors = static_cast<std::int64_t>(sum_over_ranks(world, static_cast<double>(errors)));
  return out;
}

void post_sends(transport& world, const buffer_set& set, const loop_plan& plan, int peer, int tag,
                std::vector<request>& pending) {
  for (std::size_t message = 0; message < pending.size(); ++message) {
    const auto& slot = set.send_slot(message);
    pending[message] = world.isend(slot.data(), plan.size_bytes, slot.kind(), peer, tag);
  }
}

void post_receives(transport& world, const buffer_set& set, const loop_plan& plan, int peer, int tag,
                   std::vector<request>& pending) {
  for (std::size_t message = 0; message < pending.size(); ++message) {
    const auto& slot = set.receive_slot(message);
    pending[message] = world.irecv(slot.data(), plan.size_bytes, slot.kind(), peer, tag);
  }
}

void consume_all(const buffer_pool& buffers, const buffer_set& set, const loop_plan& plan) {
  if (!plan.consume) return;
  for (const auto& one : set.receive) buffers.source().consume(*one, plan.size_bytes);
}

loop_outcome stand_by(transport& world, buffer_pool& buffers, const loop_plan& plan) {
  return iterate(world, buffers, plan, false, false, [](const buffer_set&) {});
}

}  // namespace

loop_outcome run_latency(transport& world, buffer_pool& buffers, const loop_plan& plan) {
  const role mine = role_of(world, plan);
  if (mine == role::idle) return stand_by(world, buffers, plan);
  const int peer = peer_of(world, plan);
  const auto send = [&](const buffer_set& set) {
    world.send(set.send[0]->data(), plan.size_bytes, set.send[0]->kind(), peer, kPingTag);
  };
  const auto receive = [&](const buffer_set& set) {
    world.recv(set.receive[0]->data(), plan.size_bytes, set.receive[0]->kind(), peer, kPingTag);
    consume_all(buffers, set, plan);
  };
  return iterate(world, buffers, plan, true, true, [&](const buffer_set& set) {
    if (mine == role::first) {
      send(set);
      receive(set);
    } else {
      receive(set);
      send(set);
    }
  });
}

loop_outcome run_bandwidth(transport& world, buffer_pool& buffers, const loop_plan& plan) {
  const role mine = role_of(world, plan);
  if (mine == role::idle) return stand_by(world, buffers, plan);
  const int peer = peer_of(world, plan);
  std::vector<request> pending(static_cast<std::size_t>(plan.window));
  if (mine == role::first)
    return iterate(world, buffers, plan, true, false, [&](const buffer_set& set) {
      post_sends(world, set, plan, peer, kWindowTag, pending);
      world.waitall(pending);
      world.recv(set.receive[0]->data(), kAnswerBytes, set.receive[0]->kind(), peer, kAnswerTag);
    });
  return iterate(world, buffers, plan, false, true, [&](const buffer_set& set) {
    post_receives(world, set, plan, peer, kWindowTag, pending);
    world.waitall(pending);
    consume_all(buffers, set, plan);
    world.send(set.send[0]->data(), kAnswerBytes, set.send[0]->kind(), peer, kAnswerTag);
  });
}

loop_outcome run_bidirectional(transport& world, buffer_pool& buffers, const loop_plan& plan) {
  const role mine = role_of(world, plan);
  if (mine == role::idle) return stand_by(world, buffers, plan);
  const int peer = peer_of(world, plan);
  const bool first = mine == role::first;
  std::vector<request> incoming(static_cast<std::size_t>(plan.window));
  std::vector<request> outgoing(incoming.size());
  return iterate(world, buffers, plan, true, true, [&](const buffer_set& set) {
    post_receives(world, set, plan, peer, first ? kReverseTag : kWindowTag, incoming);
    post_sends(world, set, plan, peer, first ? kWindowTag : kReverseTag, outgoing);
    world.waitall(outgoing);
    world.waitall(incoming);
    consume_all(buffers, set, plan);
  });
}

}  // namespace pl::p2p
