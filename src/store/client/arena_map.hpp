// SPDX-License-Identifier: Apache-2.0
// The store's memory tier in the client's address space. A chunk is registered with CUDA the first time that a copy touches
// it, once for all, so that the GPU's copy engine reaches it without a detour.
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
  // Takes the descriptor over, whatever the outcome. `copies` may be null (no GPU); it must outlive the map.
  static result<std::unique_ptr<arena_map>> map(int fd, const store_wire::arena& what, copy::planner* copies);
  ~arena_map();
  arena_map(const arena_map&) = delete;
  arena_map& operator=(const arena_map&) = delete;

  // Where an extent lies here. EPROTO: outside the arena.
  result<std::byte*> at(const store_wire::extent& where) const;
  bool read_only() const noexcept { return what_.read_only; }
  // Registers what is not yet of the chunks that the extents touch. A failure is kept and told by why_not(): copies then go
  // through pinned memory of the planner's own. Thread-safe.
  void prepare(const std::vector<store_wire::extent>& extents, int device);
  // Why some chunk could not be registered; empty: all well.
  std::string why_not() const;

 private:
  arena_map(std::byte* base, const store_wire::arena& what, copy::planner* copies);
  std::byte* base_;
  store_wire::arena what_;
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
