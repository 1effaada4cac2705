// SPDX-License-Identifier: Apache-2.0
// GPU memory into the store and back: a durable put, and a get beside other work.
//
//   c++ -std=c++20 -I../c store.cpp $(pkg-config --cflags --libs peerlane peerlane_store) -lcuda
//   peerlane store serve --data FOLDER &
//   ./store FOLDER/store.sock
#include <cstdio>
#include <peerlane/copy.hpp>
#include <peerlane/store.hpp>
#include <vector>

#include "gpu.h"

int main(int argc, char** argv) try {
  using peerlane::value_or_throw;
  if (argc != 2) return std::fprintf(stderr, "give the store's socket, or HOST:PORT\n"), 2;
  constexpr std::size_t kBytes = 1 << 20;
  const auto weights = peerlane::device_buffer(gpu_memory(0, kBytes), kBytes);
  const auto copier = value_or_throw(peerlane::copier::open());
  value_or_throw(copier.fill(weights, std::byte{0x5A}));

  const auto store = value_or_throw(peerlane::store::open_at(argv[1]));
  auto pool = store.open_pool("example");
  if (!pool) pool = store.create_pool("example");
  const auto number = value_or_throw(std::move(pool));

  // Acknowledged once it survives loss of power.
  const auto put = value_or_throw(store.put(number, "layer0", weights));
  value_or_throw(copier.fill(weights, std::byte{0}));

  auto later = value_or_throw(store.begin_get(number, "layer0", weights));
  const auto got = later.wait_or_throw(std::chrono::seconds(20));
  std::vector<unsigned char> back(kBytes);
  value_or_throw(copier.copy(back, weights));
  std::printf("version %llu, %zu bytes back\n", static_cast<unsigned long long>(put.version),
              static_cast<std::size_t>(got.moved_bytes));
  return put.durability == PEERLANE_DURABLE && back == std::vector<unsigned char>(kBytes, 0x5A) ? 0 : 1;
} catch (const peerlane::error& reason) { return std::fprintf(stderr, "%s\n", reason.what()), 1; }
