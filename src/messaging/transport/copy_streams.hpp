// SPDX-License-Identifier: Apache-2.0
// Several streams of one CUDA context, used in turn. A stream writes a word behind each copy to signal its end, and leaves
// the link idle until that word is out, some 4 us. With several streams the next copy moves meanwhile.
//
// Owns: the streams. Threads: one at a time. Errors: those of the driver.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "copy/copy_engine.hpp"

namespace pl::messaging {

// One thread at a time.
class copy_streams {
 public:
  // A queued list of copies; valid as long as the streams.
  struct mark {
    const copy::copy_engine* engine = nullptr;
    copy::copy_engine::ticket ticket;
    // True: the copies are complete (acquire). No driver call.
    bool is_reached() const noexcept { return engine->is_done(ticket); }
  };
  static result<std::unique_ptr<copy_streams>> open(const copy::gpu_context& context);
  // Queues the copies one after another, with one mark for all. EIO: none of them is pending any more; some may have
  // completed.
  result<mark> submit(std::span<const copy::transfer> copies);

 private:
  static constexpr std::size_t kStreams = 4;
  copy_streams() = default;
  std::array<std::unique_ptr<copy::copy_engine>, kStreams> streams_;
  std::size_t next_ = 0;
};

}  // namespace pl::messaging
