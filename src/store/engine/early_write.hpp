// SPDX-License-Identifier: Apache-2.0
// A granted value that is written to its extents while its bytes arrive, before anybody asks to commit it.
//
//   begin ─▶ reach, reach, ... ─▶ finish: the commit goes on when the disk has the value
//                              └▶ ~     : the write is given up and leaves nothing behind
#pragma once

#include <functional>
#include <memory>
#include <mutex>
#include <optional>

#include "store/engine/extent_writer.hpp"
#include "store/engine/fill_progress.hpp"
#include "store/engine/value.hpp"

namespace pl::store {

// Not thread-safe.
class early_write {
 public:
  early_write() = default;
  early_write(early_write&&) noexcept = default;
  early_write& operator=(early_write&&) = delete;
  ~early_write() {
    if (state_) state_->coming.give_up();
  }

  bool has_begun() const noexcept { return state_ != nullptr; }
  // Calls `ended` once, on the writer's thread.
  void begin(extent_writer& writer, const value_ref& target, std::function<void()> ended) {
    state_ = std::make_shared<state>();
    writer.enqueue(
        target,
        [mine = state_, ended = std::move(ended)](const status& written) {
          ended();
          std::function<void(const status&)> on_finished;
          {
            std::lock_guard lock(mine->mutex);
            mine->written = written;
            on_finished = std::move(mine->on_finished);
          }
          if (on_finished) on_finished(written);
        },
        std::shared_ptr<fill_progress>(state_, &state_->coming));
  }
  // The first `bytes` of the value have arrived.
  void reach(std::uint64_t bytes) {
    if (bytes > state_->coming.reached()) state_->coming.reach(bytes);
  }
  // All bytes have arrived. Calls `on_finished` with the outcome of the write, from here or from the writer's thread.
  void finish(std::uint64_t bytes, std::function<void(const status&)> on_finished) {
    const auto mine = std::move(state_);
    mine->coming.reach(bytes);
    {
      std::lock_guard lock(mine->mutex);
      if (!mine->written) {
        mine->on_finished = std::move(on_finished);
        return;
      }
    }
    on_finished(*mine->written);
  }

 private:
  // A copy from a GPU arrives at tens of GB/s, in pieces of 8 MiB.
  static constexpr std::chrono::milliseconds kTimeout{20};
  struct state {
    fill_progress coming{kTimeout};
    std::mutex mutex;
    std::optional<status> written;
    std::function<void(const status&)> on_finished;
  };
  std::shared_ptr<state> state_;
};

}  // namespace pl::store
