// SPDX-License-Identifier: Apache-2.0
// The pointer chase; CPU accesses are in bar_latency.cpp.
#include "tools/bandwidth/latency.hpp"

#include <algorithm>
#include <array>
#include <cstring>

#include "base/text.hpp"
#include "tools/bandwidth/gpu_copier.hpp"
#include "tools/bandwidth/latency_protocol.hpp"
#include "tools/bandwidth/list_order.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kLineBytes = 128;
constexpr std::uint64_t kMaxAccesses = 100'000'000;
// Slots of the pool that no transfer uses.
constexpr unsigned kListSlot = 1'000'000, kResultSlot = 1'000'001;

status check_spec(const gpu_set& gpus, const chase_spec& spec) {
  if (spec.gpu < 0 || spec.gpu >= gpus.count())
    return failure{EINVAL, format("pointer chase: no GPU %d: there are %d", spec.gpu, gpus.count())};
  if (spec.bytes < 2 * kLineBytes || spec.bytes / kLineBytes > UINT32_MAX)
    return failure{EINVAL, format("pointer chase: a list of %s is not possible: 256 bytes to 512 GiB are",
                                  format_size(spec.bytes).c_str())};
  if (spec.accesses == 0 || spec.accesses > kMaxAccesses)
    return failure{EINVAL, format("pointer chase: 1 to %llu accesses", static_cast<unsigned long long>(kMaxAccesses))};
  if (spec.list.type == place::kind::host && spec.list.host == host_kind::pageable)
    return failure{EINVAL, "pointer chase: kernels do not reach pageable memory: use pinned memory"};
  return {};
}

// Built by the CPU and copied in one piece.
status write_list(gpu_set& gpus, const memory_view& list, const chase_spec& spec) {
  const auto lines = static_cast<std::uint32_t>(spec.bytes / kLineBytes);
  const auto next = chase_order(lines, spec.seed, spec.sequential);
  std::vector<std::uint64_t> words(std::size_t{lines} * (kLineBytes / 8));
  for (std::uint32_t i = 0; i < lines; ++i) words[i * (kLineBytes / 8)] = list.address + next[i] * kLineBytes;
  const std::size_t bytes = words.size() * sizeof words[0];
  if (list.host != nullptr) {
    std::memcpy(list.host, words.data(), bytes);
    return {};
  }
  if (auto ready = gpus.make_current(list.location.index); !ready) return ready;
  return gpus.check(gpus.cuda().cuMemcpyHtoD_v2(list.address, words.data(), bytes),
                    format("GPU %d: writing the list of a pointer chase", list.location.index));
}

latency_outcome to_outcome(const protocol::chase_result& found, const std::vector<std::uint32_t>& cycles) {
  latency_outcome out;
  const auto accesses = static_cast<double>(cycles.size());
  out.mean_ns = static_cast<double>(found.whole_ns) / accesses;
  const double ns_per_cycle =
      static_cast<double>(found.whole_ns) / static_cast<double>(std::max<std::uint64_t>(found.whole_cycles, 1));
  out.samples_ns.reserve(cycles.size());
  for (const std::uint64_t one : cycles)
    out.samples_ns.push_back(static_cast<double>(one - std::min(one, found.empty_cycles)) * ns_per_cycle);
  return out;
}

}  // namespace

result<latency_outcome> run_chase(gpu_set& gpus, buffer_pool& pool, const chase_spec& spec) {
  if (auto good = check_spec(gpus, spec); !good) return good.error();
  const auto kernel = gpus.kernel(spec.gpu, spec.by_bulk_copies ? "bandwidth_chase_bulk" : "bandwidth_chase");
  if (!kernel) return kernel.error();
  const auto list = pool.get(spec.list, spec.bytes, kListSlot, spec.gpu);
  if (!list) return list.error();
  const auto results =
      pool.get(gpu_place(spec.gpu), sizeof(protocol::chase_result) + 4 * spec.accesses, kResultSlot, spec.gpu);
  if (!results) return results.error();
  if (spec.list.type == place::kind::gpu)
    if (auto open = gpus.enable_peer_access(spec.gpu, spec.list.index); !open) return open.error();
  if (auto written = write_list(gpus, *list, spec); !written) return written.error();

  owned_stream stream(gpus, spec.gpu);
  if (auto opened = stream.open(); !opened) return opened.error();
  std::uint64_t first = list->address;
  std::uint64_t warm_up = spec.bytes / kLineBytes;
  std::uint64_t accesses = spec.accesses;
  std::uint64_t out = results->address;
  std::array<void*, 4> parameters{&first, &warm_up, &accesses, &out};
  const auto& cuda = gpus.cuda();
  const std::string name = format("GPU %d: the pointer chase", spec.gpu);
  const unsigned shared_bytes = spec.by_bulk_copies ? protocol::kBulkChaseBytes : protocol::kChaseSharedBytes;
  const auto launched = gpus.check(
      cuda.cuLaunchKernel(*kernel, 1, 1, 1, 1, 1, 1, shared_bytes, stream.get(), parameters.data(), nullptr), name);
  if (!launched) return launched.error();
  if (auto ended = gpus.check(cuda.cuStreamSynchronize(stream.get()), name); !ended) return ended.error();
  protocol::chase_result found{};
  std::vector<std::uint32_t> cycles(spec.accesses);
  if (auto got = gpus.check(cuda.cuMemcpyDtoH_v2(&found, out, sizeof found), name); !got) return got.error();
  if (auto got = gpus.check(cuda.cuMemcpyDtoH_v2(cycles.data(), out + sizeof found, 4 * cycles.size()), name); !got)
    return got.error();
  return to_outcome(found, cycles);
}

}  // namespace pl::bandwidth
