// SPDX-License-Identifier: Apache-2.0
// What many values by one call cost the engine, without their bytes: the thread of a connection does this for values that a
// DMA channel moves, so it bounds their rate.
//
//   store_batch_engine_bench --dir DIR [--json FILE] [--rounds N] [--values N] [--only single,run]
//
//   single   a call for each value: begin_put and commit_async, lookup_async and unpin
//   run      a call for all values of a batch: begin_run and commit_run, pin_run and unpin_run
// A round puts all values in batches of 256, gets them, and, for `new`, erases them untimed. Ways take turns. A number is of
// one batch, divided by its values: the median and the 99th percentile of all batches.
#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <map>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "bench/must.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"
#include "store/engine/engine.hpp"

namespace pl::store {
namespace {

constexpr std::size_t kBatchValues = 256;
constexpr std::uint64_t kClient = 77;

struct arguments {
  std::string folder, json, only = "single,run";
  std::size_t rounds = 30, values = 4096;
};

struct times {
  std::vector<double> put, get;  // ns a value, by batch
};

class contest {
 public:
  contest(const std::string& folder, std::size_t values) {
    engine_options options;
    options.directory = folder;
    options.arena_bytes = options.chunk_bytes = std::uint64_t{1} << 30;
    options.extent_file_bytes = std::uint64_t{64} << 20;
    store_ = must(engine::open(options));
    pool_options volatile_ones;
    volatile_ones.level = durability::volatile_;
    pool_ = must(store_->create_pool("values", volatile_ones)).id;
    session_ = store_->open_session();
    owner_ = store_->need_owner("uid:1000");
    for (std::size_t i = 0; i < values; ++i)
      keys_.push_back("layer/" + std::to_string(1000 + i % 100) + "/block/" + std::to_string(i));
  }

  void round(const std::string& way, std::uint64_t bytes, times& out) {
    for (std::size_t first = 0; first < keys_.size(); first += kBatchValues) {
      const std::size_t count = std::min(kBatchValues, keys_.size() - first);
      const std::uint64_t begin = monotonic_ns();
      way == "run" ? put_run(first, count, bytes) : put_singly(first, count, bytes);
      out.put.push_back(static_cast<double>(monotonic_ns() - begin) / static_cast<double>(count));
    }
    for (std::size_t first = 0; first < keys_.size(); first += kBatchValues) {
      const std::size_t count = std::min(kBatchValues, keys_.size() - first);
      const std::uint64_t begin = monotonic_ns();
      way == "run" ? get_run(first, count) : get_singly(first, count);
      out.get.push_back(static_cast<double>(monotonic_ns() - begin) / static_cast<double>(count));
    }
  }

  void erase_all() {
    for (const std::string& key : keys_) must(store_->erase(pool_, key));
  }

 private:
  void put_singly(std::size_t first, std::size_t count, std::uint64_t bytes) {
    begin_options begin;
    begin.owner = owner_;
    grants_.clear();
    for (std::size_t i = first; i < first + count; ++i)
      grants_.push_back(must(store_->begin_put(session_, pool_, keys_[i], bytes, begin)).id);
    std::size_t done = 0;
    for (std::size_t i = 0; i < count; ++i) {
      commit_options commit;
      commit.put.level = durability::volatile_;
      commit.put.owner = owner_;
      commit.put.request = {kClient, ++sequence_, 0};
      commit.take_crc = true;
      commit.crc32c = 7;
      store_->commit_async(session_, grants_[i], commit, [&](const result<put_result>& put) { done += put ? 1 : 0; });
    }
    if (done != count) die("a put failed");
  }

  void get_singly(std::size_t first, std::size_t count) {
    pins_.clear();
    for (std::size_t i = first; i < first + count; ++i)
      store_->lookup_async(session_, pool_, keys_[i], {}, [&](const result<pinned_value>& found) {
        if (found) pins_.push_back(found->pin);
      });
    if (pins_.size() != count) die("a get failed");
    for (const pin_id pin : pins_) must(store_->unpin(session_, pin));
  }

  void put_run(std::size_t first, std::size_t count, std::uint64_t bytes) {
    begin_options begin;
    begin.owner = owner_;
    puts_.clear();
    for (std::size_t i = first; i < first + count; ++i) puts_.push_back({keys_[i], bytes});
    const granted_run given = must(store_->begin_run(session_, pool_, puts_, begin));
    commits_.assign(count, {});
    for (run_commit& one : commits_) one.crc32c = 7;
    run_options options;
    options.put.level = durability::volatile_;
    options.put.owner = owner_;
    options.put.request = {kClient, sequence_ + 1, 0};
    sequence_ += count;
    options.take_crc = true;
    std::size_t done = 0;
    store_->commit_run(session_, given.first, commits_, options, [&](const std::vector<committed_value>& values) {
      for (const committed_value& one : values) done += one.is_done() ? 1 : 0;
    });
    if (done != count) die("a put failed");
  }

  void get_run(std::size_t first, std::size_t count) {
    names_.assign(keys_.begin() + static_cast<std::ptrdiff_t>(first),
                  keys_.begin() + static_cast<std::ptrdiff_t>(first + count));
    const pinned_run found = must(store_->pin_run(session_, pool_, names_));
    std::size_t done = 0;
    for (const pinned_run::pinned& one : found.values) done += one.is_pinned ? 1 : 0;
    if (done != count) die("a get failed");
    must(store_->unpin_run(session_, found.first));
  }

  std::unique_ptr<engine> store_;
  pool_id pool_ = 0;
  session_id session_ = 0;
  owner_id owner_ = 0;
  std::uint64_t sequence_ = 0;
  std::vector<std::string> keys_;
  std::vector<grant_id> grants_;
  std::vector<pin_id> pins_;
  std::vector<run_put> puts_;
  std::vector<run_commit> commits_;
  std::vector<std::string_view> names_;
};

double percentile(std::vector<double> samples, double share) {
  std::sort(samples.begin(), samples.end());
  return samples[std::min(samples.size() - 1, static_cast<std::size_t>(share * static_cast<double>(samples.size())))];
}

void report(const std::string& way, const char* keys, std::uint64_t bytes, const char* call,
            const std::vector<double>& samples, result_file& out) {
  const double median = percentile(samples, 0.5), p99 = percentile(samples, 0.99);
  std::printf("%-7s %-10s %6llu bytes  %s  %7.0f ns a value, p99 %7.0f\n", way.c_str(), keys,
              static_cast<unsigned long long>(bytes), call, median, p99);
  out.add_row({{"kind", call},
               {"way", way},
               {"keys", keys},
               {"value_bytes", bytes},
               {"value_ns_p50", median},
               {"value_ns_p99", p99}});
}

int run(const arguments& args, const std::vector<std::string>& line) {
  result_file out("store_batch_engine_bench", line);
  out.set_machine(describe_host());
  for (const std::uint64_t bytes : {std::uint64_t{16384}, std::uint64_t{256}})
    for (const bool is_new : {false, true}) {
      contest one(args.folder + "/" + std::to_string(bytes) + (is_new ? "n" : "o"), args.values);
      std::map<std::string, times> taken;
      for (std::size_t round = 0; round < args.rounds; ++round)
        for (const std::string way : {"single", "run"}) {
          if (args.only.find(way) == std::string::npos) continue;
          times warm_up;
          one.round(way, bytes, round == 0 ? warm_up : taken[way]);
          if (is_new) one.erase_all();
        }
      for (const auto& [way, samples] : taken) {
        report(way, is_new ? "new" : "overwrite", bytes, "put", samples.put, out);
        report(way, is_new ? "new" : "overwrite", bytes, "get", samples.get, out);
      }
    }
  if (!args.json.empty()) must(out.write(args.json));
  return 0;
}

}  // namespace
}  // namespace pl::store

int main(int argc, char** argv) {
  using namespace pl;
  store::arguments args;
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i];
    if (name == "--dir") args.folder = argv[i + 1];
    else if (name == "--json") args.json = argv[i + 1];
    else if (name == "--only") args.only = argv[i + 1];
    else if (name == "--rounds") args.rounds = std::strtoull(argv[i + 1], nullptr, 10);
    else if (name == "--values") args.values = std::strtoull(argv[i + 1], nullptr, 10);
    else die("unknown option " + name);
  }
  if (args.folder.empty() || args.rounds < 2 || args.values == 0)
    die("--dir DIR [--json F] [--rounds N] [--values N] [--only W]");
  std::filesystem::create_directories(args.folder);
  const int code = store::run(args, std::vector<std::string>(argv, argv + argc));
  std::filesystem::remove_all(args.folder);
  return code;
}
