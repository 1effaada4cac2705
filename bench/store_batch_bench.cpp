// SPDX-License-Identifier: Apache-2.0
// Many values of host memory by one call: what a call takes a client, from servers that take turns, so that two builds of
// the server, or two ways to ask a cluster, are compared in the same minutes.
//
//   store_batch_bench --server NAME=ADDRESS... [--json FILE] [--rounds N] [--values N,...] [--bytes N,...] [--level L]
//
//   ADDRESS    a unix socket's path, or HOST:PORT; "batch@HOST:PORT" and "single@HOST:PORT" are a cluster of which that is a
//              server, asked by batches or by a request for each value
// A round puts all values under their keys, gets them, asks whether they exist and erases them, one call each; every value
// that comes is compared. The first two rounds are not counted. A number is of one call: the median and the 99th percentile
// of all rounds, and what they are of those of the first server.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "bench/must.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"
#include "store/client/client.hpp"
#include "store/client/router.hpp"
#include "store/protocol/durability.hpp"

namespace pl::store_client {
namespace {

using store_protocol::opcode;

constexpr std::size_t kUncountedRounds = 2;
constexpr const char* kPool = "store-batch-bench";

struct named_server {
  std::string name, address;
};

struct arguments {
  std::vector<named_server> servers;
  std::vector<std::uint64_t> values = {500, 4096}, bytes = {100, 1024, 4096, 16384};
  std::string json, level = "volatile";
  std::size_t rounds = 60;
};

// One server, or one way to ask a cluster.
class contestant {
 public:
  contestant(const named_server& server, store_protocol::durability level) : name_(server.name), level_(level) {
    store_protocol::pool_settings settings;
    settings.level = level;
    const auto separator = server.address.find('@');
    if (separator != std::string::npos) {
      is_single_ = server.address.substr(0, separator) == "single";
      router_options options;
      options.servers = {server.address.substr(separator + 1)};
      cluster_ = must(router::open(options));
      auto opened = cluster_->open_pool(kPool);
      pool_ = opened ? *opened : must(cluster_->create_pool(kPool, settings));
      return;
    }
    client_options options;
    (server.address.front() == '/' ? options.server.socket : options.server.endpoint) = server.address;
    store_ = must(client::open(options));
    auto opened = store_->open_pool(kPool);
    pool_ = opened ? *opened : must(store_->create_pool(kPool, settings));
  }

  std::vector<reply> run(opcode op, std::span<const batch_entry> entries) {
    if (store_) return store_->run_batch(op, pool_, entries);
    if (!is_single_) return cluster_->run_batch(op, pool_, entries);
    std::vector<reply> out;
    if (op == opcode::batch_exists) {
      for (const batch_entry& one : entries) out.push_back(cluster_->stat(pool_, one.key));
      return out;
    }
    put_request options;
    options.level = level_;
    std::vector<routed_ptr> begun;
    for (const batch_entry& one : entries)
      begun.push_back(op == opcode::batch_put     ? cluster_->make_put(pool_, one.key, one.buffer, options)
                      : op == opcode::batch_erase ? cluster_->make_erase(pool_, one.key)
                                                  : cluster_->make_get(pool_, one.key, one.buffer));
    cluster_->start(begun);
    for (const routed_ptr& one : begun) {
      cluster_->wait(one);
      out.push_back(one->got);
    }
    return out;
  }
  const std::string& name() const { return name_; }

 private:
  const std::string name_;
  const store_protocol::durability level_;
  std::unique_ptr<client> store_;
  std::unique_ptr<router> cluster_;
  bool is_single_ = false;
  std::uint32_t pool_ = 0;
};

class contest {
 public:
  contest(std::uint64_t values, std::uint64_t bytes, store_protocol::durability level) : level_(level) {
    source_.resize(values * bytes);
    rooms_.resize(values * bytes);
    for (std::size_t i = 0; i < source_.size(); ++i) source_[i] = static_cast<char>(i * 7 + i / 251);
    for (std::size_t i = 0; i < values; ++i)
      keys_.push_back("layer/" + std::to_string(i % 80) + "/block/" + std::to_string(i));
    const auto entries_of = [&](std::vector<char>& memory) {
      std::vector<batch_entry> out(values);
      for (std::size_t i = 0; i < values; ++i) {
        out[i].key = keys_[i];
        out[i].buffer = {reinterpret_cast<std::uint64_t>(memory.data() + i * bytes), bytes, std::nullopt};
      }
      return out;
    };
    puts_ = entries_of(source_), gets_ = entries_of(rooms_);
    for (batch_entry& one : puts_) one.level = level_;
  }

  void round(contestant& one, bool is_counted) {
    std::fill(rooms_.begin(), rooms_.end(), '\0');
    for (const auto& [op, name] : {std::pair{opcode::batch_put, "put"}, std::pair{opcode::batch_get, "get"},
                                   std::pair{opcode::batch_exists, "exists"}, std::pair{opcode::batch_erase, "erase"}}) {
      const auto& entries = op == opcode::batch_put ? puts_ : gets_;
      const std::uint64_t begin = monotonic_ns();
      const auto replies = one.run(op, entries);
      const auto took_ns = static_cast<double>(monotonic_ns() - begin);
      for (const reply& got : replies)
        if (got.status != 0) die(one.name() + ": " + name + ": " + got.text);
      if (op == opcode::batch_get && std::memcmp(source_.data(), rooms_.data(), source_.size()) != 0)
        die(one.name() + ": a value that came is another one");
      if (is_counted) taken_[name][one.name()].push_back(took_ns);
    }
  }

  void report(const std::vector<named_server>& servers, std::uint64_t bytes, const std::string& level, result_file& out) {
    for (auto& [call, by_server] : taken_) {
      const double first_p50 = quantile(by_server[servers.front().name], 0.5);
      const double first_p99 = quantile(by_server[servers.front().name], 0.99);
      for (const named_server& one : servers) {
        const double p50 = quantile(by_server[one.name], 0.5), p99 = quantile(by_server[one.name], 0.99);
        std::printf("%-7s %-8s %5zu x %6llu bytes %-9s %10.1f us, p99 %10.1f   of the first: %5.2f, p99 %5.2f\n",
                    call.c_str(), one.name.c_str(), keys_.size(), static_cast<unsigned long long>(bytes), level.c_str(),
                    p50 / 1e3, p99 / 1e3, p50 / first_p50, p99 / first_p99);
        std::fflush(stdout);
        out.add_row({{"kind", call},
                     {"server", one.name},
                     {"level", level},
                     {"values", static_cast<std::uint64_t>(keys_.size())},
                     {"value_bytes", bytes},
                     {"call_us_p50", p50 / 1e3},
                     {"call_us_p99", p99 / 1e3},
                     {"ratio_p50", p50 / first_p50},
                     {"ratio_p99", p99 / first_p99}});
      }
    }
  }

 private:
  static double quantile(std::vector<double> samples, double share) {
    std::sort(samples.begin(), samples.end());
    return samples[std::min(samples.size() - 1, static_cast<std::size_t>(share * static_cast<double>(samples.size())))];
  }
  const store_protocol::durability level_;
  std::vector<std::string> keys_;
  std::vector<char> source_, rooms_;
  std::vector<batch_entry> puts_, gets_;
  std::map<std::string, std::map<std::string, std::vector<double>>> taken_;  // ns by call and server
};

int run(const arguments& args, const std::vector<std::string>& line) {
  result_file out("store_batch_bench", line);
  out.set_machine(describe_host());
  const auto level = store::durability_named(args.level);
  if (!level) die("--level: volatile, logged or durable");
  std::vector<std::unique_ptr<contestant>> all;
  for (const named_server& one : args.servers) all.push_back(std::make_unique<contestant>(one, *level));
  for (const std::uint64_t bytes : args.bytes)
    for (const std::uint64_t values : args.values) {
      contest now(values, bytes, *level);
      for (std::size_t round = 0; round < args.rounds + kUncountedRounds; ++round)
        for (std::size_t i = 0; i < all.size(); ++i)
          now.round(*all[(round + i) % all.size()], round >= kUncountedRounds);  // each is the first one in turn
      now.report(args.servers, bytes, args.level, out);
    }
  if (!args.json.empty()) must(out.write(args.json));
  return 0;
}

std::vector<std::uint64_t> numbers(const std::string& text) {
  std::vector<std::uint64_t> out;
  for (const char* next = text.c_str(); *next != '\0'; next += *next == ',' ? 1 : 0) {
    char* end = nullptr;
    out.push_back(std::strtoull(next, &end, 10));
    if (end == next || out.back() == 0) die("numbers with commas between, not " + text);
    next = end;
  }
  return out;
}

}  // namespace
}  // namespace pl::store_client

int main(int argc, char** argv) {
  using namespace pl;
  store_client::arguments args;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], given = argv[i + 1];
    const auto equals = given.find('=');
    if (name == "--server" && equals != std::string::npos)
      args.servers.push_back({given.substr(0, equals), given.substr(equals + 1)});
    else if (name == "--json") args.json = given;
    else if (name == "--level") args.level = given;
    else if (name == "--rounds") args.rounds = std::strtoull(given.c_str(), nullptr, 10);
    else if (name == "--values") args.values = store_client::numbers(given);
    else if (name == "--bytes") args.bytes = store_client::numbers(given);
    else die("unknown option " + name);
  }
  if (args.servers.empty() || args.rounds == 0)
    die("--server NAME=ADDRESS... [--json F] [--rounds N] [--values N,...] [--bytes N,...] [--level L]");
  return store_client::run(args, std::vector<std::string>(argv, argv + argc));
}
