// SPDX-License-Identifier: Apache-2.0
#include "triggered/proxy_executor.hpp"

#include <cstddef>
#include <optional>
#include <utility>

#include "messaging/node.hpp"
#include "triggered/idle_wait.hpp"
#include "triggered/mem_ops.hpp"
#include "triggered/shm_proxy.hpp"

namespace pl::stream {
namespace {

constexpr std::size_t kOneWarpBytes = 512;  // a 16-byte access of each thread
constexpr unsigned kSpreadThreads = 256;    // four accesses each

class proxy_executor final : public executor {
 public:
  proxy_executor(const proxy_parts& of, std::shared_ptr<channel_core> core, std::shared_ptr<outlet> by)
      : context_(*of.gpu),
        put_kernel_(of.put_kernel),
        spread_kernel_(of.spread_kernel),
        watch_(*of.watch),
        bell_(*of.bell),
        core_(std::move(core)),
        by_(std::move(by)) {}

  executor_kind kind() const noexcept override { return executor_kind::proxy; }

  status put(cu::stream_t on, const put_request& what) override {
    if (!by_->has_room(what.bytes))
      return failure{EAGAIN, "the service threads have not carried what was put before: try again later"};
    status done;
    bool is_asleep = false;
    for (auto step = queue_step::publish; step != queue_step::leave; step = next(step, is_asleep)) {
      if (step == queue_step::publish) by_->publish({what.to->id, what.offset, what.bytes, what.sequence});
      else if (step == queue_step::ring) done = queue(on, what);
      else if (step == queue_step::ask) is_asleep = by_->who_carries().is_asleep();
      else arm(on);
    }
    return done;
  }

  status acknowledge(cu::stream_t on, std::uint64_t sequence) override {
    status done;
    bool is_asleep = false;
    for (auto step = queue_step::publish; step != queue_step::leave; step = next(step, is_asleep)) {
      if (step == queue_step::publish) by_->publish_release(sequence);
      else if (step == queue_step::ring) done = mem_ops(*context_.cuda, on).write64(by_->consumed_word(), sequence).submit();
      else if (step == queue_step::ask) is_asleep = by_->who_carries().is_asleep();
      else arm(on);
    }
    if (!done) watch_.fail(*core_, EIO, done.error().message);  // what was published will not come
    return done;
  }

  void wait_queued() override {
    if (by_->must_listen()) watch_.wake();
  }

  std::string report() const override { return by_->report(); }

 private:
  status queue(cu::stream_t on, const put_request& what) {
    mem_ops ops(*context_.cuda, on);
    if (what.released != 0) {
      ops.write64(core_->words->host_on_gpu(core_->index) + offsetof(host_words, put_reached), what.sequence);
      ops.wait64(ours() + offsetof(gpu_words, ack), what.released);
    }
    const auto spread = by_->spread_out();
    const bool is_by_kernel = put_kernel_ != nullptr && what.bytes != 0 && what.bytes <= by_->kernel_limit();
    std::uint64_t rung = 0;
    const auto done = spread         ? queue_spread(ops, on, what, *spread)
                      : is_by_kernel ? queue_kernel(ops, on, what)
                                     : queue_pieces(ops, on, what, rung);
    if (done) return done;
    // Chunks that have rung cannot be taken back, and their put will never be whole.
    if (rung != 0) watch_.fail(*core_, EIO, done.error().message);
    else by_->take_back();
    return done;
  }

  // One launch: the bytes, then the doorbell.
  status queue_kernel(mem_ops& ops, cu::stream_t on, const put_request& what) {
    auto piece = by_->at(0);
    if (piece.staged != 0) ops.wait64(ours() + offsetof(gpu_words, staged), piece.staged);
    if (auto done = ops.submit(); !done) return done;
    std::uint64_t source = what.source, doorbell = by_->doorbell_word(), sent = by_->sent_word(), sequence = what.sequence;
    void* parameters[] = {&piece.gpu, &source, &piece.bytes, &doorbell, &piece.bell, &sent, &sequence};
    const unsigned threads = piece.bytes <= kOneWarpBytes ? 32 : 256;
    const auto rc = context_.cuda->cuLaunchKernel(put_kernel_, 1, 1, 1, threads, 1, 1, 0, on, parameters, nullptr);
    if (rc != cu::error_code::success) return cu::make_error(*context_.cuda, rc, "launch of the put kernel");
    return {};
  }

  // One launch: all pieces, each with its bell.
  status queue_spread(mem_ops& ops, cu::stream_t on, const put_request& what, outlet::spread to) {
    if (to.staged != 0) ops.wait64(ours() + offsetof(gpu_words, staged), to.staged);
    if (auto done = ops.submit(); !done) return done;
    std::uint64_t source = what.source, bytes = what.bytes, counter = ours() + offsetof(gpu_words, spread),
                  doorbell = by_->doorbell_word();
    void* parameters[] = {&to.slots,       &to.bells, &to.slot_bytes, &to.places, &source, &bytes,
                          &to.piece_bytes, &to.first, &counter,       &doorbell,  &to.bell};
    const auto blocks = static_cast<unsigned>(to.pieces);
    const auto rc =
        context_.cuda->cuLaunchKernel(spread_kernel_, blocks, 1, 1, kSpreadThreads, 1, 1, 0, on, parameters, nullptr);
    if (rc != cu::error_code::success) return cu::make_error(*context_.cuda, rc, "launch of the put kernel");
    return {};
  }

  // `rung`: doorbells that have been queued, also after a failure.
  status queue_pieces(mem_ops& ops, cu::stream_t on, const put_request& what, std::uint64_t& rung) {
    std::uint64_t from = 0;
    for (std::uint64_t i = 0; i < by_->pieces(); ++i) {
      const auto piece = by_->at(i);
      if (piece.bytes != 0) {
        if (piece.staged != 0) ops.wait64(ours() + offsetof(gpu_words, staged), piece.staged);
        if (auto done = ops.submit(); !done) return done;
        rung = i;
        if (auto done = copy(on, piece.host, what.source + from, piece.bytes); !done) return done;
        from += piece.bytes;
      }
      ops.write64(piece.bell_word, piece.bell);
    }
    if (by_->sent_word() != 0) ops.write64(by_->sent_word(), what.sequence);
    return ops.submit();
  }

  status copy(cu::stream_t on, void* to, cu::device_ptr from, std::size_t bytes) {
    const auto rc = context_.cuda->cuMemcpyDtoHAsync_v2(to, from, bytes, on);
    if (rc != cu::error_code::success) return cu::make_error(*context_.cuda, rc, "copy into a staging slot");
    return {};
  }

  // Without an event the service thread naps instead of sleeping: it has to be told that there is work.
  void arm(cu::stream_t on) {
    if (bell_.arm(on, by_->share_who_carries())) by_->armed();
    else by_->who_carries().ring();
  }

  cu::device_ptr ours() const noexcept { return core_->words->gpu(core_->index); }

  const copy::gpu_context context_;
  const cu::function_t put_kernel_, spread_kernel_;
  service& watch_;
  event_bell& bell_;
  const std::shared_ptr<channel_core> core_;
  const std::shared_ptr<outlet> by_;
};

// ---- What carries

struct shared_parts {
  lane_view theirs;
  std::shared_ptr<wake_bell> their_bell;
};

lane_offer offer_of(const std::optional<lane_pool::lane>& ours, const service& watch) {
  lane_offer out;
  if (!ours) return out;
  out.memory = ours->name();
  out.bell = watch.bell()->own_name();
  out.use = ours->use();
  const auto here = link::node_identity::here();
  out.boot = here.boot;
  out.pid_namespace = here.pid_namespace;
  return out;
}

std::optional<shared_parts> open_offer(const lane_offer& theirs) {
  link::node_identity there;
  there.boot = theirs.boot;
  there.pid_namespace = theirs.pid_namespace;
  if (theirs.memory.bytes == 0 || theirs.bell.bytes == 0 || !link::node_identity::here().is_same_node(there)) return {};
  auto lane = lane_view::open(theirs);
  auto bell = wake_bell::open(theirs.bell);
  if (!lane || !bell) return {};
  return shared_parts{std::move(lane).value(), std::move(bell).value()};
}

// Both ends can take from the other's lane, or neither does.
result<std::shared_ptr<lane_carrier>> share_lanes(const proxy_parts& of, const std::shared_ptr<channel_core>& core,
                                                  std::chrono::milliseconds limit) {
  std::optional<lane_pool::lane> ours;
  if (of.lanes != nullptr)
    if (auto taken = of.lanes->take()) ours.emplace(std::move(taken).value());
  auto& by = *of.messages;
  const auto swap = [&](message_kind kind, const void* mine, void* theirs, std::size_t bytes) -> status {
    const auto tag = tag_of(kind, core->id, core->incarnation);
    if (auto sent = by.send(core->peer, link::host_buffer(mine, bytes), tag, limit); !sent) return sent;
    const auto got = by.recv(core->peer, link::host_buffer(theirs, bytes), tag, link::kWholeTag, limit);
    return got ? status{} : status{got.error()};
  };
  const auto offer = offer_of(ours, *of.watch);
  lane_offer theirs;
  if (auto done = swap(message_kind::offer, &offer, &theirs, sizeof offer); !done) return done.error();
  auto shared = ours ? open_offer(theirs) : std::nullopt;
  const std::uint32_t can = shared ? 1 : 0;
  std::uint32_t can_they = 0;
  if (auto done = swap(message_kind::answer, &can, &can_they, sizeof can); !done) return done.error();
  if (can == 0 || can_they == 0) return std::shared_ptr<lane_carrier>();
  return std::make_shared<lane_carrier>(core, *of.watch, *of.windows, std::move(*ours), std::move(shared->theirs),
                                        std::move(shared->their_bell),
                                        lane_cut::from_environment(of.spread_kernel != nullptr));
}

}  // namespace

result<std::unique_ptr<executor>> make_proxy_executor(const proxy_parts& of, const std::shared_ptr<channel_core>& core,
                                                      bool is_other_process, std::chrono::milliseconds limit) {
  if (!core->words->is_mapped())
    return failure{ENOTSUP, "the proxy executor stores words in GPU memory, which the CPU cannot reach here: " +
                                core->words->why_unmapped()};
  of.windows->need();
  if (is_other_process) {
    auto shared = share_lanes(of, core, limit);
    if (!shared) return shared.error();
    if (auto by = std::move(shared).value()) {
      std::unique_ptr<executor> out = std::make_unique<proxy_executor>(of, core, by);
      of.watch->add(core, std::move(by));
      return out;
    }
  }
  auto slots = of.slots->take();
  if (!slots) return slots.error();
  auto cut = lane_cut::from_environment(false);
  cut.doubled_from = 32;  // the network takes the time; a chunk costs the stream little beside it
  auto by = std::make_shared<carrier>(core, *of.messages, *of.watch, *of.windows, std::move(slots).value(), cut);
  std::unique_ptr<executor> out = std::make_unique<proxy_executor>(of, core, by);
  of.watch->add(core, std::move(by));
  return out;
}

}  // namespace pl::stream
