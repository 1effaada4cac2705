// SPDX-License-Identifier: Apache-2.0
// One iteration of the ping-pong, for each method of signalling the other side.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>

#include "tools/triggered/bench_rank.hpp"

namespace pl::async {

enum class arm {
  normal,
  hostfn,
  peer,
  peer_kernel,
  proxy,
  proxy_kernel,
  dma,
  device,
  graph,
  graph_kernel,
  graph_dma,
  graph_loop,
  graph_loop_dma
};
triggered::executor_kind executor_of(arm kind);
bool is_captured(arm kind);  // into a graph
const char* to_string(arm kind);
arm arm_of(const std::string& word);  // throws tools::tool_failure

// How the application waits for its own batches, and what the context's proxy thread does.
struct contender {
  arm kind = arm::normal;
  triggered::run_mode mode = triggered::run_mode::performance;
};

// Two ranks use it at the same time, in the same order of calls.
class exchange {
 public:
  virtual ~exchange() = default;
  // Collective, before the first iteration of a case. ENOTSUP: this method is not available here.
  virtual status prepare(std::size_t, std::uint64_t) { return {}; }
  // Iterations come in multiples of it.
  virtual int unit() const { return 1; }
  // How many calls of iterate() may be in progress, because a channel limits what is queued on streams.
  virtual int max_at_once() const { return 80; }
  // Whether one call of iterate() runs all iterations of a repetition, whatever -b says.
  virtual bool is_one_launch() const { return false; }
  // Queues or does `count` iterations of rank 0: send, receive, kernel; rank 1: receive, kernel, send.
  virtual void iterate(std::size_t bytes, std::uint64_t busy_ns, int count) = 0;
  // Waits until everything queued has completed.
  virtual void finish() = 0;

  std::uint64_t enqueue_ns = 0;  // time of the calls that queue; stays 0 where the CPU takes part in each step
};

// `unroll`: iterations of one graph, where there are graphs (fewer for one with slots). Collective.
std::unique_ptr<exchange> make_exchange(bench_rank& session, const contender& candidate, int unroll);

}  // namespace pl::async
