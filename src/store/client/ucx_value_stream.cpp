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

using store_wire::append_le;
using store_wire::byte_reader;

constexpr std::size_t kStagingAlignment = 4096;

struct chunk_head {
  std::uint64_t secret[2] = {0, 0};
  std::uint64_t token = 0, offset = 0;
  std::uint32_t bytes = 0, crc = 0;
};

std::string packed(const chunk_head& what) {
  std::string out;
  append_le(out, what.secret[0]);
  append_le(out, what.secret[1]);
  append_le(out, what.token);
  append_le(out, what.offset);
  append_le(out, what.bytes);
  append_le(out, what.crc);
  return out;
}

std::optional<chunk_head> unpacked(std::string_view bytes) {
  byte_reader in(bytes);
  chunk_head out;
  for (auto& one : out.secret) one = in.number<std::uint64_t>();
  out.token = in.number<std::uint64_t>();
  out.offset = in.number<std::uint64_t>();
  out.bytes = in.number<std::uint32_t>();
  out.crc = in.number<std::uint32_t>();
  if (!in.ok() || !in.at_end()) return std::nullopt;
  return out;
}

// [offset, offset + bytes) of a value that lies in `pieces`.
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

std::optional<lane_mode> lane_mode_of(std::string_view name) noexcept {
  if (name == "off") return lane_mode::off;
  if (name == "auto") return lane_mode::automatic;
  if (name == "on") return lane_mode::on;
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

result<std::unique_ptr<value_lane>> value_lane::open(options how) {
  std::unique_ptr<value_lane> made(new value_lane(std::move(how)));
  ucx::am_port::options wanted;
  wanted.library = made->how_.library;
  wanted.rdma_only = made->how_.mode != lane_mode::on;
  wanted.publish = !made->how_.is_store;
  auto port = ucx::am_port::open(wanted, *made);
  if (!port) return port.error();
  made->port_ = *std::move(port);
  return made;
}

value_lane::~value_lane() {
  port_.reset();
  for (const auto& [id, one] : sessions_) one->transfers.clear();
}

store_wire::lane_offer value_lane::offer() const {
  store_wire::lane_offer out;
  out.major = static_cast<std::uint16_t>(port_->version_major());
  out.minor = static_cast<std::uint16_t>(port_->version_minor());
  out.any_transport = how_.mode == lane_mode::on;
  out.address = port_->address();
  out.transports = port_->transports();
  return out;
}

result<lane_session_ptr> value_lane::connect(const store_wire::lane_offer& other_end, const std::uint64_t (&secret)[2]) {
  if (other_end.major != port_->version_major() || other_end.minor != port_->version_minor())
    return failure{ENOTSUP, format("UCX is %u.%u here and %u.%u at the other end: use the same at both",
                                   port_->version_major(), port_->version_minor(), other_end.major, other_end.minor)};
  const bool any = how_.mode == lane_mode::on && other_end.any_transport;
  if (!any && (!has_rdma(port_->transports()) || !has_rdma(other_end.transports)))
    return failure{ENOTSUP, format("UCX has no RDMA at both ends: %s here, %s there", port_->transports().c_str(),
                                   other_end.transports.c_str())};
  const auto peer = port_->connect(other_end.address);
  if (!peer) return peer.error();
  auto made = std::make_shared<lane_session>();
  made->peer = *peer;
  made->lanes = port_->lanes_to(*peer);
  if (!any && !has_rdma(made->lanes)) {
    port_->close(*peer);
    return failure{ENOTSUP, format("UCX would not use RDMA between these two, but %s", made->lanes.c_str())};
  }
  std::copy(std::begin(secret), std::end(secret), made->secret);
  sessions_[secret[0]] = made;
  return made;
}

// ---- Transfers

void value_lane::add(const lane_session_ptr& with, const lane_transfer_ptr& what) {
  if (with->lost) {
    what->bad = {ECONNABORTED, with->why_lost};
    if (what->changed) what->changed();
    return;
  }
  if (!with->transfers.try_emplace(what->token, what).second) {
    what->bad = {EINVAL, "this token names another transfer already"};
    if (what->changed) what->changed();
    return;
  }
  if (what->is_out) send_more(with, what);
}

void value_lane::stop(const lane_session_ptr& with, const lane_transfer_ptr& what) {
  what->stopped = true;
  with->transfers.erase(what->token);
}

std::byte* value_lane::take_staging() {
  if (free_staging_.empty()) {
    auto* const at = static_cast<std::byte*>(std::aligned_alloc(kStagingAlignment, kLaneChunkBytes));
    if (at == nullptr) return nullptr;
    staging_.emplace_back(at);
    if (how_.pin) how_.pin(at, kLaneChunkBytes);
    free_staging_.push_back(at);
  }
  auto* const out = free_staging_.back();
  free_staging_.pop_back();
  return out;
}

// The transfer's next chunk, and where it lies.
value_lane::chunk& value_lane::make_chunk(const lane_session_ptr& with, const lane_transfer_ptr& what, std::uint32_t bytes) {
  auto& out = chunks_.emplace_back();
  out.place = std::prev(chunks_.end());
  out.session = with;
  out.of = what;
  out.offset = what->begun_bytes;
  out.bytes = bytes;
  if (what->copy) {
    out.staging = take_staging();
    out.memory.push_back({out.staging, bytes});
  } else {
    out.memory = part_of(what->pieces, out.offset, bytes);
  }
  what->begun_bytes += bytes;
  ++what->under_way;
  return out;
}

void value_lane::send_more(const lane_session_ptr& with, const lane_transfer_ptr& what) {
  while (what->under_way < kLaneWindow && what->begun_bytes < what->bytes && !what->stopped && what->bad.code == 0) {
    const auto bytes = static_cast<std::uint32_t>(std::min(kLaneChunkBytes, what->bytes - what->begun_bytes));
    auto& one = make_chunk(with, what, bytes);
    if (what->copy) {
      const status copied = one.staging != nullptr ? what->copy(one.offset, one.staging, bytes)
                                                   : status(failure{ENOMEM, "no memory to copy through"});
      if (!copied) return end_chunk(one, copied.error());
    }
    one.crc = sum_of(one.memory);
    what->crc = arch::crc32c_combine(what->crc, one.crc, bytes);
    chunk_head head;
    std::copy(std::begin(with->secret), std::end(with->secret), head.secret);
    head.token = what->token;
    head.offset = one.offset;
    head.bytes = bytes;
    head.crc = one.crc;
    port_->send(with->peer, packed(head), one.memory, &one);
  }
}

void value_lane::end_chunk(chunk& one, const failure& why) {
  const auto session = one.session;
  const auto of = one.of;
  if (one.staging != nullptr) free_staging_.push_back(one.staging);
  --of->under_way;
  if (why.code == 0) of->moved_bytes += one.bytes;
  else if (of->bad.code == 0) of->bad = why;
  chunks_.erase(one.place);
  if (of->is_out) send_more(session, of);
  if (of->changed) of->changed();
}

bool value_lane::on_arrival(std::string_view bytes_of_head, std::size_t bytes, std::vector<iovec>& into, void*& ticket) {
  const auto head = unpacked(bytes_of_head);
  const auto found = head ? sessions_.find(head->secret[0]) : sessions_.end();
  ++refused_;  // unless it passes
  if (found == sessions_.end() || (found->second->secret[1] ^ head->secret[1]) != 0) return false;
  const auto& session = found->second;
  auto named = session->transfers.find(head->token);
  if (named == session->transfers.end() && how_.unknown) {
    how_.unknown();
    named = session->transfers.find(head->token);
  }
  if (named == session->transfers.end()) return false;
  const auto& what = named->second;
  const bool continues = !what->is_out && what->bad.code == 0 && head->offset == what->begun_bytes && head->bytes == bytes &&
                         bytes > 0 && bytes <= kLaneChunkBytes && bytes <= what->bytes - what->begun_bytes &&
                         what->under_way < 2 * kLaneWindow;
  if (!continues) return false;
  --refused_;
  auto& one = make_chunk(session, what, head->bytes);
  one.crc = head->crc;
  what->crc = arch::crc32c_combine(what->crc, head->crc, head->bytes);
  into = one.memory;
  ticket = &one;
  return true;
}

void value_lane::on_received(void* ticket, int code) {
  auto& one = *static_cast<chunk*>(ticket);
  if (code != 0) return end_chunk(one, {ECONNABORTED, "UCX: a piece of a value did not arrive: " + errno_text(code)});
  if (sum_of(one.memory) != one.crc)
    return end_chunk(one, {EBADMSG, "a piece of a value came by UCX with a wrong checksum: it was damaged on its way"});
  if (one.of->copy && !one.of->stopped)
    if (const auto copied = one.of->copy(one.offset, one.staging, one.bytes); !copied) return end_chunk(one, copied.error());
  end_chunk(one, {0, {}});
}

void value_lane::on_sent(void* ticket, int code) {
  end_chunk(
      *static_cast<chunk*>(ticket),
      code == 0 ? failure{0, {}} : failure{ECONNABORTED, "UCX: a piece of a value was not taken: " + errno_text(code)});
}

// ---- The end

void value_lane::end_session(lane_session& one, const std::string& why) {
  if (std::exchange(one.lost, true)) return;
  one.why_lost = why;
  const auto transfers = std::exchange(one.transfers, {});
  for (const auto& [token, what] : transfers) {
    if (what->bad.code == 0) what->bad = {ECONNABORTED, why};
    if (what->changed) what->changed();
  }
}

void value_lane::shut() {
  while (!sessions_.empty()) close(std::shared_ptr(sessions_.begin()->second));
  port_.reset();
  while (!chunks_.empty()) end_chunk(chunks_.front(), {ECONNABORTED, "the UCX lane was closed"});
}

void value_lane::on_lost(ucx::am_port::peer_id which, const std::string& why) {
  for (const auto& [secret, one] : sessions_) {
    if (one->peer != which) continue;
    const auto lost = one;
    end_session(*lost, "the UCX lane broke: " + why);
    if (lost->on_lost) lost->on_lost();
    return;
  }
}

void value_lane::close(const lane_session_ptr& one) {
  sessions_.erase(one->secret[0]);
  port_->close(one->peer);
  end_session(*one, "the UCX lane was closed");
}

}  // namespace pl::store_client
