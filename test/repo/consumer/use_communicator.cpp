// SPDX-License-Identifier: Apache-2.0
// use_communicator FOLDER: knows the C++ API of messages and nothing else. Two processes that meet in the folder; host
// memory, so no GPU.
#include <sys/wait.h>
#include <unistd.h>

#include <array>
#include <cstdio>
#include <peerlane/communicator.hpp>
#include <string>

static int be_rank(int rank, const std::string& rendezvous) {
  auto options = peerlane::communicator::options();
  options.rendezvous = rendezvous.c_str();
  options.rank = rank;
  options.size = 2;
  options.host_only = 1;
  const auto job = peerlane::communicator::open(&options);
  if (!job) return std::printf("%s\n", job.error().message.c_str()), job.code() == ENOSYS ? 0 : 2;
  std::array<int, 3> values{rank, 2, 3};
  if (rank == 0) return job->send(1, values, 7) && job->barrier() ? 0 : 3;
  const auto info = job->recv(peerlane::any_source, values, 7);
  return info && info->source == 0 && values[0] == 0 && job->barrier() ? 0 : 4;
}

int main(int argc, char** argv) {
  if (argc != 2) return 1;
  const pid_t child = fork();
  if (child == 0) return be_rank(1, std::string("file:") + argv[1]);
  const int code = be_rank(0, std::string("file:") + argv[1]);
  int status = 0;
  if (waitpid(child, &status, 0) != child || status != 0) return 5;
  return code;
}
