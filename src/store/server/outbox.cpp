// SPDX-License-Identifier: Apache-2.0
#include "store/server/outbox.hpp"

#include <algorithm>

#include "arch/crc32c.hpp"
#include "base/clock.hpp"

namespace pl::store_server {

outbox::outbox(transport& wire, std::function<void(std::error_code)> failed, std::function<void()> moved)
    : wire_(wire), failed_(std::move(failed)), moved_(std::move(moved)) {}

outbox::~outbox() { drop(); }

void outbox::add_with_descriptor(std::string frame, int fd) { descriptors_.emplace_back(std::move(frame), fd); }

void outbox::add(download value) { downloads_.push_back(std::move(value)); }

void outbox::drop() {
  dropped_ = true;
  gathered_.clear();
  descriptors_.clear();
  for (auto& one : downloads_) one.finished();
  downloads_.clear();
}

bool outbox::send_descriptors() {
  for (; !descriptors_.empty(); descriptors_.pop_front()) {
    const auto& [frame, fd] = descriptors_.front();
    if (const auto sent = wire_.send_descriptor(frame, fd); !sent) {
      failed_(std::error_code(sent.code(), std::generic_category()));
      return false;
    }
  }
  return true;
}

// Adds the next frame of the value whose turn it is.
void outbox::add_data_frame(std::vector<asio::const_buffer>& buffers) {
  download value = std::move(downloads_.front());
  downloads_.pop_front();
  auto frame = value.frame;
  frame.op = store_protocol::opcode::data;
  std::uint64_t left = std::min<std::uint64_t>(value.left_bytes, store_protocol::kDataBodyBytes);
  frame.body_bytes = static_cast<std::uint32_t>(left);
  frame.flags = store_protocol::flag::reply;
  buffers.emplace_back();  // placeholder for the head, filled in when its checksum is known
  const std::size_t head_at = buffers.size() - 1;
  while (left > 0) {
    auto& piece = value.pieces.front();
    const auto part = piece.first(std::min<std::uint64_t>(piece.size(), left));
    frame.body_crc = arch::crc32c(part.data(), part.size(), frame.body_crc);
    buffers.emplace_back(part.data(), part.size());
    left -= part.size();
    piece = piece.subspan(part.size());
    if (piece.empty()) value.pieces.erase(value.pieces.begin());
  }
  value.left_bytes -= frame.body_bytes;
  value.frame.offset += frame.body_bytes;
  if (value.left_bytes > 0 || value.more_follow) frame.flags |= store_protocol::flag::more;
  data_head_.clear();
  (void)store_protocol::encode_raw(frame, {}, {}, data_head_);  // fails only for long keys
  buffers[head_at] = asio::buffer(data_head_);
  if (value.left_bytes > 0) downloads_.push_back(std::move(value));
  else last_frame_of_ = std::move(value.finished);
}

void outbox::flush_early() {
  if (!writing_ && !dropped_ && descriptors_.empty()) gathered_.erase(0, wire_.write_now(gathered_));
}

void outbox::flush(const std::shared_ptr<void>& keep_alive) {
  if (writing_ || dropped_ || !send_descriptors()) return;
  if (gathered_.empty() && downloads_.empty()) return;
  std::vector<asio::const_buffer> buffers;
  sending_.clear();
  sending_.swap(gathered_);
  if (!sending_.empty()) buffers.push_back(asio::buffer(sending_));
  if (!downloads_.empty()) add_data_frame(buffers);
  writing_ = true;
  began_ns_ = monotonic_ns();
  wire_.write(std::move(buffers), [this, keep_alive](std::error_code error, std::size_t) { wrote(error, keep_alive); });
}

void outbox::wrote(std::error_code error, const std::shared_ptr<void>& keep_alive) {
  writing_ = false;
  sending_.clear();
  if (auto finished = std::exchange(last_frame_of_, nullptr)) finished();
  if (error) {
    drop();
    failed_(error);
    return;
  }
  flush(keep_alive);
  moved_();
}

}  // namespace pl::store_server
