// SPDX-License-Identifier: Apache-2.0
#include "triggered/proxy_executor.hpp"

#include <cstddef>
#include <optional>
#include <utility>

#include "messaging/node.hpp"
#include "triggered/idle_wait.hpp"
#include "triggered/mem_ops.hpp"
#include "triggered/shm_proxy.hpp"

namespace pl::triggered {
namespace {

constexpr unsigned kSpreadThreads = 256;  // four accesses each
// Packets of fewer bytes, which somebody asked for, do not carry a chunk sooner than its handshake would end.
constexpr std::size_t kMinPacketBytes = 4 << 10;

class proxy_executor final : public executor {
 public:
  proxy_executor(const proxy_parts& parts, std::shared_ptr<channel_core> core, std::shared_ptr<send_queue> outgoing)
      : context_(*parts.gpu),
        put_kernel_(parts.put_kernel),
        spread_kernel_(parts.spread_kernel),
        proxy_(*parts.proxy),
        wakeup_(*parts.wakeup),
        core_(std::move(core)),
        send_queue_(std::move(outgoing)) {}

  executor_kind kind() const noexcept override { return executor_kind::proxy; }

  status put(cu::stream_t stream, const put_request& request) override {
    if (!send_queue_->has_room(request.bytes))
      return failure{EAGAIN, "the proxy threads have not transferred the earlier puts yet: try again later"};
    status done;
    bool is_asleep = false;
    for (auto step = queue_step::publish; step != queue_step::leave; step = next(step, is_asleep)) {
      if (step == queue_step::publish)
        send_queue_->publish({request.window->id, request.offset, request.bytes, request.sequence});
      else if (step == queue_step::ring) done = queue(stream, request);
      else if (step == queue_step::ask) is_asleep = send_queue_->consumer_wakeup().is_asleep();
      else arm(stream);
    }
    return done;
  }

  status acknowledge(cu::stream_t stream, std::uint64_t sequence) override {
    status done;
    bool is_asleep = false;
    for (auto step = queue_step::publish; step != queue_step::leave; step = next(step, is_asleep)) {
      if (step == queue_step::publish) send_queue_->publish_release(sequence);
      else if (step == queue_step::ring)
        done = mem_ops(*context_.cuda, stream).write64(send_queue_->consumed_word(), sequence).submit();
      else if (step == queue_step::ask) is_asleep = send_queue_->consumer_wakeup().is_asleep();
      else arm(stream);
    }
    if (!done) proxy_.fail(*core_, EIO, done.error().message);  // what was published will not come
    return done;
  }

  void wait_queued() override {
    if (send_queue_->needs_wakeup()) proxy_.wake();
  }

  std::string report() const override { return send_queue_->report(); }

 private:
  status queue(cu::stream_t stream, const put_request& request) {
    mem_ops ops(*context_.cuda, stream);
    if (request.released != 0) {
      ops.write64(core_->words->host_on_gpu(core_->index) + offsetof(host_words, put_reached), request.sequence);
      ops.wait64(ours() + offsetof(gpu_words, ack), request.released);
    }
    const auto spread = send_queue_->spread_out();
    const bool is_by_kernel = put_kernel_ != nullptr && request.bytes != 0 && request.bytes <= send_queue_->kernel_limit();
    std::uint64_t rung = 0;
    const auto done = spread         ? queue_spread(ops, stream, request, *spread)
                      : is_by_kernel ? queue_kernel(ops, stream, request)
                                     : queue_pieces(ops, stream, request, rung);
    if (done) return done;
    // Chunks whose doorbell is queued cannot be taken back, and their put would stay incomplete.
    if (rung != 0) proxy_.fail(*core_, EIO, done.error().message);
    else send_queue_->take_back();
    return done;
  }

  // One launch: the bytes, then the doorbell.
  status queue_kernel(mem_ops& ops, cu::stream_t stream, const put_request& request) {
    auto piece = send_queue_->piece_at(0);
    if (piece.staged != 0) ops.wait64(ours() + offsetof(gpu_words, staged), piece.staged);
    if (auto done = ops.submit(); !done) return done;
    std::uint64_t source = request.source, doorbell = send_queue_->doorbell_word(), sent = send_queue_->sent_word(),
                  sequence = request.sequence;
    void* parameters[] = {&piece.gpu, &source, &piece.bytes, &doorbell, &piece.doorbell_value, &sent, &sequence};
    const unsigned threads = piece.bytes <= kOneWarpBytes ? 32 : 256;
    const auto rc = context_.cuda->cuLaunchKernel(put_kernel_, 1, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr);
    if (rc != cu::error_code::success) return cu::make_error(*context_.cuda, rc, "launch of the put kernel");
    return {};
  }

  // One launch: all pieces, each with its doorbell.
  status queue_spread(mem_ops& ops, cu::stream_t stream, const put_request& request, send_queue::spread pieces) {
    if (pieces.staged != 0) ops.wait64(ours() + offsetof(gpu_words, staged), pieces.staged);
    if (auto done = ops.submit(); !done) return done;
    std::uint64_t source = request.source, bytes = request.bytes, counter = ours() + offsetof(gpu_words, spread),
                  doorbell = send_queue_->doorbell_word();
    void* parameters[] = {&pieces.slots,
                          &pieces.slot_doorbells,
                          &pieces.slot_bytes,
                          &pieces.places,
                          &source,
                          &bytes,
                          &pieces.piece_bytes,
                          &pieces.first,
                          &counter,
                          &doorbell,
                          &pieces.doorbell_value};
    const auto blocks = static_cast<unsigned>(pieces.pieces);
    const auto rc =
        context_.cuda->cuLaunchKernel(spread_kernel_, blocks, 1, 1, kSpreadThreads, 1, 1, 0, stream, parameters, nullptr);
    if (rc != cu::error_code::success) return cu::make_error(*context_.cuda, rc, "launch of the put kernel");
    return {};
  }

  // `rung`: doorbells that have been queued, also after a failure.
  status queue_pieces(mem_ops& ops, cu::stream_t stream, const put_request& request, std::uint64_t& rung) {
    std::uint64_t offset = 0;
    for (std::uint64_t i = 0; i < send_queue_->pieces(); ++i) {
      const auto piece = send_queue_->piece_at(i);
      if (piece.bytes != 0) {
        if (piece.staged != 0) ops.wait64(ours() + offsetof(gpu_words, staged), piece.staged);
        if (auto done = ops.submit(); !done) return done;
        rung = i;
        if (auto done = copy(stream, piece.host, request.source + offset, piece.bytes); !done) return done;
        offset += piece.bytes;
      }
      ops.write64(piece.doorbell_address, piece.doorbell_value);
    }
    if (send_queue_->sent_word() != 0) ops.write64(send_queue_->sent_word(), request.sequence);
    return ops.submit();
  }

  status copy(cu::stream_t stream, void* target, cu::device_ptr origin, std::size_t bytes) {
    const auto rc = context_.cuda->cuMemcpyDtoHAsync_v2(target, origin, bytes, stream);
    if (rc != cu::error_code::success) return cu::make_error(*context_.cuda, rc, "copy into a staging slot");
    return {};
  }

  // Without an event the proxy thread must be woken now, so that it naps instead of sleeping while work is pending.
  void arm(cu::stream_t stream) {
    if (wakeup_.arm(stream, send_queue_->share_consumer_wakeup())) send_queue_->armed();
    else send_queue_->consumer_wakeup().ring();
  }

  cu::device_ptr ours() const noexcept { return core_->words->gpu(core_->index); }

  const copy::gpu_context context_;
  const cu::function_t put_kernel_, spread_kernel_;
  proxy_thread& proxy_;
  event_wakeup& wakeup_;
  const std::shared_ptr<channel_core> core_;
  const std::shared_ptr<send_queue> send_queue_;
};

// ---- What carries

struct shared_parts {
  shm_queue_view theirs;
  std::shared_ptr<thread_wakeup> peer_wakeup;
};

shm_queue_offer make_offer(const std::optional<shm_queue_pool::shm_queue>& ours, const proxy_thread& proxy) {
  shm_queue_offer out;
  if (!ours) return out;
  out.memory = ours->name();
  out.wakeup = proxy.wakeup()->own_name();
  out.use = ours->use();
  const auto identity = messaging::node_identity::current();
  out.boot = identity.boot;
  out.pid_namespace = identity.pid_namespace;
  return out;
}

std::unique_ptr<shared_parts> open_offer(const shm_queue_offer& theirs) {
  messaging::node_identity peer_node;
  peer_node.boot = theirs.boot;
  peer_node.pid_namespace = theirs.pid_namespace;
  if (theirs.memory.bytes == 0 || theirs.wakeup.bytes == 0 || !messaging::node_identity::current().is_same_node(peer_node))
    return {};
  auto shm_queue = shm_queue_view::open(theirs);
  auto wakeup = thread_wakeup::open(theirs.wakeup);
  if (!shm_queue || !wakeup) return {};
  return std::unique_ptr<shared_parts>(new shared_parts{std::move(shm_queue).value(), std::move(wakeup).value()});
}

class proxy_setup final : public executor_setup {
 public:
  proxy_setup(const proxy_parts& parts, std::shared_ptr<channel_core> core, bool is_other_process)
      : parts_(parts), core_(std::move(core)), is_other_process_(is_other_process) {}

  result<std::unique_ptr<executor>> make(const setup_limit& limit) override {
    if (!core_->words->is_mapped())
      return failure{ENOTSUP, "the proxy executor stores words in GPU memory, which the CPU cannot reach here: " +
                                  core_->words->why_unmapped()};
    parts_.windows->need();
    if (is_other_process_) {
      auto shared = share_shm_queues(limit);
      if (!shared) return shared.error();
      if (auto proxy = std::move(shared).value()) return make_with(std::move(proxy));
    }
    return make_with_messages();
  }

 private:
  // Uses shared memory only if both ends can open the other's queue.
  result<std::shared_ptr<shm_proxy>> share_shm_queues(const setup_limit& limit) {
    if (!is_taken_ && parts_.shm_queues != nullptr)
      if (auto taken = parts_.shm_queues->take()) ours_.emplace(std::move(taken).value());
    is_taken_ = true;
    const auto theirs = offers_.get(*parts_.messages, *core_, message_kind::offer, make_offer(ours_, *parts_.proxy), limit);
    if (!theirs) return theirs.error();
    if (!is_opened_ && ours_) shared_ = open_offer(*theirs);
    is_opened_ = true;
    const std::uint32_t can = shared_ != nullptr ? 1 : 0;
    const auto can_peer = answers_.get(*parts_.messages, *core_, message_kind::answer, can, limit);
    if (!can_peer) return can_peer.error();
    if (can == 0 || *can_peer == 0) return std::shared_ptr<shm_proxy>();
    return std::make_shared<shm_proxy>(core_, *parts_.proxy, *parts_.windows, std::move(*ours_), std::move(shared_->theirs),
                                       std::move(shared_->peer_wakeup),
                                       put_chunking::from_environment(parts_.spread_kernel != nullptr));
  }

  result<std::unique_ptr<executor>> make_with_messages() {
    auto slots = parts_.slots->take(parts_.windows->engine());
    if (!slots) return slots.error();
    auto chunking = put_chunking::from_environment(false);
    chunking.doubled_from = 32;  // the network takes the time; a chunk costs the stream little beside it
    const auto packet_bytes = parts_.messages->packet_limit(core_->peer);
    const std::size_t message_bytes = packet_bytes >= kMinPacketBytes ? packet_bytes - kHeadBytes : 0;
    return make_with(std::make_shared<message_proxy>(core_, *parts_.messages, *parts_.proxy, *parts_.windows,
                                                     std::move(slots).value(), chunking, message_bytes));
  }

  template <class Proxy>
  std::unique_ptr<executor> make_with(std::shared_ptr<Proxy> proxy) {
    std::unique_ptr<executor> out = std::make_unique<proxy_executor>(parts_, core_, proxy);
    parts_.proxy->add(core_, std::move(proxy));
    return out;
  }

  const proxy_parts parts_;
  const std::shared_ptr<channel_core> core_;
  const bool is_other_process_;
  bool is_taken_ = false, is_opened_ = false;
  std::optional<shm_queue_pool::shm_queue> ours_;
  std::unique_ptr<shared_parts> shared_;
  end_exchange<shm_queue_offer> offers_;
  end_exchange<std::uint32_t> answers_;
};

}  // namespace

std::unique_ptr<executor_setup> set_up_proxy_executor(const proxy_parts& parts, std::shared_ptr<channel_core> core,
                                                      bool is_other_process) {
  return std::make_unique<proxy_setup>(parts, std::move(core), is_other_process);
}

}  // namespace pl::triggered
