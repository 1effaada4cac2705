// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/device_memory.hpp"

#include <sys/uio.h>
#include <unistd.h>

#include <atomic>
#include <memory>

#include "base/env.hpp"
#include "base/log.hpp"
#include "copy/planner.hpp"
#include "copy/time_limit.hpp"
#include "cuda/driver_table.hpp"
#include "cuda/pointer.hpp"
#include "os/fork_guard.hpp"

namespace pl::mpi {
namespace {

// State of the process while it passes device memory to MPI. On the heap and never destroyed, because destructors of
// other libraries may call MPI.
struct devices {
  explicit devices(std::size_t idle_limit) : pool(idle_limit) {}
  std::uint32_t epoch = 0;
  std::unique_ptr<copy::planner> planner;
  staging_pool pool;
  copy::gpu_table gpus;
  std::mutex exchange_mutex;
  std::unique_ptr<copy::memory_exchange> memories;  // null: channels are not wanted
};

std::mutex g_mutex;
std::atomic<devices*> g_devices{nullptr};

failure wrong_process() {
  return {EACCES, "device memory of the parent process: CUDA does not work in a forked child, start it by exec"};
}

result<devices*> open_devices() {
  if (auto* const open = g_devices.load(std::memory_order_acquire)) {
    if (open->epoch != process_epoch()) return wrong_process();
    return open;
  }
  const std::lock_guard lock(g_mutex);
  if (auto* const open = g_devices.load(std::memory_order_relaxed)) return open;
  auto cuda = cu::driver();
  if (!cuda) return cuda.error();
  const auto limit = env_read("PEERLANE_MPI_POOL").integer;
  auto made = std::make_unique<devices>(static_cast<std::size_t>(limit));
  auto planner = copy::planner::open(**cuda, copy::planner::options_from_environment());
  if (!planner) return planner.error();
  made->planner = std::move(*planner);
  if (copy::channel_use_from_environment() != copy::channel_use::never)
    made->memories = std::make_unique<copy::memory_exchange>(*cuda, made->gpus);
  made->epoch = claim_process_epoch();
  g_devices.store(made.get(), std::memory_order_release);
  return made.release();
}

bool can_be_read(const void* pointer) noexcept {
  char byte = 0;
  const iovec local{&byte, 1};
  const iovec remote{const_cast<void*>(pointer), 1};
  return process_vm_readv(getpid(), &local, 1, &remote, 1, 0) == 1;
}

result<copy::gpu_context> context_of(std::uint64_t device) {
  auto cuda = cu::driver();
  if (!cuda) return cuda.error();
  auto info = cu::inspect_pointer(**cuda, device);
  if (!info) return info.error();
  return copy::find_context(**cuda, info->device_ordinal, info->context);
}

}  // namespace

bool detail::query_driver(const void* pointer) noexcept {
  const auto* const cuda = g_driver.load(std::memory_order_acquire);
  if (cuda->cuPointerGetAttributes == nullptr) return false;
  unsigned type = 0, managed = 0;
  int attributes[] = {cu::pointer_attribute::memory_type, cu::pointer_attribute::is_managed};
  void* values[] = {&type, &managed};
  const auto address = reinterpret_cast<std::uint64_t>(pointer);
  const auto code = cuda->cuPointerGetAttributes(std::size(attributes), attributes, values, address);
  if (code == cu::error_code::success) [[likely]]
    return type == cu::memory_type::device && managed == 0;
  const auto* const open = g_devices.load(std::memory_order_acquire);
  return open != nullptr && open->epoch != process_epoch() && !can_be_read(pointer);
}

std::optional<cu::pointer_info> device_info(const void* pointer) noexcept {
  if (pointer == nullptr || !driver_is_there()) return std::nullopt;
  return cu::find_device_memory(*detail::g_driver.load(std::memory_order_acquire), reinterpret_cast<std::uint64_t>(pointer));
}

result<staging_pool::block> take_staging(std::uint64_t device, std::size_t bytes, bool sparse) {
  auto open = open_devices();
  if (!open) return open.error();
  if (sparse) return (*open)->pool.take_sparse(bytes);
  return (*open)->pool.take(bytes, [device] { return context_of(device); });
}

status copy_all(std::span<const copy::transfer> list, const cu::pointer_info* device) {
  auto open = open_devices();
  if (!open) return open.error();
  if (list.size() == 1) {
    const auto& only = list[0];
    const address_range place{only.way == copy::direction::to_device ? only.dst : only.src, only.row_bytes};
    // Another memory object of unknown kind may follow the first.
    const bool is_known = device != nullptr && only.rows == 1 && device->allocation.contains(place) &&
                          (device->object.size_bytes == 0 || device->object.contains(place));
    return is_known ? (*open)->planner->copy(only, *device) : (*open)->planner->copy(only);
  }
  return (*open)->planner->copy_list(list);
}

result<copy::completion> begin_copies(std::span<const copy::transfer> list) {
  auto open = open_devices();
  if (!open) return open.error();
  return (*open)->planner->begin(list, {});
}

std::optional<copy::memory_exchange::offer> hand_over(address_range bytes) {
  auto open = open_devices();
  const auto info = device_info(reinterpret_cast<const void*>(bytes.begin));
  if (!open || (*open)->memories == nullptr || !info) return std::nullopt;
  const std::lock_guard lock((*open)->exchange_mutex);
  return (*open)->memories->hand_over(*info, bytes);
}

bool pull(const copy::memory_exchange::owner& exporter, std::uint64_t source, std::uint64_t destination,
          std::uint64_t bytes) {
  auto open = open_devices();
  const auto info = device_info(reinterpret_cast<const void*>(destination));
  if (!open || (*open)->memories == nullptr || !info) return false;
  const std::lock_guard lock((*open)->exchange_mutex);
  const auto made = (*open)->memories->prepare(exporter, source, *info, destination, bytes);
  if (!made) return false;
  const auto queued = made->queues->submit_settled(made->path(), made->blocks);
  if (!queued) return false;
  auto done = queued->channel->wait(queued->number, copy::time_limit_ns(bytes));
  if (done) return true;
  made->queues->drop(queued->channel);
  return false;
}

bool is_within_allocation(std::uint64_t device, std::size_t bytes) noexcept {
  const auto info = device_info(reinterpret_cast<const void*>(device));
  return info && info->allocation.contains(address_range{device, bytes});
}

void pin_for(std::uint64_t device, shared_segment& memory) noexcept {
  if (memory.was_pinned()) return;
  if (auto context = context_of(device)) memory.pin(*context);
}

void close_devices() noexcept {
  const std::lock_guard lock(g_mutex);
  auto* const open = g_devices.load(std::memory_order_relaxed);
  if (open == nullptr || open->epoch != process_epoch()) return;
  g_devices.store(nullptr, std::memory_order_release);
  delete open;
}

void complain(const char* description, const failure& reason) noexcept {
  static std::atomic<bool> is_reported{false};
  if (!is_reported.exchange(true)) log_line(log_level::error, "peerlane-mpi: %s: %s", description, reason.message.c_str());
  else PL_LOG(error, "peerlane-mpi: %s: %s", description, reason.message.c_str());
}

}  // namespace pl::mpi
