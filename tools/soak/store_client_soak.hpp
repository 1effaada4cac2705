// SPDX-License-Identifier: Apache-2.0
// One client of the store in a soak: puts, gets and erases keys that only it writes, and compares every answer with
// what may be there. Runs on its own thread.
#pragma once

#include <memory>
#include <optional>

#include "store/client/client.hpp"
#include "tools/soak/store_under_soak.hpp"
#include "tools/soak/value_oracle.hpp"

namespace pl::soak {

class store_client_soak {
 public:
  store_client_soak(const plan& run, findings& seen, const store_under_soak& store, unsigned number);

  // Until the end of the run.
  void work();
  // Every key once, after the last disturbance. A store that does not answer by then is a violation.
  void check_all();
  // The same on another store, a damaged copy of this one: each answer is right, or it is an error. Returns how many values
  // were missing or of an older state without an error; one that is not answered at all is a violation. `damage` is for its
  // text.
  std::uint64_t silent_losses(const std::string& socket, const std::string& damage);

 private:
  enum class level : unsigned { durable, logged, volatile_, cache, count };
  static constexpr unsigned kLevels = static_cast<unsigned>(level::count);
  static constexpr unsigned kKeys = 24;  // of each level

  struct key {
    std::string name;
    std::uint64_t id = 0;
    level pool = level::durable;
    key_states states;
    std::uint64_t changes = 0;  // asked for so far
    state_number expiring = 0;  // in the cache: not to be seen after `expires_ns`
    std::uint64_t expires_ns = 0;
    std::optional<state_number> shown{};  // by the last get
    bool is_kept() const { return pool == level::durable || pool == level::logged; }
    void begin(state_number state) { states.begin(state), ++changes; }
    void acknowledge(state_number state) {
      states.acknowledge(state);
      if (pool == level::cache) states.may_be_lost();  // at any time
    }
  };
  // An atomic batch whose answer was lost: all of it was done, or nothing.
  struct atomic_batch {
    struct item {
      key* changed = nullptr;
      state_number state = 0;
      std::uint64_t change = 0;
    };
    std::vector<item> items;
    unsigned tries = 0;  // to read all of it
  };

  bool reach(const std::string& socket, unsigned timeout_ms);
  void notice_lost();
  void put(key& one);
  void erase(key& one);
  bool get(key& one);
  bool take_answer(key& one, const store_client::reply& answer, const unsigned char* bytes, std::uint64_t asked_ns);
  // store_batch_soak.cpp
  std::vector<key*> some_keys(std::size_t most);
  void put_batch();
  void get_batch();
  void erase_batch();
  void erase_prefix();
  void check_unknown_batches();
  bool read_all(const atomic_batch& group, std::size_t& done);
  void check_atomic_batches();
  static std::optional<state_number> state_shown(const key& one, const store_client::reply& answer,
                                                 const unsigned char* bytes);
  std::string contradiction(const key& one, const std::optional<state_number>& shown) const;
  std::size_t random_size();

  const plan& run_;
  findings& seen_;
  const store_under_soak& store_;
  unsigned number_;
  std::mt19937_64 random_;
  std::vector<key> keys_;
  std::vector<atomic_batch> unknown_batches_;
  state_number last_ = 0;
  std::uint64_t epoch_ = 0;
  std::unique_ptr<store_client::client> client_;
  std::uint32_t pools_[kLevels] = {};
  std::vector<unsigned char> room_;
};

}  // namespace pl::soak
