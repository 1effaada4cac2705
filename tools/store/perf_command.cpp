// SPDX-License-Identifier: Apache-2.0
// peerlane store perf: kvstore-perf's tests and option names, YCSB A to F, and a cache of large values; closed loop, or open
// loop with latencies from the moment at which an operation was due.
#include <atomic>
#include <cinttypes>
#include <cstdio>
#include <cstring>
#include <optional>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "tools/common/report.hpp"
#include "tools/common/simultaneous.hpp"
#include "tools/common/terminal.hpp"
#include "tools/store/own_server.hpp"
#include "tools/store/perf_load.hpp"
#include "tools/store/reach.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {
namespace {

using tools::tool_failure;

struct perf_options {
  tools::common_options common;
  reach_options target;
  std::vector<std::string> tests = {"put", "get"};
  std::string server, pool_name = "perf", level;
  std::uint64_t value_length = 0, arena = 256u << 20;
  std::int64_t elements = 10'000, key_length = 8, clients = 1, depth = 16, duration_s = 0, rate = 0, seed = 1;
  std::int64_t read_pct = -1, insert_erase_pct = 0, get_attr_pct = 0;
};

struct tally {
  latency_histogram latency;
  std::uint64_t operations = 0, bytes = 0, failed = 0, missing = 0, wrong = 0;
  store_client::reply last;
  std::string reason;
};

// One client's part of one test.
class driver {
 public:
  driver(const perf_options& options, const perf_mix& mix, const std::string& pool, std::uint64_t client)
      : options_(options),
        load_(mix, static_cast<std::uint64_t>(options.elements), static_cast<std::uint64_t>(options.seed),
              static_cast<std::uint64_t>(options.clients), client),
        client_(client),
        store_(reach(options.target)),
        pool_(pool_of(*store_, pool)),
        level_(durability_option(options.level)),
        slots_(static_cast<std::size_t>(options.depth)) {
    // Touches memory before the clock runs, because a first touch costs more than the operation.
    if (slots_.size() * mix.highest_bytes <= kMaxTouched)
      for (auto& slot : slots_) slot.value.resize(mix.highest_bytes);
  }

  // Every element once, as fast as possible.
  void fill() {
    for (auto key = client_; key < static_cast<std::uint64_t>(options_.elements);
         key += static_cast<std::uint64_t>(options_.clients)) {
      request_slot& slot = free_slot();
      begin(slot, {perf_kind::put, key, load_.bytes_of(key)}, monotonic_ns());
    }
    finish();
    if (sum.failed > 0) throw tool_failure(sum.reason);
    sum = {};
  }

  void run(std::uint64_t begin_ns, std::uint64_t end_ns, std::uint64_t operations) {
    const std::uint64_t pause_ns =
        options_.rate > 0
            ? static_cast<std::uint64_t>(1e9 * static_cast<double>(options_.clients) / static_cast<double>(options_.rate))
            : 0;
    std::uint64_t due_ns = begin_ns;
    for (std::uint64_t i = 0; i < operations || end_ns != 0; ++i) {
      std::uint64_t now = monotonic_ns();
      if (end_ns != 0 && now >= end_ns) break;
      if (pause_ns != 0) {
        due_ns += pause_ns;
        for (; now < due_ns; now = monotonic_ns()) collect();
      }
      request_slot& slot = free_slot();
      begin(slot, load_.next(), pause_ns != 0 ? due_ns : monotonic_ns());
      if (pause_ns != 0) start_made();
    }
    finish();
  }
  tally sum;

 private:
  struct request_slot {
    store_client::operation_ptr op;
    perf_step step;
    std::string value;
    std::uint64_t since_ns = 0;
    bool second = false;  // of read, modify, write
  };

  std::string key_of(std::uint64_t key) const { return format("%0*" PRIu64, static_cast<int>(options_.key_length), key); }
  store_client::memory memory_of(request_slot& slot) {
    return {reinterpret_cast<std::uint64_t>(slot.value.data()), slot.value.size(), std::nullopt};
  }

  // Both ends of a value name its key; a value that has no room for two marks has one, and a shorter one none.
  static constexpr std::size_t kMarkBytes = sizeof(std::uint64_t);
  static std::uint64_t mark_of(const perf_step& step) { return step.key * 0x9e3779b97f4a7c15ull; }
  static std::size_t last_mark(std::size_t bytes) { return bytes < 2 * kMarkBytes ? 0 : bytes - kMarkBytes; }
  static bool holds_its_value(const request_slot& slot) {
    const std::size_t bytes = slot.value.size();
    if (slot.op->got.moved_bytes != bytes) return false;
    const std::uint64_t mark = mark_of(slot.step);
    return bytes < kMarkBytes || (std::memcmp(slot.value.data(), &mark, kMarkBytes) == 0 &&
                                  std::memcmp(slot.value.data() + last_mark(bytes), &mark, kMarkBytes) == 0);
  }

  void begin_put(request_slot& slot) {
    slot.value.resize(slot.step.bytes);
    const std::uint64_t mark = mark_of(slot.step);
    if (slot.value.size() >= kMarkBytes) {
      std::memcpy(slot.value.data(), &mark, kMarkBytes);
      std::memcpy(slot.value.data() + last_mark(slot.value.size()), &mark, kMarkBytes);
    }
    store_client::put_request options;
    options.level = level_;
    slot.op = store_->make_put(pool_, key_of(slot.step.key), memory_of(slot), options);
  }
  void begin(request_slot& slot, const perf_step& step, std::uint64_t since_ns) {
    slot.step = step;
    slot.since_ns = since_ns;
    slot.second = false;
    switch (step.kind) {
      case perf_kind::put:
      case perf_kind::insert:
        begin_put(slot);
        break;
      case perf_kind::get:
      case perf_kind::read_modify_write:
        slot.value.resize(step.bytes);
        slot.op = store_->make_get(pool_, key_of(step.key), memory_of(slot), {});
        break;
      case perf_kind::erase:
        slot.op = store_->make_erase(pool_, key_of(step.key), {});
        break;
      case perf_kind::get_attribute:
        slot.op = store_->make_plain(store_protocol::opcode::stat, pool_, key_of(step.key));
        break;
      case perf_kind::scan: {
        store_client::key_search search;
        search.after = key_of(step.key);
        search.limit = 1 + step.key % 100;
        slot.op = store_->make_find(pool_, search);
        break;
      }
    }
    made_.push_back(slot.op);
  }
  // Operations made since the last wait start together, with one system call.
  void start_made() {
    if (!made_.empty()) store_->start(made_);
    made_.clear();
  }

  void ended(request_slot& slot) {
    const auto& got = slot.op->got;
    const bool read = slot.step.kind == perf_kind::get || slot.step.kind == perf_kind::read_modify_write;
    if (read && !slot.second && got.status == 0 && !holds_its_value(slot)) ++sum.wrong;
    if (slot.step.kind == perf_kind::read_modify_write && !slot.second && got.status == 0) {
      slot.second = true;
      begin_put(slot);
      store_->start(slot.op);
      return;
    }
    if (got.status == ENOENT) ++sum.missing;
    else if (got.status != 0) {
      ++sum.failed;
      sum.reason = got.text;
    } else {
      sum.last = got;
    }
    ++sum.operations;
    sum.bytes += got.moved_bytes;
    sum.latency.add(monotonic_ns() - slot.since_ns);
    slot.op.reset();
  }
  void collect() {
    for (auto& slot : slots_)
      if (slot.op && store_->test(slot.op)) ended(slot);
  }
  request_slot& free_slot() {
    for (;;) {
      for (std::size_t i = 0; i < slots_.size(); ++i) {
        request_slot& slot = slots_[next_++ % slots_.size()];
        if (slot.op && slot.op->done()) ended(slot);
        if (!slot.op) return slot;
      }
      request_slot& oldest = slots_[next_ % slots_.size()];
      start_made();
      store_->wait(oldest.op);
    }
  }
  void finish() {
    start_made();
    for (auto& slot : slots_)
      while (slot.op) {
        store_->wait(slot.op);
        ended(slot);
      }
  }

  static constexpr std::uint64_t kMaxTouched = 1u << 30;
  const perf_options& options_;
  perf_load load_;
  std::uint64_t client_;
  std::unique_ptr<store_client::client> store_;
  std::uint32_t pool_;
  std::optional<store_protocol::durability> level_;
  std::vector<request_slot> slots_;
  std::vector<store_client::operation_ptr> made_;
  std::size_t next_ = 0;
};

template <class Step>
void on_all(std::vector<std::unique_ptr<driver>>& drivers, const Step& step) {
  std::vector<std::string> problems(drivers.size());
  tools::run_simultaneously(drivers.size(), [&](std::size_t i) {
    try {
      step(*drivers[i]);
    } catch (const std::exception& reason) { problems[i] = reason.what(); }
  });
  for (const auto& reason : problems)
    if (!reason.empty()) throw tool_failure(reason);
}

bool run_test(const perf_options& options, const std::string& test, result_file& results) {
  auto mix = mix_of(test, options.value_length);
  if (!mix)
    throw tool_failure(
        format("unknown test \"%s\": expected one of put, get, put_direct, get_direct, erase, update, throughput, ycsb-a .. "
               "ycsb-f, llm",
               test.c_str()));
  if (test == "throughput") {
    const std::int64_t others = options.insert_erase_pct + options.get_attr_pct;
    const std::int64_t reads = options.read_pct >= 0 ? options.read_pct : std::max<std::int64_t>(0, 80 - others);
    if (reads + others > 100)
      throw tool_failure("--read_pct, --insert_erase_pct and --get_attr_pct add up to more than 100");
    mix->put = static_cast<unsigned>(100 - reads - others);
    mix->insert = mix->erase = static_cast<unsigned>(options.insert_erase_pct / 2);
    mix->get_attribute = static_cast<unsigned>(options.get_attr_pct);
  }
  const std::string pool = options.pool_name + "-" + test;
  {
    const auto store = reach(options.target);
    pool_of(*store, pool, true);
  }
  std::vector<std::unique_ptr<driver>> drivers;
  for (std::int64_t i = 0; i < options.clients; ++i)
    drivers.push_back(std::make_unique<driver>(options, *mix, pool, static_cast<std::uint64_t>(i)));
  if (mix->put != 100 || test == "update") on_all(drivers, [](driver& one) { one.fill(); });
  const std::uint64_t begin_ns = monotonic_ns();
  const std::uint64_t end_ns =
      options.duration_s > 0 ? begin_ns + static_cast<std::uint64_t>(options.duration_s) * 1'000'000'000 : 0;
  on_all(drivers, [&](driver& one) {
    one.run(begin_ns, end_ns, static_cast<std::uint64_t>((options.elements + options.clients - 1) / options.clients));
  });
  const double seconds = 1e-9 * static_cast<double>(monotonic_ns() - begin_ns);
  tally all;
  for (const auto& one : drivers) {
    all.latency.merge(one->sum.latency);
    all.operations += one->sum.operations;
    all.bytes += one->sum.bytes;
    all.failed += one->sum.failed;
    all.missing += one->sum.missing;
    all.wrong += one->sum.wrong;
    if (one->sum.last.status == 0) all.last = one->sum.last;
    if (!one->sum.reason.empty()) all.reason = one->sum.reason;
  }
  const auto us = [&](double fraction) { return 1e-3 * static_cast<double>(all.latency.quantile(fraction)); };
  const double rate = static_cast<double>(all.operations) / seconds, gb = 1e-9 * static_cast<double>(all.bytes) / seconds;
  std::printf("%-12s %11.0f op/s %8.3f GB/s  us: p50 %9.1f p99 %9.1f p99.9 %9.1f max %9.1f  path %s", test.c_str(), rate, gb,
              us(0.5), us(0.99), us(0.999), 1e-3 * static_cast<double>(all.latency.highest()),
              store_protocol::name_of(all.last.result.way));
  if (all.missing > 0) std::printf("  not there: %" PRIu64, all.missing);
  std::printf("\n");
  nlohmann::json row = {{"kind", "load"},
                        {"test", test},
                        {"loop", options.rate > 0 ? "open" : "closed"},
                        {"clients", options.clients},
                        {"depth", options.depth},
                        {"value_lowest_bytes", mix->lowest_bytes},
                        {"value_highest_bytes", mix->highest_bytes},
                        {"operations", all.operations},
                        {"failed", all.failed},
                        {"missing", all.missing},
                        {"wrong", all.wrong},
                        {"seconds", seconds},
                        {"operations_per_s", rate},
                        {"bandwidth_gb_per_s", gb},
                        {"path", store_protocol::name_of(all.last.result.way)},
                        {"durability", options.level.empty() ? "pool" : options.level},
                        {"latency_ns_mean", all.latency.mean()},
                        {"latency_ns_max", all.latency.highest()}};
  for (const auto& [name, fraction] :
       {std::pair{"latency_ns_p50", 0.5}, {"latency_ns_p90", 0.9}, {"latency_ns_p99", 0.99}, {"latency_ns_p99.9", 0.999}})
    row[name] = all.latency.quantile(fraction);
  results.add_row(row);
  if (all.wrong > 0)
    std::fprintf(stderr,
                 "%s: %" PRIu64
                 " values were not those that were put; peerlane store check, once the store is stopped, "
                 "tells whether its folder is damaged\n",
                 test.c_str(), all.wrong);
  if (all.failed > 0)
    std::fprintf(stderr, "%s: %" PRIu64 " operations failed: %s\n", test.c_str(), all.failed,
                 tools::without_controls(all.reason).c_str());
  return all.wrong == 0 && all.failed == 0;
}

}  // namespace

int run_perf(const tools::invocation& call) {
  perf_options options;
  tools::command_parser parser(call, "Benchmarks a store with kvstore-perf's tests, YCSB and a cache of large values");
  parser.list("--test", options.tests,
              "put, get, put_direct, get_direct, erase, update, throughput, ycsb-a .. ycsb-f, llm [put get]");
  parser.text("--server", "SOCKET|HOST:PORT", options.server,
              "The store: path of its socket or HOST:PORT [start a temporary server]");
  parser.text("--pool_name", "NAME", options.pool_name, "Prefix of the pools' names; the test's name follows");
  parser.integer("--elements", options.elements, 1, 1'000'000'000,
                 "Number of keys, and of operations if there is no --duration");
  parser.integer("--key_length", options.key_length, 1, 1000, "Minimum length of a key in bytes");
  parser.size("--value_length", options.value_length, "Size of a value; 0: the test's default");
  parser.integer("--cores", options.clients, 1, 256, "Number of clients, each a thread with its own connection");
  parser.integer("--depth", options.depth, 1, 4096, "Operations that each client keeps in flight");
  parser.integer("--duration", "SECONDS", options.duration_s, 0, 86'400, "Time to run; 0: run --elements operations");
  parser.integer("--rate", options.rate, 0, 100'000'000,
                 "Open loop: operations a second, all clients together; 0: closed loop");
  parser.integer("--read_pct", "PERCENT", options.read_pct, -1, 100, "throughput: share of gets; -1: 80");
  parser.integer("--insert_erase_pct", "PERCENT", options.insert_erase_pct, 0, 100,
                 "throughput: share of inserts and erases");
  parser.integer("--get_attr_pct", "PERCENT", options.get_attr_pct, 0, 100, "throughput: share of attribute queries");
  parser.integer("--seed", options.seed, 0, INT64_MAX, "Seed of the order of keys");
  parser.text("--durability", "volatile|logged|durable", options.level,
              "What the puts survive: volatile, logged or durable [the pool's setting, durable]");
  parser.size("--arena", options.arena, "Memory tier of the temporary server");
  add(parser, options.target);
  parser.common(options.common, false);
  if (const auto code = parser.parse()) return *code;
  if (!options.server.empty())
    (options.server.find('/') != std::string::npos ? options.target.socket : options.target.connect) = options.server;
  std::optional<own_server> own;
  if (options.target.socket.empty() && options.target.connect.empty() && is_unserved(options.target.data)) {
    own.emplace(options.target.data, std::vector<std::string>{"--arena", std::to_string(options.arena), "--chunk", "16M"});
    options.target.socket = own->socket();
  }
  tools::report report(call, options.common, "store perf");
  report.describe(nullptr, nullptr, "unknown");
  report.file().set_parameter("elements", options.elements);
  report.file().set_parameter("rate", options.rate);
  bool passed = true;
  for (const auto& test : options.tests) passed = run_test(options, test, report.file()) && passed;
  report.file().set_pass(passed);
  report.write();
  return passed ? tools::kExitOk : tools::kExitFailed;
}

}  // namespace pl::store_tools
