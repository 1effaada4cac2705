// SPDX-License-Identifier: Apache-2.0
#include "triggered/channel_setup.hpp"

#include <string>
#include <utility>

#include "triggered/peer_executor.hpp"
#include "triggered/proxy_executor.hpp"

namespace pl::triggered {
namespace {

// ENOTSUP: one of the ends cannot, with the reason.
class dma_setup final : public executor_setup {
 public:
  dma_setup(context::parts& owner, std::shared_ptr<channel_core> core) : parts_(owner), core_(std::move(core)) {}

  result<std::unique_ptr<executor>> make(const setup_limit& limit) override {
    const auto domain = parts_.open_dma();
    dma_offer ours;
    if (domain) ours = {0, core_->index, (*domain)->own_name()};
    else ours.code = domain.code();
    const auto theirs = offers_.get(*parts_.messages, *core_, message_kind::dma_offer, ours, limit);
    if (!theirs) return theirs.error();
    if (!made_) made_ = make_executor(domain, *theirs);
    const std::int32_t code = *made_ ? 0 : made_->code();
    const auto answer = answers_.get(*parts_.messages, *core_, message_kind::dma_answer, code, limit);
    if (!answer) return answer.error();
    if (!*made_) return failure{ENOTSUP, "the dma executor is not available: " + made_->error().message};
    if (*answer != 0)
      return failure{ENOTSUP,
                     "the dma executor is not available: the peer does not reach this GPU's memory by DMA channels"};
    return *std::move(made_);
  }

 private:
  // The thread that hands the peer's memory over answers whatever the peer does, so this does not need the caller's limit.
  result<std::unique_ptr<executor>> make_executor(const result<std::shared_ptr<dma_domain>>& domain,
                                                  const dma_offer& theirs) const {
    if (!domain) return failure{ENOTSUP, domain.error().message};
    if (theirs.code != 0)
      return failure{ENOTSUP, "the peer has no DMA channels: ask `peerlane doctor` there for the reason"};
    return make_dma_executor(parts_.gpu, *domain, core_, theirs, parts_.options.connect_timeout);
  }

  context::parts& parts_;
  const std::shared_ptr<channel_core> core_;
  end_exchange<dma_offer> offers_;
  end_exchange<std::int32_t> answers_;
  std::optional<result<std::unique_ptr<executor>>> made_;
};

}  // namespace

result<std::unique_ptr<executor>> channel_setup::make(const setup_limit& limit) {
  if (failed_) return *failed_;
  auto made = try_make(limit);
  if (!made && made.code() != ETIMEDOUT) failed_ = made.error();
  return made;
}

status channel_setup::receive_hello(const setup_limit& limit) {
  hello theirs;
  const auto received =
      parts_.messages->recv(core_->peer, messaging::host_buffer(&theirs, sizeof theirs),
                            tag_of(message_kind::hello, core_->id, core_->incarnation), messaging::kWholeTag, limit.left());
  if (!received) return received.error();
  if (received->bytes != sizeof theirs || theirs.version != hello{}.version)
    return failure{EPROTO, "rank " + std::to_string(core_->peer) + " runs another version of Peerlane"};
  // Each end needs both values: captured puts of one end must be what the other end's captured waits expect.
  const bool have_kernels = parts_.methods.kernel != nullptr && theirs.has_kernels != 0;
  core_->waits_by_kernel = have_kernels && core_->options.wait == wait_method::kernel && parts_.may_wait_by_kernel();
  core_->peer_waits_by_kernel = have_kernels && theirs.waits_by_kernel != 0;
  core_->peer_depth = theirs.depth;
  reach_ = parts_.importer->open(theirs.words);
  theirs_ = theirs;
  return {};
}

result<std::unique_ptr<executor>> channel_setup::try_make(const setup_limit& limit) {
  if (!theirs_)
    if (auto done = receive_hello(limit); !done) return done.error();
  if (executor_ != nullptr) return executor_->make(limit);
  const auto mine = core_->options.executor;
  const verdict ours{reach_->ok() ? 1u : 0u, static_cast<std::uint32_t>(mine)};
  verdict other = ours;
  const bool is_other_process = !(theirs_->words.owner == process_token::current());
  if (is_other_process) {
    const auto got = verdicts_.get(*parts_.messages, *core_, message_kind::verdict, ours, limit);
    if (!got) return got.error();
    other = *got;
  }
  const auto is_asked = [&](executor_kind kind) { return mine == kind || theirs_->wanted == kind; };
  const bool is_proxy = is_asked(executor_kind::proxy), is_dma = is_asked(executor_kind::dma);
  if (is_dma && (is_proxy || is_asked(executor_kind::peer)))
    return failure{EINVAL, "the two ends ask for different executors"};
  const bool is_peer = !is_proxy && !is_dma && ours.can_reach != 0 && other.can_reach != 0;
  if (!is_peer && (mine == executor_kind::peer || theirs_->wanted == executor_kind::peer))
    return failure{ENOTSUP, reach_->ok() ? "the peer's GPU cannot reach this one's memory" : reach_->error().message};
  if (is_peer) return make_peer();
  if (is_dma) {
    if (!is_other_process)
      return failure{ENOTSUP, "the dma executor is for two processes: within one, the peer executor does it"};
    executor_ = std::make_unique<dma_setup>(parts_, core_);
  } else {
    const bool may_share = parts_.options.messages.path != messaging::messenger_options::path_t::network;
    executor_ = set_up_proxy_executor({&parts_.gpu, parts_.messages.get(), parts_.proxy.get(), parts_.receive_windows.get(),
                                       parts_.slots.get(), may_share ? parts_.shm_queues.get() : nullptr,
                                       parts_.wakeup.get(), parts_.methods.kernel, parts_.methods.spread_put},
                                      core_, is_other_process);
  }
  return executor_->make(limit);
}

result<std::unique_ptr<executor>> channel_setup::make_peer() {
  const auto limit_of_waits =
      core_->options.wait_timeout.count() >= 0 ? core_->options.wait_timeout : parts_.options.wait_timeout;
  if (limit_of_waits.count() != 0 && !core_->words->can_release())
    return failure{ENOTSUP,
                   "a wait cannot have a time-out here, since nothing could release its stream: the CPU cannot write "
                   "GPU memory (" +
                       core_->words->why_unmapped() + ") and there is no stream for it (" +
                       core_->words->why_no_stuck_release() + "); set wait_timeout to 0 to do without"};
  const auto writer = parts_.writer_to(theirs_->words, **reach_, core_->index);
  if (!writer) return writer.error();
  auto methods = parts_.methods;
  methods.writer = *writer;
  return make_peer_executor(parts_.gpu, methods,
                            {**reach_, parts_.words->gpu(core_->index), parts_.words->host_on_gpu(core_->index)});
}

status channel::ready(std::chrono::milliseconds limit) {
  if (auto ours = check_process(); !ours) return ours;
  if (executor_ != nullptr) return {};
  if (setup_ == nullptr) setup_ = std::make_unique<channel_setup>(*context_->parts_, core_);
  auto made = setup_->make(setup_limit(limit));
  if (!made) return made.error();
  executor_ = *std::move(made);
  setup_.reset();
  core_->kind.store(executor_->kind(), std::memory_order_release);
  return {};
}

}  // namespace pl::triggered
