// SPDX-License-Identifier: Apache-2.0
// Kernels that put into windows of another rank, by the public interface: on one host, where the caller may do it alone, and
// as between two hosts.
#include <gtest/gtest.h>

#include <cstdlib>
#include <cstring>
#include <peerlane/communicator.hpp>
#include <peerlane/device.hpp>

#include "remote_put_kernels_image.hpp"
#include "test/api/messaging/job.hpp"
#include "test/api/triggered/driver.h"

extern "C" {
int cuModuleLoadData(void** module, const void* image);
int cuModuleGetFunction(void** function, void* module, const char* name);
int cuLaunchKernel(void* function, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x, unsigned block_y,
                   unsigned block_z, unsigned shared_bytes, void* stream, void** parameters, void** extra);
}

namespace peerlane::test {
namespace {

constexpr std::size_t kBytes = 128 << 10, kWordsBytes = 4096;

unsigned long long new_memory(std::size_t bytes) {
  unsigned long long pointer = 0;
  if (cuMemAlloc_v2(&pointer, bytes) != 0 || cuMemsetD8_v2(pointer, 0, bytes) != 0) std::abort();
  return pointer;
}

// A window of this rank for the others, and the other's for our kernels.
struct window_pair {
  window own;
  device_window inbox{}, theirs{};
  int open(const communicator& comm, const device_rings& rings, std::uint64_t address, std::size_t bytes) {
    auto exposed = comm.expose(device_buffer(address, bytes));
    CHECK(exposed);
    own = *std::move(exposed);
    const auto keys = comm.all_gather(own.key());
    CHECK(keys);
    const auto added = rings.add_window(device_buffer(address, bytes));
    CHECK(added);
    inbox = *added;
    const auto reached = rings.add_remote_window(comm.get(), (*keys)[static_cast<std::size_t>(1 - comm.rank())]);
    CHECK(reached && reached->address == 0 && reached->is_outside == PEERLANE_DEVICE_ON_REMOTE);
    theirs = *reached;
    return 0;
  }
};

int exchange(const communicator& comm, void* stream) {
  device_options wanted;
  wanted.device_ordinal = comm.rank();
  wanted.by_proxy = true;
  wanted.timeout = std::chrono::seconds(20);
  const auto rings = device_rings::open(wanted);
  CHECK(rings && rings->state()->by_proxy);
  const auto source = new_memory(kBytes), answers = new_memory(kWordsBytes);
  const auto mine = rings->add_window(device_buffer(source, kBytes));
  CHECK(mine);
  window_pair data, words;
  if (const int line = data.open(comm, *rings, new_memory(kBytes), kBytes)) return line;
  if (const int line = words.open(comm, *rings, new_memory(kWordsBytes), kWordsBytes)) return line;
  void *module = nullptr, *kernel = nullptr;
  CHECK(cuModuleLoadData(&module, pl::kernels::remote_put_kernels().host_elf) == 0);
  CHECK(cuModuleGetFunction(&kernel, module, "exchange_pieces") == 0);
  auto ring = *rings->ring();
  auto origin = *mine;
  unsigned rank = static_cast<unsigned>(comm.rank()), rounds = 40;
  std::uint64_t seed = 7, answer_to = answers;
  void* parameters[] = {&ring,       &origin, &data.theirs, &words.inbox, &words.theirs,
                        &data.inbox, &rank,   &rounds,      &seed,        &answer_to};
  CHECK(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr) == 0);
  CHECK(cuStreamSynchronize(stream) == 0);
  long long wrong = -1;
  CHECK(cuMemcpyDtoH_v2(&wrong, answers, sizeof wrong) == 0 && wrong == 0);
  CHECK(rings->state()->outcome && rings->release_window(data.theirs));
  CHECK(rings->release_window(data.theirs).code() == EINVAL);
  CHECK(comm.barrier());
  return 0;
}

int refuse(const communicator& comm, void*) {
  device_options wanted;
  wanted.device_ordinal = comm.rank();
  const auto engines = device_rings::open(wanted);
  CHECK(engines && !engines->state()->by_proxy);
  const window_key key{1 - comm.rank(), 1, 64};
  CHECK(engines->add_remote_window(comm.get(), key).code() == ENOTSUP);
  wanted.by_proxy = true;
  const auto rings = device_rings::open(wanted);
  CHECK(rings && rings->add_remote_window(comm.get(), key));  // whether it lives is seen by who puts
  CHECK(rings->add_remote_window(comm.get(), {5, 1, 64}).code() == EINVAL);
  CHECK(rings->add_remote_window(comm.get(), {0, 1, 0}).code() == EINVAL);
  CHECK(rings->add_remote_window(nullptr, key).code() == EINVAL);
  CHECK(peerlane_device_add_remote_window(rings->get(), comm.get(), nullptr, nullptr) == EINVAL);
  peerlane_device_options options{};
  options.struct_bytes = sizeof options;
  options.by_proxy = 2;
  peerlane_device_t device = nullptr;
  CHECK(peerlane_device_open(&options, &device) == EINVAL);
  CHECK(comm.barrier());
  return 0;
}

int run_ranks(int (*body)(const communicator&, void*)) {
  return fork_ranks(2, [&](int rank, const std::string& rendezvous) {
    void *context = nullptr, *stream = nullptr;
    CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, rank) == 0 && cuCtxSetCurrent(context) == 0);
    CHECK(cuStreamCreate(&stream, 1) == 0);
    auto options = communicator::options();
    options.rendezvous = rendezvous.c_str();
    options.rank = rank;
    options.size = 2;
    options.progress_thread = PEERLANE_YES;
    const auto comm = communicator::open(&options);
    CHECK(comm);
    return body(*comm, stream);
  });
}

TEST(remote_window_api, bytes_and_signals_on_one_host) { EXPECT_EQ(run_ranks(exchange), 0); }
TEST(remote_window_api, bytes_and_signals_as_between_hosts) {
  setenv("PEERLANE_LINK_PATH", "network", 1);
  EXPECT_EQ(run_ranks(exchange), 0);
  unsetenv("PEERLANE_LINK_PATH");
}
TEST(remote_window_api, misuse_is_refused) { EXPECT_EQ(run_ranks(refuse), 0); }

}  // namespace
}  // namespace peerlane::test
