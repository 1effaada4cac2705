// SPDX-License-Identifier: Apache-2.0
// Messages between the GPU memory of two processes: each sends to the other, and waits for both operations at once.
//
//   c++ -std=c++20 -I../c two_processes.cpp $(pkg-config --cflags --libs peerlane) -lcuda
//   ./two_processes          or: mpirun -n 2 ./two_processes launched
#include <array>
#include <peerlane/communicator.hpp>
#include <vector>

#include "gpu.h"
#include "ranks.hpp"

static int run(const peerlane_comm_options& options) try {
  using peerlane::value_or_throw;
  constexpr std::size_t kBytes = 1 << 20;
  const peerlane::device_ptr_t device_ptr = gpu_memory(options.rank, 2 * kBytes);
  const auto outbox = peerlane::device_buffer(device_ptr, kBytes),
             inbox = peerlane::device_buffer(device_ptr + kBytes, kBytes);

  const auto comm = peerlane::communicator::open_or_throw(&options);
  const auto copier = value_or_throw(peerlane::copier::open());
  const int peer = 1 - comm.rank();
  const std::vector<int> mine(kBytes / sizeof(int), 100 + comm.rank());
  value_or_throw(copier.copy(outbox, mine));

  std::array<peerlane::operation, 2> both{value_or_throw(comm.irecv(peerlane::any_source, inbox, /* tag */ 7)),
                                          value_or_throw(comm.isend(peer, outbox, 7))};
  std::array<peerlane::op_info, 2> infos{};
  value_or_throw(peerlane::wait_all(both, std::chrono::seconds(20), infos));

  std::vector<int> received(mine.size());
  value_or_throw(copier.copy(received, inbox));
  value_or_throw(comm.barrier(std::chrono::seconds(20)));
  std::printf("rank %d got %zu bytes from rank %d\n", comm.rank(), static_cast<std::size_t>(infos[0].size_bytes),
              infos[0].source);
  return received == std::vector<int>(mine.size(), 100 + peer) ? 0 : 1;
} catch (const peerlane::error& reason) { return std::fprintf(stderr, "%s\n", reason.what()), 1; }

int main(int argc, char**) { return example::run_two_ranks(argc > 1, run); }
