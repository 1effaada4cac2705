// SPDX-License-Identifier: Apache-2.0
// DMA channels in the order of CUDA streams, without CUDA copies and without a CPU. A copy that waits for a stream is
// in a channel behind a semaphore that the stream writes (the channel is *armed*). A stream that waits for a copy waits
// for a word that the channel writes after it.
//
//   stream:   ... kernel | write go = k |            ...  | wait done >= k | kernel ...
//   channel:               acquire go >= k | copies | done = k
//
// An armed channel takes nothing else until its stream has reached that point, so these channels are separate from
// those of other copies, and each serves one stream at a time. If all wait for other streams, the caller takes another
// path: nothing ever waits for a stream that it did not name. docs/ordering-copies.md argues why this cannot deadlock.
//
// A thread monitors what is outstanding, every 20 ms. If the GPU has ended a channel or no longer finishes copies, or
// the context of the stream is gone, the channel is stopped (it touches no memory any more), its copies fail, and the
// CPU writes the word, so that streams which wait for it continue.
//
// Thread-safe. Belongs to the process that made it.
#pragma once

#include <array>
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <thread>
#include <vector>

#include "copy/channel_source.hpp"
#include "copy/gpu_context.hpp"
#include "copy/stream_words.hpp"
#include "copy/time_limit.hpp"
#include "dma/channel.hpp"

namespace pl::copy {

class stream_order {
 public:
  // Channels that may wait for streams at once; each takes 2 MiB of GPU memory and 5 ms at its first use.
  static constexpr std::size_t kChannels = 4;
  static constexpr std::size_t kPlainChannels = 5;  // that never wait, and that streams can wait for
  // Limit of what may wait in one channel: half the room of its ring, so that adding more never waits for the stream.
  static constexpr std::size_t kMaxBlocks = 16384, kMaxCopies = 256;

  stream_order(const gpu_context& context, const channel_source& source) : context_(context), source_(source) {}
  // Stops the channels. Streams that wait for their words continue.
  ~stream_order();
  stream_order(const stream_order&) = delete;
  stream_order& operator=(const stream_order&) = delete;

  // A channel whose end streams can wait for, with the copies in it that wait for a stream.
  class channel;

  // Copies behind a stream.
  struct place {
    std::shared_ptr<channel> armed;
    std::shared_ptr<dma::channel> queue;  // the channel's queue
    std::uint32_t go = 0, done = 0;       // values of the two words
    dma::sequence number = 0;
  };
  // Queues the blocks behind what `after` has queued so far; null: the default stream of the thread's current context.
  // EBUSY: the stream is being captured into a graph. EAGAIN: all channels wait for other streams, there are too many
  // blocks, or the monitoring thread cannot be started. ENOTSUP: CUDA has no stream memory operations here. After a
  // failure nothing is queued.
  result<place> begin(cu::stream_t after, std::span<const dma::block> blocks);
  bool is_done(const place& asked) const noexcept;
  // Whether its channel has ended without it; reads only memory.
  bool has_failed(const place& asked) const noexcept;
  // Waits until it has ended: as long as the stream takes, and `timeout_ns` from there. EIO: the GPU ended the channel,
  // or the stream's context is gone. After a failure the channel is stopped.
  status wait(const place& asked, std::uint64_t timeout_ns);

  // `stream` waits, on the GPU, for the copies: those of an armed channel, or all that `queue` (one of kPlainChannels,
  // by `index`) has taken so far. EBUSY, ENOTSUP as begin().
  status make_wait(cu::stream_t stream, const place& asked);
  status make_wait(cu::stream_t stream, unsigned index, const std::shared_ptr<dma::channel>& queue);
  // Records `event`, of this context, after them. EINVAL: it is of another context.
  status record(cu::event_t event, const place& asked);
  status record(cu::event_t event, unsigned index, const std::shared_ptr<dma::channel>& queue);

 private:
  using clock_lock = std::unique_lock<std::mutex>;
  // What streams wait for after copies of a channel that never waits for a stream itself.
  struct plain_end {
    stream_words::line* done = nullptr;
    std::shared_ptr<dma::channel> queue;
    dma::sequence last = 0;  // the operation that writes the word
    stall_watch watch;
  };
  // A stream of ours, for events after a word.
  struct event_stream {
    cu::stream_t handle = nullptr;
    const stream_words::line* behind = nullptr;
    std::uint32_t turn = 0;
  };
  struct caller;  // the stream that the application names, and its context

  status open_words();
  std::uint64_t channel_address(const stream_words::line& line) const { return bound_.address() + line.offset; }
  std::shared_ptr<channel> find_channel(unsigned long long stream_id, std::size_t blocks);
  result<std::shared_ptr<channel>> open_channel();
  result<std::uint32_t> release_behind(unsigned index, const std::shared_ptr<dma::channel>& queue);
  status queue_wait(cu::stream_t stream, const stream_words::line& line, std::uint32_t turn);
  status record_behind(cu::event_t event, const stream_words::line& line, std::uint32_t turn);
  void give_up(channel& broken, failure reason);
  void monitor();
  bool poll_once();
  status start_search();

  const gpu_context context_;
  const channel_source& source_;

  mutable std::mutex mutex_;  // guards all that follows
  std::optional<failure> refusal_;
  std::unique_ptr<stream_words> words_;
  dma::region bound_;  // the words, as bound for channels
  std::array<std::shared_ptr<channel>, kChannels> armed_;
  std::array<plain_end, kPlainChannels> plain_;
  std::vector<event_stream> event_streams_;

  std::thread monitor_;
  std::condition_variable changed_;
  bool is_asleep_ = false, stops_ = false;
};

}  // namespace pl::copy
