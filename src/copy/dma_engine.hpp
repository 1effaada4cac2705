// SPDX-License-Identifier: Apache-2.0
// Copies by our own DMA channels (dma/channel.hpp): between device memory and pinned host memory, within one GPU, and
// from one GPU to another. They need no kernel, no thread of the GPU, and no CUDA call except those that classify
// addresses.
//
// There is one engine for each CUDA context. A channel is opened at its first copy (5 ms). Each direction has one, so
// that both directions of the link are used at once, and another for bulk lists, so that a short copy does not wait
// behind a gigabyte. A channel that a fault has ended is opened again at the next copy.
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
#include "copy/stream_order.hpp"
#include "copy/time_limit.hpp"
#include "copy/transfer.hpp"
#include "dma/arrival_buffer.hpp"
#include "dma/channel.hpp"
#include "dma/completion_event.hpp"

namespace pl::copy {

class dma_engine {
 public:
  // ENOTSUP: no channels with this driver or GPU, or MIG. EACCES, ENODEV, EIO: the device files, or the GPU does not
  // answer.
  static result<std::unique_ptr<dma_engine>> open(const gpu_context& context);
  ~dma_engine();
  dma_engine(const dma_engine&) = delete;
  dma_engine& operator=(const dma_engine&) = delete;

  // The driver's information about the addresses of a transfer: `host` for to_device and to_host, `source` for
  // on_device. One of the two memories belongs to the engine's GPU.
  struct sides {
    const cu::pointer_info* device = nullptr;
    const cu::pointer_info* source = nullptr;
    const host_memory* host = nullptr;
  };

  // Copies in progress. Their memory stays bound until end() or the destructor, which wait for them. One thread at a
  // time.
  class operation {
   public:
    operation() = default;
    operation(operation&& other) noexcept { *this = std::move(other); }
    operation& operator=(operation&& other) noexcept;
    ~operation();

    bool is_done() const noexcept {
      return queue_ == nullptr || (queue_->is_done(number_) && (helper_ == nullptr || helper_->is_done(helper_number_)));
    }
    // Whether it has ended, with its outcome; checks the channel's notifier now and then. Does not block.
    result<bool> test();
    // A descriptor that the GPU's interrupt makes readable when the copies have ended; call test() whenever it is. The
    // operation owns it. ENOTSUP, EMFILE: there is none.
    result<int> make_descriptor();
    int descriptor() const noexcept { return event_ != nullptr ? event_->descriptor() : -1; }
    // EIO: the GPU ended the channel, with its reason. ETIMEDOUT: the GPU does not answer. The channel is then stopped,
    // so the copy touches no memory any more. Behind a stream, waits as long as the stream takes.
    status wait();
    // make_wait: `stream` waits for the copies on the GPU. record: records `event` after them. Errors:
    // stream_order.hpp.
    status make_wait(cu::stream_t stream) const;
    status record(cu::event_t event) const;

   private:
    friend class dma_engine;
    status wait_for(std::uint64_t timeout_ns);
    // Work queued after the copies must not overtake those of the helper.
    status join() const;
    bool has_failed() const { return queue_->fault() || (helper_ != nullptr && helper_->fault()); }

    dma_engine* owner_ = nullptr;
    std::shared_ptr<dma::channel> queue_;
    unsigned index_ = 0;  // of queue_ among the owner's channels
    // The channel of every other part of a long list, and its last part.
    std::shared_ptr<dma::channel> helper_;
    dma::sequence helper_number_ = 0;
    stream_order::place behind_;  // set if it waits for a stream
    dma::sequence number_ = 0;
    std::uint64_t size_bytes_ = 0;
    unsigned tests_ = 0;
    stall_watch watch_;
    std::array<channel_memory::piece, 2> first_;  // enough for most copies
    std::vector<channel_memory::piece> more_;
    std::unique_ptr<dma::completion_event> event_;
  };

  // Removes bindings that no copy uses.
  void trim() { memory_.trim(); }
  // Also closes the channels, of some 2 to 8 MiB each, as soon as no copy uses them. A later copy opens them again.
  void release();

  // Does in advance what the first list in this memory would wait for: binds its pages and opens the channels of bulk
  // lists. All of the memory is in the allocation that `host` describes. Returns the bytes that were not bound before.
  // Errors: as begin().
  result<std::uint64_t> prepare(const host_memory& host, std::uint64_t pointer, std::uint64_t size_bytes);

  // Queues a copy. ENOTSUP: not for this memory. EIO, ETIMEDOUT: the channel. After a failure nothing is queued.
  result<operation> begin(const transfer& transfer, const sides& ends);

  // A linear copy to any host memory, through our own pinned memory, from which the CPU copies each line as it arrives.
  // Complete on return. EAGAIN: other threads use all of that memory. ENOTSUP: not for this memory. EIO, ETIMEDOUT: the
  // channel.
  status read(const transfer& transfer, const cu::pointer_info& device);
  // Fills any number of bytes with one value. Errors: as begin().
  result<operation> begin_fill(std::uint64_t pointer, std::uint8_t value, std::uint64_t size_bytes,
                               const cu::pointer_info& device);

  // Which of a direction's channels: that of short copies, or that of lists which keep the link busy for long. Between
  // GPUs there is only one.
  enum class queue_kind : std::uint8_t { quick, bulk, helper, peer };

  // Parts of one linear copy between device memory and a buffer of ours: an engine as ring_job.hpp requires.
  // Thread-safe.
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
    std::vector<channel_memory::piece> pieces_;  // of the device memory, in order
    std::uint64_t buffer_begin_ = 0, buffer_address_ = 0;
  };
  // `bound` is the buffer's region (bind_own). ENOTSUP: not for this memory.
  result<part_queue> begin_parts(const transfer& whole, const cu::pointer_info& device, const std::byte* buffer,
                                 const dma::region& bound);
  // Our own memory that channels reach while the region lives; whole pages. EFAULT: it cannot be pinned.
  result<dma::region> bind_own(void* memory, std::size_t size_bytes) {
    return source_.addresses->bind_host(memory, size_bytes);
  }

  // A list of copies of one direction, which must not overlap. Pieces are added, then submitted; the engine starts with
  // the first ones while later ones are added. Destroying a list waits for what has begun.
  class list {
   public:
    list(dma_engine& owner, direction way, queue_kind kind = queue_kind::quick)  // room_ stays as it is
        : owner_(owner), way_(way), kind_(kind) {}
    list(const list&) = delete;
    list& operator=(const list&) = delete;
    // `ends` must be valid for all bytes. Memory is looked up once for every 256 MiB of an allocation. Errors: as
    // begin().
    status add(const transfer& transfer, const sides& ends);
    status add(std::uint64_t destination, std::uint64_t source, std::uint64_t size_bytes, const sides& ends);
    // Adds many pieces in a few ns each: destination(i), source(i) and size(i) give piece i, for each i below `count`;
    // all are in memory that `ends` describes. `may_join`: a piece that continues the previous one on both sides is
    // merged with it.
    template <class Destination, class Source, class Size>
    status add_all(std::size_t count, bool may_join, const sides& ends, Destination destination, Source source, Size size);
    // Starts what was added; otherwise several hundred pieces may wait for others. Not after gather().
    status give() { return commands_.is_empty() ? status() : flush(false); }
    result<operation> submit();
    // Starts nothing before submit_behind(), which then replaces submit(). At most stream_order::kMaxBlocks (ENOTSUP).
    void gather() noexcept { gathers_ = true; }
    // Submits behind what `stream` has queued so far. Errors: stream_order::begin.
    result<operation> submit_behind(cu::stream_t stream);

   private:
    friend class dma_engine;
    static constexpr std::uint64_t kMaxBlockBytes = std::uint64_t{1} << 31;
    // A list looks its memory up by 256 MiB of addresses, as much as one binding of host memory covers.
    static constexpr unsigned kWindowShift = 28;
    static constexpr std::size_t kWindows = 1024;  // whose bindings a list remembers; others are looked up again
    struct binding {
      address_range pointers;
      std::uint64_t address = 0;
    };
    // One side's memory, as the channels reach it.
    struct bound_side {
      binding last;
      std::vector<binding> by_window;  // used once two were needed
      // The remembered binding that may contain the address.
      const binding& candidate(std::uint64_t pointer) const {
        return by_window.empty() ? last : by_window[(pointer >> kWindowShift) % kWindows];
      }
      // Makes the binding that contains the whole range the last one. Returns false if none is remembered.
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
    // The address of `pointer` in the channels' space, and the bytes from there that lie in one binding. A list's first
    // part is short, so that the engine starts early. The engine needs 75 ns for a block of 4 KiB and the CPU about 20,
    // so the next part may be four times as long; each costs the CPU 0.6 us (two fences and doorbells).
    static constexpr std::size_t kFirstWords = 32 * dma::command_writer::kBlockWords;
    static constexpr std::size_t kPartGrowth = 4;
    static constexpr std::size_t kMaxWords = 1024 * dma::command_writer::kBlockWords;
    result<std::pair<std::uint64_t, std::uint64_t>> find(unsigned side, const sides& ends, std::uint64_t pointer,
                                                         std::uint64_t size_bytes);
    status bind(unsigned side, const sides& given, std::uint64_t pointer, std::uint64_t size_bytes);
    void remember(unsigned side, std::uint64_t pointer, const binding& made);
    status flush(bool is_last);
    bool give_to_helper();
    // The size that the next block must have for the fast path. The value for "none" is the size of no block.
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
    std::size_t most_words_ = kFirstWords;  // collected before they are passed to the channel
    std::vector<dma::block> blocks_;        // used instead if they wait for a stream
    bool gathers_ = false;
    unsigned parts_ = 0;  // parts that were passed on
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
  result<std::unique_ptr<dma::completion_event>> lease_event(unsigned engine);
  void take_back(std::unique_ptr<dma::completion_event> event) noexcept;

  gpu_context context_;
  const channel_source source_;
  channel_memory memory_;
  stream_order order_;
  spin_lock lock_;                        // guards the channels, for a few instructions
  std::mutex opening_;                    // lets one thread at a time open a channel
  std::uint64_t no_memory_until_ns_ = 0;  // guarded by opening_
  // Quick: to the host, to the device, on the device; bulk: the same; to other GPUs; helpers of bulk lists: as bulk.
  std::array<std::shared_ptr<dma::channel>, 7> channels_;
  std::atomic<bool> has_helpers_{false};
  struct arrival_slot {
    std::atomic<bool> is_leased{false};
    std::unique_ptr<dma::arrival_buffer> buffer;  // of the thread that has it; allocated at first use
  };
  std::array<arrival_slot, 4> arrivals_;
  std::mutex events_mutex_;
  std::vector<std::unique_ptr<dma::completion_event>> events_;  // not lent out
};

template <class Destination, class Source, class Size>
status dma_engine::list::add_all(std::size_t count, bool may_join, const sides& ends, Destination destination, Source source,
                                 Size size) {
  // Local copies, which stay in registers: for the compiler, a store of commands may change members.
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
