// SPDX-License-Identifier: Apache-2.0
#include "messaging/messenger_context.hpp"

#include <algorithm>
#include <cerrno>
#include <thread>

#include "base/text.hpp"
#include "copy/queue_ring.hpp"
#include "messaging/transfer.hpp"
#include "os/fork_guard.hpp"

namespace pl::messaging {
messenger_context::messenger_context(const cu::driver_table* driver, const messenger_options& wanted, int own_rank,
                                     int job_size)
    : epoch(claim_process_epoch()),
      options(wanted),
      rank(own_rank),
      size(job_size),
      cuda(driver),
      buffers(nullptr, nullptr),
      peers(static_cast<std::size_t>(job_size)),
      operations(this) {
  for (int i = 0; i < size; ++i) peer(i).rank = i;
}

status messenger_context::open_memory() {
  if (cuda != nullptr) {
    copy::planner* planner = options.planner;
    if (planner == nullptr) {
      auto made = copy::planner::open(*cuda, copy::planner::options_from_environment());
      if (!made) return std::move(made).error();
      own_planner = *std::move(made);
      planner = own_planner.get();
    }
    buffers = memory_access(cuda, planner);
    gpu_use.open(*cuda);
  }
  limits = thresholds::choose(options, buffers.has_gpu() ? &buffers.planner()->costs() : nullptr);
  return {};
}

bool messenger_context::is_foreign_process() const noexcept { return process_epoch() != epoch; }

std::optional<failure> messenger_context::refuses_peer(int peer_rank) const {
  if (peer_rank < 0 || peer_rank >= size)
    return failure{EINVAL, format("rank %d does not exist: the job has %d processes", peer_rank, size)};
  if (peer(peer_rank).is_dead) return failure{ECONNRESET, peer(peer_rank).loss};
  return std::nullopt;
}

touch messenger_context::touch_of(const memory& range) {
  if (!range.is_device) return touch::any;
  gpu_use.note_use(range.device.device_ordinal);
  return gpu_use.is_shared(range.device.device_ordinal) ? touch::cpu_only : touch::any;
}

unsigned messenger_context::copy_threads() const {
  constexpr unsigned kMax = copy::queue_ring::kMaxThreads;
  if (options.copy_threads != 0) return std::min(options.copy_threads, kMax);
  const auto is_here = [&](const peer_state& each) { return each.rank == rank || (each.is_same_node && !each.is_dead); };
  const auto ranks = static_cast<unsigned>(std::count_if(peers.begin(), peers.end(), is_here));
  // Asked once, since it takes system calls, and this is called for each message.
  static const unsigned cpus = std::thread::hardware_concurrency();
  return std::clamp(cpus / ranks, 1u, kMax);
}

void messenger_context::end(operation& op, int code, std::string message) {
  if (op.has_ended()) return;
  op.state = operation_state::ended;
  wake.note();
  op.code = code;
  if (code != 0 && !message.empty()) op.message = std::move(message);
  if (op.kind == operation_kind::put) {
    --peer(op.peer).puts;
    if (op.follower != 0) follow(op);
  } else if (op.kind == operation_kind::deposit) {
    auto& source = peer(op.peer);
    if (source.last_deposit == op.id()) source.put_outcome = code;
    if (op.follower != 0) follow(op);
  }
  if (op.transfer != nullptr && !op.is_sending) op.transfer.reset();
  if (op.is_released && !op.is_sending) operations.give_back(op);
}

void messenger_context::follow(operation& put) {
  operation* const next = operations.find(std::exchange(put.follower, 0));
  put.is_released = true;
  if (next == nullptr || next->has_ended()) return;
  next->leader = 0;
  if (put.code != 0) end(*next, put.code, put.message);  // (of a word, the sender is told by the put's answer)
  else if (next->kind == operation_kind::word) due_words.push_back(next->id());
}

void messenger_context::release(operation& op) {
  if (op.is_unpooled) {
    delete &op;
    return;
  }
  op.is_released = true;
  if (op.has_ended() && !op.is_sending) operations.give_back(op);
}

operation& messenger_context::failed(operation_kind kind, int code, std::string message) {
  auto* const made = new operation;
  made->kind = kind;
  made->is_unpooled = true;
  made->state = operation_state::ended;
  made->code = code;
  made->message = std::move(message);
  return *made;
}

void messenger_context::deliver(operation& receive, const std::byte* payload, std::size_t bytes, int outcome) {
  if (outcome != 0)
    return end(receive, EIO, format("rank %d could not read the memory of its message", receive.info.source));
  const auto fits = std::min<std::size_t>(bytes, receive.range.bytes);
  const bool by_cpu = fits <= limits.store_limit;
  const auto done = fits == 0
                        ? status{}
                        : buffers.write(receive.range, 0, payload, fits, by_cpu ? touch::cpu_only : touch_of(receive.range));
  if (!done) return end(receive, done.code(), done.error().message);
  if (bytes > fits)
    return end(receive, EMSGSIZE, format("a message of %zu bytes for a buffer of %zu", bytes, receive.range.bytes));
  end(receive, 0);
}

}  // namespace pl::messaging
