// SPDX-License-Identifier: Apache-2.0
// Stream memory operations: the front end waits for and writes words without a kernel.
//
// A wait polls (yielding, then sleeping a little: two cores must do for many streams) until the word satisfies it or
// the context ends. Waits acquire and writes release, so what was written before a flag is seen after it. A write to another
// device or the host may be held back (store_buffer.hpp), behind the stream's earlier stores unless it was asked to have no
// barrier, which only the names without _v2 allow.
#include <sched.h>
#include <time.h>

#include "base/two_views.hpp"
#include "sim/address_space.hpp"
#include "sim/graph.hpp"
#include "sim/word_order.hpp"

namespace pl::sim {
namespace {

struct memory_operation {
  enum class kind { wait, write, flush, barrier } type = kind::flush;
  piece word;
  std::uint64_t value = 0;
  unsigned flags = 0;
  bool is_64 = false;
  device_ptr address = 0;
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

void wait_for_word(const memory_operation& op, const context_state& fate) {
  constexpr unsigned kYields = 200;
  for (unsigned round = 0; !fate.ended(); ++round) {
    if (op.is_64 ? is_satisfied<std::uint64_t>(op) : is_satisfied<std::uint32_t>(op)) {
      after_load_in_view(op.address);
      after_loading_word();
      return;
    }
    if (round < kYields) {
      sched_yield();
      continue;
    }
    const timespec nap{0, 20'000};
    nanosleep(&nap, nullptr);
  }
}

void write_word(const memory_operation& op) {
  if ((op.flags & write_value::no_memory_barrier) == 0) order_stores();
  if (const auto writer = stores_are_delayed() ? current_writer() : nullptr;
      writer != nullptr && is_remote(op.word.keep, writer->device())) {
    writer->hold(op.word.data, &op.value, op.is_64 ? 8 : 4, op.word.keep);
    return;
  }
  before_store_in_view(op.address);
  before_storing_word();
  const int order = (op.flags & write_value::no_memory_barrier) != 0 ? __ATOMIC_RELAXED : __ATOMIC_RELEASE;
  if (op.is_64) __atomic_store_n(reinterpret_cast<std::uint64_t*>(op.word.data), op.value, order);
  else __atomic_store_n(reinterpret_cast<std::uint32_t*>(op.word.data), static_cast<std::uint32_t>(op.value), order);
}

result_t make(memory_operation::kind type, device_ptr address, std::uint64_t value, unsigned flags, bool is_64,
              unsigned write_flags, memory_operation& out) {
  const std::size_t bytes = is_64 ? 8 : 4;
  const unsigned known = type == memory_operation::kind::wait ? wait_value::flush | 3u : write_flags;
  if (address == 0 || address % bytes != 0 || (flags & ~known) != 0) return code::invalid_value;
  auto& space = address_space::instance();
  const auto owner = space.find(address);
  // The front end reaches neither plain host memory nor managed memory.
  if (owner == nullptr || owner->kind == memory_kind::managed) return code::invalid_value;
  std::vector<piece> pieces;
  if (const auto rc = space.resolve(address, bytes, pieces); rc != code::success) return rc;
  out = {type, std::move(pieces.front()), value, flags, is_64, address};
  return code::success;
}

void run(const memory_operation& op, const context_state& fate) {
  using kind = memory_operation::kind;
  if (op.type == kind::write) return write_word(op);
  if (op.type == kind::barrier) return op.flags == memory_barrier::system ? order_stores() : void();
  if (op.type == kind::wait) wait_for_word(op, fate);
  const auto reader = current_writer();
  if (reader != nullptr && (op.type == kind::flush || (op.flags & wait_value::flush) != 0))
    flush_network_writes(reader->device());
}

// What a write may ask for: nothing in the present interface, no barrier in the first one.
constexpr unsigned kNow = write_value::standard;
constexpr unsigned kFirst = write_value::no_memory_barrier;

result_t queue(stream_t handle, memory_operation::kind type, device_ptr address, std::uint64_t value, unsigned flags,
               bool is_64, unsigned write_flags) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  memory_operation op;
  if (const auto rc = make(type, address, value, flags, is_64, write_flags, op); rc != code::success) return rc;
  return enqueue(s, graph_node_type::batch_mem_op, [op = std::move(op), fate = s.ctx->fate] { run(op, *fate); });
}

result_t make_from(const mem_op_params& p, unsigned write_flags, memory_operation& out) {
  using kind = memory_operation::kind;
  const auto& v = p.value;
  switch (p.operation) {
    case mem_op::wait32:
      return make(kind::wait, v.address, v.value32, v.flags, false, write_flags, out);
    case mem_op::wait64:
      return make(kind::wait, v.address, v.value64, v.flags, true, write_flags, out);
    case mem_op::write32:
      return make(kind::write, v.address, v.value32, v.flags, false, write_flags, out);
    case mem_op::write64:
      return make(kind::write, v.address, v.value64, v.flags, true, write_flags, out);
    case mem_op::flush_remote_writes:
    case mem_op::barrier: {
      const bool is_flush = p.operation == mem_op::flush_remote_writes;
      if (p.simple.flags > (is_flush ? 0u : unsigned{memory_barrier::device})) return code::invalid_value;
      out.type = is_flush ? kind::flush : kind::barrier;
      out.flags = p.simple.flags;
      return code::success;
    }
    default:
      return code::invalid_value;
  }
}

constexpr unsigned kMaxBatch = 255;  // as documented

result_t make_list(const context_ref& ctx, unsigned count, const mem_op_params* ops, unsigned flags, unsigned write_flags,
                   stream::action& out) {
  if (ops == nullptr || count == 0 || count > kMaxBatch || flags != 0) return code::invalid_value;
  std::vector<memory_operation> batch(count);
  for (unsigned i = 0; i < count; ++i)
    if (const auto rc = make_from(ops[i], write_flags, batch[i]); rc != code::success) return rc;
  out = [batch = std::move(batch), fate = ctx->fate] {
    for (const auto& op : batch) run(op, *fate);
  };
  return code::success;
}

result_t queue_list(stream_t handle, unsigned count, const mem_op_params* ops, unsigned flags, unsigned write_flags) {
  const auto s = enter_stream(handle);
  if (!s) return s.rc;
  stream::action work;
  if (const auto rc = make_list(s.ctx, count, ops, flags, write_flags, work); rc != code::success) return rc;
  return enqueue(s, graph_node_type::batch_mem_op, std::move(work));
}

}  // namespace

result_t make_batch(const context_ref& ctx, unsigned count, const mem_op_params* ops, unsigned flags, stream::action& out) {
  return make_list(ctx, count, ops, flags, kNow, out);
}

PL_SIM_API cuStreamWaitValue32_v2(stream_t stream_handle, device_ptr address, std::uint32_t value, unsigned flags) {
  return queue(stream_handle, memory_operation::kind::wait, address, value, flags, false, kNow);
}
PL_SIM_API cuStreamWaitValue64_v2(stream_t stream_handle, device_ptr address, std::uint64_t value, unsigned flags) {
  return queue(stream_handle, memory_operation::kind::wait, address, value, flags, true, kNow);
}
PL_SIM_API cuStreamWriteValue32_v2(stream_t stream_handle, device_ptr address, std::uint32_t value, unsigned flags) {
  return queue(stream_handle, memory_operation::kind::write, address, value, flags, false, kNow);
}
PL_SIM_API cuStreamWriteValue64_v2(stream_t stream_handle, device_ptr address, std::uint64_t value, unsigned flags) {
  return queue(stream_handle, memory_operation::kind::write, address, value, flags, true, kNow);
}
PL_SIM_API cuStreamBatchMemOp_v2(stream_t stream_handle, unsigned count, mem_op_params* ops, unsigned flags) {
  return queue_list(stream_handle, count, ops, flags, kNow);
}

// The first interface, as on a machine whose driver was told to have it (NVreg_EnableStreamMemOPs=1).
PL_SIM_API cuStreamWriteValue32(stream_t stream_handle, device_ptr address, std::uint32_t value, unsigned flags) {
  return queue(stream_handle, memory_operation::kind::write, address, value, flags, false, kFirst);
}
PL_SIM_API cuStreamWriteValue64(stream_t stream_handle, device_ptr address, std::uint64_t value, unsigned flags) {
  return queue(stream_handle, memory_operation::kind::write, address, value, flags, true, kFirst);
}
PL_SIM_API cuStreamBatchMemOp(stream_t stream_handle, unsigned count, mem_op_params* ops, unsigned flags) {
  return queue_list(stream_handle, count, ops, flags, kFirst);
}

}  // namespace pl::sim
