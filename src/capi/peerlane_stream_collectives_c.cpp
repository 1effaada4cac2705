// SPDX-License-Identifier: Apache-2.0
// Collectives on streams behind checked numbers. The contract is in peerlane/stream_collectives.h.
#include <peerlane/stream_collectives.h>

#include "capi/open_triggered.hpp"

namespace {

using pl::cuda_stream;
using pl::fail;
using pl::kNullPointer;
using pl::open_triggered;
using pl::with_triggered;
using pl::collectives::stream_collectives;
using pl::collectives::stream_collectives_options;
using pl::collectives::summation;

constexpr const char* kNone = "the collectives are not live: closed already, or of another context";
constexpr const char* kHostSide = "a buffer is host memory: give this GPU's (peerlane_device_buffer)";
constexpr const char* kSizes = "source and destination do not have the sizes that the call names";

pl::result<stream_collectives_options> options_from(const peerlane_stream_collectives_options* options) {
  peerlane_stream_collectives_options given{};
  if (options != nullptr) {
    if (options->struct_bytes < sizeof(size_t) + sizeof(uint32_t))
      return pl::failure{EINVAL, "options->struct_bytes is not sizeof(struct peerlane_stream_collectives_options)"};
    std::memcpy(&given, options, std::min(options->struct_bytes, sizeof given));
  }
  if (given.reserved != 0) return pl::failure{EINVAL, "reserved must be 0"};
  constexpr uint64_t kMaxChunkBytes = 64 << 20;
  if (given.blocks > pl::collectives::kMaxStreamBlocks) return pl::failure{EINVAL, "blocks: at most 128"};
  if (given.chunk_size_bytes > kMaxChunkBytes) return pl::failure{EINVAL, "chunk_size_bytes: at most 64 MiB"};
  stream_collectives_options out;
  out.blocks = given.blocks;
  out.slot_bytes = given.chunk_size_bytes;
  if (given.timeout_ms > 0) out.timeout_ns = std::chrono::nanoseconds(pl::limit_of(given.timeout_ms)).count();
  if (given.timeout_ms < 0) out.timeout_ns = 0;
  return out;
}

template <class Act>
int with_collectives(peerlane_triggered_t context, peerlane_stream_collectives_t number, Act&& act) {
  return with_triggered(context, [&](open_triggered& opened) {
    const auto* const found = opened.collectives.find(number);
    return found != nullptr ? pl::return_code(act(**found)) : fail(EINVAL, kNone);
  });
}

bool is_host(const peerlane_buffer& buffer) {
  return buffer.memory != PEERLANE_MEMORY_DEVICE && buffer.memory != PEERLANE_MEMORY_ANY;
}

// For each call with two buffers: calls act(collectives).
template <class Act>
int with_buffers(peerlane_triggered_t context, peerlane_stream_collectives_t number, const peerlane_buffer& source,
                 const peerlane_buffer& destination, Act&& act) {
  if (is_host(source) || is_host(destination)) return fail(EINVAL, kHostSide);
  return with_collectives(context, number, act);
}

bool is_block_of(size_t block, size_t whole, const stream_collectives& all) {
  const auto ranks = static_cast<size_t>(all.size());
  return whole % ranks == 0 && whole / ranks == block;
}

pl::result<summation> terms_from(uint32_t type, uint32_t reduction) {
  if (type >= pl::collectives::kElements) return pl::failure{EINVAL, "type is not a value of enum peerlane_element"};
  if (reduction >= pl::collectives::kReductions)
    return pl::failure{EINVAL, "reduction is not a value of enum peerlane_reduction"};
  return summation{static_cast<pl::collectives::element>(type), static_cast<pl::collectives::reduction>(reduction)};
}

const pl::failure kWrongSizes{EINVAL, kSizes};

}  // namespace

PL_EXPORT int peerlane_stream_collectives_open(peerlane_triggered_t context,
                                               const struct peerlane_stream_collectives_options* options,
                                               peerlane_stream_collectives_t* collectives) {
  if (collectives == nullptr) return fail(EINVAL, kNullPointer);
  return with_triggered(context, [&](open_triggered& opened) {
    auto made = stream_collectives::open(*opened.context, *opened.bootstrap, options_from(options));
    if (!made) return fail(made.error());
    const auto number = opened.collectives.add(*std::move(made));
    if (number == 0) return fail(EAGAIN, "4 million objects of this context have not been ended: end some");
    *collectives = number;
    return 0;
  });
}

PL_EXPORT int peerlane_stream_collectives_close(peerlane_triggered_t context, peerlane_stream_collectives_t collectives) {
  return with_triggered(context, [&](open_triggered& opened) {
    const auto taken = opened.collectives.take(collectives);
    return taken != nullptr ? pl::return_code(taken->close()) : fail(EINVAL, kNone);
  });
}

PL_EXPORT int peerlane_stream_collectives_release(peerlane_triggered_t context, peerlane_stream_collectives_t collectives) {
  return with_triggered(context, [&](open_triggered& opened) {
    return opened.collectives.take(collectives) != nullptr ? 0 : fail(EINVAL, kNone);
  });
}

PL_EXPORT int peerlane_stream_collectives_state(peerlane_triggered_t context, peerlane_stream_collectives_t collectives) {
  return with_collectives(context, collectives, [](stream_collectives& all) { return all.state(); });
}

PL_EXPORT int peerlane_stream_collectives_cancel(peerlane_triggered_t context, peerlane_stream_collectives_t collectives,
                                                 int code) {
  if (code < 0) return fail(EINVAL, "code is negative: give a positive errno value, or 0 for ECANCELED");
  return with_collectives(context, collectives, [&](stream_collectives& all) {
    all.cancel(code);
    return pl::status();
  });
}

PL_EXPORT int peerlane_stream_all_reduce(peerlane_triggered_t context, peerlane_stream_collectives_t collectives,
                                         void* stream, struct peerlane_buffer source, struct peerlane_buffer destination,
                                         uint32_t type, uint32_t reduction) {
  return with_buffers(context, collectives, source, destination, [&](stream_collectives& all) -> pl::status {
    const auto terms = terms_from(type, reduction);
    if (!terms) return terms.error();
    if (source.size_bytes != destination.size_bytes) return kWrongSizes;
    return all.all_reduce(cuda_stream(stream), source.address, destination.address, source.size_bytes, *terms);
  });
}

PL_EXPORT int peerlane_stream_reduce_scatter(peerlane_triggered_t context, peerlane_stream_collectives_t collectives,
                                             void* stream, struct peerlane_buffer source, struct peerlane_buffer destination,
                                             uint32_t type, uint32_t reduction) {
  return with_buffers(context, collectives, source, destination, [&](stream_collectives& all) -> pl::status {
    const auto terms = terms_from(type, reduction);
    if (!terms) return terms.error();
    if (!is_block_of(destination.size_bytes, source.size_bytes, all)) return kWrongSizes;
    return all.reduce_scatter(cuda_stream(stream), source.address, destination.address, destination.size_bytes, *terms);
  });
}

PL_EXPORT int peerlane_stream_all_gather(peerlane_triggered_t context, peerlane_stream_collectives_t collectives,
                                         void* stream, struct peerlane_buffer source, struct peerlane_buffer destination) {
  return with_buffers(context, collectives, source, destination, [&](stream_collectives& all) -> pl::status {
    if (!is_block_of(source.size_bytes, destination.size_bytes, all)) return kWrongSizes;
    return all.all_gather(cuda_stream(stream), source.address, destination.address, source.size_bytes);
  });
}

PL_EXPORT int peerlane_stream_all_to_all(peerlane_triggered_t context, peerlane_stream_collectives_t collectives,
                                         void* stream, struct peerlane_buffer source, struct peerlane_buffer destination) {
  return with_buffers(context, collectives, source, destination, [&](stream_collectives& all) -> pl::status {
    const size_t block = source.size_bytes / static_cast<size_t>(all.size());
    if (source.size_bytes != destination.size_bytes || !is_block_of(block, source.size_bytes, all)) return kWrongSizes;
    return all.all_to_all(cuda_stream(stream), source.address, destination.address, block);
  });
}

PL_EXPORT int peerlane_stream_barrier(peerlane_triggered_t context, peerlane_stream_collectives_t collectives,
                                      void* stream) {
  return with_collectives(context, collectives, [&](stream_collectives& all) { return all.barrier(cuda_stream(stream)); });
}
