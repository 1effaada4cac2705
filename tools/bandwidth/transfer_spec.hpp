// SPDX-License-Identifier: Apache-2.0
// Source, destination and executor of a transfer: the vocabulary of `peerlane bandwidth`. A testcase is a list of these;
// a line of --transfer is one too (transfer_grammar.hpp).
#pragma once

#include <compare>
#include <cstdint>
#include <string>

namespace pl::bandwidth {

enum class host_kind : std::uint8_t { pinned, pageable, huge };  // huge: pinned, on huge pages

// Where memory lies. `index`: NUMA node for host memory (-1: near the GPU of the transfer), GPU ordinal for device memory.
struct place {
  enum class kind : std::uint8_t { host, gpu } type = kind::host;
  int index = -1;
  host_kind host = host_kind::pinned;
  auto operator<=>(const place&) const = default;
};
inline place host_place(host_kind kind = host_kind::pinned, int numa_node = -1) {
  return {place::kind::host, numa_node, kind};
}
inline place gpu_place(int ordinal) { return {place::kind::gpu, ordinal, host_kind::pinned}; }

// What moves the bytes.
//   ce      the GPU's copy engines (cuMemcpyAsync); one call a copy
//   sm      a copy kernel on `width` multiprocessors (0: all of them); one launch for all copies of a sample
//   bar     CPU stores and loads through BAR1 by `width` threads (0: 1); host <-> GPU only
//   engine  the planner's resident copy kernel (src/copy) with `width` workers (0: 1); host <-> GPU only
//   dma     a DMA channel of src/copy; `width`: KiB of the scattered blocks into which the bytes are cut (0: one piece)
//   tma     a kernel that copies by bulk copies, on `width` multiprocessors (0: all); GPU memory, compute capability 9.0
//   sm_read   a kernel that reads the source and keeps only digests of it; local GPU memory
//   sm_write  a kernel that writes the destination and reads only 8 bytes; local GPU memory
enum class executor_kind : std::uint8_t { ce, sm, bar, engine, dma, tma, sm_read, sm_write };
constexpr bool is_kernel(executor_kind kind) {
  return kind == executor_kind::sm || kind == executor_kind::tma || kind == executor_kind::sm_read ||
         kind == executor_kind::sm_write;
}

struct executor {
  executor_kind kind = executor_kind::ce;
  int gpu = 0;         // whose context, copy engines, multiprocessors
  unsigned width = 0;  // see above
  auto operator<=>(const executor&) const = default;
};

struct transfer_spec {
  place source;
  place destination;
  bandwidth::executor executor;
  std::uint64_t bytes = 0;  // 4 at least; any number
  bool measured = true;     // false: runs at the same time and is reported only as interference
  unsigned copies = 0;      // per sample; 0: as the method says
};

const char* to_string(executor_kind kind);  // "CE", "SM", "BAR", "ENGINE", "DMA", "TMA", "READ", "WRITE"
const char* to_string(host_kind kind);      // "pinned", "pageable", "huge"
// "G1", "H0", "H" (near the GPU), "HU0" pageable, "HH0" huge: as --transfer takes them.
std::string to_string(const place& location);

}  // namespace pl::bandwidth
