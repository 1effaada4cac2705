// SPDX-License-Identifier: Apache-2.0
// A job of some processes, each with a stream context and a stream of its own.
#pragma once

#include <functional>

#include "test/messaging/job.hpp"
#include "triggered/context.hpp"

namespace pl::triggered {

using messaging::gpus;
using messaging::kTimeout;
using namespace std::chrono_literals;

struct rank_session {
  int rank = 0;
  context* streams = nullptr;
  messaging::bootstrap* bootstrap = nullptr;
  cu::stream_t stream = nullptr;
};

inline const cu::driver_table& cuda() { return test::simulated_cuda(); }

// An environment variable, for the processes that are forked meanwhile.
class with_variable {
 public:
  with_variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~with_variable() { unsetenv(name_); }
  with_variable(const with_variable&) = delete;
  with_variable& operator=(const with_variable&) = delete;

 private:
  const char* const name_;
};

inline int run_rank_session(int rank, messaging::fork_bootstrap& sockets, gpus placement, const context_options& options,
                            const std::function<int(const rank_session&)>& body,
                            const std::function<void(cu::driver_table&)>& change) {
  if (change) {
    static cu::driver_table table;
    table = cuda();
    change(table);
    cu::set_driver_for_tests(&table);
  }
  auto bootstrap = sockets.take(rank);
  test::current_device device(placement == gpus::shared ? 0 : rank % 2);
  auto opened = context::open(change ? **cu::driver() : cuda(), *bootstrap, options);
  CHECK_OK(opened);
  cu::stream_t stream = nullptr;
  CHECK(cuda().cuStreamCreate(&stream, cu::stream_flag::non_blocking) == 0);
  const int line = body({rank, opened->get(), bootstrap.get(), stream});
  if (line == 0) CHECK(cuda().cuStreamSynchronize(stream) == 0);
  CHECK(cuda().cuStreamDestroy_v2(stream) == 0);
  return line;
}

// Runs `body` in `size` processes. The number of those whose body did not return 0; `killed` may die by a signal; `change`
// removes features of the driver.
inline int run_streams(int size, gpus placement, const context_options& options,
                       const std::function<int(const rank_session&)>& body, int killed = -1,
                       const std::function<void(cu::driver_table&)>& change = {}) {
  return messaging::fork_ranks(
      size,
      [&](int rank, messaging::fork_bootstrap& sockets) {
        return run_rank_session(rank, sockets, placement, options, body, change);
      },
      killed);
}

// Everyone's keys, by rank.
inline result<std::vector<window_key>> exchange_keys(const rank_session& session, const window_key& mine) {
  const auto all = session.bootstrap->all_gather(std::as_bytes(std::span(&mine, 1)));
  if (!all) return all.error();
  std::vector<window_key> out(all->size());
  for (std::size_t i = 0; i < all->size(); ++i) std::memcpy(&out[i], (*all)[i].data(), sizeof(window_key));
  return out;
}

}  // namespace pl::triggered
