// SPDX-License-Identifier: Apache-2.0
// Copies by DMA channels of our own (dma/channel.hpp): between device memory and pinned host memory, and inside one GPU. No
// CUDA call beside those that tell what an address is, no kernel, no thread of the GPU.
//
// One engine for each CUDA context; one channel for each direction, opened at its first copy (5 ms), so that both
// directions of the link run at once. A channel that ends by a fault is opened anew at the next copy.
//
// Thread-safe. Belongs to the process that opened it.
#pragma once

#include <array>
#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "copy/channel_memory.hpp"
#include "copy/channel_source.hpp"
#include "copy/gpu_context.hpp"
#include "copy/spin_lock.hpp"
#include "copy/transfer.hpp"
#include "dma/channel.hpp"
#include "dma/completion_event.hpp"

namespace pl::copy {

class dma_engine {
 public:
  // ENOTSUP: no channels with this driver or GPU, MIG; EACCES, ENODEV, EIO: the device files, or the GPU does not answer.
  static result<std::unique_ptr<dma_engine>> open(const gpu_context& context);
  ~dma_engine();
  dma_engine(const dma_engine&) = delete;
  dma_engine& operator=(const dma_engine&) = delete;

  // What the driver says of the addresses of a transfer. `host` for to_device and to_host, `source` for on_device; both
  // memories of one GPU.
  struct sides {
    const cu::pointer_info* device = nullptr;
    const cu::pointer_info* source = nullptr;
    const host_memory* host = nullptr;
  };

  // Copies under way. Their memory stays bound until it ends, which waits for them. One thread at a time.
  class operation {
   public:
    operation() = default;
    operation(operation&& other) noexcept { *this = std::move(other); }
    operation& operator=(operation&& other) noexcept;
    ~operation();

    bool is_done() const noexcept { return queue_ == nullptr || queue_->is_done(number_); }
    // Whether it has ended, with its outcome; asks the channel's notifier now and then. Does not block.
    result<bool> test();
    // A descriptor that becomes readable when the copies have ended, by the GPU's interrupt; test() looks, whenever it has.
    // The operation's until it is destroyed. ENOTSUP, EMFILE: there is none.
    result<int> make_descriptor();
    int descriptor() const noexcept { return event_ != nullptr ? event_->descriptor() : -1; }
    // EIO: the GPU ended the channel, with its reason; ETIMEDOUT: it does not answer. The channel is stopped then: the copy
    // touches no memory any more.
    status wait();

   private:
    friend class dma_engine;
    dma_engine* owner_ = nullptr;
    std::shared_ptr<dma::channel> queue_;
    dma::sequence number_ = 0;
    std::uint64_t size_bytes_ = 0;
    unsigned tests_ = 0;
    std::array<channel_memory::piece, 2> first_;  // what most copies need
    std::vector<channel_memory::piece> more_;
    std::unique_ptr<dma::completion_event> event_;
  };

  // Gives back what is bound and not used by a copy.
  void trim() { memory_.trim(); }

  // Queues a copy. ENOTSUP: not for this memory; EIO, ETIMEDOUT: the channel. Nothing is queued after a failure.
  result<operation> begin(const transfer& transfer, const sides& ends);

  // A list of copies of one direction, which must not overlap. Pieces are added, then submitted; the engine begins with the
  // first while later ones are added. One that is dropped waits for what has begun.
  class list {
   public:
    list(dma_engine& owner, direction way) : owner_(owner), way_(way) {}
    // Device memory is looked up once for neighbours in one allocation. Errors as begin's.
    status add(const transfer& transfer, const sides& ends);
    result<operation> submit();

   private:
    friend class dma_engine;
    // The address of `pointer` in the channels' space and the bytes from there that lie in one binding.
    result<std::pair<std::uint64_t, std::uint64_t>> find(unsigned side, bool is_host, const sides& ends,
                                                         std::uint64_t pointer, std::uint64_t size_bytes);
    struct binding {
      address_range pointers;
      std::uint64_t address = 0;
    };
    dma_engine& owner_;
    direction way_;
    std::array<binding, 2> last_;  // of the destination and the source
    status flush(bool is_last);
    operation begun_;  // with what is kept for it
    std::vector<dma::block> blocks_;
    std::size_t room_ = 64;  // blocks that are gathered before they are given to the channel
  };

 private:
  dma_engine(const gpu_context& context, channel_source source);
  result<std::shared_ptr<dma::channel>> channel_for(direction way);
  result<channel_memory::piece> find(bool is_host, const sides& ends, bool is_source, std::uint64_t pointer,
                                     std::uint64_t size_bytes);
  template <class Give>
  result<std::pair<std::shared_ptr<dma::channel>, dma::sequence>> submit(direction way, Give give);
  void forget(const std::shared_ptr<dma::channel>& broken) noexcept;
  result<std::unique_ptr<dma::completion_event>> lend_event(unsigned engine);
  void take_back(std::unique_ptr<dma::completion_event> event) noexcept;

  gpu_context context_;
  const channel_source source_;
  channel_memory memory_;
  spin_lock lock_;                                         // of the channels, for a few instructions
  std::mutex opening_;                                     // one thread at a time opens a channel
  std::array<std::shared_ptr<dma::channel>, 2> channels_;  // to the host; to the device and on it
  std::mutex events_mutex_;
  std::vector<std::unique_ptr<dma::completion_event>> events_;  // not lent
};

}  // namespace pl::copy
