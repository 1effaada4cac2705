// SPDX-License-Identifier: Apache-2.0
#include "capi/operation_calls.hpp"

#include <sched.h>
#include <time.h>

#include "capi/capi_call.hpp"

namespace pl {
namespace {

constexpr unsigned kPollsAwake = 2000;  // about a millisecond; a longer operation does not miss 50 us
constexpr timespec kSleep{0, 50'000};

// Reports `code` of an operation that another library may have begun, with its message as ours.
int failed_with(int code, const peerlane_op_t& op) {
  return code == 0 ? 0 : fail(code, std::string(op.calls->last_error()).c_str());
}

}  // namespace

void poll_pause::pause() noexcept {
  if (++polls_ < kPollsAwake) sched_yield();
  else nanosleep(&kSleep, nullptr);
}

bool have_one_owner(const peerlane_op_t* ops, std::size_t count, const peerlane_op_calls* calls,
                    const void* owner) noexcept {
  return std::all_of(ops, ops + count,
                     [&](const peerlane_op_t& op) { return op.number == 0 || (op.calls == calls && op.owner == owner); });
}

int wait_any_in_turns(peerlane_op_t* ops, std::size_t count, std::int64_t timeout_ms, std::size_t* index,
                      peerlane_op_info* info) try {
  const time_limit limit(timeout_ms);
  for (poll_pause idle;; idle.pause()) {
    bool is_any = false;
    for (std::size_t i = 0; i < count; ++i) {
      if (ops[i].number == 0) continue;
      is_any = true;
      int done = 0;
      const int code = peerlane_op_test(ops + i, &done, info);
      if (done == 0 && code == 0) continue;
      if (done != 0) *index = i;
      return failed_with(code, ops[i]);
    }
    if (!is_any) return *index = count, peerlane_op_info_clear(info), 0;
    if (limit.has_passed()) return fail(ETIMEDOUT, "none of the operations has ended yet; they continue");
  }
}
PL_NO_EXCEPTIONS

int wait_all_in_turns(peerlane_op_t* ops, std::size_t count, std::int64_t timeout_ms, peerlane_op_info* infos) try {
  const time_limit limit(timeout_ms);
  int first = 0;
  std::string sentence;
  for (std::size_t i = 0; infos != nullptr && i < count; ++i)
    if (ops[i].number == 0) peerlane_op_info_clear(infos + i);
  for (poll_pause idle;; idle.pause()) {
    bool is_any = false;
    for (std::size_t i = 0; i < count; ++i) {
      if (ops[i].number == 0) continue;
      int done = 0;
      const int code = peerlane_op_test(ops + i, &done, infos != nullptr ? infos + i : nullptr);
      if (done == 0 && code != 0) return failed_with(code, ops[i]);  // not live
      is_any = is_any || done == 0;
      if (code == 0 || first != 0) continue;
      first = code;
      sentence = ops[i].calls->last_error();
    }
    if (!is_any) return first == 0 ? 0 : fail(first, sentence.c_str());
    if (limit.has_passed()) return fail(ETIMEDOUT, "not all of the operations have ended yet; the others go on");
  }
}
PL_NO_EXCEPTIONS

}  // namespace pl
