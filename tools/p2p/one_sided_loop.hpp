// SPDX-License-Identifier: Apache-2.0
// The measured loop of put, get and atomics at one size, as the OSU programs have it: rank 0 works on rank 1's window, and
// rank 1 stands in a barrier meanwhile.
#pragma once

#include <memory>
#include <vector>

#include "tools/p2p/buffers.hpp"
#include "tools/p2p/loops.hpp"
#include "tools/p2p/one_sided_calls.hpp"
#include "tools/p2p/settings.hpp"

namespace pl::p2p {

class one_sided_loop {
 public:
  // `place` of the origin's buffer, `window_place` of the window.
  one_sided_loop(buffer_source& memory, benchmark kind, memory_kind place, memory_kind window_place, std::size_t size_bytes);

  // At rank 0 a sample is one call with its flush, or one window of calls with one flush; at rank 1 there is none. Errors:
  // wrong bytes in the window (put) or in the buffer (get), or a wrong count.
  loop_outcome run(transport& world, const loop_plan& plan);

 private:
  void work(one_sided_calls& library, const loop_plan& plan, std::uint64_t iteration);
  void open_window(one_sided_calls& library);
  std::vector<std::uint8_t> window_bytes(std::size_t count) const;
  void set_window(const std::vector<std::uint8_t>& bytes);
  std::int64_t verify(transport& world, std::uint64_t calls);
  std::int64_t verify_bytes(transport& world);

  const benchmark kind_;
  const std::size_t bytes_;
  std::unique_ptr<message_buffer> buffer_;
  std::unique_ptr<message_buffer> device_window_;  // null: the library's own host memory
  void* host_window_ = nullptr;
  std::uint64_t last_ = 0;  // what the last atomic has returned
};

}  // namespace pl::p2p
