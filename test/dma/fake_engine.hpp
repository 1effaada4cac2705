// SPDX-License-Identifier: Apache-2.0
// The simulated resource manager and its copy engine (sim/resource_manager.hpp) without CUDA, with one GPU or more, for
// tests of DMA channels; and the troubles that a test may want.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string>

#include "os/device_io.hpp"
#include "sim/resource_manager.hpp"

namespace pl::test {

class fake_engine final : public device_io {
 public:
  struct options {
    std::string version = "580.159.04";
    bool is_deaf = false;       // never looks at a doorbell
    bool pins_nothing = false;  // host memory cannot be registered
    int failing_call = -1;      // this call of ioctl fails
    std::uint32_t mig_mode = 0;
    bool is_confidential = false;
    bool knows_restrictions = true;
    std::uint64_t seed = 0;  // of the order in which writes arrive; 0: in order
    unsigned gpus = 1;
    bool has_links = true;  // they reach each other's memory
  };
  explicit fake_engine(options given);
  fake_engine() : fake_engine(options()) {}
  ~fake_engine() override { manager_->shut_down(); }

  int live_objects() const { return manager_->live_objects(); }  // all but root clients
  int live_maps() const { return manager_->live_maps(); }        // GPU addresses in use
  int protocol_errors() const { return manager_->protocol_errors(); }
  int calls() const { return calls_; }
  std::uint64_t pipelined_copies() const { return manager_->pipelined_copies(); }
  bool is_engine_running() const { return manager_->is_engine_running(); }

  // The next channel gets this memory object as its error notifier.
  void set_error_object(rm::handle object) { error_object_ = object; }

  int open(const char* path, int flags) override { return manager_->open(path, flags); }
  int close(int fd) override { return manager_->close(fd); }
  int ioctl(int fd, unsigned long request, void* argument) override;
  void* mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) override {
    return manager_->mmap(address, size_bytes, protection, flags, fd, offset);
  }
  int munmap(void* address, std::size_t size_bytes) override;
  void clear_event(int fd) override { manager_->clear_event(fd); }
  int madvise(void* address, std::size_t size_bytes, int advice) override;
  result<std::string> read_text(const char* path) override { return failure{ENOENT, path}; }

 private:
  const options options_;
  const std::shared_ptr<sim::resource_manager> manager_;
  std::atomic<int> calls_{0};
  std::atomic<rm::handle> error_object_{0};
};

}  // namespace pl::test
