// SPDX-License-Identifier: Apache-2.0
#include "device/session.hpp"

#include <pthread.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <set>
#include <system_error>
#include <utility>

#include "arch/mmio.hpp"
#include "base/checked_math.hpp"
#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "copy/host_memory.hpp"
#include "cuda/pointer.hpp"
#include "map/device_range.hpp"
#include "os/blocked_signals.hpp"

namespace pl::device {
namespace {

constexpr std::chrono::microseconds kBusySleep(300), kIdleSleep(2000), kRestSleep(10'000);
constexpr std::chrono::microseconds kProxyIdleSleep(50), kProxyRestSleep(1000);
// With interrupts: how late a fault is seen, of which there is none.
constexpr std::chrono::microseconds kWokenSleep(dma::completion_event::kRecheckNs / 1000), kWokenRestSleep(100'000);
constexpr std::uint64_t kIdleAfterNs = 50'000'000, kRestAfterNs = 1'000'000'000, kProxyIdleAfterNs = 1'000'000;
constexpr long long kMaxTimesliceUs = 1'000'000;
constexpr std::uint64_t kGranuleBytes = 64u << 10;  // of what is bound
constexpr std::uint64_t kRingAlignment = 2u << 20;  // of BAR1's pages

failure not_here(const failure& reason) {
  return {reason.code,
          format("transfers started by kernels need DMA channels, which are not available: %s", reason.message.c_str())};
}

ring_backend backend_from_environment() {
  const std::string wanted = env_read("PEERLANE_DEVICE_RINGS").text;
  return wanted == "dma" ? ring_backend::channels : wanted == "proxy" ? ring_backend::proxy : ring_backend::automatic;
}

}  // namespace

struct session::registration {
  copy::gpu_context context;
  std::uint64_t begin = 0, end = 0;
  ~registration() {
    if (auto use = copy::context_use::enter(context))
      static_cast<void>(context.cuda->cuMemHostUnregister(reinterpret_cast<void*>(begin)));
  }
};

result<std::unique_ptr<session>> session::open(const cu::driver_table& cuda, const session_options& options) {
  if (options.rings == 0 || options.rings > kMaxRings)
    return failure{EINVAL, format("%u rings cannot be opened: give 1 to %u", options.rings, kMaxRings)};
  if (status good = dma::check_segments(options.ring.segments); !good) return good.error();
  auto context = copy::find_context(cuda, options.device_ordinal, nullptr);
  if (!context) return context.error();
  std::unique_ptr<session> made(new session(*context, options));
  const ring_backend backend = options.backend == ring_backend::automatic ? backend_from_environment() : options.backend;
  if (backend == ring_backend::proxy) {
    made->why_proxy_ = "it was asked for";
  } else if (auto source = copy::channel_source::open(cuda, options.device_ordinal)) {
    made->source_ = *std::move(source);
  } else if (backend == ring_backend::channels) {
    return not_here(source.error());
  } else {
    made->why_proxy_ = source.error().message;
    PL_LOG(info, "a thread carries out what kernels post: %s", made->why_proxy_.c_str());
  }
  made->stop_ = unique_fd(real_device_io(), eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!made->stop_) return failure{errno, "no descriptor for the thread that refills rings: raise the limit of open files"};
  if (made->source_) made->choose_engines();
  if (made->source_ && copy::is_on(options.wakeups, cuda.is_simulated)) made->open_events();
  made->sleeps_for_.push_back({made->stop_.get(), POLLIN, 0});
  for (const auto& one : made->events_) made->sleeps_for_.push_back({one->descriptor(), POLLIN, 0});
  if (status done = made->open_rings(); !done) return done.error();
  auto started = try_start_thread("refills rings", [self = made.get()] { self->run(); });
  if (!started) return started.error();
  made->thread_ = *std::move(started);
  return made;
}

session::~session() {
  if (thread_.joinable()) {
    is_over_.store(true, std::memory_order_release);
    static_cast<void>(eventfd_write(stop_.get(), 1));
    thread_.join();
  }
  for (auto& one : rings_)
    if (one.queue != nullptr) one.queue->close();
  windows_.clear();
  auto use = copy::context_use::enter(context_);
  for (auto& one : rings_) {
    one.queue.reset();
    one.placement = {};
    if (use && one.memory != 0) context_.cuda->cuMemFree_v2(one.memory);
  }
}

status session::open_channel_ring(open_ring& made, unsigned engine) {
  const auto& cuda = *context_.cuda;
  const std::uint64_t bytes = dma::device_ring::memory_bytes(options_.ring.segments);
  auto rc = cuda.cuMemAlloc_v2(&made.memory, bytes + kRingAlignment);
  const std::uint64_t begin = align_down(made.memory + kRingAlignment - 1, kRingAlignment);
  if (rc == cu::error_code::success) rc = cuda.cuMemsetD8_v2(begin, 0, bytes);
  if (rc == cu::error_code::success) rc = cuda.cuCtxSynchronize();
  if (rc != cu::error_code::success)
    return cu::make_error(cuda, rc, format("making %s of memory for a ring", format_size(bytes).c_str()));
  auto found = bind_device({begin, bytes});
  if (!found) return not_here(found.error());
  made.placement = std::move(found->placement);
  dma::device_ring_options wanted = options_.ring;
  wanted.engine = engine;
  // With the driver's slice each idle ring held up whoever shared its engine: puts of another process took a millisecond,
  // and so did CUDA's copies between two GPUs (docs/results/device). A short one costs the ring nothing while it is alone.
  if (wanted.timeslice_us == 0) {
    const auto slice = env_read("PEERLANE_DEVICE_TIMESLICE_US").integer;
    wanted.timeslice_us = slice > 0 && slice < kMaxTimesliceUs ? static_cast<std::uint32_t>(slice)
                                                               : dma::device_ring_options::kDriversTimeslice;
  }
  wanted.interrupts = std::any_of(events_.begin(), events_.end(), [&](const auto& one) { return one->engine() == engine; });
  auto opened = dma::device_ring::open(std::move(found->bound), begin, wanted);
  if (!opened) return opened.code() == EINVAL ? opened.error() : not_here(opened.error());
  made.queue = std::move(*opened);
  return {};
}

status session::open_rings() {
  auto use = copy::context_use::enter(context_);
  if (!use) return use.error();
  for (unsigned i = 0; i < options_.rings; ++i) {
    open_ring& made = rings_.emplace_back();
    if (source_) {
      if (status done = open_channel_ring(made, engines_[i]); !done) return done;
      continue;
    }
    auto opened = proxy_ring::open(
        context_, options_.ring, [this](std::uint64_t address, std::uint64_t bytes) { return find_place(address, bytes); });
    if (!opened) return opened.error();
    made.queue = std::move(*opened);
  }
  return {};
}

std::optional<proxy_ring::place> session::find_place(std::uint64_t address, std::uint64_t bytes) const {
  const std::lock_guard hold(mutex_);
  for (const auto& [begin, window] : windows_)
    if (address >= begin && bytes <= window.size_bytes && address - begin <= window.size_bytes - bytes)
      return proxy_ring::place{window.memory + (address - begin), window.remote};
  return std::nullopt;
}

// Device memory in one allocation; without channels of this GPU only.
result<pin_plan> session::find_range(address_range range) const {
  auto plan = plan_pin(*context_.cuda, range, kGranuleBytes, range_rule::exact);
  if (!plan) return plan.error();
  if (!source_ && plan->device_ordinal != context_.device_ordinal)
    return failure{EINVAL, format("the memory is on device %d: pass memory of device %d, to which these rings belong",
                                  plan->device_ordinal, context_.device_ordinal)};
  return plan;
}

result<session::bound_memory> session::bind_device(address_range range) const {
  auto plan = find_range(range);
  if (!plan) return plan.error();
  auto found = source_->space->resolve_one(*context_.cuda, *plan);
  if (!found) return found.error();
  bound_memory out;
  out.placement = *std::move(found);
  const rm_object& object = *out.placement.object;
  auto bound =
      source_->addresses->bind_share(object.memory(), out.placement.offset, plan->rounded.size_bytes, &object.gpu());
  if (!bound) return bound.error();
  out.bound = std::move(*bound);
  return out;
}

// Host memory, whole pages, as what carries out reaches it; `out.dma` becomes the address of the first page.
status session::bind_pages(open_window& made, std::uint64_t begin, std::uint64_t end, peerlane_device_window& out) const {
  out.is_outside = 1;
  auto* const pages = reinterpret_cast<void*>(begin);
  if (source_) {
    auto bound = source_->addresses->bind_host(pages, end - begin);
    if (!bound)
      return failure{
          bound.code() == EIO || bound.code() == EFAULT ? ENOTSUP : bound.code(),
          format("no window of this memory: it is neither CUDA's device memory nor memory of the process that can be "
                 "pinned (%s)",
                 bound.error().message.c_str())};
    out.dma = bound->address();
    made.host = std::move(*bound);
    return {};
  }
  const auto& cuda = *context_.cuda;
  {
    const std::lock_guard hold(mutex_);
    for (const auto& [address, window] : windows_)
      if (window.pages != nullptr && window.pages->begin <= begin && end <= window.pages->end) made.pages = window.pages;
  }
  if (made.pages == nullptr) {
    if (const auto rc = cuda.cuMemHostRegister_v2(pages, end - begin, 0); rc != cu::error_code::success)
      return failure{ENOTSUP, cu::make_error(cuda, rc, "no window of this memory: pinning it").message};
    made.pages = std::shared_ptr<const registration>(new registration{context_, begin, end});
  }
  cu::device_ptr reached = 0;
  if (const auto rc = cuda.cuMemHostGetDevicePointer_v2(&reached, pages, 0); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "a window of host memory");
  out.dma = reached;
  return {};
}

status session::bind_window(open_window& made, std::uint64_t address, std::uint64_t size_bytes,
                            peerlane_device_window& out) const {
  if (cu::find_device_memory(*context_.cuda, address)) {
    out.address = out.dma = address;
    if (!source_) {
      auto plan = find_range({address, size_bytes});
      return plan ? status() : status(plan.error());
    }
    auto found = bind_device({address, size_bytes});
    if (!found) return found.error();
    out.dma = found->bound.address() + address % kGranuleBytes;
    // Kernels of the rings' GPU reach another's memory themselves only with CUDA's peer access, which is the program's
    // matter.
    const bool is_peer = found->bound.kind() == rm::channel_objects::memory_kind::peer;
    out.address = is_peer ? 0 : address;
    out.is_outside = is_peer ? PEERLANE_DEVICE_ON_PEER : 0;
    made.device = std::move(*found);
    return {};
  }
  const auto known = copy::inspect_host(*context_.cuda, reinterpret_cast<void*>(address), size_bytes, &context_);
  out.address = known.is_pinned ? known.device_ptr : 0;
  if (!source_ && known.is_pinned) {
    out.dma = known.device_ptr;
    out.is_outside = 1;
    return {};
  }
  const auto page = static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  const std::uint64_t begin = address / page * page, end = (address + size_bytes + page - 1) / page * page;
  if (status done = bind_pages(made, begin, end, out); !done) return done;
  out.dma += address - begin;
  return {};
}

result<peerlane_device_window> session::keep(open_window made, const peerlane_device_window& out) {
  made.size_bytes = out.size_bytes;
  const std::lock_guard hold(mutex_);
  windows_.emplace(out.dma, std::move(made));
  return out;
}

result<peerlane_device_window> session::add_window(std::uint64_t address, std::uint64_t size_bytes) {
  if (address == 0 || size_bytes == 0) return failure{EINVAL, "the window is empty: pass an address and a size"};
  // What is pinned or bound ends up to a granule later.
  const auto end = checked_add(address, size_bytes);
  if (!end || !checked_add(*end, kGranuleBytes))
    return failure{EINVAL, "address plus size overflows: pass the size of the memory in bytes"};
  auto use = copy::context_use::enter(context_);
  if (!use) return use.error();
  open_window made;
  peerlane_device_window out{};
  out.size_bytes = size_bytes;
  if (status done = bind_window(made, address, size_bytes, out); !done) return done.error();
  made.memory = address;
  return keep(std::move(made), out);
}

// Addresses that no memory has stand for its bytes, apart from each other's by a page.
result<peerlane_device_window> session::add_remote(std::shared_ptr<remote_target> reached) {
  if (source_)
    return failure{
        ENOTSUP,
        "copy engines carry out what kernels post into these rings, and they reach no other host: open rings that "
        "a thread carries out (by_proxy, or PEERLANE_DEVICE_RINGS=proxy)"};
  constexpr std::uint64_t kPage = 4096, kMaxBytes = 1ull << 60;
  open_window made;
  peerlane_device_window out{};
  out.size_bytes = reached->size_bytes();
  out.is_outside = PEERLANE_DEVICE_ON_REMOTE;
  if (out.size_bytes > kMaxBytes) return failure{EINVAL, "a remote window of more than 2^60 bytes"};
  made.remote = std::move(reached);
  {
    const std::lock_guard hold(mutex_);
    out.dma = next_remote_;
    next_remote_ += align_down(out.size_bytes + 2 * kPage - 1, kPage);
  }
  return keep(std::move(made), out);
}

result<peerlane_device_window> session::add_shared(const dma::shared_region& shared) {
  open_window made;
  peerlane_device_window out{};
  out.size_bytes = shared.size_bytes;
  if (shared.memory == dma::shared_region::kind::host) {
    auto opened = dma::shared_host::open(shared);
    if (!opened) return opened.error();
    const auto begin = reinterpret_cast<std::uint64_t>(opened->data());
    auto use = copy::context_use::enter(context_);
    if (!use) return use.error();
    if (status done = bind_pages(made, begin, begin + opened->size_bytes(), out); !done) return done.error();
    made.memory = begin;
    made.shared = std::move(*opened);
  } else if (!source_) {
    return failure{ENOTSUP, "GPU memory of another process is not reached without DMA channels: " + why_proxy_};
  } else {
    auto bound = dma::import_region(*source_->addresses, shared);
    if (!bound) return bound.error();
    out.dma = bound->address();
    out.is_outside = bound->kind() == rm::channel_objects::memory_kind::peer ? PEERLANE_DEVICE_ON_PEER : 0;
    made.device.bound = std::move(*bound);
  }
  return keep(std::move(made), out);
}

result<dma::shared_region> session::share(const peerlane_device_window& window) const {
  const std::lock_guard hold(mutex_);
  const auto found = windows_.find(window.dma);
  if (found == windows_.end())
    return failure{EINVAL, "the window is not one of this session: it was released, or never made"};
  if (!source_) return failure{ENOTSUP, "memory cannot be given to other processes without DMA channels: " + why_proxy_};
  if (found->second.device.bound && (window.dma % kGranuleBytes != 0 || window.size_bytes % kGranuleBytes != 0))
    return failure{EINVAL,
                   "a window for another process begins at a multiple of 64 KiB and has whole 64 KiB: make such a one"};
  return dma::export_region(found->second.device.bound ? found->second.device.bound : found->second.host);
}

result<session::shared_memory> session::share(address_range memory) const {
  if (!source_) return failure{ENOTSUP, "memory cannot be given to other processes without DMA channels: " + why_proxy_};
  auto found = bind_device(memory);
  if (!found) return found.error();
  auto region = dma::export_region(found->bound);  // which keeps the memory
  if (!region) return region.error();
  return shared_memory{std::move(*region), memory.begin % kGranuleBytes};
}

// With the lock held; its end: there is none.
std::multimap<std::uint64_t, session::open_window>::iterator session::find_open(const peerlane_device_window& window) {
  auto [found, end] = windows_.equal_range(window.dma);
  while (found != end && found->second.size_bytes != window.size_bytes) ++found;
  return found == end ? windows_.end() : found;
}

status session::remove_window(const peerlane_device_window& window) {
  const failure unknown{EINVAL, "the window is not one of this session: it was released, or never made"};
  {
    const std::lock_guard hold(mutex_);
    if (find_open(window) == windows_.end()) return unknown;
  }
  // What was posted may use it. A ring that has ended does nothing any more.
  const std::uint64_t end_ns = monotonic_ns() + options_.ring.timeout_ns;
  for (const auto& one : rings_) {
    const std::uint64_t posted = one.queue->read().posted;
    for (auto now = one.queue->read(); !now.reason && now.completed < posted && monotonic_ns() < end_ns;
         now = one.queue->read())
      std::this_thread::sleep_for(std::chrono::microseconds(20));
  }
  open_window gone;  // ends outside of the lock
  const std::lock_guard hold(mutex_);
  const auto found = find_open(window);
  if (found == windows_.end()) return unknown;
  gone = std::move(found->second);
  windows_.erase(found);
  return {};
}

void session::choose_engines() {
  const auto engines = dma::engines_for_rings(source_->addresses->objects());
  for (unsigned i = 0; i < options_.rings; ++i) engines_.push_back(engines[(options_.first_engine + i) % engines.size()]);
}

// One for each engine that has a ring. All or none: a ring without one needs the short naps.
void session::open_events() {
  for (const unsigned engine : std::set(engines_.begin(), engines_.end())) {
    auto made = dma::completion_event::open(source_->addresses, engine);
    if (!made) {
      PL_LOG(info, "the thread that refills rings looks at them again and again: %s", made.error().message.c_str());
      return events_.clear();
    }
    events_.push_back(*std::move(made));
  }
}

session::activity session::counts() const noexcept {
  return {rounds_.load(std::memory_order_relaxed), interrupts_.load(std::memory_order_relaxed), !events_.empty()};
}

std::chrono::microseconds session::nap(std::uint64_t idle_ns) const {
  if (!events_.empty()) return idle_ns < kRestAfterNs ? kWokenSleep : kWokenRestSleep;
  if (source_) return idle_ns < kIdleAfterNs ? kBusySleep : idle_ns < kRestAfterNs ? kIdleSleep : kRestSleep;
  if (idle_ns < kProxyIdleAfterNs) return {};
  return idle_ns < kRestAfterNs ? kProxyIdleSleep : kProxyRestSleep;
}

// Until an interrupt, the end, or the limit. Interrupts are forgotten before the rings are looked at again, so none is lost.
void session::rest(std::chrono::microseconds limit) {
  const timespec nap{static_cast<time_t>(limit.count() / 1'000'000), static_cast<long>(limit.count() % 1'000'000 * 1000)};
  if (ppoll(sleeps_for_.data(), sleeps_for_.size(), &nap, nullptr) > 0) interrupts_.fetch_add(1, std::memory_order_relaxed);
  for (const auto& one : events_) one->clear();
}

void session::run() {
  pthread_setname_np(pthread_self(), "peerlane-rings");
  std::uint64_t last_work_ns = monotonic_ns();
  while (!is_over_.load(std::memory_order_acquire)) {
    bool has_work = false;
    for (const auto& one : rings_) has_work |= one.queue->refill();
    rounds_.fetch_add(1, std::memory_order_relaxed);
    const std::uint64_t now_ns = monotonic_ns();
    if (has_work) last_work_ns = now_ns;
    const auto limit = nap(now_ns - last_work_ns);
    if (limit.count() == 0) std::this_thread::yield();
    else rest(limit);
  }
}

}  // namespace pl::device
