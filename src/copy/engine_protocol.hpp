// SPDX-License-Identifier: Apache-2.0
// The protocol between the CPU and the GPU engine's resident kernel. Included by both sides; C layout only.
//
//     CPU                                              worker = one block of the kernel
//     descriptor (GPU memory, through the mapping) -->  polls its own one
//     status line, data lines (pinned host memory) <--  hello, done, left; low-latency data
//
// A worker takes descriptors in the order of their sequence numbers, which begin at 1 and skip 0 when they wrap. It
// writes `hello` when it has started, and `left` when it will read no further descriptor. A descriptor written after
// the worker's last read is therefore not executed in this generation, which `left` tells the CPU.
#pragma once

#include <cstdint>

namespace pl::engine {

enum operation : std::uint32_t {
  op_copy = 1,         // rows from src to dst, system fence, done word
  op_low_latency = 2,  // one row from src as data lines to dst: no fence, no done word
  op_list = 3,         // `rows` list entries at src, system fence, done word
  op_leave = 4,        // leave now
};

// Sixteen bytes are read in one access, and each sixteen carry the sequence number, so a poll needs no second read.
struct alignas(16) quarter {
  std::uint64_t low;
  std::uint32_t word;
  std::uint32_t sequence;
};
struct alignas(64) descriptor {
  quarter src;        // low: source address; word: bytes of a row
  quarter dst;        // low: destination address; word: rows
  quarter src_pitch;  // low: bytes; word: operation
  quarter dst_pitch;  // low: bytes
};
static_assert(sizeof(descriptor) == 64);

struct alignas(16) list_entry {
  std::uint64_t src;
  std::uint64_t dst;
  std::uint64_t bytes;
  std::uint64_t pad;
};
static_assert(sizeof(list_entry) == 32);

// Eight data bytes; each half is written whole.
struct alignas(16) data_line {
  std::uint32_t data0, flag0, data1, flag1;
};

// One for each worker, in pinned host memory, written only by that worker.
struct alignas(64) status_line {
  std::uint32_t done;   // sequence of the last finished op_copy or op_list
  std::uint32_t hello;  // generation that has started
  std::uint32_t left;   // generation that will read no more descriptors
  std::uint32_t last;   // last sequence that it took; written before `left`
  // Written by the CPU before a descriptor, only under a race detector. The detector takes the mapping and the device
  // address of the descriptor for two memories, and would see no order between what the CPU did before and what the
  // worker does after.
  std::uint32_t posted;
  std::uint32_t pad[11];
};
static_assert(sizeof(status_line) == 64);

// In GPU memory: where the next generation of this worker continues.
struct alignas(64) worker_state {
  std::uint32_t last_sequence;
  std::uint32_t pad[15];
};

// Control block of a kernel's workers, in GPU memory: descriptors, then states, then lists.
constexpr std::uint32_t kMaxWorkers = 32;
constexpr std::uint32_t kListEntries = 512;  // a worker
constexpr std::uint64_t kDescriptorsAt = 0;
constexpr std::uint64_t kStatesAt = kDescriptorsAt + kMaxWorkers * sizeof(descriptor);
constexpr std::uint64_t kListsAt = kStatesAt + kMaxWorkers * sizeof(worker_state);
constexpr std::uint64_t kListBytes = kListEntries * sizeof(list_entry);
constexpr std::uint64_t control_bytes(std::uint32_t workers) { return kListsAt + workers * kListBytes; }

}  // namespace pl::engine
