// SPDX-License-Identifier: Apache-2.0
// A queue of our own to one of the GPU's copy engines: a copy is a few words into a ring in GPU memory and one store to a
// doorbell, its end one word in host memory. No CUDA call, no kernel, no thread.
//
//   host memory          GPU memory (written through BAR1)             copy engine
//   completion words <-- [ring of entries][user words][commands]  <--  fetches from get to put when the doorbell is rung
//
// Each operation has a number that grows by one. By default it sees what the operations before it wrote (`ordering`); the
// blocks of one list are moved in no order. Numbers are 64 bits here and 32 on the wire.
//
// Thread-safe; submitting takes a short lock. A channel belongs to the process that opened it: a forked child must not use
// it.
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

namespace pl::dma {

using sequence = std::uint64_t;

// One piece of a list: GPU addresses in the channel's address space.
struct block {
  std::uint64_t destination = 0, source = 0;
  std::uint32_t size_bytes = 0;
};

// What an operation does so that it sees what the operations before it wrote, and so that others see what it wrote. Without
// a flush behind it an operation's completion word may arrive before its bytes, in host memory and in GPU memory: it then
// says only that the engine has begun to write the last of them. The flush costs a round trip, about 1 us.
enum class ordering {
  none,          // operations may overlap: for independent ones
  none_flushed,  // the same, and a flush stands behind each operation: who sees its completion word may read what it wrote
  // As `none`; the completion word is written by a transfer of its own, which begins when the transfers before it have
  // ended. 0.6 us less than a flush. That bytes are there when the word is seen was measured (docs/results/dma) for the host
  // and within a GPU; bytes for another GPU come later than the word (docs/design/0009-peer-memory.md).
  none_settled,
  waits,        // its first transfer begins when the transfers before it have ended
  flush_first,  // and a flush stands before it
  flush_last,   // as `waits`, and a flush stands behind each operation, before its completion word
};

struct channel_options {
  unsigned engine = 2;  // COPY<engine>; those that share the graphics engine's runlist come last (copy_engines)
  ordering order = ordering::flush_last;  // of operations that name none
  std::uint32_t ring_entries = 1024;      // submissions under way, a power of two
  // GPU memory for entries and commands, a multiple of 2 MiB. A block of a list takes 24 bytes of it until it is done.
  std::uint64_t memory_bytes = std::uint64_t{2} << 20;
  // How long it may hold its engine while others want it; 0: as the driver says, about a millisecond.
  std::uint32_t timeslice_us = 0;
};

class channel {
 public:
  // Errors: ENOTSUP (no such engine), ENOMEM, EACCES. Takes about 10 ms.
  static result<std::unique_ptr<channel>> open(std::shared_ptr<address_space> space, const channel_options& options);
  ~channel();
  channel(const channel&) = delete;
  channel& operator=(const channel&) = delete;

  // Each returns the number of the operation. They block only while the ring is full; ETIMEDOUT: the engine takes nothing
  // any more; EIO: the channel has ended. Addresses are not checked: a wrong one ends this channel (and no other), which
  // waiting tells. `order`: for this operation, in place of the channel's.
  result<sequence> copy(std::uint64_t destination, std::uint64_t source, std::uint64_t size_bytes,
                        std::optional<ordering> order = {});
  result<sequence> copy_rows(std::uint64_t destination, std::uint32_t destination_pitch, std::uint64_t source,
                             std::uint32_t source_pitch, std::uint32_t row_bytes, std::uint32_t rows,
                             std::optional<ordering> order = {});
  // One doorbell for the whole list. Blocks must not overlap.
  result<sequence> copy_blocks(std::span<const block> blocks, std::optional<ordering> order = {});
  // The same of commands that are written already; `list` gets their end, and is not empty. At most kMaxListWords.
  // `order` is `none`, `none_flushed` or `none_settled`.
  static constexpr std::size_t kMaxListWords = 1u << 16;
  result<sequence> copy_blocks(list_writer& list, ordering order);
  // `size_bytes` of the 32-bit pattern, a multiple of 4.
  result<sequence> fill(std::uint64_t destination, std::uint32_t pattern, std::uint64_t size_bytes,
                        std::optional<ordering> order = {});
  // Any number of bytes of one value at any address.
  result<sequence> fill_bytes(std::uint64_t destination, std::uint8_t value, std::uint64_t size_bytes,
                              std::optional<ordering> order = {});
  // An operation that moves nothing and ends when what was written before is visible to everyone.
  result<sequence> flush();
  // Everything submitted later waits until the 32-bit word at `address` has reached `payload` (cyclic). `yields`: other
  // channels of the engine run meanwhile, CUDA's too; else they stand still until the engine's scheduler comes round.
  result<sequence> acquire(std::uint64_t address, std::uint32_t payload, bool yields = false);
  // Everything submitted later waits until that operation of another channel is done; both are of one address space.
  result<sequence> wait_for(const channel& other, sequence number);
  // Stores `payload` at `address` when all before is done.
  result<sequence> release(std::uint64_t address, std::uint32_t payload);

  // Adds `value` to the 32-bit word of GPU memory at `address` when all before is done, in one step: others may add to it at
  // the same time. Not for host memory, where that needs atomic operations of PCIe.
  result<sequence> add(std::uint64_t address, std::uint32_t value);

  // Entries (ring_entry) whose commands lie elsewhere and are somebody else's, as they are. The caller counts what is done:
  // fewer than ring_entries are under way. Once there are such, the channel's own operations must not be used any more.
  void queue_entries(std::span<const std::uint64_t> entries);

  // An operation that moves nothing of others' and ends with an interrupt of the engine, when all before it is done: it
  // wakes completion events (completion_event.hpp).
  result<sequence> interrupt();

  sequence completed() const noexcept;
  bool is_done(sequence number) const noexcept { return completed() >= number; }
  // Polls. ETIMEDOUT: not done by then. EIO: the channel ended before, with the driver's reason.
  status wait(sequence number, std::uint64_t timeout_ns) const;
  // Why the channel has ended, from its error notifier or by stop(); nothing while it works.
  std::optional<failure> fault() const;
  // Ends the channel: nothing of it reads or writes memory after this returns, and its operations that are not done never
  // will be. For who gives up waiting and wants its memory back. Any thread, any number of times.
  void stop() noexcept;

  // Rings the doorbell again, which heals one that the engine missed and costs nothing else. For who sleeps long.
  void ring() const noexcept;

  address_space& space() const { return *space_; }
  unsigned engine() const noexcept { return options_.engine; }

 private:
  static constexpr std::uint64_t kCommandsOffset = 0x20000;  // in the channel's own GPU memory

  channel(std::shared_ptr<address_space> space, const channel_options& options)
      : space_(std::move(space)), options_(options), commands_bytes_(options.memory_bytes - kCommandsOffset) {}
  status set_up();
  // With the lock held: forgets entries that are done, and finds room for `words` commands that lie in one piece; may wait.
  status reserve(std::uint32_t words);
  void append(std::span<const std::uint32_t> commands);
  sequence submit();
  void add_entry(std::uint64_t entry);
  void publish_entries() const;  // all that were added: position and doorbell
  std::size_t word_index(sequence number) const { return number & (options_.ring_entries - 1); }
  // Where the completion word of the operation lies that is being built, for the GPU.
  std::uint64_t completion_address() const noexcept { return completion_address(submitted_ + 1); }
  std::uint64_t completion_address(sequence number) const noexcept;
  // Names it.
  void name_completion(command_writer& commands) const;
  // Behind the last transfer of an operation, which has end_flags.
  void settle(command_writer& commands, ordering order) const;
  template <class Build>
  result<sequence> submit_one(std::size_t max_words, std::optional<ordering> order, Build build);

  struct ring_slot {
    sequence number = 0;
    std::uint64_t commands_end = 0;
  };

  std::shared_ptr<address_space> space_;
  const channel_options options_;
  const std::uint64_t commands_bytes_;  // of the ring of commands, behind entries and user words
  address_space::own_memory memory_;
  region completion_region_;
  void* completion_pages_ = nullptr;
  std::size_t completion_bytes_ = 0;
  rm::cpu_mapping cpu_view_, doorbell_view_;
  rm::channel_objects::channel_handles handles_;

  // What the CPU writes.
  std::byte* view_ = nullptr;
  std::uint32_t* doorbell_ = nullptr;
  const std::uint32_t* completions_ = nullptr;  // one word for each operation under way: their writes may change places
  const rm::notification* error_ = nullptr;
  std::atomic<bool> is_stopped_{false};
  mutable std::atomic<sequence> seen_{0};

  std::mutex mutex_;
  sequence submitted_ = 0;
  std::uint32_t put_ = 0;
  std::uint64_t commands_next_ = 0;  // of the submission being built: positions grow for ever, modulo the ring's size
  std::uint64_t commands_free_ = 0;  // up to here the engine is done
  std::uint64_t begin_offset_ = 0, next_offset_ = 0;  // the same in the ring: its begin, and where its next command goes
  std::vector<ring_slot> entries_;
  std::uint64_t entries_done_ = 0, entries_made_ = 0;
};

// Copy engines of a GPU in the order in which to use them: those with a runlist of their own first. `only_independent`: no
// other ones where there are two of these; what shares the graphics engine's runlist is slower and takes time from kernels.
std::vector<unsigned> copy_engines(rm::channel_objects& objects, bool only_independent = false);

// Copy engines in the order in which rings of kernels take them (device_ring.hpp), from those with a runlist of their own
// and those that share the graphics engine's. CUDA's copies use the first of the former, so the last one comes first. Of the
// latter there is one: channels of two share a runlist, take turns of a time slice, and three rings carried 1.5 to 2.0
// million puts a second on an H100 where they carry 12 to 13 (docs/results/device).
std::vector<unsigned> engines_for_rings(std::span<const unsigned> independent, std::span<const unsigned> shared);
std::vector<unsigned> engines_for_rings(rm::channel_objects& objects);

}  // namespace pl::dma
