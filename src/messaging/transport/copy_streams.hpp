// SPDX-License-Identifier: Apache-2.0
// Several streams of one CUDA context, used in turn. After each copy a stream writes a word that signals its end, and the
// link is idle until that write is complete, about 4 us. With several streams the next copy fills this gap.
//
// Owns: the streams. Threads: one at a time. Errors: those of the driver.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "copy/copy_engine.hpp"

namespace pl::messaging {

class copy_streams {
 public:
  // Identifies a queued list of copies. Valid as long as the copy_streams object.
  struct mark {
    const copy::copy_engine* engine = nullptr;
    copy::copy_engine::ticket ticket;
    // True: the copies are complete and their bytes are visible to this thread (acquire). Makes no driver call.
    bool is_reached() const noexcept { return engine->is_done(ticket); }
  };
  // Creates the streams in `context`.
  static result<std::unique_ptr<copy_streams>> open(const copy::gpu_context& context);
  // Queues the copies in order, and returns one mark for all of them. EIO: the submission failed; some copies may have
  // completed, and none is still pending.
  result<mark> submit(std::span<const copy::transfer> copies);

 private:
  static constexpr std::size_t kStreams = 4;
  copy_streams() = default;
  std::array<std::unique_ptr<copy::copy_engine>, kStreams> streams_;
  std::size_t next_ = 0;
};

}  // namespace pl::messaging
