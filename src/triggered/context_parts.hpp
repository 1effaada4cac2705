// SPDX-License-Identifier: Apache-2.0
// The inside of a context, for context.cpp and channel.cpp.
#pragma once

#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "os/fork_guard.hpp"
#include "triggered/context.hpp"
#include "triggered/event_wakeup.hpp"
#include "triggered/proxy_thread.hpp"
#include "triggered/receive_slots.hpp"
#include "triggered/staging.hpp"
#include "triggered/visibility_self_test.hpp"

namespace pl::stream {

// What an end tells the other about itself. Plain bytes.
struct hello {
  std::uint32_t version = 3;
  executor_kind wanted = executor_kind::automatic;
  std::uint32_t waits_by_kernel = 0, has_kernels = 0;
  std::uint32_t depth = 0, reserved = 0;
  memory_key words;
};

struct context::parts {
  copy::gpu_context gpu;
  context_options options;
  std::unique_ptr<link::messenger> messages;
  std::unique_ptr<word_pool> words;
  std::unique_ptr<memory_importer> importer;
  std::unique_ptr<landing> windows_here;  // of the proxy executor, as are these
  std::unique_ptr<staging_pool> slots;
  std::unique_ptr<lane_pool> lanes;
  std::unique_ptr<event_bell> bell;
  std::unique_ptr<service> watch;
  cu::module_t module = nullptr;
  peer_ways ways;
  std::uint32_t epoch = claim_process_epoch();

  std::mutex mutex;  // of what follows, and of words->take / give_back
  std::uint32_t next_window = 1;
  std::vector<window_key> windows;
  std::set<const channel*> channels;
  std::map<std::string, flag_writer> writers;                            // by the peer GPU's uuid: what its litmus found
  std::map<std::pair<int, std::uint32_t>, std::uint32_t> connects;       // of each peer and id, so far
  std::vector<std::unique_ptr<std::pair<hello, link::request>>> hellos;  // sent, not yet gone

  ~parts();
  status load_kernel();
  // Collective. Which other rank uses this GPU.
  status find_sharer(link::bootstrap& bootstrap);
  int shares_gpu_with = -1;
  // Whether a channel's streams may wait by a kernel if its options say so.
  bool may_wait_by_kernel() const noexcept { return why_no_wait_kernel().empty(); }
  std::string why_no_wait_kernel() const;  // empty: it may
  void close(channel& end);
  // How flags get to the owner of `words`, a GPU towards which some channel may have been opened before.
  result<flag_writer> writer_to(const memory_key& key, cu::device_ptr theirs, unsigned index);
};

}  // namespace pl::stream
