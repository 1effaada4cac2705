// SPDX-License-Identifier: Apache-2.0
#include "store/client/ucx_value_stream.hpp"

#include <algorithm>
#include <cstdlib>
#include <cstring>

#include "arch/crc32c.hpp"
#include "base/text.hpp"
#include "store/protocol/byte_order.hpp"

namespace pl::store_client {
namespace {

using store_protocol::append_le;
using store_protocol::byte_reader;

constexpr std::size_t kStagingAlignment = 4096;

struct chunk_head {
  std::uint64_t secret[2] = {0, 0};
  std::uint64_t token = 0, offset = 0;
  std::uint32_t bytes = 0, crc = 0;
};

std::string packed(const chunk_head& chunk) {
  std::string out;
  append_le(out, chunk.secret[0]);
  append_le(out, chunk.secret[1]);
  append_le(out, chunk.token);
  append_le(out, chunk.offset);
  append_le(out, chunk.bytes);
  append_le(out, chunk.crc);
  return out;
}

std::optional<chunk_head> unpacked(std::string_view bytes) {
  byte_reader reader(bytes);
  chunk_head out;
  for (auto& one : out.secret) one = reader.number<std::uint64_t>();
  out.token = reader.number<std::uint64_t>();
  out.offset = reader.number<std::uint64_t>();
  out.bytes = reader.number<std::uint32_t>();
  out.crc = reader.number<std::uint32_t>();
  if (!reader.ok() || !reader.at_end()) return std::nullopt;
  return out;
}

// The range [offset, offset + bytes) of a value that lies in `pieces`.
std::vector<iovec> part_of(const std::vector<iovec>& pieces, std::uint64_t offset, std::uint64_t bytes) {
  std::vector<iovec> out;
  for (const auto& one : pieces) {
    const std::uint64_t skip = std::min<std::uint64_t>(offset, one.iov_len), part = std::min(bytes, one.iov_len - skip);
    offset -= skip;
    bytes -= part;
    if (part > 0) out.push_back({static_cast<std::byte*>(one.iov_base) + skip, part});
  }
  return out;
}

std::uint32_t sum_of(const std::vector<iovec>& memory) {
  std::uint32_t crc = 0;
  for (const auto& one : memory) crc = arch::crc32c(one.iov_base, one.iov_len, crc);
  return crc;
}

}  // namespace

std::optional<ucx_mode> ucx_mode_of(std::string_view name) noexcept {
  if (name == "off") return ucx_mode::off;
  if (name == "auto") return ucx_mode::automatic;
  if (name == "on") return ucx_mode::on;
  return std::nullopt;
}

bool has_rdma(std::string_view transports) noexcept {
  while (!transports.empty()) {
    const auto one = transports.substr(0, transports.find(','));
    for (const std::string_view name : {"rc_", "dc_", "ud_", "srd"})
      if (one.starts_with(name)) return true;
    transports.remove_prefix(std::min(transports.size(), one.size() + 1));
  }
  return false;
}

result<std::unique_ptr<ucx_value_stream>> ucx_value_stream::open(options options) {
  std::unique_ptr<ucx_value_stream> made(new ucx_value_stream(std::move(options)));
  ucx::am_port::options wanted;
  wanted.library = made->options_.library;
  wanted.rdma_only = made->options_.mode != ucx_mode::on;
  wanted.publish = !made->options_.is_store;
  auto port = ucx::am_port::open(wanted, *made);
  if (!port) return port.error();
  made->port_ = *std::move(port);
  return made;
}

ucx_value_stream::~ucx_value_stream() {
  port_.reset();
  for (const auto& [id, one] : sessions_) one->transfers.clear();
}

store_protocol::ucx_offer ucx_value_stream::offer() const {
  store_protocol::ucx_offer out;
  out.major = static_cast<std::uint16_t>(port_->version_major());
  out.minor = static_cast<std::uint16_t>(port_->version_minor());
  out.any_transport = options_.mode == ucx_mode::on;
  out.address = port_->address();
  out.transports = port_->transports();
  return out;
}

result<stream_session_ptr> ucx_value_stream::connect(const store_protocol::ucx_offer& other_end,
                                                     const std::uint64_t (&secret)[2]) {
  if (other_end.major != port_->version_major() || other_end.minor != port_->version_minor())
    return failure{ENOTSUP, format("UCX is %u.%u at this end and %u.%u at the other end: use the same version at both",
                                   port_->version_major(), port_->version_minor(), other_end.major, other_end.minor)};
  const bool any = options_.mode == ucx_mode::on && other_end.any_transport;
  if (!any && (!has_rdma(port_->transports()) || !has_rdma(other_end.transports)))
    return failure{ENOTSUP, format("UCX has no RDMA at both ends: %s here, %s there", port_->transports().c_str(),
                                   other_end.transports.c_str())};
  const auto peer = port_->connect(other_end.address);
  if (!peer) return peer.error();
  auto made = std::make_shared<stream_session>();
  made->peer = *peer;
  made->transports = port_->lanes_to(*peer);
  if (!any && !has_rdma(made->transports)) {
    port_->close(*peer);
    return failure{ENOTSUP, format("UCX would not use RDMA between these two, but %s", made->transports.c_str())};
  }
  std::copy(std::begin(secret), std::end(secret), made->secret);
  sessions_[secret[0]] = made;
  return made;
}

// ---- Transfers

void ucx_value_stream::add(const stream_session_ptr& session, const stream_transfer_ptr& transfer) {
  if (session->lost) {
    transfer->bad = {ECONNABORTED, session->why_lost};
    if (transfer->changed) transfer->changed();
    return;
  }
  if (!session->transfers.try_emplace(transfer->token, transfer).second) {
    transfer->bad = {EINVAL, "this token names another transfer already"};
    if (transfer->changed) transfer->changed();
    return;
  }
  if (transfer->is_out) send_more(session, transfer);
}

void ucx_value_stream::stop(const stream_session_ptr& session, const stream_transfer_ptr& transfer) {
  transfer->stopped = true;
  session->transfers.erase(transfer->token);
}

std::byte* ucx_value_stream::take_staging() {
  if (free_staging_.empty()) {
    auto* const memory = static_cast<std::byte*>(std::aligned_alloc(kStagingAlignment, kStreamChunkBytes));
    if (memory == nullptr) return nullptr;
    staging_.emplace_back(memory);
    if (options_.pin) options_.pin(memory, kStreamChunkBytes);
    free_staging_.push_back(memory);
  }
  auto* const out = free_staging_.back();
  free_staging_.pop_back();
  return out;
}

// The transfer's next chunk, and where it lies.
ucx_value_stream::chunk& ucx_value_stream::make_chunk(const stream_session_ptr& session, const stream_transfer_ptr& transfer,
                                                      std::uint32_t bytes) {
  auto& out = chunks_.emplace_back();
  out.place = std::prev(chunks_.end());
  out.session = session;
  out.transfer = transfer;
  out.offset = transfer->begun_bytes;
  out.bytes = bytes;
  if (transfer->copy) {
    out.staging = take_staging();
    out.memory.push_back({out.staging, bytes});
  } else {
    out.memory = part_of(transfer->pieces, out.offset, bytes);
  }
  transfer->begun_bytes += bytes;
  ++transfer->in_flight;
  return out;
}

void ucx_value_stream::send_more(const stream_session_ptr& session, const stream_transfer_ptr& transfer) {
  while (transfer->in_flight < kStreamWindow && transfer->begun_bytes < transfer->bytes && !transfer->stopped &&
         transfer->bad.code == 0) {
    const auto bytes = static_cast<std::uint32_t>(std::min(kStreamChunkBytes, transfer->bytes - transfer->begun_bytes));
    auto& one = make_chunk(session, transfer, bytes);
    if (transfer->copy) {
      const status copied = one.staging != nullptr ? transfer->copy(one.offset, one.staging, bytes)
                                                   : status(failure{ENOMEM, "no memory to copy through"});
      if (!copied) return end_chunk(one, copied.error());
    }
    one.crc = sum_of(one.memory);
    transfer->crc = arch::crc32c_combine(transfer->crc, one.crc, bytes);
    chunk_head head;
    std::copy(std::begin(session->secret), std::end(session->secret), head.secret);
    head.token = transfer->token;
    head.offset = one.offset;
    head.bytes = bytes;
    head.crc = one.crc;
    port_->send(session->peer, packed(head), one.memory, &one);
  }
}

void ucx_value_stream::end_chunk(chunk& one, const failure& reason) {
  const auto session = one.session;
  const auto transfer = one.transfer;
  if (one.staging != nullptr) free_staging_.push_back(one.staging);
  --transfer->in_flight;
  if (reason.code == 0) transfer->moved_bytes += one.bytes;
  else if (transfer->bad.code == 0) transfer->bad = reason;
  chunks_.erase(one.place);
  if (transfer->is_out) send_more(session, transfer);
  if (transfer->changed) transfer->changed();
}

bool ucx_value_stream::on_arrival(std::string_view bytes_of_head, std::size_t bytes, std::vector<iovec>& destination,
                                  void*& ticket) {
  const auto head = unpacked(bytes_of_head);
  const auto found = head ? sessions_.find(head->secret[0]) : sessions_.end();
  ++refused_;  // unless it passes the checks below
  if (found == sessions_.end() || (found->second->secret[1] ^ head->secret[1]) != 0) return false;
  const auto& session = found->second;
  auto named = session->transfers.find(head->token);
  if (named == session->transfers.end() && options_.unknown) {
    options_.unknown();
    named = session->transfers.find(head->token);
  }
  if (named == session->transfers.end()) return false;
  const auto& transfer = named->second;
  const bool continues = !transfer->is_out && transfer->bad.code == 0 && head->offset == transfer->begun_bytes &&
                         head->bytes == bytes && bytes > 0 && bytes <= kStreamChunkBytes &&
                         bytes <= transfer->bytes - transfer->begun_bytes && transfer->in_flight < 2 * kStreamWindow;
  if (!continues) return false;
  --refused_;
  auto& one = make_chunk(session, transfer, head->bytes);
  one.crc = head->crc;
  transfer->crc = arch::crc32c_combine(transfer->crc, head->crc, head->bytes);
  destination = one.memory;
  ticket = &one;
  return true;
}

void ucx_value_stream::on_received(void* ticket, int code) {
  auto& one = *static_cast<chunk*>(ticket);
  if (code != 0) return end_chunk(one, {ECONNABORTED, "UCX: a piece of a value did not arrive: " + errno_text(code)});
  if (sum_of(one.memory) != one.crc)
    return end_chunk(one,
                     {EBADMSG, "a piece of a value arrived over UCX with a wrong checksum: it was damaged in transfer"});
  if (one.transfer->copy && !one.transfer->stopped)
    if (const auto copied = one.transfer->copy(one.offset, one.staging, one.bytes); !copied)
      return end_chunk(one, copied.error());
  end_chunk(one, {0, {}});
}

void ucx_value_stream::on_sent(void* ticket, int code) {
  end_chunk(*static_cast<chunk*>(ticket),
            code == 0 ? failure{0, {}} : failure{ECONNABORTED, "UCX: a chunk of a value was refused: " + errno_text(code)});
}

// ---- The end

void ucx_value_stream::end_session(stream_session& one, const std::string& reason) {
  if (std::exchange(one.lost, true)) return;
  one.why_lost = reason;
  const auto transfers = std::exchange(one.transfers, {});
  for (const auto& [token, transfer] : transfers) {
    if (transfer->bad.code == 0) transfer->bad = {ECONNABORTED, reason};
    if (transfer->changed) transfer->changed();
  }
}

void ucx_value_stream::shut() {
  while (!sessions_.empty()) close(std::shared_ptr(sessions_.begin()->second));
  port_.reset();
  while (!chunks_.empty()) end_chunk(chunks_.front(), {ECONNABORTED, "the UCX transport was closed"});
}

void ucx_value_stream::on_lost(ucx::am_port::peer_id id, const std::string& reason) {
  for (const auto& [secret, one] : sessions_) {
    if (one->peer != id) continue;
    const auto lost = one;
    end_session(*lost, "the UCX transport broke: " + reason);
    if (lost->on_lost) lost->on_lost();
    return;
  }
}

void ucx_value_stream::close(const stream_session_ptr& one) {
  sessions_.erase(one->secret[0]);
  port_->close(one->peer);
  end_session(*one, "the UCX transport was closed");
}

}  // namespace pl::store_client
