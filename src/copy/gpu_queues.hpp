// SPDX-License-Identifier: Apache-2.0
// The DMA channels of one GPU for memory that several processes reach (dma_memory.hpp): two in each direction, for
// short requests and for long lists, and one for transfers from or to other GPUs. Needs no CUDA. Thread-safe.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <span>
#include <tuple>

#include "copy/channel_source.hpp"
#include "dma/channel.hpp"

namespace pl::copy {

class gpu_queues {
 public:
  // to_device: also within the device. from_peer, to_peer: between the device and another GPU's memory that is bound
  // here.
  enum class path : std::uint8_t { to_host, to_device, from_peer, to_peer };

  static result<std::shared_ptr<gpu_queues>> open(std::shared_ptr<rm_space> space, const rm::gpu& gpu);

  struct ticket {
    std::shared_ptr<dma::channel> channel;
    dma::sequence number = 0;
  };
  // Submits blocks that do not overlap; they are complete when the ticket's number is done.
  result<ticket> submit(path way, std::span<const dma::block> blocks);
  // The same for memory of this GPU alone, where no flush is needed.
  result<ticket> submit_settled(path way, std::span<const dma::block> blocks);
  // One block of any size, for which a short request does not need a flush.
  result<ticket> copy(path way, std::uint64_t destination, std::uint64_t source, std::uint64_t size_bytes);
  result<std::shared_ptr<dma::channel>> channel_for(path way, bool is_short);
  // Stops a channel that has failed or does not answer, so that it touches no memory any more. The next submit opens
  // another.
  void drop(const std::shared_ptr<dma::channel>& broken) noexcept;
  // The same for a channel that others may still wait for: it is not stopped.
  void forget(const std::shared_ptr<dma::channel>& broken) noexcept;

  const rm::pci_address& pci() const noexcept { return pci_; }
  dma::address_space& addresses() noexcept { return *source_.addresses; }
  const channel_source& source() const noexcept { return source_; }

 private:
  gpu_queues(channel_source source, const rm::pci_address& pci) : source_(std::move(source)), pci_(pci) {}
  template <class Give>
  result<ticket> submit_one(path way, bool is_short, Give give);

  channel_source source_;
  const rm::pci_address pci_;
  std::mutex mutex_;
  std::array<std::shared_ptr<dma::channel>, 5> channels_;
};

// The GPUs of this process, opened when memory of them first appears.
class gpu_table {
 public:
  result<std::shared_ptr<gpu_queues>> find(const rm::pci_address& pci);
  // The GPU with this number in CUDA's numbering for this process.
  result<std::shared_ptr<gpu_queues>> find(const cu::driver_table& cuda, int device_ordinal);
  result<std::shared_ptr<rm_space>> space();

 private:
  result<std::shared_ptr<gpu_queues>> find_locked(const rm::gpu& gpu);

  std::mutex mutex_;
  std::shared_ptr<rm_space> space_;
  std::map<std::tuple<unsigned, unsigned, unsigned>, std::shared_ptr<gpu_queues>> gpus_;
};

}  // namespace pl::copy
