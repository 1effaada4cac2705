// SPDX-License-Identifier: Apache-2.0
// The kernels of kernel_pipe.cu between two ranks on any hosts: the windows are the communicator's, and a thread of the
// library carries out what the kernels post.
//
//   c++ -std=c++20 -I../c -I../cpp kernel_hosts.cpp $(pkg-config --cflags --libs peerlane) -lcuda
//   ./kernel_hosts kernel_pipe.fatbin          or: mpirun -n 2 ./kernel_hosts kernel_pipe.fatbin launched
#include <chrono>
#include <peerlane/communicator.hpp>
#include <peerlane/device.hpp>

#include "kernel_gpu.h"
#include "kernel_pipe.h"
#include "ranks.hpp"

static const char* kernels_path;

static int run(const peerlane_comm_options& given) try {
  using peerlane::value_or_throw;
  const unsigned long long memory = gpu_memory(given.rank, kEndBytes + 4096), answer_at = memory + kEndBytes;
  const auto end = peerlane::device_buffer(memory, kEndBytes);
  auto options = given;
  options.progress_thread = PEERLANE_YES;  // this rank takes puts while it waits for its kernel
  const auto comm = peerlane::communicator::open_or_throw(&options);

  peerlane::device_options wanted;
  wanted.device_ordinal = given.rank;
  wanted.timeout = std::chrono::seconds(30);  // the other rank may start later
  wanted.by_proxy = true;
  const auto device = value_or_throw(peerlane::device_rings::open(wanted));
  const auto exposed = value_or_throw(comm.expose(end));
  const auto keys = value_or_throw(comm.all_gather(exposed.key()));
  auto ring = value_or_throw(device.ring());
  auto mine = value_or_throw(device.add_window(end));
  auto theirs = value_or_throw(device.add_remote_window(comm.get(), keys[static_cast<std::size_t>(1 - comm.rank())]));

  unsigned long long answer = answer_at;
  long long code = -1;
  void* parameters[] = {&ring, &mine, &theirs, &answer};
  const char* const kernel = comm.rank() == 0 ? "produce_messages" : "consume_messages";
  void* const stream = launch_kernel(kernels_path, kernel, parameters);
  if (cuStreamSynchronize(stream) != 0 || cuMemcpyDtoH_v2(&code, answer_at, sizeof code) != 0)
    return std::fprintf(stderr, "%s: the kernel failed\n", kernel), 1;
  const auto state = value_or_throw(device.state());
  if (code != 0)
    return std::fprintf(stderr, "%s: %lld, %s\n", kernel, code, state.outcome ? "" : state.outcome.error().message.c_str()),
           1;
  value_or_throw(comm.barrier(std::chrono::seconds(30)));  // the window stays until the other rank has put all
  std::printf("rank %d: %d messages of %d bytes, %llu transfers posted by the kernel\n", comm.rank(), int{kMessages},
              int{kMessageBytes}, static_cast<unsigned long long>(state.posted));
  return 0;
} catch (const peerlane::error& reason) { return std::fprintf(stderr, "%s\n", reason.what()), 1; }

int main(int argc, char** argv) {
  if (argc < 2) return std::fprintf(stderr, "usage: kernel_hosts FILE_WITH_KERNELS [launched]\n"), 2;
  kernels_path = argv[1];
  return example::run_two_ranks(argc > 2, run);
}
