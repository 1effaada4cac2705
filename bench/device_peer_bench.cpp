// SPDX-License-Identifier: Apache-2.0
// Kernels of one GPU that put into another's memory, and kernels there that see the bytes and answer: right, then how fast.
//
//     device_peer_bench [FILE.json]
//
// A row is half a round trip of two kernels. Exit code 1 if anything is wrong, 0 without two GPUs that reach each other.
#include <cstdio>
#include <cstdlib>
#include <string>

#include "base/text.hpp"
#include "bench/must.hpp"
#include "cuda/kernel_image.hpp"
#include "device/session.hpp"
#include "device_peer_kernels_image.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"

namespace {

using namespace pl;

constexpr std::size_t kBytes = 4u << 20, kWordsAt = kBytes - 65536, kSourceAt = kBytes / 2;
int failures = 0;

struct side {
  cu::context_t context = nullptr;
  cu::module_t module_of_kernels = nullptr;
  cu::stream_t stream = nullptr;
  cu::device_ptr memory = 0, result = 0;
  std::unique_ptr<device::session> session;
  peerlane_device_window own{}, source{}, own_words{}, remote{}, remote_words{};
};

class bench {
 public:
  explicit bench(const cu::driver_table& table) : cuda_(table) {}
  bool set_up();
  void run(std::uint64_t bytes, unsigned mode, unsigned threads, unsigned rounds, bool checks);
  result_file file{"device_peer_bench", {"device_peer_bench"}};

 private:
  void must(cu::result_t code, const char* step) const {
    if (code == cu::error_code::success) return;
    std::printf("FAILED: %s: %s\n", step, cu::error_text(cuda_, code).c_str());
    std::exit(1);
  }
  const cu::driver_table& cuda_;
  side sides_[2];
  unsigned next_ = 1;
};

bool bench::set_up() {
  if (status ready = cu::initialize(cuda_); !ready) return std::printf("FAILED: %s\n", ready.error().message.c_str()), false;
  int count = 0, can = 0;
  must(cuda_.cuDeviceGetCount(&count), "cuDeviceGetCount");
  if (count >= 2) must(cuda_.cuDeviceCanAccessPeer(&can, 0, 1), "cuDeviceCanAccessPeer");
  if (can == 0) return std::printf("no two GPUs that reach each other\n"), false;
  for (int i = 0; i < 2; ++i) {
    side& one = sides_[i];
    must(cuda_.cuDevicePrimaryCtxRetain(&one.context, i), "cuDevicePrimaryCtxRetain");
    must(cuda_.cuCtxSetCurrent(one.context), "cuCtxSetCurrent");
    must(cuda_.cuMemAlloc_v2(&one.memory, kBytes), "cuMemAlloc");
    must(cuda_.cuMemAlloc_v2(&one.result, 64), "cuMemAlloc");
    must(cuda_.cuMemsetD8_v2(one.memory, 0, kBytes), "cuMemsetD8");
    must(cuda_.cuStreamCreate(&one.stream, 1), "cuStreamCreate");
    must(cuda_.cuCtxSynchronize(), "cuCtxSynchronize");
    one.module_of_kernels = need(cu::load_kernels(cuda_, kernels::device_peer_kernels()), "kernels");
    device::session_options wanted;
    wanted.device_ordinal = i;
    one.session = need(device::session::open(cuda_, wanted), "session");
  }
  for (int i = 0; i < 2; ++i) {
    side &one = sides_[i], &other = sides_[1 - i];
    must(cuda_.cuCtxSetCurrent(one.context), "cuCtxSetCurrent");
    if (const auto rc = cuda_.cuCtxEnablePeerAccess(other.context, 0); rc != cu::error_code::peer_access_already_enabled)
      must(rc, "cuCtxEnablePeerAccess");
    const auto add = [&](std::uint64_t address, std::size_t bytes) {
      auto made = need(one.session->add_window(address, bytes), "window");
      made.address = address;  // kernels reach the peer's memory too
      return made;
    };
    one.own = add(one.memory, kSourceAt);
    one.source = add(one.memory + kSourceAt, kWordsAt - kSourceAt);
    one.own_words = add(one.memory + kWordsAt, 4096);
    one.remote = add(other.memory, kSourceAt);
    one.remote_words = add(other.memory + kWordsAt, 4096);
  }
  machine_facts facts = describe_host();
  describe_gpu(facts, cuda_, 0);
  facts.backend = "rm";
  file.set_machine(facts);
  return true;
}

void bench::run(std::uint64_t bytes, unsigned mode, unsigned threads, unsigned rounds, bool checks) {
  constexpr const char* kModes[] = {"put_signal", "put_signal unflushed", "stores"};
  for (side& one : sides_) {
    must(cuda_.cuCtxSetCurrent(one.context), "cuCtxSetCurrent");
    must(cuda_.cuMemsetD8_v2(one.result, 0, 64), "cuMemsetD8");
    must(cuda_.cuCtxSynchronize(), "cuCtxSynchronize");
  }
  for (unsigned i = 2; i-- > 0;) {  // who answers comes first
    side& one = sides_[i];
    must(cuda_.cuCtxSetCurrent(one.context), "cuCtxSetCurrent");
    cu::function_t function = nullptr;
    must(cuda_.cuModuleGetFunction(&function, one.module_of_kernels, "answer_peer"), "answer_peer");
    peerlane_device_ring ring = one.session->ring(0).handle();
    unsigned is_second = i, verifies = checks ? 1 : 0;
    void* parameters[] = {&ring,  &one.remote, &one.source, &one.own, &bytes,    &one.remote_words, &one.own_words,
                          &next_, &rounds,     &is_second,  &mode,    &verifies, &one.result};
    must(cuda_.cuLaunchKernel(function, 1, 1, 1, threads, 1, 1, 0, one.stream, parameters, nullptr), "cuLaunchKernel");
  }
  std::uint64_t found[2][3] = {};
  for (int i = 0; i < 2; ++i) {
    must(cuda_.cuCtxSetCurrent(sides_[i].context), "cuCtxSetCurrent");
    must(cuda_.cuStreamSynchronize(sides_[i].stream), "cuStreamSynchronize");
    must(cuda_.cuMemcpyDtoH_v2(found[i], sides_[i].result, sizeof found[i]), "cuMemcpyDtoH");
  }
  next_ += rounds;
  const double half_us = static_cast<double>(found[0][0]) / rounds / 2 / 1e3;
  const std::uint64_t old = found[0][1] + found[1][1];
  const auto error = static_cast<std::int64_t>(found[0][2] != 0 ? found[0][2] : found[1][2]);
  const bool is_right = error == 0 && (old == 0 || mode == 1);
  if (!is_right) ++failures;
  std::printf("%-22s %7llu B %4u threads%s: %7.2f us, %llu old words%s\n", kModes[mode],
              static_cast<unsigned long long>(bytes), threads, checks ? ", checked" : "", half_us,
              static_cast<unsigned long long>(old),
              error != 0 ? format(", error %lld", static_cast<long long>(error)).c_str() : "");
  file.add_row({{"kind", checks ? "order" : "latency"},
                {"method", kModes[mode]},
                {"bytes", bytes},
                {"threads", threads},
                {"rounds", rounds},
                {"half_round_trip_us", half_us},
                {"old_words", old},
                {"error", error}});
}

}  // namespace

int main(int argc, char** argv) {
  const auto driver = cu::driver();
  if (!driver) return std::printf("FAILED: %s\n", driver.error().message.c_str()), 1;
  bench all(**driver);
  if (!all.set_up()) return 0;
  const unsigned rounds = (*driver)->is_simulated ? 20 : 2000;
  for (const std::uint64_t bytes : {4ull, 64ull, 1024ull, 4096ull, 8192ull, 16384ull, 65536ull, 1ull << 20})
    for (const unsigned mode : {0u, 1u}) all.run(bytes, mode, 32, rounds, false);
  for (const std::uint64_t bytes : {4ull, 64ull, 1024ull, 4096ull, 8192ull, 16384ull, 65536ull, 1ull << 20})
    for (const unsigned threads : {32u, 256u, 1024u}) all.run(bytes, 2, threads, rounds, false);
  for (const std::uint64_t bytes : {64ull, 4096ull, 65536ull})
    for (const unsigned mode : {0u, 1u, 2u}) all.run(bytes, mode, 256, rounds, true);
  all.file.set_pass(failures == 0);
  if (argc > 1)
    if (status done = all.file.write(argv[1]); !done) std::printf("FAILED: %s\n", done.error().message.c_str());
  std::printf("%s\n", failures == 0 ? "all right" : "WRONG results above");
  return failures == 0 ? 0 : 1;
}
