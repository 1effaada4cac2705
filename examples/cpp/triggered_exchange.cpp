// SPDX-License-Identifier: Apache-2.0
// A halo exchange that CUDA streams carry out by themselves: puts and waits are queued like kernels, and no CPU takes part
// between a kernel and the peer's next one.
//
//   c++ -std=c++20 -I../c triggered_exchange.cpp $(pkg-config --cflags --libs peerlane) -lcuda
#include <peerlane/triggered.hpp>
#include <vector>

#include "gpu.h"
#include "ranks.hpp"

static int run(const peerlane_comm_options& meeting) try {
  using peerlane::value_or_throw;
  constexpr std::size_t kBytes = 1024;
  constexpr int kSteps = 50;
  const peerlane::device_ptr_t device_ptr = gpu_memory(meeting.rank, 2 * kBytes);
  const auto halo = peerlane::device_buffer(device_ptr, kBytes),
             inbox = peerlane::device_buffer(device_ptr + kBytes, kBytes);
  void* stream = nullptr;
  if (cuStreamCreate(&stream, 1) != 0) return std::fprintf(stderr, "no stream\n"), 1;

  auto options = peerlane::triggered::context::options();
  options.comm = &meeting;
  const auto context = value_or_throw(peerlane::triggered::context::open(&options));
  const auto peer = static_cast<std::size_t>(1 - context.rank());
  const auto mine = value_or_throw(context.expose(inbox));
  const auto theirs = value_or_throw(context.import(value_or_throw(context.all_gather(mine.key()))[peer]));
  auto channel_options = peerlane::triggered::context::channel_options();
  channel_options.depth = 1;  // a put waits until the one before it has been released
  const auto channel = value_or_throw(context.connect(static_cast<int>(peer), 1, &channel_options));

  const auto copier = value_or_throw(peerlane::copier::open());
  const std::vector<int> own(kBytes / sizeof(int), context.rank() + 7);
  value_or_throw(copier.copy(halo, own));
  for (int step = 0; step < kSteps; ++step) {
    // launch the kernel that writes `halo` on `stream`
    value_or_throw(channel.put_signal(stream, theirs, 0, halo));
    const auto sequence = value_or_throw(channel.wait_signal(stream));
    // launch the kernel that reads `inbox` on `stream`
    value_or_throw(channel.release(stream, sequence));
  }
  if (cuStreamSynchronize(stream) != 0) return std::fprintf(stderr, "the stream failed\n"), 1;
  if (value_or_throw(channel.state()).error != 0) return std::fprintf(stderr, "%s\n", channel.diag()->c_str()), 1;
  std::vector<int> received(own.size());
  value_or_throw(copier.copy(received, inbox));
  value_or_throw(context.barrier());
  std::printf("rank %d: %d steps, the peer's halo begins with %d\n", context.rank(), kSteps, received[0]);
  return received == std::vector<int>(own.size(), static_cast<int>(peer) + 7) ? 0 : 1;
} catch (const peerlane::error& reason) { return std::fprintf(stderr, "%s\n", reason.what()), 1; }

int main(int argc, char**) { return example::run_two_ranks(argc > 1, run); }
