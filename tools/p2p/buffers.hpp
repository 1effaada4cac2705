// SPDX-License-Identifier: Apache-2.0
// Memory of the kinds that messages come from and go to.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "tools/p2p/transport.hpp"

namespace pl::p2p {

class message_buffer {
 public:
  virtual ~message_buffer() = default;
  virtual void* data() const = 0;
  virtual std::size_t size_bytes() const = 0;
  virtual memory_kind kind() const = 0;
  virtual void fill(std::uint8_t value, std::size_t count) = 0;
  virtual void store(std::span<const std::uint8_t> bytes) = 0;  // to the buffer's begin
  virtual void load(std::span<std::uint8_t> bytes) const = 0;   // from it
};

class buffer_source {
 public:
  virtual ~buffer_source() = default;
  // Page-aligned.
  virtual std::unique_ptr<message_buffer> allocate(memory_kind kind, std::size_t size_bytes) = 0;
  // Lets the buffer's owner (a kernel, or the CPU) read all bytes, and returns when it has.
  virtual void consume(const message_buffer& buffer, std::size_t size_bytes) = 0;
};

// Host memory, for runs without a GPU.
std::unique_ptr<message_buffer> allocate_host_buffer(std::size_t size_bytes);
void consume_on_host(const void* data, std::size_t size_bytes);

// The memory of one iteration: one buffer each way, or one for each message of the window.
struct buffer_set {
  std::vector<std::unique_ptr<message_buffer>> send, receive;
  message_buffer& send_slot(std::size_t message) const { return *send[message % send.size()]; }
  message_buffer& receive_slot(std::size_t message) const { return *receive[message % receive.size()]; }
};

struct buffer_plan {
  memory_kind kind = memory_kind::host;
  std::size_t size_bytes = 0;
  std::size_t slots = 1;
  std::size_t rotation = 1;  // iteration i uses set i % rotation
  bool cold = false;         // every iteration gets new memory
};

class buffer_pool {
 public:
  buffer_pool(buffer_source& source, const buffer_plan& plan);
  buffer_pool(const buffer_pool&) = delete;
  buffer_pool& operator=(const buffer_pool&) = delete;

  const buffer_set& at_iteration(std::uint64_t iteration);
  buffer_source& source() const { return source_; }

 private:
  buffer_set make_set();
  buffer_source& source_;
  buffer_plan plan_;
  std::vector<buffer_set> sets_;
};

}  // namespace pl::p2p
