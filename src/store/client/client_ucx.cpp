// SPDX-License-Identifier: Apache-2.0
// Large values by UCX. Requests and answers stay on the connection; only the bytes take the UCX transport:
//
//   put   alloc ─▶ token ─▶ chunks by UCX, and after the last one on the connection: commit ─▶ answer
//   get   token drawn here ─▶ get ─▶ answer: how many bytes; chunks by UCX meanwhile
//
// A broken UCX transport costs time but no operation: it continues on the connection. UCX releases the memory before
// the operation ends or is tried another way.
#include <algorithm>
#include <cstring>
#include <random>

#include "base/env.hpp"
#include "base/text.hpp"
#include "store/client/client.hpp"
#include "ucx/rdma_device.hpp"

namespace pl::store_client {
namespace {

using store_protocol::opcode;
namespace flag = store_protocol::flag;

constexpr auto kQuietGrace = std::chrono::milliseconds(500);  // for chunks in progress to end by themselves
constexpr auto kMaxClosing = std::chrono::seconds(10);

std::uint64_t random_token() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

bool is_loopback(const std::string& endpoint) {
  return endpoint.starts_with("127.") || endpoint.starts_with("localhost:") || endpoint.starts_with("[::1]:");
}

// The reason for not using a UCX transport; empty if one should be used.
std::string why_ucx_unwanted(const address& address, ucx_mode mode) {
  if (mode == ucx_mode::off) return "PEERLANE_STORE_UCX=off";
  if (mode == ucx_mode::on) return {};
  if (!address.socket.empty() || is_loopback(address.endpoint))
    return "the store is on this host: shm-direct needs no network";
  if (!address.tls_certificate.empty())
    return "the connection is TLS and UCX does not encrypt (PEERLANE_STORE_UCX=on allows it)";
  if (!ucx::has_rdma_device()) return "there is no RDMA device here (/sys/class/infiniband)";
  return {};
}

}  // namespace

// This end's offer in the handshake; nothing without a UCX transport.
std::optional<store_protocol::ucx_offer> client::offer_ucx() {
  const auto mode = options_.ucx.value_or(ucx_mode_of(env_read("PEERLANE_STORE_UCX").text).value_or(ucx_mode::automatic));
  why_no_ucx_ = why_ucx_unwanted(options_.server, mode);
  if (!why_no_ucx_.empty()) return std::nullopt;
  if (ucx_stream_ == nullptr) {
    ucx_value_stream::options options;
    options.mode = mode;
    // A failure costs one copy, because the planner then goes through its own pinned memory.
    options.pin = [this](void* address, std::size_t bytes) {
      if (auto pinned = options_.copies->register_host_memory(address, bytes, ucx_staging_device_))
        ucx_staging_.push_back(*std::move(pinned));
    };
    auto opened = ucx_value_stream::open(std::move(options));
    if (!opened) {
      why_no_ucx_ = opened.error().message;
      return std::nullopt;
    }
    ucx_stream_ = *std::move(opened);
  }
  return ucx_stream_->offer();
}

void client::join_ucx(const std::optional<store_protocol::ucx_offer>& theirs, const std::string& why_not) {
  if (ucx_stream_ == nullptr) return;
  if (!theirs) {
    why_no_ucx_ = why_not;
    return;
  }
  auto joined = ucx_stream_->connect(*theirs, theirs->secret);
  if (joined) stream_session_ = *std::move(joined);
  else why_no_ucx_ = joined.error().message;
}

bool client::check_path(operation& one, store_protocol::path way, const char* option) const {
  if (way == store_protocol::path::none && wire_) way = wire_->way();
  if (options_.require == store_protocol::path::none || options_.require == way) return true;
  const bool read_only = way != store_protocol::path::shm_direct && arena_ != nullptr && arena_->read_only();
  std::string reason = read_only ? "the store's memory is mapped to read only" : why_no_shm_;
  if (options_.require == store_protocol::path::ucx) reason = ucx_ready() ? "this get is in stream order" : why_no_ucx_;
  if (options_.require == store_protocol::path::gpu_direct)
    reason = why_no_device_.empty() ? "it is not for this value or its memory" : why_no_device_;
  if (reason.empty()) reason = "that is how the store was reached";
  one.phase = operation::stage::done;
  one.got.status = ENOTSUP;
  one.got.text = format("path %s was required, this %s would use %s: %s", name_of(options_.require), option, name_of(way),
                        reason.c_str());
  return false;
}

// ---- Operations ----------------------------------------------------------------------------------------------------------

void client::submit_by_ucx(const operation_ptr& one) {
  one->ucx_transfer.reset();
  one->ucx_answered = false;
  one->ucx_bytes = 0;
  if (!ucx_ready()) {
    asked_.erase(one->head.request_id);
    return go_by_socket(one, why_no_ucx_.empty() ? "the UCX transport broke" : why_no_ucx_);
  }
  if (one->mine.device) ucx_staging_device_ = one->mine.device->device_ordinal;
  const auto given = one->head.flags;
  one->head.flags |= flag::ucx;
  if (one->method == operation::kind::put_ucx) {
    ask(*one, opcode::alloc, fields_for_room(*one));
  } else {
    auto& incoming = one->ucx_transfer = std::make_shared<stream_transfer>();
    incoming->token = random_token();
    incoming->bytes = one->mine.bytes;
    if (!one->mine.device) {
      incoming->pieces = {{reinterpret_cast<void*>(one->mine.address), one->mine.bytes}};
    } else {
      incoming->copy = [this, destination = one->mine](std::uint64_t offset, std::byte* host, std::size_t bytes) {
        return options_.copies->copy(
            {copy::direction::to_device, destination.address + offset, copy::address_of(host), bytes}, *destination.device);
      };
    }
    ucx_stream_->add(stream_session_, incoming);
    ucx_operations_.push_back(one);
    auto fields = one->fields;
    fields.token = incoming->token;
    ask(*one, opcode::get, fields);
  }
  one->head.flags = given;
}

void client::ucx_answered(const operation_ptr& one, const store_protocol::head& header, const store_protocol::tail& fields) {
  if (one->method == operation::kind::get_ucx) {
    one->ucx_answered = true;
    one->ucx_bytes = header.value_bytes;
    one->got.fields = fields;
    return check_ucx_operation(one);
  }
  one->token = fields.token.value_or(0);
  if (!ucx_ready()) {  // it broke meanwhile
    give_grant_back(*one);
    asked_.erase(header.request_id);
    return go_by_socket(one, "the UCX transport broke");
  }
  auto& out = one->ucx_transfer = std::make_shared<stream_transfer>();
  out->is_out = true;
  out->token = one->token;
  out->bytes = one->mine.bytes;
  if (!one->mine.device) {
    out->pieces = {{reinterpret_cast<void*>(one->mine.address), one->mine.bytes}};
  } else {
    out->copy = [this, source = one->mine, order = one->order](std::uint64_t offset, std::byte* host, std::size_t bytes) {
      return copy_out(source, offset, host, bytes, order);
    };
  }
  ucx_operations_.push_back(one);
  ucx_stream_->add(stream_session_, out);
  check_ucx_operation(one);
}

// Updates the operation from the state of its transfer.
void client::check_ucx_operation(const operation_ptr& one) {
  if (one->done() || !one->ucx_transfer) return;
  auto& transfer = *one->ucx_transfer;
  if (transfer.bad.code != 0) {
    if (one->ucx_answered && one->method == operation::kind::put_ucx)
      return give_grant_back(*one);  // its answer ends the operation
    const auto reason = transfer.bad;
    if (one->method == operation::kind::put_ucx) give_grant_back(*one);
    asked_.erase(one->head.request_id);
    if (reason.code == ECONNABORTED || reason.code == EBADMSG) return go_by_socket(one, reason.message);
    return finish(one, reason.code, reason.message);
  }
  if (one->method == operation::kind::get_ucx) {
    if (!one->ucx_answered || transfer.moved_bytes < one->ucx_bytes || transfer.in_flight > 0) return;
    one->got.moved_bytes = transfer.moved_bytes;
    asked_.erase(one->head.request_id);
    return finish(one, 0);
  }
  if (one->ucx_answered || transfer.begun_bytes < transfer.bytes) return;
  one->ucx_answered = true;
  store_protocol::tail fields = one->fields;
  fields.token = one->token;
  const bool part = (one->head.flags & flag::patch) != 0;
  if (!part && !fields.crc) fields.crc = transfer.crc;
  if (part && !fields.only) {
    const auto base = one->got.result.version;
    fields.only = base != 0 ? store_protocol::precondition{store_protocol::condition::if_version, base}
                            : store_protocol::precondition{store_protocol::condition::if_absent, 0};
  }
  ask(*one, opcode::commit, fields);
}

bool client::drive_ucx() {
  if (ucx_stream_ == nullptr) return false;
  bool moved = false;
  while (ucx_stream_->progress()) moved = true;
  if (stream_session_ && stream_session_->lost) {
    // The other end does not always notice that a UCX transport has ended.
    operation note;
    note.head.flags = flag::ucx;
    if (wire_) ask(note, opcode::abort, {});
    const auto all = ucx_operations_;
    for (const auto& one : all) check_ucx_operation(one);
    leave_ucx();
    return true;
  }
  if (!moved) return false;
  const auto all = ucx_operations_;
  for (const auto& one : all) check_ucx_operation(one);
  std::erase_if(ucx_operations_, [](const auto& one) { return one->done() || !one->ucx_transfer; });
  return true;
}

// ---- The end -------------------------------------------------------------------------------------------------------------

// Gives the store's room back once, without waiting for the answer.
void client::give_grant_back(operation& one) {
  if (one.token == 0 || !wire_) return;
  operation note;
  store_protocol::tail fields;
  fields.token = std::exchange(one.token, 0);
  ask(note, opcode::abort, fields);
}

// On return UCX no longer touches the operation's memory.
void client::stop_ucx_transfer(operation& one) {
  if (!one.ucx_transfer) return;
  const auto transfer = std::exchange(one.ucx_transfer, nullptr);
  if (ucx_stream_ != nullptr && stream_session_) ucx_stream_->stop(stream_session_, transfer);
  transfer->stopped = true;
  const auto quiet_by = [&](clock::time_point end) {
    while (ucx_stream_ != nullptr && transfer->in_flight > 0 && clock::now() < end)
      if (!ucx_stream_->progress()) std::this_thread::yield();
    return ucx_stream_ == nullptr || transfer->in_flight == 0;
  };
  if (quiet_by(clock::now() + kQuietGrace)) return;
  // The transfer does not end by itself, because the other end or the network hangs.
  if (stream_session_) ucx_stream_->close(stream_session_);  // its transfers notice at the next check
  why_no_ucx_ = "the UCX transport hung and was closed";
  if (!quiet_by(clock::now() + kMaxClosing)) drop_ucx();  // destroys UCX's worker, which ends everything
}

// Ends all transfers of the UCX transport. The next connection may have a UCX transport again, with its own worker: UCX
// 1.22 crashed in a worker that heard again from a peer whose TCP connection had been closed by force.
void client::leave_ucx() {
  if (ucx_stream_ == nullptr) return;
  if (stream_session_) ucx_stream_->close(std::exchange(stream_session_, nullptr));
  for (const auto& one : std::exchange(ucx_operations_, {})) stop_ucx_transfer(*one);
  drop_ucx();
}

void client::drop_ucx() {
  ucx_staging_.clear();
  ucx_stream_.reset();
}

void client::break_ucx() {
  const lock_t hold(lock_);
  if (ucx_ready()) ucx_stream_->close(stream_session_);
  why_no_ucx_ = "the UCX transport was broken on purpose";
}

}  // namespace pl::store_client
