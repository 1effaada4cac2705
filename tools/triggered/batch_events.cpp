// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/batch_events.hpp"

#include <sched.h>

namespace pl::async {

batch_events::batch_events(const station& at, stream::run_mode mode) : at_(at), mode_(mode) {
  auto flags = cu::event_flag::disable_timing | 0u;
  if (mode == stream::run_mode::economy) flags |= cu::event_flag::blocking_sync;
  for (auto& event : events_) at.gpu().check(at.cuda().cuEventCreate(&event, flags), "cuEventCreate");
}

batch_events::~batch_events() {
  for (auto event : events_) static_cast<void>(at_.cuda().cuEventDestroy_v2(event));
}

void batch_events::wait_for_room() {
  if (queued_ >= events_.size()) wait_for(events_[queued_ % events_.size()]);
}

void batch_events::end_batch() {
  at_.gpu().check(at_.cuda().cuEventRecord(events_[queued_++ % events_.size()], at_.on()), "cuEventRecord");
}

void batch_events::wait_for_all() {
  if (queued_ != 0) wait_for(events_[(queued_ - 1) % events_.size()]);
}

void batch_events::wait_for(cu::event_t event) const {
  if (mode_ == stream::run_mode::economy) return at_.gpu().check(at_.cuda().cuEventSynchronize(event), "cuEventSynchronize");
  for (;;) {
    const auto rc = at_.cuda().cuEventQuery(event);
    if (rc == cu::error_code::success) return;
    if (rc != cu::error_code::not_ready) at_.gpu().check(rc, "cuEventQuery");
    sched_yield();
  }
}

}  // namespace pl::async
