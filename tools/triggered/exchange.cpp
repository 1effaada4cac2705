// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/exchange.hpp"

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <chrono>
#include <limits>
#include <optional>
#include <utility>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "tools/common/tool.hpp"
#include "tools/triggered/batch_events.hpp"
#include "tools/triggered/captured_work.hpp"
#include "tools/triggered/graph_loop.hpp"
#include "tools/triggered/queue_when_room.hpp"

namespace pl::async {
namespace {

constexpr std::uint64_t kTag = 0xa511c;
constexpr std::chrono::seconds kTimeout{30};

// The CPU acts between every two steps: it waits for the message, launches, waits for the kernel, sends.
class normal_exchange final : public exchange {
 public:
  explicit normal_exchange(bench_rank& session) : session_(session), messages_(session.messages()) {}

  void iterate(std::size_t bytes, std::uint64_t busy_ns, int count) override {
    const int peer = 1 - session_.rank();
    const auto received = messaging::device_buffer(session_.receive_buffer(), bytes),
               out = messaging::device_buffer(session_.send_buffer(), bytes);
    for (int i = 0; i < count; ++i) {
      if (session_.rank() == 0) tools::must(messages_.send(peer, out, kTag));
      static_cast<void>(tools::must(messages_.recv(peer, received, kTag)));
      session_.launch_step(bytes, busy_ns);
      session_.synchronize();
      if (session_.rank() == 1) tools::must(messages_.send(peer, out, kTag));
    }
  }
  void finish() override {}

 private:
  bench_rank& session_;
  messaging::messenger& messages_;
};

// Host functions in the stream send and receive: the driver's thread acts between the steps. They may not
// call CUDA, so the data go through host memory, by copies in the stream.
class hostfn_exchange final : public exchange {
 public:
  hostfn_exchange(bench_rank& session, triggered::run_mode mode)
      : session_(session),
        messages_(session.host_messages()),
        received_(session.gpu(), session.window_bytes()),
        sent_(session.gpu(), session.window_bytes()),
        batches_(session, mode) {}
  ~hostfn_exchange() override { static_cast<void>(session_.cuda().cuStreamSynchronize(session_.stream())); }

  void iterate(std::size_t bytes, std::uint64_t busy_ns, int count) override {
    batches_.wait_for_room();
    const auto begin = monotonic_ns();
    bytes_ = bytes;
    for (int i = 0; i < count; ++i) {
      if (session_.rank() == 0) send();
      receive();
      session_.launch_step(bytes, busy_ns);
      if (session_.rank() == 1) send();
    }
    batches_.end_batch();
    enqueue_ns += monotonic_ns() - begin;
  }

  void finish() override {
    batches_.wait_for_all();
    if (has_failed_.load()) throw tools::tool_failure("a host function's message failed: " + words_);
  }

 private:
  static void send_now(void* self) {
    auto& owner = *static_cast<hostfn_exchange*>(self);
    owner.note(owner.messages_.send(1 - owner.session_.rank(), messaging::host_buffer(owner.sent_.data(), owner.bytes_),
                                    kTag, kTimeout));
  }
  static void receive_now(void* self) {
    auto& owner = *static_cast<hostfn_exchange*>(self);
    const auto target = messaging::host_buffer(owner.received_.data(), owner.bytes_);
    const auto got = owner.messages_.recv(1 - owner.session_.rank(), target, kTag, messaging::kWholeTag, kTimeout);
    owner.note(got ? status() : status(got.error()));
  }
  void note(const status& outcome) {
    if (outcome || has_failed_.load()) return;
    words_ = outcome.error().message;
    has_failed_.store(true);
  }
  void send() {
    const auto& cuda = session_.cuda();
    session_.gpu().check(cuda.cuMemcpyDtoHAsync_v2(sent_.data(), session_.send_buffer(), bytes_, session_.stream()),
                         "cuMemcpyDtoHAsync");
    session_.gpu().check(cuda.cuLaunchHostFunc(session_.stream(), send_now, this), "cuLaunchHostFunc");
  }
  void receive() {
    const auto& cuda = session_.cuda();
    session_.gpu().check(cuda.cuLaunchHostFunc(session_.stream(), receive_now, this), "cuLaunchHostFunc");
    session_.gpu().check(cuda.cuMemcpyHtoDAsync_v2(session_.receive_buffer(), received_.data(), bytes_, session_.stream()),
                         "cuMemcpyHtoDAsync");
  }

  bench_rank& session_;
  messaging::messenger& messages_;
  tools::host_memory received_, sent_;
  batch_events batches_;
  std::size_t bytes_ = 0;  // in this repetition; host functions read it, and none is queued when it changes
  std::atomic<bool> has_failed_{false};
  std::string words_;
};

status queue_iterations(bench_rank& session, triggered::channel& link, std::size_t bytes, std::uint64_t busy_ns, int count) {
  const auto& window = session.window_of(1 - session.rank());
  const auto send = [&] { return link.put_signal(session.stream(), window, 0, session.send_buffer(), bytes); };
  for (int i = 0; i < count; ++i) {
    if (session.rank() == 0)
      if (const auto put = queue_when_room(send); !put) return put;
    if (const auto wait = link.wait_signal(session.stream()); !wait) return wait.error();
    session.launch_step(bytes, busy_ns);
    if (session.rank() == 1)
      if (const auto put = queue_when_room(send); !put) return put;
  }
  return {};
}

void check_channel(const triggered::channel& link) {
  if (const auto now = link.state(); now.error != 0) throw tools::tool_failure("the channel broke: " + now.reason);
}

// The streams continue without the CPU, which queues batches ahead of them.
class stream_exchange final : public exchange {
 public:
  stream_exchange(bench_rank& session, const contender& candidate) : session_(session), batches_(session, candidate.mode) {
    options_.executor = executor_of(candidate.kind);
    if (candidate.kind == arm::peer_kernel || candidate.kind == arm::proxy_kernel)
      options_.wait = triggered::wait_method::kernel;
  }

  status prepare(std::size_t, std::uint64_t) override {
    if (channel_ != nullptr) return {};
    auto made = session_.try_connect(1 - session_.rank(), session_.new_channel_id(), options_);
    if (!made) return made.error();
    channel_ = std::move(*made);
    return {};
  }

  void iterate(std::size_t bytes, std::uint64_t busy_ns, int count) override {
    batches_.wait_for_room();
    const auto begin = monotonic_ns();
    tools::must(queue_iterations(session_, *channel_, bytes, busy_ns, count));
    batches_.end_batch();
    enqueue_ns += monotonic_ns() - begin;
  }

  void finish() override {
    batches_.wait_for_all();
    check_channel(*channel_);
  }

 private:
  bench_rank& session_;
  batch_events batches_;
  triggered::channel_options options_;
  std::unique_ptr<triggered::channel> channel_;
};

// Some iterations captured once and launched again and again: one call of the driver for all of their steps. Or one launch
// for a whole repetition: the graph itself repeats them.
class graph_exchange final : public exchange {
 public:
  graph_exchange(bench_rank& session, const contender& candidate, int unroll)
      : session_(session),
        batches_(session, candidate.mode),
        executor_(executor_of(candidate.kind)),
        wait_(candidate.kind == arm::graph ? triggered::wait_method::front_end : triggered::wait_method::kernel),
        is_loop_(candidate.kind == arm::graph_loop || candidate.kind == arm::graph_loop_dma),
        unit_(counts(session) ? unroll : std::min(unroll, kMaxSlots)) {}
  ~graph_exchange() override { drop(); }

  // Every case has its own channel, because captured operations keep their places in it.
  status prepare(std::size_t bytes, std::uint64_t busy_ns) override {
    drop();
    if (is_loop_ && !counts(session_))
      return failure{ENOTSUP,
                     "a loop's body takes kernels and copies alone, and ranks that share a GPU wait by the front end: give "
                     "each rank a GPU (--gpus)"};
    triggered::channel_options options;
    options.executor = executor_;
    options.wait = wait_;
    options.releases_captured_waits = true;  // the other side writes here again only after it got our answer
    auto opened = session_.try_connect(1 - session_.rank(), session_.new_channel_id(), options);
    if (!opened) return opened.error();
    channel_ = *std::move(opened);
    const auto queue = [&] { return queue_iterations(session_, *channel_, bytes, busy_ns, unit_); };
    const auto done = is_loop_ ? keep(graph_loop::make(session_.gpu(), session_.stream(), queue), loop_)
                               : keep(captured_work::make(session_, queue), graph_);
    session_.barrier();  // an end that closes is an error of the other one, which may still be capturing
    return done;
  }

  int unit() const override { return unit_; }
  int max_at_once() const override { return std::numeric_limits<int>::max(); }  // the channel counts none of them
  bool is_one_launch() const override { return is_loop_; }

  void iterate(std::size_t, std::uint64_t, int count) override {
    batches_.wait_for_room();
    const auto begin = monotonic_ns();
    if (is_loop_) loop_->launch(static_cast<std::uint64_t>(count / unit_));
    else
      for (int done = 0; done < count; done += unit_) graph_->launch();
    batches_.end_batch();
    enqueue_ns += monotonic_ns() - begin;
  }

  void finish() override {
    batches_.wait_for_all();
    check_channel(*channel_);
  }

 private:
  static constexpr int kMaxSlots = 32;  // iterations of one graph; a channel has places for 64 puts that do not count

  // The channel decides this: if ranks share a GPU, the front end waits, by slots.
  bool counts(bench_rank& session) const {
    return wait_ == triggered::wait_method::kernel && session.context().query().shares_gpu_with < 0;
  }
  template <class T>
  static status keep(result<T> made, std::optional<T>& kept) {
    if (!made) return made.error();
    kept.emplace(std::move(made).value());
    return {};
  }
  void drop() {
    static_cast<void>(session_.cuda().cuStreamSynchronize(session_.stream()));
    graph_.reset();
    loop_.reset();
    channel_.reset();
  }

  bench_rank& session_;
  batch_events batches_;
  const triggered::executor_kind executor_;
  const triggered::wait_method wait_;
  const bool is_loop_;
  const int unit_;
  std::unique_ptr<triggered::channel> channel_;
  std::optional<captured_work> graph_;
  std::optional<graph_loop> loop_;
};

constexpr struct {
  arm kind;
  const char* name;
} kArms[] = {{arm::normal, "normal"},
             {arm::hostfn, "hostfn"},
             {arm::peer, "peer"},
             {arm::peer_kernel, "peer-kernel"},
             {arm::proxy, "proxy"},
             {arm::proxy_kernel, "proxy-kernel"},
             {arm::dma, "dma"},
             {arm::device, "device"},
             {arm::graph, "graph"},
             {arm::graph_kernel, "graph-kernel"},
             {arm::graph_dma, "graph-dma"},
             {arm::graph_loop, "graph-loop"},
             {arm::graph_loop_dma, "graph-loop-dma"}};

}  // namespace

triggered::executor_kind executor_of(arm kind) {
  if (kind == arm::proxy || kind == arm::proxy_kernel) return triggered::executor_kind::proxy;
  return kind == arm::dma || kind == arm::graph_dma || kind == arm::graph_loop_dma ? triggered::executor_kind::dma
                                                                                   : triggered::executor_kind::peer;
}

bool is_captured(arm kind) {
  return kind == arm::graph || kind == arm::graph_kernel || kind == arm::graph_dma || kind == arm::graph_loop ||
         kind == arm::graph_loop_dma;
}

const char* to_string(arm kind) {
  return std::find_if(std::begin(kArms), std::end(kArms), [=](const auto& one) { return one.kind == kind; })->name;
}

arm arm_of(const std::string& word) {
  std::string names;
  for (const auto& one : kArms) {
    if (word == one.name) return one.kind;
    names += (names.empty() ? "" : ", ") + std::string(one.name);
  }
  throw tools::tool_failure(format("--arms: \"%s\" is not one of %s", word.c_str(), names.c_str()));
}

std::unique_ptr<exchange> make_exchange(bench_rank& session, const contender& candidate, int unroll) {
  if (candidate.kind == arm::device)
    throw tools::tool_failure("--arms: only stencil and multigrid have a form for \"device\"");
  if (candidate.kind == arm::normal) return std::make_unique<normal_exchange>(session);
  if (candidate.kind == arm::hostfn) return std::make_unique<hostfn_exchange>(session, candidate.mode);
  if (is_captured(candidate.kind)) return std::make_unique<graph_exchange>(session, candidate, unroll);
  return std::make_unique<stream_exchange>(session, candidate);
}

}  // namespace pl::async
