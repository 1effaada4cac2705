// SPDX-License-Identifier: Apache-2.0
// The object behind a C copier: its planner, and the copies in progress.
#pragma once

#include <peerlane/copy.h>

#include <atomic>
#include <cstdint>
#include <memory>
#include <vector>

#include "capi/capi_call.hpp"
#include "capi/copy_watcher.hpp"
#include "capi/slot_table.hpp"
#include "copy/completion.hpp"
#include "copy/planner.hpp"

namespace pl {

struct pending_copy {
  copy::completion copies;
  std::uint64_t size_bytes = 0;
  std::shared_ptr<watched_copy> watched;  // has the copies once peerlane_op_then() was called
};

struct copier_operations {
  slot_table<pending_copy> table;
  copy_watcher watcher;
};

}  // namespace pl

// A slot in a fixed table, so that any address can be checked without a lock on the way to a copy of 0.2 us.
struct peerlane_copier {
  std::atomic<pl::copy::planner*> planner{nullptr};
  std::uint32_t epoch = 0;
  std::atomic<int> objects{0};                  // operations, holds, registrations
  pl::copier_operations* operations = nullptr;  // while `planner` is not null
};

namespace pl {

// The planner, or null with `code` and the thread's last error set: EINVAL; EACCES in a forked child.
copy::planner* planner_of(peerlane_copier_t copier, int& code) noexcept;

// Returns an errno value; the thread's last error then says what is wrong with the transfer.
int read_transfer(const peerlane_transfer& given, copy::transfer& out);
int read_transfers(const peerlane_transfer* given, std::size_t count, std::vector<copy::transfer>& out);

// Makes copies in progress an operation of the copier. Returns the result of the C call.
int add_operation(peerlane_copier_t copier, copy::completion copies, std::uint64_t size_bytes, peerlane_op_t& op);

// Whether it is device memory, by the buffer's own word or by the driver's.
bool is_device_memory(const peerlane_buffer& buffer);

constexpr const char* kNoMemoryKind = "a buffer's memory is not one of PEERLANE_MEMORY_ANY, _HOST, _DEVICE";

}  // namespace pl
