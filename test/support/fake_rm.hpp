// SPDX-License-Identifier: Apache-2.0
// A resource manager made of the rules that the real one was seen to keep (driver 580.159): client, device and memory
// objects by handle, duplicates of the simulated CUDA's objects, one pending mapping per device descriptor, page granular
// maps inside the object, refusal of other processes. Memory is the simulator's own memfd, so mapped bytes are real.
#pragma once

#include <sys/types.h>

#include <cstdint>
#include <map>
#include <mutex>
#include <string>

#include "os/device_io.hpp"
#include "rm/rm_abi.hpp"

namespace pl::test {

class fake_rm final : public device_io {
 public:
  struct options {
    int gpus = 2;
    std::string version = "580.159.04";
    bool bar1_full = false;
    bool deny_device_nodes = false;  // EACCES on /dev/nvidia0..
    bool no_driver = false;          // ENOENT on everything
    bool deny_control_node = false;
    bool shift_mapping = false;  // maps the wrong place: an ABI that differs
  };
  explicit fake_rm(options given) : options_(std::move(given)) {}
  fake_rm() : fake_rm(options{}) {}

  options& settings() { return options_; }
  int live_objects() const;  // everything but root clients
  int live_clients() const;
  int live_mappings() const;
  int protocol_errors() const { return protocol_errors_; }  // calls that a correct client never makes

  int open(const char* path, int flags) override;
  int close(int fd) override;
  int ioctl(int fd, unsigned long request, void* argument) override;
  void* mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) override;
  int munmap(void* address, std::size_t size_bytes) override;
  int madvise(void* address, std::size_t size_bytes, int advice) override;
  result<std::string> read_text(const char* path) override;

 private:
  struct device_node {  // an open descriptor of ours
    int minor = -1;     // -1: the control node
    bool registered = false;
    int pending_fd = -1;  // memfd of a mapping that waits for mmap
    std::uint64_t pending_offset = 0, pending_length = 0;
  };
  struct object {
    rm::handle root, parent;
    std::uint32_t object_class;  // kMemory for duplicates
    int gpu = -1;
    int memfd = -1;
    std::uint64_t bytes = 0;
  };
  struct mapping {
    rm::handle root, memory;
  };
  static constexpr std::uint32_t kMemory = 0x40;
  using object_key = std::pair<rm::handle, rm::handle>;

  std::uint32_t alloc(rm::alloc_params& params);
  std::uint32_t duplicate(rm::dup_params& params);
  std::uint32_t map(rm::map_params& params);
  std::uint32_t unmap(rm::unmap_params& params);
  std::uint32_t free(rm::free_params& params);
  std::uint32_t control(rm::control_params& params);
  std::uint32_t import(rm::handle root, rm::import_object_params& params);
  void list_cards(rm::card_info* cards, std::size_t count);
  std::uint32_t add_memory(rm::handle root, rm::handle parent, rm::handle handle, int memfd, std::uint64_t bytes);
  bool owned(rm::handle root) const;
  int minor_of(int gpu) const { return options_.gpus - 1 - gpu; }  // not the order of CUDA's ordinals
  std::uint32_t instance_of(int gpu) const { return static_cast<std::uint32_t>((gpu + 1) % options_.gpus); }

  options options_;
  mutable std::mutex mutex_;
  std::map<int, device_node> nodes_;
  std::map<rm::handle, pid_t> clients_;
  std::map<object_key, object> objects_;
  std::map<std::uint64_t, mapping> mappings_;
  rm::handle next_client_ = 0xc1d10000;
  std::uint64_t next_linear_ = 0x700000000000;
  int protocol_errors_ = 0;
};

}  // namespace pl::test
