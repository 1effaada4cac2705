// SPDX-License-Identifier: Apache-2.0
// Source and destination memory of `peerlane copy`, and the check that a copy moved exactly the bytes it should.
#pragma once

#include <cstdlib>
#include <functional>
#include <memory>
#include <optional>

#include "tools/common/device_block.hpp"
#include "tools/copy/copy_case.hpp"

namespace pl::tools {

// xorshift64*: fast enough for a GiB of test data.
class random_bytes {
 public:
  explicit random_bytes(std::uint64_t seed) : state_(seed * 0x9E3779B97F4A7C15u | 1) {}
  std::uint64_t next() {
    state_ ^= state_ >> 12;
    state_ ^= state_ << 25;
    state_ ^= state_ >> 27;
    return state_ * 0x2545F4914F6CDD1Du;
  }
  void fill(unsigned char* data, std::uint64_t bytes);

 private:
  std::uint64_t state_;
};

class copy_arena {
 public:
  // Buffers for copies of up to `most_bytes` in these cases. With a p2p case, another GPU's memory too, and peer access
  // where the GPUs have it. Throws where there is no room.
  copy_arena(const gpu_session& gpu, std::span<const copy_case> cases, std::uint64_t most_bytes, std::uint64_t seed);
  ~copy_arena();

  const device_block& device() const { return *first_; }
  std::uint64_t device_bytes() const { return bytes_; }

  // Makes the source of this case random. Before anything else of the case.
  void begin(const copy_case& test_case);
  // Aligned to pages on both sides: what is timed.
  copy::transfer aligned(const copy_case& test_case, std::uint64_t bytes) const;

  // Has `run` make one copy of data that no copy before had, between random unaligned places, and compares every byte and 64
  // on both sides of the destination. Throws (the tool fails) on a difference; false: `run` said false and did nothing.
  bool verify(const copy_case& test_case, std::uint64_t bytes, const std::string& contender_name,
              const std::function<bool(const copy::transfer&)>& run);

 private:
  struct place {
    const device_block* device = nullptr;
    unsigned char* host = nullptr;
  };
  place source_of(const copy_case& test_case) const;
  place target_of(const copy_case& test_case) const;
  copy::transfer make_transfer(const copy_case& test_case, std::uint64_t bytes, std::uint64_t source,
                               std::uint64_t target) const;
  void enable_peers() const;

  const gpu_session& gpu_;
  std::uint64_t bytes_;
  std::uint64_t seed_;
  random_bytes random_;
  std::unique_ptr<device_block> first_, second_, peer_;
  std::unique_ptr<host_memory> pinned_;
  // Page-locked: what the source holds where the source is the GPU's, else what came out of the target.
  std::unique_ptr<host_memory> check_;
  std::unique_ptr<unsigned char, decltype(&std::free)> pageable_{nullptr, &std::free};
  int peer_ordinal_ = -1;
};

}  // namespace pl::tools
