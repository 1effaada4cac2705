// SPDX-License-Identifier: Apache-2.0
// What the files of the simulated resource manager share and clients do not see: its GPU's classes, status words beyond
// those that clients tell apart, and how a call enters.
#pragma once

#include "sim/resource_manager.hpp"

namespace pl::sim {

// nvstatuscodes.h
constexpr std::uint32_t kInUse = 0x17, kCannotPin = 0x1e, kBadArgument = 0x1f, kBadParams = 0x3d, kNothingKnown = 0x40;

// A GPU of the Hopper generation, whose class list also names older ones, as real ones do.
constexpr std::uint32_t kChannelClass = 0xc86f, kCopyClass = 0xc8b5, kDoorbellClass = 0xc661;
constexpr std::uint32_t kGpuClasses[] = {0x90f1, 0xc36f, 0xc56f, kChannelClass, kCopyClass, 0xc7b5, kDoorbellClass, 0xc561};

// COPY0 and COPY1 share the graphics engine's runlist, COPY2 has its own.
constexpr unsigned kCopyEngines = 3, kSharedEngines = 2;
constexpr unsigned kPeerEngine = 1;  // carries links between boards at their full rate
constexpr bool is_copy_engine(std::uint32_t engine) {
  return engine >= rm::kEngineCopy0 && engine < rm::kEngineCopy0 + kCopyEngines;
}
constexpr bool is_doorbell(std::uint32_t object_class) { return object_class == kDoorbellClass; }

constexpr std::uint32_t gpu_id_of(unsigned board) { return 0x100 * (board + 1); }

// Holds the lock, for which the engine's thread stands back.
class resource_manager::call_scope {
 public:
  explicit call_scope(resource_manager& called) : called_(called) {
    called_.callers_.fetch_add(1, std::memory_order_relaxed);
    called_.mutex_.lock();
    called_.callers_.fetch_sub(1, std::memory_order_relaxed);
  }
  ~call_scope() { called_.mutex_.unlock(); }
  call_scope(const call_scope&) = delete;
  call_scope& operator=(const call_scope&) = delete;

 private:
  resource_manager& called_;
};

}  // namespace pl::sim
