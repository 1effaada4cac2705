// SPDX-License-Identifier: Apache-2.0
#include "triggered/mlx5_executor.hpp"

#include <algorithm>

#include "base/text.hpp"
#include "triggered/mem_ops.hpp"

namespace pl::triggered {
namespace {

// One queue pair: what is written into it, and what has come of it.
class pair_state {
 public:
  explicit pair_state(const mlx5_pair& places) : places_(places), queue_(places.queue), completions_(places.completions) {}

  mlx5_queue& queue() noexcept { return queue_; }
  // EINVAL: so many requests never fit; EAGAIN: not now; EIO: the adapter has stopped.
  status make_room(std::uint64_t requests) {
    if (auto alive = completions_.poll(); !alive) return alive;
    queue_.retire(completions_.completed());
    if (requests > places_.queue.blocks)
      return failure{EINVAL, format("it takes %llu requests of the adapter, and the send queue has %u",
                                    static_cast<unsigned long long>(requests), places_.queue.blocks)};
    if (!queue_.has_room(requests))
      return failure{EAGAIN, "the adapter has not completed what was written before: try again later"};
    return {};
  }
  // What starts everything written so far.
  void ring(mem_ops& ops) const {
    const auto values = queue_.last();
    ops.write32(places_.record, values.record).write64(places_.doorbell, values.doorbell);
  }

 private:
  const mlx5_pair places_;
  mlx5_queue queue_;
  mlx5_completions completions_;
};

class mlx5_executor final : public executor {
 public:
  explicit mlx5_executor(const mlx5_parts& parts)
      : parts_(parts), context_(*parts.gpu), puts_(parts.puts), releases_(parts.releases) {}

  executor_kind kind() const noexcept override { return kMlx5Executor; }

  status put(cu::stream_t stream, const put_request& request) override {
    const auto limit = parts_.max_write_bytes;
    if (auto room = puts_.make_room((request.bytes + limit - 1) / limit + 1); !room) return room;
    const auto before = puts_.queue().mark();
    auto done = write(request);
    if (done) {
      mem_ops ops(*context_.cuda, stream);
      if (request.released != 0) ops.wait64(parts_.our_ack, request.released);
      puts_.ring(ops);
      done = ops.write64(parts_.sent, request.sequence).submit();
    }
    if (!done) puts_.queue().rewind(before);
    return done;
  }

  status acknowledge(cu::stream_t stream, std::uint64_t sequence) override {
    if (auto room = releases_.make_room(1); !room) return room;
    const auto before = releases_.queue().mark();
    auto done = releases_.queue().write_word(sequence, parts_.ack);
    if (done) {
      mem_ops ops(*context_.cuda, stream);
      releases_.ring(ops);
      done = ops.submit();
    }
    if (!done) releases_.queue().rewind(before);
    return done;
  }

 private:
  status write(const put_request& request) {
    for (std::uint64_t offset = 0; offset < request.bytes; offset += parts_.max_write_bytes) {
      const auto bytes = std::min<std::uint64_t>(request.bytes - offset, parts_.max_write_bytes);
      const auto local = parts_.local(request.source + offset, bytes),
                 remote = parts_.remote(*request.window, request.offset + offset);
      if (local.key == 0 || remote.key == 0) return failure{EINVAL, "memory of a put is not registered with the adapter"};
      if (auto done = puts_.queue().write(local, bytes, remote); !done) return done;
    }
    return puts_.queue().write_word(request.sequence, parts_.signal);
  }

  const mlx5_parts parts_;
  const copy::gpu_context context_;
  pair_state puts_, releases_;
};

}  // namespace

result<std::unique_ptr<executor>> make_mlx5_executor(const mlx5_parts& parts) {
  if (parts.puts.queue.ring == parts.releases.queue.ring || parts.puts.completions.ring == parts.releases.completions.ring)
    return failure{EINVAL, "puts and releases need a queue pair and a completion queue each"};
  if (parts.max_write_bytes == 0 || parts.max_write_bytes > mlx5_queue::kMaxBytes)
    return failure{EINVAL, "max_write_bytes: 1 byte to 1 GiB"};
  for (const auto* pair : {&parts.puts, &parts.releases})
    if (pair->completions.entries < pair->queue.blocks)
      return failure{EINVAL,
                     format("a completion queue of %u entries can be overrun by a send queue of %u blocks: make it as "
                            "large",
                            pair->completions.entries, pair->queue.blocks)};
  return std::unique_ptr<executor>(std::make_unique<mlx5_executor>(parts));
}

}  // namespace pl::triggered
