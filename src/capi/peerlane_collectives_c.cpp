// SPDX-License-Identifier: Apache-2.0
// Collectives behind checked numbers. The contract is in peerlane/collectives.h.
#include <peerlane/collectives.h>

#include "capi/collective_operations.hpp"

namespace {

using pl::fail;
using pl::kNullPointer;
using pl::open_comm;
using pl::collectives::summation;
namespace collectives = pl::collectives;
namespace messaging = pl::messaging;

static_assert(PEERLANE_FLOAT8_E5M2 + 1 == collectives::kElements && PEERLANE_MAXIMUM + 1 == collectives::kReductions);
static_assert(PEERLANE_BFLOAT16 == static_cast<int>(collectives::element::bfloat16) &&
              PEERLANE_FLOAT64 == static_cast<int>(collectives::element::float64) &&
              PEERLANE_UINT64 == static_cast<int>(collectives::element::uint64));

messaging::buffer memory_from(const peerlane_buffer& given) {
  return {given.address, given.size_bytes, static_cast<messaging::memory_kind>(given.memory)};
}

// Calls `start(executor&, source, destination)` if the buffers are valid.
template <class Start>
int begin(peerlane_comm_t comm, const peerlane_buffer& source, const peerlane_buffer& destination, peerlane_op_t* op,
          Start&& start) {
  if (op == nullptr) return fail(EINVAL, kNullPointer);
  if (source.memory > PEERLANE_MEMORY_DEVICE || destination.memory > PEERLANE_MEMORY_DEVICE)
    return fail(EINVAL, "a buffer's memory is not one of PEERLANE_MEMORY_ANY, _HOST, _DEVICE");
  return pl::with_comm(comm, [&](open_comm& communicator) {
    auto begun = start(*communicator.collectives, memory_from(source), memory_from(destination));
    if (!begun) return fail(begun.error());
    return pl::keep_collective(comm, communicator, *std::move(begun), std::max(source.size_bytes, destination.size_bytes),
                               op);
  });
}

// The same with a type and an operation.
template <class Start>
int begin_reduction(peerlane_comm_t comm, const peerlane_buffer& source, const peerlane_buffer& destination,
                    std::uint32_t type, std::uint32_t reduction, peerlane_op_t* op, Start&& start) {
  if (type >= collectives::kElements) return fail(EINVAL, "type is not a value of enum peerlane_element");
  if (reduction >= collectives::kReductions) return fail(EINVAL, "reduction is not a value of enum peerlane_reduction");
  const summation terms{collectives::element{static_cast<std::uint8_t>(type)},
                        collectives::reduction{static_cast<std::uint8_t>(reduction)}};
  return begin(comm, source, destination, op,
               [&](auto& all, const auto& input, const auto& output) { return start(all, input, output, terms); });
}

constexpr peerlane_buffer kNothing{};

}  // namespace

PL_EXPORT int peerlane_comm_ibarrier(peerlane_comm_t comm, peerlane_op_t* op) {
  return begin(comm, kNothing, kNothing, op, [](auto& all, const auto&, const auto&) { return all.barrier(); });
}

PL_EXPORT int peerlane_comm_ibroadcast(peerlane_comm_t comm, struct peerlane_buffer buffer, int root, peerlane_op_t* op) {
  return begin(comm, buffer, kNothing, op,
               [&](auto& all, const auto& data, const auto&) { return all.broadcast(data, root); });
}

PL_EXPORT int peerlane_comm_igather(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination,
                                    int root, peerlane_op_t* op) {
  return begin(comm, source, destination, op,
               [&](auto& all, const auto& input, const auto& output) { return all.gather(input, output, root); });
}

PL_EXPORT int peerlane_comm_iscatter(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination,
                                     int root, peerlane_op_t* op) {
  return begin(comm, source, destination, op,
               [&](auto& all, const auto& input, const auto& output) { return all.scatter(input, output, root); });
}

PL_EXPORT int peerlane_comm_iall_gather(peerlane_comm_t comm, struct peerlane_buffer source,
                                        struct peerlane_buffer destination, peerlane_op_t* op) {
  return begin(comm, source, destination, op,
               [](auto& all, const auto& input, const auto& output) { return all.all_gather(input, output); });
}

PL_EXPORT int peerlane_comm_ireduce(peerlane_comm_t comm, struct peerlane_buffer source, struct peerlane_buffer destination,
                                    uint32_t type, uint32_t reduction, int root, peerlane_op_t* op) {
  return begin_reduction(comm, source, destination, type, reduction, op,
                         [&](auto& all, const auto& input, const auto& output, summation terms) {
                           return all.reduce(input, output, terms, root);
                         });
}

PL_EXPORT int peerlane_comm_iall_reduce(peerlane_comm_t comm, struct peerlane_buffer source,
                                        struct peerlane_buffer destination, uint32_t type, uint32_t reduction,
                                        peerlane_op_t* op) {
  return begin_reduction(comm, source, destination, type, reduction, op,
                         [](auto& all, const auto& input, const auto& output, summation terms) {
                           return all.all_reduce(input, output, terms);
                         });
}

PL_EXPORT int peerlane_comm_ireduce_scatter(peerlane_comm_t comm, struct peerlane_buffer source,
                                            struct peerlane_buffer destination, const size_t* counts, uint32_t type,
                                            uint32_t reduction, peerlane_op_t* op) {
  if (counts == nullptr) return fail(EINVAL, kNullPointer);
  return begin_reduction(comm, source, destination, type, reduction, op,
                         [&](auto& all, const auto& input, const auto& output, summation terms) {
                           return all.reduce_scatter(input, output, {counts, static_cast<std::size_t>(all.size())}, terms);
                         });
}

PL_EXPORT int peerlane_comm_iall_to_all(peerlane_comm_t comm, struct peerlane_buffer source,
                                        struct peerlane_buffer destination, peerlane_op_t* op) {
  return begin(comm, source, destination, op,
               [](auto& all, const auto& input, const auto& output) { return all.all_to_all(input, output); });
}

PL_EXPORT int peerlane_comm_iall_to_allv(peerlane_comm_t comm, struct peerlane_buffer source,
                                         const struct peerlane_block_sizes* sent, struct peerlane_buffer destination,
                                         const struct peerlane_block_sizes* received, peerlane_op_t* op) {
  for (const auto* const each : {sent, received})
    if (each == nullptr || each->size_bytes == nullptr || each->offset_bytes == nullptr) return fail(EINVAL, kNullPointer);
  return begin(comm, source, destination, op, [&](auto& all, const auto& input, const auto& output) {
    const auto ranks = static_cast<std::size_t>(all.size());
    return all.all_to_all_v(input, {{sent->size_bytes, ranks}, {sent->offset_bytes, ranks}}, output,
                            {{received->size_bytes, ranks}, {received->offset_bytes, ranks}});
  });
}

PL_EXPORT int peerlane_comm_restore_collectives(peerlane_comm_t comm, int64_t timeout_ms) {
  return pl::with_comm(comm, [&](open_comm& communicator) {
    const int code = pl::return_code(communicator.collectives->restore(std::chrono::milliseconds(timeout_ms)));
    pl::call_end_functions(communicator);
    return code;
  });
}

PL_EXPORT int peerlane_comm_algorithms(peerlane_comm_t comm, char* text, size_t capacity, size_t* needed) {
  if (text == nullptr && capacity != 0) return fail(EINVAL, kNullPointer);
  return pl::with_comm(comm, [&](open_comm& communicator) {
    return pl::give_text(communicator.collectives->table().text(), text, capacity, needed);
  });
}
