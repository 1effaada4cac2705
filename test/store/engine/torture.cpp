// SPDX-License-Identifier: Apache-2.0
// Kills the store and looks at what it left, over and over on one data directory.
//
//   store_torture --dir DIR [--rounds N] [--seed S]
//
// A child opens the store and changes keys from several threads; it dies by SIGKILL at a named point of the write path (each
// in turn) or at a random moment. Which operation of a key was begun and which acknowledged stands in memory that outlives
// it. The parent opens the store and demands, for each key, the state after some operation between the last acknowledged and
// the last begun, whole and with its checksum; that index and extents agree; and that volatile values are gone: those of a
// pool of their own, and those that took the place of durable and logged ones, which must not come back for them. Values are
// of nobody or of two owners in turns, and another pool comes and goes with values of theirs: what each is said to hold is
// what a scan finds.
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <future>
#include <map>
#include <random>
#include <string>
#include <thread>
#include <vector>

#include "store/engine/engine.hpp"
#include "test/store/engine/torture_values.hpp"

namespace pl::store {
namespace {

constexpr std::size_t kThreads = 4;
constexpr std::size_t kKeys = 6;      // of a thread
constexpr std::size_t kFillers = 12;  // likewise, of 24 KB
constexpr std::size_t kPools = 2;     // durable and logged: both survive the process
constexpr const char* kPoolNames[kPools] = {"durable", "logged"};
// Every point that the write path names; one that is never reached fails the run.
constexpr const char* kPoints[] = {
    "extent.before-write", "extent.written",        "extent.synced",    "put.extents-durable",       "commit.before-log",
    "commit.after-log",    "commit.keys-published", "commit.published", "commit.before-acknowledge", "commit.acknowledged"};

struct key_history {
  std::atomic<std::uint64_t> begun{0};
  std::atomic<std::uint64_t> acknowledged{0};
};

struct shared_state {
  key_history keys[kPools][kThreads][kKeys];
  std::atomic<std::uint64_t> operations{0};
  std::atomic<bool> wrong{false};  // the child met an error that it should not have
};

// Takes the place of what survives, and does not survive.
bool is_volatile(std::uint64_t number) { return number % 7 == 3 && !is_erase(number); }
bool is_absent_after(std::uint64_t number) { return number == 0 || is_erase(number) || is_volatile(number); }

std::string name_of_key(std::size_t thread, std::size_t key) {
  return "t" + std::to_string(thread) + "/k" + std::to_string(key);
}

engine_options options_of(const std::string& folder) {
  engine_options made;
  made.directory = folder;
  made.arena_bytes = made.chunk_bytes = std::uint64_t{8} << 20;
  made.extent_file_bytes = std::uint64_t{2} << 20;
  made.disk_reserve_bytes = 0;
  made.small_value_bytes = 4096;
  return made;
}

void complain(shared_state& shared, const std::string& complaint) {
  std::fprintf(stderr, "torture: %s\n", complaint.c_str());
  shared.wrong = true;
}

std::string name_of_filler(std::size_t thread, std::size_t number) {
  return "t" + std::to_string(thread) + "/f" + std::to_string(number);
}

// Among others, so many that all of them are written together.
int put_in_run(engine& store, session_id session, pool_id pool, std::size_t thread, const std::string& name,
               const std::vector<std::byte>& value, owner_id owner) {
  std::vector<std::string> names{name};
  std::vector<std::vector<std::byte>> values{value};
  for (std::size_t i = 0; i < kFillers; ++i) {
    names.push_back(name_of_filler(thread, i));
    values.emplace_back(24'000 + i, static_cast<std::byte>(value.size() + i));
  }
  std::vector<run_put> puts;
  for (std::size_t i = 0; i < names.size(); ++i) puts.push_back({names[i], values[i].size()});
  const auto given = store.begin_run(session, pool, puts, {.owner = owner});
  if (!given) return given.code();
  for (std::size_t i = 0; i < names.size(); ++i) {
    std::size_t done = 0;
    for (const segment& piece : given->values[i].segments) {
      std::memcpy(store.arena().base + piece.offset_bytes, values[i].data() + done, piece.size_bytes);
      done += piece.size_bytes;
    }
  }
  std::promise<int> answer;
  run_options options;
  options.put.owner = owner;
  store.commit_run(session, given->first, std::vector<run_commit>(names.size()), options,
                   [&](const std::vector<committed_value>& done) {
                     int code = 0;
                     for (const committed_value& one : done)
                       if (!one.is_done()) code = one.refusal.code;
                     answer.set_value(code);
                   });
  return answer.get_future().get();
}

void change_keys(engine& store, const pool_id* pools, pool_id quick, shared_state& shared, std::size_t thread,
                 unsigned seed) {
  std::mt19937 random(seed);
  const session_id session = store.open_session();
  for (;;) {
    const std::size_t pool = random() % kPools;
    const std::size_t key = random() % kKeys;
    key_history& history = shared.keys[pool][thread][key];
    const std::string name = name_of_key(thread, key);
    const std::uint64_t number = history.acknowledged + 1;
    history.begun = number;
    int code = 0;
    // (A client's name; one number of three is nobody's.)
    const owner_id owner = number % 3 == 0 ? 0 : store.need_owner(number % 3 == 1 ? "one" : "two");
    if (is_volatile(number)) {
      const auto value = value_of(pool, thread, key, number);
      code = store.put(pools[pool], name, value, {.level = durability::volatile_, .owner = owner}).code();
      std::vector<std::byte> back(value.size());
      if (code == 0 && (!store.get(pools[pool], name, back, {.verify = true}) || back != value))
        return complain(shared, "a volatile value is not what was put");
    } else if (is_erase(number)) {
      code = store.erase(pools[pool], name, {.precondition = condition::none}).code();
    } else {
      const auto value = value_of(pool, thread, key, number);
      code = number % 6 == 1   ? put_as_it_comes(store, pools[pool], name, value, number, {.owner = owner})
             : number % 6 == 2 ? put_in_run(store, session, pools[pool], thread, name, value, owner)
                               : store.put(pools[pool], name, value, {.owner = owner}).code();
    }
    if (code != 0) return complain(shared, "operation answered errno " + std::to_string(code));
    history.acknowledged = number;
    ++shared.operations;
    if (random() % 8 == 0 && !store.put(quick, name, value_of(9, thread, key, 1)))
      return complain(shared, "volatile put failed");
  }
}

// A pool that comes and goes.
void make_and_drop(engine& store, shared_state& shared) {
  const owner_id owner = store.need_owner("two");
  for (std::uint64_t turn = 0;; ++turn) {
    auto pool = store.find_pool("comes and goes");
    if (!pool) pool = store.create_pool("comes and goes", {});
    if (!pool) return complain(shared, pool.error().message);
    for (const durability level : {durability::logged, durability::durable, durability::volatile_})
      for (std::uint64_t i = 0; i < 3; ++i)
        if (auto put = store.put(pool->id, std::to_string(i), value_of(8, 0, i, turn), {.level = level, .owner = owner});
            !put)
          return complain(shared, put.error().message);
    if (status gone = store.delete_pool(pool->id); !gone) return complain(shared, gone.error().message);
  }
}

// What the owners are said to hold is what their values are.
bool check_owners(engine& store) {
  std::map<owner_id, std::pair<std::uint64_t, std::uint64_t>> found;
  for (const pool_info& pool : store.list_pools()) {
    const auto page = store.find(pool.id, {});  // a few dozen keys at most
    for (const std::string& key : page ? page->keys : std::vector<std::string>{})
      if (const auto info = store.stat(pool.id, key))
        ++found[info->owner].first, found[info->owner].second += info->length_bytes;
  }
  bool good = true;
  for (const owner_info& one : store.list_owners()) {
    const auto& [keys, bytes] = found[one.id];
    if (one.keys == keys && one.bytes == bytes) continue;
    std::fprintf(stderr, "torture: %s is said to hold %llu keys with %llu bytes, there are %llu with %llu\n",
                 one.name.c_str(), static_cast<unsigned long long>(one.keys), static_cast<unsigned long long>(one.bytes),
                 static_cast<unsigned long long>(keys), static_cast<unsigned long long>(bytes));
    good = false;
  }
  return good;
}

// Does not return.
void live_and_die(const std::string& folder, shared_state& shared, const char* point, unsigned hits, unsigned seed) {
  engine_options settings = options_of(folder);
  std::atomic<unsigned> seen{0};
  if (point != nullptr) {
    settings.on_point = [&](std::string_view reached) {
      if (reached == point && ++seen == hits) ::kill(::getpid(), SIGKILL);
    };
  }
  auto opened = engine::open(std::move(settings));
  if (!opened) {
    complain(shared, opened.error().message);
    ::_exit(1);
  }
  engine& store = **opened;
  pool_id pools[kPools] = {};
  for (std::size_t i = 0; i < kPools; ++i) {
    pool_options pool_settings;
    pool_settings.level = i == 0 ? durability::durable : durability::logged;
    auto pool = store.find_pool(kPoolNames[i]);
    if (!pool) pool = store.create_pool(kPoolNames[i], pool_settings);
    pools[i] = pool ? pool->id : 0;
  }
  pool_options pool_settings;
  pool_settings.level = durability::volatile_;
  auto quick = store.find_pool("volatile");
  if (!quick) quick = store.create_pool("volatile", pool_settings);
  if (pools[0] == 0 || pools[1] == 0 || !quick) ::_exit(1);
  std::vector<std::thread> threads;
  for (std::size_t i = 0; i < kThreads; ++i)
    threads.emplace_back([&, i] { change_keys(store, pools, quick->id, shared, i, seed * 31 + static_cast<unsigned>(i)); });
  threads.emplace_back([&] { make_and_drop(store, shared); });
  for (std::thread& thread : threads) thread.join();
  ::_exit(1);  // only an error ends the threads
}

// The key's value must be the outcome of an operation in [acknowledged, begun], and counts as acknowledged from now on.
bool check_key(engine& store, pool_id pool, std::size_t pool_number, std::size_t thread, std::size_t key,
               key_history& history) {
  const std::string name = name_of_key(thread, key);
  const auto info = store.stat(pool, name);
  std::uint64_t number = history.acknowledged;
  if (!info) {
    while (number <= history.begun && !is_absent_after(number)) ++number;
  } else {
    std::vector<std::byte> value(info->length_bytes);
    const auto got = store.get(pool, name, value, {.verify = true});
    if (!got) {
      std::fprintf(stderr, "torture: %s\n", got.error().message.c_str());
      return false;
    }
    while (number <= history.begun && (is_absent_after(number) || value_of(pool_number, thread, key, number) != value))
      ++number;
  }
  if (number > history.begun) {
    std::fprintf(stderr, "torture: pool %s key %s: neither the state of operation %llu nor of a later one up to %llu (%s)\n",
                 kPoolNames[pool_number], name.c_str(), static_cast<unsigned long long>(history.acknowledged),
                 static_cast<unsigned long long>(history.begun), info ? "a value" : "absent");
    return false;
  }
  history.acknowledged = number;
  history.begun = number;
  return true;
}

bool check(const std::string& folder, shared_state& shared) {
  auto opened = engine::open(options_of(folder));
  if (!opened) {
    std::fprintf(stderr, "torture: does not open: %s\n", opened.error().message.c_str());
    return false;
  }
  engine& store = **opened;
  bool good = true;
  for (std::size_t pool = 0; pool < kPools; ++pool) {
    const auto id = store.find_pool(kPoolNames[pool]);
    if (!id) continue;  // killed before it was made
    std::uint64_t present = 0;
    for (std::size_t thread = 0; thread < kThreads; ++thread) {
      for (std::size_t key = 0; key < kKeys; ++key) {
        good = check_key(store, id->id, pool, thread, key, shared.keys[pool][thread][key]) && good;
        present += store.stat(id->id, name_of_key(thread, key)).ok();
      }
      for (std::size_t i = 0; i < kFillers; ++i) present += store.stat(id->id, name_of_filler(thread, i)).ok();
    }
    if (id->keys != present) {
      std::fprintf(stderr, "torture: pool %s counts %llu keys, there are %llu\n", kPoolNames[pool],
                   static_cast<unsigned long long>(id->keys), static_cast<unsigned long long>(present));
      good = false;
    }
  }
  if (const auto quick = store.find_pool("volatile"); quick && quick->keys != 0) {
    std::fprintf(stderr, "torture: volatile values survived\n");
    good = false;
  }
  good = check_owners(store) && good;
  const auto report = store.check(true);
  if (!report || !report->problems.empty()) {
    std::fprintf(stderr, "torture: %s\n", report ? report->problems.front().c_str() : report.error().message.c_str());
    good = false;
  }
  return good;
}

struct arguments {
  std::string folder;
  unsigned rounds = 20;
  unsigned seed = 1;
};

bool one_round(const arguments& args, unsigned round, std::mt19937& random, shared_state& shared) {
  // Of two rounds one dies at a point, all points in turn, and one by the clock.
  const char* point = round % 2 == 0 ? kPoints[round / 2 % std::size(kPoints)] : nullptr;
  const auto hits = static_cast<unsigned>(1 + random() % 40);
  const auto seed = static_cast<unsigned>(random());
  const pid_t child = ::fork();
  if (child == 0) live_and_die(args.folder, shared, point, hits, seed);
  const std::uint64_t before = shared.operations;
  if (point == nullptr) {
    // Dies under load: some operations after the first, then somewhere between two others.
    const std::uint64_t enough = before + random() % 60;
    while (shared.operations < enough && ::waitpid(child, nullptr, WNOHANG) == 0) ::usleep(200);
    ::usleep(static_cast<useconds_t>(random() % 3000));
    ::kill(child, SIGKILL);
  }
  int status = 0;
  // A point that is never reached must not hang the run.
  for (int waited = 0; ::waitpid(child, &status, WNOHANG) == 0; ++waited) {
    ::usleep(1000);
    if (waited == 60'000) {
      std::fprintf(stderr, "torture: round %u: still alive after 60 s, waiting for %s\n", round,
                   point != nullptr ? point : "its end");
      ::kill(child, SIGKILL);
      ::waitpid(child, &status, 0);
      return false;
    }
  }
  if (shared.wrong) return false;
  const bool good = check(args.folder, shared);
  if (!good)
    std::fprintf(stderr, "torture: round %u (%s, hit %u, seed %u) failed\n", round,
                 point != nullptr ? point : "random moment", hits, args.seed);
  return good;
}

int run(const arguments& args) {
  void* memory = ::mmap(nullptr, sizeof(shared_state), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  if (memory == MAP_FAILED) return 1;
  shared_state& shared = *new (memory) shared_state;
  std::filesystem::remove_all(args.folder);  // of an earlier run, whose history nobody knows
  std::mt19937 random(args.seed);
  for (unsigned round = 0; round < args.rounds; ++round) {
    if (!one_round(args, round, random, shared)) return 1;
  }
  std::filesystem::remove_all(args.folder);
  std::printf("torture: %u kills survived, %llu operations acknowledged\n", args.rounds,
              static_cast<unsigned long long>(shared.operations));
  return shared.operations > 0 ? 0 : 1;
}

}  // namespace
}  // namespace pl::store

int main(int count, char** given) {
  pl::store::arguments args;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = given[i];
    if (name == "--dir") args.folder = given[i + 1];
    if (name == "--rounds") args.rounds = static_cast<unsigned>(std::atoi(given[i + 1]));
    if (name == "--seed") args.seed = static_cast<unsigned>(std::atoi(given[i + 1]));
  }
  if (args.folder.empty()) {
    std::fprintf(stderr, "usage: store_torture --dir DIR [--rounds N] [--seed S]\n");
    return 2;
  }
  return pl::store::run(args);
}
