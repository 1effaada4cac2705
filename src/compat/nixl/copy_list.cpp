// SPDX-License-Identifier: Apache-2.0
#include "compat/nixl/copy_list.hpp"

#include <algorithm>
#include <cerrno>
#include <thread>

#include "arch/copy_dispatch.hpp"
#include "base/checked_math.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "copy/block_order.hpp"

namespace pl::nixl {
namespace {

constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 31;
constexpr std::uint64_t kTimeoutNs = 10'000'000'000;
constexpr std::uint64_t kSlowestBytesPerUs = 100;
// Up to here the CPU stores, and loads: 1 KiB of loads takes 1.1 us, each further one a round trip more
// (docs/results/envelope).
constexpr std::uint64_t kStoredBytes = 2048, kLoadedBytes = 1024;
constexpr unsigned kTestsBetweenChecks = 256;  // whether the channel has failed costs more to ask

using kind = memory::kind;

const char* name_of(kind memory_kind) {
  switch (memory_kind) {
    case kind::host:
      return "host memory";
    case kind::device:
      return "GPU memory";
    case kind::foreign_host:
      return "another process's host memory";
    case kind::out_of_reach:
      break;
  }
  return "memory out of reach";
}

}  // namespace

void copy_list::keep(const std::shared_ptr<memory>& used) {
  if (!used_.empty() && used_.back() == used) return;
  if (std::find(used_.begin(), used_.end(), used) == used_.end()) used_.push_back(used);
}

copy_list::queued& copy_list::queue_for(const std::shared_ptr<gpu_queues>& gpu, path way) {
  for (queued& one : queues_)
    if (one.way == way && one.gpu == gpu) return one;
  queues_.push_back({gpu, way, {}, {}, false});
  return queues_.back();
}

result<copy_list::place> copy_list::find(cursor& last, const side& wanted, std::uint64_t offset,
                                         const std::shared_ptr<gpu_queues>& gpu) {
  const bool is_same = last.in == wanted.in.get() && last.gpu == gpu.get();
  const std::uint64_t pointer = wanted.address + offset;
  if (!is_same || pointer - last.found.begin >= last.found.size_bytes) {
    auto found = wanted.in->find(gpu, pointer);
    if (!found) return found.error();
    last = {wanted.in.get(), gpu.get(), *found};
    keep(wanted.in);
  }
  const std::uint64_t inside = pointer - last.found.begin;
  return place{last.found.address + inside, last.found.size_bytes - inside};
}

status copy_list::add(const side& destination, const side& source, std::uint64_t size_bytes, int peer) {
  if (!destination.in->contains(destination.address, size_bytes) || !source.in->contains(source.address, size_bytes))
    return failure{EINVAL, "a descriptor leaves the memory that was registered"};
  const kind target_kind = destination.in->type(), source_kind = source.in->type();
  short_ = {};
  if (copies_++ == 0 && target_kind == kind::device && source_kind == kind::host && size_bytes <= kStoredBytes)
    short_ = {destination.in.get(), destination.address, source.address, nullptr, false, true};
  else if (copies_ == 1 && target_kind == kind::host && source_kind == kind::device && size_bytes <= kLoadedBytes)
    short_ = {source.in.get(), source.address, destination.address, nullptr, true, true};
  if (target_kind != kind::device && source_kind != kind::device) return add_by_cpu(destination, source, size_bytes, peer);
  // Between two GPUs the sender's engine works: lists are quicker so.
  const bool is_between =
      target_kind == kind::device && source_kind == kind::device && source.in->gpu() != destination.in->gpu();
  const std::shared_ptr<gpu_queues>& gpu =
      target_kind == kind::device && !is_between ? destination.in->gpu() : source.in->gpu();
  queued& queue = queue_for(gpu, is_between ? path::to_peer : target_kind == kind::device ? path::to_device : path::to_host);
  queue.is_in_order = false;
  size_bytes_ += size_bytes;
  for (std::uint64_t done = 0; done < size_bytes;) {
    const auto written = find(destination_, destination, done, gpu);
    if (!written) return written.error();
    const auto read = find(source_, source, done, gpu);
    if (!read) return read.error();
    const std::uint64_t bytes = std::min({written->size_bytes, read->size_bytes, size_bytes - done, kMaxBlockBytes});
    dma::block* const last = queue.blocks.empty() ? nullptr : &queue.blocks.back();
    if (last != nullptr && last->destination + last->size_bytes == written->address &&
        last->source + last->size_bytes == read->address && last->size_bytes + bytes <= kMaxBlockBytes)
      last->size_bytes += static_cast<std::uint32_t>(bytes);  // it goes on where the last one ended
    else queue.blocks.push_back({written->address, read->address, static_cast<std::uint32_t>(bytes)});
    done += bytes;
  }
  return {};
}

status copy_list::add_by_cpu(const side& destination, const side& source, std::uint64_t size_bytes, int peer) {
  const kind target_kind = destination.in->type(), source_kind = source.in->type();
  const bool is_foreign = target_kind == kind::foreign_host || source_kind == kind::foreign_host;
  const bool is_known = (target_kind == kind::host || target_kind == kind::foreign_host) &&
                        (source_kind == kind::host || source_kind == kind::foreign_host);
  if (!is_known || (target_kind == kind::foreign_host && source_kind == kind::foreign_host) || (is_foreign && peer == 0))
    return failure{ENOTSUP, format("there is no method to copy from %s to %s", name_of(source_kind), name_of(target_kind))};
  keep(destination.in);
  keep(source.in);
  by_cpu_.peer = is_foreign ? peer : 0;
  by_cpu_.is_peer_written = target_kind == kind::foreign_host;
  by_cpu_.add(destination.address, source.address, size_bytes);
  size_bytes_ += size_bytes;
  return {};
}

std::uint64_t copy_list::time_limit_ns() const noexcept { return kTimeoutNs + size_bytes_ / kSlowestBytesPerUs * 1000; }

// Stores and loads through BAR1: no engine has to fetch a command, and it is done on return.
bool copy_list::move_shortly() {
  if (short_.mapped == nullptr) {
    short_.mapped = short_.on_device->find_mapping(short_.device_address, size_bytes_);
    short_.is_wanted = short_.mapped != nullptr;
    if (!short_.is_wanted) return false;
  }
  auto* const on_host = reinterpret_cast<void*>(short_.host_address);
  if (short_.is_read) arch::copy_from(arch::mapping_type::wc, on_host, short_.mapped, size_bytes_);
  else arch::copy_to(arch::mapping_type::wc, short_.mapped, on_host, size_bytes_);
  return true;
}

// Sorts by place in host memory (copy/block_order.hpp), once for all runs of the list.
void copy_list::queued::put_in_order() {
  if (is_in_order || blocks.empty() || way == path::to_peer) return;
  is_in_order = true;
  const auto host_page = [this](std::size_t i) {
    return (way == path::to_host ? blocks[i].destination : blocks[i].source) / kHostPageBytes;
  };
  std::uint64_t size_bytes = 0, least = UINT64_MAX, last = 0;
  for (std::size_t i = 0; i < blocks.size(); ++i) {
    size_bytes += blocks[i].size_bytes;
    least = std::min(least, host_page(i));
    last = std::max(last, host_page(i));
  }
  if (last - least > UINT32_MAX || !copy::block_order::helps(blocks.size(), size_bytes / blocks.size(), host_page)) return;
  copy::block_order order;
  const auto sorted = order.sort(0, blocks.size(), [&](std::size_t i) {
    return copy::block_order::entry{static_cast<std::uint32_t>(host_page(i) - least), static_cast<std::uint32_t>(i)};
  });
  std::vector<dma::block> in_order;
  in_order.reserve(blocks.size());
  for (const auto& one : sorted) in_order.push_back(blocks[one.tag]);
  blocks = std::move(in_order);
}

status copy_list::begin() {
  if (short_.is_wanted && move_shortly()) return {};
  begun_ns_ = monotonic_ns();
  for (queued& one : queues_) {
    one.put_in_order();
    auto begun = one.gpu->submit(one.way, one.blocks);
    if (!begun) {
      end();
      return begun.error();
    }
    one.begun = *std::move(begun);
  }
  if (!by_cpu_.moves.empty()) {
    cpu_run_ = std::make_shared<cpu_mover::run>();
    cpu_run_->list = &by_cpu_;
    mover_->begin(cpu_run_);
  }
  return {};
}

result<bool> copy_list::test() {
  for (queued& one : queues_) {
    dma::channel* const channel = one.begun.channel.get();
    if (channel == nullptr) continue;
    if (!channel->is_done(one.begun.number)) {
      if (++tests_ % kTestsBetweenChecks != 0) return false;
      channel->ring();  // who only tests must not wait for ever for a doorbell that the engine has missed
      auto fault = channel->fault();
      if (!fault && monotonic_ns() - begun_ns_ > time_limit_ns())
        fault = failure{ETIMEDOUT, "the copy engine does not end the copies"};
      if (!fault) return false;
      one.gpu->drop(one.begun.channel);
      end();
      return *fault;
    }
    one.begun = {};
  }
  if (cpu_run_ != nullptr) {
    if (!cpu_run_->is_done.load(std::memory_order_acquire)) return false;
    const status outcome = cpu_run_->outcome;
    cpu_run_.reset();
    if (!outcome) return outcome.error();
  }
  return true;
}

void copy_list::end() noexcept {
  for (queued& one : queues_) {
    if (one.begun.channel == nullptr) continue;
    if (!one.begun.channel->wait(one.begun.number, time_limit_ns())) one.gpu->drop(one.begun.channel);
    one.begun = {};
  }
  if (cpu_run_ != nullptr) {
    cpu_run_->is_cancelled.store(true, std::memory_order_relaxed);
    while (!cpu_run_->is_done.load(std::memory_order_acquire)) std::this_thread::yield();
    cpu_run_.reset();
  }
}

}  // namespace pl::nixl
