// SPDX-License-Identifier: Apache-2.0
// One call for every copy between host and GPU memory: it classifies the two addresses and uses the method that costs
// least for this size (cost_table.hpp). docs/ordering-copies.md defines the memory order of a copy.
//
//   small to_device    stores through the mapping              small to_host    loads, then the GPU engine's data lines
//   larger             several threads, then DMA               larger           GPU engine, then DMA
//   pageable memory    stores; a ring of pinned chunks         pageable memory  staging memory; a ring of pinned chunks
//
// If a method is not available (no mapping backend, GPU engine not resident, its workers busy, GPU full), the next best
// is used and counted. DMA is always available: a planner without any mapping backend still copies everything.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "copy/block_list.hpp"
#include "copy/block_transfer.hpp"
#include "copy/copy_engine.hpp"
#include "copy/cost_table.hpp"
#include "copy/dma_engine.hpp"
#include "copy/gpu_checksum.hpp"
#include "copy/gpu_engine.hpp"
#include "copy/host_memory.hpp"
#include "copy/mapping_cache.hpp"
#include "copy/transfer.hpp"
#include "copy/worker_pool.hpp"
#include "cuda/pointer.hpp"

namespace pl::copy {

struct registered_range;
struct gpu_state;  // gpu_state.hpp: the executors of one CUDA context
class completion;  // completion.hpp

class planner {
 public:
  struct options {
    mapping_cache::options maps;
    gpu_engine::options engine;
    bool use_engine = true;                            // the copy kernel, if there are no channels
    channel_use channels = channel_use::on_real_gpus;  // DMA channels
    trial stream_order = trial::simulated;             // channels wait for streams, and streams for channels
    trial rings = trial::always;                       // channels carry pageable memory through rings (method::dma_ring)
    bool peer_access = true;  // the first copy between two GPUs enables peer access (cuCtxEnablePeerAccess)
    unsigned threads = 0;     // CPU threads of one copy, including the caller; 0: 8, or half the CPUs if that is less
    std::string costs;  // text of a calibration; empty: this machine's file if there is one, otherwise the built-in table
  };

  // Reads the PEERLANE_COPY_* variables and PEERLANE_BACKEND.
  static options options_from_environment();

  // Asks CUDA only for the GPU's name. EINVAL for a cost text that cannot be parsed. `cuda` must outlive the planner.
  static result<std::unique_ptr<planner>> open(const cu::driver_table& cuda, const options& wanted);
  // Waits for asynchronous copies. Precondition: no call is in progress, and completions, holds and registrations have
  // ended.
  ~planner();
  planner(const planner&) = delete;
  planner& operator=(const planner&) = delete;

  // ---- Copies
  // All are complete on return: the data is at its destination, for the CPU and for GPU work that is launched later.
  // Thread-safe. EINVAL: an address does not match `way`, bytes are outside of their allocation, or rows overlap. EIO:
  // the driver's reason. After a failure nothing is in flight, but part of the destination may be written. A zero-sized
  // copy checks nothing and succeeds.
  status copy(const transfer& transfer);
  // The same for to_device and to_host if the caller has asked the driver: `device` is the result of
  // cu::inspect_pointer for the device side, obtained since that memory was allocated. The driver is not asked again,
  // so the memory must not have been freed since; as with any copy of memory that is being freed, the result is
  // undefined.
  status copy(const transfer& transfer, const cu::pointer_info& device);
  // Many copies, of one or several directions, in no particular order.
  status copy_list(std::span<const transfer> list);
  status fill(std::uint64_t dst, unsigned char value, std::size_t bytes);

  // ---- Asynchronous copies (completion.hpp)
  // They may be complete already when this returns. `after`, if given, is a CUDA stream whose work so far they wait
  // for.
  struct async_options {
    bool has_after = false;
    cu::stream_t after = nullptr;
    // Minimum of GPU engine workers for copies that it takes. For callers that know that a worker is slower than the
    // table assumes: another GPU's memory opened through CUDA IPC cannot be distinguished from this GPU's.
    unsigned least_workers = 0;
    // Parts of one copy that are started one by one alternate between two or three queues (copy_engine::submit), so
    // that the arrival of each is visible.
    unsigned turn = 0;
    bool is_urgent = false;  // begin_blocks: uses the channel of short copies instead of waiting behind long lists
  };
  result<completion> begin(std::span<const transfer> list, const async_options& wanted);
  // The copies become consecutive nodes of the graph into which `stream` is being captured: each launch repeats them
  // with the same memory, which must stay. EINVAL: the stream is not being captured. ENOTSUP: host memory that is not
  // pinned. Any other failure invalidates the capture.
  status capture(std::span<const transfer> list, cu::stream_t stream);
  // Blocks of paged memories. Everything is checked before anything moves: errors of check(block_transfer); EINVAL also
  // if a plane is not within one allocation. The arrays of planes and indices may be reused on return, the memory when
  // the copy has ended.
  result<completion> begin_blocks(const block_transfer& blocks, const async_options& wanted);
  status copy_blocks(const block_transfer& blocks);
  // The same for blocks with individual addresses. EINVAL also if a block is not within one allocation.
  result<completion> begin_block_list(const block_list& list, const async_options& wanted);
  status copy_block_list(const block_list& list);

  // The CRC-32C of device memory, computed by the GPU while the memory is copied; see gpu_checksum. `device` is the
  // driver's information about it. Of `wanted`, only the order counts.
  result<gpu_checksum::job> begin_checksum(const cu::pointer_info& device, std::uint64_t src, std::size_t bytes,
                                           const async_options& wanted);

  // ---- Registered memory
  // Keeps [pointer, pointer + bytes) mapped, so that copies inside it no longer query the driver, which is half of the
  // cost of a short store. As with memory registered for RDMA, the application ends the registration before it frees
  // the memory, and not while copies of it are in progress; the memory stays pinned until then. EINVAL, ENOMEM and
  // others as mapping_cache::find, but for any size up to that of BAR1. ENOSPC: 64 ranges are registered already.
  class registration {
   public:
    registration() = default;
    registration(registration&& other) noexcept;
    registration& operator=(registration&& other) noexcept;
    ~registration();

   private:
    friend class planner;
    registration(planner* owner, unsigned slot, bool is_host) : owner_(owner), slot_(slot), is_host_(is_host) {}
    planner* owner_ = nullptr;
    unsigned slot_ = 0;
    bool is_host_ = false;
  };
  result<registration> register_memory(std::uint64_t pointer, std::size_t bytes);
  // The same for host memory: it is pinned, unless the application has done that, and its copies neither ask the driver
  // nor pass through other memory. The application ends the registration before it unmaps or frees the memory. EBUSY:
  // part of it is registered with CUDA already.
  result<registration> register_host_memory(void* pointer, std::size_t bytes, int device_ordinal);
  // Does in advance what the first list in pinned memory would wait for: opens channels, and binds the memory to them.
  // Returns the bytes that were not bound before. ENOTSUP: no channels, or memory that is not pinned.
  result<std::uint64_t> prepare_host_memory(void* pointer, std::uint64_t size_bytes, int device_ordinal);
  // The driver's attributes of the first byte of the registration that contains this range of device memory; null if
  // there is none. Valid while the registration lasts.
  const cu::pointer_info* registered(std::uint64_t pointer, std::size_t bytes) const noexcept;

  // ---- Control
  // Opens everything that copies with this device's memory need (about 10 ms), so that the first copy does not have to.
  status prepare(int device_ordinal);
  // Keeps the GPU engine hot (gpu_engine.hpp) while the object lives. ENOTSUP: no GPU code in this build, no mapping.
  result<gpu_engine::hold> keep_hot(int device_ordinal);
  // Unmaps what the cache holds; memory that the application has freed is returned to the GPU at once.
  void trim();

  // ---- Introspection
  const cost_table& costs() const noexcept { return costs_; }
  const std::string& costs_origin() const noexcept { return costs_origin_; }
  unsigned threads() const noexcept { return threads_; }
  // The best executor that its settings and the kind of GPU allow.
  executor best_executor() const noexcept { return best_executor_; }
  // Whether its settings allow channels to carry pageable memory through rings.
  bool has_channel_rings() const noexcept { return has_rings_; }
  // Forces one method without a fallback, for calibration and `peerlane copy`. EAGAIN if the method is not available
  // now (engine cold or busy), ENOTSUP if it does not apply to these addresses.
  status copy_by(const choice& option, const transfer& transfer);

  struct statistics {
    std::uint64_t copies[kMethods] = {};  // by method
    std::uint64_t bytes[kMethods] = {};
    std::uint64_t not_mapped = 0;        // CPU methods given up because the memory could not be mapped
    std::uint64_t engine_not_taken = 0;  // the GPU engine was asked and did not take it
    mapping_cache::statistics maps;
    gpu_engine::statistics engine;  // of all contexts
  };
  statistics counts() const;

  mapping_cache& maps() noexcept { return maps_; }

 private:
  friend class completion;
  struct sides;  // the classified addresses of a transfer
  struct shared;
  struct thread_memory;
  struct thread_memory_holder;
  struct cpu_place;    // a device range as the CPU reaches it
  class block_places;  // the memory of a list's blocks

  planner(const cu::driver_table& cuda, const options& wanted, cost_table costs, std::string origin);
  status inspect(const transfer& transfer, sides& ends, const cu::pointer_info* device = nullptr) const;
  void inspect_other(const transfer& transfer, sides& ends) const;
  result<cpu_place> reach(std::uint64_t pointer, std::size_t bytes, const cu::pointer_info& info);
  char* find_registered(std::uint64_t pointer, std::size_t bytes, arch::mapping_type& type,
                        const cu::pointer_info** info) const noexcept;
  bool find_registered_host(std::uint64_t pointer, std::size_t bytes, host_memory& out) const noexcept;
  bool copy_shortly(const transfer& transfer, const cu::pointer_info* device_info);
  status copy_known(const transfer& transfer, const cu::pointer_info* device);
  choice choose(const transfer& transfer, sides& ends);
  choice choose_for_rows(const transfer& transfer, sides& ends);
  bool is_mine() const noexcept;
  static failure wrong_process();
  static thread_memory& this_thread();
  static thread_local thread_memory_holder t_memory;
  status run(const choice& option, const transfer& transfer, sides& ends);
  status run_or_fall_back(const transfer& transfer, sides& ends);
  status by_cpu_store(const choice& option, const transfer& transfer, const sides& ends);
  status by_cpu_load(const choice& option, const transfer& transfer, const sides& ends);
  status by_cpu_relay(const transfer& transfer, const sides& ends);
  status by_low_latency(const transfer& transfer, sides& ends);
  status by_engine_copy(const choice& option, const transfer& transfer, sides& ends);
  status by_engine_bounce(const choice& option, const transfer& transfer, sides& ends);
  status by_copy_engine(const transfer& transfer, const sides& ends);
  status by_bounce(const choice& option, const transfer& transfer, sides& ends);
  void enable_peer_access(const sides& ends);
  static dma_engine::sides sides_for_channel(const sides& ends);
  executor find_executor(sides& ends);
  dma_engine* find_channels(sides& ends);
  dma_engine* find_channels(gpu_state& state);
  dma_engine* find_list_channels(const sides& ends);
  bool engine_is_hot(sides& ends);
  result<dma_engine::operation> begin_on_channel(std::span<const transfer> list, sides ends,
                                                 const cu::stream_t* after = nullptr);
  bool is_for_channel_behind(std::span<const transfer> list, std::span<const sides> ends) const noexcept;
  result<dma_engine::operation> give_to_channel(const transfer& transfer, sides& ends);
  bool is_for_channel(std::span<const transfer> list) const noexcept;
  bool is_fill_for_channel(std::size_t bytes) const noexcept;
  status add_to_list(dma_engine::list& pieces, std::span<const transfer> list, sides& ends);
  status inspect_plane(const char* role, const paged_memory& side, std::size_t plane, cu::pointer_info& out) const;
  status inspect_planes(const block_transfer& blocks, std::size_t plane, sides& ends) const;
  result<dma_engine::operation> blocks_on_channel(const block_transfer& blocks, std::span<const sides> planes,
                                                  bool is_urgent);
  result<completion> begin_checked_list(const block_list& list, const async_options& wanted);
  host_memory inspect_host_plane(address_range range, const gpu_context* context) const;
  static address_range woven_planes(const paged_memory& side) noexcept;
  result<completion> begin_blocks_one_by_one(const block_transfer& blocks, const async_options& wanted);
  static status add_as_they_are(dma_engine::list& pieces, const block_transfer& blocks, std::span<const sides> planes);
  static status add_sorted(dma_engine::list& pieces, const block_transfer& blocks, std::span<const sides> planes);
  static status add_of_one_kind(dma_engine::list& pieces, const block_list& list, const sides& kind);
  bool is_pinned_in_pieces(const block_transfer& blocks, std::span<const sides> planes) const noexcept;
  result<dma_engine::operation> list_on_channel(const block_list& list, block_places& places, bool is_urgent);
  status by_dma_channel(const transfer& transfer, sides& ends);
  status by_dma_bounce(const transfer& transfer, sides& ends);
  status by_dma_ring(const choice& option, const transfer& transfer, sides& ends);
  result<gpu_engine*> open_engine(sides& ends);
  result<gpu_state*> state_for(sides& ends);
  result<gpu_state*> state_of(const cu::pointer_info& device);
  status store_list(std::span<const transfer> list);
  status read_list(std::span<const transfer> list);
  status gather_list(std::span<const transfer> list, sides& ends);
  result<std::size_t> submit_list(std::span<const transfer> list, std::span<sides> ends, copy_engine*& dma,
                                  copy_engine::ticket& ticket);
  std::optional<std::pair<gpu_engine*, gpu_engine::request>> give_to_engine(const choice& option, const transfer& transfer,
                                                                            sides& ends);
  status enqueue(std::function<void(const status&)> run, copy_engine* dma, const copy_engine::ticket& behind);
  void run_queue();
  void count(method kind, std::size_t bytes, std::size_t copies = 1) noexcept;
  void count_refusal(const choice& option) noexcept;

  const cu::driver_table& cuda_;
  options options_;
  cost_table costs_;
  std::string costs_origin_;
  unsigned threads_;
  std::uint32_t epoch_;
  std::uint32_t serial_;  // of the planners of this process; another one may reuse this one's address
  const bool uses_channels_;
  const bool orders_by_channel_, has_rings_;  // resolved from options::stream_order and rings
  const executor best_executor_;              // the best that this planner may find
  mapping_cache maps_;
  std::unique_ptr<shared> shared_;
};

}  // namespace pl::copy
