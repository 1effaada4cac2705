// SPDX-License-Identifier: Apache-2.0
// What a block of a list costs the CPU before the engine is told of it: checks, pieces, commands, sorting. No GPU.
//
//     block_submit_bench
#include <algorithm>
#include <cstdio>
#include <numeric>
#include <random>
#include <vector>

#include "base/clock.hpp"
#include "copy/block_list.hpp"
#include "copy/block_order.hpp"
#include "copy/block_transfer.hpp"
#include "dma/commands.hpp"

namespace {

using namespace pl;

template <class Work>
double ns_per_block(std::size_t count, Work work) {
  std::vector<double> times;
  const int rounds = static_cast<int>(std::max<std::size_t>(20, 2'000'000 / count));
  for (int i = 0; i < rounds; ++i) {
    const std::uint64_t begin = monotonic_ns();
    work();
    times.push_back(static_cast<double>(monotonic_ns() - begin) / static_cast<double>(count));
  }
  std::nth_element(times.begin(), times.begin() + rounds / 2, times.end());
  return times[static_cast<std::size_t>(rounds) / 2];
}

std::vector<std::int32_t> random_slots(std::size_t count, std::size_t slots, std::uint64_t seed) {
  std::mt19937_64 random(seed);
  std::vector<std::int32_t> all(slots);
  std::iota(all.begin(), all.end(), 0);
  std::shuffle(all.begin(), all.end(), random);
  all.resize(count);
  return all;
}

std::uint64_t sink = 0;

void measure(std::size_t count, std::size_t slots) {
  constexpr std::uint64_t kBytes = 4096;
  const auto written = random_slots(count, slots, 1), read = random_slots(count, slots, 2);
  const std::uint64_t target = std::uint64_t{1} << 40, origin = std::uint64_t{1} << 44;
  copy::block_transfer blocks{copy::direction::to_device,
                              {{&target, 1}, slots * kBytes, kBytes, copy::block_indices(written.data())},
                              {{&origin, 1}, slots * kBytes, kBytes, copy::block_indices(read.data())},
                              kBytes,
                              count};
  const double checked = ns_per_block(count, [&] { sink += check(blocks).ok(); });
  const double pieces = ns_per_block(count, [&] {
    (void)copy::for_each_piece(blocks, [&](std::size_t, std::uint64_t destination, std::uint64_t source, std::uint64_t) {
      sink += destination ^ source;
      return status();
    });
  });
  std::vector<std::uint32_t> room(count * 6 + 64);
  const double commands = ns_per_block(count, [&] {
    dma::command_writer writer(room);
    (void)copy::for_each_piece(blocks, [&](std::size_t, std::uint64_t destination, std::uint64_t source, std::uint64_t) {
      writer.copy_again(destination, source, dma::launch::kPipelined);
      return status();
    });
    sink += writer.words();
  });
  // To be given in the order of host addresses, and to see that a list has it already.
  std::vector<std::int32_t> in_order = read;
  std::sort(in_order.begin(), in_order.end());
  const copy::borrowed_orders orders;
  const double sorted = ns_per_block(count, [&] {
    const auto entry_of = [&](std::size_t i) {
      return copy::block_order::entry{static_cast<std::uint32_t>(read[i]), static_cast<std::uint32_t>(written[i])};
    };
    if (!copy::block_order::helps(count, kBytes, [&](std::size_t i) { return read[i]; })) return;
    const std::size_t head = copy::block_order::head(count);
    sink += orders->head.sort(0, head, entry_of, slots)[0].tag + orders->rest.sort(head, count, entry_of, slots)[0].tag;
  });
  const double seen = ns_per_block(
      count, [&] { sink += copy::block_order::helps(count, kBytes, [&](std::size_t i) { return in_order[i]; }); });
  std::vector<std::uint64_t> destinations, sources;
  for (std::size_t i = 0; i < count; ++i) {
    destinations.push_back(target + static_cast<std::uint64_t>(written[i]) * kBytes);
    sources.push_back(origin + static_cast<std::uint64_t>(read[i]) * kBytes);
  }
  const copy::block_list list{copy::direction::to_device, destinations, sources, {}, kBytes};
  const double list_checked = ns_per_block(count, [&] { sink += check(list).ok(); });
  std::printf("%8zu of %9zu %10.2f %10.2f %10.2f %10.2f %10.2f %14.2f\n", count, slots, checked, pieces, commands, sorted,
              seen, list_checked);
}

}  // namespace

int main() {
  std::printf("ns a block            %10s %10s %10s %10s %10s %14s\n", "check", "pieces", "+commands", "sort", "in order",
              "check of a list");
  for (const std::size_t count : {64u, 1024u, 16384u, 100000u}) measure(count, count + count / 4);
  for (const std::size_t count : {64u, 1024u, 16384u}) measure(count, 20'000'000);
  return sink == 42 ? 1 : 0;
}
