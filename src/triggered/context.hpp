// SPDX-License-Identifier: Apache-2.0
// One process's part of a job whose GPUs signal each other from their streams. Bound to one GPU.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <string>

#include "messaging/bootstrap/bootstrap.hpp"
#include "messaging/messenger.hpp"
#include "triggered/channel.hpp"
#include "triggered/flag_words.hpp"
#include "triggered/peer_executor.hpp"
#include "triggered/remote_memory.hpp"

namespace pl::triggered {

enum class run_mode : std::uint32_t {
  performance = 0,  // the proxy thread polls while there are proxy channels: least latency, one core
  economy = 1,      // it sleeps when idle
};

// automatic: PEERLANE_STREAM_WRITER if set, else the result of the visibility self-test towards each peer GPU.
enum class writer_choice : std::uint32_t { automatic = 0, direct = 1, copied = 2, kernel = 3 };

struct context_options {
  int device_ordinal = -1;  // -1: the current context's device
  run_mode mode = run_mode::performance;
  std::chrono::nanoseconds wait_timeout = std::chrono::seconds(30);  // of channels that name none; 0: never
  std::chrono::milliseconds connect_timeout = std::chrono::seconds(30);
  unsigned channels = 64;  // most at a time
  writer_choice writer = writer_choice::automatic;
  int service_cpu = -1;  // where the proxy thread runs; -1: near the GPU
  messaging::messenger_options messages = messaging::messenger_options::from_environment();
};

// GPU memory of this process that peers may put into. The key is plain bytes and may be sent by any means. Withdraw the
// window before the memory is freed and after the last put into it.
struct window_key {
  memory_key memory;
  std::uint32_t id = 0;
  std::int32_t rank = -1;
};

struct capabilities {
  int device_ordinal = -1;
  bool has_cpu_mapping = false;  // of GPU words; without it waits are released by a stream
  std::string why_no_mapping;
  bool can_release = false;                  // without it (no mapping, no stream for it) no wait may have a time-out
  flag_writer writer = flag_writer::direct;  // the slowest towards the peer GPUs met so far
  std::size_t kernel_limit = 0;              // puts up to here go by one kernel with their flag
  int shares_gpu_with = -1;                  // a rank that uses this GPU too; -1: none
};

class proxy_thread;

class context {
 public:
  // Collective over `with`. The current CUDA context of the device is used, else its primary one. ENOTSUP: the driver has no
  // 64-bit stream memory operations, or CUDA_LAUNCH_BLOCKING is set. In a forked child every call answers EACCES.
  static result<std::unique_ptr<context>> open(const cu::driver_table& cuda, messaging::bootstrap& bootstrap,
                                               const context_options& wanted = {});
  // Not collective. All channels must have ended. Waits up to a second for streams that still wait on closed channels, and
  // releases them.
  ~context();
  context(const context&) = delete;
  context& operator=(const context&) = delete;

  int rank() const noexcept;
  int size() const noexcept;
  capabilities query() const;

  result<window_key> expose(cu::device_ptr memory, std::size_t bytes);
  void withdraw(const window_key& key);
  // A peer's window. Its address is 0 where this GPU cannot reach it; proxy channels can still put into it.
  result<remote_window> import(const window_key& key);

  // ---- For who exchanges memory and words by itself, as collectives on streams do
  const copy::gpu_context& gpu() const noexcept;
  std::chrono::nanoseconds wait_timeout() const noexcept;
  memory_importer& importer() noexcept;
  // Memory that peers may still have open: freed with the context.
  void retire(cu::device_ptr memory);
  // Not 0 once the peer is gone. Looks for nothing itself.
  status peer_state(int peer) const;

  // The end of channel `id` towards `peer` (which may be this very process and context only if id differs per direction: an
  // end cannot be its own peer). Both sides call it with the same id; an id may be used again once both have closed it.
  result<std::unique_ptr<channel>> connect(int peer, std::uint32_t id, const channel_options& wanted = {});

  void set_mode(run_mode mode);
  // The diag() of every channel, and the state of the proxy thread.
  std::string diag() const;

  struct parts;  // of this folder

 private:
  friend class channel;
  explicit context(std::unique_ptr<parts> made);
  status check_process() const;
  std::unique_ptr<parts> parts_;
};

}  // namespace pl::triggered
