// SPDX-License-Identifier: Apache-2.0
// Verifies that a mapping shows the intended memory. The proofs differ in what they touch:
//
//   scratch_memory    scratch memory to map and verify the backend with; the user's memory is not touched
//   compare_mapping   the user's bytes, read on both sides; nothing is written
//   verify_mapping    a nonce in the user's bytes: PEERLANE_MAP_VERIFY alone, whose contract says so
//
// None uses the default stream, none ends a stream capture, and each gives up after kBoundedCallLimitMs.
#pragma once

#include <memory>

#include "map/backend.hpp"

namespace pl {

// Where CUDA reads and writes for a proof: the memory's device, and an existing context of it (otherwise the primary
// one).
struct proof_context {
  const cu::driver_table* cuda = nullptr;
  int device_ordinal = -1;
  cu::context_t context = nullptr;
};
// Error text of a proof that ended without an answer.
failure unproved(const failure& reason);
proof_context context_for_proof(const cu::driver_table& cuda, const pin_plan& plan) noexcept;

// A non-blocking stream with synchronous copies. Only for threads of bounded calls.
class proof_stream {
 public:
  explicit proof_stream(const cu::driver_table& cuda) : cuda_(cuda) {}
  ~proof_stream();
  proof_stream(const proof_stream&) = delete;
  proof_stream& operator=(const proof_stream&) = delete;
  status open();
  status read(void* out, std::uint64_t pointer, std::size_t bytes);
  status write(std::uint64_t pointer, const void* bytes, std::size_t count);
  status synchronize();
  cu::stream_t get() const noexcept { return stream_; }

 private:
  const cu::driver_table& cuda_;
  cu::stream_t stream_ = nullptr;
};

// 2 MiB of device memory with a stream of its own. Only on the thread of a bounded call, because its calls may wait for
// the GPU.
class scratch_memory {
 public:
  static constexpr std::size_t kBytes = 2 << 20;
  static constexpr std::size_t kMappedBytes = 1 << 20;  // less than the whole, so that wrong offsets stay inside it
  static result<std::unique_ptr<scratch_memory>> make(const proof_context& context);
  ~scratch_memory();
  scratch_memory(const scratch_memory&) = delete;
  scratch_memory& operator=(const scratch_memory&) = delete;

  std::uint64_t pointer() const noexcept { return pointer_; }
  // Writes nonces in both directions through `mapped`, a CPU mapping of the first kMappedBytes. EIO if the two sides
  // differ.
  status check(const cpu_view& mapped);

 private:
  scratch_memory(const cu::driver_table& cuda, cu::context_scope scope)
      : cuda_(cuda), scope_(std::move(scope)), stream_(cuda) {}
  status check_place(const cpu_view& mapped, std::size_t offset);
  const cu::driver_table& cuda_;
  cu::context_scope scope_;
  proof_stream stream_;
  std::uint64_t pointer_ = 0;
  bool is_pool_memory_ = false;
};

// Compares up to 4 KiB of the user's part of the request with what CUDA reads there, ignoring words that change
// meanwhile. EIO if the sides differ. `has_evidence` (may be null): whether the compared bytes could have revealed a
// difference, that is, were not all the same.
status compare_mapping(const proof_context& context, const pin_plan& plan, const cpu_view& view, bool* has_evidence);

// Writes a nonce to the first bytes of the request (64, or fewer if there are no more: never to a neighbour's), reads
// it through CUDA, and restores what the mapping showed. EIO if the two sides differ. Nobody else may use those bytes
// meanwhile.
status verify_mapping(const cu::driver_table& cuda, const pin_plan& plan, const cpu_view& view);

}  // namespace pl
