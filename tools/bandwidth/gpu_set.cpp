// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/gpu_set.hpp"

#include <dlfcn.h>

#include <map>
#include <mutex>
#include <set>

#include "bandwidth_image.hpp"
#include "base/text.hpp"
#include "cuda/kernel_image.hpp"
#include "tools/bandwidth/bulk_protocol.hpp"

namespace pl::bandwidth {

struct gpu_set::device {
  cu::device_t number = 0;
  std::string name, bus_id;
  std::mutex mutex;  // guards `context`, which any thread may need first
  cu::context_t context = nullptr;
  cu::module_t module = nullptr;
  std::map<std::string, cu::function_t> functions;
  std::set<int> peers;  // that this one may access
};

gpu_set::gpu_set(const cu::driver_table& cuda) : cuda_(cuda) {}

result<std::unique_ptr<gpu_set>> gpu_set::open(const cu::driver_table& cuda) {
  std::unique_ptr<gpu_set> set(new gpu_set(cuda));
  int count = 0;
  if (auto asked = set->check(cuda.cuDeviceGetCount(&count), "counting GPUs"); !asked) return asked.error();
  if (count == 0) return failure{ENODEV, "no GPU is visible: see CUDA_VISIBLE_DEVICES, and `peerlane doctor`"};
  for (int ordinal = 0; ordinal < count; ++ordinal) {
    auto one = std::make_unique<device>();
    if (auto got = set->check(cuda.cuDeviceGet(&one->number, ordinal), format("GPU %d", ordinal)); !got) return got.error();
    char text[256] = "";
    if (cuda.cuDeviceGetName(text, sizeof text, one->number) == cu::error_code::success) one->name = text;
    if (cuda.cuDeviceGetPCIBusId(text, sizeof text, one->number) == cu::error_code::success) one->bus_id = text;
    set->gpus_.push_back(std::move(one));
  }
  return set;
}

gpu_set::~gpu_set() {
  for (auto& one : gpus_) {
    if (one->context == nullptr) continue;
    if (one->module != nullptr && cuda_.cuCtxSetCurrent(one->context) == cu::error_code::success)
      cuda_.cuModuleUnload(one->module);
    cu::context_t current = nullptr;  // must not stay current once it may be gone
    if (cuda_.cuCtxGetCurrent(&current) == cu::error_code::success && current == one->context)
      cuda_.cuCtxSetCurrent(nullptr);
    cuda_.cuDevicePrimaryCtxRelease_v2(one->number);
  }
}

const std::string& gpu_set::name(int gpu) const { return gpus_[static_cast<std::size_t>(gpu)]->name; }
const std::string& gpu_set::bus_id(int gpu) const { return gpus_[static_cast<std::size_t>(gpu)]->bus_id; }

int gpu_set::attribute(int gpu, int attribute_id) const {
  int value = 0;
  const auto rc = cuda_.cuDeviceGetAttribute(&value, attribute_id, gpus_[static_cast<std::size_t>(gpu)]->number);
  return rc == cu::error_code::success ? value : 0;
}

std::string gpu_set::uuid(int gpu) const {
  cu::uuid_t found{};
  const auto rc = cuda_.cuDeviceGetUuid_v2(&found, gpus_[static_cast<std::size_t>(gpu)]->number);
  if (rc != cu::error_code::success) return {};
  std::string out = "GPU-";
  for (std::size_t i = 0; i < sizeof found.bytes; ++i) {
    if (i == 4 || i == 6 || i == 8 || i == 10) out += '-';
    out += format("%02x", static_cast<unsigned char>(found.bytes[i]));
  }
  return out;
}

unsigned gpu_set::multiprocessors(int gpu) const {
  return static_cast<unsigned>(attribute(gpu, cu::device_attribute::multiprocessor_count));
}

bool gpu_set::has_bulk_copies(int gpu) const {
  return attribute(gpu, cu::device_attribute::compute_capability_major) >= protocol::kBulkComputeMajor;
}

bool gpu_set::can_access(int gpu, int peer) const {
  if (gpu == peer) return true;
  int can = 0;
  const auto rc = cuda_.cuDeviceCanAccessPeer(&can, gpus_[static_cast<std::size_t>(gpu)]->number,
                                              gpus_[static_cast<std::size_t>(peer)]->number);
  return rc == cu::error_code::success && can != 0;
}

status gpu_set::make_current(int gpu) {
  auto& one = *gpus_[static_cast<std::size_t>(gpu)];
  const std::lock_guard lock(one.mutex);
  if (one.context == nullptr) {
    cu::context_t made = nullptr;
    if (auto got = check(cuda_.cuDevicePrimaryCtxRetain(&made, one.number), format("GPU %d: making a context", gpu)); !got)
      return got;
    one.context = made;
  }
  return check(cuda_.cuCtxSetCurrent(one.context), format("GPU %d: selecting its context", gpu));
}

status gpu_set::enable_peer_access(int gpu, int peer) {
  auto& one = *gpus_[static_cast<std::size_t>(gpu)];
  if (gpu == peer || one.peers.contains(peer)) return {};
  if (!can_access(gpu, peer))
    return failure{EINVAL, format("GPU %d cannot access the memory of GPU %d: there is no peer-to-peer path between them "
                                  "(`nvidia-smi topo -p2p r` says why)",
                                  gpu, peer)};
  if (auto ready = make_current(peer); !ready) return ready;
  const cu::context_t other = gpus_[static_cast<std::size_t>(peer)]->context;
  if (auto ready = make_current(gpu); !ready) return ready;
  const auto rc = cuda_.cuCtxEnablePeerAccess(other, 0);
  if (rc != cu::error_code::peer_access_already_enabled)
    if (auto done = check(rc, format("GPU %d: access to the memory of GPU %d", gpu, peer)); !done) return done;
  one.peers.insert(peer);
  return {};
}

status gpu_set::disable_peer_access(int gpu, int peer) {
  auto& one = *gpus_[static_cast<std::size_t>(gpu)];
  if (!one.peers.contains(peer)) return {};
  // The one caller of this function: not in the table.
  using disable_call = cu::result_t (*)(cu::context_t);
  const auto disable =
      cuda_.library == nullptr ? nullptr : reinterpret_cast<disable_call>(dlsym(cuda_.library, "cuCtxDisablePeerAccess"));
  if (disable == nullptr) return failure{ENOTSUP, "the driver cannot disable peer access"};
  const cu::context_t other = gpus_[static_cast<std::size_t>(peer)]->context;
  if (auto ready = make_current(gpu); !ready) return ready;
  const auto description = format("GPU %d: no access to the memory of GPU %d", gpu, peer);
  if (auto done = check(disable(other), description); !done) return done;
  one.peers.erase(peer);
  return {};
}

result<cu::function_t> gpu_set::kernel(int gpu, const char* name) {
  auto& one = *gpus_[static_cast<std::size_t>(gpu)];
  if (const auto known = one.functions.find(name); known != one.functions.end()) return known->second;
  if (auto ready = make_current(gpu); !ready) return ready.error();
  if (one.module == nullptr) {
    auto loaded = cu::load_kernels(cuda_, kernels::bandwidth());
    if (!loaded) return loaded.error();
    one.module = *loaded;
  }
  cu::function_t function = nullptr;
  const auto rc = cuda_.cuModuleGetFunction(&function, one.module, name);
  if (rc == cu::error_code::not_found)
    return failure{ENOTSUP, format("GPU %d: this build has no kernel %s for it", gpu, name)};
  if (auto found = check(rc, format("GPU %d: kernel %s", gpu, name)); !found) return found.error();
  one.functions.emplace(name, function);
  return function;
}

status gpu_set::check(cu::result_t code, const std::string& description) const {
  if (code == cu::error_code::success) return {};
  return cu::make_error(cuda_, code, description);
}

}  // namespace pl::bandwidth
