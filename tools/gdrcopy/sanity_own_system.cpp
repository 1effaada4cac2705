// SPDX-License-Identifier: Apache-2.0
// Cases that GDRCopy does not have: what a dying process leaves, and what a running kernel sees.
#include <unistd.h>

#include <peerlane/peerlane.hpp>

#include "base/clock.hpp"
#include "tools/common/kernel_module.hpp"
#include "tools/common/nvml.hpp"
#include "tools/gdrcopy/sanity_case.hpp"

namespace pl::tools {
namespace {

std::uint64_t bar1_used(const nvml_device& nvml) {
  const auto use = nvml.bar1();
  if (!use) throw case_waived("NVML does not report how much of BAR1 is in use");
  return use->used_bytes;
}

void kill_nine_leaves_nothing(const case_context& context) {
  constexpr std::uint64_t kBytes = 256ull << 20, kWaitNs = 20'000'000'000;
  process_pipe to_child, to_parent;
  std::string bus_id(32, '\0');
  // Forked before CUDA starts: the child is the one that dies with a mapping.
  child_process child([&] {
    case_fixture fixture(context);
    const std::string id = fixture.gpu.simulated() ? "simulated" : fixture.gpu.bus_id();
    const device_memory memory(fixture.gpu, kBytes);
    char padded[32] = {};
    id.copy(padded, sizeof padded - 1);
    to_parent.send_bytes(padded, sizeof padded);  // NVML of the parent notes the start
    to_child.take();
    const auto session = peerlane::session::open();
    PL_REQUIRE(session.ok(), "peerlane::session::open: %s", session.error().message.c_str());
    const auto mapped = session->map(memory.get(), kBytes);
    PL_REQUIRE(mapped.ok(), "peerlane::map: %s", mapped.error().message.c_str());
    *static_cast<volatile std::uint32_t*>(mapped->data()) = 1;
    to_parent.pass();
    sleep(60);
  });
  to_parent.receive_bytes(bus_id.data(), bus_id.size());
  bus_id.resize(bus_id.find('\0'));
  if (bus_id == "simulated") throw case_waived("the simulated GPU has no BAR1 to leave something in");
  std::string reason;
  const auto nvml = nvml_device::open(bus_id, &reason);
  if (!nvml) throw case_waived("NVML is needed to see BAR1: " + reason);
  const std::uint64_t before = bar1_used(*nvml);
  to_child.pass();
  to_parent.take();
  const std::uint64_t during = bar1_used(*nvml);
  child.kill_nine();
  const std::uint64_t begin_ns = monotonic_ns();
  std::uint64_t after = bar1_used(*nvml);
  while (after > before && monotonic_ns() - begin_ns < kWaitNs) {
    usleep(100'000);
    after = bar1_used(*nvml);
  }
  PL_REQUIRE(during >= before, "BAR1 in use fell while a mapping was made");
  PL_REQUIRE(after <= before, "BAR1 in use is %llu bytes after kill -9, %llu before (%llu while mapped)",
             static_cast<unsigned long long>(after), static_cast<unsigned long long>(before),
             static_cast<unsigned long long>(during));
}

void kernel_sees_write(const case_context& context) {
  constexpr std::size_t kBytes = 4096;
  constexpr std::uint64_t kTimeoutNs = 20'000'000'000;
  case_fixture fixture(context);
  const device_memory memory(fixture.gpu, 4 * GPU_PAGE_SIZE);  // data, then the flag, then what the kernel copied
  const gdr_buffer buffer(fixture.gdr, memory.get(), memory.size_bytes());
  fixture.gpu.check(fixture.gpu.cuda().cuMemsetD8_v2(memory.get(), 0, memory.size_bytes()), "cuMemsetD8");
  fixture.gpu.synchronize();
  const host_memory status(fixture.gpu, 64);
  if (const auto reason = kernel_module::why_missing(fixture.gpu); !reason.empty()) throw case_waived(reason);
  const kernel_module kernels(fixture.gpu);
  const gpu_stream stream(fixture.gpu);
  constexpr std::uint64_t kFlagAt = GPU_PAGE_SIZE, kCopyAt = 2 * GPU_PAGE_SIZE;
  volatile auto* done = reinterpret_cast<volatile std::uint32_t*>(status.bytes());
  for (std::uint32_t round = 1; round <= 50; ++round) {
    *done = 0;
    // The flag has another value at the launch, so values that the kernel sees were written while it ran.
    kernels.launch("copy_when_told", 1, 1, 0, stream.get(), memory.get() + kFlagAt, round, memory.get(),
                   memory.get() + kCopyAt, static_cast<std::uint32_t>(kBytes / 4), kTimeoutNs, status.device_address());
    usleep(200);
    const auto wanted = pattern(kBytes, round);
    check_gdr("gdr_copy_to_mapping",
              gdr_copy_to_mapping(buffer.handle(), buffer.user_pointer(), wanted.data(), wanted.size()));
    check_gdr("gdr_copy_to_mapping",
              gdr_copy_to_mapping(buffer.handle(), buffer.user_pointer() + kFlagAt, &round, sizeof round));
    fixture.gpu.check(fixture.gpu.cuda().cuStreamSynchronize(stream.get()), "cuStreamSynchronize");
    PL_REQUIRE(*done == 1, "round %u: the running kernel did not see the flag within 20 s", round);
    require_equal(fixture.device_bytes(memory.get() + kCopyAt, kBytes), wanted,
                  format("round %u: data that the kernel read after the flag", round));
  }
}

constexpr sanity_case kOwnSystemCases[] = {
    {.name = "kernel_sees_write",
     .asserts = "a running kernel sees the flag, and after it all data written before it",
     .run = kernel_sees_write,
     .stock = false,
     .in_demo = true},
    {.name = "kill_nine_leaves_nothing",
     .asserts = "BAR1 in use returns to its start after a process with a mapping is killed",
     .run = kill_nine_leaves_nothing,
     .stock = false},
};

}  // namespace

std::span<const sanity_case> own_system_cases() { return kOwnSystemCases; }

}  // namespace pl::tools
