// SPDX-License-Identifier: Apache-2.0
#include "triggered/receive_engine.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"
#include "cuda/pointer.hpp"

namespace pl::triggered {
namespace {

constexpr unsigned kPollsBetweenFaults = 1024;  // asking the channel's notifier costs more than looking at its word

}  // namespace

receive_engine::receive_engine(const copy::gpu_context& context, copy::channel_source source)
    : context_(context), source_(std::move(source)), memory_(*context.cuda, source_.space, source_.addresses) {}

result<std::unique_ptr<receive_engine>> receive_engine::open(const copy::gpu_context& context) {
  const auto wanted = copy::trial_from_environment("PEERLANE_STREAM_RECEIVE", copy::trial::simulated);
  if (!copy::is_on(wanted, context.cuda->is_simulated))
    return failure{ENOTSUP, "PEERLANE_STREAM_RECEIVE leaves what arrives to the CPU"};
  auto source = copy::channel_source::open(*context.cuda, context.device_ordinal);
  if (!source) return source.error();
  dma::channel_options options;
  options.engine = source->engine_of(false, false);
  auto channel = dma::channel::open(source->addresses, options);
  if (!channel) return channel.error();
  std::unique_ptr<receive_engine> made(new receive_engine(context, *std::move(source)));
  made->channel_ = *std::move(channel);
  return made;
}

receive_engine::~receive_engine() { channel_->stop(); }

status receive_engine::add(std::uint32_t window, cu::device_ptr memory, std::uint64_t bytes) {
  std::vector<copy::channel_memory::piece> pieces;
  for (std::uint64_t done = 0; done < bytes; done += pieces.back().size_bytes) {
    const auto info = cu::inspect_pointer(*context_.cuda, memory + done);
    if (!info) return info.error();
    auto found = memory_.find_device(*info, memory + done, bytes - done);
    if (!found) return found.error();
    pieces.push_back(*std::move(found));
  }
  const std::lock_guard lock(mutex_);
  windows_.insert_or_assign(window, std::move(pieces));
  return {};
}

void receive_engine::remove(std::uint32_t window) {
  decltype(windows_)::node_type gone;  // given back after the copies into it have ended
  dma::sequence last = 0;
  {
    const std::lock_guard lock(mutex_);
    gone = windows_.extract(window);
    last = last_;
  }
  if (gone.empty() || channel_->is_done(last)) return;
  if (const auto ended = channel_->wait(last, copy::time_limit_ns(0)); !ended) {
    PL_LOG(warn, "stream: copies into a window did not end: %s", ended.error().message.c_str());
    channel_->stop();
  }
}

result<std::optional<dma::sequence>> receive_engine::begin(std::uint32_t window, std::uint64_t offset, std::uint64_t source,
                                                           std::uint64_t bytes) {
  const std::lock_guard lock(mutex_);
  const auto found = windows_.find(window);
  if (found == windows_.end()) return std::optional<dma::sequence>();
  result<dma::sequence> queued = last_;
  for (const auto& piece : found->second) {
    if (offset >= piece.size_bytes) {
      offset -= piece.size_bytes;
      continue;
    }
    const auto part = std::min(bytes, piece.size_bytes - offset);
    queued = channel_->copy(piece.address + offset, source, part, dma::ordering::none_settled);
    if (!queued) {
      channel_->stop();  // a part may be queued
      return queued.error();
    }
    last_ = *queued;
    source += part;
    bytes -= part;
    offset = 0;
    if (bytes == 0) break;
  }
  return std::optional<dma::sequence>(*queued);
}

result<bool> receive_engine::is_done(dma::sequence number) {
  if (channel_->is_done(number)) {
    watch_.restart();
    return true;
  }
  if (++polls_ % kPollsBetweenFaults != 0) return false;
  if (const auto fault = channel_->fault()) return *fault;
  if (!watch_.is_stalled(channel_->completed(), copy::time_limit_ns(0))) return false;
  channel_->stop();
  return failure{ETIMEDOUT, "the GPU's copy engine does not end a copy into a window"};
}

}  // namespace pl::triggered
