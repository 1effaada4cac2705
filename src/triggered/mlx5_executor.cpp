// SPDX-License-Identifier: Apache-2.0
#include "triggered/mlx5_executor.hpp"

#include "triggered/mem_ops.hpp"

namespace pl::stream {
namespace {

class mlx5_executor final : public executor {
 public:
  explicit mlx5_executor(const mlx5_parts& of) : of_(of), context_(*of.gpu), queue_(of.queue) {}

  executor_kind kind() const noexcept override { return kMlx5Executor; }

  status put(cu::stream_t on, const put_request& what) override {
    queue_.retire(of_.completed());
    const auto before = queue_.mark();
    auto done = write(what);
    if (done) {
      mem_ops ops(*context_.cuda, on);
      if (what.released != 0) ops.wait64(of_.our_ack, what.released);
      ring(ops);
      done = ops.write64(of_.sent, what.sequence).submit();
    }
    if (!done) queue_.rewind(before);
    return done;
  }

  status acknowledge(cu::stream_t on, std::uint64_t sequence) override {
    queue_.retire(of_.completed());
    const auto before = queue_.mark();
    auto done = queue_.write_word(sequence, of_.ack);
    if (done) {
      mem_ops ops(*context_.cuda, on);
      ring(ops);
      done = ops.submit();
    }
    if (!done) queue_.rewind(before);
    return done;
  }

 private:
  status write(const put_request& what) {
    if (what.bytes != 0) {
      const auto from = of_.local(what.source, what.bytes), to = of_.remote(*what.to, what.offset);
      if (from.key == 0 || to.key == 0) return failure{EINVAL, "memory of a put is not registered with the adapter"};
      if (auto done = queue_.write(from, what.bytes, to); !done) return done;
    }
    return queue_.write_word(what.sequence, of_.signal);
  }

  void ring(mem_ops& ops) const {
    const auto values = queue_.last();
    ops.write32(of_.record, values.record).write64(of_.doorbell, values.doorbell);
  }

  const mlx5_parts of_;
  const copy::gpu_context context_;
  mlx5_queue queue_;
};

}  // namespace

std::unique_ptr<executor> make_mlx5_executor(const mlx5_parts& of) { return std::make_unique<mlx5_executor>(of); }

}  // namespace pl::stream
