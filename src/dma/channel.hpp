// SPDX-License-Identifier: Apache-2.0
// A DMA channel: Peerlane's own queue to one of the GPU's copy engines. To submit a copy, the CPU writes a few words into a
// ring in GPU memory and stores to a doorbell. The engine reports the end in a word of host memory (the completion word).
// This needs no CUDA call, no kernel and no thread.
//
//   host memory          GPU memory (written through BAR1)             copy engine
//   completion words <-- [ring of entries][user words][commands]  <--  fetches from get to put when the doorbell is rung
//
// Operations are numbered consecutively. By default, an operation sees what earlier operations wrote (`ordering`). The
// blocks of one list are moved in no particular order. Numbers have 64 bits here and 32 bits in completion words.
//
// Thread-safe; submitting takes a short lock. A forked child must not use the channel of its parent.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <vector>

#include "dma/address_space.hpp"
#include "dma/commands.hpp"
#include "os/unforked_pages.hpp"

namespace pl::dma {

using sequence = std::uint64_t;

// One block of a list. GPU addresses in the channel's address space.
struct block {
  std::uint64_t destination = 0, source = 0;
  std::uint32_t size_bytes = 0;
};

// Order of an operation with the operations before it and with readers of its data. Without a flush after the data, the
// completion word may arrive before the data, in host memory and in GPU memory: the word then only shows that the engine
// has begun to write the last bytes. A flush costs a round trip of the bus, about 1 us.
enum class ordering {
  none,          // operations may overlap; for independent operations
  none_flushed,  // the same, with a flush after each operation: its completion word shows that the data has arrived
  // As `none`, but a separate transfer writes the completion word. It begins when the earlier transfers have ended. Takes
  // 0.6 us less than a flush. Measurements show that the data then arrives before the word, in host memory and within a GPU
  // (docs/results/dma). Data for another GPU arrives later than the word (docs/design/0009-peer-memory.md).
  none_settled,
  waits,        // its first transfer begins when the transfers before it have ended
  flush_first,  // the same, with a flush before it
  flush_last,   // as `waits`, with a flush after each operation, before its completion word
};

struct channel_options {
  unsigned engine = 2;  // COPY<engine>; prefer those that do not share the graphics engine's runlist (copy_engines)
  ordering order = ordering::flush_last;  // of operations without an ordering of their own
  std::uint32_t ring_entries = 1024;      // submissions in progress; a power of two
  // GPU memory for entries and commands, a multiple of 2 MiB. Each block of a list takes 24 bytes until it is done; 44 if
  // its size differs from that of the block before it.
  std::uint64_t memory_bytes = std::uint64_t{2} << 20;
  // Time slice: how long it may use the engine while other channels wait for it. 0: the driver's, about a millisecond.
  std::uint32_t timeslice_us = 0;
};

class channel {
 public:
  // Errors: ENOTSUP (no such engine), ENOMEM, EACCES. Takes about 10 ms.
  static result<std::unique_ptr<channel>> open(std::shared_ptr<address_space> space, const channel_options& options);
  ~channel();
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;

  // Each returns the number of the operation. They block only while the ring is full. ETIMEDOUT: the engine makes no
  // progress. EIO: the channel has ended. Addresses are not checked: a wrong address ends this channel (and no other), which
  // the next wait reports. `order`: for this operation, instead of the channel's.
  result<sequence> copy(std::uint64_t destination, std::uint64_t source, std::uint64_t size_bytes,
                        std::optional<ordering> order = {});
  result<sequence> copy_rows(std::uint64_t destination, std::uint32_t destination_pitch, std::uint64_t source,
                             std::uint32_t source_pitch, std::uint32_t row_bytes, std::uint32_t rows,
                             std::optional<ordering> order = {});
  // Submits a list with one doorbell. Blocks must not overlap.
  result<sequence> copy_blocks(std::span<const block> blocks, std::optional<ordering> order = {});
  // The same with prepared commands, at most kMaxListWords. `list` is not empty; this call adds the commands that end it.
  // `order` is `none`, `none_flushed` or `none_settled`.
  static constexpr std::size_t kMaxListWords = 1u << 16;
  result<sequence> copy_blocks(list_writer& list, ordering order);
  // Fills memory with a 32-bit pattern; `size_bytes` is a multiple of 4.
  result<sequence> fill(std::uint64_t destination, std::uint32_t pattern, std::uint64_t size_bytes,
                        std::optional<ordering> order = {});
  // Fills any number of bytes at any address with one value.
  result<sequence> fill_bytes(std::uint64_t destination, std::uint8_t value, std::uint64_t size_bytes,
                              std::optional<ordering> order = {});
  // An operation without data that ends when all earlier writes are visible to everyone.
  result<sequence> flush();
  // All later operations wait until the 32-bit word at `address` has reached `payload` (cyclic comparison). `yields`: other
  // channels of the engine, such as CUDA's, run meanwhile; otherwise they wait until the time slice ends.
  result<sequence> acquire(std::uint64_t address, std::uint32_t payload, bool yields = false);
  // All later operations wait until an operation of another channel is done. Both channels have the same address space.
  result<sequence> wait_for(const channel& other, sequence number);
  // Stores `payload` at `address` when all earlier operations are done.
  result<sequence> release(std::uint64_t address, std::uint32_t payload);

  // Atomically adds `value` to the 32-bit word of GPU memory at `address` when all earlier operations are done. Not for host
  // memory, which would need atomic operations of PCIe.
  result<sequence> add(std::uint64_t address, std::uint32_t value);

  // Submits entries (ring_entry) whose commands the caller keeps elsewhere. The caller also keeps track of completion: fewer
  // than ring_entries may be in progress. After the first such call, the channel's own operations must not be used.
  void queue_entries(std::span<const std::uint64_t> entries);

  // An operation without data that ends with an interrupt of the engine when all earlier operations are done. The interrupt
  // wakes completion events (completion_event.hpp).
  result<sequence> interrupt();

  sequence completed() const noexcept;
  bool is_done(sequence number) const noexcept { return completed() >= number; }
  // Polls until the operation is done. ETIMEDOUT: the limit has passed. EIO: the channel has ended, with the driver's
  // reason.
  status wait(sequence number, std::uint64_t timeout_ns) const;
  // Why the channel has ended, from its error notifier or by stop(). Empty: it works.
  std::optional<failure> fault() const;
  // Ends the channel. After it returns, the channel accesses no memory, and operations in progress never complete. For a
  // caller that stops waiting and needs its memory back. Thread-safe; may be called repeatedly.
  void stop() noexcept;

  // Rings the doorbell again, in case the engine has missed it; harmless otherwise. For callers that wait for a long time.
  void ring() const noexcept;

  address_space& space() const { return *space_; }
  unsigned engine() const noexcept { return options_.engine; }

 private:
  static constexpr std::uint64_t kCommandsOffset = 0x20000;  // in the channel's own GPU memory

  channel(std::shared_ptr<address_space> space, const channel_options& options)
      : space_(std::move(space)), options_(options), commands_bytes_(options.memory_bytes - kCommandsOffset) {}
  status set_up();
  // Lock held: frees entries that are done, and finds contiguous room for `words` commands; may wait.
  status reserve(std::uint32_t words);
  void append(std::span<const std::uint32_t> commands);
  sequence submit();
  void add_entry(std::uint64_t entry);
  void publish_entries() const;  // publishes all added entries: position and doorbell
  std::size_t word_index(sequence number) const { return number & (options_.ring_entries - 1); }
  // GPU address of the completion word of the operation that is being built.
  std::uint64_t completion_address() const noexcept { return completion_address(submitted_ + 1); }
  std::uint64_t completion_address(sequence number) const noexcept;
  // Names it.
  void name_completion(command_writer& commands) const;
  // Follows the last transfer of an operation, which has end_flags.
  void settle(command_writer& commands, ordering order) const;
  template <class Build>
  result<sequence> submit_one(std::size_t max_words, std::optional<ordering> order, Build build);

  struct ring_slot {
    sequence number = 0;
    std::uint64_t commands_end = 0;
  };

  std::shared_ptr<address_space> space_;
  const channel_options options_;
  const std::uint64_t commands_bytes_;  // size of the ring of commands, which follows entries and user words
  address_space::own_memory memory_;
  unforked_pages completion_pages_;
  region completion_region_;
  rm::cpu_mapping cpu_view_, doorbell_view_;
  rm::channel_objects::channel_handles handles_;

  // What the CPU writes.
  std::byte* view_ = nullptr;
  std::uint32_t* doorbell_ = nullptr;
  const std::uint32_t* completions_ = nullptr;  // one for each operation in progress: they may arrive in any order
  const rm::notification* error_ = nullptr;
  std::atomic<bool> is_stopped_{false};
  mutable std::atomic<sequence> seen_{0};

  std::mutex mutex_;
  sequence submitted_ = 0;
  std::uint32_t put_ = 0;
  // Positions only grow; modulo the size of the ring, they are offsets.
  std::uint64_t commands_next_ = 0;                   // end of the submission being built
  std::uint64_t commands_free_ = 0;                   // the engine is done up to this position
  std::uint64_t begin_offset_ = 0, next_offset_ = 0;  // offsets in the ring: begin of the submission, and its next command
  std::vector<ring_slot> entries_;
  std::uint64_t entries_done_ = 0, entries_made_ = 0;
};

// Copy engines of a GPU in order of preference: first those with a runlist of their own. An engine that shares the graphics
// engine's runlist is slower and takes time from kernels. `only_independent`: omit such engines if there are two others.
std::vector<unsigned> copy_engines(rm::channel_objects& objects, bool only_independent = false);

// Copy engines in order of preference for rings of kernels (device_ring.hpp). Engines with a runlist of their own come
// first, in reverse order, because CUDA's copies use the first of them. Then follows at most one engine that shares the
// graphics engine's runlist. Channels of two such engines would share a runlist and alternate by time slice: three rings
// then made 1.5 to 2.0 million puts a second on an H100, instead of 12 to 13 (docs/results/device).
std::vector<unsigned> engines_for_rings(std::span<const unsigned> independent, std::span<const unsigned> shared);
std::vector<unsigned> engines_for_rings(rm::channel_objects& objects);

}  // namespace pl::dma
