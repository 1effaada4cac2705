// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/chunk_copy.hpp"

#include <span>

#include "messaging/messenger_context.hpp"

namespace pl::messaging {

status chunk_copy::begin(messenger_context& context, const memory& range, std::uint64_t offset, void* chunk,
                         std::size_t bytes, chunk_direction direction, touch access) {
  is_pending = false;
  // The CPU makes small copies, and copies that must not use a copy engine, before this returns.
  constexpr std::size_t kAtOnce = 16 << 10;
  const bool to_chunk = direction == chunk_direction::to_chunk;
  const bool by_cpu = access == touch::cpu_only && range.bytes <= context.limits.shared_gpu_cpu_limit;
  if (!range.is_device || bytes <= kAtOnce || by_cpu) {
    const auto touched = by_cpu ? touch::cpu_only : touch::any;
    return to_chunk ? context.buffers.read(range, offset, chunk, bytes, touched)
                    : context.buffers.write(range, offset, chunk, bytes, touched);
  }
  const copy::transfer transfer =
      to_chunk ? copy::transfer{copy::direction::to_host, copy::address_of(chunk), range.address + offset, bytes}
               : copy::transfer{copy::direction::to_device, range.address + offset, copy::address_of(chunk), bytes};
  auto begun = context.buffers.planner()->begin(std::span(&transfer, 1), {});
  if (!begun) return std::move(begun).error();
  pending = *std::move(begun);
  is_pending = true;
  return {};
}

std::optional<status> chunk_copy::test_pending() {
  const auto done = pending.test();
  if (done && !*done) return std::nullopt;
  is_pending = false;
  pending = {};
  if (!done) return status{done.error()};
  return status{};
}

}  // namespace pl::messaging
