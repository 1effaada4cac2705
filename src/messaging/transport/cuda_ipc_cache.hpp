// SPDX-License-Identifier: Apache-2.0
// Cache of device memory of other processes of the node, opened through CUDA IPC. Memory stays open, because opening costs
// about 100 us and a copy from it only 6 us. A lookup makes no driver call. Handles of exported allocations are cached too.
//
// Owns: the opened memory and the streams. Threads: the messenger's lock guards all calls.
// Errors: those of the driver; ENOTSUP for memory that CUDA IPC does not export.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/status.hpp"
#include "cuda/driver_table.hpp"
#include "cuda/pointer.hpp"
#include "messaging/transport/copy_streams.hpp"

namespace pl::messaging {

class cuda_ipc_cache {
 public:
  explicit cuda_ipc_cache(const cu::driver_table* cuda) : cuda_(cuda) {}
  ~cuda_ipc_cache();
  cuda_ipc_cache(const cuda_ipc_cache&) = delete;
  cuda_ipc_cache& operator=(const cuda_ipc_cache&) = delete;

  // Returns the IPC handle of an allocation of this process. ENOTSUP: memory that legacy IPC cannot export (VMM, pools).
  result<cu::ipc_mem_handle_t> export_handle(const cu::pointer_info& info);

  struct opened {
    std::uint64_t base = 0;           // of the allocation, in this process
    copy_streams* streams = nullptr;  // of the context that it was opened in
    int device_ordinal = -1;
    int holders = 0;  // number of pending copies; the memory is not closed while there are any
    std::uint64_t last_use = 0;
  };
  // Opens allocation `buffer_id` of process `rank` in a context of `device_ordinal`. It is closed when it is the least
  // recently used of kMaxOpen allocations; until then the driver does not free the exporter's memory. The returned pointer
  // is valid while `holders` is not 0.
  result<opened*> open(int rank, std::uint64_t buffer_id, const cu::ipc_mem_handle_t& handle, int device_ordinal);
  // Returns streams of this thread's current context if that is on `device_ordinal`, else of the primary context. Owned by
  // this object.
  result<copy_streams*> streams_on(int device_ordinal);
  // Closes all allocations of `rank` that have no holders.
  void forget(int rank);

 private:
  static constexpr std::size_t kMaxOpen = 32, kMaxExported = 256;
  using key = std::pair<int, std::uint64_t>;
  result<copy::gpu_context> context_on(int device_ordinal) const;
  result<copy_streams*> streams_of(const copy::gpu_context& context);
  void close(const opened& entry) noexcept;
  void make_room();

  const cu::driver_table* cuda_;
  std::map<key, opened> open_;
  std::map<std::uint64_t, cu::ipc_mem_handle_t> exported_;  // by buffer id, which is never given out twice
  std::map<unsigned long long, std::unique_ptr<copy_streams>>
      streams_;  // by the context's id; these end first, with their copies
  std::uint64_t uses_ = 0;
};

}  // namespace pl::messaging
