// SPDX-License-Identifier: Apache-2.0
// Opens, closes and queries a stream context. The contract is in peerlane/stream.h.
#include "capi/open_stream.hpp"

#include "capi/open_link.hpp"

namespace pl {
namespace {

using std::chrono::milliseconds;

open_table<peerlane_stream, 64> g_streams;

constexpr const char* kForeignContext =
    "the context belongs to another process (made before fork): open one in this process, after the fork";
constexpr const char* kNoMode = "mode is none of PEERLANE_STREAM_PERFORMANCE, PEERLANE_STREAM_ECONOMY";

result<peerlane_stream_options> read_stream_options(const peerlane_stream_options* options) {
  peerlane_stream_options given{};
  if (options != nullptr) {
    if (options->struct_bytes < sizeof(size_t) + sizeof(void*))
      return failure{EINVAL, "options->struct_bytes is not sizeof(struct peerlane_stream_options)"};
    std::memcpy(&given, options, std::min(options->struct_bytes, sizeof given));
  }
  if (given.mode > PEERLANE_STREAM_ECONOMY) return failure{EINVAL, kNoMode};
  if (given.has_device != 0 && given.device < 0) return failure{EINVAL, "device is negative: devices count from 0"};
  if (given.has_service_cpu != 0 && given.service_cpu < 0)
    return failure{EINVAL, "service_cpu is negative: CPUs count from 0"};
  return given;
}

triggered::context_options context_options_from(const peerlane_stream_options& given, const peerlane_link_options& link) {
  triggered::context_options out;
  out.mode = static_cast<triggered::run_mode>(given.mode);
  if (given.has_device != 0) out.device_ordinal = given.device;
  if (given.has_service_cpu != 0) out.service_cpu = given.service_cpu;
  if (given.channels != 0) out.channels = given.channels;
  if (given.wait_timeout_ms > 0) out.wait_timeout = limit_of(given.wait_timeout_ms);
  if (given.wait_timeout_ms < 0) out.wait_timeout = milliseconds(0);
  if (given.connect_timeout_ms != 0) out.connect_timeout = limit_of(given.connect_timeout_ms);
  out.messages = messenger_options_from(link);
  return out;
}

result<std::unique_ptr<open_stream>> open_with(const peerlane_stream_options& given) {
  const auto link = read_link_options(given.link);
  if (!link) return link.error();
  const auto cuda = cu::driver();
  if (!cuda) return cuda.error();
  if (auto ready = cu::initialize(**cuda); !ready) return ready.error();
  auto made = std::make_unique<open_stream>();
  made->cuda = *cuda;
  auto bootstrap = meet(*link);
  if (!bootstrap) return std::move(bootstrap).error();
  made->bootstrap = *std::move(bootstrap);
  auto opened = triggered::context::open(**cuda, *made->bootstrap, context_options_from(given, *link));
  if (!opened) return std::move(opened).error();
  made->context = *std::move(opened);
  return made;
}

}  // namespace

open_stream::~open_stream() {
  channels.clear();
  batches.clear();
  exposed.clear();
  remote.clear();
  context.reset();
}

open_stream* stream_of(peerlane_stream_t handle, int& code) noexcept {
  return g_streams.find(handle, kForeignContext, code);
}

}  // namespace pl

using pl::fail;
using pl::kNullPointer;
using pl::open_stream;
using pl::with_stream;

PL_EXPORT int peerlane_stream_open(const struct peerlane_stream_options* options, peerlane_stream_t* context) try {
  const pl::errno_keeper keeper;
  if (context == nullptr) return fail(EINVAL, kNullPointer);
  const auto given = pl::read_stream_options(options);
  if (!given) return fail(given.error());
  auto* const slot = pl::g_streams.reserve();
  if (slot == nullptr) return fail(ENFILE, "64 contexts are open: close one, or use one for all threads");
  auto made = pl::open_with(*given);
  pl::g_streams.publish(*slot, made ? made->release() : nullptr);
  if (!made) return fail(made.error());
  *context = slot;
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_stream_close(peerlane_stream_t context) {
  return with_stream(context, [&](open_stream& opened) {
    pl::g_streams.publish(*context, nullptr);
    delete &opened;
    return 0;
  });
}

PL_EXPORT int peerlane_stream_rank(peerlane_stream_t context) {
  int rank = -1;
  with_stream(context, [&](open_stream& opened) { return rank = opened.context->rank(), 0; });
  return rank;
}

PL_EXPORT int peerlane_stream_size(peerlane_stream_t context) {
  int size = -1;
  with_stream(context, [&](open_stream& opened) { return size = opened.context->size(), 0; });
  return size;
}

PL_EXPORT int peerlane_stream_query(peerlane_stream_t context, struct peerlane_stream_capabilities* capabilities) {
  if (capabilities == nullptr) return fail(EINVAL, kNullPointer);
  if (capabilities->struct_bytes < sizeof(size_t) + sizeof(int32_t))
    return fail(EINVAL, "capabilities->struct_bytes is not sizeof(struct peerlane_stream_capabilities)");
  return with_stream(context, [&](open_stream& opened) {
    const auto now = opened.context->query();
    const peerlane_stream_capabilities out{capabilities->struct_bytes, now.device_ordinal, now.has_cpu_mapping ? 1u : 0u,
                                           now.kernel_limit};
    std::memcpy(capabilities, &out, std::min(capabilities->struct_bytes, sizeof out));
    return 0;
  });
}

PL_EXPORT int peerlane_stream_set_mode(peerlane_stream_t context, uint32_t mode) {
  if (mode > PEERLANE_STREAM_ECONOMY) return fail(EINVAL, pl::kNoMode);
  return with_stream(context, [&](open_stream& opened) {
    opened.context->set_mode(static_cast<pl::triggered::run_mode>(mode));
    return 0;
  });
}

PL_EXPORT int peerlane_stream_all_gather(peerlane_stream_t context, const void* mine, size_t bytes, void* all) {
  if ((mine == nullptr || all == nullptr) && bytes != 0) return fail(EINVAL, kNullPointer);
  return with_stream(context,
                     [&](open_stream& opened) { return pl::all_gather_equal(*opened.bootstrap, mine, bytes, all); });
}

PL_EXPORT int peerlane_stream_diag(peerlane_stream_t context, char* text, size_t capacity, size_t* needed) {
  if (text == nullptr && capacity != 0) return fail(EINVAL, kNullPointer);
  return with_stream(context,
                     [&](open_stream& opened) { return pl::give_text(opened.context->diag(), text, capacity, needed); });
}
