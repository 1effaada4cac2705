// SPDX-License-Identifier: Apache-2.0
// A list of copies between memories that this process reaches, compiled once and run any number of times: blocks for
// the GPUs' channels, moves for the CPU if both sides are host memory.
//
// One thread at a time.
#pragma once

#include <cstdint>
#include <memory>
#include <vector>

#include "compat/nixl/cpu_moves.hpp"
#include "compat/nixl/memory.hpp"

namespace pl::nixl {

class copy_list {
 public:
  explicit copy_list(std::shared_ptr<cpu_mover> mover) : mover_(std::move(mover)) {}
  ~copy_list() { end(); }
  copy_list(const copy_list&) = delete;
  copy_list& operator=(const copy_list&) = delete;

  struct side {
    std::shared_ptr<memory> in;
    std::uint64_t address = 0;
  };
  // `peer`: the process of a foreign host side. ENOTSUP: no way between the two; EINVAL: bytes outside of their memory.
  status add(const side& destination, const side& source, std::uint64_t size_bytes, int peer = 0);

  status begin();
  // Returns true if it has ended, and an error if it has failed.
  result<bool> test();
  // Waits for what is in progress; stops a channel that does not end.
  void end() noexcept;

  std::uint64_t size_bytes() const noexcept { return size_bytes_; }

 private:
  struct queued {
    std::shared_ptr<gpu_queues> gpu;
    path way = path::to_device;
    std::vector<dma::block> blocks;
    gpu_queues::ticket begun;
    bool is_in_order = false;  // put_in_order() has seen all blocks

    void put_in_order();
  };
  struct cursor {  // where the side's last bytes were found
    const memory* in = nullptr;
    const gpu_queues* gpu = nullptr;
    memory::extent found;
  };
  struct place {
    std::uint64_t address = 0, size_bytes = 0;  // up to the end of the extent
  };
  bool move_shortly();
  status add_by_cpu(const side& destination, const side& source, std::uint64_t size_bytes, int peer);
  result<place> find(cursor& last, const side& wanted, std::uint64_t offset, const std::shared_ptr<gpu_queues>& gpu);
  std::uint64_t time_limit_ns() const noexcept;
  queued& queue_for(const std::shared_ptr<gpu_queues>& gpu, path way);
  void keep(const std::shared_ptr<memory>& used);

  std::shared_ptr<cpu_mover> mover_;
  std::vector<std::shared_ptr<memory>> used_;
  std::vector<queued> queues_;
  cpu_list by_cpu_;
  std::shared_ptr<cpu_mover::run> cpu_run_;
  cursor destination_, source_;
  std::uint64_t size_bytes_ = 0;
  // The only copy of the list, where the CPU may do it: a short one between own host memory and GPU memory.
  struct {
    memory* on_device = nullptr;
    std::uint64_t device_address = 0, host_address = 0;
    std::byte* mapped = nullptr;  // once it has been looked for
    bool is_read = false;
    bool is_wanted = false;
  } short_;
  std::size_t copies_ = 0;
  unsigned tests_ = 0;
  std::uint64_t begun_ns_ = 0;
};

}  // namespace pl::nixl
