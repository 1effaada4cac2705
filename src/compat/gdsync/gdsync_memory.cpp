// SPDX-License-Identifier: Apache-2.0
#include "compat/gdsync/gdsync_memory.hpp"

#include <map>
#include <memory>
#include <mutex>

#include "base/env.hpp"
#include "base/text.hpp"
#include "capi/errno_guard.hpp"
#include "copy/pinned_buffer.hpp"
#include "cuda/pointer.hpp"

namespace pl::gds {
namespace {

constexpr std::uintptr_t kPageBytes = 4096;

struct allocation {
  copy::pinned_buffer host;  // empty: GPU memory
  cu::device_ptr device = 0;
  std::size_t bytes = 0;
  region* mapped = nullptr;
};

struct registry {
  std::mutex mutex;
  std::map<const void*, allocation> live;  // by CPU address
  session* mapper = nullptr;
};
// Never destroyed: CUDA may be gone at exit.
registry& all() {
  static auto* const one = new registry;
  return *one;
}

// A forked child opens its own. Precondition: the registry's mutex is held.
result<session*> open_mapper(registry& known) {
  if (known.mapper != nullptr && check_session(known.mapper) == 0) return known.mapper;
  auto opened = open_session({&default_device_io(), nullptr}, env_read("PEERLANE_BACKEND").text);
  if (opened) known.mapper = *opened;
  return opened;
}

result<region*> map_for_cpu(registry& known, cu::device_ptr pointer, std::size_t bytes) {
  const auto mapper = open_mapper(known);
  if (!mapper) return mapper.error();
  pin_request request;
  request.range = {pointer, bytes};
  auto pinned = pin_region(*mapper, request);
  if (!pinned) return pinned.error();
  if (auto mapped = map_region_exactly(*mapper, *pinned); !mapped) {
    (void)unpin_region(*mapper, *pinned);  // report the reason of the map
    return mapped.error();
  }
  return pinned;
}

result<allocation> allocate_gpu(registry& known, const cu::driver_table& cuda, std::size_t bytes) {
  allocation made;
  made.bytes = bytes;
  if (const auto rc = cuda.cuMemAlloc_v2(&made.device, bytes); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, format("allocating %zu bytes of GPU memory", bytes));
  const unsigned yes = 1;
  auto mapped = map_for_cpu(known, made.device, bytes);
  // Copies to and from it are synchronous, like the CPU's accesses through the mapping.
  if (mapped && cuda.cuPointerSetAttribute(&yes, cu::pointer_attribute::sync_memops, made.device) != cu::error_code::success)
    PL_LOG(debug, "memory at %#llx does not take SYNC_MEMOPS", static_cast<unsigned long long>(made.device));
  if (!mapped) {
    cuda.cuMemFree_v2(made.device);
    return mapped.error();
  }
  made.mapped = *mapped;
  return made;
}

result<allocation> allocate_host(const cu::driver_table& cuda, std::size_t bytes) {
  cu::context_t current = nullptr;
  cu::device_t device = -1;
  if (cuda.cuCtxGetCurrent(&current) != cu::error_code::success || current == nullptr ||
      cuda.cuCtxGetDevice(&device) != cu::error_code::success)
    return failure{EINVAL, "no CUDA context is current on this thread"};
  const auto context = copy::find_context(cuda, device, current);
  if (!context) return context.error();
  auto buffer = copy::pinned_buffer::make(*context, bytes);
  if (!buffer) return buffer.error();
  allocation made;
  made.host = *std::move(buffer);
  made.device = made.host.device_address();
  made.bytes = bytes;
  return made;
}

bool is_host_memory_of_cuda(const void* pointer) {
  const auto cuda = ready_driver();
  unsigned type = 0;
  return cuda &&
         (*cuda)->cuPointerGetAttribute(&type, cu::pointer_attribute::memory_type,
                                        reinterpret_cast<std::uintptr_t>(pointer)) == cu::error_code::success &&
         type == cu::memory_type::host;
}

}  // namespace

int refuse(const char* call, const failure& reason) {
  if (!env_read("PEERLANE_LOG").is_set || log_enabled(log_level::error))
    log_line(log_level::error, "%s: %s", call, reason.message.c_str());
  return fail(reason);
}

result<const cu::driver_table*> ready_driver() {
  const auto cuda = cu::driver();
  if (!cuda) return cuda.error();
  if (auto ready = cu::initialize(**cuda); !ready) return ready.error();
  return *cuda;
}

bool is_memory_type(int flags) noexcept {
  const int type = flags & GDS_MEMORY_MASK;
  return type == GDS_MEMORY_GPU || type == GDS_MEMORY_HOST || type == GDS_MEMORY_IO;
}

result<cu::device_ptr> device_address(const cu::driver_table& cuda, const void* pointer, int flags) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if ((flags & GDS_MEMORY_MASK) == GDS_MEMORY_GPU) return address;
  cu::device_ptr found = 0;
  if (cuda.cuMemHostGetDevicePointer_v2(&found, const_cast<void*>(pointer), 0) == cu::error_code::success) return found;
  auto* const page = reinterpret_cast<void*>(address / kPageBytes * kPageBytes);
  unsigned register_flags = cu::host_register_flag::portable | cu::host_register_flag::device_map;
  if ((flags & GDS_MEMORY_MASK) == GDS_MEMORY_IO) register_flags |= cu::host_register_flag::io_memory;
  // Another thread may have registered it first, so only the second query counts.
  const auto registered = cuda.cuMemHostRegister_v2(page, kPageBytes, register_flags);
  const auto rc = cuda.cuMemHostGetDevicePointer_v2(&found, const_cast<void*>(pointer), 0);
  if (rc == cu::error_code::success) return found;
  return cu::make_error(cuda, registered != cu::error_code::success ? registered : rc,
                        format("registering the page of host memory at %p", pointer));
}

result<cpu_word> cpu_word::find(void* pointer, int flags) {
  const auto address = reinterpret_cast<std::uintptr_t>(pointer);
  if ((flags & GDS_MEMORY_MASK) != GDS_MEMORY_GPU) {
    const auto cuda = ready_driver();
    if (!cuda || !cu::find_device_memory(**cuda, address)) return cpu_word(nullptr, pointer);
    return failure{EFAULT, format("%p is device memory, and its flags do not say GDS_MEMORY_GPU", pointer)};
  }
  {
    auto& known = all();
    const std::lock_guard lock(known.mutex);
    for (const auto& [cpu, each] : known.live) {
      const auto offset = address - each.device;
      if (address < each.device || offset >= each.bytes || each.bytes - offset < sizeof(std::uint32_t)) continue;
      return cpu_word(each.mapped, static_cast<char*>(const_cast<void*>(cpu)) + offset);
    }
  }
  if (is_host_memory_of_cuda(pointer)) return cpu_word(nullptr, pointer);
  return failure{EFAULT,
                 format("the CPU cannot reach device memory at %p: allocate it with gds_alloc_mapped_memory", pointer)};
}

std::uint32_t cpu_word::load() const noexcept {
  std::uint32_t value = 0;
  if (mapped_ == nullptr) return __atomic_load_n(static_cast<std::uint32_t*>(word_), __ATOMIC_ACQUIRE);
  (void)region_read(mapped_, &value, word_, sizeof value);  // it was live; freeing it meanwhile is the caller's error
  return value;
}

void cpu_word::store(std::uint32_t value) const noexcept {
  if (mapped_ == nullptr) __atomic_store_n(static_cast<std::uint32_t*>(word_), value, __ATOMIC_RELEASE);
  else (void)region_write(mapped_, word_, &value, sizeof value, true);
}

}  // namespace pl::gds

using pl::failure;
using pl::gds::refuse;

PL_EXPORT int gds_alloc_mapped_memory(gds_mem_desc_t* desc, size_t size, int flags) try {
  const pl::errno_guard keeper;
  const bool is_gpu = flags == GDS_MEMORY_GPU;
  if (desc == nullptr || size == 0 || (!is_gpu && flags != GDS_MEMORY_HOST))
    return refuse(__func__, {EINVAL, "no descriptor, no bytes, or flags other than GDS_MEMORY_GPU or GDS_MEMORY_HOST"});
  const auto cuda = pl::gds::ready_driver();
  if (!cuda) return refuse(__func__, cuda.error());
  auto& known = pl::gds::all();
  const std::lock_guard lock(known.mutex);
  auto made = is_gpu ? pl::gds::allocate_gpu(known, **cuda, size) : pl::gds::allocate_host(**cuda, size);
  if (!made) return refuse(__func__, made.error());
  gds_mem_desc_t out{};
  out.d_ptr = made->device;
  out.h_ptr = is_gpu ? static_cast<void*>(made->mapped->data.load(std::memory_order_relaxed)) : made->host.data();
  out.bar_ptr = is_gpu ? out.h_ptr : nullptr;
  out.flags = flags;
  out.alloc_size = size;
  out.mh.h = reinterpret_cast<std::uintptr_t>(made->mapped);
  known.live.emplace(out.h_ptr, *std::move(made));
  *desc = out;
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int gds_free_mapped_memory(gds_mem_desc_t* desc) try {
  const pl::errno_guard keeper;
  auto& known = pl::gds::all();
  const std::lock_guard lock(known.mutex);
  const auto found = desc != nullptr ? known.live.find(desc->h_ptr) : known.live.end();
  if (found == known.live.end() || found->second.device != desc->d_ptr)
    return refuse(__func__, {EINVAL, "the descriptor does not belong to live memory of gds_alloc_mapped_memory"});
  auto& gone = found->second;
  int code = 0;
  if (gone.mapped != nullptr) {
    const auto cuda = pl::gds::ready_driver();
    if (!cuda) return refuse(__func__, cuda.error());
    if (auto ended = pl::unpin_region(known.mapper, gone.mapped); !ended) return refuse(__func__, ended.error());
    const auto rc = (*cuda)->cuMemFree_v2(gone.device);
    if (rc != pl::cu::error_code::success) code = refuse(__func__, pl::cu::make_error(**cuda, rc, "freeing the GPU memory"));
  }
  known.live.erase(found);
  *desc = {};
  return code;
}
PL_NO_EXCEPTIONS
