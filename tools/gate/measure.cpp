// SPDX-License-Identifier: Apache-2.0
#include "tools/gate/measure.hpp"

#include <algorithm>
#include <cerrno>
#include <cinttypes>
#include <cstring>
#include <thread>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "os/blocked_signals.hpp"
#include "tools/bandwidth/outcome.hpp"
#include "tools/bandwidth/pattern_hash.hpp"
#include "tools/common/report.hpp"

namespace pl::gate {
namespace {

using namespace pl::bandwidth;  // NOLINT: this file speaks its transfers

// Long enough that starting a copy does not count, short enough for many GPUs in the time of a prolog. The simulated GPU's
// copies run on the CPU.
constexpr std::uint64_t kRateBytes = 64u << 20, kSimulatedRateBytes = 1u << 20;
constexpr std::uint64_t kMappingBytes = 256u << 10;  // CPU loads through BAR1 move about 1 GB/s
constexpr std::uint64_t kChannelBytes = 4u << 20;
constexpr std::uint64_t kHostBytes = 64u << 20;
constexpr unsigned kHostThreads = 8;
constexpr unsigned kTimeoutS = 5;

method settings_for(bool is_rate) {
  method out;
  out.samples = is_rate ? 5 : 1;
  out.copies = is_rate ? 4 : 1;
  out.warm_up = 1;
  out.min_sample_ns = is_rate ? 2'000'000 : 0;
  out.timeout_s = kTimeoutS;
  return out;
}

bool is_rate(const std::string& name) { return name == "h2d" || name == "d2h" || name == "local" || name == "p2p"; }

reading reading_of(const std::string& name, int gpu, int peer = -1) {
  reading out;
  out.name = name;
  out.gpu = gpu;
  out.peer = peer;
  return out;
}

}  // namespace

measurer::measurer(gpu_set& gpus, const machine_links& links, std::uint64_t deadline_ns)
    : gpus_(gpus), links_(links), deadline_ns_(deadline_ns), pool_(gpus, {}), runner_(gpus) {}

bool measurer::has_time() { return monotonic_ns() < deadline_ns_; }

void measurer::add(std::vector<reading>& out, const char* name, int gpu, int peer) {
  if (has_time()) out.push_back(measure(name, gpu, peer));
  else ++missed_;
}

std::vector<reading> measurer::run() {
  std::vector<reading> out;
  for (int gpu = 0; gpu < gpus_.count(); ++gpu) {
    tools::place_thread({}, gpus_.bus_id(gpu), gpus_.simulated());
    for (const char* name : {"h2d", "d2h", "local", "placement", "mapping", "channel", "host_memory"})
      add(out, name, gpu, -1);
  }
  for (int gpu = 0; gpu < gpus_.count(); ++gpu)
    for (int peer = 0; peer < gpus_.count(); ++peer)
      if (gpu != peer && gpus_.can_access(gpu, peer)) add(out, "p2p", gpu, peer);
  return out;
}

reading measurer::again(const reading& one) { return has_time() ? measure(one.name, one.gpu, one.peer) : one; }

transfer_spec measurer::transfer_of(const std::string& name, int gpu, int peer) const {
  transfer_spec out{
      host_place(), gpu_place(gpu), {executor_kind::ce, gpu, 0}, gpus_.simulated() ? kSimulatedRateBytes : kRateBytes};
  if (name == "d2h") std::swap(out.source, out.destination);
  if (name == "local") out.source = gpu_place(gpu);
  if (name == "p2p") out.source = gpu_place(gpu), out.destination = gpu_place(peer);
  if (name == "mapping") out.executor.kind = executor_kind::bar, out.bytes = kMappingBytes;
  if (name == "channel") out.executor.kind = executor_kind::dma, out.bytes = kChannelBytes;
  return out;
}

reading measurer::measure(const std::string& name, int gpu, int peer) {
  if (name == "host_memory") return measure_host_memory(gpu);
  if (name == "placement") return check_placement(gpu);
  reading out = reading_of(name, gpu, peer);
  transfer_spec transfer = transfer_of(name, gpu, peer);
  if (!run_way(transfer, out) || is_rate(name)) return out;
  std::swap(transfer.source, transfer.destination);
  run_way(transfer, out);
  return out;
}

// Returns false if it failed; `out` says why.
bool measurer::run_way(const transfer_spec& transfer, reading& out) {
  const auto give_up = [&](const failure& error) {
    out.outcome = error.code == ENOTSUP || error.code == ENOSYS ? reading::state::unavailable : reading::state::failed;
    out.reason = error.message;
    return false;
  };
  bound_transfer bound;
  bound.executor = transfer.executor;
  bound.bytes = transfer.bytes;
  const bool is_local = transfer.source == transfer.destination;
  for (const bool is_source : {true, false}) {
    const auto view = pool_.get(is_source ? transfer.source : transfer.destination, transfer.bytes,
                                is_source && is_local ? 1 : 0, transfer.executor.gpu);
    if (!view) return give_up(view.error());
    (is_source ? bound.source : bound.destination) = *view;
  }
  const auto measured = runner_.run({&bound, 1}, settings_for(is_rate(out.name)));
  if (!measured) return give_up(measured.error());
  const mismatch& wrong = measured->each[0].wrong;
  if (wrong.bytes != 0) {
    out.outcome = reading::state::wrong;
    out.reason = format("%" PRIu64 " of %" PRIu64 " bytes %s to %s by %s, the first at %" PRIu64, wrong.bytes,
                        transfer.bytes, to_string(transfer.source).c_str(), to_string(transfer.destination).c_str(),
                        to_string(transfer.executor.kind), wrong.first_offset);
    return false;
  }
  out.samples = measured->each[0].own_gb_per_s;
  out.value = describe(out.samples).median;
  if (is_rate(out.name)) judge(transfer, out);
  return true;
}

void measurer::judge(const transfer_spec& transfer, reading& out) {
  transfer_path path;
  path.source = transfer.source;
  path.destination = transfer.destination;
  path.executor = transfer.executor;
  path.bytes = transfer.bytes;
  path.is_local_copy = transfer.source == transfer.destination;
  out.expected = expect(links_, path);
  if (!out.expected) return;
  const machine_links after = read_links(gpus_);
  measurement_context known;
  known.before = &links_;
  known.after = &after;
  known.coefficient_of_variation = describe(out.samples).coefficient_of_variation;
  out.judged = bandwidth::judge(out.value, *out.expected, path, known);
}

// Whether pages asked for near the GPU lie there.
reading measurer::check_placement(int gpu) {
  reading out = reading_of("placement", gpu);
  const auto view = pool_.get(host_place(), 1u << 20, 2, gpu);
  const int near = links_.gpus[static_cast<std::size_t>(gpu)].numa_node;
  const int really = view ? pool_.node_of(*view) : -1;
  if (!view) {
    out.outcome = reading::state::failed;
    out.reason = view.error().message;
  } else if (near >= 0 && really >= 0 && near != really) {
    out.outcome = reading::state::failed;
    out.reason = format(
        "host memory for it is on NUMA node %d, the GPU is on %d: that node has no memory free, or it is not "
        "allowed here (cpuset)",
        really, near);
  }
  return out;
}

// Copies by the CPUs near the GPU, in memory near it.
reading measurer::measure_host_memory(int gpu) {
  reading out = reading_of("host_memory", gpu);
  out.is_simulated = gpus_.simulated();
  const std::uint64_t bytes = gpus_.simulated() ? kSimulatedRateBytes : kHostBytes;
  const auto source = pool_.get(host_place(), bytes, 0, gpu), destination = pool_.get(host_place(), bytes, 1, gpu);
  if (!source || !destination) {
    out.outcome = reading::state::failed;
    out.reason = (!source ? source : destination).error().message;
    return out;
  }
  const unsigned threads = std::clamp(std::thread::hardware_concurrency(), 1u, kHostThreads);
  for (std::uint64_t i = 0; i < bytes / 8; ++i) {
    const std::uint64_t word = pattern_word(i, static_cast<std::uint64_t>(gpu));
    std::memcpy(source->host + 8 * i, &word, 8);
  }
  std::memset(destination->host, 0, bytes);
  for (unsigned sample = 0; sample < settings_for(true).samples; ++sample) {
    const std::uint64_t begin_ns = monotonic_ns();
    std::vector<std::thread> copiers;
    for (unsigned i = 0; i < threads; ++i) {
      const std::uint64_t first = bytes / threads * i, end = i + 1 == threads ? bytes : bytes / threads * (i + 1);
      auto started = try_start_thread("copies in host memory", [&, first, end] {
        std::memcpy(destination->host + first, source->host + first, end - first);
      });
      if (started) copiers.push_back(*std::move(started));
      else out.reason = started.error().message;
    }
    for (auto& one : copiers) one.join();
    if (!out.reason.empty()) {
      out.outcome = reading::state::failed;
      return out;
    }
    out.samples.push_back(static_cast<double>(bytes) /
                          static_cast<double>(std::max<std::uint64_t>(monotonic_ns() - begin_ns, 1)));
  }
  out.value = describe(out.samples).median;
  if (std::memcmp(source->host, destination->host, bytes) == 0) return out;
  out.outcome = reading::state::wrong;
  out.reason = "copies in host memory differ from their source: test the memory";
  return out;
}

}  // namespace pl::gate
