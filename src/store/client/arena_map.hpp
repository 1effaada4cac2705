// SPDX-License-Identifier: Apache-2.0
// The store's memory arena, mapped into the client's address space. The first copy that touches a chunk registers it with
// CUDA, so that the GPU's copy engine reads and writes it without staging.
#pragma once

#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "copy/planner.hpp"
#include "store/protocol/wire.hpp"

namespace pl::store_client {

class arena_map {
 public:
  // Takes ownership of `fd`, also on failure. `copies` may be null (no GPU); it must outlive the map.
  static result<std::unique_ptr<arena_map>> map(int fd, const store_protocol::arena& arena, copy::planner* copies);
  ~arena_map();
  arena_map(const arena_map&) = delete;
  arena_map& operator=(const arena_map&) = delete;

  // The address of an extent in this process. EPROTO if it lies outside the arena.
  result<std::byte*> at(const store_protocol::extent& extent) const;
  bool read_only() const noexcept { return layout_.read_only; }
  // Registers those chunks of the extents that are not registered yet. On failure, why_not() says why, and copies use
  // the planner's own pinned memory. Thread-safe.
  void prepare(const std::vector<store_protocol::extent>& extents, int device);
  // Why a chunk could not be registered; empty if none failed.
  std::string why_not() const;

 private:
  arena_map(std::byte* base, const store_protocol::arena& arena, copy::planner* copies);
  std::byte* base_;
  store_protocol::arena layout_;
  copy::planner* copies_;
  mutable std::mutex lock_;
  struct chunk {
    bool tried = false;
    copy::planner::registration pinned;
  };
  std::vector<chunk> chunks_;
  std::string why_not_;
};

}  // namespace pl::store_client
