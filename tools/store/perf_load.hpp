// SPDX-License-Identifier: Apache-2.0
// The load of a store benchmark: mixes of operations, distributions of keys and sizes, and the counting of latencies.
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <random>
#include <string>
#include <vector>

namespace pl::store_tools {

enum class perf_kind : std::uint8_t { get, put, insert, erase, scan, read_modify_write, get_attribute };

// Shares in per cent; what they leave of 100 are gets.
struct perf_mix {
  unsigned put = 0, insert = 0, erase = 0, scan = 0, read_modify_write = 0, get_attribute = 0;
  enum class keys : std::uint8_t { in_order, uniform, zipfian, latest } choose = keys::uniform;
  std::uint64_t lowest_bytes = 32, highest_bytes = 32;  // of values, log-uniform between
  bool operator==(const perf_mix&) const = default;
};

// kvstore-perf's tests (put, get, put_direct, get_direct, erase, update, throughput), ycsb-a .. ycsb-f, llm. Nothing for
// other names. `value_bytes` is what --value_length says; YCSB's values are of 1 KiB and the cache's of 64 KiB to 32 MiB if
// it is 0.
std::optional<perf_mix> mix_of(const std::string& test, std::uint64_t value_bytes);

// Zipf's law with theta 0.99 over 0 .. items - 1, the popular ones spread over the whole range (Gray et al., SIGMOD '94).
class zipfian {
 public:
  explicit zipfian(std::uint64_t items);
  std::uint64_t rank(double uniform) const;  // 0: the most popular; `uniform` in [0, 1)
  std::uint64_t scattered(double uniform) const;

 private:
  std::uint64_t items_;
  double zeta_, eta_, alpha_;
};

struct perf_step {
  perf_kind kind = perf_kind::get;
  std::uint64_t key = 0;
  std::uint64_t bytes = 0;
};

// One client's stream of operations; the same seed gives the same stream.
class perf_load {
 public:
  perf_load(const perf_mix& mix, std::uint64_t elements, std::uint64_t seed, std::uint64_t clients, std::uint64_t client);
  perf_step next();
  // A value's size is its key's, so that all know how long it is.
  std::uint64_t bytes_of(std::uint64_t key) const;

 private:
  std::uint64_t choose();
  perf_mix mix_;
  std::uint64_t elements_, clients_, client_, inserted_ = 0, position_ = 0;
  std::mt19937_64 random_;
  zipfian popular_;
};

// Counts by latency, 1/64 wide at each size, so a quantile is right to 1.6 %. One thread; merge() joins several.
class latency_histogram {
 public:
  void add(std::uint64_t ns) noexcept;
  void merge(const latency_histogram& other) noexcept;
  std::uint64_t count() const noexcept { return count_; }
  std::uint64_t highest() const noexcept { return highest_; }
  double mean() const noexcept { return count_ == 0 ? 0 : static_cast<double>(sum_) / static_cast<double>(count_); }
  // The upper edge of the bucket in which the quantile lies; 0 if nothing was counted.
  std::uint64_t quantile(double fraction) const noexcept;

 private:
  static constexpr unsigned kSubBits = 6;
  static std::size_t bucket_of(std::uint64_t ns) noexcept;
  static std::uint64_t edge_of(std::size_t bucket) noexcept;
  std::array<std::uint64_t, (64 - kSubBits + 1) << kSubBits> buckets_{};
  std::uint64_t count_ = 0, sum_ = 0, highest_ = 0;
};

}  // namespace pl::store_tools
