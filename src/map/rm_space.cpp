// SPDX-License-Identifier: Apache-2.0
#include "map/rm_space.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <string_view>

#include "base/log.hpp"
#include "base/text.hpp"
#include "os/fork_guard.hpp"
#include "os/unique_fd.hpp"
#include "rm/export_listener.hpp"
#include "rm/ipc_handle.hpp"

namespace pl {
namespace {

constexpr std::uint64_t kExtentGranule = 2 << 20;

address_range extent_for(std::uint64_t offset, std::uint64_t length, std::uint64_t object_bytes) {
  if (object_bytes == 0) return {offset, length};
  const std::uint64_t begin = align_down(offset, kExtentGranule);
  const std::uint64_t end = std::min(align_down(offset + length + kExtentGranule - 1, kExtentGranule), object_bytes);
  return {begin, std::max(end, offset + length) - begin};
}

// CUDA presents an instance as a separate device, "NVIDIA A100-SXM4-40GB MIG 1g.5gb". Its raw UUID does not reveal it:
// tools add the "MIG-" before it.
bool is_mig_instance(const cu::driver_table& cuda, cu::device_t device) {
  char name[128] = {};
  if (cuda.cuDeviceGetName == nullptr || cuda.cuDeviceGetName(name, sizeof name, device) != cu::error_code::success)
    return false;
  return std::string_view(name).find(" MIG ") != std::string_view::npos;
}

}  // namespace

rm_object::~rm_object() {
  // Pins hold the object, so no extent is in use any more; a leftover would be a bug, but must not leak BAR1.
  for (const auto& left : extents_) space_->client().unmap(left->mapping, rm::unmap_policy::hole);
  space_->forget(block_id_);
  if (memory_ != 0) space_->client().release(gpu_, memory_);
}

void rm_object::confirm_at(std::uint64_t object_begin) {
  const std::lock_guard lock(mutex_);
  if (std::find(confirmed_.begin(), confirmed_.end(), object_begin) == confirmed_.end()) confirmed_.push_back(object_begin);
}

bool rm_object::confirmed_at(std::uint64_t object_begin) {
  const std::lock_guard lock(mutex_);
  return std::find(confirmed_.begin(), confirmed_.end(), object_begin) != confirmed_.end();
}

result<rm_object::lease> rm_object::acquire(std::uint64_t offset, std::uint64_t length, std::uint64_t object_bytes) {
  const std::lock_guard lock(mutex_);
  for (const auto& known : extents_) {
    if (!address_range{known->offset, known->length}.contains({offset, length})) continue;
    known->users++;
    return lease{static_cast<char*>(known->mapping.address) + (offset - known->offset), known.get()};
  }
  extents_.reserve(extents_.size() + 1);  // allocate the entry first: a mapping without one would stay for ever
  auto fresh = std::make_unique<extent>();
  address_range wanted = extent_for(offset, length, object_bytes);
  auto mapping = space_->client().map(gpu_, memory_, wanted.begin, wanted.size_bytes, nullptr);
  if (mapping.code() == ENOMEM && wanted.size_bytes > length) {  // BAR1 is nearly full: take no more than requested
    wanted = {offset, length};
    mapping = space_->client().map(gpu_, memory_, offset, length, nullptr);
  }
  if (!mapping) return mapping.error();
  *fresh = extent{wanted.begin, wanted.size_bytes, *mapping, 1};
  extents_.push_back(std::move(fresh));
  return lease{static_cast<char*>(mapping->address) + (offset - wanted.begin), extents_.back().get()};
}

void rm_object::release(const lease& held, rm::unmap_policy left) noexcept {
  const std::lock_guard lock(mutex_);
  if (--held.mapped->users > 0) return;
  space_->client().unmap(held.mapped->mapping, left);
  std::erase_if(extents_, [&held](const auto& e) { return e.get() == held.mapped; });
}

result<rm::cpu_mapping> rm_object::map_own(std::uint64_t offset, std::uint64_t length, void* address) {
  return space_->client().map(gpu_, memory_, offset, length, address);
}

void rm_object::unmap_own(const rm::cpu_mapping& mapping, rm::unmap_policy left) noexcept {
  space_->client().unmap(mapping, left);
}

result<std::shared_ptr<rm_space>> rm_space::get(device_io& io) {
  // One record for each process of a fork tree, deliberately leaked: a child must not touch its parent's (the client
  // answers EACCES there, and a thread that the child does not have may hold the lock), and static destructors would
  // race with threads that still copy at exit.
  struct record {
    std::uint32_t epoch;
    std::mutex mutex;
    std::unordered_map<device_io*, std::weak_ptr<rm_space>> spaces;
  };
  static std::atomic<record*> newest{nullptr};
  const std::uint32_t epoch = claim_process_epoch();
  record* mine = newest.load(std::memory_order_acquire);
  while (mine == nullptr || mine->epoch != epoch) {
    auto* fresh = new record{epoch, {}, {}};
    if (newest.compare_exchange_strong(mine, fresh)) mine = fresh;
    else delete fresh;
  }
  const std::lock_guard lock(mine->mutex);
  auto& current = mine->spaces[&io];
  if (auto alive = current.lock()) return alive;
  auto client = rm::client::open(io);
  if (!client) return client.error();
  auto made = std::make_shared<rm_space>(*std::move(client));
  current = made;
  return made;
}

result<const rm::gpu*> rm_space::gpu_of(const cu::driver_table& cuda, int device_ordinal) {
  const std::lock_guard lock(mutex_);
  if (const auto known = gpus_.find(device_ordinal); known != gpus_.end()) return known->second;
  // CUDA ordinals follow CUDA_VISIBLE_DEVICES; the PCI address is the only name both sides share.
  char text[32] = {};
  cu::device_t device = 0;
  cu::result_t rc = cuda.cuDeviceGet(&device, device_ordinal);
  if (rc == cu::error_code::success && is_mig_instance(cuda, device))
    return failure{
        ENOTSUP, format("CUDA device %d is a MIG instance. MIG instances are not supported by the rm backend (their memory "
                        "needs a subscription that it does not make): use the gdrdrv module, or a GPU without MIG",
                        device_ordinal)};
  if (rc == cu::error_code::success) rc = cuda.cuDeviceGetPCIBusId(text, sizeof text, device);
  if (rc != cu::error_code::success)
    return cu::make_error(cuda, rc, format("querying the PCI address of device %d", device_ordinal));
  auto pci = rm::parse_pci_address(text);
  if (!pci) return pci.error();
  auto gpu = client_->find_gpu(*pci);
  if (gpu) gpus_[device_ordinal] = *gpu;
  return gpu;
}

status rm_space::map_scratch(const proof_context& context) {
  auto scratch = scratch_memory::make(context);
  if (!scratch) return scratch.error();
  const address_range part{(*scratch)->pointer(), scratch_memory::kMappedBytes};  // anywhere in its page
  auto plan = plan_pin(*context.cuda, part, kHostPageBytes, range_rule::exact);
  if (!plan) return plan.error();
  auto placement = resolve_one(*context.cuda, *plan);
  if (!placement) return placement.error();
  rm_object& object = *placement->object;
  auto mapping = object.map_own(placement->offset, plan->rounded.size_bytes, nullptr);
  if (!mapping) return mapping.error();
  char* const first = static_cast<char*>(mapping->address) + (part.begin - plan->rounded.begin);
  auto outcome = (*scratch)->check({first, scratch_memory::kMappedBytes, arch::mapping_type::wc});
  object.unmap_own(*mapping, rm::unmap_policy::hole);
  return outcome;
}

status rm_space::prove_way(const proof_context& context, const rm::gpu& gpu, bool again) {
  std::shared_ptr<bounded_call> proof;
  {
    const std::lock_guard lock(mutex_);
    auto& known = proofs_[&gpu];
    if (known != nullptr && known->has_ended() && (again || !known->wait())) known = nullptr;
    if (known == nullptr) {
      // Until the work has ended it holds the space, and thereby the client.
      auto started = bounded_call::start(
          *context.cuda, [self = shared_from_this(), context]() -> status { return self->map_scratch(context); });
      if (!started) return started.error();
      known = *std::move(started);
    }
    proof = known;
  }
  auto outcome = proof->wait();
  return outcome ? outcome : unproved(outcome.error());
}

std::shared_ptr<rm_object> rm_space::cached(unsigned long long block_id) {
  if (block_id == 0) return nullptr;
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(block_id);
  return found != objects_.end() ? found->second.lock() : nullptr;
}

template <class TakeShare>
result<std::shared_ptr<rm_object>> rm_space::find_or_share(const rm::gpu& gpu, unsigned long long block_id,
                                                           TakeShare take_share) {
  if (auto known = cached(block_id)) return known;
  auto object = std::make_shared<rm_object>(shared_from_this(), gpu, block_id);
  const result<rm::handle> share = take_share();
  if (!share) return share.error();
  object->hold(*share);
  if (block_id != 0) {
    const std::lock_guard lock(mutex_);
    objects_[block_id] = object;
  }
  return object;
}

void rm_space::forget(unsigned long long block_id) noexcept {
  const std::lock_guard lock(mutex_);
  const auto found = objects_.find(block_id);
  if (found != objects_.end() && found->second.expired()) objects_.erase(found);
}

result<std::vector<rm_placement>> rm_space::query_libcuda(const cu::driver_table& cuda, const pin_plan& plan,
                                                          const rm::gpu& gpu) {
  auto context = cu::context_scope::enter(cuda, plan.device_ordinal, plan.context);
  if (!context) return context.error();
  auto backing = rm::find_backing(cuda, plan.rounded.begin, plan.rounded.size_bytes);
  if (!backing) return backing.error();
  std::vector<rm_placement> out;
  std::uint64_t address = plan.rounded.begin;
  for (const auto& piece : *backing) {
    if (piece.size_bytes == 0 || piece.offset % kHostPageBytes != 0)
      return failure{ENOTSUP, "libcuda names an object at an offset that is not page aligned: its ABI has changed"};
    unsigned long long block_id = 0;
    std::uint64_t object_bytes = 0;
    for (const auto& planned : plan.pieces)
      if (planned.range.begin == address && address - planned.object_begin == piece.offset) {
        block_id = planned.block_id;
        object_bytes = planned.object_bytes;
      }
    auto object = find_or_share(gpu, block_id, [&] { return client_->duplicate(gpu, piece.client, piece.object); });
    if (!object) return object.error();
    if (block_id != 0) (*object)->confirm_at(address - piece.offset);
    out.push_back({*std::move(object), piece.offset, piece.size_bytes, object_bytes});
    address += piece.size_bytes;
  }
  return out;
}

// The second method uses only the public API: cuMemCreate memory that was made exportable as a file descriptor.
result<std::vector<rm_placement>> rm_space::import_vmm(const cu::driver_table& cuda, const pin_plan& plan,
                                                       const rm::gpu& gpu) {
  if (cuda.cuMemRetainAllocationHandle == nullptr || cuda.cuMemExportToShareableHandle == nullptr)
    return failure{ENOTSUP, "libcuda lacks the VMM export calls"};
  std::vector<rm_placement> out;
  for (const auto& piece : plan.pieces) {
    if (piece.object_bytes == 0) return failure{ENOTSUP, "the driver does not tell object borders"};
    cu::physical_t physical = 0;
    cu::result_t rc = cuda.cuMemRetainAllocationHandle(&physical, reinterpret_cast<void*>(piece.range.begin));
    if (rc != cu::error_code::success)
      return cu::make_error(cuda, rc, "cuMemRetainAllocationHandle (memory not made by cuMemCreate)");
    int fd = -1;
    rc = cuda.cuMemExportToShareableHandle(&fd, physical, cu::handle_type::posix_fd, 0);
    cuda.cuMemRelease(physical);
    if (rc != cu::error_code::success)
      return cu::make_error(cuda, rc, "exporting cuMemCreate memory as a descriptor (requestedHandleTypes must allow it)");
    const unique_fd owner(real_device_io(), fd);
    auto object = find_or_share(gpu, piece.block_id, [&] { return client_->import(gpu, fd); });
    if (!object) return object.error();
    out.push_back({*std::move(object), piece.range.begin - piece.object_begin, piece.range.size_bytes, piece.object_bytes});
  }
  return out;
}

// The third method, for memory of another process: the object that its IPC handle names. Not cached, since the handle
// may be of other memory: each mapping is proved separately (rm_backend.cpp).
result<std::vector<rm_placement>> rm_space::share_exported(const pin_plan& plan, const rm::gpu& gpu,
                                                           const cu::ipc_mem_handle_t& ipc_handle) {
  auto exported = rm::read_ipc_handle(ipc_handle);
  if (!exported) return exported.error();
  if (plan.pieces.size() != 1 || plan.pieces[0].object_bytes == 0)
    return failure{ENOTSUP,
                   "the driver does not report the memory's offset in its object: it cannot be mapped by an IPC handle"};
  const range_piece& piece = plan.pieces[0];
  if (exported->allocation_bytes > piece.object_bytes)
    return failure{
        EINVAL,
        format("the IPC handle refers to %llu bytes, but the memory at this address has at most %llu: pass the handle "
               "with which it was opened",
               static_cast<unsigned long long>(exported->allocation_bytes),
               static_cast<unsigned long long>(piece.object_bytes))};
  auto object = find_or_share(gpu, 0, [&] { return client_->duplicate(gpu, exported->client, exported->object); });
  if (!object)
    return failure{object.code(), "taking a share of another process's memory: " + object.error().message +
                                      " (the process that exported it must still hold it)"};
  std::vector<rm_placement> out;
  out.push_back(
      {*std::move(object), piece.range.begin - piece.object_begin, piece.range.size_bytes, piece.object_bytes, true});
  return out;
}

result<std::vector<rm_placement>> rm_space::resolve(const cu::driver_table& cuda, const pin_plan& plan,
                                                    const cu::ipc_mem_handle_t* ipc_handle) {
  std::vector<rm_placement> out;
  for (const auto& piece : plan.pieces) {
    auto object = piece.object_bytes != 0 ? cached(piece.block_id) : nullptr;
    if (object == nullptr || !object->confirmed_at(piece.object_begin)) break;
    out.push_back({std::move(object), piece.range.begin - piece.object_begin, piece.range.size_bytes, piece.object_bytes});
  }
  if (out.size() == plan.pieces.size()) return out;  // no call was needed
  const cu::relaxed_capture capture(cuda);
  auto gpu = gpu_of(cuda, plan.device_ordinal);
  if (!gpu) return gpu.error();
  auto asked = query_libcuda(cuda, plan, **gpu);
  if (asked) return asked;
  auto imported = import_vmm(cuda, plan, **gpu);
  if (imported) return imported;
  PL_LOG(debug, "second way (VMM export) refused: %s", imported.error().message.c_str());
  if (ipc_handle != nullptr) return share_exported(plan, **gpu, *ipc_handle);
  return failure{asked.code(),
                 asked.error().message +
                     " (memory that another process made, opened by cuIpcOpenMemHandle, is mapped with its handle: "
                     "peerlane_map_ipc)"};
}

result<rm_placement> rm_space::resolve_one(const cu::driver_table& cuda, const pin_plan& plan) {
  auto found = resolve(cuda, plan);
  if (!found) return found.error();
  if (found->size() != 1)
    return failure{ENOTSUP,
                   format("the memory is in %zu objects of the driver: map each allocation separately", found->size())};
  if (found->front().length < plan.rounded.size_bytes)
    return failure{EIO, "libcuda named less memory than it was asked for"};
  return std::move(found->front());
}

}  // namespace pl
