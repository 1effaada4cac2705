// SPDX-License-Identifier: Apache-2.0
// Addresses: which device addresses exist, what backs them, and which allocation the application thinks they are.
//
//   device ranges   PROT_NONE address space, one part a device: a device pointer dereferenced by the CPU faults
//   mappings        what the simulated GPU's page tables hold: address range -> object + offset, with access bits
//   allocations     what calls return: many allocations may lie in one mapping (packed blocks, pools)
//
// Host memory known to the driver (pinned, registered, managed) is an allocation without a mapping: its address is
// valid on both sides. One mutex guards everything; it is never held while memory is copied. Any thread.
#pragma once

#include <atomic>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "sim/object.hpp"

namespace pl::sim {

enum class memory_kind { device, pool, vmm, ipc, managed, host, registered, module_variable };

struct physical_memory;  // physical.hpp
class multicast_team;    // multicast.hpp
struct memory_pool;      // pool.cpp

struct allocation {
  device_ptr base = 0;
  std::size_t bytes = 0;
  memory_kind kind = memory_kind::device;
  int device_ordinal = 0;
  context_t context = nullptr;
  pool_t pool = nullptr;
  unsigned flags = 0;                    // host memory: as given by the caller
  int handle_types = handle_type::none;  // vmm: what it may be exported as
  bool rdma_capable = true;
  std::shared_ptr<physical_memory> physical;  // vmm: what was mapped
  std::shared_ptr<memory_pool> source;        // pool: where the bytes go back to
  std::uint64_t buffer_id = 0;                // unique in the process, never reused
  std::atomic<bool> sync_memops{false};
  std::atomic<bool> is_freeing{false};  // cuMemFreeAsync is queued: a second free is an error

  bool is_host_address() const {
    return kind == memory_kind::managed || kind == memory_kind::host || kind == memory_kind::registered ||
           kind == memory_kind::module_variable;
  }
};
using allocation_ref = std::shared_ptr<allocation>;

struct mapping {
  device_ptr base = 0;
  std::size_t bytes = 0;
  object_ref memory;                     // null: a multicast object
  std::shared_ptr<multicast_team> team;  // multicast: which
  std::size_t offset = 0;                // of base in the object
  unsigned readable = ~0u;               // bit per device ordinal
  unsigned writable = ~0u;
  bool needs_peer_access = true;  // other devices' kernels need cuCtxEnablePeerAccess (not so for vmm and ipc)
};

struct reservation {
  device_ptr base = 0;
  std::size_t bytes = 0;
};

// A stretch of memory as the simulator touches it. `keep` (null for host memory) holds the bytes in place.
struct piece {
  std::byte* data = nullptr;
  std::size_t bytes = 0;
  object_ref keep;
};

// What a kernel may reach around an address: [base, end) at `data` on the CPU.
struct reach {
  device_ptr base = 0;
  device_ptr end = 0;
  std::byte* data = nullptr;
  bool is_writable = false;
  object_ref keep;
};

class address_space {
 public:
  static address_space& instance();

  bool is_device_address(device_ptr address) const { return address >= lowest_ && address < highest_; }

  // -- address ranges: granularity kGpuPageBytes, lowest free address first, so freed ones come back at once
  device_ptr take_range(int device_ordinal, std::size_t bytes, std::size_t alignment, device_ptr hint);
  void give_range(device_ptr base, std::size_t bytes);

  // -- page tables
  void map(mapping entry);
  // Removes the mappings in [base, base + bytes); false (nothing changed) if one of them lies only partly in it. `bases`
  // gets where they began, and there need be none then.
  bool unmap(device_ptr base, std::size_t bytes, std::vector<device_ptr>* bases = nullptr);
  bool is_mapped(device_ptr base, std::size_t bytes);  // any byte of it
  // The mappings that cover [base, base + bytes) without a hole, in order; empty otherwise.
  std::vector<mapping> mappings_over(device_ptr base, std::size_t bytes);
  bool set_access(device_ptr base, std::size_t bytes, unsigned device_bit, int access);
  // Grows with every removal: whoever caches translations compares it.
  std::uint64_t generation() const { return generation_.load(std::memory_order_acquire); }

  // -- allocations
  void add(const allocation_ref& entry);              // assigns the buffer id
  allocation_ref find(device_ptr address);            // the one that contains address
  allocation_ref find_base(device_ptr base);          // the one that starts there
  bool overlaps(device_ptr base, std::size_t bytes);  // any allocation
  // Removes and returns the entry if it is still there: of two racing frees one wins.
  allocation_ref remove(device_ptr base);
  std::vector<allocation_ref> all_of_context(context_t context);

  // -- reservations (virtual memory management)
  void add_reservation(device_ptr base, std::size_t bytes);
  bool remove_reservation(device_ptr base, std::size_t bytes);
  bool find_reservation(device_ptr address, reservation& out);

  // Memory operand of a copy, memset or memory operation of the driver. Device addresses must lie inside one
  // allocation, or contiguous mapped vmm ranges, with access; other addresses are host memory and taken as they are.
  result_t resolve(device_ptr address, std::size_t bytes, std::vector<piece>& out);

  // The page-table walk of a kernel's access on a device. `reachable` has a bit for every device whose ordinary memory
  // the kernel's context may touch. Known host memory is reached at its own address.
  bool reach_from_kernel(device_ptr address, std::size_t bytes, bool is_write, int device_ordinal, unsigned reachable,
                         reach& out);
  // The same for a multicast store: the object behind the address, and the address' offset in it. Null: none, or no access.
  std::shared_ptr<multicast_team> team_from_kernel(device_ptr address, std::size_t bytes, int device_ordinal,
                                                   std::size_t& offset);

 private:
  address_space();

  std::map<device_ptr, mapping>::iterator mapping_at(device_ptr address);
  allocation_ref find_locked(device_ptr address);

  std::mutex mutex_;
  device_ptr lowest_ = 0;
  device_ptr highest_ = 0;
  std::size_t per_device_bytes_ = 0;
  std::vector<std::map<device_ptr, std::size_t>> free_ranges_;  // per device: base -> bytes
  std::map<device_ptr, mapping> mappings_;
  std::map<device_ptr, allocation_ref> allocations_;
  std::map<device_ptr, std::size_t> reservations_;
  std::atomic<std::uint64_t> generation_{1};
  std::uint64_t last_buffer_id_ = 0;
};

inline std::size_t round_up(std::size_t bytes, std::size_t step) { return (bytes + step - 1) / step * step; }

}  // namespace pl::sim
