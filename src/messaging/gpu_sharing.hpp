// SPDX-License-Identifier: Apache-2.0
// Which GPUs this process uses, as far as its messages show, and which of them another process of the node uses too. A GPU
// that is shared turns from one process to the other for each copy, so short ones are the CPU's.
//
// A process tells the others the GPU that it last used, with every message. Names are short and the same in every process.
//
// Owns: names by ordinal. Threads: the messenger's lock guards all calls. Errors: none; a GPU without a name is never
// shared.
#pragma once

#include <algorithm>
#include <cstdint>
#include <vector>

#include "cuda/driver_table.hpp"

namespace pl::messaging {

class gpu_sharing {
 public:
  // The GPU whose context is current here counts as this process's own, also before a message uses it.
  void open(const cu::driver_table& cuda);
  // A message uses memory of this GPU; -1: it is not known which.
  void note_use(int ordinal);
  // A process of the node uses the GPU with this name.
  void note_peer(std::uint16_t name);

  // The GPU that was last used; 0: none.
  std::uint16_t last_used() const noexcept { return last_used_; }
  // -1: it is not known which; then any of them.
  bool is_shared(int ordinal) const noexcept {
    if (ordinal < 0 || static_cast<std::size_t>(ordinal) >= own_.size()) return is_any_shared_;
    return own_[static_cast<std::size_t>(ordinal)].is_shared;
  }
  bool is_any_shared() const noexcept { return is_any_shared_; }

 private:
  struct gpu {
    std::uint16_t name = 0;  // 0: not used yet
    bool is_shared = false;
  };
  void learn(int ordinal);
  bool is_heard(std::uint16_t name) const noexcept {
    return name != 0 && std::find(heard_.begin(), heard_.end(), name) != heard_.end();
  }

  const cu::driver_table* cuda_ = nullptr;
  std::vector<gpu> own_;              // by ordinal
  std::vector<std::uint16_t> heard_;  // of other processes
  int current_ = 0;                   // at open
  int last_ordinal_ = -1;
  std::uint16_t last_used_ = 0;
  bool is_any_shared_ = false;
};

}  // namespace pl::messaging
