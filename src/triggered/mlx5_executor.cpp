// SPDX-License-Identifier: Apache-2.0
#include "triggered/mlx5_executor.hpp"

#include "triggered/mem_ops.hpp"

namespace pl::triggered {
namespace {

class mlx5_executor final : public executor {
 public:
  explicit mlx5_executor(const mlx5_parts& parts) : parts_(parts), context_(*parts.gpu), queue_(parts.queue) {}

  executor_kind kind() const noexcept override { return kMlx5Executor; }

  status put(cu::stream_t stream, const put_request& request) override {
    queue_.retire(parts_.completed());
    const auto before = queue_.mark();
    auto done = write(request);
    if (done) {
      mem_ops ops(*context_.cuda, stream);
      if (request.released != 0) ops.wait64(parts_.our_ack, request.released);
      ring(ops);
      done = ops.write64(parts_.sent, request.sequence).submit();
    }
    if (!done) queue_.rewind(before);
    return done;
  }

  status acknowledge(cu::stream_t stream, std::uint64_t sequence) override {
    queue_.retire(parts_.completed());
    const auto before = queue_.mark();
    auto done = queue_.write_word(sequence, parts_.ack);
    if (done) {
      mem_ops ops(*context_.cuda, stream);
      ring(ops);
      done = ops.submit();
    }
    if (!done) queue_.rewind(before);
    return done;
  }

 private:
  status write(const put_request& request) {
    if (request.bytes != 0) {
      const auto local = parts_.local(request.source, request.bytes),
                 remote = parts_.remote(*request.window, request.offset);
      if (local.key == 0 || remote.key == 0) return failure{EINVAL, "memory of a put is not registered with the adapter"};
      if (auto done = queue_.write(local, request.bytes, remote); !done) return done;
    }
    return queue_.write_word(request.sequence, parts_.signal);
  }

  void ring(mem_ops& ops) const {
    const auto values = queue_.last();
    ops.write32(parts_.record, values.record).write64(parts_.doorbell, values.doorbell);
  }

  const mlx5_parts parts_;
  const copy::gpu_context context_;
  mlx5_queue queue_;
};

}  // namespace

std::unique_ptr<executor> make_mlx5_executor(const mlx5_parts& parts) { return std::make_unique<mlx5_executor>(parts); }

}  // namespace pl::triggered
