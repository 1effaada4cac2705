// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/simulated_topology.hpp"

#include <dlfcn.h>

namespace pl::bandwidth::simulated {
namespace {

// Extensions of the simulated libcuda; null with a real one. It is loaded before anything here is called.
template <class Call>
Call* find(const char* name) {
  void* const library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_NOLOAD);
  return library == nullptr ? nullptr : reinterpret_cast<Call*>(dlsym(library, name));
}

}  // namespace

int node_count() {
  static auto* const call = find<int()>("peerlaneSimNodeCount");
  return call == nullptr ? 1 : call();
}

int node_of_gpu(int gpu) {
  static auto* const call = find<int(int)>("peerlaneSimDeviceNode");
  return call == nullptr ? -1 : call(gpu);
}

bool has_rates() {
  static auto* const call = find<int()>("peerlaneSimHasRates");
  return call != nullptr && call() != 0;
}

void set_host_node(const void* memory, std::size_t bytes, int node) {
  static auto* const call = find<void(const void*, std::size_t, int)>("peerlaneSimSetHostNode");
  if (call != nullptr) call(memory, bytes, node);
}

int host_node(const void* memory) {
  static auto* const call = find<int(const void*)>("peerlaneSimHostNode");
  return call == nullptr ? -1 : call(memory);
}

}  // namespace pl::bandwidth::simulated
