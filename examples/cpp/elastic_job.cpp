// SPDX-License-Identifier: Apache-2.0
// A job that survives the death of a rank: rank 2 is killed in the middle, starts again as a new process, and the job goes
// on from its last step.
//
//   c++ -std=c++20 elastic_job.cpp $(pkg-config --cflags --libs peerlane)
//   ./elastic_job
//
// The parent is the launcher here. With a real one: set PEERLANE_LINK_ELASTIC=1 for all ranks, and have it start a rank that
// died again with the same variables.
#include <netinet/in.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <map>
#include <peerlane/communicator.hpp>
#include <string>

namespace {

constexpr int kRanks = 3, kSteps = 10, kFatalStep = 5;
constexpr std::chrono::milliseconds kLimit{20'000};

// The steps so far and their result, which every rank has, and who has come back gets from rank 0.
struct progress {
  std::int64_t step = 0, sum = 0;
};

peerlane::status do_step(const peerlane::communicator& comm, progress& all) {
  const std::int64_t mine = all.step * (comm.rank() + 1);
  std::int64_t sum = 0;
  auto done = comm.all_reduce(peerlane::host_buffer(&mine, sizeof mine), peerlane::host_buffer(&sum, sizeof sum),
                              PEERLANE_INT64, PEERLANE_SUM, kLimit);
  if (!done) return done;
  all.sum += sum;
  ++all.step;
  return done;
}

// All ranks together again, with what rank 0 knows. A further loss meanwhile: once more.
peerlane::status come_together(const peerlane::communicator& comm, progress& all) {
  for (;;) {
    auto done = comm.restore_collectives(kLimit);
    if (done) done = comm.broadcast(peerlane::host_buffer(&all, sizeof all), 0, kLimit);
    if (done || done.code() != ECONNRESET || !comm.peer_state(0)) return done;
  }
}

int be(const peerlane_comm_options& options) {
  auto comm = peerlane::communicator::open(&options);
  if (!comm) return std::fprintf(stderr, "%s\n", comm.error().message.c_str()), 1;
  const bool has_come_back = *comm->incarnation(comm->rank()) > 1;
  progress all;
  auto done = has_come_back ? come_together(*comm, all) : peerlane::status();
  if (has_come_back && done) std::printf("rank %d is back at step %d\n", comm->rank(), static_cast<int>(all.step));
  while (done && all.step < kSteps) {
    if (comm->rank() == 2 && all.step == kFatalStep && !has_come_back) raise(SIGKILL);
    done = do_step(*comm, all);
    if (!done && (done.code() == ECONNRESET || done.code() == ECANCELED)) done = come_together(*comm, all);
  }
  if (done) done = comm->barrier(kLimit);
  if (!done) return std::fprintf(stderr, "rank %d: %s\n", comm->rank(), done.error().message.c_str()), 1;
  if (comm->rank() == 0) std::printf("%d steps, sum %lld\n", static_cast<int>(all.step), static_cast<long long>(all.sum));
  return all.sum == 6 * kSteps * (kSteps - 1) / 2 ? 0 : 1;
}

std::string free_place() {
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  bind(fd, reinterpret_cast<sockaddr*>(&address), sizeof address);
  getsockname(fd, reinterpret_cast<sockaddr*>(&address), &length);
  close(fd);
  return "127.0.0.1:" + std::to_string(ntohs(address.sin_port));
}

}  // namespace

int main() {
  const std::string place = free_place();
  std::map<pid_t, int> living;
  const auto start = [&](int rank) {
    const pid_t child = fork();
    if (child != 0) return static_cast<void>(living[child] = rank);
    auto options = peerlane::communicator::options();
    options.rendezvous = place.c_str();
    options.rank = rank;
    options.size = kRanks;
    options.host_only = 1;
    options.elastic = PEERLANE_YES;
    std::exit(be(options));
  };
  for (int rank = 0; rank < kRanks; ++rank) start(rank);
  int failures = 0;
  while (!living.empty()) {
    int status = 0;
    const pid_t ended = wait(&status);
    const int rank = living[ended];
    living.erase(ended);
    if (WIFSIGNALED(status)) start(rank);
    else failures += WEXITSTATUS(status);
  }
  return failures;
}
