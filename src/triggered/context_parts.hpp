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
#include "triggered/dma_executor.hpp"
#include "triggered/event_wakeup.hpp"
#include "triggered/proxy_thread.hpp"
#include "triggered/receive_slots.hpp"
#include "triggered/staging.hpp"
#include "triggered/visibility_self_test.hpp"

namespace pl::triggered {

// The first message between two ends. Plain bytes.
struct hello {
  std::uint32_t version = 5;
  executor_kind wanted = executor_kind::automatic;
  std::uint32_t waits_by_kernel = 0, has_kernels = 0;
  std::uint32_t depth = 0, reserved = 0;
  memory_key words;
};

struct context::parts {
  copy::gpu_context gpu;
  context_options options;
  std::unique_ptr<messaging::messenger> messages;
  std::unique_ptr<word_pool> words;
  std::unique_ptr<memory_importer> importer;
  std::unique_ptr<receive_slots> receive_windows;  // of the proxy executor, as are these
  std::unique_ptr<staging_pool> slots;
  std::unique_ptr<shm_queue_pool> shm_queues;
  std::unique_ptr<event_wakeup> wakeup;
  std::unique_ptr<proxy_thread> proxy;
  cu::module_t module = nullptr;
  peer_methods methods;
  dma_kernels post_kernels;
  std::uint32_t epoch = claim_process_epoch();

  std::mutex mutex;  // of what follows, and of words->take / give_back
  std::uint32_t next_window = 1;
  std::vector<window_key> windows;
  std::vector<cu::device_ptr> retired;
  std::set<const channel*> channels;
  std::map<std::string, flag_writer> writers;                       // by the peer GPU's uuid: result of its self-test
  std::map<std::pair<int, std::uint32_t>, std::uint32_t> connects;  // of each peer and id, so far
  std::vector<std::unique_ptr<std::pair<hello, messaging::request>>> hellos;  // sent, not yet gone
  std::shared_ptr<dma_domain> dma;                                            // opened by the first channel that needs it

  ~parts();
  status load_kernel();
  // Collective. Which other rank uses this GPU.
  status find_sharer(messaging::bootstrap& bootstrap);
  int shares_gpu_with = -1;
  // Whether the streams of a channel may wait by a kernel if its options ask for it.
  bool may_wait_by_kernel() const noexcept { return why_no_wait_kernel().empty(); }
  std::string why_no_wait_kernel() const;  // empty: it may
  void close(channel& end);
  result<std::shared_ptr<dma_domain>> open_dma();
  // Selects how flags are written to the owner of `words`. Another channel may have selected it for this GPU already.
  result<flag_writer> writer_to(const memory_key& key, cu::device_ptr theirs, unsigned index);
};

}  // namespace pl::triggered
