// SPDX-License-Identifier: Apache-2.0
// Freeing memory; each kind of allocation has its own release function.
#pragma once

#include "sim/address_space.hpp"

namespace pl::sim {

// Takes the allocation out of the address space and gives its memory back. False if another thread freed it first.
bool release_allocation(const allocation_ref& doomed);

// The parts of it, by kind.
void release_pool_memory(const allocation& freed);  // pool.cpp
void release_host_memory(const allocation& freed);  // host.cpp
void release_ipc_memory(const allocation& freed);   // ipc.cpp

}  // namespace pl::sim
