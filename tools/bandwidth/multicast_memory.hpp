// SPDX-License-Identifier: Apache-2.0
// Multicast objects of all ranks of a group: what one GPU stores to such an object, the NVLink switch stores into the memory
// of every GPU.
//
// Nothing here may run unless the user has asked for it (--multicast): on some shared hosts these objects are forbidden.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "tools/bandwidth/buffer.hpp"
#include "tools/bandwidth/shared_piece.hpp"

namespace pl::bandwidth {

class multicast_memory {
 public:
  // Collective: every rank gives its GPU (no two the same one), and all the same numbers. `count` objects, 1 or one for each
  // rank, of `bytes`; on each GPU `count` buffers of that size. The same failure on all ranks, with the name of the one it
  // happened to: ENOTSUP says what is missing, ENOMEM what to do.
  static result<std::unique_ptr<multicast_memory>> open(gpu_set& gpus, group& ranks, int gpu, std::uint64_t bytes,
                                                        unsigned count);
  // Not collective, but all ranks must have ended their stores.
  ~multicast_memory();
  multicast_memory(const multicast_memory&) = delete;
  multicast_memory& operator=(const multicast_memory&) = delete;

  // The object's address: for kernels' multicast stores only.
  memory_view object(unsigned index) const { return view_of(*teams_[index]); }
  // This rank's own memory behind it, at its ordinary address.
  memory_view replica(unsigned index) const { return view_of(*replicas_[index]); }
  const std::string& remark() const { return remark_; }  // why not by fabric handles, where the GPUs have them

 private:
  multicast_memory(gpu_set& gpus, group& ranks, int gpu, std::uint64_t bytes, unsigned count)
      : gpus_(gpus), ranks_(ranks), gpu_(gpu), wanted_bytes_(bytes), count_(count) {}
  memory_view view_of(const shared_piece& one) const;
  status attempt(int handle_type);
  void reset();
  cu::multicast_prop properties(int handle_type) const;
  status choose_size(int handle_type);
  status create(int handle_type);
  status share(int handle_type);
  status join();
  status bind();
  status map();

  gpu_set& gpus_;
  group& ranks_;
  int gpu_;
  std::uint64_t wanted_bytes_;
  unsigned count_;
  std::uint64_t bytes_ = 0;  // rounded up to what every rank's GPU asks for
  std::vector<std::unique_ptr<shared_piece>> replicas_;
  std::vector<std::unique_ptr<shared_piece>> teams_;
  unsigned bound_ = 0;  // of replicas_
  std::string remark_;
};

}  // namespace pl::bandwidth
