// SPDX-License-Identifier: Apache-2.0
// Memory of another process, perhaps on another host, into which rings put: who carries a ring out hands the transfers over
// and asks how they are. The way there is somebody else's (triggered/messenger_window.hpp).
//
// Threads: the calls of one window come from one thread at a time.
#pragma once

#include <cstdint>
#include <memory>

#include "base/status.hpp"

namespace pl::device {

// One transfer. Dropping it gives up: on return its local memory is free.
class remote_transfer {
 public:
  virtual ~remote_transfer() = default;
  // True: it has ended, and so have its effects at the other process.
  virtual bool poll() = 0;
  // Once ended. ECONNRESET: the other process is gone.
  virtual status outcome() const = 0;
};

class remote_target {
 public:
  virtual ~remote_target() = default;
  virtual std::uint64_t size_bytes() const noexcept = 0;
  // `address`: memory of this process, of the host or a GPU. It stays as it is until the transfer has ended.
  virtual std::unique_ptr<remote_transfer> put(std::uint64_t offset, std::uint64_t address, std::uint64_t bytes) = 0;
  virtual std::unique_ptr<remote_transfer> get(std::uint64_t offset, std::uint64_t address, std::uint64_t bytes) = 0;
  virtual std::unique_ptr<remote_transfer> put_word(std::uint64_t offset, std::uint32_t value) = 0;
  // A put, and a word of `word_target` behind it, which ends when both are there. Null: the two are not of one process.
  virtual std::unique_ptr<remote_transfer> put_signal(std::uint64_t offset, std::uint64_t address, std::uint64_t bytes,
                                                      const remote_target& word_target, std::uint64_t word_offset,
                                                      std::uint32_t value) = 0;
};

}  // namespace pl::device
