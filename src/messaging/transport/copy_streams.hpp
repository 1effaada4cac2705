// SPDX-License-Identifier: Apache-2.0
// Some streams of one CUDA context that take turns. The end of a copy is a word that the stream writes behind it, and a
// stream has nothing on the link from the end of the copy until that word is out, some 4 us: the next stream's copy moves
// meanwhile.
#pragma once

#include <array>
#include <memory>
#include <span>

#include "copy/copy_engine.hpp"

namespace pl::link {

// One thread at a time.
class copy_lanes {
 public:
  // A list of copies that was queued; valid as long as the lanes live.
  struct mark {
    const copy::copy_engine* by = nullptr;
    copy::copy_engine::ticket at;
    // Acquire: the data is there when it says true. No driver call.
    bool is_reached() const noexcept { return by->is_done(at); }
  };
  static result<std::unique_ptr<copy_lanes>> open(const copy::gpu_context& context);
  // One mark for all: they are queued one behind the other. EIO: none of them is under way any more; some may have been
  // done.
  result<mark> submit(std::span<const copy::transfer> copies);

 private:
  static constexpr std::size_t kLanes = 4;
  copy_lanes() = default;
  std::array<std::unique_ptr<copy::copy_engine>, kLanes> lanes_;
  std::size_t next_ = 0;
};

}  // namespace pl::link
