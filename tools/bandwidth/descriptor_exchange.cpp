// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/descriptor_exchange.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <cerrno>
#include <cstring>
#include <random>
#include <span>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "messaging/bootstrap/endpoint.hpp"
#include "os/descriptor_message.hpp"
#include "tools/bandwidth/agreement.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kTimeoutNs = 20'000'000'000;  // the other ranks are at the same step, which all have agreed on
constexpr unsigned kConnectMs = 5000;

struct greeting {
  std::uint64_t key;  // of this exchange
  std::int32_t rank;
};

messaging::endpoint place_of(std::uint64_t key, int rank) {
  return messaging::local_endpoint(format("fd-%016llx-%d", static_cast<unsigned long long>(key), rank));
}

status hand_over(std::uint64_t key, int source, int destination, int descriptor) {
  auto socket = messaging::connect_to(place_of(key, destination), kConnectMs);
  if (!socket)
    return failure{socket.code(),
                   format("rank %d does not accept a file descriptor: %s", destination, socket.error().message.c_str())};
  const greeting hello{key, source};
  // An empty socket takes a message as small as this at once, and keeps it when this end is closed.
  if (send_with_descriptor(socket->get(), std::as_bytes(std::span(&hello, 1)), descriptor) !=
      static_cast<ssize_t>(sizeof hello))
    return failure{errno, format("sending a file descriptor to rank %d failed: ", destination) + errno_text(errno)};
  return {};
}

// Takes the descriptor from one accepted connection. Nothing: not (yet) a message of this exchange.
int take_over(int socket, std::uint64_t key, unique_fd& out) {
  greeting hello{};
  auto got = receive_with_descriptor(socket, std::as_writable_bytes(std::span(&hello, 1)));
  if (got.descriptors != 1) return -1;
  out = std::move(got.fd);
  return got.bytes == static_cast<ssize_t>(sizeof hello) && hello.key == key ? hello.rank : -1;
}

status collect(int listener, std::uint64_t key, std::vector<unique_fd>& all, std::size_t expected) {
  const std::uint64_t begin = monotonic_ns();
  while (expected > 0) {
    if (monotonic_ns() - begin > kTimeoutNs) return failure{ETIMEDOUT, "file descriptors of other ranks did not arrive"};
    pollfd waiting{listener, POLLIN, 0};
    if (poll(&waiting, 1, 1000) <= 0) continue;
    const unique_fd socket(real_device_io(), accept4(listener, nullptr, nullptr, SOCK_CLOEXEC));
    if (!socket || !messaging::is_same_user(socket.get())) continue;
    pollfd ready{socket.get(), POLLIN, 0};
    if (poll(&ready, 1, 1000) <= 0) continue;
    unique_fd descriptor;
    const int source = take_over(socket.get(), key, descriptor);
    if (source < 0 || static_cast<std::size_t>(source) >= all.size() || all[static_cast<std::size_t>(source)]) continue;
    all[static_cast<std::size_t>(source)] = std::move(descriptor);
    --expected;
  }
  return {};
}

// Rank 0 draws the key, so that socket names differ from those of earlier exchanges and other runs.
result<std::uint64_t> draw_key(group& ranks) {
  std::random_device random;
  const std::uint64_t mine = (std::uint64_t{random()} << 32) | random();
  auto all = ranks.all_gather({reinterpret_cast<const std::byte*>(&mine), sizeof mine});
  if (!all) return all.error();
  std::uint64_t key = 0;
  std::memcpy(&key, (*all)[0].data(), sizeof key);
  return key;
}

}  // namespace

result<std::vector<unique_fd>> exchange_descriptors(group& ranks, int mine) {
  const auto key = draw_key(ranks);
  if (!key) return key.error();
  auto listener = messaging::listen_at(place_of(*key, ranks.rank()), ranks.size());
  if (auto all_listen = agree(ranks, listener ? status() : status(listener.error())); !all_listen) return all_listen.error();
  std::vector<unique_fd> all(static_cast<std::size_t>(ranks.size()));
  status outcome;
  for (int destination = 0; destination < ranks.size() && outcome; ++destination)
    if (destination != ranks.rank()) outcome = hand_over(*key, ranks.rank(), destination, mine);
  if (outcome) outcome = collect(listener->get(), *key, all, all.size() - 1);
  if (auto all_have = agree(ranks, outcome); !all_have) return all_have.error();
  return all;
}

}  // namespace pl::bandwidth
