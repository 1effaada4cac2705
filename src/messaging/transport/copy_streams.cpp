// SPDX-License-Identifier: Apache-2.0
#include "messaging/transport/copy_streams.hpp"

namespace pl::messaging {

result<std::unique_ptr<copy_streams>> copy_streams::open(const copy::gpu_context& context) {
  std::unique_ptr<copy_streams> made(new copy_streams);
  for (auto& stream : made->streams_) {
    // One stream each: an engine with several streams keeps a thread on the same one.
    auto opened = copy::copy_engine::open(context, 1);
    if (!opened) return std::move(opened).error();
    stream = *std::move(opened);
  }
  return made;
}

result<copy_streams::mark> copy_streams::submit(std::span<const copy::transfer> copies) {
  auto& stream = *streams_[next_++ % kStreams];
  auto queued = stream.submit(copies);
  if (!queued) return std::move(queued).error();
  return mark{&stream, *queued};
}

}  // namespace pl::messaging
