// SPDX-License-Identifier: Apache-2.0
// What GPU memory and multicast objects of several ranks share: a handle, an address range, and kinds of handles that
// pass between processes.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "os/unique_fd.hpp"
#include "tools/bandwidth/gpu_set.hpp"
#include "tools/bandwidth/group.hpp"

namespace pl::bandwidth {

// A handle, an address range, the range mapped; whatever of these there is goes with the object.
struct shared_piece {
  shared_piece(const cu::driver_table& driver, std::uint64_t size_bytes) : cuda(driver), bytes(size_bytes) {}
  shared_piece(const shared_piece&) = delete;
  shared_piece& operator=(const shared_piece&) = delete;
  ~shared_piece();
  const cu::driver_table& cuda;
  std::uint64_t bytes;
  cu::physical_t handle = 0;
  bool has_handle = false;
  cu::device_ptr address = 0;
  bool is_mapped = false;
};

// Reserves addresses for the piece's handle and maps it there for one GPU. `no_access`: what it means if the GPU gets none.
status map_for(gpu_set& gpus, int gpu, shared_piece& one, const char* no_access);

const char* handle_name(int handle_type);  // "fabric handles", "file descriptors"
cu::allocation_prop memory_on(int gpu, int handle_type);
bool on_one_host(const group& ranks);
// What cuMemCreate and cuMulticastCreate report about fabric handles without the IMEX service.
extern const char* const kNeedsImex;

// Collective: the kinds of handles that all ranks can pass to each other, best first; ENOTSUP says what is missing.
result<std::vector<int>> common_handle_types(gpu_set& gpus, group& ranks, int gpu);

// One handle of every rank.
class handle_exchange {
 public:
  // Collective: the same failure on all ranks. `mine` stays the caller's.
  static result<handle_exchange> run(gpu_set& gpus, group& ranks, cu::physical_t mine, int handle_type);
  // That of another rank, as a piece of `bytes` that owns it.
  result<std::unique_ptr<shared_piece>> import_from(gpu_set& gpus, int rank, std::uint64_t bytes);

 private:
  int handle_type_ = 0;
  std::vector<unique_fd> descriptors_;
  std::vector<std::vector<std::byte>> fabric_;
};

}  // namespace pl::bandwidth
