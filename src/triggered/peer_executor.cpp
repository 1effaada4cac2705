// SPDX-License-Identifier: Apache-2.0
#include "triggered/peer_executor.hpp"

#include <cstddef>

#include "triggered/flag_words.hpp"
#include "triggered/put_room.hpp"

namespace pl::triggered {
namespace {

class peer_executor final : public executor {
 public:
  peer_executor(const copy::gpu_context& context, const peer_methods& methods, const peer_words& words)
      : context_(context), methods_(methods), words_(words) {}

  executor_kind kind() const noexcept override { return executor_kind::peer; }

  bool can_be_captured() const noexcept override { return true; }

  status put(cu::stream_t stream, const put_request& request) override {
    if (request.is_counted) return put_counted(stream, request);
    const bool is_captured = request.slot >= 0;
    const auto flag = is_captured ? slot_offset(offsetof(gpu_words, graph_flag), request.slot) : offsetof(gpu_words, signal);
    const auto value = is_captured ? 1 : request.sequence;
    const auto sent = is_captured ? 0 : words_.host + offsetof(host_words, sent);
    const bool is_by_kernel = request.bytes != 0 && request.bytes <= methods_.kernel_limit;
    mem_ops ops(*context_.cuda, stream);
    wait_for_room(ops, request, words_.ours, words_.host);
    if (request.bytes != 0) {
      if (auto done = ops.submit(); !done) return done;
      const auto dst = request.window->address + request.offset;
      if (is_by_kernel) return launch(stream, dst, request.source, request.bytes, words_.theirs + flag, value, sent);
      if (auto done = copy(stream, dst, request.source, request.bytes); !done) return done;
    }
    if (auto done = write_flag(ops, stream, flag, value, is_captured); !done) return done;
    if (sent != 0) ops.write64(sent, value);
    return ops.submit();
  }

  status acknowledge(cu::stream_t stream, std::uint64_t sequence) override {
    mem_ops ops(*context_.cuda, stream);
    if (auto done = write_flag(ops, stream, offsetof(gpu_words, ack), sequence, false); !done) return done;
    // Tells a closing channel that its streams write nothing more.
    return ops.write64(words_.host + offsetof(host_words, consumed), sequence).submit();
  }

  status acknowledge_slot(cu::stream_t stream, int slot) override {
    mem_ops ops(*context_.cuda, stream);
    // Before the peer may set it again.
    ops.write64(words_.ours + slot_offset(offsetof(gpu_words, graph_flag), slot), 0);
    if (auto done = write_flag(ops, stream, slot_offset(offsetof(gpu_words, graph_ack), slot), 1, true); !done) return done;
    return ops.submit();
  }

  status acknowledge_counted(cu::stream_t stream) override {
    return launch_counted(stream, {}, offsetof(gpu_words, graph_releases), offsetof(gpu_words, graph_released), 0);
  }

  std::string report() const override { return std::string("  flags are written ") + name_of(methods_.writer) + "\n"; }

 private:
  struct piece {
    std::uint64_t dst = 0, src = 0, bytes = 0;
  };
  static constexpr std::size_t kNoFlag = ~std::size_t{0};

  // `counter` in our words, `flag` in the peer's.
  status launch_counted(cu::stream_t stream, piece transfer, std::size_t counter, std::size_t flag, std::uint64_t depth) {
    std::uint64_t counter_at = words_.ours + counter, flag_at = flag == kNoFlag ? 0 : words_.theirs + flag,
                  released = words_.ours + offsetof(gpu_words, graph_released),
                  reached = words_.host + offsetof(host_words, graph_put_reached);
    void* parameters[] = {&transfer.dst, &transfer.src, &transfer.bytes, &counter_at, &flag_at, &released, &depth, &reached};
    const unsigned threads = transfer.bytes <= kOneWarpBytes ? 32 : 256;
    const auto rc =
        context_.cuda->cuLaunchKernel(methods_.counted_put, 1, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr);
    if (rc != cu::error_code::success) return cu::make_error(*context_.cuda, rc, "launch of the counting put kernel");
    return {};
  }

  status put_counted(cu::stream_t stream, const put_request& request) {
    constexpr auto kCounter = offsetof(gpu_words, graph_puts), kFlag = offsetof(gpu_words, graph_signal);
    const piece bytes{request.bytes != 0 ? request.window->address + request.offset : 0, request.source, request.bytes};
    if (request.bytes <= methods_.kernel_limit) return launch_counted(stream, bytes, kCounter, kFlag, request.depth);
    if (request.depth != 0)
      if (auto done = launch_counted(stream, {}, kCounter, kNoFlag, request.depth); !done) return done;
    if (auto done = copy(stream, bytes.dst, bytes.src, bytes.bytes); !done) return done;
    return launch_counted(stream, {}, kCounter, kFlag, 0);
  }

  status launch(cu::stream_t stream, std::uint64_t dst, std::uint64_t src, std::uint64_t bytes, std::uint64_t flag,
                std::uint64_t value, std::uint64_t sent) {
    std::uint64_t sent_value = value;
    void* parameters[] = {&dst, &src, &bytes, &flag, &value, &sent, &sent_value};
    const unsigned threads = bytes <= kOneWarpBytes ? 32 : 256;
    const auto rc = context_.cuda->cuLaunchKernel(methods_.kernel, 1, 1, 1, threads, 1, 1, 0, stream, parameters, nullptr);
    if (rc != cu::error_code::success) return cu::make_error(*context_.cuda, rc, "launch of the put kernel");
    return {};
  }

  status copy(cu::stream_t stream, cu::device_ptr dst, cu::device_ptr src, std::size_t bytes) {
    const auto rc = context_.cuda->cuMemcpyDtoDAsync_v2(dst, src, bytes, stream);
    if (rc != cu::error_code::success) return cu::make_error(*context_.cuda, rc, "copy to the peer's window");
    return {};
  }

  // Queues the contents of `ops` first, with every writer.
  status write_flag(mem_ops& ops, cu::stream_t stream, std::size_t offset, std::uint64_t value, bool is_one) {
    if (methods_.writer == flag_writer::direct) {
      ops.write64(words_.theirs + offset, value);
      return {};
    }
    if (methods_.writer == flag_writer::kernel) {
      if (auto done = ops.submit(); !done) return done;
      return launch(stream, 0, 0, 0, words_.theirs + offset, value, 0);
    }
    if (is_one) {
      if (auto done = ops.submit(); !done) return done;
      return copy(stream, words_.theirs + offset, words_.ours + offsetof(gpu_words, one), sizeof value);
    }
    // Both the write here and the copy are in the order of the stream, so that the next flag cannot overtake this copy.
    const auto scratch = words_.ours + (offset == offsetof(gpu_words, signal) ? offsetof(gpu_words, scratch_signal)
                                                                              : offsetof(gpu_words, scratch_ack));
    ops.write64(scratch, value);
    if (auto done = ops.submit(); !done) return done;
    return copy(stream, words_.theirs + offset, scratch, sizeof value);
  }

  const copy::gpu_context context_;
  const peer_methods methods_;
  const peer_words words_;
};

}  // namespace

const char* name_of(executor_kind kind) noexcept {
  if (kind == executor_kind::peer) return "peer";
  if (kind == executor_kind::dma) return "dma";
  return kind == executor_kind::proxy ? "proxy" : "automatic";
}

const char* name_of(flag_writer writer) noexcept {
  constexpr const char* kNames[] = {"direct", "copied", "kernel"};
  return kNames[static_cast<unsigned>(writer)];
}

std::unique_ptr<executor> make_peer_executor(const copy::gpu_context& context, const peer_methods& methods,
                                             const peer_words& words) {
  return std::make_unique<peer_executor>(context, methods, words);
}

}  // namespace pl::triggered
