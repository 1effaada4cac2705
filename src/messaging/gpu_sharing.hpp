// SPDX-License-Identifier: Apache-2.0
// Which GPUs this process uses, as far as its messages show, and which of them another process of the node also uses. A
// shared GPU switches between processes for each copy, so the CPU makes short copies.
//
// Every message contains the GPU that its sender used last. GPUs have short names that are the same in every process.
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
  // Counts the GPU of the current context as used by this process, even before a message uses it.
  void open(const cu::driver_table& cuda);
  // A message uses memory of this GPU; -1: unknown GPU.
  void note_use(int ordinal);
  // A process of the node uses the GPU with this name.
  void note_peer(std::uint16_t name);

  // The GPU that was last used; 0: none.
  std::uint16_t last_used() const noexcept { return last_used_; }
  // Whether the GPU is shared. -1: unknown GPU; whether any of them is shared.
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
    return name != 0 && std::find(received_names_.begin(), received_names_.end(), name) != received_names_.end();
  }

  const cu::driver_table* cuda_ = nullptr;
  std::vector<gpu> own_;                       // by ordinal
  std::vector<std::uint16_t> received_names_;  // of other processes
  int current_ = 0;                            // at open
  int last_ordinal_ = -1;
  std::uint16_t last_used_ = 0;
  bool is_any_shared_ = false;
};

}  // namespace pl::messaging
