// SPDX-License-Identifier: Apache-2.0
// The host's side of kernel_pipe.cu: two processes that show each other a window over a socket, and launch a kernel each.
//
//   c++ -std=c++20 -I../c kernel_pipe.cpp $(pkg-config --cflags --libs peerlane) -lcuda
//   ./a.out kernel_pipe.fatbin [GPU of the consumer]
//
// Name the consumer's GPU where you have two that are linked: on one GPU the two kernels take turns.
#include "kernel_pipe.h"

#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <peerlane/device.hpp>

#include "kernel_gpu.h"

namespace {

// One end of the pipe. 0: its kernel found nothing wrong.
int run_end(const char* kernels, const char* kernel, int gpu, int socket) {
  using std::chrono::seconds;
  const unsigned long long memory = gpu_memory(gpu, 2 * kEndBytes + 4096);
  const unsigned long long end = (memory + kEndBytes - 1) / kEndBytes * kEndBytes, answer_at = end + kEndBytes;
  peerlane::device_options options;
  options.device_ordinal = gpu;
  options.timeout = seconds(30);  // the other process may start later
  const auto device = demand(peerlane::device_rings::open(options));
  auto ring = demand(device.ring());
  auto mine = demand(device.add_window(peerlane::device_buffer(end, kEndBytes)));
  if (const auto sent = device.send_window(mine, socket); !sent)
    return std::fprintf(stderr, "%s\n", sent.error().message.c_str()), 1;
  auto theirs = demand(device.receive_window(socket, seconds(30)));

  unsigned long long answer = answer_at;
  long long code = -1;
  void* parameters[] = {&ring, &mine, &theirs, &answer};
  void* const stream = launch_kernel(kernels, kernel, parameters);
  if (cuStreamSynchronize(stream) != 0 || cuMemcpyDtoH_v2(&code, answer_at, sizeof code) != 0)
    return std::fprintf(stderr, "%s: the kernel failed\n", kernel), 1;
  if (code < 0) {
    const auto state = device.state();
    const std::string reason = state && !state->outcome ? state->outcome.error().message : "no word came";
    return std::fprintf(stderr, "%s: error %lld, %s\n", kernel, code, reason.c_str()), 1;
  }
  return code == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc < 2 || argc > 3) return std::fprintf(stderr, "usage: kernel_pipe FILE_WITH_KERNELS [GPU_OF_CONSUMER]\n"), 2;
  const int consumer_gpu = argc == 3 ? std::atoi(argv[2]) : 0;
  int sockets[2] = {};
  if (socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) != 0) return std::perror("socketpair"), 1;
  // Fork first: CUDA and Peerlane belong to the process that opened them.
  const pid_t child = fork();
  if (child < 0) return std::perror("fork"), 1;
  close(sockets[child == 0 ? 0 : 1]);
  if (child == 0) std::_Exit(run_end(argv[1], "consume_messages", consumer_gpu, sockets[1]));
  const int code = run_end(argv[1], "produce_messages", 0, sockets[0]);
  close(sockets[0]);  // a consumer that still waits for a window learns that there is none
  int status = 1;
  if (waitpid(child, &status, 0) != child || status != 0) return std::fprintf(stderr, "the consumer failed\n"), 1;
  if (code == 0)
    std::printf("%d messages of %d bytes from one process's kernel to the other's\n", int{kMessages}, int{kMessageBytes});
  return code;
}
