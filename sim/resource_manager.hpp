// SPDX-License-Identifier: Apache-2.0
// The resource manager of a simulated machine: the ioctl calls that a client makes on /dev/nvidiactl and /dev/nvidiaN for
// mappings and DMA channels, in the layouts of one driver release, and a thread that executes what channels are given.
//
//   client (a root object of a control descriptor)
//     device -- address space, memory (its own, CUDA's duplicated, the host's), group -- channel
//     subdevice -- doorbell, events (a copy engine's interrupts make a descriptor of /dev/nvidiaN readable)
//
// Boards and CUDA's memory come from a `machine`, so that the simulated GPU and tests without CUDA share this code. A forked
// child gets an error from each call, as a child that uses its parent's client gets from the driver.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <vector>

#include "rm/channel_abi.hpp"
#include "sim/channel_space.hpp"
#include "sim/copy_engine_model.hpp"

namespace pl::sim {

struct board_address {
  unsigned bus = 0, slot = 0;
};

// What a resource manager manages. Called with its lock held.
class machine {
 public:
  virtual ~machine() = default;
  virtual std::vector<board_address> boards() = 0;
  // Null: the board has no room.
  virtual channel_memory_ref make_memory(unsigned board, std::uint64_t size_bytes);
  // CUDA's memory by its handles or by a descriptor that CUDA exported, and the board it lies on. Null: there is none.
  virtual channel_memory_ref find_memory(rm::handle client, rm::handle object, unsigned& board);
  virtual channel_memory_ref import_memory(int fd, unsigned& board);
  virtual random_source make_random();
  // Whether engines of the two boards reach each other's memory.
  virtual bool is_linked(unsigned board, unsigned other);
};

class resource_manager : public std::enable_shared_from_this<resource_manager> {
 public:
  struct options {
    std::string version;
    bool is_deaf = false;        // its engines never look at a doorbell
    std::uint32_t mig_mode = 0;  // NV2080_CTRL_GPU_INFO_GPU_SMC_MODE
    bool is_confidential = false;
    bool knows_restrictions = true;  // false: as a driver that answers neither question
  };
  static std::shared_ptr<resource_manager> make(std::shared_ptr<machine> hardware, options given);
  ~resource_manager();
  resource_manager(const resource_manager&) = delete;
  resource_manager& operator=(const resource_manager&) = delete;

  // Ends the engine's thread and frees everything. Nothing may be called afterwards.
  void shut_down();

  // The system calls, with libc's conventions. Descriptors and paths that are not the resource manager's go to the kernel.
  int open(const char* path, int flags);
  int close(int fd);
  int ioctl(int fd, unsigned long request, void* argument);
  void* mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset);
  // On hardware the first poll() that sees a descriptor readable does this. Here it stays readable until it is cleared: what
  // waits for it must do with both.
  void clear_event(int fd);

  // Fault injection: the GPUs fall off the bus, or are reset by others. What their channels have queued is never done, no
  // notifier tells of it, and calls fail until `is_lost` is false.
  void lose_gpus(bool is_lost);

  // The time slice that was asked for last; and a driver that knows none.
  std::uint64_t last_timeslice_us() const { return last_timeslice_us_; }
  void refuse_timeslices(bool is_on) { refuses_timeslices_ = is_on; }

  int live_objects();                                       // all but root objects
  int live_maps();                                          // GPU addresses in use
  int protocol_errors() const { return protocol_errors_; }  // calls that no correct client makes
  std::uint64_t pipelined_copies();
  bool is_engine_running();

 private:
  struct object {
    rm::handle parent = 0;
    std::uint32_t object_class = 0;
    unsigned board = 0;
    unsigned peer_board = 0;  // of a peer link
    channel_memory_ref memory;
    std::shared_ptr<channel_space> space;  // of an address space, of virtual memory in it, and of a channel group
    std::shared_ptr<copy_channel> channel;
    std::uint32_t engine = 0;           // of a channel group
    rm::event_params event = {};        // of an event: what it is made of
    std::set<std::uint32_t> notifiers;  // of a subdevice: those that are on
  };
  struct client {
    int control_fd = -1;
    std::map<rm::handle, object> objects;
    std::map<std::uint32_t, int> os_events;  // by the number that it names them by: the descriptor
  };
  struct node {
    int board = -1;              // -1: the control node
    int control_fd = -1;         // where it is registered
    channel_memory_ref pending;  // what the next mmap shows
    std::uint64_t pending_offset = 0;
    bool has_data = false;   // of an event: it stays readable for ever
    bool is_export = false;  // it stands for memory
  };
  class call_scope;

  resource_manager(std::shared_ptr<machine> hardware, options given);
  bool is_forked() const;
  // Calls, in resource_manager.cpp.
  int control_call(int fd, unsigned number, std::size_t bytes, void* argument);
  int device_call(int fd, node& opened, unsigned number, std::size_t bytes, void* argument);
  std::uint32_t call_os_event(int fd, bool is_alloc, const rm::os_event_params& params);
  std::uint32_t set_notification(const rm::control_params& params);
  void list_cards(void* argument, std::size_t bytes) const;
  std::uint32_t map_cpu(const rm::map_params& params, std::uint64_t& linear_address);
  std::uint32_t map_dma(std::byte* block);
  std::uint32_t unmap_dma(const rm::unmap_dma_head& head);
  std::uint32_t control(const rm::control_params& params);
  std::uint32_t control_channel(const rm::control_params& params);
  std::uint32_t bad_call(std::uint32_t status) { return ++protocol_errors_, status; }
  // Objects, in resource_objects.cpp.
  std::uint32_t alloc(int control_fd, rm::alloc_params& params);
  std::uint32_t make_object(const rm::alloc_params& params, object& made);
  std::uint32_t make_in_space(const rm::alloc_params& params, object& made);
  std::uint32_t make_channel(const rm::alloc_params& params, object& made);
  std::uint32_t make_event(const rm::alloc_params& params, object& made);
  std::uint32_t make_peer_link(const rm::alloc_params& params, object& made);
  std::uint32_t alloc_host(const rm::host_memory_params& params);
  std::uint32_t duplicate(const rm::dup_params& params);
  std::uint32_t export_object(rm::handle root, const rm::export_object_params& params);
  std::uint32_t import_object(rm::handle root, const rm::import_object_params& params);
  std::uint32_t add_shared(rm::handle root, rm::handle parent, rm::handle handle, channel_memory_ref memory, unsigned board);
  std::uint32_t free_object(const rm::free_params& params);
  void forget(client& owner, rm::handle handle, bool counts_errors);
  static bool has_link(const client& owner, unsigned board, unsigned peer_board);
  static std::size_t unmap_peers(client& owner, unsigned board, unsigned peer_board);
  void end_client(rm::handle root);
  object* find(rm::handle root, rm::handle handle);

  // The engine's thread, in channel_engine.cpp.
  bool add_channel(const object& made);
  void drop_channel(const copy_channel* channel);
  void interrupt(unsigned board, std::uint32_t engine);
  void run_engine();
  void listen_to_doorbells();

  const std::shared_ptr<machine> machine_;
  const options options_;
  const rm::channel_layout* const layout_;
  const std::vector<board_address> boards_;
  const pid_t pid_;

  std::mutex mutex_;
  std::condition_variable engine_ended_;
  std::atomic<int> callers_{0};  // waiting for the lock, which the engine then leaves to them
  std::map<int, node> nodes_;
  std::map<rm::handle, client> clients_;
  rm::handle next_root_;
  std::uint64_t next_linear_ = 0x1000;
  unsigned spaces_ = 0;
  std::vector<channel_memory_ref> doorbells_;  // one page for each board
  struct running_channel {
    unsigned board;
    std::shared_ptr<copy_channel> channel;
  };
  std::vector<running_channel> channels_;
  std::uint32_t next_token_ = 0x11;
  std::uint64_t pipelined_ = 0;  // of channels that have ended
  bool has_engine_ = false, is_over_ = false, is_lost_ = false;
  std::atomic<int> protocol_errors_{0};
  std::atomic<std::uint64_t> last_timeslice_us_{0};
  std::atomic<bool> refuses_timeslices_{false};
};

}  // namespace pl::sim
