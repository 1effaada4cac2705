// SPDX-License-Identifier: Apache-2.0
// Windows, channels and batches of a stream context behind checked numbers. The contract is in peerlane/triggered.h.
#include "capi/open_triggered.hpp"
#include "cuda/pointer.hpp"

namespace {

using pl::cuda_stream;
using pl::fail;
using pl::kNullPointer;
using pl::open_triggered;
using pl::return_code;
using pl::with_triggered;
namespace triggered = pl::triggered;
using std::chrono::milliseconds;

constexpr const char* kNoChannel = "the channel is not live: closed already, or of another context";
constexpr const char* kNoBatch = "the batch is not live: submitted already, or of another context";
constexpr const char* kNoWindow = "the window is not live: ended already, or of another context";
constexpr const char* kTooMany = "4 million objects of this context have not been ended: end some";

constexpr const char* kHostMemory = "the buffer is host memory: give device memory (peerlane_device_buffer)";

bool may_be_device(const peerlane_buffer& buffer) {
  return buffer.memory == PEERLANE_MEMORY_DEVICE || buffer.memory == PEERLANE_MEMORY_ANY;
}

// Asks the driver about a source whose kind its caller does not know.
pl::status check_source(const pl::cu::driver_table& cuda, const peerlane_buffer& source) {
  if (source.memory == PEERLANE_MEMORY_DEVICE || source.size_bytes == 0) return {};
  const auto found = pl::cu::find_device_memory(cuda, source.address);
  if (!found) return pl::failure{EINVAL, kHostMemory};
  if (found->allocation.contains({source.address, source.size_bytes})) return {};
  return pl::failure{EINVAL, "the source leaves its allocation of GPU memory"};
}

// Packs the bytes of a key; the rest is 0.
struct packed_key {
  static constexpr std::uint32_t kMagic = 0x504c534b, kVersion = 1;
  std::uint32_t magic = kMagic;
  std::uint32_t version = kVersion;
  triggered::window_key key;
};
static_assert(sizeof(packed_key) <= sizeof(peerlane_triggered_key));
static_assert(std::is_trivially_copyable_v<packed_key>);

// Stores the object and returns its number.
template <class Object>
int keep(pl::slot_table<std::unique_ptr<Object>>& table, std::unique_ptr<Object> made, std::uint64_t* number) {
  const auto given = table.add(std::move(made));
  if (given == 0) return fail(EAGAIN, kTooMany);
  *number = given;
  return 0;
}

template <class Act>
int with_channel(peerlane_triggered_t context, peerlane_channel_t number, Act&& act) {
  return with_triggered(context, [&](open_triggered& opened) {
    const auto* const found = opened.channels.find(number);
    return found != nullptr ? act(opened, **found) : fail(EINVAL, kNoChannel);
  });
}

// Returns the outcome, and writes a number that the caller may not need.
int return_code(const pl::result<std::uint64_t>& outcome, std::uint64_t* number) {
  if (!outcome) return fail(outcome.error());
  if (number != nullptr) *number = *outcome;
  return 0;
}

pl::result<triggered::channel_options> channel_options_from(const peerlane_channel_options* options) {
  peerlane_channel_options given{};
  if (options != nullptr) {
    if (options->struct_bytes < sizeof(size_t) + sizeof(uint32_t))
      return pl::failure{EINVAL, "options->struct_bytes is not sizeof(struct peerlane_channel_options)"};
    std::memcpy(&given, options, std::min(options->struct_bytes, sizeof given));
  }
  if (given.executor > PEERLANE_EXECUTOR_DMA) return pl::failure{EINVAL, "executor is not one of PEERLANE_EXECUTOR_*"};
  if (given.wait_method > PEERLANE_WAIT_KERNEL) return pl::failure{EINVAL, "wait_method is not one of PEERLANE_WAIT_*"};
  triggered::channel_options out;
  out.executor = static_cast<triggered::executor_kind>(given.executor);
  out.wait = static_cast<triggered::wait_method>(given.wait_method);
  out.depth = given.depth;
  if (given.max_queued != 0) out.most_queued = given.max_queued;
  if (given.wait_timeout_ms > 0) out.wait_timeout = pl::limit_of(given.wait_timeout_ms);
  if (given.wait_timeout_ms < 0) out.wait_timeout = milliseconds(0);
  return out;
}

bool is_op(const peerlane_word_op& op) {
  if (op.kind == PEERLANE_WORD_FLUSH) return true;
  const bool is_wait = op.kind == PEERLANE_WORD_WAIT64 || op.kind == PEERLANE_WORD_WAIT32;
  const bool is_32 = op.kind == PEERLANE_WORD_WRITE32 || op.kind == PEERLANE_WORD_WAIT32;
  return op.kind < PEERLANE_WORD_FLUSH && op.address != 0 && op.address % (is_32 ? 4 : 8) == 0 &&
         op.condition <= (is_wait ? PEERLANE_NOR : 0) && (!is_32 || op.value <= UINT32_MAX);
}

void add_op(triggered::mem_ops& ops, const peerlane_word_op& op) {
  const auto condition = static_cast<triggered::wait_until>(op.condition);
  switch (op.kind) {
    case PEERLANE_WORD_WRITE64:
      ops.write64(op.address, op.value);
      break;
    case PEERLANE_WORD_WAIT64:
      ops.wait64(op.address, op.value, condition);
      break;
    case PEERLANE_WORD_WRITE32:
      ops.write32(op.address, static_cast<std::uint32_t>(op.value));
      break;
    case PEERLANE_WORD_WAIT32:
      ops.wait32(op.address, static_cast<std::uint32_t>(op.value), condition);
      break;
    default:
      ops.flush();
  }
}

}  // namespace

// ---- Windows

PL_EXPORT int peerlane_triggered_expose(peerlane_triggered_t context, struct peerlane_buffer buffer,
                                        peerlane_exposed_t* window, struct peerlane_triggered_key* key) {
  if (window == nullptr || key == nullptr) return fail(EINVAL, kNullPointer);
  if (!may_be_device(buffer)) return fail(EINVAL, kHostMemory);
  return with_triggered(context, [&](open_triggered& opened) {
    const auto made = opened.context->expose(buffer.address, buffer.size_bytes);
    if (!made) return fail(made.error());
    if (const int code = keep(opened.exposed, std::make_unique<triggered::window_key>(*made), window)) {
      opened.context->withdraw(*made);
      return code;
    }
    packed_key packed;
    packed.key = *made;
    *key = {};
    std::memcpy(key->bytes, &packed, sizeof packed);
    return 0;
  });
}

PL_EXPORT int peerlane_triggered_release_window(peerlane_triggered_t context, peerlane_exposed_t window) {
  return with_triggered(context, [&](open_triggered& opened) {
    const auto taken = opened.exposed.take(window);
    if (taken == nullptr) return fail(EINVAL, kNoWindow);
    opened.context->withdraw(*taken);
    return 0;
  });
}

PL_EXPORT int peerlane_triggered_import(peerlane_triggered_t context, const struct peerlane_triggered_key* key,
                                        peerlane_remote_t* remote) {
  if (key == nullptr || remote == nullptr) return fail(EINVAL, kNullPointer);
  return with_triggered(context, [&](open_triggered& opened) {
    packed_key packed;
    std::memcpy(&packed, key->bytes, sizeof packed);
    if (packed.magic != packed_key::kMagic) return fail(EINVAL, "not a key: give what peerlane_triggered_expose wrote");
    if (packed.version != packed_key::kVersion) return fail(EPROTO, "the key is from another version of Peerlane");
    const auto found = opened.context->import(packed.key);
    if (!found) return fail(found.error());
    return keep(opened.remote, std::make_unique<triggered::remote_window>(*found), remote);
  });
}

PL_EXPORT int peerlane_triggered_release_remote(peerlane_triggered_t context, peerlane_remote_t remote) {
  return with_triggered(
      context, [&](open_triggered& opened) { return opened.remote.take(remote) != nullptr ? 0 : fail(EINVAL, kNoWindow); });
}

// ---- Channels

PL_EXPORT int peerlane_channel_connect(peerlane_triggered_t context, int peer, uint32_t id,
                                       const struct peerlane_channel_options* options, peerlane_channel_t* channel) {
  if (channel == nullptr) return fail(EINVAL, kNullPointer);
  return with_triggered(context, [&](open_triggered& opened) {
    const auto wanted = channel_options_from(options);
    if (!wanted) return fail(wanted.error());
    auto made = opened.context->connect(peer, id, *wanted);
    return made ? keep(opened.channels, *std::move(made), channel) : fail(made.error());
  });
}

PL_EXPORT int peerlane_channel_ready(peerlane_triggered_t context, peerlane_channel_t channel, int64_t timeout_ms) {
  return with_channel(context, channel, [&](open_triggered&, triggered::channel& end) {
    return return_code(end.ready(pl::limit_of(timeout_ms)));
  });
}

PL_EXPORT int peerlane_channel_close(peerlane_triggered_t context, peerlane_channel_t channel) {
  return with_triggered(context, [&](open_triggered& opened) {
    std::unique_ptr<triggered::channel> taken;  // ends outside of the lock
    const std::lock_guard lock(opened.channel_ends);
    taken = opened.channels.take(channel);
    return taken != nullptr ? 0 : fail(EINVAL, kNoChannel);
  });
}

PL_EXPORT int peerlane_channel_put_signal(peerlane_triggered_t context, peerlane_channel_t channel, void* stream,
                                          peerlane_remote_t remote, uint64_t offset_bytes, struct peerlane_buffer source,
                                          uint64_t* sequence) {
  if (!may_be_device(source)) return fail(EINVAL, kHostMemory);
  return with_channel(context, channel, [&](open_triggered& opened, triggered::channel& end) {
    const auto* const window = opened.remote.find(remote);
    if (window == nullptr) return fail(EINVAL, kNoWindow);
    if (auto valid = check_source(*opened.cuda, source); !valid) return fail(valid.error());
    return return_code(end.put_signal(cuda_stream(stream), **window, offset_bytes, source.address, source.size_bytes),
                       sequence);
  });
}

PL_EXPORT int peerlane_channel_signal(peerlane_triggered_t context, peerlane_channel_t channel, void* stream,
                                      uint64_t* sequence) {
  return with_channel(context, channel, [&](open_triggered&, triggered::channel& end) {
    return return_code(end.signal(cuda_stream(stream)), sequence);
  });
}

PL_EXPORT int peerlane_channel_wait_signal(peerlane_triggered_t context, peerlane_channel_t channel, void* stream,
                                           uint64_t sequence, uint64_t* waited) {
  return with_channel(context, channel, [&](open_triggered&, triggered::channel& end) {
    if (sequence == 0) return return_code(end.wait_signal(cuda_stream(stream)), waited);
    if (const auto queued = end.wait_signal(cuda_stream(stream), sequence); !queued) return fail(queued.error());
    if (waited != nullptr) *waited = sequence;
    return 0;
  });
}

PL_EXPORT int peerlane_channel_release(peerlane_triggered_t context, peerlane_channel_t channel, void* stream,
                                       uint64_t sequence) {
  return with_channel(context, channel, [&](open_triggered&, triggered::channel& end) {
    return return_code(end.release(cuda_stream(stream), sequence));
  });
}

PL_EXPORT int peerlane_channel_arrived(peerlane_triggered_t context, peerlane_channel_t channel, uint64_t sequence,
                                       int* has_arrived) {
  if (has_arrived == nullptr) return fail(EINVAL, kNullPointer);
  return with_channel(context, channel, [&](open_triggered&, triggered::channel& end) {
    const auto found = end.arrived(sequence);
    if (!found) return fail(found.error());
    *has_arrived = *found ? 1 : 0;
    return 0;
  });
}

PL_EXPORT int peerlane_channel_host_wait(peerlane_triggered_t context, peerlane_channel_t channel, uint64_t sequence,
                                         int64_t timeout_ms) {
  return with_triggered(context, [&](open_triggered& opened) {
    const triggered::channel* end = nullptr;
    {
      const std::lock_guard lock(opened.channel_ends);
      const auto* const found = opened.channels.find(channel);
      if (found == nullptr) return fail(EINVAL, kNoChannel);
      end = found->get();
      end->hold();
    }
    const auto done = end->host_wait(sequence, pl::limit_of(timeout_ms));
    end->drop();
    return return_code(done);
  });
}

PL_EXPORT int peerlane_channel_cancel(peerlane_triggered_t context, peerlane_channel_t channel, int code) {
  if (code < 0) return fail(EINVAL, "code is negative: give a positive errno value, or 0 for ECANCELED");
  return with_channel(context, channel, [&](open_triggered&, triggered::channel& end) { return end.cancel(code), 0; });
}

PL_EXPORT int peerlane_channel_get_state(peerlane_triggered_t context, peerlane_channel_t channel,
                                         struct peerlane_channel_state* state) {
  if (state == nullptr) return fail(EINVAL, kNullPointer);
  if (state->struct_bytes < sizeof(size_t) + sizeof(uint64_t))
    return fail(EINVAL, "state->struct_bytes is not sizeof(struct peerlane_channel_state)");
  return with_channel(context, channel, [&](open_triggered&, triggered::channel& end) {
    const auto now = end.state();
    const peerlane_channel_state out{
        state->struct_bytes, static_cast<uint32_t>(now.executor), now.error, now.puts, now.sent, now.waits, now.reached,
        now.passed};
    std::memcpy(state, &out, std::min(state->struct_bytes, sizeof out));
    return 0;
  });
}

PL_EXPORT int peerlane_channel_diag(peerlane_triggered_t context, peerlane_channel_t channel, char* text, size_t capacity,
                                    size_t* needed) {
  if (text == nullptr && capacity != 0) return fail(EINVAL, kNullPointer);
  return with_channel(context, channel, [&](open_triggered&, triggered::channel& end) {
    return pl::give_text(end.diag(), text, capacity, needed);
  });
}

// ---- Words on a stream

PL_EXPORT int peerlane_batch_begin(peerlane_triggered_t context, void* stream, peerlane_batch_t* batch) {
  if (batch == nullptr) return fail(EINVAL, kNullPointer);
  return with_triggered(context, [&](open_triggered& opened) {
    return keep(opened.batches, std::make_unique<triggered::mem_ops>(*opened.cuda, cuda_stream(stream)), batch);
  });
}

PL_EXPORT int peerlane_batch_add(peerlane_triggered_t context, peerlane_batch_t batch,
                                 const struct peerlane_word_op* operations, size_t count) {
  if (operations == nullptr && count != 0) return fail(EINVAL, kNullPointer);
  return with_triggered(context, [&](open_triggered& opened) {
    const auto* const found = opened.batches.find(batch);
    if (found == nullptr) return fail(EINVAL, kNoBatch);
    if (!std::all_of(operations, operations + count, is_op))
      return fail(EINVAL,
                  "an operation is invalid: check its kind, condition and alignment, and the upper half of 32-bit values");
    for (size_t i = 0; i < count; ++i) add_op(**found, operations[i]);
    return 0;
  });
}

PL_EXPORT int peerlane_batch_submit(peerlane_triggered_t context, peerlane_batch_t batch) {
  return with_triggered(context, [&](open_triggered& opened) {
    const auto taken = opened.batches.take(batch);
    return taken != nullptr ? return_code(taken->submit()) : fail(EINVAL, kNoBatch);
  });
}

PL_EXPORT int peerlane_batch_release(peerlane_triggered_t context, peerlane_batch_t batch) {
  return with_triggered(
      context, [&](open_triggered& opened) { return opened.batches.take(batch) != nullptr ? 0 : fail(EINVAL, kNoBatch); });
}
