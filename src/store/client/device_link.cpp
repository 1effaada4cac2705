// SPDX-License-Identifier: Apache-2.0
#include "store/client/device_link.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <chrono>
#include <numeric>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "map/rm_space.hpp"
#include "os/device_io.hpp"
#include "rm/simulated_device_io.hpp"
#include "store/protocol/byte_channel.hpp"

namespace pl::store_client {
namespace {

constexpr unsigned kImportTimeoutMs = 5000;  // the store takes 30 ms for the first memory of a GPU
constexpr std::uint64_t kWindowBytes = std::uint64_t{16} << 30;
// In the cache, the store's numbers replace addresses: number << kNumberShift, plus the offset.
constexpr unsigned kNumberShift = 40;
static_assert(kWindowBytes <= std::uint64_t{1} << kNumberShift);
constexpr std::uint32_t kMaxNumber = 1u << 20;
// A transfer that has begun takes at most 2 s (64 GiB). Its end is seen as soon as the store runs.
constexpr auto kMaxSettling = std::chrono::seconds(10);
// The copies of a dead process end with its channels, which the kernel removes after it has closed the sockets.
constexpr auto kDyingChannels = std::chrono::milliseconds(20);

class fd_memory_pin final : public pinned_memory {
 public:
  fd_memory_pin(const pin_plan& plan, std::shared_ptr<device_link> link, std::uint32_t number)
      : pinned_memory("store", plan.rounded, plan.device_ordinal), link_(std::move(link)), number_(number) {}
  ~fd_memory_pin() override { link_->release(number_); }
  result<cpu_view> map(std::size_t size_bytes, arch::mapping_type) override {
    return cpu_view{copy::host_pointer(std::uint64_t{number_} << kNumberShift), size_bytes, arch::mapping_type::none};
  }
  void unmap(const cpu_view&, unmapping) noexcept override {}

 private:
  std::shared_ptr<device_link> link_;
  std::uint32_t number_;
};

// "Maps" memory into the store by handing it over.
class fd_memory_backend final : public backend {
 public:
  fd_memory_backend(const cu::driver_table& cuda, std::shared_ptr<rm_space> space, std::shared_ptr<device_link> link)
      : cuda_(cuda), space_(std::move(space)), link_(std::move(link)) {}
  const char* name() const noexcept override { return "store"; }

  result<std::unique_ptr<pinned_memory>> pin(const pin_request& request) override {
    auto plan = plan_pin(cuda_, request.range, request.granule_bytes, request.rule);
    if (!plan) return plan.error();
    auto found = space_->resolve_one(cuda_, *plan);
    if (!found) return found.error();
    const rm::gpu& gpu = found->object->gpu();
    auto fd = space_->client().export_object(gpu, found->object->memory());
    if (!fd) return fd.error();
    dma::shared_region region;
    region.fd = *std::move(fd);
    region.gpu = gpu.pci;
    region.offset = found->offset;
    region.size_bytes = plan->rounded.size_bytes;
    auto number = link_->import(region);
    if (!number) return number.error();
    return std::unique_ptr<pinned_memory>(new fd_memory_pin(*plan, link_, *number));
  }

 private:
  const cu::driver_table& cuda_;
  std::shared_ptr<rm_space> space_;
  std::shared_ptr<device_link> link_;
};

copy::mapping_cache::options cache_options(const std::shared_ptr<device_link>& link) {
  copy::mapping_cache::options wanted;
  wanted.window_bytes = kWindowBytes;
  wanted.capacity_bytes = UINT64_MAX / 2;  // the store has limits of its own
  wanted.open = [link](const cu::driver_table& cuda) -> result<std::unique_ptr<backend>> {
    device_io* const simulated = rm::simulated_device_io(cuda);
    auto space = rm_space::get(simulated != nullptr ? *simulated : default_device_io());
    if (!space) return space.error();
    return std::unique_ptr<backend>(new fd_memory_backend(cuda, *std::move(space), link));
  };
  return wanted;
}

}  // namespace

// ---- The link ------------------------------------------------------------------------------------------------------------

device_link::device_link(unique_fd socket, dma::shared_host words)
    : socket_(std::move(socket)),
      words_(std::move(words)),
      slots_(words_.data()),
      free_slots_(store_protocol::kDeviceSlots) {
  std::iota(free_slots_.rbegin(), free_slots_.rend(), 0u);
}

result<std::shared_ptr<device_link>> device_link::open(int fd, unsigned timeout_ms) {
  unique_fd socket(real_device_io(), fd);
  auto region = dma::receive_region(socket.get(), static_cast<int>(timeout_ms));
  if (!region) return region.error();
  auto words = dma::shared_host::open(*region);
  if (!words) return words.error();
  if (words->size_bytes() < store_protocol::kDeviceSlotBytes)
    return failure{EPROTO, "the store's device link has less memory than it should"};
  return std::shared_ptr<device_link>(new device_link(std::move(socket), *std::move(words)));
}

result<std::uint32_t> device_link::import(const dma::shared_region& region) {
  const std::lock_guard hold(asking_);
  if (is_broken_) return failure{EPIPE, "the store's device link is out of use"};
  send_releases();
  if (auto sent = dma::send_region(socket_.get(), region, MSG_DONTWAIT); !sent) return sent.error();
  store_protocol::device_reply got;
  is_broken_ = !wait_for(socket_.get(), false, kImportTimeoutMs);
  if (is_broken_) return failure{ETIMEDOUT, "the store did not take device memory over in time"};
  const ssize_t bytes = recv(socket_.get(), &got, sizeof got, MSG_DONTWAIT);
  if (bytes != sizeof got || got.magic != store_protocol::kDeviceLinkMagic)
    return failure{EPIPE, "the store has closed its device link"};
  got.text[sizeof got.text - 1] = 0;
  if (got.status != 0) return failure{got.status, got.text};
  if (got.memory == 0 || got.memory >= kMaxNumber) return failure{EPROTO, "the store names device memory strangely"};
  return got.memory;
}

void device_link::release(std::uint32_t memory) noexcept {
  {
    const std::lock_guard hold(releases_mutex_);
    unsent_.push_back(memory);
  }
  send_releases();
}

// Sends as many releases as possible without waiting, because a stopped store takes none. A closed link has released
// everything.
void device_link::send_releases() noexcept {
  const std::lock_guard hold(releases_mutex_);
  for (; !unsent_.empty(); unsent_.pop_back()) {
    const store_protocol::device_release note{store_protocol::kDeviceLinkMagic, unsent_.back()};
    const ssize_t sent = send(socket_.get(), &note, sizeof note, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (sent < 0 && (errno == EAGAIN || errno == EINTR)) return;
  }
}

std::optional<store_protocol::device_part> device_link::take_slot() {
  const std::lock_guard hold(slots_mutex_);
  if (free_slots_.empty()) return std::nullopt;
  store_protocol::device_part part;
  part.slot = free_slots_.back();
  free_slots_.pop_back();
  part.ticket = ++last_ticket_;
  slots_.want(part.slot, part.ticket);
  return part;
}

void device_link::give_slot(const store_protocol::device_part& part) {
  const std::lock_guard hold(slots_mutex_);
  free_slots_.push_back(part.slot);
}

bool device_link::is_closed() const noexcept {
  pollfd one{socket_.get(), 0, 0};
  return poll(&one, 1, 0) == 1 && (one.revents & (POLLHUP | POLLERR)) != 0;
}

bool device_link::settle(const store_protocol::device_part& part) const {
  if (slots_.has_ended(part.slot, part.ticket) || slots_.cancel(part.slot, part.ticket)) return true;
  const auto deadline = std::chrono::steady_clock::now() + kMaxSettling;
  while (!slots_.has_ended(part.slot, part.ticket)) {
    if (is_closed()) {
      std::this_thread::sleep_for(kDyingChannels);
      return true;
    }
    if (std::chrono::steady_clock::now() > deadline) return false;
    std::this_thread::sleep_for(std::chrono::microseconds(50));
  }
  return true;
}

// ---- Memories ------------------------------------------------------------------------------------------------------------

device_memories::device_memories(const cu::driver_table& cuda, std::shared_ptr<device_link> link)
    : cuda_(cuda), link_(std::move(link)), cache_(cache_options(link_)) {}

result<device_memories::use> device_memories::find(const cu::pointer_info& info, std::uint64_t pointer,
                                                   std::uint64_t bytes) {
  auto found = cache_.find(cuda_, info, pointer, bytes);
  if (!found) return found.error();
  const std::uint64_t address = copy::address_of(found->data);
  // The id of the allocation is known here
  const auto window = copy::window_around(info, {pointer, bytes}, kWindowBytes);
  return use{*std::move(found), static_cast<std::uint32_t>(address >> kNumberShift),
             address & ((std::uint64_t{1} << kNumberShift) - 1), copy::identity_of(info),
             window ? window->exact : address_range{pointer, bytes}};
}

}  // namespace pl::store_client
