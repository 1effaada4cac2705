// SPDX-License-Identifier: Apache-2.0
// The send queue of one connection: whole frames first, then large values one frame at a time in rotation, so that a
// small answer waits behind at most one frame of a large value. Used by the connection's thread.
#pragma once

#include <deque>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "store/server/transport.hpp"

namespace pl::store_server {

// A value that is sent straight from the arena.
struct download {
  store_protocol::head frame;                      // request_id and pool_id of its data frames
  std::vector<std::span<const std::byte>> pieces;  // in order; the memory stays valid until `finished`
  std::uint64_t left_bytes = 0;
  bool more_follow = false;        // more pieces of the same value will be added
  std::function<void()> finished;  // called once, when it is sent or the connection is gone
};

class outbox {
 public:
  // `failed`: nothing more can be sent. `moved`: something was sent, so there is room again.
  outbox(transport& wire, std::function<void(std::error_code)> failed, std::function<void()> moved);
  // Precondition: the connection is closed and no write is in progress.
  ~outbox();
  outbox(const outbox&) = delete;
  outbox& operator=(const outbox&) = delete;

  // Frames to be sent are appended here and wait for flush().
  std::string& frames() noexcept { return gathered_; }
  void add_with_descriptor(std::string frame, int fd);  // the caller keeps the descriptor, which must stay open
  void add(download value);
  // Sends frames now if that takes no system call; the others wait for flush().
  void flush_early();
  // Holds `keep_alive` while a write is in progress.
  void flush(const std::shared_ptr<void>& keep_alive);

  std::size_t waiting_bytes() const noexcept { return gathered_.size() + sending_.size(); }
  std::size_t downloads() const noexcept { return downloads_.size(); }
  bool idle() const noexcept { return !writing_ && gathered_.empty() && downloads_.empty() && descriptors_.empty(); }
  // When the current write began, in monotonic nanoseconds; 0 if there is none.
  std::uint64_t writing_since_ns() const noexcept { return writing_ ? began_ns_ : 0; }
  // Drops everything and releases values. A write in progress ends with an error first.
  void drop();

 private:
  bool send_descriptors();
  void add_data_frame(std::vector<asio::const_buffer>& buffers);
  void wrote(std::error_code error, const std::shared_ptr<void>& keep_alive);

  transport& wire_;
  std::function<void(std::error_code)> failed_;
  std::function<void()> moved_;
  std::string gathered_, sending_, data_head_;
  std::deque<std::pair<std::string, int>> descriptors_;
  std::deque<download> downloads_;
  std::function<void()> last_frame_of_;  // called when the current write has ended, which was the last of its value
  bool writing_ = false, dropped_ = false;
  std::uint64_t began_ns_ = 0;
};

}  // namespace pl::store_server
