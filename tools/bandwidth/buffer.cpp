// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/buffer.hpp"

#include <sys/mman.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstring>

#include "base/checked_math.hpp"
#include "base/text.hpp"
#include "tools/bandwidth/numa.hpp"
#include "tools/bandwidth/simulated_topology.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kHugePageBytes = 2u << 20;
constexpr int kHugePageFlag = 21 << MAP_HUGE_SHIFT;

std::string list_of_nodes(const std::vector<int>& nodes) {
  std::string out;
  for (const int node : nodes) out += format("%s%d", out.empty() ? "" : ", ", node);
  return out;
}

enum class pages { standard, reserved_huge, transparent_huge };

// Anonymous memory of this process, not touched yet.
class host_mapping {
 public:
  static result<host_mapping> make(std::uint64_t bytes, pages kind) {
    const auto rounded = checked_align_up(bytes, kHugePageBytes);
    if (!rounded) return failure{EINVAL, format("no host buffer can have %s", format_size(bytes).c_str())};
    const failure none{ENOMEM, format("cannot allocate %s of host memory: use a smaller -b", format_size(*rounded).c_str())};
    host_mapping made;
    if (kind == pages::reserved_huge) {
      if (!made.map(*rounded, MAP_HUGETLB | kHugePageFlag)) return none;
      return made;
    }
    // Transparent huge pages need a start of their size: map one more, and give back what is outside.
    if (!made.map(*rounded + kHugePageBytes, 0)) return none;
    made.align(*rounded);
    if (madvise(made.base_, made.bytes_, MADV_HUGEPAGE) != 0 && kind == pages::transparent_huge) return none;
    return made;
  }
  host_mapping() = default;
  host_mapping(host_mapping&& other) noexcept { swap(other); }
  host_mapping& operator=(host_mapping&& other) noexcept {
    swap(other);
    return *this;
  }
  ~host_mapping() {
    if (base_ != nullptr) munmap(base_, bytes_);
  }
  std::byte* base() const { return base_; }
  std::uint64_t bytes() const { return bytes_; }

  // Allocates the pages now, by the policy. ENOMEM: the node has none of this kind.
  status touch() {
    if (madvise(base_, bytes_, MADV_POPULATE_WRITE) == 0) return {};
    if (errno == EINVAL) {  // before Linux 5.14: a write, which ends the process where reserved huge pages are missing
      std::memset(base_, 0, bytes_);
      return {};
    }
    return failure{ENOMEM,
                   format("the kernel has no pages for %s of host memory on that node", format_size(bytes_).c_str())};
  }

 private:
  bool map(std::uint64_t bytes, int flags) {
    void* address = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | flags, -1, 0);
    if (address == MAP_FAILED) return false;
    base_ = static_cast<std::byte*>(address);
    bytes_ = bytes;
    return true;
  }
  void align(std::uint64_t wanted) {
    const auto begin = reinterpret_cast<std::uintptr_t>(base_);
    const std::uint64_t front = align_down(begin + kHugePageBytes - 1, kHugePageBytes) - begin;
    if (front != 0) munmap(base_, front);
    if (bytes_ - front != wanted) munmap(base_ + front + wanted, bytes_ - front - wanted);
    base_ += front;
    bytes_ = wanted;
  }
  void swap(host_mapping& other) noexcept {
    std::swap(base_, other.base_);
    std::swap(bytes_, other.bytes_);
  }
  std::byte* base_ = nullptr;
  std::uint64_t bytes_ = 0;
};

// The kernel may refuse transparent huge pages silently: `[never]`, or fragmented memory.
bool is_on_huge_pages(const host_mapping& memory) {
  std::FILE* const maps = std::fopen("/proc/self/smaps", "r");
  if (maps == nullptr) return false;
  const auto wanted = reinterpret_cast<unsigned long long>(memory.base());
  bool is_inside = false;
  unsigned long long huge_kib = 0;
  char line[512];
  while (std::fgets(line, sizeof line, maps) != nullptr) {
    unsigned long long begin = 0, end = 0;
    if (std::sscanf(line, "%llx-%llx ", &begin, &end) == 2) is_inside = begin <= wanted && wanted < end;
    if (is_inside && std::sscanf(line, "AnonHugePages: %llu kB", &huge_kib) == 1) break;
  }
  std::fclose(maps);
  return huge_kib * 1024 >= memory.bytes() / 2;
}

std::string locked_memory_advice(std::uint64_t bytes) {
  rlimit limit{};
  if (getrlimit(RLIMIT_MEMLOCK, &limit) == 0 && limit.rlim_cur != RLIM_INFINITY && limit.rlim_cur < bytes)
    return format(
        "locked memory is limited to %s: raise it (ulimit -l unlimited, or docker run --ulimit memlock=-1), or use a "
        "smaller -b",
        format_size(limit.rlim_cur).c_str());
  return "use a smaller -b, or free memory of this node";
}

}  // namespace

struct buffer_pool::entry {
  explicit entry(gpu_set& all) : gpus(all) {}
  entry(const entry&) = delete;
  entry& operator=(const entry&) = delete;
  ~entry() {
    // Errors come from lost GPUs, whose driver frees the memory.
    if ((is_registered || device != 0) && !gpus.make_current(gpu)) return;
    if (is_registered) gpus.cuda().cuMemHostUnregister(host.base());
    if (device != 0) gpus.cuda().cuMemFree_v2(device);
    if (gpus.simulated() && host.base() != nullptr) simulated::set_host_node(host.base(), host.bytes(), -1);
  }

  status make_device(int ordinal, std::uint64_t bytes);
  status make_host(const place& location, std::uint64_t bytes, int owner, std::optional<int> node);
  status place_pages(std::uint64_t bytes, pages kind, std::optional<int> node, bool must_bind);
  status register_pages();

  gpu_set& gpus;
  int gpu = 0;  // in whose context it was made
  cu::device_ptr device = 0;
  host_mapping host;
  bool is_registered = false;
  memory_view view;
};

status buffer_pool::entry::make_device(int ordinal, std::uint64_t bytes) {
  if (ordinal < 0 || ordinal >= gpus.count())
    return failure{EINVAL, format("no GPU %d: there are %d", ordinal, gpus.count())};
  gpu = ordinal;
  if (auto ready = gpus.make_current(gpu); !ready) return ready;
  cu::device_ptr made = 0;
  const auto rc = gpus.cuda().cuMemAlloc_v2(&made, bytes);
  if (rc == cu::error_code::out_of_memory)
    return failure{ENOMEM, format("GPU %d has no %s free: use a smaller -b, or end other programs on it (nvidia-smi)", gpu,
                                  format_size(bytes).c_str())};
  if (auto got = gpus.check(rc, format("GPU %d: cuMemAlloc of %s", gpu, format_size(bytes).c_str())); !got) return got;
  device = made;
  view = {gpu_place(ordinal), made, nullptr, bytes, true};
  return {};
}

status buffer_pool::entry::make_host(const place& location, std::uint64_t bytes, int owner, std::optional<int> node) {
  gpu = owner;
  const bool must_bind = location.index >= 0;
  status placed;
  if (location.host == host_kind::huge) {
    placed = place_pages(bytes, pages::reserved_huge, node, must_bind);
    if (!placed) placed = place_pages(bytes, pages::transparent_huge, node, must_bind);
    if (!placed && placed.code() == ENOMEM)
      return failure{ENOMEM,
                     format("no huge pages for %s of host memory: reserve some (sysctl vm.nr_hugepages=%llu) or allow "
                            "transparent ones (echo madvise > /sys/kernel/mm/transparent_hugepage/enabled)",
                            format_size(bytes).c_str(),
                            static_cast<unsigned long long>((bytes + kHugePageBytes - 1) / kHugePageBytes))};
  } else {
    placed = place_pages(bytes, pages::standard, node, must_bind);
  }
  if (!placed) return placed;
  view = {location, reinterpret_cast<std::uint64_t>(host.base()), host.base(), host.bytes(), false};
  return location.host == host_kind::pageable ? status{} : register_pages();
}

status buffer_pool::entry::place_pages(std::uint64_t bytes, pages kind, std::optional<int> node, bool must_bind) {
  auto mapped = host_mapping::make(bytes, kind);
  if (!mapped) return mapped.error();
  if (node)
    if (auto bound = numa::bind(mapped->base(), mapped->bytes(), *node); !bound && must_bind)
      return failure{bound.code(), bound.error().message + ": allow mbind (docker run --cap-add SYS_NICE), or name no node"};
  if (auto touched = mapped->touch(); !touched) return touched;
  if (kind == pages::transparent_huge && !is_on_huge_pages(*mapped))
    return failure{ENOMEM, "the kernel gave no transparent huge pages"};
  host = *std::move(mapped);
  return {};
}

status buffer_pool::entry::register_pages() {
  if (auto ready = gpus.make_current(gpu); !ready) return ready;
  const unsigned flags = cu::host_register_flag::portable | cu::host_register_flag::device_map;
  const auto rc = gpus.cuda().cuMemHostRegister_v2(host.base(), host.bytes(), flags);
  const std::string size = format_size(host.bytes());
  if (rc == cu::error_code::out_of_memory)
    return failure{ENOMEM,
                   format("pinning %s of host memory failed: %s", size.c_str(), locked_memory_advice(host.bytes()).c_str())};
  if (auto done = gpus.check(rc, format("pinning %s of host memory", size.c_str())); !done) return done;
  is_registered = true;
  cu::device_ptr address = 0;
  if (auto got = gpus.check(gpus.cuda().cuMemHostGetDevicePointer_v2(&address, host.base(), 0), "address of pinned memory");
      !got)
    return got;
  view.address = address;
  view.gpu_reachable = true;
  return {};
}

namespace {

struct chosen_nodes {
  std::optional<int> bind_to;  // of this machine
  int simulated = -1;          // of the simulated one, which need not be like this one
};

// `near_gpu`: -1 if nothing was said.
result<chosen_nodes> choose_nodes(const gpu_set& gpus, const place& location, int near_gpu) {
  chosen_nodes out;
  if (location.index < 0) {
    if (near_gpu < 0) return out;
    if (gpus.simulated()) out.simulated = simulated::node_of_gpu(near_gpu);
    else if (const int near = numa::node_of_pci_device(gpus.bus_id(near_gpu)); near >= 0) out.bind_to = near;
    return out;
  }
  const auto nodes = numa::nodes();
  if (std::find(nodes.begin(), nodes.end(), location.index) != nodes.end()) out.bind_to = location.index;
  if (gpus.simulated() && location.index < simulated::node_count()) out.simulated = location.index;
  if (!out.bind_to && out.simulated < 0)
    return failure{EINVAL,
                   format("no NUMA node %d with memory: this machine has %s", location.index, list_of_nodes(nodes).c_str())};
  return out;
}

}  // namespace

buffer_pool::buffer_pool(gpu_set& gpus, const host_memory_options& options) : gpus_(gpus), options_(options) {}
buffer_pool::~buffer_pool() = default;

result<memory_view> buffer_pool::get(const place& location, std::uint64_t bytes, unsigned slot, int near_gpu) {
  if (bytes == 0) return failure{EINVAL, "a buffer of 0 bytes was asked for: name a size of at least 4 bytes"};
  const bool is_host = location.type == place::kind::host;
  const auto key = std::make_tuple(location, slot, is_host && location.index < 0 ? near_gpu : -1);
  if (const auto known = entries_.find(key); known != entries_.end()) {
    if (known->second->view.bytes >= bytes) return known->second->view;
    entries_.erase(known);
  }
  auto fresh = std::make_unique<entry>(gpus_);
  if (!is_host) {
    if (auto made = fresh->make_device(location.index, bytes); !made) return made.error();
    return (entries_[key] = std::move(fresh))->view;
  }
  const bool is_near_a_gpu = near_gpu >= 0 && near_gpu < gpus_.count();
  const auto nodes = choose_nodes(gpus_, location, options_.bind_near_gpu && is_near_a_gpu ? near_gpu : -1);
  if (!nodes) return nodes.error();
  if (auto made = fresh->make_host(location, bytes, is_near_a_gpu ? near_gpu : 0, nodes->bind_to); !made)
    return made.error();
  if (nodes->simulated >= 0) simulated::set_host_node(fresh->host.base(), fresh->host.bytes(), nodes->simulated);
  return (entries_[key] = std::move(fresh))->view;
}

int buffer_pool::node_of(const memory_view& view) const {
  if (view.host == nullptr) return -1;
  if (const int reported_node = gpus_.simulated() ? simulated::host_node(view.host) : -1; reported_node >= 0)
    return reported_node;
  return numa::node_of(view.host);
}

void buffer_pool::trim() { entries_.clear(); }

}  // namespace pl::bandwidth
