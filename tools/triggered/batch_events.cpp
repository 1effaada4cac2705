// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/batch_events.hpp"

#include <sched.h>

namespace pl::async {

batch_events::batch_events(const bench_rank& session, triggered::run_mode mode) : session_(session), mode_(mode) {
  auto flags = cu::event_flag::disable_timing | 0u;
  if (mode == triggered::run_mode::economy) flags |= cu::event_flag::blocking_sync;
  for (auto& event : events_) session.gpu().check(session.cuda().cuEventCreate(&event, flags), "cuEventCreate");
}

batch_events::~batch_events() {
  for (auto event : events_) static_cast<void>(session_.cuda().cuEventDestroy_v2(event));
}

void batch_events::wait_for_room() {
  if (queued_ >= events_.size()) wait_for(events_[queued_ % events_.size()]);
}

void batch_events::end_batch() {
  session_.gpu().check(session_.cuda().cuEventRecord(events_[queued_++ % events_.size()], session_.stream()),
                       "cuEventRecord");
}

void batch_events::wait_for_all() {
  if (queued_ != 0) wait_for(events_[(queued_ - 1) % events_.size()]);
}

void batch_events::wait_for(cu::event_t event) const {
  if (mode_ == triggered::run_mode::economy)
    return session_.gpu().check(session_.cuda().cuEventSynchronize(event), "cuEventSynchronize");
  for (;;) {
    const auto rc = session_.cuda().cuEventQuery(event);
    if (rc == cu::error_code::success) return;
    if (rc != cu::error_code::not_ready) session_.gpu().check(rc, "cuEventQuery");
    sched_yield();
  }
}

}  // namespace pl::async
