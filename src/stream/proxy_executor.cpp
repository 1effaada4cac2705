// SPDX-License-Identifier: Apache-2.0
#include "proxy_executor.hpp"

#include <algorithm>
#include <cstddef>
#include <utility>

#include "mem_ops.hpp"
#include "sleeper.hpp"

namespace pl::stream {
namespace {

class proxy_executor final : public executor {
 public:
  proxy_executor(const proxy_parts& of, std::shared_ptr<channel_core> core, std::shared_ptr<carrier> by)
      : context_(*of.gpu), watch_(*of.watch), bell_(*of.bell), core_(std::move(core)), by_(std::move(by)) {}

  executor_kind kind() const noexcept override { return executor_kind::proxy; }

  status put(cu::stream_t on, const put_request& what) override {
    carrier::put entry{what.to->id, what.offset, what.bytes, what.sequence, by_->queued() + 1, 1};
    if (what.bytes != 0) entry.chunks = (what.bytes - 1) / kChunkBytes + 1;
    if (!by_->has_room(entry.chunks))
      return failure{EAGAIN, "the service thread has not sent what was put before: try again later"};
    status done;
    bool is_asleep = false;
    for (auto step = queue_step::publish; step != queue_step::leave; step = next(step, is_asleep)) {
      if (step == queue_step::publish) by_->publish(entry);
      else if (step == queue_step::ring) done = queue(on, what, entry);
      else if (step == queue_step::ask) is_asleep = watch_.is_asleep();
      else arm(on);
    }
    return done;
  }

  status acknowledge(cu::stream_t on, std::uint64_t sequence) override {
    status done;
    bool is_asleep = false;
    for (auto step = queue_step::publish; step != queue_step::leave; step = next(step, is_asleep)) {
      if (step == queue_step::publish) by_->publish_release(sequence);
      else if (step == queue_step::ring)
        done = mem_ops(*context_.cuda, on).write64(host() + offsetof(host_words, consumed), sequence).submit();
      else if (step == queue_step::ask) is_asleep = watch_.is_asleep();
      else arm(on);
    }
    if (!done) watch_.fail(*core_, EIO, done.error().message);  // what was published will not come
    return done;
  }

  void wait_queued() override {
    if (watch_.is_asleep()) watch_.wake();
  }

  std::string report() const override { return by_->report(); }

 private:
  status queue(cu::stream_t on, const put_request& what, const carrier::put& entry) {
    mem_ops ops(*context_.cuda, on);
    if (what.released != 0) ops.wait64(ours() + offsetof(gpu_words, ack), what.released);
    bool has_rung = false;
    status done;
    for (std::uint64_t i = 0; i < entry.chunks && done; ++i) {
      const auto chunk = entry.first + i;
      const auto from = i * kChunkBytes;
      if (const auto bytes = std::min<std::uint64_t>(what.bytes - from, kChunkBytes); bytes != 0) {
        if (chunk > by_->left() + kSlots) ops.wait64(ours() + offsetof(gpu_words, staged), chunk - kSlots);
        if (ops.size() != 0) done = ops.submit();
        if (!done) break;
        has_rung = i != 0;
        done = copy(on, by_->slot(chunk), what.source + from, bytes);
      }
      ops.write64(host() + offsetof(host_words, doorbell), chunk);
    }
    if (done) done = ops.write64(host() + offsetof(host_words, sent), what.sequence).submit();
    if (done) return done;
    // Chunks that have rung cannot be taken back, and their put will never be whole.
    if (has_rung) watch_.fail(*core_, EIO, done.error().message);
    else by_->take_back();
    return done;
  }

  status copy(cu::stream_t on, void* to, cu::device_ptr from, std::size_t bytes) {
    const auto rc = context_.cuda->cuMemcpyDtoHAsync_v2(to, from, bytes, on);
    if (rc != cu::error_code::success) return cu::make_error(*context_.cuda, rc, "copy into a staging slot");
    return {};
  }

  // Without an event the service thread naps instead of sleeping: it has to be told that there is work.
  void arm(cu::stream_t on) {
    if (bell_.arm(on)) by_->armed();
    else watch_.wake();
  }

  cu::device_ptr ours() const noexcept { return core_->words->gpu(core_->index); }
  cu::device_ptr host() const noexcept { return core_->words->host_on_gpu(core_->index); }

  const copy::gpu_context context_;
  service& watch_;
  event_bell& bell_;
  const std::shared_ptr<channel_core> core_;
  const std::shared_ptr<carrier> by_;
};

}  // namespace

result<std::unique_ptr<executor>> make_proxy_executor(const proxy_parts& of, const std::shared_ptr<channel_core>& core) {
  if (!core->words->is_mapped())
    return failure{ENOTSUP, "the proxy executor stores words in GPU memory, which the CPU cannot reach here: " +
                                core->words->why_unmapped()};
  of.windows->need();
  auto slots = of.slots->take();
  if (!slots) return slots.error();
  auto by = std::make_shared<carrier>(core, *of.messages, *of.watch, *of.windows, std::move(slots).value());
  std::unique_ptr<executor> out = std::make_unique<proxy_executor>(of, core, by);
  of.watch->add(core, std::move(by));
  return out;
}

}  // namespace pl::stream
