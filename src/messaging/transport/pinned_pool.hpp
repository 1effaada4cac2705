// SPDX-License-Identifier: Apache-2.0
// Chunks of host memory that stage data between GPU memory and the network. A chunk is allocated on first use, kept, and
// pinned for a GPU when that GPU first copies to or from it.
//
// Owns: the chunks, also those in use. Threads: the messenger's lock guards all calls. Errors: none; take() may return null.
#pragma once

#include <cstddef>
#include <memory>
#include <vector>

#include "copy/planner.hpp"
#include "os/unforked_pages.hpp"

namespace pl::messaging {

class pinned_pool {
 public:
  pinned_pool(copy::planner* planner, std::size_t chunk_bytes) : planner_(planner), chunk_bytes_(chunk_bytes) {}
  std::size_t chunk_bytes() const noexcept { return chunk_bytes_; }
  // Returns a chunk, pinned for `device_ordinal` if possible (copies also work without). Null: kMaxChunks chunks are in use,
  // or the system is out of memory. Return it with give_back().
  std::byte* take(int device_ordinal);
  void give_back(std::byte* chunk) { free_.push_back(chunk); }

 private:
  static constexpr std::size_t kMaxChunks = 32;
  struct block {
    unforked_pages pages;
    copy::planner::registration pinned;
  };
  copy::planner* planner_;
  std::size_t chunk_bytes_;
  std::vector<block> blocks_;
  std::vector<std::byte*> free_;
};

}  // namespace pl::messaging
