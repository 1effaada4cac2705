// SPDX-License-Identifier: Apache-2.0
// Opens, closes and queries a stream context. The contract is in peerlane/triggered.h.
#include "capi/open_triggered.hpp"

#include "capi/open_comm.hpp"

namespace pl {
namespace {

using std::chrono::milliseconds;

open_table<peerlane_triggered, 64> g_contexts;

constexpr const char* kForeignContext =
    "the context belongs to another process (made before fork): open one in this process, after the fork";
constexpr const char* kNoMode = "mode is not one of PEERLANE_TRIGGERED_PERFORMANCE, PEERLANE_TRIGGERED_ECONOMY";

result<peerlane_triggered_options> read_triggered_options(const peerlane_triggered_options* options) {
  peerlane_triggered_options given{};
  if (options != nullptr) {
    if (options->struct_bytes < sizeof(size_t) + sizeof(void*))
      return failure{EINVAL, "options->struct_bytes is not sizeof(struct peerlane_triggered_options)"};
    std::memcpy(&given, options, std::min(options->struct_bytes, sizeof given));
  }
  if (given.mode > PEERLANE_TRIGGERED_ECONOMY) return failure{EINVAL, kNoMode};
  if (given.has_device != 0 && given.device < 0) return failure{EINVAL, "device is negative: devices count from 0"};
  if (given.has_service_cpu != 0 && given.service_cpu < 0)
    return failure{EINVAL, "service_cpu is negative: CPUs count from 0"};
  return given;
}

triggered::context_options context_options_from(const peerlane_triggered_options& given, const peerlane_comm_options& comm) {
  triggered::context_options out;
  out.mode = static_cast<triggered::run_mode>(given.mode);
  if (given.has_device != 0) out.device_ordinal = given.device;
  if (given.has_service_cpu != 0) out.service_cpu = given.service_cpu;
  if (given.channels != 0) out.channels = given.channels;
  if (given.wait_timeout_ms > 0) out.wait_timeout = limit_of(given.wait_timeout_ms);
  if (given.wait_timeout_ms < 0) out.wait_timeout = milliseconds(0);
  if (given.connect_timeout_ms != 0) out.connect_timeout = limit_of(given.connect_timeout_ms);
  out.messages = messenger_options_from(comm);
  return out;
}

result<std::unique_ptr<open_triggered>> open_with(const peerlane_triggered_options& given) {
  const auto comm = read_comm_options(given.comm);
  if (!comm) return comm.error();
  if (is_elastic(*comm))
    return failure{
        ENOTSUP,
        "a stream-triggered context cannot be elastic, since streams keep their peers' memory: set comm->elastic to "
        "PEERLANE_NO, or unset PEERLANE_LINK_ELASTIC"};
  const auto cuda = cu::driver();
  if (!cuda) return cuda.error();
  if (auto ready = cu::initialize(**cuda); !ready) return ready.error();
  auto made = std::make_unique<open_triggered>();
  made->cuda = *cuda;
  auto bootstrap = meet(*comm);
  if (!bootstrap) return std::move(bootstrap).error();
  made->bootstrap = *std::move(bootstrap);
  auto opened = triggered::context::open(**cuda, *made->bootstrap, context_options_from(given, *comm));
  if (!opened) return std::move(opened).error();
  made->context = *std::move(opened);
  return made;
}

}  // namespace

open_triggered::~open_triggered() {
  channels.clear();  // first, so that streams leave their waits: what frees memory waits for all streams of the device
  collectives.clear();
  batches.clear();
  exposed.clear();
  remote.clear();
  context.reset();
}

open_triggered* triggered_of(peerlane_triggered_t handle, int& code) noexcept {
  return g_contexts.find(handle, kForeignContext, code);
}

}  // namespace pl

using pl::fail;
using pl::kNullPointer;
using pl::open_triggered;
using pl::with_triggered;

PL_EXPORT int peerlane_triggered_open(const struct peerlane_triggered_options* options, peerlane_triggered_t* context) try {
  const pl::errno_guard guard;
  if (context == nullptr) return fail(EINVAL, kNullPointer);
  const auto given = pl::read_triggered_options(options);
  if (!given) return fail(given.error());
  auto* const slot = pl::g_contexts.reserve();
  if (slot == nullptr) return fail(ENFILE, "64 contexts are open: close one, or use one for all threads");
  auto made = pl::open_with(*given);
  pl::g_contexts.publish(*slot, made ? made->release() : nullptr);
  if (!made) return fail(made.error());
  *context = slot;
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_triggered_close(peerlane_triggered_t context) {
  return with_triggered(context, [&](open_triggered& opened) {
    pl::g_contexts.publish(*context, nullptr);
    delete &opened;
    return 0;
  });
}

PL_EXPORT int peerlane_triggered_rank(peerlane_triggered_t context) {
  int rank = -1;
  with_triggered(context, [&](open_triggered& opened) { return rank = opened.context->rank(), 0; });
  return rank;
}

PL_EXPORT int peerlane_triggered_size(peerlane_triggered_t context) {
  int size = -1;
  with_triggered(context, [&](open_triggered& opened) { return size = opened.context->size(), 0; });
  return size;
}

PL_EXPORT int peerlane_triggered_query(peerlane_triggered_t context, struct peerlane_triggered_capabilities* capabilities) {
  if (capabilities == nullptr) return fail(EINVAL, kNullPointer);
  if (capabilities->struct_bytes < sizeof(size_t) + sizeof(int32_t))
    return fail(EINVAL, "capabilities->struct_bytes is not sizeof(struct peerlane_triggered_capabilities)");
  return with_triggered(context, [&](open_triggered& opened) {
    const auto now = opened.context->query();
    const peerlane_triggered_capabilities out{capabilities->struct_bytes, now.device_ordinal, now.has_cpu_mapping ? 1u : 0u,
                                              now.kernel_limit};
    std::memcpy(capabilities, &out, std::min(capabilities->struct_bytes, sizeof out));
    return 0;
  });
}

PL_EXPORT int peerlane_triggered_set_mode(peerlane_triggered_t context, uint32_t mode) {
  if (mode > PEERLANE_TRIGGERED_ECONOMY) return fail(EINVAL, pl::kNoMode);
  return with_triggered(context, [&](open_triggered& opened) {
    opened.context->set_mode(static_cast<pl::triggered::run_mode>(mode));
    return 0;
  });
}

PL_EXPORT int peerlane_triggered_all_gather(peerlane_triggered_t context, const void* mine, size_t size_bytes, void* all) {
  if ((mine == nullptr || all == nullptr) && size_bytes != 0) return fail(EINVAL, kNullPointer);
  return with_triggered(
      context, [&](open_triggered& opened) { return pl::all_gather_equal(*opened.bootstrap, mine, size_bytes, all); });
}

PL_EXPORT int peerlane_triggered_diag(peerlane_triggered_t context, char* text, size_t capacity, size_t* needed) {
  if (text == nullptr && capacity != 0) return fail(EINVAL, kNullPointer);
  return with_triggered(
      context, [&](open_triggered& opened) { return pl::give_text(opened.context->diag(), text, capacity, needed); });
}
