// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/poke.hpp"

#include <sched.h>

#include <cstdio>
#include <string>
#include <vector>

#include "base/clock.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "copy/gpu_context.hpp"
#include "cuda/kernel_image.hpp"
#include "stream_put_image.hpp"
#include "tools/common/tool.hpp"
#include "triggered/flag_words.hpp"
#include "triggered/mem_ops.hpp"

namespace pl::async {
namespace {

using triggered::mem_ops;

constexpr int kAhead = 64;               // pokes that are queued at once
constexpr int kWarmUp = 100;             // not counted
constexpr std::uint64_t kSettle = 5000;  // ns after an answer until the stream is certainly in its next wait
constexpr std::uint64_t kLimitNs = 10'000'000'000, kTrialNs = 200'000'000;
constexpr int kListLengths[] = {1, 4, 32, 255};
constexpr int kMaxOps = 1020,
              kMaxLists = 200;  // in a repetition: held back by a gate, so they must fit into the launch queue

// Spins until the word has come from `last` to `value`; counts how often it was seen to have changed. -1: not within the
// limit.
int watch_for(const std::uint64_t& word, std::uint64_t last, std::uint64_t value, std::uint64_t limit_ns) {
  const auto end = monotonic_ns() + limit_ns;
  int changes = 0;
  for (unsigned spins = 1; last != value; ++spins) {
    const auto now = __atomic_load_n(&word, __ATOMIC_ACQUIRE);
    changes += now != last;
    last = now;
    if (spins % 4096 != 0) continue;
    sched_yield();  // where there are fewer CPUs than threads
    if (monotonic_ns() > end) return -1;
  }
  return changes;
}
int watch(const std::uint64_t& word, std::uint64_t last, std::uint64_t value) {
  const int changes = watch_for(word, last, value, kLimitNs);
  if (changes < 0) throw tools::tool_failure("a stream did not answer within 10 s");
  return changes;
}

void spin_for(std::uint64_t ns) {
  for (const auto begin = monotonic_ns(); monotonic_ns() - begin < ns;) {}
}

struct poke_method {
  const char* name;
  bool is_in_gpu_memory;
  bool is_by_kernel;
};
constexpr poke_method kWays[] = {{"word in GPU memory, front end waits", true, false},
                                 {"word in GPU memory, kernel waits", true, true},
                                 {"word in pinned memory, front end waits", false, false},
                                 {"word in pinned memory, kernel waits", false, true}};

// Streams that stay in a wait until this object ends.
class stuck_streams {
 public:
  stuck_streams(const tools::gpu_session& gpu, int count, std::uint64_t* gate, std::uint64_t gate_on_gpu) : gate_(gate) {
    __atomic_store_n(gate_, 0, __ATOMIC_RELEASE);
    for (int i = 0; i < count; ++i) {
      all_.push_back(std::make_unique<tools::gpu_stream>(gpu));
      tools::must(mem_ops(gpu.cuda(), all_.back()->get()).wait64(gate_on_gpu, 1).submit());
    }
  }
  ~stuck_streams() { __atomic_store_n(gate_, 1, __ATOMIC_RELEASE); }
  stuck_streams(const stuck_streams&) = delete;
  stuck_streams& operator=(const stuck_streams&) = delete;

 private:
  std::uint64_t* const gate_;
  std::vector<std::unique_ptr<tools::gpu_stream>> all_;  // their ends wait for the streams: after the gate is open
};

class bench {
 public:
  bench(const tools::gpu_session& gpu, const poke_plan& plan, result_file* file)
      : gpu_(gpu), cuda_(gpu.cuda()), plan_(plan), file_(file), stream_(gpu) {
    const auto context = tools::must(copy::find_context(cuda_, gpu.ordinal(), nullptr));
    words_ = tools::must(triggered::word_pool::make(context, 1));
    index_ = tools::must(words_->take());
    module_ = tools::must(cu::load_kernels(cuda_, kernels::stream_put()));
    gpu_.check(cuda_.cuModuleGetFunction(&wait_kernel_, module_, "stream_wait"), "kernel stream_wait");
  }
  ~bench() {
    static_cast<void>(cuda_.cuStreamSynchronize(stream_.get()));
    static_cast<void>(cuda_.cuModuleUnload(module_));
  }

  int all() {
    std::printf(
        "# a store of the CPU releases a waiting stream, which writes a word that the CPU polls: us, there and back\n");
    std::printf("%-40s %6s %8s %8s %8s %8s %8s\n", "method", "stuck", "min", "p50", "p90", "p99", "max");
    for (const int stuck : plan_.stuck) poke_beside(stuck);
    std::printf(
        "# words that a stream writes to pinned memory, in lists of this length, all queued behind a gate word; from the "
        "opening of the gate\n");
    std::printf("%-8s %14s %12s %18s %16s\n", "list", "writes/s", "us a write", "values the CPU saw", "enqueue us/write");
    for (const int length : kListLengths) ring(length);
    return tools::kExitOk;
  }

 private:
  triggered::host_words& host() const { return words_->host(index_); }
  std::uint64_t on_gpu(std::size_t host_offset) const { return words_->host_on_gpu(index_) + host_offset; }
  std::uint64_t answer() const { return on_gpu(offsetof(triggered::host_words, doorbell)); }

  // The place where the stream waits, and the CPU's store to it.
  std::uint64_t place(const poke_method& way) const {
    return way.is_in_gpu_memory ? words_->gpu(index_) + offsetof(triggered::gpu_words, signal)
                                : on_gpu(offsetof(triggered::host_words, status));
  }
  void store(const poke_method& way, std::uint64_t value) const {
    if (way.is_in_gpu_memory) words_->store(index_, offsetof(triggered::gpu_words, signal), value);
    else __atomic_store_n(&host().status, value, __ATOMIC_RELEASE);
  }

  void queue_one(const poke_method& way, std::uint64_t value) {
    mem_ops ops(cuda_, stream_.get());
    std::uint64_t word = place(way), reached = on_gpu(offsetof(triggered::host_words, reached));
    if (way.is_by_kernel) {
      void* parameters[] = {&word, &value, &reached, &value};
      gpu_.check(cuda_.cuLaunchKernel(wait_kernel_, 1, 1, 1, 1, 1, 1, 0, stream_.get(), parameters, nullptr), "launch");
    } else {
      ops.wait64(word, value);
    }
    tools::must(ops.write64(answer(), value).submit());
  }

  void poke_beside(int stuck) {
    stuck_ = stuck;
    bool does_answer = true;
    {
      const stuck_streams others(gpu_, stuck, &host().self_test[0], on_gpu(offsetof(triggered::host_words, self_test)));
      tools::must(mem_ops(cuda_, stream_.get()).write64(answer(), ++value_).submit());
      does_answer = watch_for(host().doorbell, value_ - 1, value_, kTrialNs) >= 0;
      for (const auto& way : kWays)
        if (does_answer) poke(way);
    }
    gpu_.check(cuda_.cuStreamSynchronize(stream_.get()), "the stream");
    if (does_answer) return;
    const auto reason = format(
        "%d stuck streams: left out, one of them holds this stream's hardware queue "
        "(CUDA_DEVICE_MAX_CONNECTIONS=32 gives 32)",
        stuck);
    std::printf("%s\n", reason.c_str());
    if (file_ != nullptr) file_->add_note(reason);
  }

  void poke(const poke_method& way) {
    if (way.is_in_gpu_memory && !words_->is_mapped()) {
      const auto reason = format("%s: left out, %s", way.name, words_->why_unmapped().c_str());
      std::printf("%s\n", reason.c_str());
      if (file_ != nullptr) file_->add_note(reason);
      return;
    }
    std::vector<double> taken_ns;
    for (int i = 0; i < plan_.pokes + kWarmUp; ++i) {
      for (int ahead = 0; i % kAhead == 0 && ahead < kAhead; ++ahead)
        queue_one(way, value_ + 1 + static_cast<unsigned>(ahead));
      spin_for(kSettle);
      const auto begin = monotonic_ns();
      store(way, ++value_);
      watch(host().doorbell, value_ - 1, value_);
      if (i >= kWarmUp) taken_ns.push_back(static_cast<double>(monotonic_ns() - begin));
    }
    // What is queued beyond the last poke.
    value_ += static_cast<unsigned>((kAhead - (plan_.pokes + kWarmUp) % kAhead) % kAhead);
    store(way, value_);
    gpu_.check(cuda_.cuStreamSynchronize(stream_.get()), "the stream");
    print_results(way, taken_ns);
  }

  void print_results(const poke_method& way, const std::vector<double>& taken_ns) {
    const auto facts = summarize(taken_ns);
    std::printf("%-40s %6d %8.2f %8.2f %8.2f %8.2f %8.2f\n", way.name, stuck_, facts.min * 1e-3, facts.p50 * 1e-3,
                facts.p90 * 1e-3, facts.p99 * 1e-3, facts.max * 1e-3);
    if (file_ == nullptr) return;
    auto row = latency_fields(taken_ns);
    const auto series = stuck_ == 0 ? std::string(way.name) : format("%s, %d stuck", way.name, stuck_);
    row["series"] = series;
    row["stuck_streams"] = stuck_;
    row["kind"] = "poke";
    row["word"] = way.is_in_gpu_memory ? "gpu" : "pinned";
    row["wait"] = way.is_by_kernel ? "kernel" : "front_end";
    file_->add_samples(series, taken_ns);
    file_->add_row(std::move(row));
  }

  void ring(int length) {
    const int lists = std::min(kMaxLists, kMaxOps / length), writes = lists * length;
    std::vector<double> write_ns, enqueue_ns, seen;
    for (int turn = 0; turn <= plan_.repeats; ++turn) {
      const std::uint64_t gate = ++value_;
      tools::must(mem_ops(cuda_, stream_.get()).wait64(on_gpu(offsetof(triggered::host_words, status)), gate).submit());
      const auto begin = monotonic_ns();
      for (int list = 0; list < lists; ++list) {
        mem_ops ops(cuda_, stream_.get());
        for (int i = 0; i < length; ++i) ops.write64(answer(), ++value_);
        tools::must(ops.submit());
      }
      const auto queued = monotonic_ns();
      spin_for(kSettle);
      const auto shut = __atomic_load_n(&host().doorbell, __ATOMIC_ACQUIRE);  // before: the first write may come at once
      const auto opened = monotonic_ns();
      __atomic_store_n(&host().status, gate, __ATOMIC_RELEASE);
      const int changes = watch(host().doorbell, shut, value_);
      const auto ended = monotonic_ns();
      if (turn == 0) continue;
      write_ns.push_back(static_cast<double>(ended - opened) / writes);
      enqueue_ns.push_back(static_cast<double>(queued - begin) / writes);
      seen.push_back(static_cast<double>(changes));
    }
    gpu_.check(cuda_.cuStreamSynchronize(stream_.get()), "the stream");
    const double one_ns = summarize(write_ns).p50, enqueue = summarize(enqueue_ns).p50, changes = summarize(seen).p50;
    std::printf("%-8d %14.0f %12.3f %9.0f of %5d %16.3f\n", length, 1e9 / one_ns, one_ns * 1e-3, changes, writes,
                enqueue * 1e-3);
    if (file_ == nullptr) return;
    const auto series = format("writes in lists of %d", length);
    file_->add_samples(series, write_ns);
    file_->add_row({{"series", series},
                    {"kind", "doorbell"},
                    {"list_operations", length},
                    {"writes", writes},
                    {"write_ns_p50", one_ns},
                    {"writes_seen_p50", changes},
                    {"enqueue_ns_p50", enqueue}});
  }

  const tools::gpu_session& gpu_;
  const cu::driver_table& cuda_;
  const poke_plan& plan_;
  result_file* file_;
  const tools::gpu_stream stream_;
  std::unique_ptr<triggered::word_pool> words_;
  unsigned index_ = 0;
  cu::module_t module_ = nullptr;
  cu::function_t wait_kernel_ = nullptr;
  int stuck_ = 0;            // streams meanwhile
  std::uint64_t value_ = 0;  // of the last poke; all ways count on
};

}  // namespace

int run_poke(const tools::gpu_session& gpu, const poke_plan& plan, result_file* file) {
  return bench(gpu, plan, file).all();
}

}  // namespace pl::async
