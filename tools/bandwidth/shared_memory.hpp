// SPDX-License-Identifier: Apache-2.0
// Device memory of every rank of a group, mapped by every rank.
//
// By fabric handles where every GPU has them and the machine lets them be made (they pass between hosts), else by file
// descriptors within one host. Made once for a whole test: mapping takes much longer than copying.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/bandwidth/buffer.hpp"
#include "tools/bandwidth/group.hpp"
#include "tools/bandwidth/shared_piece.hpp"

namespace pl::bandwidth {

class shared_memory {
 public:
  // Collective: every rank gives its GPU, and all the same sizes. `count` buffers of `bytes` on each rank. The same failure
  // on all ranks, with the name of the one it happened to: ENOTSUP says which piece is missing, ENOMEM what to do.
  static result<std::unique_ptr<shared_memory>> open(gpu_set& gpus, group& ranks, int gpu, std::uint64_t bytes,
                                                     unsigned count);
  ~shared_memory();
  shared_memory(const shared_memory&) = delete;
  shared_memory& operator=(const shared_memory&) = delete;

  // Can the GPU of rank `from` reach the memory of rank `to`? All ranks know the same.
  bool can_reach(int source, int destination) const { return why_not(source, destination).empty(); }
  const std::string& why_not(int source, int destination) const;
  // Precondition: can_reach(own rank, rank). Its place is the own GPU, which is the one of this process that has access.
  memory_view view(int rank, unsigned buffer) const;

  const char* means() const;                             // "fabric handles", "file descriptors"
  const std::string& remark() const { return remark_; }  // why not by fabric handles, where the GPUs have them

 private:
  shared_memory(gpu_set& gpus, group& ranks, int gpu);
  status attempt(int handle_type);
  status create(int handle_type);
  status export_and_import(int handle_type);
  status map(shared_piece& one);
  status publish_reach(const std::vector<std::string>& mine);

  gpu_set& gpus_;
  group& ranks_;
  int gpu_;
  int handle_type_ = 0;
  std::uint64_t buffer_bytes_ = 0;  // each, rounded up to the granularity
  std::uint64_t wanted_bytes_ = 0;
  unsigned count_ = 0;
  std::vector<std::unique_ptr<shared_piece>> pieces_;  // by rank
  std::vector<std::vector<std::string>> unreachable_;  // [from][to]: why; empty: reachable
  std::string remark_;
};

}  // namespace pl::bandwidth
