// SPDX-License-Identifier: Apache-2.0
// Which eviction a cache pool should have: the policies of store/engine/eviction.hpp on the same traces, in turns.
//
//   eviction_bench [--json FILE] [--requests N] [--rounds N]
//
// Every request that misses puts the value. Traces, over 100 000 values of 1 to 64 KiB (their sizes follow from their
// number):
//   zipf      Zipf with exponent 0.99, as YCSB's; also 0.7
//   scan      the same, and every 20 000 requests a walk over 10 000 values that nobody asks for again
//   loop      one value after the other, round and round over 1.2 times of what the cache holds
//   shift     Zipf whose favourites change every 100 000 requests
//   prompts   conversations: a turn reads every block of its conversation so far and adds some; old ones end
// Caches of 1, 5, 20 % of the values' bytes. A row has the share of requests and of bytes that hit, and the time of one
// request (look-up, policy and the trace's own map; median of the rounds).
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <memory>
#include <random>
#include <string>
#include <unordered_map>
#include <vector>

#include "base/clock.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"
#include "store/engine/eviction.hpp"

namespace pl::store {
namespace {

constexpr std::uint64_t kValues = 100'000;

// 4 KiB most often; large ones are rare.
std::uint64_t size_of(std::uint64_t number) {
  const std::uint64_t mixed = (number + 1) * 0x9e3779b97f4a7c15u;
  const int doubled = std::min(6, static_cast<int>(std::countl_zero(mixed)));
  return std::uint64_t{1024} << doubled;
}

class zipf {
 public:
  zipf(std::uint64_t count, double exponent) : sums_(count) {
    double sum = 0;
    for (std::uint64_t i = 0; i < count; ++i) sums_[i] = sum += std::pow(static_cast<double>(i + 1), -exponent);
  }
  std::uint64_t operator()(std::mt19937_64& random) {
    const double point = std::uniform_real_distribution<double>(0, sums_.back())(random);
    return static_cast<std::uint64_t>(std::lower_bound(sums_.begin(), sums_.end(), point) - sums_.begin());
  }

 private:
  std::vector<double> sums_;
};

using trace = std::vector<std::uint64_t>;

trace zipf_trace(std::size_t requests, double exponent, std::size_t shift_every) {
  std::mt19937_64 random(1);
  zipf draw(kValues, exponent);
  trace out(requests);
  for (std::size_t i = 0; i < requests; ++i) {
    const std::uint64_t shift = shift_every == 0 ? 0 : i / shift_every * 37'000;
    out[i] = (draw(random) * 7919 + shift) % kValues;  // neighbours in rank are none in number
  }
  return out;
}

trace scan_trace(std::size_t requests) {
  const trace zipfs = zipf_trace(requests, 0.99, 0);
  trace out;
  std::uint64_t next = kValues;
  for (std::size_t i = 0; i < requests && out.size() < requests; ++i) {
    out.push_back(zipfs[i]);
    if (i % 20'000 != 19'999) continue;
    for (int k = 0; k < 10'000 && out.size() < requests; ++k) out.push_back(next++);
  }
  return out;
}

trace loop_trace(std::size_t requests, std::uint64_t cache_bytes) {
  std::uint64_t count = 0, bytes = 0;
  while (bytes < cache_bytes * 12 / 10) bytes += size_of(count++);
  trace out(requests);
  for (std::size_t i = 0; i < requests; ++i) out[i] = i % count;
  return out;
}

trace prompt_trace(std::size_t requests) {
  std::mt19937_64 random(2);
  struct conversation {
    std::vector<std::uint64_t> blocks;
  };
  std::vector<conversation> open(400);
  trace out;
  std::uint64_t next = 0;
  while (out.size() < requests) {
    // Recent speakers speak again.
    const double skew = std::pow(std::uniform_real_distribution<double>(0, 1)(random), 2);
    conversation& one = open[static_cast<std::size_t>(skew * static_cast<double>(open.size() - 1))];
    for (const std::uint64_t block : one.blocks) out.push_back(block);
    const auto more = random() % 8 + 1;
    for (std::uint64_t i = 0; i < more; ++i) one.blocks.push_back(next++), out.push_back(one.blocks.back());
    if (random() % 16 == 0) one.blocks.clear();
  }
  out.resize(requests);
  return out;
}

struct outcome {
  double hits = 0, byte_hits = 0, ns = 0;
};

outcome replay(const trace& requests, eviction kind, std::uint64_t cache_bytes) {
  struct stored {
    std::string key;
    cached_value value;
  };
  const auto policy = eviction_policy::make(kind);
  std::unordered_map<std::uint64_t, std::unique_ptr<stored>> held;
  std::uint64_t hits = 0, bytes_hit = 0, bytes = 0;
  const std::uint64_t begin = monotonic_ns();
  for (const std::uint64_t number : requests) {
    const std::uint64_t size = size_of(number);
    bytes += size;
    const auto found = held.find(number);
    if (found != held.end()) {
      ++hits, bytes_hit += size;
      found->second->value.note_use();
      if (policy->needs_uses()) policy->used(found->second->value);
      continue;
    }
    while (policy->bytes() + size > cache_bytes) {
      cached_value* const gone = policy->take_victim();
      if (gone == nullptr) break;
      held.erase(std::strtoull(std::string(gone->key()).c_str(), nullptr, 10));
    }
    auto made = std::make_unique<stored>();
    made->key = std::to_string(number);
    made->value.set_key(made->key);
    made->value.bytes = size;
    policy->insert(made->value);
    held.emplace(number, std::move(made));
  }
  const auto share = [](std::uint64_t part, std::uint64_t whole) {
    return 100.0 * static_cast<double>(part) / static_cast<double>(whole);
  };
  return {share(hits, requests.size()), share(bytes_hit, bytes),
          static_cast<double>(monotonic_ns() - begin) / static_cast<double>(requests.size())};
}

int run(int count, char** given) {
  std::string json;
  std::size_t requests = 1'000'000;
  int rounds = 3;
  std::vector<std::string> command(given, given + count);
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = given[i];
    if (name == "--json") json = given[i + 1];
    else if (name == "--requests") requests = std::strtoull(given[i + 1], nullptr, 10);
    else if (name == "--rounds") rounds = std::atoi(given[i + 1]);
    else
      return std::fprintf(stderr, "eviction_bench: unknown option %s; expected --json, --requests or --rounds\n", given[i]),
             2;
  }
  if (requests == 0 || rounds <= 0) return std::fprintf(stderr, "eviction_bench: requests and rounds are at least 1\n"), 2;
  std::uint64_t all_bytes = 0;
  for (std::uint64_t i = 0; i < kValues; ++i) all_bytes += size_of(i);
  result_file out("eviction_bench", command);
  out.set_machine(describe_host());
  out.set_parameter("requests", requests);
  out.set_parameter("rounds", rounds);
  out.set_unit("hit_percent", "percent");
  out.set_unit("byte_hit_percent", "percent");
  std::printf("%-10s %6s %-8s %8s %10s %8s\n", "trace", "cache", "policy", "hits", "of bytes", "ns");
  const auto one = [&](const char* name, int percent, const trace& list) {
    const std::uint64_t cache_bytes = all_bytes * static_cast<std::uint64_t>(percent) / 100;
    std::vector<std::vector<double>> times(2);
    std::vector<outcome> last(2);
    for (int round = 0; round < rounds; ++round)
      for (const eviction kind : {eviction::s3_fifo, eviction::lru}) {
        const auto i = static_cast<std::size_t>(kind);
        last[i] = replay(list, kind, cache_bytes);
        times[i].push_back(last[i].ns);
      }
    for (const eviction kind : {eviction::s3_fifo, eviction::lru}) {
      const auto i = static_cast<std::size_t>(kind);
      std::sort(times[i].begin(), times[i].end());
      const double ns = times[i][times[i].size() / 2];
      std::printf("%-10s %5d%% %-8s %7.2f%% %9.2f%% %8.0f\n", name, percent, name_of(kind), last[i].hits, last[i].byte_hits,
                  ns);
      out.add_row({{"kind", "eviction"},
                   {"trace", name},
                   {"cache_percent", percent},
                   {"policy", name_of(kind)},
                   {"hit_percent", last[i].hits},
                   {"byte_hit_percent", last[i].byte_hits},
                   {"request_ns_p50", ns}});
    }
  };
  const trace zipf99 = zipf_trace(requests, 0.99, 0), zipf70 = zipf_trace(requests, 0.7, 0);
  const trace scans = scan_trace(requests), shifting = zipf_trace(requests, 0.99, 100'000), prompts = prompt_trace(requests);
  for (const int percent : {1, 5, 20}) {
    one("zipf 0.99", percent, zipf99);
    one("zipf 0.7", percent, zipf70);
    one("scan", percent, scans);
    one("loop", percent, loop_trace(requests, all_bytes * static_cast<std::uint64_t>(percent) / 100));
    one("shift", percent, shifting);
    one("prompts", percent, prompts);
  }
  if (json.empty()) return 0;
  if (const status written = out.write(json); !written)
    return std::fprintf(stderr, "%s\n", written.error().message.c_str()), 1;
  return 0;
}

}  // namespace
}  // namespace pl::store

int main(int count, char** given) { return pl::store::run(count, given); }
