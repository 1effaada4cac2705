// SPDX-License-Identifier: Apache-2.0
#include "tools/store/perf_load.hpp"

#include <algorithm>
#include <bit>
#include <cmath>

namespace pl::store_tools {
namespace {

constexpr double kTheta = 0.99;

// Spreads numbers that are close to each other (the finaliser of splitmix64).
std::uint64_t scatter(std::uint64_t x) {
  x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9ull;
  x = (x ^ (x >> 27)) * 0x94d049bb133111ebull;
  return x ^ (x >> 31);
}

double uniform(std::mt19937_64& random) { return static_cast<double>(random() >> 11) * 0x1.0p-53; }

}  // namespace

std::optional<perf_mix> mix_of(const std::string& test, std::uint64_t value_bytes) {
  perf_mix out;
  using keys = perf_mix::keys;
  const auto sized = [&](std::uint64_t otherwise) {
    out.lowest_bytes = out.highest_bytes = value_bytes != 0 ? value_bytes : otherwise;
  };
  sized(32);
  if (test == "put" || test == "put_direct") {
    out.put = 100;
    out.choose = keys::in_order;
  } else if (test == "get" || test == "get_direct") {
    out.choose = keys::in_order;
  } else if (test == "erase") {
    out.erase = 100;
    out.choose = keys::in_order;
  } else if (test == "update") {
    out.put = 100;
  } else if (test == "throughput") {
    out.put = 20;
  } else if (test.starts_with("ycsb-") && test.size() == 6 && test[5] >= 'a' && test[5] <= 'f') {
    sized(1024);
    out.choose = keys::zipfian;
    switch (test[5]) {
      case 'a':
        out.put = 50;
        break;
      case 'b':
        out.put = 5;
        break;
      case 'd':
        out.insert = 5;
        out.choose = keys::latest;
        break;
      case 'e':
        out.scan = 95;
        out.insert = 5;
        break;
      case 'f':
        out.read_modify_write = 50;
        break;
      default:
        break;  // c: gets alone
    }
  } else if (test == "llm") {
    out.put = 10;
    out.choose = keys::zipfian;
    if (value_bytes == 0) out.lowest_bytes = 64 << 10, out.highest_bytes = 32 << 20;
  } else {
    return std::nullopt;
  }
  return out;
}

zipfian::zipfian(std::uint64_t items) : items_(std::max<std::uint64_t>(items, 2)) {
  // The sum's tail is an integral: beyond ten thousand terms the difference does not show.
  const auto exact = std::min<std::uint64_t>(items_, 10'000);
  double sum = 0;
  for (std::uint64_t i = 1; i <= exact; ++i) sum += std::pow(1.0 / static_cast<double>(i), kTheta);
  const auto power = [](double x) { return std::pow(x, 1 - kTheta) / (1 - kTheta); };
  zeta_ = sum + power(static_cast<double>(items_) + 0.5) - power(static_cast<double>(exact) + 0.5);
  alpha_ = 1.0 / (1.0 - kTheta);
  eta_ = (1 - std::pow(2.0 / static_cast<double>(items_), 1 - kTheta)) / (1 - (1 + std::pow(0.5, kTheta)) / zeta_);
}

std::uint64_t zipfian::rank(double uniform) const {
  const double scaled = uniform * zeta_;
  if (scaled < 1) return 0;
  if (scaled < 1 + std::pow(0.5, kTheta)) return 1;
  const double out = static_cast<double>(items_) * std::pow(eta_ * uniform - eta_ + 1, alpha_);
  return std::min(static_cast<std::uint64_t>(out), items_ - 1);
}

std::uint64_t zipfian::scattered(double uniform) const { return scatter(rank(uniform)) % items_; }

perf_load::perf_load(const perf_mix& mix, std::uint64_t elements, std::uint64_t seed, std::uint64_t clients,
                     std::uint64_t client)
    : mix_(mix),
      elements_(elements),
      clients_(clients),
      client_(client),
      position_(client),
      random_(seed + client),
      popular_(elements) {}

std::uint64_t perf_load::bytes_of(std::uint64_t key) const {
  if (mix_.lowest_bytes == mix_.highest_bytes) return mix_.lowest_bytes;
  const double share = static_cast<double>(scatter(key + 1) >> 11) * 0x1.0p-53;
  const double low = std::log2(static_cast<double>(mix_.lowest_bytes)),
               high = std::log2(static_cast<double>(mix_.highest_bytes));
  return static_cast<std::uint64_t>(std::exp2(low + share * (high - low)));
}

std::uint64_t perf_load::choose() {
  switch (mix_.choose) {
    case perf_mix::keys::in_order: {
      const auto out = position_ % elements_;
      position_ += clients_;
      return out;
    }
    case perf_mix::keys::zipfian:
      return popular_.scattered(uniform(random_));
    case perf_mix::keys::latest: {
      const auto back = popular_.rank(uniform(random_));
      // The newest keys that this client knows are its own inserts.
      if (back < inserted_) return elements_ + client_ + (inserted_ - 1 - back) * clients_;
      return elements_ - 1 - std::min(back - inserted_, elements_ - 1);
    }
    default:
      return random_() % elements_;
  }
}

perf_step perf_load::next() {
  perf_step out;
  auto dice = static_cast<unsigned>(random_() % 100);
  const auto is = [&](unsigned share) {
    if (dice < share) return true;
    dice -= share;
    return false;
  };
  if (is(mix_.put)) out.kind = perf_kind::put;
  else if (is(mix_.insert)) out.kind = perf_kind::insert;
  else if (is(mix_.erase)) out.kind = perf_kind::erase;
  else if (is(mix_.scan)) out.kind = perf_kind::scan;
  else if (is(mix_.read_modify_write)) out.kind = perf_kind::read_modify_write;
  else if (is(mix_.get_attribute)) out.kind = perf_kind::get_attribute;
  out.key = out.kind == perf_kind::insert ? elements_ + client_ + inserted_++ * clients_ : choose();
  out.bytes = bytes_of(out.key);
  return out;
}

std::size_t latency_histogram::bucket_of(std::uint64_t ns) noexcept {
  const auto width = static_cast<unsigned>(std::bit_width(ns));
  if (width <= kSubBits) return static_cast<std::size_t>(ns);
  const unsigned shift = width - kSubBits - 1;
  return ((static_cast<std::size_t>(shift) + 1) << kSubBits) + ((ns >> shift) - (1u << kSubBits));
}

std::uint64_t latency_histogram::edge_of(std::size_t bucket) noexcept {
  const std::size_t group = bucket >> kSubBits, within = bucket & ((1u << kSubBits) - 1);
  if (group == 0) return within;
  const std::uint64_t low = ((1ull << kSubBits) + within) << (group - 1);
  return low + (1ull << (group - 1)) - 1;
}

void latency_histogram::add(std::uint64_t ns) noexcept {
  ++buckets_[bucket_of(ns)];
  ++count_;
  sum_ += ns;
  highest_ = std::max(highest_, ns);
}

void latency_histogram::merge(const latency_histogram& other) noexcept {
  for (std::size_t i = 0; i < buckets_.size(); ++i) buckets_[i] += other.buckets_[i];
  count_ += other.count_;
  sum_ += other.sum_;
  highest_ = std::max(highest_, other.highest_);
}

std::uint64_t latency_histogram::quantile(double fraction) const noexcept {
  if (count_ == 0) return 0;
  const auto wanted =
      std::max<std::uint64_t>(1, static_cast<std::uint64_t>(std::ceil(fraction * static_cast<double>(count_))));
  std::uint64_t seen = 0;
  for (std::size_t i = 0; i < buckets_.size(); ++i)
    if ((seen += buckets_[i]) >= wanted) return std::min(edge_of(i), highest_);
  return highest_;
}

}  // namespace pl::store_tools
