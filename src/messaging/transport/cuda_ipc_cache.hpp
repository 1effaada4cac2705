// SPDX-License-Identifier: Apache-2.0
// Device memory of other processes of the node, opened through CUDA IPC and kept open: opening costs some 100 us, a copy
// from it 6. What is open is found without a driver call. Also the exported side: the handle of an allocation, asked for
// once.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <utility>

#include "base/status.hpp"
#include "cuda/driver_table.hpp"
#include "cuda/pointer.hpp"
#include "messaging/transport/copy_streams.hpp"

namespace pl::link {

class ipc_cache {
 public:
  explicit ipc_cache(const cu::driver_table* cuda) : cuda_(cuda) {}
  ~ipc_cache();
  ipc_cache(const ipc_cache&) = delete;
  ipc_cache& operator=(const ipc_cache&) = delete;

  // ENOTSUP: memory that legacy IPC does not export (VMM, pools).
  result<cu::ipc_mem_handle_t> export_handle(const cu::pointer_info& info);

  struct opened {
    std::uint64_t base = 0;       // of the allocation, in this process
    copy_lanes* lanes = nullptr;  // of the context that it was opened in
    int device_ordinal = -1;
    int holders = 0;  // copies under way: it is not closed meanwhile
    std::uint64_t last_use = 0;
  };
  // Allocation `buffer_id` of process `rank`, in a context of `device_ordinal`. Stays open until it is the least recently
  // used of kMostOpen, so the exporter's memory does not go back before that. The pointer holds while there are holders.
  result<opened*> open(int rank, std::uint64_t buffer_id, const cu::ipc_mem_handle_t& handle, int device_ordinal);
  // Of the context that `device_ordinal` is used in by this thread, else of its primary one. They live as long as this.
  result<copy_lanes*> lanes_on(int device_ordinal);
  // Closes what was opened from this process and is not held.
  void forget(int rank);

 private:
  static constexpr std::size_t kMostOpen = 32, kMostExported = 256;
  using key = std::pair<int, std::uint64_t>;
  result<copy::gpu_context> context_on(int device_ordinal) const;
  result<copy_lanes*> lanes_of(const copy::gpu_context& context);
  void close(const opened& what) noexcept;
  void make_room();

  const cu::driver_table* cuda_;
  std::map<key, opened> open_;
  std::map<std::uint64_t, cu::ipc_mem_handle_t> exported_;  // by buffer id, which is never given out twice
  std::map<unsigned long long, std::unique_ptr<copy_lanes>>
      lanes_;  // by the context's id; these end first, with their copies
  std::uint64_t uses_ = 0;
};

}  // namespace pl::link
