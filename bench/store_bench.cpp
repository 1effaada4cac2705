// SPDX-License-Identifier: Apache-2.0
// The store's engine against what the disk and others give, in the same run.
//
//   store_bench --dir DIR [--json FILE] [--seconds S] [--restart-gb G] [--large-rounds N]
//               [--only small,large,volatile,restart]
//
// Method: contenders take turns, three rounds each (large: nine); the median round is reported and all are kept. Everything
// goes to DIR, which is removed at the end. Values are different each time; what the store holds is checked after each part.
//   small     durable puts of 4 KiB: the engine with 32 threads (group commit) and with one; RocksDB with sync=true and LMDB
//             (when built in) by one client, which is how applications use them
//   large     durable puts of 128 MiB, one after the other and three under way: the engine, and the ceiling, which
//             writes the same memory by the same io_uring code with O_DIRECT into a file that was written before, then
//             fdatasync. New contents are made before the clock starts. The share is the median of the rounds' shares
//   volatile  puts of 4 KiB into memory, one thread and two
//   restart   a store of G GB of 1 MiB values (killed, not closed): time until open() returns and the first value is read
#include <fcntl.h>
#include <rocksdb/db.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <thread>
#include <vector>

#include "bench/must.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"
#include "store/engine/disk.hpp"
#include "store/engine/engine.hpp"
#ifdef PL_HAS_LMDB
#include <lmdb.h>
#endif

namespace pl::store {
namespace {

using clock_type = std::chrono::steady_clock;
constexpr std::size_t kSmallBytes = 4096;
constexpr std::size_t kLargeBytes = std::size_t{128} << 20;
constexpr int kRounds = 3;

double seconds_since(clock_type::time_point start) {
  return std::chrono::duration<double>(clock_type::now() - start).count();
}

struct arguments {
  std::string folder;
  std::string json;
  std::string only = "small,large,volatile,restart";
  double seconds = 3;
  double restart_gb = 10;
  int large_rounds = 9;  // short ones
  std::string rival;
  bool wants(const char* part) const { return only.find(part) != std::string::npos; }
};

std::unique_ptr<engine> open_store(const std::string& folder, std::uint64_t arena_bytes) {
  engine_options settings;
  settings.directory = folder;
  settings.arena_bytes = arena_bytes;
  return must(engine::open(std::move(settings)));
}

pool_id pool_of(engine& store, durability level) {
  pool_options settings;
  settings.level = level;
  if (auto found = store.find_pool("bench")) return found->id;
  return must(store.create_pool("bench", settings)).id;
}

// Different contents for each number, cheaply.
void stamp(std::span<std::byte> value, std::uint64_t number) {
  for (std::size_t offset = 0; offset + 8 <= value.size(); offset += 512) std::memcpy(value.data() + offset, &number, 8);
}

// Calls of `put(thread, number)` a second from so many threads.
double rate(std::size_t threads, double seconds, const std::function<void(std::size_t, std::uint64_t)>& put) {
  std::atomic<std::uint64_t> done{0};
  const auto start = clock_type::now();
  std::vector<std::thread> running;
  for (std::size_t t = 0; t < threads; ++t) {
    running.emplace_back([&, t] {
      std::uint64_t number = 0;
      while (seconds_since(start) < seconds) put(t, number++);
      done += number;
    });
  }
  for (std::thread& thread : running) thread.join();
  return static_cast<double>(done) / seconds_since(start);
}

double median_of(std::vector<double> all) {
  std::sort(all.begin(), all.end());
  return all[all.size() / 2];
}

struct contender {
  std::string name;
  std::string unit;
  std::function<double()> round;
  std::vector<double> results{};
  double median() const { return median_of(results); }
};

void take_turns(std::vector<contender>& all, const std::string& part, result_file& out, int rounds = kRounds) {
  for (int round = 0; round < rounds; ++round) {
    for (contender& one : all) one.results.push_back(one.round());
  }
  for (const contender& one : all) {
    std::printf("%-9s %-28s %12.1f %s\n", part.c_str(), one.name.c_str(), one.median(), one.unit.c_str());
    out.add_row({{"part", part},
                 {"contender", one.name},
                 {"median", one.median()},
                 {"unit", one.unit},
                 {"series", part + "/" + one.name}});
    out.add_samples(part + "/" + one.name, one.results, one.unit);
  }
  std::fflush(stdout);
}

double engine_puts(const std::string& folder, durability level, std::size_t threads, double seconds) {
  const auto store = open_store(folder, std::uint64_t{1} << 30);
  const pool_id pool = pool_of(*store, level);
  const double got = rate(threads, seconds, [&](std::size_t thread, std::uint64_t number) {
    thread_local std::vector<std::byte> value(kSmallBytes);
    stamp(value, number);
    const auto done = store->put(pool, std::to_string(thread) + "/" + std::to_string(number % 1000), value);
    if (!done || done->reached != level) die("put: " + (done ? "wrong durability" : done.error().message));
  });
  const auto report = must(store->check(true));
  if (!report.problems.empty()) die(report.problems.front());
  return got;
}

double rocksdb_puts(const std::string& folder, double seconds) {
  rocksdb::Options options;
  options.create_if_missing = true;
  options.compression = rocksdb::kNoCompression;
  rocksdb::DB* opened = nullptr;
  if (!rocksdb::DB::Open(options, folder, &opened).ok()) die("RocksDB does not open");
  const std::unique_ptr<rocksdb::DB> db(opened);
  rocksdb::WriteOptions write_options;
  write_options.sync = true;
  std::vector<std::byte> value(kSmallBytes);
  return rate(1, seconds, [&](std::size_t, std::uint64_t number) {
    stamp(value, number);
    if (!db->Put(write_options, std::to_string(number % 1000), {reinterpret_cast<const char*>(value.data()), value.size()})
             .ok())
      die("RocksDB put");
  });
}

#ifdef PL_HAS_LMDB
double lmdb_puts(const std::string& folder, double seconds) {
  std::filesystem::create_directories(folder);
  MDB_env* env = nullptr;
  if (mdb_env_create(&env) != 0 || mdb_env_set_mapsize(env, std::size_t{1} << 30) != 0 ||
      mdb_env_open(env, folder.c_str(), 0, 0600) != 0)
    die("LMDB does not open");
  std::vector<std::byte> value(kSmallBytes);
  const double got = rate(1, seconds, [&](std::size_t, std::uint64_t number) {
    stamp(value, number);
    std::string name = std::to_string(number % 1000);
    MDB_txn* transaction = nullptr;
    MDB_dbi dbi = 0;
    MDB_val key{name.size(), name.data()};
    MDB_val data{value.size(), value.data()};
    if (mdb_txn_begin(env, nullptr, 0, &transaction) != 0 || mdb_dbi_open(transaction, nullptr, 0, &dbi) != 0 ||
        mdb_put(transaction, dbi, &key, &data, 0) != 0 || mdb_txn_commit(transaction) != 0)
      die("LMDB put");
  });
  mdb_env_close(env);
  return got;
}
#endif

void small_part(const arguments& args, result_file& out) {
  std::vector<contender> all{
      {"store, 32 threads", "op/s",
       [&] { return engine_puts(args.folder + "/store", durability::durable, 32, args.seconds); }},
      {"store, 1 thread", "op/s", [&] { return engine_puts(args.folder + "/store", durability::durable, 1, args.seconds); }},
      {"RocksDB sync, 1 client", "op/s", [&] { return rocksdb_puts(args.folder + "/rocksdb", args.seconds); }},
#ifdef PL_HAS_LMDB
      {"LMDB sync, 1 client", "op/s", [&] { return lmdb_puts(args.folder + "/lmdb", args.seconds); }},
#endif
  };
  take_turns(all, "small", out);
  const double best = std::max(all[2].median(), all.back().median());
  std::printf("small     32 threads / best single client: %.2f\n", all[0].median() / best);
  out.add_row({{"part", "small"},
               {"contender", "ratio to the better single client"},
               {"median", all[0].median() / best},
               {"unit", "1"}});
}

// Durable values of 128 MiB by the engine and, from the same memory, past it: one write of the whole value by the same
// io_uring code and one fdatasync each, into a file that was allocated and written before, as the engine's are.
class large_values {
 public:
  explicit large_values(const std::string& folder)
      : store_(open_store(folder + "/large", std::uint64_t{1} << 30)),
        pool_(pool_of(*store_, durability::durable)),
        files_(make_system_disk(staging::never)),
        file_(must(files_->open_file(folder + "/ceiling", kValues * kLargeBytes, false))) {
    for (auto& one : memory_) one.reset(static_cast<std::byte*>(std::aligned_alloc(kHugePageBytes, kLargeBytes)));
    for (auto& one : memory_) {
      ::madvise(one.get(), kLargeBytes, MADV_HUGEPAGE);  // the best case for the disk; the engine's own memory is as it is
      std::memset(one.get(), 7, kLargeBytes);
    }
  }
  ~large_values() { files_->close_file(file_); }

  double by_engine(int ahead) {
    prepare();
    const auto start = clock_type::now();
    for (int i = 0; i < kValues; ++i) {
      if (ahead == 1) {
        if (auto done = store_->put(pool_, std::to_string(i), value(i)); !done) die(done.error().message);
        continue;
      }
      wait_until_open(ahead - 1);
      ++open_;
      store_->put_async(pool_, std::to_string(i), value(i), {}, [&](const result<put_result>& done) {
        if (!done) die(done.error().message);
        --open_;
        open_.notify_one();
      });
    }
    wait_until_open(0);
    return rate_since(start);
  }
  double by_disk_alone(int threads) {
    prepare();
    const auto start = clock_type::now();
    std::atomic<int> next{0};
    const auto write = [&] {
      for (int i = next++; i < kValues; i = next++) {
        const block_io block{file_, static_cast<std::uint64_t>(i) * kLargeBytes, value(i).data(), kLargeBytes};
        if (!files_->write({&block, 1}) || !files_->sync(file_)) die("O_DIRECT write");
      }
    };
    std::vector<std::thread> others;
    for (int i = 1; i < threads; ++i) others.emplace_back(write);
    write();
    for (std::thread& thread : others) thread.join();
    return rate_since(start);
  }
  void check() {
    const auto report = must(store_->check(true));
    if (!report.problems.empty()) die(report.problems.front());
  }

 private:
  static constexpr int kValues = 8;
  static constexpr std::size_t kHugePageBytes = std::size_t{2} << 20;
  static double rate_since(clock_type::time_point start) {
    return kValues * static_cast<double>(kLargeBytes) / seconds_since(start) / 1e9;
  }
  std::span<std::byte> value(int i) { return {memory_[i].get(), kLargeBytes}; }
  // Until no more puts than these are under way; without turning round and round on a CPU that the engine needs.
  void wait_until_open(int max_open) {
    for (int now = open_; now > max_open; now = open_) open_.wait(now);
  }
  void prepare() {  // before the clock starts, for all contenders
    for (int i = 0; i < kValues; ++i) stamp(value(i), ++number_);
  }

  std::atomic<int> open_{0};
  std::unique_ptr<engine> store_;
  pool_id pool_;
  std::unique_ptr<disk> files_;
  int file_;
  std::unique_ptr<std::byte[], decltype([](std::byte* memory) { std::free(memory); })> memory_[kValues];
  std::uint64_t number_ = 0;
};

void large_part(const arguments& args, result_file& out) {
  large_values values(args.folder);
  constexpr int kAhead = 3;
  std::vector<contender> all{{"store, one after the other", "GB/s", [&] { return values.by_engine(1); }},
                             {"O_DIRECT, one after the other", "GB/s", [&] { return values.by_disk_alone(1); }},
                             {"store, three under way", "GB/s", [&] { return values.by_engine(kAhead); }},
                             {"O_DIRECT, three under way", "GB/s", [&] { return values.by_disk_alone(kAhead); }}};
  // Not counted: extents and memory are touched for the first time.
  for (int i = 0; i < 2; ++i) {
    for (contender& one : all) one.round();
  }
  take_turns(all, "large", out, args.large_rounds);
  for (std::size_t i = 0; i < all.size(); i += 2) {
    // Of each round by itself: the disk's own rate wanders between rounds more than the two differ.
    std::vector<double> shares;
    for (std::size_t round = 0; round < all[i].results.size(); ++round)
      shares.push_back(all[i].results[round] / all[i + 1].results[round]);
    const double share = median_of(shares);
    std::printf("large     %s: %.0f %% of O_DIRECT\n", all[i].name.c_str(), 100 * share);
    out.add_row({{"part", "large"},
                 {"contender", all[i].name + ", share of O_DIRECT"},
                 {"median", share},
                 {"unit", "1"},
                 {"series", "large/" + all[i].name + ", share"}});
    out.add_samples("large/" + all[i].name + ", share", shares, "1");
  }
  values.check();
}

void volatile_part(const arguments& args, result_file& out) {
  std::vector<contender> all{
      {"store, 1 thread", "op/s",
       [&] { return engine_puts(args.folder + "/volatile", durability::volatile_, 1, args.seconds); }},
      {"store, 2 threads", "op/s",
       [&] { return engine_puts(args.folder + "/volatile", durability::volatile_, 2, args.seconds); }}};
  take_turns(all, "volatile", out);
}

void restart_part(const arguments& args, result_file& out) {
  const std::string folder = args.folder + "/restart";
  constexpr std::size_t kValueBytes = 1'000'000;
  const auto count = static_cast<std::uint64_t>(args.restart_gb * 1e9 / kValueBytes);
  const pid_t child = ::fork();
  if (child == 0) {
    const auto store = open_store(folder, std::uint64_t{256} << 20);
    const pool_id pool = pool_of(*store, durability::durable);
    std::vector<std::byte> value(kValueBytes);
    std::atomic<int> open{0};
    for (std::uint64_t i = 0; i < count; ++i) {
      stamp(value, i);
      while (open >= 32) std::this_thread::yield();
      ++open;
      store->put_async(pool, std::to_string(i), value, {}, [&](const result<put_result>& done) {
        if (!done) die(done.error().message);
        --open;
      });
    }
    while (open > 0) std::this_thread::yield();
    ::_exit(0);  // as killed: nothing is closed
  }
  int status = 0;
  if (::waitpid(child, &status, 0) != child || status != 0) die("filling the store failed");
  std::vector<double> opened, first;
  for (int round = 0; round < kRounds; ++round) {
    for (const auto& entry : std::filesystem::directory_iterator(folder + "/index")) {  // out of the page cache
      const int file = ::open(entry.path().c_str(), O_RDONLY | O_CLOEXEC);
      if (file >= 0 && ::posix_fadvise(file, 0, 0, POSIX_FADV_DONTNEED) == 0) ::close(file);
    }
    const auto start = clock_type::now();
    const auto store = open_store(folder, std::uint64_t{256} << 20);
    opened.push_back(seconds_since(start));
    std::vector<std::byte> value(kValueBytes);
    std::uint64_t stamped = 0;
    if (auto got = store->get(pool_of(*store, durability::durable), std::to_string(count / 2), value); !got)
      die(got.error().message);
    std::memcpy(&stamped, value.data(), sizeof stamped);
    if (stamped != count / 2) die("another value came back");
    first.push_back(seconds_since(start));
    if (must(store->pool(pool_of(*store, durability::durable))).keys != count) die("keys are missing");
  }
  for (const auto& [name, samples] : {std::pair("open() returned", opened), std::pair("first value read", first)}) {
    std::printf("restart   %-28s %12.3f s (%.1f GB, %llu values)\n", name, median_of(samples), args.restart_gb,
                static_cast<unsigned long long>(count));
    out.add_row({{"part", "restart"},
                 {"contender", name},
                 {"median", median_of(samples)},
                 {"unit", "s"},
                 {"series", std::string("restart/") + name}});
    out.add_samples(std::string("restart/") + name, samples, "s");
  }
}

// One rival for so long; its rate goes to standard output, for scripts that give it turns with others.
int run_rival(const arguments& args) {
  std::filesystem::remove_all(args.folder);
  std::filesystem::create_directories(args.folder);
  double got = 0;
  if (args.rival == "rocksdb") got = rocksdb_puts(args.folder + "/rocksdb", args.seconds);
#ifdef PL_HAS_LMDB
  else if (args.rival == "lmdb") got = lmdb_puts(args.folder + "/lmdb", args.seconds);
#endif
  else die("no rival \"" + args.rival + "\" was built in");
  std::filesystem::remove_all(args.folder);
  std::printf("%.1f\n", got);
  return 0;
}

int run(const arguments& args, const std::vector<std::string>& command) {
  std::filesystem::remove_all(args.folder);
  std::filesystem::create_directories(args.folder);
  result_file out("store_bench", command);
  out.set_machine(describe_host());
  out.set_parameter("small_bytes", kSmallBytes);
  out.set_parameter("large_bytes", kLargeBytes);
  out.set_parameter("rounds", kRounds);
  out.set_parameter("large_rounds", args.large_rounds);
  out.set_parameter("seconds_a_round", args.seconds);
  out.set_parameter("restart_bytes", args.restart_gb * 1e9);
  double load = 0;
  if (::getloadavg(&load, 1) == 1) out.set_parameter("load_average_at_start", load);
  if (args.wants("small")) small_part(args, out);
  if (args.wants("large")) large_part(args, out);
  if (args.wants("volatile")) volatile_part(args, out);
  if (args.wants("restart")) restart_part(args, out);
  std::filesystem::remove_all(args.folder);
  if (args.json.empty()) return 0;
  if (const status written = out.write(args.json); !written) die(written.error().message);
  return 0;
}

}  // namespace
}  // namespace pl::store

int main(int count, char** given) {
  pl::store::arguments args;
  const std::vector<std::string> command(given, given + count);
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = given[i];
    if (name == "--dir") args.folder = given[i + 1];
    if (name == "--json") args.json = given[i + 1];
    if (name == "--only") args.only = given[i + 1];
    if (name == "--seconds") args.seconds = std::atof(given[i + 1]);
    if (name == "--rival") args.rival = given[i + 1];
    if (name == "--large-rounds") args.large_rounds = std::max(1, std::atoi(given[i + 1]));
    if (name == "--restart-gb") args.restart_gb = std::atof(given[i + 1]);
  }
  if (args.folder.empty()) {
    std::fprintf(
        stderr,
        "usage: store_bench --dir DIR [--json FILE] [--seconds S] [--restart-gb G] [--large-rounds N]\n"
        "                   [--only small,large,volatile,restart]\n"
        "       store_bench --dir DIR [--seconds S] --rival rocksdb|lmdb    4 KiB puts a second of one client that syncs "
        "each\n");
    return 2;
  }
  if (!args.rival.empty()) return pl::store::run_rival(args);
  return pl::store::run(args, command);
}
