// SPDX-License-Identifier: Apache-2.0
// Copies by DMA channels of our own (dma/channel.hpp): between device memory and pinned host memory, inside one GPU, and
// from one GPU to another. No CUDA call beside those that tell what an address is, no kernel, no thread of the GPU.
//
// One engine for each CUDA context; channels are opened at their first copy (5 ms): one for each direction, so that both
// directions of the link run at once, and one more for each direction's bulk lists, so that a short copy does not wait
// behind a gigabyte. A channel that ends by a fault is opened anew at the next copy.
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
#include "copy/patience.hpp"
#include "copy/spin_lock.hpp"
#include "copy/stream_order.hpp"
#include "copy/transfer.hpp"
#include "dma/arrival_buffer.hpp"
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

  // What the driver says of the addresses of a transfer. `host` for to_device and to_host, `source` for on_device; one of
  // two memories is of the engine's GPU.
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

    bool is_done() const noexcept {
      return queue_ == nullptr || (queue_->is_done(number_) && (helper_ == nullptr || helper_->is_done(helper_number_)));
    }
    // Whether it has ended, with its outcome; asks the channel's notifier now and then. Does not block.
    result<bool> test();
    // A descriptor that becomes readable when the copies have ended, by the GPU's interrupt; test() looks, whenever it has.
    // The operation's until it is destroyed. ENOTSUP, EMFILE: there is none.
    result<int> make_descriptor();
    int descriptor() const noexcept { return event_ != nullptr ? event_->descriptor() : -1; }
    // EIO: the GPU ended the channel, with its reason; ETIMEDOUT: it does not answer. The channel is stopped then: the copy
    // touches no memory any more. Behind a stream: as long as that takes.
    status wait();
    // `stream` waits for it on the GPU; `event` is recorded behind it (stream_order.hpp has the errors).
    status make_wait(cu::stream_t stream) const;
    status record(cu::event_t event) const;

   private:
    friend class dma_engine;
    status wait_for(std::uint64_t timeout_ns);
    // What is queued behind the copies must not overtake those of the helper.
    status join() const;
    bool has_failed() const { return queue_->fault() || (helper_ != nullptr && helper_->fault()); }

    dma_engine* owner_ = nullptr;
    std::shared_ptr<dma::channel> queue_;
    unsigned index_ = 0;  // of queue_ in the owner's channels
    // What carries every other part of a long list, and its last part.
    std::shared_ptr<dma::channel> helper_;
    dma::sequence helper_number_ = 0;
    stream_order::place behind_;  // if it waits for a stream
    dma::sequence number_ = 0;
    std::uint64_t size_bytes_ = 0;
    unsigned tests_ = 0;
    stall_watch watch_;
    std::array<channel_memory::piece, 2> first_;  // what most copies need
    std::vector<channel_memory::piece> more_;
    std::unique_ptr<dma::completion_event> event_;
  };

  // Gives back what is bound and not used by a copy.
  void trim() { memory_.trim(); }

  // What the first list in this memory would wait for: its pages are bound, and the channels of bulk lists are opened. The
  // memory is all of one allocation that `host` tells of. Returns the bytes that were not bound before. Errors as begin's.
  result<std::uint64_t> prepare(const host_memory& host, std::uint64_t pointer, std::uint64_t size_bytes);

  // Queues a copy. ENOTSUP: not for this memory; EIO, ETIMEDOUT: the channel. Nothing is queued after a failure.
  result<operation> begin(const transfer& transfer, const sides& ends);

  // A linear copy to any host memory, through pinned memory of ours from which the CPU copies each line as it arrives. All
  // is there on return. EAGAIN: other threads have all of that memory; ENOTSUP: not for this memory; EIO, ETIMEDOUT: the
  // channel.
  status read(const transfer& transfer, const cu::pointer_info& device);
  // Any number of bytes of one value. Errors as begin's.
  result<operation> begin_fill(std::uint64_t pointer, std::uint8_t value, std::uint64_t size_bytes,
                               const cu::pointer_info& device);

  // Which of a direction's channels: that of short copies, or that of lists which keep the link busy for long; between GPUs
  // the only one.
  enum class queue_kind : std::uint8_t { quick, bulk, helper, peer };

  // Parts of one linear copy between device memory and a buffer of ours: an engine as ring_job.hpp wants it. Thread-safe.
  class part_queue {
   public:
    using ticket = dma::sequence;
    // One side lies in the buffer, the other in the device memory. EIO, ETIMEDOUT: the channel.
    result<ticket> submit(const transfer& part);
    // After a failure the channel is stopped.
    status wait(ticket queued);

   private:
    friend class dma_engine;
    dma_engine* owner_ = nullptr;
    std::shared_ptr<dma::channel> queue_;
    std::uint64_t device_begin_ = 0;
    std::vector<channel_memory::piece> pieces_;  // of the device memory, one behind the other
    std::uint64_t buffer_begin_ = 0, buffer_address_ = 0;
  };
  // `bound` is the buffer's (bind_own). ENOTSUP: not for this memory.
  result<part_queue> begin_parts(const transfer& whole, const cu::pointer_info& device, const std::byte* buffer,
                                 const dma::region& bound);
  // Memory of ours that channels reach while the region lives; whole pages. EFAULT: it cannot be pinned.
  result<dma::region> bind_own(void* memory, std::size_t size_bytes) {
    return source_.addresses->bind_host(memory, size_bytes);
  }

  // A list of copies of one direction, which must not overlap. Pieces are added, then submitted; the engine begins with the
  // first while later ones are added. One that is dropped waits for what has begun.
  class list {
   public:
    list(dma_engine& owner, direction way, queue_kind kind = queue_kind::quick)  // room_ stays as it is
        : owner_(owner), way_(way), kind_(kind) {}
    list(const list&) = delete;
    list& operator=(const list&) = delete;
    // What `ends` tells must hold for all bytes. Memory is looked up once for every 256 MiB of an allocation. Errors as
    // begin's.
    status add(const transfer& transfer, const sides& ends);
    status add(std::uint64_t destination, std::uint64_t source, std::uint64_t size_bytes, const sides& ends);
    // Many pieces in a few ns each: destination(i), source(i) and size(i) tell the piece i, for each i below `count`, all of
    // memory that `ends` tells of. `may_join`: pieces that go on where the one before ended, on both sides, are one copy.
    template <class Destination, class Source, class Size>
    status add_all(std::size_t count, bool may_join, const sides& ends, Destination destination, Source source, Size size);
    // What was added begins now; without it, some hundred pieces may wait for others. Not where gather() was called.
    status give() { return commands_.is_empty() ? status() : flush(false); }
    result<operation> submit();
    // Nothing begins before submit_behind(), which stands for submit() then; at most stream_order::kMaxBlocks (ENOTSUP).
    void gather() noexcept { gathers_ = true; }
    // Behind what `stream` has queued so far. Errors: stream_order::begin.
    result<operation> submit_behind(cu::stream_t stream);

   private:
    friend class dma_engine;
    static constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 31;
    // A list finds its memory again by 256 MiB of addresses, as much as one binding of host memory holds.
    static constexpr unsigned kWindowShift = 28;
    static constexpr std::size_t kWindows = 1024;  // whose bindings a list remembers; more than that are looked up again
    struct binding {
      address_range pointers;
      std::uint64_t address = 0;
    };
    // One side's memory, as the channels reach it.
    struct bound_side {
      binding last;
      std::vector<binding> by_window;  // once two were needed
      // The remembered binding that may hold the address.
      const binding& candidate(std::uint64_t pointer) const {
        return by_window.empty() ? last : by_window[(pointer >> kWindowShift) % kWindows];
      }
      // Makes the binding that holds all of the range the last one, if it is remembered.
      bool find(address_range asked) {
        if (last.pointers.contains(asked)) return true;
        if (by_window.empty()) return false;
        const binding& known = by_window[(asked.begin >> kWindowShift) % kWindows];
        if (!known.pointers.contains(asked)) return false;
        last = known;
        return true;
      }
      std::uint64_t address_of(std::uint64_t pointer) const { return last.address + (pointer - last.pointers.begin); }
    };
    // The address of `pointer` in the channels' space and the bytes from there that lie in one binding.
    // A list's first part is short, so that the engine begins early. The engine needs 75 ns for a block of 4 KiB and the CPU
    // some 20, so the next part may be four times as long; each costs the CPU 0.6 us (two fences and doorbells).
    static constexpr std::size_t kFirstWords = 32 * dma::command_writer::kBlockWords;
    static constexpr std::size_t kPartGrowth = 4;
    static constexpr std::size_t kMaxWords = 1024 * dma::command_writer::kBlockWords;
    result<std::pair<std::uint64_t, std::uint64_t>> find(unsigned side, const sides& ends, std::uint64_t pointer,
                                                         std::uint64_t size_bytes);
    status bind(unsigned side, const sides& given, std::uint64_t pointer, std::uint64_t size_bytes);
    void remember(unsigned side, std::uint64_t pointer, const binding& made);
    status flush(bool is_last);
    bool give_to_helper();
    // The size that the next block must have for the short way; no block has the one that stands for none.
    std::uint64_t size_in_commands() const {
      return gathers_ || commands_.size_bytes() == 0 ? UINT64_MAX : commands_.size_bytes();
    }

    dma_engine& owner_;
    const direction way_;
    const queue_kind kind_;
    std::array<bound_side, 2> sides_;  // destination and source
    operation begun_;                  // with what is kept for it
    std::array<std::uint32_t, kMaxWords + dma::command_writer::kCopyWords + dma::list_writer::kEndWords> room_;
    dma::list_writer commands_{room_.data()};
    std::size_t most_words_ = kFirstWords;  // that are gathered before they are given to the channel
    std::vector<dma::block> blocks_;        // in their place, if they wait for a stream
    bool gathers_ = false;
    unsigned parts_ = 0;  // that were given away
  };

 private:
  dma_engine(const gpu_context& context, channel_source source);
  result<std::shared_ptr<dma::channel>> channel_for(direction way, queue_kind kind);
  result<channel_memory::piece> find(bool is_host, const sides& ends, bool is_source, std::uint64_t pointer,
                                     std::uint64_t size_bytes);
  template <class Give>
  result<std::pair<std::shared_ptr<dma::channel>, dma::sequence>> submit(direction way, queue_kind kind, Give give);
  void forget(const std::shared_ptr<dma::channel>& broken) noexcept;
  status read_through(dma::arrival_buffer& buffer, const transfer& transfer, const cu::pointer_info& device);
  result<std::unique_ptr<dma::completion_event>> lend_event(unsigned engine);
  void take_back(std::unique_ptr<dma::completion_event> event) noexcept;

  gpu_context context_;
  const channel_source source_;
  channel_memory memory_;
  stream_order order_;
  spin_lock lock_;      // of the channels, for a few instructions
  std::mutex opening_;  // one thread at a time opens a channel
  // Quick: to the host, to the device and on it; bulk: likewise; to other GPUs; the helpers of bulk lists: as bulk.
  std::array<std::shared_ptr<dma::channel>, 7> channels_;
  std::atomic<bool> has_helpers_{false};
  struct arrival_slot {
    std::atomic<bool> is_lent{false};
    std::unique_ptr<dma::arrival_buffer> buffer;  // of who has it; made at its first use
  };
  std::array<arrival_slot, 4> arrivals_;
  std::mutex events_mutex_;
  std::vector<std::unique_ptr<dma::completion_event>> events_;  // not lent
};

template <class Destination, class Source, class Size>
status dma_engine::list::add_all(std::size_t count, bool may_join, const sides& ends, Destination destination, Source source,
                                 Size size) {
  // Copies, which stay in registers: for the compiler a store of commands may change members.
  binding written = sides_[0].last, read = sides_[1].last;
  std::uint32_t* next = commands_.next();
  std::uint64_t same_bytes = size_in_commands(), total = 0;
  const std::uint32_t* full = room_.data() + most_words_;
  for (std::size_t i = 0; i < count;) {
    const std::uint64_t target = destination(i), origin = source(i);
    std::uint64_t bytes = size(i);
    ++i;
    if (may_join)
      for (; i < count && destination(i) == target + bytes && source(i) == origin + bytes && bytes != 0 &&
             bytes < kMaxBlockBytes / 2 && size(i) < kMaxBlockBytes / 2 && size(i) != 0;
           ++i)
        bytes += size(i);
    if (!written.pointers.contains({target, bytes})) written = sides_[0].candidate(target);
    if (!read.pointers.contains({origin, bytes})) read = sides_[1].candidate(origin);
    if (bytes == same_bytes && next < full && written.pointers.contains({target, bytes}) &&
        read.pointers.contains({origin, bytes})) [[likely]] {
      next = dma::list_writer::put_block(next, written.address + (target - written.pointers.begin),
                                         read.address + (origin - read.pointers.begin));
      total += bytes;
      continue;
    }
    commands_.advance(next);
    if (auto added = add(target, origin, bytes, ends); !added) return added;
    next = commands_.next();
    same_bytes = size_in_commands();
    full = room_.data() + most_words_;
    written = sides_[0].last;
    read = sides_[1].last;
  }
  commands_.advance(next);
  begun_.size_bytes_ += total;
  return {};
}

}  // namespace pl::copy
