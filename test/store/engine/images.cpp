// SPDX-License-Identifier: Apache-2.0
// Loses power at every moment of a store's life, on paper.
//
//   store_images --dir DIR [--images N] [--seed S] [--operations M] [--lie PART]
//
// --lie: syncs of files whose path holds PART do nothing, which must be found out.
// A store works on a disk that records what is written and synced (disk_model.hpp). Then, for N moments spread over the
// record, what might be left is drawn and written out; a store opens it. Whatever was acknowledged as durable must be there,
// as must everything acknowledged before it; each key is in the state after some operation that was begun; checksums hold;
// what owners are said to hold is what the values are; and the store works on: what it writes then takes no space that an
// old value lies in.
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <map>
#include <random>
#include <string>
#include <vector>

#include "store/engine/engine.hpp"
#include "test/store/engine/disk_model.hpp"
#include "test/store/engine/torture_values.hpp"

namespace pl::store {
namespace {

constexpr std::size_t kKeys = 8;

struct arguments {
  std::string folder;
  unsigned images = 120;
  unsigned seed = 1;
  unsigned operations = 160;
  std::string lie;
};

engine_options options_of(const std::string& folder, disk& files) {
  engine_options made;
  made.directory = folder;
  made.arena_bytes = made.chunk_bytes = std::uint64_t{4} << 20;
  made.extent_file_bytes = std::uint64_t{1} << 20;
  made.disk_limit_bytes = std::uint64_t{2} << 20;  // so that space is used again soon
  made.disk_reserve_bytes = 0;
  made.small_value_bytes = 4096;
  made.files = &files;
  return made;
}

std::string key_name(std::size_t key) { return "key" + std::to_string(key); }

// One operation of a key, and when it was begun and acknowledged, in events of the disk.
struct step {
  std::uint64_t number = 0;  // 1, 2, ... of the key
  std::size_t begun = 0;
  std::size_t acknowledged = 0;
};

struct life {
  std::vector<step> keys[kKeys];
  std::vector<std::pair<std::size_t, std::size_t>> barriers;  // (begun, acknowledged) of what was durable
  std::size_t pool_made = 0;
};

bool live(const arguments& args, disk_model& files, life& recorded) {
  std::mt19937 random(args.seed);
  auto opened = engine::open(options_of(args.folder + "/live", files));
  if (!opened) return std::fprintf(stderr, "images: %s\n", opened.error().message.c_str()), false;
  pool_options settings;
  settings.level = durability::durable;
  const auto pool = (*opened)->create_pool("pool", settings);
  if (!pool) return false;
  recorded.pool_made = files.events();
  for (unsigned i = 0; i < args.operations; ++i) {
    if (i == args.operations / 2) {  // a restart: new log, new manifest
      opened->reset();
      opened = engine::open(options_of(args.folder + "/live", files));
      if (!opened) return std::fprintf(stderr, "images: %s\n", opened.error().message.c_str()), false;
    }
    const std::size_t key = random() % kKeys;
    auto& steps = recorded.keys[key];
    step now{steps.size() + 1, files.events(), 0};
    const durability level = random() % 3 == 0 ? durability::durable : durability::logged;
    // Nobody's, or of one of two who replace each other's values.
    const owner_id owner = now.number % 4 == 0 ? 0 : (*opened)->need_owner(now.number % 2 == 0 ? "one" : "two");
    int code = 0;
    if (is_erase(now.number))
      code = (*opened)->erase(pool->id, key_name(key), {.level = level, .precondition = condition::none}).code();
    else if (const auto value = value_of(0, 0, key, now.number); now.number % 3 == 0)
      code = put_as_it_comes(**opened, pool->id, key_name(key), value, now.number, {.level = level, .owner = owner});
    else code = (*opened)->put(pool->id, key_name(key), value, {.level = level, .owner = owner}).code();
    if (code != 0) return std::fprintf(stderr, "images: operation %u: errno %d\n", i, code), false;
    now.acknowledged = files.events();
    if (level == durability::durable) recorded.barriers.emplace_back(now.begun, now.acknowledged);
    steps.push_back(now);
  }
  return true;
}

// The least and greatest operation of the key whose outcome may be found after a crash at `cut`.
std::pair<std::uint64_t, std::uint64_t> legal(const life& recorded, std::size_t key, std::size_t cut) {
  std::size_t durable_until = 0;  // events; what was acknowledged before this is durable
  for (const auto& [begun, acknowledged] : recorded.barriers) {
    if (acknowledged <= cut) durable_until = acknowledged;
  }
  std::pair<std::uint64_t, std::uint64_t> range{0, 0};
  for (const step& one : recorded.keys[key]) {
    if (one.acknowledged <= durable_until) range.first = one.number;
    if (one.begun < cut) range.second = one.number;
  }
  range.second = std::max(range.first, range.second);
  return range;
}

// The operation whose outcome the key shows; -1: none of the legal ones.
long found_state(engine& store, pool_id pool, std::size_t key, std::pair<std::uint64_t, std::uint64_t> range) {
  const auto info = store.stat(pool, key_name(key));
  std::vector<std::byte> value(info ? info->length_bytes : 0);
  if (info && !store.get(pool, key_name(key), value, {.verify = true})) return -1;
  for (std::uint64_t number = range.first; number <= range.second; ++number) {
    const bool absent = number == 0 || is_erase(number);
    if (absent ? !info : info && value == value_of(0, 0, key, number)) return static_cast<long>(number);
  }
  return -1;
}

// The second round opens what power left of the first; the third what a stop left of the second.
constexpr int kRounds = 3;

bool check_image(const arguments& args, const life& recorded, std::size_t cut) {
  std::vector<long> states(kKeys, -1);
  for (int round = 0; round < kRounds; ++round) {
    const std::string folder = args.folder + (round == 0 ? "/image" : "/image-again");
    disk_model files(folder, false);
    auto opened = engine::open(options_of(folder, files));
    if (!opened) return std::fprintf(stderr, "images: does not open: %s\n", opened.error().message.c_str()), false;
    engine& store = **opened;
    auto pool = store.find_pool("pool");
    if (!pool && cut >= recorded.pool_made) return std::fprintf(stderr, "images: the pool is gone\n"), false;
    if (!pool) pool = store.create_pool("pool", {});
    if (!pool) return false;
    for (std::size_t key = 0; key < kKeys; ++key) {
      auto range = legal(recorded, key, cut);
      if (round != 0) range.first = range.second = static_cast<std::uint64_t>(states[key]);
      states[key] = found_state(store, pool->id, key, range);
      if (states[key] >= 0) continue;
      std::fprintf(stderr, "images: %s is in no state of operations %llu to %llu\n", key_name(key).c_str(),
                   static_cast<unsigned long long>(range.first), static_cast<unsigned long long>(range.second));
      return false;
    }
    const auto report = store.check(true);
    if (!report || !report->problems.empty())
      return std::fprintf(stderr, "images: %s\n",
                          report ? report->problems.front().c_str() : report.error().message.c_str()),
             false;
    // It works on, and what it writes now lies nowhere else than in free space (the next round looks).
    const std::string name = "after" + std::to_string(round);
    if (!store.put(pool->id, name, value_of(1, 0, 0, 6), {.level = durability::durable, .owner = store.need_owner("one")}) ||
        !store.put(pool->id, name + "large", std::vector<std::byte>(200'000, std::byte{7}), {.level = durability::durable}))
      return std::fprintf(stderr, "images: a put after the crash failed\n"), false;
    for (int before = 0; before < round; ++before)
      if (const auto kept = store.stat(pool->id, "after" + std::to_string(before)); !kept)
        return std::fprintf(stderr, "images: a put after crash %d is gone\n", before), false;
    if (round != 0) continue;
    std::filesystem::remove_all(args.folder + "/image-again");
    std::filesystem::copy(folder, args.folder + "/image-again", std::filesystem::copy_options::recursive);
  }
  return true;
}

int run(const arguments& args) {
  std::filesystem::remove_all(args.folder);
  std::filesystem::create_directories(args.folder);
  disk_model files(args.folder + "/live", true);
  files.lie_about = args.lie;
  life recorded;
  if (!live(args, files, recorded)) return 1;
  std::mt19937 random(args.seed + 1000);
  const std::size_t events = files.events();
  for (unsigned i = 0; i < args.images; ++i) {
    const std::size_t cut = events * (i + 1) / args.images;
    write_image(files.crash(cut, random), args.folder + "/image");
    if (check_image(args, recorded, cut)) continue;
    std::fprintf(stderr,
                 "images: FOUND at image %u of %u, power lost before event %zu of %zu, seed %u; it lies in %s/image\n", i,
                 args.images, cut, events, args.seed, args.folder.c_str());
    if (!args.lie.empty()) std::filesystem::remove_all(args.folder);
    return 1;
  }
  std::printf("images: %u crashes over %zu events of %u operations recovered\n", args.images, events, args.operations);
  std::filesystem::remove_all(args.folder);
  return 0;
}

}  // namespace
}  // namespace pl::store

int main(int count, char** given) {
  pl::store::arguments args;
  for (int i = 1; i + 1 < count; i += 2) {
    const std::string name = given[i];
    if (name == "--dir") args.folder = given[i + 1];
    if (name == "--lie") args.lie = given[i + 1];
    if (name == "--images") args.images = static_cast<unsigned>(std::atoi(given[i + 1]));
    if (name == "--seed") args.seed = static_cast<unsigned>(std::atoi(given[i + 1]));
    if (name == "--operations") args.operations = static_cast<unsigned>(std::atoi(given[i + 1]));
  }
  if (args.folder.empty()) {
    std::fprintf(stderr, "usage: store_images --dir DIR [--images N] [--seed S] [--operations M] [--lie PART]\n");
    return 2;
  }
  return pl::store::run(args);
}
