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
#include "tools/triggered/queue_when_room.hpp"

namespace pl::async {
namespace {

constexpr std::uint64_t kTag = 0xa511c;
constexpr std::chrono::seconds kPatience{30};

// The CPU between every two steps: it waits for the message, launches, waits for the kernel, sends.
class normal_exchange final : public exchange {
 public:
  explicit normal_exchange(station& at) : at_(at), by_(at.messages()) {}

  void iterate(std::size_t bytes, std::uint64_t busy_ns, int count) override {
    const int peer = 1 - at_.rank();
    const auto in = link::device_buffer(at_.in(), bytes), out = link::device_buffer(at_.out(), bytes);
    for (int i = 0; i < count; ++i) {
      if (at_.rank() == 0) tools::must(by_.send(peer, out, kTag));
      static_cast<void>(tools::must(by_.recv(peer, in, kTag)));
      at_.launch_step(bytes, busy_ns);
      at_.synchronize();
      if (at_.rank() == 1) tools::must(by_.send(peer, out, kTag));
    }
  }
  void finish() override {}

 private:
  station& at_;
  link::messenger& by_;
};

// Host functions in the stream do the messages: the driver's thread takes the CPU's place between the steps. They may not
// call CUDA, so the data go through host memory, by copies in the stream.
class hostfn_exchange final : public exchange {
 public:
  hostfn_exchange(station& at, stream::run_mode mode)
      : at_(at),
        by_(at.host_messages()),
        in_(at.gpu(), at.window_bytes()),
        out_(at.gpu(), at.window_bytes()),
        batches_(at, mode) {}
  ~hostfn_exchange() override { static_cast<void>(at_.cuda().cuStreamSynchronize(at_.on())); }

  void iterate(std::size_t bytes, std::uint64_t busy_ns, int count) override {
    batches_.wait_for_room();
    const auto begin = monotonic_ns();
    bytes_ = bytes;
    for (int i = 0; i < count; ++i) {
      if (at_.rank() == 0) send();
      receive();
      at_.launch_step(bytes, busy_ns);
      if (at_.rank() == 1) send();
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
    auto& of = *static_cast<hostfn_exchange*>(self);
    of.note(of.by_.send(1 - of.at_.rank(), link::host_buffer(of.out_.data(), of.bytes_), kTag, kPatience));
  }
  static void receive_now(void* self) {
    auto& of = *static_cast<hostfn_exchange*>(self);
    const auto to = link::host_buffer(of.in_.data(), of.bytes_);
    const auto got = of.by_.recv(1 - of.at_.rank(), to, kTag, link::kWholeTag, kPatience);
    of.note(got ? status() : status(got.error()));
  }
  void note(const status& outcome) {
    if (outcome || has_failed_.load()) return;
    words_ = outcome.error().message;
    has_failed_.store(true);
  }
  void send() {
    const auto& cuda = at_.cuda();
    at_.gpu().check(cuda.cuMemcpyDtoHAsync_v2(out_.data(), at_.out(), bytes_, at_.on()), "cuMemcpyDtoHAsync");
    at_.gpu().check(cuda.cuLaunchHostFunc(at_.on(), send_now, this), "cuLaunchHostFunc");
  }
  void receive() {
    const auto& cuda = at_.cuda();
    at_.gpu().check(cuda.cuLaunchHostFunc(at_.on(), receive_now, this), "cuLaunchHostFunc");
    at_.gpu().check(cuda.cuMemcpyHtoDAsync_v2(at_.in(), in_.data(), bytes_, at_.on()), "cuMemcpyHtoDAsync");
  }

  station& at_;
  link::messenger& by_;
  tools::host_memory in_, out_;
  batch_events batches_;
  std::size_t bytes_ = 0;  // of this turn; host functions read it, and none is queued when it changes
  std::atomic<bool> has_failed_{false};
  std::string words_;
};

status queue_iterations(station& at, stream::channel& to, std::size_t bytes, std::uint64_t busy_ns, int count) {
  const auto& window = at.window_of(1 - at.rank());
  const auto send = [&] { return to.put_signal(at.on(), window, 0, at.out(), bytes); };
  for (int i = 0; i < count; ++i) {
    if (at.rank() == 0)
      if (const auto put = queue_when_room(send); !put) return put;
    if (const auto wait = to.wait_signal(at.on()); !wait) return wait.error();
    at.launch_step(bytes, busy_ns);
    if (at.rank() == 1)
      if (const auto put = queue_when_room(send); !put) return put;
  }
  return {};
}

void look_for_error(const stream::channel& of) {
  if (const auto now = of.state(); now.error != 0) throw tools::tool_failure("the channel broke: " + now.why);
}

// The streams go on by themselves; the CPU queues batches ahead of them.
class stream_exchange final : public exchange {
 public:
  stream_exchange(station& at, const contender& which) : at_(at), batches_(at, which.mode) {
    stream::channel_options options;
    const bool is_proxy = which.which == arm::proxy || which.which == arm::proxy_kernel;
    options.executor = is_proxy ? stream::executor_kind::proxy : stream::executor_kind::peer;
    if (which.which == arm::peer_kernel || which.which == arm::proxy_kernel) options.wait = stream::wait_way::kernel;
    to_ = at.connect(1 - at.rank(), at.new_channel_id(), options);
  }

  void iterate(std::size_t bytes, std::uint64_t busy_ns, int count) override {
    batches_.wait_for_room();
    const auto begin = monotonic_ns();
    tools::must(queue_iterations(at_, *to_, bytes, busy_ns, count));
    batches_.end_batch();
    enqueue_ns += monotonic_ns() - begin;
  }

  void finish() override {
    batches_.wait_for_all();
    look_for_error(*to_);
  }

 private:
  station& at_;
  batch_events batches_;
  std::unique_ptr<stream::channel> to_;
};

// Some iterations captured once and launched again and again: one call of the driver for all of their steps.
class graph_exchange final : public exchange {
 public:
  graph_exchange(station& at, const contender& which, int unroll)
      : at_(at),
        batches_(at, which.mode),
        wait_(which.which == arm::graph_kernel ? stream::wait_way::kernel : stream::wait_way::front_end),
        unit_(wait_ == stream::wait_way::kernel ? unroll : std::min(unroll, kMostSlots)) {}
  ~graph_exchange() override { drop(); }

  // Every case has a channel of its own, because captured operations keep their places in it.
  status prepare(std::size_t bytes, std::uint64_t busy_ns) override {
    drop();
    stream::channel_options options;
    options.executor = stream::executor_kind::peer;
    options.wait = wait_;
    options.releases_captured_waits = true;  // the other side writes here again only after it got our answer
    to_ = at_.connect(1 - at_.rank(), at_.new_channel_id(), options);
    auto made = captured_work::make(at_, [&] { return queue_iterations(at_, *to_, bytes, busy_ns, unit_); });
    at_.barrier();  // an end that closes is an error of the other one, which may still be capturing
    if (!made) return made.error();
    graph_.emplace(std::move(made).value());
    return {};
  }

  int unit() const override { return unit_; }
  int most_at_once() const override { return std::numeric_limits<int>::max(); }  // the channel counts none of them

  void iterate(std::size_t, std::uint64_t, int count) override {
    batches_.wait_for_room();
    const auto begin = monotonic_ns();
    for (int done = 0; done < count; done += unit_) graph_->launch();
    batches_.end_batch();
    enqueue_ns += monotonic_ns() - begin;
  }

  void finish() override {
    batches_.wait_for_all();
    look_for_error(*to_);
  }

 private:
  static constexpr int kMostSlots = 32;  // iterations of one graph; a channel has places for 64 puts that do not count

  void drop() {
    static_cast<void>(at_.cuda().cuStreamSynchronize(at_.on()));
    graph_.reset();
    to_.reset();
  }

  station& at_;
  batch_events batches_;
  const stream::wait_way wait_;
  const int unit_;
  std::unique_ptr<stream::channel> to_;
  std::optional<captured_work> graph_;
};

constexpr struct {
  arm which;
  const char* name;
} kArms[] = {{arm::normal, "normal"}, {arm::hostfn, "hostfn"},
             {arm::peer, "peer"},     {arm::peer_kernel, "peer-kernel"},
             {arm::proxy, "proxy"},   {arm::proxy_kernel, "proxy-kernel"},
             {arm::graph, "graph"},   {arm::graph_kernel, "graph-kernel"}};

}  // namespace

const char* to_string(arm which) {
  return std::find_if(std::begin(kArms), std::end(kArms), [=](const auto& one) { return one.which == which; })->name;
}

arm arm_of(const std::string& word) {
  std::string names;
  for (const auto& one : kArms) {
    if (word == one.name) return one.which;
    names += (names.empty() ? "" : ", ") + std::string(one.name);
  }
  throw tools::tool_failure(format("--arms: \"%s\" is none of %s", word.c_str(), names.c_str()));
}

std::unique_ptr<exchange> make_exchange(station& at, const contender& which, int unroll) {
  if (which.which == arm::normal) return std::make_unique<normal_exchange>(at);
  if (which.which == arm::hostfn) return std::make_unique<hostfn_exchange>(at, which.mode);
  if (which.which == arm::graph || which.which == arm::graph_kernel)
    return std::make_unique<graph_exchange>(at, which, unroll);
  return std::make_unique<stream_exchange>(at, which);
}

}  // namespace pl::async
