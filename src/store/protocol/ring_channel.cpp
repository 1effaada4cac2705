// SPDX-License-Identifier: Apache-2.0
// A connection whose bytes go through rings in shared memory (byte_ring.hpp). Its socket carries wakeup bytes and
// detects the end.
#include <poll.h>

#include <array>

#include "store/protocol/byte_channel.hpp"
#include "store/protocol/byte_ring.hpp"

namespace pl::store_client {
namespace {

constexpr unsigned kPollsBetweenEndChecks = 64;  // empty polls before the socket is checked for the server's end

class ring_channel final : public byte_channel {
 public:
  ring_channel(std::unique_ptr<byte_channel> socket, std::unique_ptr<store_protocol::byte_rings> rings)
      : socket_(std::move(socket)), rings_(std::move(rings)) {}
  int fd() const noexcept override { return socket_->fd(); }
  store_protocol::path way() const noexcept override { return socket_->way(); }

  result<std::size_t> write(std::span<const iovec> buffers) override {
    const auto sent = rings_->write(buffers);
    send_wakeup();
    return sent;
  }

  result<std::size_t> read(void* destination, std::size_t bytes) override {
    const bool was_armed = rings_->disarm();
    auto got = rings_->read(destination, bytes);
    if (got && *got == 0 && (was_armed || end_ || ++idle_polls_ % kPollsBetweenEndChecks == 0)) {
      if (!end_) drain_wakeups();
      // Bytes that the store wrote before it ended come first.
      if (end_) got = rings_->read(destination, bytes);
      if (end_ && got && *got == 0) return *end_;
    }
    send_wakeup();
    return got;
  }

  bool may_have_bytes() const noexcept override { return rings_->has_incoming(); }

  std::optional<short> arm(bool to_write) override {
    if (!rings_->arm(true, to_write)) return std::nullopt;
    return POLLIN;
  }

 private:
  void send_wakeup() {
    if (!rings_->take_wakeup_request()) return;
    char wakeup = 1;
    const iovec one{&wakeup, 1};
    // A full socket already holds wakeup bytes, and reading detects a broken one.
    (void)socket_->write({&one, 1});
  }
  void drain_wakeups() {
    std::array<std::byte, 64> wakeups;
    for (;;) {
      const auto got = socket_->read(wakeups.data(), wakeups.size());
      if (!got) end_ = got.error();
      if (!got || *got == 0) return;
    }
  }

  const std::unique_ptr<byte_channel> socket_;
  const std::unique_ptr<store_protocol::byte_rings> rings_;
  std::optional<failure> end_;
  unsigned idle_polls_ = 0;
};

}  // namespace

result<std::unique_ptr<byte_channel>> over_rings(std::unique_ptr<byte_channel> socket, int rings) {
  auto mapped = store_protocol::byte_rings::map(rings);
  if (!mapped) return mapped.error();
  return std::unique_ptr<byte_channel>(new ring_channel(std::move(socket), *std::move(mapped)));
}

}  // namespace pl::store_client
