// SPDX-License-Identifier: Apache-2.0
#include "pingpong.hpp"

#include <sched.h>
#include <sys/resource.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cstdio>
#include <deque>
#include <map>

#include "clock.hpp"
#include "statistics.hpp"
#include "text.hpp"
#include "tool.hpp"

namespace pl::async {
namespace {

constexpr std::uint64_t kStart = 1000;  // first value of every word
constexpr std::size_t kBatchesAhead = 3;
constexpr std::uint64_t kTag = 0xa511c;

struct turn {
  double per_iteration_ns = 0;
  double enqueue_ns = 0;  // CPU time of the calls that queue, per iteration; 0 where the CPU takes part in each
  double busy = 0;        // share of one CPU that this process used
};

double cpu_seconds() {
  rusage use{};
  getrusage(RUSAGE_SELF, &use);
  const auto seconds = [](const timeval& t) {
    return static_cast<double>(t.tv_sec) + static_cast<double>(t.tv_usec) * 1e-6;
  };
  return seconds(use.ru_utime) + seconds(use.ru_stime);
}

class exchange {
 public:
  virtual ~exchange() = default;
  // Queues or does `count` iterations.
  virtual void iterate(station& at, std::size_t bytes, std::uint64_t busy_ns, int count) = 0;
  virtual void finish(station& at) = 0;
  std::uint64_t enqueue_ns = 0;
};

// The CPU between every two steps: it waits for the message, launches, waits for the kernel, sends.
class normal_exchange final : public exchange {
 public:
  void iterate(station& at, std::size_t bytes, std::uint64_t busy_ns, int count) override {
    auto& by = at.messages();
    const int peer = 1 - at.rank();
    const auto in = link::device_buffer(at.in(), bytes), out = link::device_buffer(at.out(), bytes);
    for (int i = 0; i < count; ++i) {
      if (at.rank() == 0) tools::must(by.send(peer, out, kTag));
      static_cast<void>(tools::must(by.recv(peer, in, kTag)));
      at.launch_step(bytes, busy_ns);
      at.synchronize();
      if (at.rank() == 1) tools::must(by.send(peer, out, kTag));
    }
  }
  void finish(station&) override {}
};

// The streams go on by themselves; the CPU queues batches ahead of them.
class stream_exchange final : public exchange {
 public:
  stream_exchange(station& at, arm which) {
    stream::channel_options options;
    options.executor = which == arm::proxy ? stream::executor_kind::proxy : stream::executor_kind::peer;
    if (which == arm::peer_kernel) options.wait = stream::wait_way::kernel;
    to_ = at.connect(1 - at.rank(), static_cast<std::uint32_t>(which), options);
    for (auto& event : events_)
      at.gpu().check(at.cuda().cuEventCreate(&event, cu::event_flag::disable_timing), "cuEventCreate");
    cuda_ = &at.cuda();
  }
  ~stream_exchange() override {
    for (auto event : events_) static_cast<void>(cuda_->cuEventDestroy_v2(event));
  }

  void iterate(station& at, std::size_t bytes, std::uint64_t busy_ns, int count) override {
    wait_for_room(at);
    const auto begin = monotonic_ns();
    const auto& window = at.window_of(1 - at.rank());
    for (int i = 0; i < count; ++i) {
      if (at.rank() == 0) static_cast<void>(tools::must(to_->put_signal(at.on(), window, 0, at.out(), bytes)));
      static_cast<void>(tools::must(to_->wait_signal(at.on())));
      at.launch_step(bytes, busy_ns);
      if (at.rank() == 1) static_cast<void>(tools::must(to_->put_signal(at.on(), window, 0, at.out(), bytes)));
    }
    at.gpu().check(cuda_->cuEventRecord(events_[queued_++ % kBatchesAhead], at.on()), "cuEventRecord");
    enqueue_ns += monotonic_ns() - begin;
  }

  void finish(station& at) override {
    at.synchronize();
    if (const auto now = to_->state(); now.error != 0) throw tools::tool_failure("the channel broke: " + now.why);
  }

 private:
  void wait_for_room(station& at) {
    if (queued_ < kBatchesAhead) return;
    const auto event = events_[queued_ % kBatchesAhead];
    for (;;) {
      const auto rc = cuda_->cuEventQuery(event);
      if (rc == cu::error_code::success) return;
      if (rc != cu::error_code::not_ready) at.gpu().check(rc, "cuEventQuery");
      sched_yield();
    }
  }
  const cu::driver_table* cuda_ = nullptr;
  std::unique_ptr<stream::channel> to_;
  std::array<cu::event_t, kBatchesAhead> events_{};
  std::size_t queued_ = 0;
};

std::unique_ptr<exchange> make_exchange(station& at, arm which) {
  if (which == arm::normal) {
    static_cast<void>(at.messages());
    return std::make_unique<normal_exchange>();
  }
  return std::make_unique<stream_exchange>(at, which);
}

struct case_result {
  std::vector<double> per_iteration_ns, enqueue_ns, busy;
};

class run {
 public:
  run(station& at, const pingpong_plan& plan, result_file* file) : at_(at), plan_(plan), file_(file) {
    for (const arm which : plan.arms) ways_.push_back(make_exchange(at, which));
  }

  int all() {
    if (at_.rank() == 0) print_header();
    for (const auto kernel : plan_.kernel_ns)
      for (const auto size : plan_.sizes) one(size, kernel);
    if (file_ != nullptr && wrong_ != 0) file_->set_pass(false);
    return wrong_ == 0 ? tools::kExitOk : tools::kExitFailed;
  }

 private:
  void print_header() const {
    std::printf(
        "# ping-pong of %d iterations, %d queued at once, %d turns each, interleaved: us per round trip (two kernels)\n",
        plan_.iterations, plan_.batch, plan_.repeats);
    std::printf("%10s %12s %12s", "bytes", "kernel asked", "kernel took");
    for (const arm which : plan_.arms) std::printf(" %12s", to_string(which));
    for (std::size_t i = 1; i < plan_.arms.size(); ++i)
      std::printf(" %11s/%s", to_string(plan_.arms[i]), to_string(plan_.arms[0]));
    std::printf("\n");
  }

  void one(std::size_t bytes, std::uint64_t busy_ns) {
    const double kernel_ns = time_kernel(bytes, busy_ns);
    std::vector<case_result> all(ways_.size());
    for (int repeat = 0; repeat <= plan_.repeats; ++repeat)
      for (std::size_t i = 0; i < ways_.size(); ++i) {
        const std::size_t which = (i + static_cast<std::size_t>(repeat)) % ways_.size();
        // The first is a short one that is not counted.
        const turn t =
            take_turn(*ways_[which], bytes, busy_ns, repeat == 0 ? 2 * plan_.batch : plan_.iterations / plan_.repeats);
        if (repeat == 0) continue;
        all[which].per_iteration_ns.push_back(t.per_iteration_ns);
        all[which].enqueue_ns.push_back(t.enqueue_ns);
        all[which].busy.push_back(t.busy);
      }
    if (at_.rank() == 0) tell(bytes, busy_ns, kernel_ns, all);
  }

  turn take_turn(exchange& by, std::size_t bytes, std::uint64_t busy_ns, int iterations) {
    at_.fill(kStart, bytes);
    at_.barrier();
    by.enqueue_ns = 0;
    const double cpu_begin = cpu_seconds();
    const auto begin = monotonic_ns();
    for (int done = 0; done < iterations; done += plan_.batch)
      by.iterate(at_, bytes, busy_ns, std::min(plan_.batch, iterations - done));
    by.finish(at_);
    const auto taken = static_cast<double>(monotonic_ns() - begin);
    const double cpu = cpu_seconds() - cpu_begin;
    at_.barrier();
    // Rank 0's words went through both kernels of every iteration.
    const auto expected = kStart + 2 * static_cast<std::uint64_t>(iterations) - (at_.rank() == 0 ? 0 : 1);
    if (const auto wrong = at_.wrong_words(expected, bytes); wrong != 0) {
      wrong_ += wrong;
      std::fprintf(stderr, "%zu of %zu words are wrong after %d iterations\n", wrong, bytes / 8, iterations);
    }
    return {taken / iterations, static_cast<double>(by.enqueue_ns) / iterations, cpu / (taken * 1e-9)};
  }

  // One kernel alone, in a row of them.
  double time_kernel(std::size_t bytes, std::uint64_t busy_ns) {
    constexpr int kCount = 100;
    std::array<cu::event_t, 2> events{};
    for (auto& event : events) at_.gpu().check(at_.cuda().cuEventCreate(&event, 0), "cuEventCreate");
    at_.gpu().check(at_.cuda().cuEventRecord(events[0], at_.on()), "cuEventRecord");
    for (int i = 0; i < kCount; ++i) at_.launch_step(bytes, busy_ns);
    at_.gpu().check(at_.cuda().cuEventRecord(events[1], at_.on()), "cuEventRecord");
    at_.synchronize();
    float ms = 0;
    at_.gpu().check(at_.cuda().cuEventElapsedTime(&ms, events[0], events[1]), "cuEventElapsedTime");
    for (auto event : events) static_cast<void>(at_.cuda().cuEventDestroy_v2(event));
    return static_cast<double>(ms) * 1e6 / kCount;
  }

  void tell(std::size_t bytes, std::uint64_t busy_ns, double kernel_ns, const std::vector<case_result>& all) {
    const auto middle = [](const std::vector<double>& of) { return summarize(of).p50; };
    std::printf("%10zu %9.1f us %9.2f us", bytes, static_cast<double>(busy_ns) * 1e-3, kernel_ns * 1e-3);
    for (const auto& one : all) std::printf(" %12.2f", middle(one.per_iteration_ns) * 1e-3);
    for (std::size_t i = 1; i < all.size(); ++i)
      std::printf(" %11.3f", middle(all[i].per_iteration_ns) / middle(all[0].per_iteration_ns));
    std::printf("\n");
    if (file_ == nullptr) return;
    for (std::size_t i = 0; i < all.size(); ++i) {
      const std::string series =
          format("%s %zu B kernel %llu ns", to_string(plan_.arms[i]), bytes, static_cast<unsigned long long>(busy_ns));
      file_->add_samples(series, all[i].per_iteration_ns);
      file_->add_row({{"series", series},
                      {"arm", to_string(plan_.arms[i])},
                      {"size_bytes", bytes},
                      {"kernel_asked_ns", busy_ns},
                      {"kernel_ns", kernel_ns},
                      {"iteration_ns_p50", middle(all[i].per_iteration_ns)},
                      {"enqueue_ns_p50", middle(all[i].enqueue_ns)},
                      {"cpu_busy_p50", middle(all[i].busy)},
                      {"ratio_to_first", middle(all[i].per_iteration_ns) / middle(all[0].per_iteration_ns)}});
    }
  }

  station& at_;
  const pingpong_plan& plan_;
  result_file* file_;
  std::vector<std::unique_ptr<exchange>> ways_;
  std::size_t wrong_ = 0;
};

}  // namespace

const char* to_string(arm which) {
  switch (which) {
    case arm::normal:
      return "normal";
    case arm::peer:
      return "peer";
    case arm::peer_kernel:
      return "peer-kernel";
    case arm::proxy:
      break;
  }
  return "proxy";
}

arm arm_of(const std::string& word) {
  for (const arm one : {arm::normal, arm::peer, arm::peer_kernel, arm::proxy})
    if (word == to_string(one)) return one;
  throw tools::tool_failure(format("--arms: \"%s\" is none of normal, peer, peer-kernel, proxy", word.c_str()));
}

int run_pingpong(station& at, const pingpong_plan& plan, result_file* file) { return run(at, plan, file).all(); }

}  // namespace pl::async
