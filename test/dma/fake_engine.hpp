// SPDX-License-Identifier: Apache-2.0
// A resource manager with one GPU that has one copy engine: the calls that DMA channels make, and an interpreter of what
// they put into their rings. It keeps the rules that the hardware was seen to keep, the unfriendly ones first:
//   - commands are fetched when the doorbell rings, unless their entry says that all before must be done (SYNC);
//   - a pipelined copy reads its source at once and writes later, so it does not see what a pipelined copy before it writes;
//   - a completion word comes behind the copies before it;
//   - a wrong address stops the channel without a word.
#pragma once

#include <sys/types.h>

#include <atomic>
#include <cstdint>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

#include "os/device_io.hpp"
#include "rm/channel_abi.hpp"

namespace pl::test {

class fake_engine final : public device_io {
 public:
  struct options {
    std::string version = "580.159.04";
    bool is_deaf = false;       // never looks at a doorbell
    bool pins_nothing = false;  // host memory cannot be registered
    int failing_call = -1;      // this call of ioctl fails
  };
  explicit fake_engine(options given) : options_(std::move(given)) {}
  fake_engine() : fake_engine(options()) {}
  ~fake_engine() override;

  int live_objects() const;  // all but root clients
  int live_maps() const;     // GPU addresses in use
  int protocol_errors() const { return protocol_errors_; }
  int calls() const { return calls_; }
  std::uint64_t pipelined_copies() const { return pipelined_; }

  int open(const char* path, int flags) override;
  int close(int fd) override;
  int ioctl(int fd, unsigned long request, void* argument) override;
  void* mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) override;
  int munmap(void* address, std::size_t size_bytes) override;
  int madvise(void* address, std::size_t size_bytes, int advice) override;
  result<std::string> read_text(const char* path) override;

 private:
  struct channel_state {
    std::uint64_t ring_address = 0;
    std::uint32_t ring_entries = 0, get = 0, token = 0;
    std::byte* user_words = nullptr;
    bool is_dead = false;
    std::uint32_t copy[0x800] = {};  // methods of the copy class, by number / 4
    struct pending_write {
      std::uint64_t address;
      std::vector<std::byte> bytes;
    };
    std::vector<pending_write> pending;
    struct fetched {
      std::vector<std::uint32_t> words;
      std::uint64_t address = 0;
      std::uint32_t count = 0;
      bool is_fenced = false;
    };
    std::deque<fetched> queue;
    std::size_t next_word = 0;
    std::uint32_t host[0x40] = {};
  };
  struct object {
    rm::handle parent = 0;
    std::uint32_t object_class = 0;
    std::byte* bytes = nullptr;  // device memory: ours, which the CPU sees at the same addresses; host memory: the caller's
    std::uint64_t size_bytes = 0;
    std::shared_ptr<channel_state> channel;
  };
  struct dma_mapping {
    std::byte* bytes = nullptr;
    std::uint64_t size_bytes = 0;
    rm::handle memory = 0;
  };
  struct node {
    bool is_device = false, is_registered = false;
    std::byte* pending = nullptr;  // what the next mmap shows
  };

  std::uint32_t alloc(const rm::alloc_params& params);
  std::uint32_t alloc_channel(const rm::alloc_params& params, object& made);
  std::uint32_t alloc_host(rm::host_memory_params& params);
  std::uint32_t control(const rm::control_params& params);
  std::uint32_t map_dma(std::byte* block, std::size_t size_bytes);
  std::uint32_t map_cpu(rm::map_params& params);
  void free(rm::handle object);
  void forget(std::map<rm::handle, object>::iterator found);

  void run();  // the engine's thread
  bool fetch(channel_state& channel);
  bool step(channel_state& channel);
  bool execute_word(channel_state& channel, const std::vector<std::uint32_t>& words);
  bool host_method(channel_state& channel, std::uint32_t method, std::uint32_t value);
  bool launch(channel_state& channel, std::uint32_t flags);
  void write_pending(channel_state& channel);
  std::byte* at_address(std::uint64_t address, std::uint64_t size_bytes);

  const options options_;
  mutable std::mutex mutex_;
  std::map<int, node> nodes_;
  std::map<rm::handle, object> objects_;
  std::map<std::uint64_t, dma_mapping> maps_;
  std::uint64_t next_address_ = 0x2'0000'0000;
  std::uint64_t next_linear_ = 0x1000;
  std::byte* doorbell_page_ = nullptr;
  std::uint32_t next_token_ = 0x11;
  std::atomic<int> protocol_errors_{0}, calls_{0};
  std::atomic<std::uint64_t> pipelined_{0};
  std::atomic<bool> is_over_{false};
  std::thread engine_;
};

}  // namespace pl::test
