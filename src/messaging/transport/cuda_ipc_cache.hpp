// SPDX-License-Identifier: Apache-2.0
// Device memory of other processes of the node, opened through CUDA IPC and kept open: opening costs some 100 us, a copy
// from it 6. A cached mapping is found without a driver call. Also caches the handles of exported allocations.
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

  // ENOTSUP: memory that legacy IPC does not export (VMM, pools).
  result<cu::ipc_mem_handle_t> export_handle(const cu::pointer_info& info);

  struct opened {
    std::uint64_t base = 0;           // of the allocation, in this process
    copy_streams* streams = nullptr;  // of the context that it was opened in
    int device_ordinal = -1;
    int holders = 0;  // pending copies: it is not closed meanwhile
    std::uint64_t last_use = 0;
  };
  // Opens allocation `buffer_id` of process `rank` in a context of `device_ordinal`. It stays open until it is the least
  // recently used of kMaxOpen, and the exporter's memory is not returned before that. The pointer is valid while there are
  // holders.
  result<opened*> open(int rank, std::uint64_t buffer_id, const cu::ipc_mem_handle_t& handle, int device_ordinal);
  // Streams of this thread's current context if that is on `device_ordinal`, else of the primary one. They live as long as
  // this object.
  result<copy_streams*> streams_on(int device_ordinal);
  // Closes the process's allocations that have no holders.
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
