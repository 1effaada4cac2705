// SPDX-License-Identifier: Apache-2.0
#include "tools/soak/store_client_soak.hpp"

#include <cerrno>
#include <cstdio>

#include "base/clock.hpp"
#include "base/text.hpp"

namespace pl::soak {
namespace {

constexpr const char* kPools[] = {"durable", "logged", "volatile", "cache"};
constexpr std::size_t kMaxValueBytes = 3u << 20;
constexpr unsigned kWorkTimeoutMs = 3000;  // disturbances last about as long: operations shall meet their ends, too
constexpr unsigned kCalmTimeoutMs = kHungMs;

store_protocol::pool_settings settings_of(unsigned level) {
  store_protocol::pool_settings out;
  if (const auto named = store::durability_named(kPools[level])) out.level = *named;
  return out;
}

// Small shares, so that values leave memory and then the disk.
std::optional<store_protocol::cache_settings> cache_settings_of(unsigned level) {
  if (std::string_view(kPools[level]) != "cache") return std::nullopt;
  store_protocol::cache_settings out;
  out.memory_bytes = 6u << 20;
  out.disk_bytes = 12u << 20;
  return out;
}

}  // namespace

store_client_soak::store_client_soak(const plan& run, findings& seen, const store_under_soak& store, unsigned number)
    : run_(run), seen_(seen), store_(store), number_(number), random_(run.seed * 1000 + number), room_(kMaxValueBytes) {
  for (unsigned pool = 0; pool < kLevels; ++pool)
    for (unsigned i = 0; i < kKeys; ++i)
      keys_.push_back({format("client %u key %u", number, i),
                       (std::uint64_t{number} << 32) | (pool << 16) | i,
                       static_cast<level>(pool),
                       {},
                       0,
                       0,
                       0,
                       {}});
}

// Opens a new connection and the pools. Returns false if that is not possible now.
bool store_client_soak::reach(const std::string& socket, unsigned timeout_ms) {
  client_.reset();
  store_client::client_options options;
  options.server.socket = socket;
  options.timeout_ms = timeout_ms;
  options.use_shm = number_ % 4 != 3;  // one in four by the socket alone
  auto opened = store_client::client::open(options);
  if (!opened) return false;
  for (unsigned i = 0; i < kLevels; ++i) {
    auto pool = (*opened)->open_pool(kPools[i]);
    if (!pool && pool.code() == ENXIO) pool = (*opened)->create_pool(kPools[i], settings_of(i), cache_settings_of(i));
    if (!pool && pool.code() == EEXIST) pool = (*opened)->open_pool(kPools[i]);
    if (!pool) return false;
    pools_[i] = *pool;
  }
  client_ = std::move(*opened);
  return true;
}

void store_client_soak::notice_lost() {
  const std::uint64_t epoch = store_.epoch();
  if (epoch == epoch_) return;
  epoch_ = epoch;
  for (auto& one : keys_)
    if (!one.is_kept()) one.states.may_be_lost();
}

std::size_t store_client_soak::random_size() {
  const std::uint64_t top = std::uint64_t{kMinValueBytes} << (random_() % 18);
  return kMinValueBytes + random_() % std::min<std::uint64_t>(top, kMaxValueBytes - kMinValueBytes);
}

void store_client_soak::put(key& one) {
  const state_number state = ++last_;
  const auto bytes = value_bytes(one.id, state, random_size());
  const auto memory = client_->classify(reinterpret_cast<std::uint64_t>(bytes.data()), bytes.size());
  store_client::put_request options;
  if (one.pool == level::cache && random_() % 2 == 0) options.ttl_ms = 20 + random_() % 400;
  one.begin(state);
  const auto answer = client_->run(client_->make_put(pools_[static_cast<unsigned>(one.pool)], one.name, *memory, options));
  if (answer.status == 0) {
    one.acknowledge(state);
    one.expiring = options.ttl_ms ? state : 0;
    one.expires_ns = monotonic_ns() + options.ttl_ms.value_or(0) * 1'000'000;
  }
  seen_.count(answer.status == 0 ? "puts acknowledged" : "puts failed");
  notice_lost();
}

void store_client_soak::erase(key& one) {
  const bool may_be_absent = one.states.may_be(0);
  one.begin(0);
  const auto answer = client_->run(client_->make_erase(pools_[static_cast<unsigned>(one.pool)], one.name, {}));
  notice_lost();
  if (answer.status == 0) one.acknowledge(0);
  seen_.count(answer.status == 0 || answer.status == ENOENT ? "erases acknowledged" : "erases failed");
  if (answer.status == ENOENT && !may_be_absent && one.is_kept())
    seen_.violation(format("%s, %s: erase says there is no value, but it must be one of %s",
                           kPools[static_cast<unsigned>(one.pool)], one.name.c_str(),
                           text_of(one.states.possible()).c_str()));
}

// The value that an answer shows for a key; nothing for bytes of no known value. A batch may show the first part of it.
std::optional<state_number> store_client_soak::state_shown(const key& one, const store_client::reply& answer,
                                                           const unsigned char* bytes) {
  if (answer.status == ENOENT) return 0;
  return state_of_part(one.id, bytes, answer.moved_bytes, answer.result.value_bytes);
}

std::string store_client_soak::contradiction(const key& one, const std::optional<state_number>& shown) const {
  return format("%s, %s: a get shows %s, but it must be one of %s", kPools[static_cast<unsigned>(one.pool)],
                one.name.c_str(), shown ? text_of({*shown}).c_str() : "bytes of no value",
                text_of(one.states.possible()).c_str());
}

// Returns false if there is no answer.
bool store_client_soak::take_answer(key& one, const store_client::reply& answer, const unsigned char* bytes,
                                    std::uint64_t asked_ns) {
  if (answer.status != 0 && answer.status != ENOENT) {
    seen_.count("gets failed");
    return false;
  }
  seen_.count("gets answered");
  one.shown = state_shown(one, answer, bytes);
  if (!one.shown || !one.states.may_be(*one.shown)) {
    seen_.violation(contradiction(one, one.shown));
  } else if (*one.shown != 0 && *one.shown == one.expiring && asked_ns > one.expires_ns) {
    seen_.violation(format("cache, %s: a get shows state %llu %llu ms after its time", one.name.c_str(),
                           static_cast<unsigned long long>(*one.shown),
                           static_cast<unsigned long long>((asked_ns - one.expires_ns) / 1'000'000)));
  }
  return true;
}

bool store_client_soak::get(key& one) {
  const auto memory = client_->classify(reinterpret_cast<std::uint64_t>(room_.data()), room_.size());
  const std::uint64_t asked_ns = monotonic_ns();
  const auto answer = client_->run(client_->make_get(pools_[static_cast<unsigned>(one.pool)], one.name, *memory, {}));
  notice_lost();
  return take_answer(one, answer, room_.data(), asked_ns);
}

void store_client_soak::work() {
  while (!is_over(run_)) {
    if (!client_ && !reach(store_.socket(), kWorkTimeoutMs)) {
      pause_ms(run_, 20);
      continue;
    }
    check_unknown_batches();
    if (!unknown_batches_.empty()) {
      pause_ms(run_, 10);
      continue;
    }
    key& one = keys_[random_() % keys_.size()];
    switch (random_() % 11) {
      case 0:
        erase(one);
        break;
      case 8:
        put_batch();
        break;
      case 9:
        get_batch();
        break;
      case 10:
        random_() % 4 == 0 ? erase_prefix() : random_() % 2 == 0 ? erase_batch() : put_batch();
        break;
      case 1:
      case 2:
      case 3:
        put(one);
        break;
      default:
        if (!get(one)) pause_ms(run_, 10);
    }
    // Clients connect and disconnect often.
    if (random_() % 200 == 0) client_.reset();
  }
}

void store_client_soak::check_all() {
  if (!reach(store_.socket(), kCalmTimeoutMs)) {
    seen_.violation("after the last disturbance the store does not serve");
    return;
  }
  for (auto& one : keys_)
    if (!get(one)) seen_.violation("after the last disturbance a get fails: " + one.name);
  check_atomic_batches();
  key& last = keys_.front();
  put(last);
  if (last.states.possible().size() != 1) seen_.violation("after the last disturbance a durable put fails");
  client_.reset();
}

std::uint64_t store_client_soak::silent_losses(const std::string& socket, const std::string& damage) {
  std::uint64_t lost = 0;
  if (!reach(socket, kCalmTimeoutMs)) return 0;  // refused: nothing was shown that is not so
  for (auto& one : keys_) {
    if (!one.is_kept()) continue;
    const auto memory = client_->classify(reinterpret_cast<std::uint64_t>(room_.data()), room_.size());
    store_client::get_request request;
    request.verify = true;
    const auto answer = client_->run(client_->make_get(pools_[static_cast<unsigned>(one.pool)], one.name, *memory, request));
    seen_.touch();
    if (answer.status == ETIMEDOUT) {
      seen_.violation("a get is not answered within 300 s on damaged " + damage);
      break;
    }
    if (answer.status != 0 && answer.status != ENOENT) continue;  // an error is an answer here
    const auto shown = state_shown(one, answer, room_.data());
    if (shown && one.states.may_be(*shown)) continue;
    ++lost;
    std::fprintf(stderr, "%s\n", contradiction(one, shown).c_str());
  }
  client_.reset();
  return lost;
}

}  // namespace pl::soak
