// SPDX-License-Identifier: Apache-2.0
// Stream memory operations: the front end waits for and writes words without a kernel.
//
// A wait polls (yielding, then sleeping a little: two cores must do for many streams) until the word satisfies it or
// the context ends. Waits acquire and writes release, so what was written before a flag is seen after it.
#include <sched.h>
#include <time.h>

#include "address_space.hpp"
#include "graph.hpp"

namespace pl::sim {
namespace {

struct memory_operation {
  enum class kind { wait, write, none } what = kind::none;
  piece word;
  std::uint64_t value = 0;
  unsigned flags = 0;
  bool is_64 = false;
};

// cyclic comparison: a counter that wraps still satisfies "at least"
template <class T>
bool satisfies(T now, T value, unsigned condition) {
  switch (condition) {
    case wait_value::geq:
      return static_cast<std::make_signed_t<T>>(static_cast<T>(now - value)) >= 0;
    case wait_value::eq:
      return now == value;
    case wait_value::bit_and:
      return (now & value) != 0;
    default:
      return static_cast<T>(~(now | value)) != 0;
  }
}

template <class T>
bool is_satisfied(const memory_operation& op) {
  const T now = __atomic_load_n(reinterpret_cast<const T*>(op.word.data), __ATOMIC_ACQUIRE);
  return satisfies<T>(now, static_cast<T>(op.value), op.flags & 3u);
}

void wait_for_word(const memory_operation& op, const context_fate& fate) {
  constexpr unsigned kYields = 200;
  for (unsigned round = 0; !fate.ended(); ++round) {
    if (op.is_64 ? is_satisfied<std::uint64_t>(op) : is_satisfied<std::uint32_t>(op)) return;
    if (round < kYields) {
      sched_yield();
      continue;
    }
    const timespec nap{0, 20'000};
    nanosleep(&nap, nullptr);
  }
}

void write_word(const memory_operation& op) {
  const int order = (op.flags & write_value::no_memory_barrier) != 0 ? __ATOMIC_RELAXED : __ATOMIC_RELEASE;
  if (op.is_64) __atomic_store_n(reinterpret_cast<std::uint64_t*>(op.word.data), op.value, order);
  else __atomic_store_n(reinterpret_cast<std::uint32_t*>(op.word.data), static_cast<std::uint32_t>(op.value), order);
}

result_t make(memory_operation::kind what, device_ptr address, std::uint64_t value, unsigned flags, bool is_64,
              memory_operation& out) {
  const std::size_t bytes = is_64 ? 8 : 4;
  const unsigned known =
      what == memory_operation::kind::wait ? wait_value::flush | 3u : unsigned{write_value::no_memory_barrier};
  if (address == 0 || address % bytes != 0 || (flags & ~known) != 0) return code::invalid_value;
  auto& space = address_space::instance();
  if (space.find(address) == nullptr) return code::invalid_value;  // plain host memory is not reachable from the front end
  std::vector<piece> pieces;
  if (const auto rc = space.resolve(address, bytes, pieces); rc != code::success) return rc;
  out = {what, std::move(pieces.front()), value, flags, is_64};
  return code::success;
}

void run(const memory_operation& op, const context_fate& fate) {
  if (op.what == memory_operation::kind::wait) wait_for_word(op, fate);
  if (op.what == memory_operation::kind::write) write_word(op);
}

result_t queue(stream_t handle, memory_operation::kind what, device_ptr address, std::uint64_t value, unsigned flags,
               bool is_64) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  memory_operation op;
  if (const auto rc = make(what, address, value, flags, is_64, op); rc != code::success) return rc;
  return enqueue(s, graph_node_type::batch_mem_op, [op = std::move(op), fate = s.ctx->fate] { run(op, *fate); });
}

result_t make_from(const mem_op_params& p, memory_operation& out) {
  using kind = memory_operation::kind;
  switch (p.operation) {
    case mem_op::wait32:
      return make(kind::wait, p.value.address, p.value.value32, p.value.flags, false, out);
    case mem_op::wait64:
      return make(kind::wait, p.value.address, p.value.value64, p.value.flags, true, out);
    case mem_op::write32:
      return make(kind::write, p.value.address, p.value.value32, p.value.flags, false, out);
    case mem_op::write64:
      return make(kind::write, p.value.address, p.value.value64, p.value.flags, true, out);
    case mem_op::flush_remote_writes:
    case mem_op::barrier:  // operations of one batch run in order here, each with its own ordering
      return code::success;
    default:
      return code::invalid_value;
  }
}

constexpr unsigned kMaxBatch = 255;  // as documented

}  // namespace

result_t make_batch(const context_ref& ctx, unsigned count, const mem_op_params* ops, unsigned flags, stream::action& out) {
  if (ops == nullptr || count == 0 || count > kMaxBatch || flags != 0) return code::invalid_value;
  std::vector<memory_operation> batch(count);
  for (unsigned i = 0; i < count; ++i)
    if (const auto rc = make_from(ops[i], batch[i]); rc != code::success) return rc;
  out = [batch = std::move(batch), fate = ctx->fate] {
    for (const auto& op : batch) run(op, *fate);
  };
  return code::success;
}

PL_SIM_API cuStreamWaitValue32_v2(stream_t on, device_ptr address, std::uint32_t value, unsigned flags) {
  return queue(on, memory_operation::kind::wait, address, value, flags, false);
}
PL_SIM_API cuStreamWaitValue64_v2(stream_t on, device_ptr address, std::uint64_t value, unsigned flags) {
  return queue(on, memory_operation::kind::wait, address, value, flags, true);
}
PL_SIM_API cuStreamWriteValue32_v2(stream_t on, device_ptr address, std::uint32_t value, unsigned flags) {
  return queue(on, memory_operation::kind::write, address, value, flags, false);
}
PL_SIM_API cuStreamWriteValue64_v2(stream_t on, device_ptr address, std::uint64_t value, unsigned flags) {
  return queue(on, memory_operation::kind::write, address, value, flags, true);
}

PL_SIM_API cuStreamBatchMemOp_v2(stream_t handle, unsigned count, mem_op_params* ops, unsigned flags) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  stream::action work;
  if (const auto rc = make_batch(s.ctx, count, ops, flags, work); rc != code::success) return rc;
  return enqueue(s, graph_node_type::batch_mem_op, std::move(work));
}

}  // namespace pl::sim
