// SPDX-License-Identifier: Apache-2.0
// The receive buffer of one connection. It grows with the bytes received, never with the size a frame claims, and
// touches its pages only when bytes arrive. Used by one thread.
#pragma once

#include <algorithm>
#include <cstddef>
#include <cstring>
#include <memory>
#include <string_view>

namespace pl::store_server {

class receive_buffer {
 public:
  static constexpr std::size_t kFirstBytes = 256;                // until the client has sent its handshake
  static constexpr std::size_t kAfterHandshakeBytes = 16 << 10;  // after the handshake
  static constexpr std::size_t kUsualBytes = 256 << 10;  // for clients that send much at a time; longer frames get more

  std::size_t size() const noexcept { return size_; }
  std::string_view bytes() const noexcept { return {data_.get() + begin_, end_ - begin_}; }
  bool empty() const noexcept { return begin_ == end_; }
  void take(std::size_t bytes) noexcept { begin_ += bytes; }
  void came(std::size_t bytes) noexcept { end_ += bytes; }
  // Moves what is left to the front.
  void pack() noexcept {
    if (begin_ == 0) return;
    std::memmove(data_.get(), data_.get() + begin_, end_ - begin_);
    end_ -= begin_;
    begin_ = 0;
  }
  bool full() const noexcept { return end_ == size_; }
  char* room() noexcept { return data_.get() + end_; }
  std::size_t room_bytes() const noexcept { return size_ - end_; }
  // Precondition: the buffer is packed, and its content fits.
  void resize(std::size_t bytes) {
    auto next = std::make_unique_for_overwrite<char[]>(bytes);
    if (end_ > 0) std::memcpy(next.get(), data_.get(), end_);
    data_ = std::move(next);
    size_ = bytes;
  }
  // The size to grow to for a frame of `wanted` bytes.
  std::size_t next_size(std::size_t wanted) const noexcept { return std::min(std::max(wanted, kUsualBytes), size_ * 2); }

 private:
  std::size_t size_ = kFirstBytes, begin_ = 0, end_ = 0;
  std::unique_ptr<char[]> data_ = std::make_unique_for_overwrite<char[]>(kFirstBytes);
};

}  // namespace pl::store_server
