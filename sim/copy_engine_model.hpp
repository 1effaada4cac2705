// SPDX-License-Identifier: Apache-2.0
// One DMA channel as its copy engine executes it: an interpreter of what a program puts into the ring. It keeps the rules
// that the hardware was seen to keep, the unfriendly ones first:
//   - commands are fetched when the doorbell rings, unless their entry says that all before must be executed (SYNC):
//     commands written later are not seen then, the stale ones are executed. What those before have copied may still be on
//     its way, also with SYNC;
//   - a pipelined copy reads its source at once and writes later, so it does not see what the copies before it write, those
//     of earlier operations included;
//   - writes of copies that may overlap arrive in any order (with a seed), and a completion word behind all writes that were
//     launched before it if a flush stands before it; without one it may overtake them by some microseconds (with a seed);
//   - what was written to another board's memory may arrive some milliseconds late (with a seed), also behind words that are
//     transfers of their own; a flush ends that, and a wait for the engine to be idle;
//   - a wrong address or a malformed command ends this channel and no other, with a record in its error notifier.
// What the model does not know (block-linear layouts, other remappings) ends the channel too: it never guesses.
//
// Not thread-safe: the resource manager's lock covers it.
#pragma once

#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "sim/channel_space.hpp"

namespace pl::sim {

// Numbers below the limit. Always 0: everything in order, and as late as the rules allow.
using random_source = std::function<std::uint64_t(std::uint64_t limit)>;

struct channel_settings {
  std::shared_ptr<channel_space> space;
  std::uint64_t ring_address = 0;
  std::uint32_t ring_entries = 0;
  channel_memory_ref user_words;
  std::uint64_t user_words_offset = 0;
  channel_memory_ref error_notifier;  // null: faults leave no record
  std::uint32_t copy_class = 0;
  std::uint32_t token = 0;
  random_source random;
  std::function<void()> interrupt;  // the engine's, for whoever asked for it; null: nobody
};

class copy_channel {
 public:
  enum fault_code : std::uint32_t { none = 0, mmu_fault = 31, bad_command = 32 };  // Xid numbers

  explicit copy_channel(channel_settings given) : settings_(std::move(given)) {}

  std::uint32_t token() const { return settings_.token; }
  bool is_dead() const { return fault_ != none; }
  fault_code fault() const { return fault_; }
  std::uint64_t pipelined_copies() const { return pipelined_; }
  // The address of an MMU fault; the question clears it.
  std::optional<std::uint64_t> take_fault_address();

  // The doorbell has rung: takes all entries up to the position, and their commands.
  void fetch();
  // Executes for about `budget_bytes` of copied data. False: there is nothing to do, or a semaphore holds the channel up.
  bool step(std::uint64_t budget_bytes);

 private:
  struct entry {
    std::uint64_t address = 0;
    std::uint32_t count = 0;
    bool is_fenced = false;
    std::vector<std::uint32_t> words;
  };
  struct pending_write {
    std::uint64_t address;
    std::vector<std::byte> bytes;
    std::optional<std::uint32_t> word;  // a completion word instead of bytes: what stands before it arrives before it
    bool interrupts = false;            // behind the word
  };
  struct transfer {
    std::uint64_t destination = 0, source = 0;
    std::uint32_t destination_pitch = 0, source_pitch = 0;
    std::uint64_t row_bytes = 0;
    std::uint32_t lines = 0;
    bool is_fill = false;
    std::uint32_t pattern = 0;
    std::uint32_t flags = 0;  // of its launch
    std::uint32_t line = 0;   // where it is
    std::uint64_t offset = 0;
  };
  enum class outcome { done, waits };
  enum class packet { incrementing, fixed, once };

  void end(fault_code code, std::uint64_t address = 0);
  void record_fault() const;
  bool load_commands(entry& front);
  void end_entry();
  outcome execute_word(const entry& front);
  void begin_packet(std::uint32_t header);
  outcome set_method(std::uint32_t subchannel, std::uint32_t method, std::uint32_t value);
  outcome set_host_method(std::uint32_t method, std::uint32_t value);
  outcome use_semaphore(std::uint32_t execute);
  void set_copy_method(std::uint32_t method, std::uint32_t value);
  void launch(std::uint32_t flags);
  bool begin_transfer(std::uint32_t flags);
  void advance_transfer(std::uint64_t& budget_bytes);
  void finish_launch(std::uint32_t flags);
  void complete_some();
  bool complete_all();
  void arrive_all();
  bool is_late(std::uint64_t address, std::uint64_t count) const;
  void settle();
  void overtake();
  bool is_idle();
  void complete(std::size_t count);
  void arrive(pending_write& one);
  void raise() const {
    if (settings_.interrupt) settings_.interrupt();
  }
  pending_write stage(std::uint64_t address, std::uint64_t count);
  std::uint32_t copy_value(std::uint32_t method) const { return copy_[method >> 2]; }
  std::uint64_t copy_address(std::uint32_t method) const {
    return std::uint64_t{copy_value(method)} << 32 | copy_value(method + 4);
  }

  const channel_settings settings_;
  fault_code fault_ = none;
  std::optional<std::uint64_t> fault_address_;
  std::uint64_t late_until_ns_ = 0;  // bytes that a word has overtaken arrive then
  std::uint32_t get_ = 0;
  std::deque<entry> queue_;
  std::size_t next_word_ = 0;  // of the first entry

  // The packet that is being read.
  packet kind_ = packet::incrementing;
  std::uint32_t subchannel_ = 0, method_ = 0, left_ = 0;

  std::uint32_t host_[0x40] = {};   // methods of the channel, by number / 4
  std::uint32_t copy_[0x800] = {};  // of the copy class
  std::optional<transfer> active_;
  std::vector<pending_write> pending_;
  std::vector<pending_write> late_;  // to other boards; in their order
  std::uint64_t pending_bytes_ = 0, pending_words_ = 0;
  std::vector<std::vector<std::byte>> spare_;  // buffers of writes that have arrived
  std::uint64_t pipelined_ = 0;
};

}  // namespace pl::sim
