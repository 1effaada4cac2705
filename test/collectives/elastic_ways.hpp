// SPDX-License-Identifier: Apache-2.0
// Elastic jobs over every transport, and what a whole job can do.
#pragma once

#include <deque>

#include "test/collectives/elastic_job.hpp"
#include "test/messaging/two_hosts.hpp"

namespace pl::collectives {

using messaging::buffer;
using messaging::host_buffer;
using messaging::kAnySource;
using messaging::kWholeTag;
using messaging::window;

// Messages of all sizes both ways between all ranks, windows by new keys, barriers, a reduction: what a whole job can do.
inline int talk(const elastic_rank& me, bool is_device, std::uint64_t salt) {
  for (const std::size_t bytes : {std::size_t{8}, std::size_t{3000}, std::size_t{300000}}) {
    piece source(is_device, bytes);
    source.set(test::random_bytes(bytes, salt * 100 + static_cast<unsigned>(me.rank)));
    std::deque<piece> targets;
    std::vector<request> all;
    for (int peer = 0; peer < me.size; ++peer) {
      targets.emplace_back(is_device, bytes);
      if (peer != me.rank) all.push_back(me.messages->irecv(peer, targets.back().all(), bytes));
    }
    for (int peer = 0; peer < me.size; ++peer)
      if (peer != me.rank) all.push_back(me.messages->isend(peer, source.all(), bytes));
    for (auto& each : all) CHECK_OK(each.wait(kSoon));
    for (int peer = 0; peer < me.size; ++peer)
      CHECK(peer == me.rank || targets[static_cast<std::size_t>(peer)].get(bytes) ==
                                   test::random_bytes(bytes, salt * 100 + static_cast<unsigned>(peer)));
  }
  constexpr std::size_t kBytes = 5000;
  piece shared(is_device, kBytes * static_cast<std::size_t>(me.size)), given(is_device, kBytes);
  auto exposed = me.messages->expose(shared.all());
  CHECK_OK(exposed);
  std::vector<window::key_t> keys(static_cast<std::size_t>(me.size));
  const auto own = exposed->key();
  CHECK_OK(wait(me.all->all_gather(host_buffer(&own, sizeof own), host_buffer(keys.data(), keys.size() * sizeof own))));
  given.set(test::random_bytes(kBytes, salt + static_cast<unsigned>(me.rank)));
  for (int peer = 0; peer < me.size; ++peer)
    CHECK_OK(me.messages->put(keys[static_cast<std::size_t>(peer)], static_cast<std::size_t>(me.rank) * kBytes, given.all())
                 .wait(kSoon));
  CHECK_OK(me.messages->barrier(kSoon));
  const auto seen = shared.get(kBytes * static_cast<std::size_t>(me.size));
  for (int peer = 0; peer < me.size; ++peer) {
    const auto wanted = test::random_bytes(kBytes, salt + static_cast<unsigned>(peer));
    CHECK(std::equal(wanted.begin(), wanted.end(), seen.begin() + static_cast<std::ptrdiff_t>(kBytes) * peer));
  }
  std::int64_t one = me.rank + 1, sum = 0;
  CHECK_OK(wait(
      me.all->all_reduce(host_buffer(&one, sizeof one), host_buffer(&sum, sizeof sum), {element::int64, reduction::sum})));
  CHECK(sum == me.size * (me.size + 1) / 2);
  CHECK_OK(wait(me.all->barrier()));
  ++*me.talks;
  return 0;
}

// Returns in a row. They are slow where everything is checked.
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
constexpr std::uint32_t kMany = 10, kDeaths = 6;
#else
constexpr std::uint32_t kMany = 30, kDeaths = 12;
#endif

struct way {
  const char* name;
  gpus layout = gpus::none;
  bool use_cma = true;
  messenger_options::path_t path = messenger_options::path_t::automatic;
  bool progress_thread = false;
  bool has_two_hosts = false, has_rails = false;
};
constexpr way kWays[] = {{"host"},
                         {"ring", gpus::none, false},
                         {"sleeping", gpus::none, true, messenger_options::path_t::automatic, true},
                         {"network", gpus::none, true, messenger_options::path_t::network},
                         {"gpus", gpus::one_each},
                         {"shared_gpu", gpus::shared},
                         {"two_hosts", gpus::none, true, messenger_options::path_t::automatic, false, true},
                         {"two_hosts_sleeping", gpus::none, true, messenger_options::path_t::automatic, true, true},
                         {"rails", gpus::none, true, messenger_options::path_t::automatic, false, true, true}};

// A test of such jobs over one way.
class returns : public testing::TestWithParam<way> {
 protected:
  void SetUp() override {
    if (!GetParam().has_two_hosts) return;
    const auto reason = GetParam().has_rails ? hosts_.make_rails(2000) : hosts_.make({});
    if (!reason.empty()) GTEST_SKIP() << "no two hosts here: " << reason;
    secret_ = testing::TempDir() + "peerlane-elastic-" + std::to_string(getpid());
    std::ofstream(secret_) << "the secret of this job of the tests\n";
    chmod(secret_.c_str(), 0600);
    setenv("PEERLANE_LINK_SECRET_FILE", secret_.c_str(), 1);
  }
  void TearDown() override {
    unsetenv("PEERLANE_LINK_SECRET_FILE");
    if (!secret_.empty()) unlink(secret_.c_str());
  }
  elastic_job make(int size) {
    const auto& tried = GetParam();
    const bool is_far = tried.has_two_hosts;
    elastic_job job = is_far ? elastic_job(size, tried.has_rails ? "10.77.0.1" : "10.77.0.1", 7777) : elastic_job(size);
    job.layout = tried.layout;
    job.options.use_cma = tried.use_cma;
    job.options.path = tried.path;
    job.options.progress_thread = tried.progress_thread;
    if (tried.has_rails) job.options.rails = "rail0,rail1";
    if (is_far)
      job.before = [this](int rank) { return hosts_.enter(rank % 2) && messaging::two_hosts::switch_on_loopback(); };
    return job;
  }
  bool has_gpu() const { return GetParam().layout != gpus::none; }

 private:
  messaging::two_hosts hosts_;
  std::string secret_;
};

}  // namespace pl::collectives
