// SPDX-License-Identifier: Apache-2.0
// Initialisation, fork detection, environment, seeded disorder and fault injection. The driver calls about devices are
// in device_api.cpp.
#include "sim/device.hpp"

#include <sys/mman.h>
#include <time.h>

#include <algorithm>
#include <cstring>
#include <map>
#include <mutex>
#include <set>

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "sim/identity.hpp"
#include "sim/settings.hpp"
#include "sim/store_buffer.hpp"

namespace pl::sim {
namespace {

struct process_state {
  std::mutex mutex;  // guards initialisation, failures, logged
  // One page that the kernel zeroes in forked children: no handler to register, works with raw clone() too.
  std::atomic<std::atomic<int>*> alive{nullptr};
  std::vector<device> devices;
  std::atomic<std::uint64_t> seed{0};
  std::atomic<std::uint64_t> draws{0};
  struct failure_rule {
    int countdown;
    result_t code;
  };
  std::map<std::string, failure_rule, std::less<>> failures;
  std::atomic<bool> any_failure{false};
  std::set<std::string, std::less<>> logged;
};

process_state& state() {
  static auto* const instance = new process_state;
  return *instance;
}

thread_local int t_host_function_depth = 0;

// Read before main so that messages about the very first call obey PEERLANE_SIM_LOG.
__attribute__((constructor)) void read_log_level() {
  set_log_level(static_cast<log_level>(env_read("PEERLANE_SIM_LOG").integer));
}

uuid_t make_uuid(int physical) {
  uuid_t uuid{};
  unsigned char bytes[16];
  board_uuid(static_cast<std::size_t>(physical), bytes);
  std::memcpy(uuid.bytes, bytes, sizeof bytes);
  return uuid;
}

// CUDA_VISIBLE_DEVICES: ordinals or UUID prefixes; the list ends at the first entry that names nothing, as in CUDA.
std::vector<int> visible_boards(int boards) {
  std::vector<int> visible;
  const env_value list = env_read("CUDA_VISIBLE_DEVICES");
  if (!list.is_set) {
    for (int i = 0; i < boards; ++i) visible.push_back(i);
    return visible;
  }
  std::string_view rest = list.text;
  while (!rest.empty()) {
    const auto comma = rest.find(',');
    const std::string entry(rest.substr(0, comma));
    rest = comma == std::string_view::npos ? std::string_view{} : rest.substr(comma + 1);
    int board = -1;
    if (entry.rfind("GPU-", 0) == 0) {
      for (int i = 0; i < boards; ++i)
        if (board_uuid_text(static_cast<std::size_t>(i)).rfind(entry, 0) == 0)
          board = board < 0 ? i : boards;  // ambiguous: none
    } else if (const auto ordinal = parse_integer(entry)) {
      board = *ordinal >= 0 && *ordinal < boards ? static_cast<int>(*ordinal) : -1;
    }
    if (board < 0 || board >= boards || std::count(visible.begin(), visible.end(), board) != 0) break;
    visible.push_back(board);
  }
  return visible;
}

void make_devices(process_state& s) {
  const auto boards = static_cast<int>(read_board_count());
  const auto memory_bytes = static_cast<std::size_t>(env_read("PEERLANE_SIM_MEMORY").integer);
  const auto visible = visible_boards(boards);
  s.devices = std::vector<device>(visible.size());
  for (std::size_t i = 0; i < visible.size(); ++i) {
    device& d = s.devices[i];
    d.ordinal = static_cast<int>(i);
    d.physical = visible[i];
    d.uuid = make_uuid(d.physical);
    d.pci_id = board_pci_id(static_cast<std::size_t>(d.physical));
    d.memory_bytes = memory_bytes / kGpuPageBytes * kGpuPageBytes;
  }
}

}  // namespace

result_t initialize() {
  process_state& s = state();
  if (const auto* alive = s.alive.load()) return alive->load() == 1 ? code::success : code::not_initialized;
  const std::lock_guard lock(s.mutex);
  if (s.alive.load() != nullptr) return code::success;
  make_devices(s);
  if (s.devices.empty()) return code::no_device;
  s.seed = static_cast<std::uint64_t>(env_read("PEERLANE_SIM_SEED").integer);
  set_store_delay(
      static_cast<std::uint32_t>(std::clamp<std::int64_t>(env_read("PEERLANE_SIM_DELAY").integer, 0, 1'000'000)));
  void* page = mmap(nullptr, kPageBytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  if (page == MAP_FAILED) return code::operating_system;
  madvise(page, kPageBytes, MADV_WIPEONFORK);
  auto* alive = new (page) std::atomic<int>(1);
  s.alive.store(alive);
  return code::success;
}

result_t check_initialized() {
  const auto* alive = state().alive.load(std::memory_order_acquire);
  if (alive == nullptr || alive->load(std::memory_order_relaxed) != 1) return code::not_initialized;
  return t_host_function_depth == 0 ? code::success : code::not_permitted;
}

std::vector<device>& devices() { return state().devices; }

device* find_device(device_t ordinal) {
  auto& all = devices();
  return ordinal >= 0 && static_cast<std::size_t>(ordinal) < all.size() ? &all[static_cast<std::size_t>(ordinal)] : nullptr;
}

fabric_mode fabric_handles() {
  static const auto mode = static_cast<fabric_mode>(env_read("PEERLANE_SIM_FABRIC").integer);
  return mode;
}

bool has_multicast() {
  static const bool has = env_read("PEERLANE_SIM_MULTICAST").integer != 0;
  return has;
}

std::uint64_t seed() { return state().seed.load(std::memory_order_relaxed); }

std::uint64_t random_below(std::uint64_t limit) {
  process_state& s = state();
  return mix(s.seed.load(std::memory_order_relaxed) ^ mix(s.draws.fetch_add(1, std::memory_order_relaxed))) % limit;
}

void random_delay() {
  if (seed() == 0) return;
  const timespec pause{0, static_cast<long>(random_below(200'000))};
  nanosleep(&pause, nullptr);
}

host_function_scope::host_function_scope() { ++t_host_function_depth; }
host_function_scope::~host_function_scope() { --t_host_function_depth; }

result_t injected_failure(const char* call) {
  process_state& s = state();
  if (!s.any_failure.load(std::memory_order_relaxed)) [[likely]]
    return code::success;
  const std::lock_guard lock(s.mutex);
  const auto rule = s.failures.find(call);
  if (rule == s.failures.end() || --rule->second.countdown > 0) return code::success;
  const result_t injected = rule->second.code;
  s.failures.erase(rule);
  s.any_failure = !s.failures.empty();
  return injected;
}

void log_unsupported_once(const char* call, const char* reason) {
  process_state& s = state();
  {
    const std::lock_guard lock(s.mutex);
    if (!s.logged.insert(call).second) return;
  }
  PL_LOG(error, "sim: %s %s", call, reason);
}

// What this process has allocated of a board's memory; for the management library.
PL_SIM_EXPORT unsigned long long peerlaneSimUsedBytes(unsigned board) {
  for (const auto& d : devices())
    if (d.physical == static_cast<int>(board)) return d.used_bytes.load();
  return 0;
}

PL_SIM_EXPORT int peerlaneSimVersion() { return 1; }

// What PEERLANE_SIM_SEED and PEERLANE_SIM_DELAY say, changed at run time. After cuInit, with no work outstanding.
PL_SIM_EXPORT void peerlaneSimSetDisorder(unsigned long long seed_value, unsigned delay_us) {
  process_state& s = state();
  s.seed = seed_value;
  s.draws = 0;
  set_store_delay(delay_us);
}

// The nth (1 = next) call of `call` fails with `code`; one rule a name, a later one replaces it, nth < 1 removes it.
PL_SIM_EXPORT void peerlaneSimFail(const char* call, int nth, int failure) {
  process_state& s = state();
  const std::lock_guard lock(s.mutex);
  if (nth < 1) s.failures.erase(call);
  else s.failures[call] = {nth, failure};
  s.any_failure = !s.failures.empty();
}

}  // namespace pl::sim
