// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/collective_loop.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/clock.hpp"
#include "tools/p2p/pattern.hpp"

namespace pl::p2p {
namespace {

constexpr int kRoot = 0;
constexpr int kSamplesTag = kCollectiveTag + 1;

// Small whole numbers, so that a sum of many ranks is exact.
float number_of(int rank, std::size_t i, std::uint64_t iteration) {
  return static_cast<float>((i + 3 * static_cast<std::size_t>(rank) + iteration) % 17);
}

void append_floats(std::vector<std::uint8_t>& out, std::size_t count, const auto& value_at) {
  out.resize(count * sizeof(float));
  for (std::size_t i = 0; i < count; ++i) {
    const float value = value_at(i);
    std::memcpy(out.data() + i * sizeof value, &value, sizeof value);
  }
}

double mean_of(const std::vector<double>& values) {
  return values.empty() ? 0 : std::accumulate(values.begin(), values.end(), 0.0) / static_cast<double>(values.size());
}

}  // namespace

collective_loop::collective_loop(buffer_source& memory, benchmark kind, memory_kind place, std::size_t size_bytes, int rank,
                                 int ranks)
    : kind_(kind), bytes_(size_bytes), rank_(rank), ranks_(ranks) {
  const auto all = static_cast<std::size_t>(ranks);
  const std::size_t elements = size_bytes / sizeof(float);
  for (std::size_t i = 0; i < all; ++i) {
    counts_.push_back(elements / all + (i < elements % all ? 1 : 0));
    lengths_.push_back(size_bytes);
    offsets_.push_back(i * size_bytes);
  }
  const std::size_t most = std::max<std::size_t>(1, size_bytes * all);
  source_ = memory.allocate(place, most);
  destination_ = memory.allocate(place, most);
  source_->fill(1, most);
  destination_->fill(0, most);
}

void collective_loop::call(collective_calls& library) {
  const exchange memory{source_->data(), destination_->data(), source_->kind()};
  const std::size_t elements = bytes_ / sizeof(float);
  switch (kind_) {
    case benchmark::barrier:
      return library.barrier();
    case benchmark::broadcast:
      return library.broadcast(rank_ == kRoot ? source_->data() : destination_->data(), bytes_, memory.kind, kRoot);
    case benchmark::gather:
      return library.gather(memory, bytes_, kRoot);
    case benchmark::scatter:
      return library.scatter(memory, bytes_, kRoot);
    case benchmark::all_gather:
      return library.all_gather(memory, bytes_);
    case benchmark::reduce:
      return library.reduce(memory, elements, kRoot);
    case benchmark::all_reduce:
      return library.all_reduce(memory, elements);
    case benchmark::reduce_scatter:
      return library.reduce_scatter(memory, counts_);
    case benchmark::all_to_all:
      return library.all_to_all(memory, bytes_);
    case benchmark::all_to_all_v:
      return library.all_to_all_v(memory, lengths_, offsets_);
    default:
      return;
  }
}

// ---- Validation

// A rank's input: its blocks for all ranks, or its elements.
std::vector<std::uint8_t> collective_loop::source_bytes(int rank, std::uint64_t iteration) const {
  std::vector<std::uint8_t> out;
  if (has_elements(kind_)) {
    append_floats(out, bytes_ / sizeof(float), [&](std::size_t i) { return number_of(rank, i, iteration); });
  } else {
    out.resize(bytes_ * static_cast<std::size_t>(ranks_));
    fill_pattern(out, iteration + 5 * static_cast<std::uint64_t>(rank));
  }
  return out;
}

// What this rank must have afterwards; empty: nothing.
std::vector<std::uint8_t> collective_loop::expected_bytes(std::uint64_t iteration) const {
  std::vector<std::uint8_t> out;
  const auto add_block = [&](int source, int block) {
    const auto all = source_bytes(source, iteration);
    const auto begin = all.begin() + static_cast<std::ptrdiff_t>(bytes_ * static_cast<std::size_t>(block));
    out.insert(out.end(), begin, begin + static_cast<std::ptrdiff_t>(bytes_));
  };
  const bool is_rooted = kind_ == benchmark::gather || kind_ == benchmark::reduce;
  if (kind_ == benchmark::barrier || (is_rooted && rank_ != kRoot)) return out;
  if (kind_ == benchmark::broadcast) {
    if (rank_ != kRoot) add_block(kRoot, 0);
  } else if (kind_ == benchmark::scatter) {
    add_block(kRoot, rank_);
  } else if (kind_ == benchmark::gather || kind_ == benchmark::all_gather) {
    for (int source = 0; source < ranks_; ++source) add_block(source, 0);
  } else if (!has_elements(kind_)) {
    for (int source = 0; source < ranks_; ++source) add_block(source, rank_);
  } else {
    const bool is_part = kind_ == benchmark::reduce_scatter;
    const auto mine = counts_.begin() + rank_;
    const std::size_t begin = is_part ? std::accumulate(counts_.begin(), mine, std::size_t{0}) : 0;
    append_floats(out, is_part ? *mine : bytes_ / sizeof(float), [&](std::size_t i) {
      float sum = 0;
      for (int rank = 0; rank < ranks_; ++rank) sum += number_of(rank, begin + i, iteration);
      return sum;
    });
  }
  return out;
}

void collective_loop::prepare(std::uint64_t iteration) {
  source_->store(source_bytes(rank_, iteration));
  auto wrong = expected_bytes(iteration);  // nothing that was here before may pass
  for (auto& one : wrong) one = static_cast<std::uint8_t>(~one);
  destination_->store(wrong);
}

std::int64_t collective_loop::verify(std::uint64_t iteration) const {
  const auto expected = expected_bytes(iteration);
  std::vector<std::uint8_t> got(expected.size());
  destination_->load(got);
  std::int64_t errors = 0;
  for (std::size_t i = 0; i < got.size(); ++i) errors += got[i] != expected[i] ? 1 : 0;
  return errors;
}

// ---- Measuring

loop_outcome collective_loop::run(transport& world, const loop_plan& plan) {
  auto& library = world.collectives();
  std::vector<double> mine;
  std::int64_t errors = 0;
  library.barrier();
  for (int i = 0; i < plan.warm_up + plan.iterations; ++i) {
    const auto iteration = static_cast<std::uint64_t>(i);
    if (plan.validate) {
      prepare(iteration);
      library.barrier();
    }
    const std::uint64_t begin_ns = monotonic_ns();
    call(library);
    const std::uint64_t end_ns = monotonic_ns();
    library.barrier();
    if (i >= plan.warm_up) mine.push_back(static_cast<double>(end_ns - begin_ns));
    if (plan.validate) errors += verify(iteration);
  }
  loop_outcome out;
  if (plan.validate) out.errors = static_cast<std::int64_t>(sum_over_ranks(world, static_cast<double>(errors)));
  out.samples_ns = mean_over_ranks(world, mine);
  return out;
}

std::vector<double> collective_loop::mean_over_ranks(transport& world, const std::vector<double>& mine) {
  const auto means = world.all_gather(mean_of(mine));
  fastest_rank_ns_ = *std::min_element(means.begin(), means.end());
  slowest_rank_ns_ = *std::max_element(means.begin(), means.end());
  const std::size_t bytes = mine.size() * sizeof(double);
  if (rank_ != kRoot) {
    world.send(mine.data(), bytes, memory_kind::host, kRoot, kSamplesTag);
    return {};
  }
  std::vector<double> out = mine, other(mine.size());
  for (int rank = 1; rank < ranks_; ++rank) {
    world.recv(other.data(), bytes, memory_kind::host, rank, kSamplesTag);
    for (std::size_t i = 0; i < out.size(); ++i) out[i] += other[i];
  }
  for (double& one : out) one /= ranks_;
  return out;
}

}  // namespace pl::p2p
