// SPDX-License-Identifier: Apache-2.0
// The collectives as calls: arguments checked, memory located, an algorithm chosen and its schedule made.
#include <algorithm>

#include "base/log.hpp"
#include "base/text.hpp"
#include "collectives/executor.hpp"
#include "collectives/overlap.hpp"
#include "collectives/running.hpp"
#include "cuda/pointer.hpp"

namespace pl::collectives {
namespace {

using messaging::buffer;
using messaging::memory_kind;

bool overlaps(const buffer& first, const buffer& second) noexcept {
  return collectives::overlaps(first.address, first.bytes, second.address, second.bytes);
}

// Whole elements, the same number in both.
status check_elements(const buffer& source, std::size_t destination_bytes, const summation& terms) {
  const std::size_t bytes = size_of(terms.type);
  if (source.bytes % bytes != 0)
    return failure{EINVAL, format("%zu bytes are not a whole number of %s elements of %zu bytes", source.bytes,
                                  name_of(terms.type), bytes)};
  if (source.bytes != destination_bytes)
    return failure{EINVAL, format("the source has %zu bytes and the destination %zu: their sizes must be equal",
                                  source.bytes, destination_bytes)};
  return {};
}

// A block of each rank on the side of all.
status check_blocks(std::size_t block_bytes, std::size_t all_bytes, int size) {
  if (block_bytes > SIZE_MAX / static_cast<std::size_t>(size) || block_bytes * static_cast<std::size_t>(size) != all_bytes)
    return failure{EINVAL, format("%zu bytes for %d blocks of %zu: the side of all ranks has one block for each", all_bytes,
                                  size, block_bytes)};
  return {};
}

status check_list(const executor::blocks& list, std::size_t room_bytes, int size, const char* side) {
  const auto ranks = static_cast<std::size_t>(size);
  if (list.bytes.size() != ranks || list.offsets.size() != ranks)
    return failure{EINVAL, format("%s: a length and an offset for each of the %d ranks are needed", side, size)};
  for (std::size_t i = 0; i < ranks; ++i)
    if (list.offsets[i] > room_bytes || list.bytes[i] > room_bytes - list.offsets[i])
      return failure{EINVAL, format("%s: the block of rank %zu, %zu bytes from %zu on, leaves the buffer of %zu", side, i,
                                    list.bytes[i], list.offsets[i], room_bytes)};
  return {};
}

}  // namespace

result<place> executor::locate(const buffer& memory) {
  if (memory.bytes > UINT64_MAX - memory.address) return failure{EINVAL, "a buffer extends beyond the last address"};
  if (memory.bytes == 0 || memory.kind == memory_kind::host) {
    if (memory.bytes != 0 && memory.address == 0) return failure{EINVAL, "a buffer of some bytes has the address 0"};
    return place{memory.address, memory_kind::host};
  }
  auto is_device = messages_.is_device_memory(memory);
  if (!is_device) return std::move(is_device).error();
  return place{memory.address, *is_device ? memory_kind::device : memory_kind::host};
}

result<std::pair<place, place>> executor::locate(const buffer& source, const buffer& destination) {
  auto first = locate(source);
  if (!first) return std::move(first).error();
  auto second = locate(destination);
  if (!second) return std::move(second).error();
  return std::pair(*first, *second);
}

status executor::check_root(int root) const {
  if (root >= 0 && root < own_.size) return {};
  return failure{EINVAL, format("root %d: ranks go from 0 to %d", root, own_.size - 1)};
}

// Those with blocks in host memory between would copy each block out of the GPU and back.
algorithm executor::choose(collective kind, std::size_t bytes, bool is_device) const {
  const auto chosen = table_.choose(kind, own_.size, bytes);
  if (!is_device) return chosen;
  if (chosen == algorithm::bruck) return kind == collective::all_gather ? algorithm::ring : algorithm::pairwise;
  if (chosen == algorithm::binomial && kind != collective::broadcast) return algorithm::linear;
  return chosen;
}

result<operation> executor::barrier() {
  auto one = prepare(collective::barrier);
  if (!one) return std::move(one).error();
  plan_barrier((*one)->steps, own_);
  return begin(**one);
}

result<operation> executor::broadcast(const buffer& data, int root) {
  if (auto done = check_root(root); !done) return std::move(done).error();
  auto memory = locate(data);
  if (!memory) return std::move(memory).error();
  auto one = prepare(collective::broadcast);
  if (!one) return std::move(one).error();
  plan_broadcast((*one)->steps, own_, choose(collective::broadcast, data.bytes, memory->is_device()), *memory, data.bytes,
                 root);
  return begin(**one);
}

// Gather, scatter, all_gather: one side has the blocks of all ranks, the other one this rank's.
result<operation> executor::begin_move(collective kind, const buffer& source, const buffer& destination, int root,
                                       std::size_t bytes) {
  auto memory = locate(source, destination);
  if (!memory) return std::move(memory).error();
  const auto [input, output] = *memory;
  const bool is_scatter = kind == collective::scatter;
  const place whole = is_scatter ? input : output, block = is_scatter ? output : input;
  const bool is_in_place = block == whole + static_cast<std::size_t>(own_.rank) * bytes;
  if (!is_in_place && overlaps(source, destination)) return overlap_failure();
  auto one = prepare(kind);
  if (!one) return std::move(one).error();
  auto& steps = (*one)->steps;
  const auto chosen = choose(kind, bytes, input.is_device() || output.is_device());
  if (kind == collective::gather) plan_gather(steps, own_, chosen, input, output, bytes, root);
  else if (is_scatter) plan_scatter(steps, own_, chosen, input, output, bytes, root);
  else plan_all_gather(steps, own_, chosen, input, output, bytes);
  return begin(**one);
}

result<operation> executor::gather(const buffer& source, const buffer& destination, int root) {
  if (auto done = check_root(root); !done) return std::move(done).error();
  if (own_.rank != root) return begin_move(collective::gather, source, {}, root, source.bytes);
  if (auto done = check_blocks(source.bytes, destination.bytes, own_.size); !done) return std::move(done).error();
  return begin_move(collective::gather, source, destination, root, source.bytes);
}

result<operation> executor::scatter(const buffer& source, const buffer& destination, int root) {
  if (auto done = check_root(root); !done) return std::move(done).error();
  if (own_.rank != root) return begin_move(collective::scatter, {}, destination, root, destination.bytes);
  if (auto done = check_blocks(destination.bytes, source.bytes, own_.size); !done) return std::move(done).error();
  return begin_move(collective::scatter, source, destination, root, destination.bytes);
}

result<operation> executor::all_gather(const buffer& source, const buffer& destination) {
  if (auto done = check_blocks(source.bytes, destination.bytes, own_.size); !done) return std::move(done).error();
  return begin_move(collective::all_gather, source, destination, 0, source.bytes);
}

device_combiner* executor::combiner_for(place source, place destination, std::size_t bytes, std::size_t width) {
  const bool is_one_kind = source.is_device() && (destination.is_device() || destination.address == 0);
  if (!is_one_kind || (source.address | destination.address) % width != 0) return nullptr;
  // Up to here the CPU is quicker with the copies in and out than a kernel with its start. Where processes share a GPU, it
  // has to turn from one to the other for each kernel: 0.3 ms on an H200. That question takes the messenger's lock, so it
  // comes last.
  constexpr std::size_t kMaxCpuBytes = 32 << 10, kMaxCpuBytesOfSharedGpu = 1 << 20;
  if (bytes <= kMaxCpuBytes || (bytes <= kMaxCpuBytesOfSharedGpu && messages_.is_gpu_shared())) return nullptr;
  const auto cuda = cu::driver();
  if (!cuda) return nullptr;
  const auto found = cu::find_device_memory(**cuda, source.address);
  if (!found) return nullptr;
  if (destination.address != 0) {
    const auto other = cu::find_device_memory(**cuda, destination.address);
    if (!other || other->device_ordinal != found->device_ordinal) return nullptr;
  }
  const std::lock_guard lock(mutex_);
  for (const auto& each : combiners_)
    if (each->device_ordinal() == found->device_ordinal) return each.get();
  if (has_no_combiner_) return nullptr;
  const auto gpu = copy::find_context(**cuda, found->device_ordinal, found->context);
  auto made = gpu ? device_combiner::open(*gpu) : result<std::unique_ptr<device_combiner>>(gpu.error());
  if (!made) {
    PL_LOG(warn, "collectives: reductions of GPU memory go through the CPU: %s", made.error().message.c_str());
    has_no_combiner_ = true;
    return nullptr;
  }
  return combiners_.emplace_back(*std::move(made)).get();
}

template <class Plan>
result<operation> executor::begin_reduction(collective kind, std::pair<place, place> memory, std::size_t source_bytes,
                                            std::size_t result_bytes, const summation& terms, Plan&& plan) {
  auto [input, output] = memory;
  auto* const combiner = combiner_for(input, output, source_bytes, size_of(terms.type));
  auto one = prepare(kind);
  if (!one) return std::move(one).error();
  auto& steps = (*one)->steps;
  place target = output;
  std::unique_lock lock(mutex_);  // of the combiner
  if (combiner != nullptr) {
    steps.use_device(combiner);
  } else {
    if (input.is_device()) input = steps.copy_of(own_.rank, input, source_bytes);
    if (output.is_device()) target = steps.scratch(result_bytes);
  }
  plan(steps, input, target);
  if (!steps.problem()) {
    const auto reason = steps.problem().error();
    recycle(**one);
    return reason;
  }
  lock.unlock();
  if (target != output && result_bytes != 0) {
    steps.wait_all();
    steps.copy(own_.rank, output, target, result_bytes);
  }
  return begin(**one);
}

result<operation> executor::reduce(const buffer& source, const buffer& destination, summation terms, int root) {
  if (auto done = check_root(root); !done) return std::move(done).error();
  const bool is_root = own_.rank == root;
  if (auto done = check_elements(source, is_root ? destination.bytes : source.bytes, terms); !done)
    return std::move(done).error();
  auto memory = locate(source, is_root ? destination : buffer{});
  if (!memory) return std::move(memory).error();
  auto [input, output] = *memory;
  if (is_root && input != output && overlaps(source, destination)) return overlap_failure();
  // Elsewhere than at the root there is no result; its place is one of the source's kind.
  if (!is_root) output = {0, input.kind};
  return begin_reduction(collective::reduce, {input, output}, source.bytes, is_root ? source.bytes : 0, terms,
                         [&](schedule& steps, place operand, place result) {
                           plan_reduce(steps, own_, table_.choose(collective::reduce, own_.size, source.bytes), terms,
                                       operand, result, source.bytes / size_of(terms.type), root);
                         });
}

result<operation> executor::all_reduce(const buffer& source, const buffer& destination, summation terms) {
  if (auto done = check_elements(source, destination.bytes, terms); !done) return std::move(done).error();
  auto memory = locate(source, destination);
  if (!memory) return std::move(memory).error();
  auto [input, output] = *memory;
  if (input != output && overlaps(source, destination)) return overlap_failure();
  return begin_reduction(collective::all_reduce, *memory, source.bytes, source.bytes, terms,
                         [&](schedule& steps, place operand, place result) {
                           plan_all_reduce(steps, own_, table_.choose(collective::all_reduce, own_.size, source.bytes),
                                           terms, operand, result, source.bytes / size_of(terms.type));
                         });
}

result<operation> executor::reduce_scatter(const buffer& source, const buffer& destination,
                                           std::span<const std::size_t> counts, summation terms) {
  const std::size_t width = size_of(terms.type);
  if (counts.size() != static_cast<std::size_t>(own_.size))
    return failure{EINVAL, format("%zu counts for %d ranks: one for each is needed", counts.size(), own_.size)};
  const auto mine = counts.begin() + own_.rank;
  std::size_t total = 0, before = 0;
  for (auto one = counts.begin(); one != counts.end(); ++one) {
    if (one == mine) before = total;
    if (*one > SIZE_MAX / width - total)
      return failure{EINVAL, "the counts of the ranks are together more than any memory has"};
    total += *one;
  }
  if (auto done = check_elements(source, total * width, terms); !done) return std::move(done).error();
  if (destination.bytes != *mine * width)
    return failure{EINVAL,
                   format("the destination has %zu bytes, and this rank's block %zu", destination.bytes, *mine * width)};
  auto memory = locate(source, destination);
  if (!memory) return std::move(memory).error();
  auto [input, output] = *memory;
  if (output != input + before * width && overlaps(source, destination)) return overlap_failure();
  return begin_reduction(collective::reduce_scatter, *memory, source.bytes, destination.bytes, terms,
                         [&](schedule& steps, place operand, place result) {
                           plan_reduce_scatter(steps, own_, terms, operand, result, counts);
                         });
}

result<operation> executor::all_to_all(const buffer& source, const buffer& destination) {
  const auto ranks = static_cast<std::size_t>(own_.size);
  const std::size_t bytes = source.bytes / ranks;
  if (auto done = check_blocks(bytes, source.bytes, own_.size); !done) return std::move(done).error();
  if (source.bytes != destination.bytes)
    return failure{EINVAL, format("the source has %zu bytes and the destination %zu: their sizes must be equal",
                                  source.bytes, destination.bytes)};
  auto memory = locate(source, destination);
  if (!memory) return std::move(memory).error();
  auto [input, output] = *memory;
  const bool is_in_place = input == output && source.bytes != 0;
  if (!is_in_place && overlaps(source, destination)) return overlap_failure();
  auto one = prepare(collective::all_to_all);
  if (!one) return std::move(one).error();
  auto& steps = (*one)->steps;
  const auto chosen = choose(collective::all_to_all, bytes, input.is_device() || output.is_device());
  if (chosen == algorithm::bruck) {
    plan_bruck_all_to_all(steps, own_, input, output, bytes);
    return begin(**one);
  }
  if (is_in_place) input = steps.copy_of(own_.rank, input, source.bytes);
  const std::vector<std::size_t> lengths(ranks, bytes);
  std::vector<std::size_t> offsets(ranks);
  for (std::size_t i = 1; i < ranks; ++i) offsets[i] = offsets[i - 1] + bytes;
  plan_all_to_all_v(steps, own_, chosen, {input, lengths, offsets}, {output, lengths, offsets});
  return begin(**one);
}

result<operation> executor::all_to_all_v(const buffer& source, const blocks& sent, const buffer& destination,
                                         const blocks& received) {
  if (auto done = check_list(sent, source.bytes, own_.size, "source"); !done) return std::move(done).error();
  if (auto done = check_list(received, destination.bytes, own_.size, "destination"); !done) return std::move(done).error();
  const auto mine = static_cast<std::size_t>(own_.rank);
  if (sent.bytes[mine] != received.bytes[mine])
    return failure{EINVAL, format("this rank's own block has %zu bytes in the source and %zu in the destination",
                                  sent.bytes[mine], received.bytes[mine])};
  auto memory = locate(source, destination);
  if (!memory) return std::move(memory).error();
  auto [input, output] = *memory;
  const bool is_in_place = input == output && source.bytes == destination.bytes && source.bytes != 0;
  if (!is_in_place && overlaps(source, destination)) return overlap_failure();
  auto one = prepare(collective::all_to_all_v);
  if (!one) return std::move(one).error();
  auto& steps = (*one)->steps;
  if (is_in_place) input = steps.copy_of(own_.rank, input, source.bytes);
  // Ranks know their own lengths only, so the table's bytes do not choose here.
  plan_all_to_all_v(steps, own_, table_.choose(collective::all_to_all_v, own_.size, 0), {input, sent.bytes, sent.offsets},
                    {output, received.bytes, received.offsets});
  return begin(**one);
}

}  // namespace pl::collectives
