// SPDX-License-Identifier: Apache-2.0
// An mlx5 adapter in software: it watches doorbell registers, carries out the requests that it finds in the send rings, and
// writes completions, from the same memory as a real one. It reads and writes that memory field by field as the manual
// defines it, not with the code that is tested.
//
// As an adapter does, it
// - looks at a send ring only after its register was written, and then up to the doorbell record;
// - takes requests of several blocks (RDMA write with pointers or data in the request; no operation), and nothing else;
// - checks keys, ranges and rights of both sides; writes what is sent to one GPU in order (peerlaneSimNetworkWrite);
// - gives each completion the owner bit of its round, and sends none for a request that asks for none;
// - after an error completes that request with its syndrome, gives up all behind it, and carries out nothing more;
// - overruns a completion queue of which too little was read. It says so: on silicon that is a broken queue.
#pragma once

#include <infiniband/mlx5dv.h>

#include <atomic>
#include <cstdint>
#include <list>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>

#include "copy/pinned_buffer.hpp"
#include "test/support/sim_fixture.hpp"
#include "triggered/mlx5_executor.hpp"

namespace pl::triggered {

inline const cu::driver_table& cuda() { return test::simulated_cuda(); }

class mlx5_model {
 public:
  enum rights : unsigned { local = 0, remote_write = 1 };

  explicit mlx5_model(const copy::gpu_context& gpu);
  ~mlx5_model();

  void add_memory(std::uint32_t key, std::uint64_t begin, std::uint64_t bytes, unsigned allowed);
  void remove_memory(std::uint32_t key);

  // What a program has of a queue pair. `entry_bytes`: 64 or 128.
  struct shape {
    std::uint32_t number = 1, blocks = 16, entries = 16, entry_bytes = 64;
  };
  // Its memory as mlx5_place::inspect() and mlx5_completion_place::inspect() find it, and as the GPU reaches it.
  mlx5_pair add_pair(const shape& wanted);

  void set_working(bool may_work) { may_work_ = may_work; }
  // Completions are held back, so that one read finds many; false brings them.
  void hold_completions(bool is_holding) { is_holding_ = is_holding; }
  std::uint64_t done(std::uint32_t number) const;         // requests carried out, of a queue pair
  std::uint64_t completions(std::uint32_t number) const;  // written
  // Of the simulated GPUs and of what it sends to them (docs/simulated-gpu.md).
  static void set_disorder(unsigned long long seed, unsigned delay_us);
  // What no adapter should ever find; empty: nothing.
  std::string fault() const;

 private:
  struct memory {
    std::uint64_t begin = 0, bytes = 0;
    unsigned allowed = 0;
  };
  struct queue_pair {
    shape is;
    copy::pinned_buffer pages;
    std::byte* ring = nullptr;
    std::byte* entries = nullptr;
    std::uint32_t* records = nullptr;  // of the queue pair: receive, send
    std::uint32_t* read_record = nullptr;
    std::uint64_t* registers = nullptr;
    ibv_qp qp{};
    ibv_cq cq{};
    std::uint64_t last_doorbell = 0;
    std::atomic<std::uint64_t> done{0}, posted{0}, completions{0};
    bool is_broken = false;
    struct completion {
      std::uint16_t request;
      std::uint8_t syndrome;
    };
    std::list<completion> held;
  };
  static int init_obj(mlx5dv_obj* object, std::uint64_t types);
  void run();
  bool advance(queue_pair& pair);
  void look_at_register(queue_pair& pair);
  std::uint8_t carry_out(queue_pair& pair, unsigned& blocks, bool& is_signaled);
  std::uint8_t write(const std::byte* begin, std::uint64_t bytes, std::uint32_t key, std::uint64_t target);
  void complete(queue_pair& pair, queue_pair::completion one);
  void fail(const std::string& reason);
  bool is_inside(std::uint32_t key, std::uint64_t address, std::uint64_t bytes, unsigned needed);

  const copy::gpu_context gpu_;
  std::map<std::uint32_t, memory> memories_;
  std::list<queue_pair> pairs_;
  mutable std::mutex mutex_;  // of the two, and of fault_
  std::string fault_;
  cu::stream_t stream_ = nullptr;
  std::atomic<bool> may_work_{true}, is_holding_{false}, is_over_{false};
  std::thread thread_;
};

}  // namespace pl::triggered
