// SPDX-License-Identifier: Apache-2.0
// What lies between the streams of two hosts, without kernels: a round trip by the proxy threads of executor X, beside the
// same bytes by messages of GPU memory, which is what the normal flow does between its synchronisation and its next launch.
// The proxy thread itself plays the stream: it leaves a put in the pinned ring as soon as the signal of the last one is
// there. So two threads are at work in each arm, one on each side, in turns. Every byte is compared.
//
//     between_hosts_bench [--netns A,B] [--sizes BYTES,...] [--rounds N] [--turns N] [--message-bytes N] [--json FILE]
//
// Each side has one half of the CPUs, since two that poll on one CPU measure its scheduler. The quartiles tell more than the
// median on a machine that others use too.
#include <sched.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <future>
#include <vector>

#include "base/clock.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "bench/must.hpp"
#include "cuda/driver_table.hpp"
#include "measure/result_file.hpp"
#include "messaging/bootstrap/local_bootstrap.hpp"
#include "tools/common/tool.hpp"
#include "tools/common/word_list.hpp"
#include "tools/triggered/network_namespace.hpp"
#include "triggered/message_proxy.hpp"

namespace {

using namespace pl;
using namespace pl::triggered;

constexpr std::uint64_t kTag = 0xbe7;
constexpr std::uint32_t kWindow = 1;
constexpr int kArms = 3;
constexpr const char* kNames[kArms] = {"host", "messages", "proxies"};

struct settings {
  std::vector<std::string> networks;
  std::vector<std::size_t> sizes{8, 128, 8192, 65536, 262144, 1048576};
  int rounds = 200, turns = 10;
  std::size_t message_bytes = (32 << 10) - kHeadBytes;  // as channels do over TCP; 0: whole chunks
  std::string json;
  std::vector<std::string> command_line;
};

void use_half_of_the_cpus(int rank) {
  cpu_set_t allowed, half;
  CPU_ZERO(&half);
  if (sched_getaffinity(0, sizeof allowed, &allowed) != 0) return;
  const int count = CPU_COUNT(&allowed);
  for (int cpu = 0, seen = 0; cpu < CPU_SETSIZE; ++cpu)
    if (CPU_ISSET(cpu, &allowed) && (seen++ < count / 2) == (rank == 0)) CPU_SET(cpu, &half);
  if (count > 1) static_cast<void>(sched_setaffinity(0, sizeof half, &half));
}

class side {
 public:
  side(int rank, messaging::fork_bootstrap& sockets, const settings& wanted) : rank_(rank), wanted_(wanted) {
    use_half_of_the_cpus(rank);
    if (!wanted.networks.empty()) async::enter_network_namespace(wanted.networks[static_cast<std::size_t>(rank)]);
    group_ = sockets.take(rank);
    cuda_ = must(cu::driver());
    must(cu::initialize(*cuda_));
    gpu_ = must(copy::find_context(*cuda_, 0, nullptr));
    check(cuda_->cuCtxSetCurrent(gpu_.handle));
    bytes_ = *std::max_element(wanted.sizes.begin(), wanted.sizes.end());
    check(cuda_->cuMemAlloc_v2(&received_, bytes_));
    check(cuda_->cuMemAlloc_v2(&sent_, bytes_));
    words_ = must(word_pool::make(gpu_, 64));
    auto options = messaging::messenger_options::from_environment();
    options.path = messaging::messenger_options::path_t::network;
    messages_ = must(messaging::messenger::open(cuda_, *group_, options));
    host_messages_ = must(messaging::messenger::open(nullptr, *group_, options));
    windows_ = std::make_unique<receive_slots>(gpu_);
    windows_->add(kWindow, received_, bytes_);
    windows_->need();
    slots_ = std::make_unique<staging_pool>(gpu_);
  }

  // Between host memories: the network alone.
  std::vector<double> by_host_messages(std::size_t bytes) {
    host_in_.resize(bytes);
    auto took_ns = by_messages(*host_messages_, messaging::host_buffer(host_in_.data(), bytes),
                               messaging::host_buffer(pattern_.data(), bytes));
    check(cuda_->cuMemcpyHtoD_v2(received_, host_in_.data(), bytes));
    return took_ns;
  }
  std::vector<double> by_messages(std::size_t bytes) {
    return by_messages(*messages_, messaging::device_buffer(received_, bytes), messaging::device_buffer(sent_, bytes));
  }
  std::vector<double> by_messages(messaging::messenger& messages, const messaging::buffer& in,
                                  const messaging::buffer& out) {
    std::vector<double> took_ns;
    barrier();
    for (int i = 0; i < wanted_.rounds; ++i) {
      const auto begin = monotonic_ns();
      if (rank_ == 0) must(messages.send(1, out, kTag));
      static_cast<void>(must(messages.recv(1 - rank_, in, kTag)));
      if (rank_ == 1) must(messages.send(0, out, kTag));
      took_ns.push_back(static_cast<double>(monotonic_ns() - begin));
    }
    return took_ns;
  }

  std::vector<double> by_proxies(std::size_t bytes);
  void fill(std::size_t bytes, unsigned char salt) {
    pattern_.resize(bytes);
    for (std::size_t i = 0; i < bytes; ++i) pattern_[i] = static_cast<unsigned char>(i * 7 + salt);
    check(cuda_->cuMemcpyHtoD_v2(sent_, pattern_.data(), bytes));
    check(cuda_->cuMemcpyHtoD_v2(received_, std::vector<unsigned char>(bytes).data(), bytes));
  }
  void compare(std::size_t bytes) {
    std::vector<unsigned char> got(bytes);
    check(cuda_->cuMemcpyDtoH_v2(got.data(), received_, bytes));
    if (got != pattern_) die(format("%zu bytes came wrong", bytes));
  }
  void barrier() { must(group_->barrier()); }

 private:
  static void check(cu::result_t code) {
    if (code != cu::error_code::success) die(cu::error_text(**cu::driver(), code));
  }
  friend class stream_player;

  const int rank_;
  const settings& wanted_;
  std::unique_ptr<messaging::bootstrap> group_;
  const cu::driver_table* cuda_ = nullptr;
  copy::gpu_context gpu_;
  std::size_t bytes_ = 0;
  cu::device_ptr received_ = 0, sent_ = 0;
  std::vector<unsigned char> pattern_, host_in_;
  std::unique_ptr<word_pool> words_;
  std::unique_ptr<messaging::messenger> messages_, host_messages_;
  std::unique_ptr<receive_slots> windows_;
  std::unique_ptr<staging_pool> slots_;
  std::uint32_t incarnation_ = 0;
};

// Waits, then puts, as the two streams of a ping-pong; on the proxy thread, behind the task that it feeds.
class stream_player final : public proxy_task {
 public:
  stream_player(side& owner, std::shared_ptr<channel_core> core, std::shared_ptr<message_proxy> proxy, std::size_t bytes)
      : owner_(owner), core_(std::move(core)), proxy_(std::move(proxy)), bytes_(bytes) {}

  bool advance(bool) override {
    if (is_over_) return false;
    if (step_ == 0) begin();
    if (is_waiting_) {
      if (core_->words->load(core_->index, offsetof(gpu_words, signal)) < step_) return false;
      if (owner_.rank_ == 0) took_ns.push_back(static_cast<double>(monotonic_ns() - begin_ns_));
      is_waiting_ = false;
      next();
      return true;
    }
    return put();
  }
  void stop() override {}
  bool drain() override { return true; }
  void give_up() override {}
  bool has_sent_all() const noexcept override { return true; }
  message_counts sent() const noexcept override { return {}; }
  bool has_received(const message_counts&) const noexcept override { return true; }
  bool expects_doorbell() const noexcept override { return false; }
  bool needs_messages() const noexcept override { return false; }

  std::vector<double> took_ns;
  std::promise<void> end;

 private:
  void begin() {
    step_ = 1;
    if (owner_.rank_ == 0) start_put();
    else start_wait();
  }
  void next() {
    if (owner_.rank_ == 1) return start_put();
    if (++step_ > static_cast<std::uint64_t>(owner_.wanted_.rounds)) return finish();
    start_put();
  }
  void finish() {
    is_over_ = true;
    end.set_value();
  }
  void start_wait() {
    core_->set_target(step_, step_);
    core_->waits.store(step_);
    __atomic_store_n(&core_->host().reached, step_, __ATOMIC_RELEASE);
    is_waiting_ = true;
  }
  void start_put() {
    begin_ns_ = monotonic_ns();
    proxy_->publish({kWindow, 0, bytes_, step_});
    core_->puts.store(step_);
    piece_ = 0;
  }
  // What the copy engine and the front end do.
  bool put() {
    const auto piece = proxy_->piece_at(piece_);
    if (piece.staged != 0 && core_->words->load(core_->index, offsetof(gpu_words, staged)) < piece.staged) return false;
    std::memcpy(piece.host, owner_.pattern_.data() + offset_, piece.bytes);
    offset_ += piece.bytes;
    __atomic_store_n(&core_->host().doorbell, piece.doorbell_value, __ATOMIC_RELEASE);
    if (++piece_ < proxy_->pieces()) return true;
    offset_ = 0;
    __atomic_store_n(&core_->host().sent, step_, __ATOMIC_RELEASE);
    if (owner_.rank_ == 0) start_wait();
    else if (++step_ > static_cast<std::uint64_t>(owner_.wanted_.rounds)) finish();
    else start_wait();
    return true;
  }

  side& owner_;
  const std::shared_ptr<channel_core> core_;
  const std::shared_ptr<message_proxy> proxy_;
  const std::size_t bytes_;
  std::uint64_t step_ = 0, piece_ = 0, offset_ = 0, begin_ns_ = 0;
  bool is_waiting_ = false, is_over_ = false;
};

std::vector<double> side::by_proxies(std::size_t bytes) {
  channel_options options;
  const unsigned index = must(words_->take());
  auto core = std::make_shared<channel_core>(*words_, index, 1 - rank_, 1, options);
  core->incarnation = ++incarnation_;
  proxy_thread thread(*host_messages_, run_mode::performance, std::chrono::seconds(30), {});
  auto chunking = put_chunking::from_environment(false);
  chunking.doubled_from = 32;
  auto proxy = std::make_shared<message_proxy>(core, *host_messages_, thread, *windows_,
                                               must(slots_->take(windows_->engine())), chunking, wanted_.message_bytes);
  auto player = std::make_shared<stream_player>(*this, core, proxy, bytes);
  auto end = player->end.get_future();
  barrier();
  thread.add(core, proxy);
  thread.add(std::make_shared<channel_core>(*words_, index, 1 - rank_, 2, options), player);
  if (end.wait_for(std::chrono::seconds(60)) != std::future_status::ready)
    die("the proxies are stuck: " + core->failure_reason() + " " + proxy->report());
  barrier();  // what the last put sent has come
  words_->give_back(index);
  return player->took_ns;
}

void run(int rank, messaging::fork_bootstrap& sockets, const settings& wanted) {
  side local(rank, sockets, wanted);
  result_file out("between_hosts_bench", wanted.command_line);
  auto facts = describe_host();
  facts.simulated = (*cu::driver())->is_simulated;
  out.set_machine(facts);
  out.set_parameter("rounds", wanted.rounds);
  out.set_parameter("turns", wanted.turns);
  out.set_parameter("message_bytes", wanted.message_bytes);
  out.set_parameter("hosts", wanted.networks.empty() ? 1 : 2);
  if (rank == 0) std::printf("%9s  %-9s %9s %9s %9s %9s\n", "bytes", "arm", "p10 us", "p25 us", "p50 us", "p99 us");
  for (const auto bytes : wanted.sizes) {
    std::vector<double> took[kArms];
    for (int turn = 0; turn <= wanted.turns; ++turn)
      for (int i = 0; i < kArms; ++i) {
        const int arm = (i + turn) % kArms;
        local.fill(bytes, static_cast<unsigned char>(turn * kArms + arm));
        local.barrier();
        const auto samples = arm == 0   ? local.by_host_messages(bytes)
                             : arm == 1 ? local.by_messages(bytes)
                                        : local.by_proxies(bytes);
        local.compare(bytes);
        local.barrier();
        if (turn != 0) took[arm].insert(took[arm].end(), samples.begin(), samples.end());  // the first is for warming up
      }
    if (rank != 0) continue;
    for (int arm = 0; arm < kArms; ++arm) {
      const char* const name = kNames[arm];
      auto sorted = took[arm];
      std::sort(sorted.begin(), sorted.end());
      const auto quantile = [&](double share) {
        return sorted[static_cast<std::size_t>(share * static_cast<double>(sorted.size() - 1))];
      };
      std::printf("%9zu  %-9s %9.2f %9.2f %9.2f %9.2f\n", bytes, name, quantile(.1) / 1e3, quantile(.25) / 1e3,
                  quantile(.5) / 1e3, quantile(.99) / 1e3);
      auto row = latency_fields(took[arm]);
      row["arm"] = name;
      row["size_bytes"] = bytes;
      row["latency_ns_p10"] = quantile(.1);
      row["latency_ns_p25"] = quantile(.25);
      row["series"] = format("%s %zu B", name, bytes);
      out.add_samples(row["series"], took[arm]);
      out.add_row(row);
    }
    std::fflush(stdout);
  }
  if (rank == 0 && !wanted.json.empty()) must(out.write(wanted.json));
}

settings parse(int argc, char** argv) {
  settings out;
  out.command_line.assign(argv, argv + argc);
  for (int i = 1; i + 1 < argc; i += 2) {
    const std::string name = argv[i], value = argv[i + 1];
    if (name == "--netns") {
      out.networks = tools::split_list(value);
      if (out.networks.size() != 2) die("--netns: two names, with a comma between them");
    } else if (name == "--sizes") {
      out.sizes.clear();
      for (const auto& each : tools::split_list(value)) out.sizes.push_back(std::stoul(each));
    } else if (name == "--rounds") out.rounds = std::stoi(value);
    else if (name == "--turns") out.turns = std::stoi(value);
    else if (name == "--message-bytes") out.message_bytes = std::stoul(value);
    else if (name == "--json") out.json = value;
    else die("no option " + name);
  }
  return out;
}

}  // namespace

int main(int argc, char** argv) {
  const auto wanted = parse(argc, argv);
  auto sockets = must(messaging::fork_bootstrap::make(2));
  const pid_t child = fork();
  if (child == 0) {
    run(1, sockets, wanted);
    return 0;
  }
  run(0, sockets, wanted);
  int code = 0;
  waitpid(child, &code, 0);
  return code != 0 ? 1 : 0;
}
