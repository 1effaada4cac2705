// SPDX-License-Identifier: Apache-2.0
// Large values by UCX. What is asked and answered stays on the connection; only the bytes take the lane:
//
//   put   alloc ─▶ token ─▶ chunks by UCX, and behind the last one on the connection: commit ─▶ answer
//   get   token drawn here ─▶ get ─▶ answer: how many bytes; chunks by UCX meanwhile
//
// A lane that breaks costs time, not the operation: it goes by the connection then. Before an operation ends, and before it
// is tried another way, UCX has let go of its memory.
#include <algorithm>
#include <cstring>
#include <random>

#include "base/env.hpp"
#include "base/text.hpp"
#include "store/client/client.hpp"
#include "ucx/rdma_device.hpp"

namespace pl::store_client {
namespace {

using store_wire::opcode;
namespace flag = store_wire::flag;

constexpr auto kQuietGrace = std::chrono::milliseconds(500);  // for chunks under way to end by themselves
constexpr auto kMostClosing = std::chrono::seconds(10);

std::uint64_t random_token() {
  std::random_device random;
  return (std::uint64_t{random()} << 32) | random();
}

bool is_loopback(const std::string& endpoint) {
  return endpoint.starts_with("127.") || endpoint.starts_with("localhost:") || endpoint.starts_with("[::1]:");
}

// Why this client wants no lane; empty: it does.
std::string lane_wanted_not(const address& where, lane_mode mode) {
  if (mode == lane_mode::off) return "PEERLANE_STORE_UCX=off";
  if (mode == lane_mode::on) return {};
  if (!where.socket.empty() || is_loopback(where.endpoint)) return "the store is on this host: shm-direct needs no network";
  if (!where.tls_certificate.empty())
    return "the connection is TLS and UCX does not encrypt (PEERLANE_STORE_UCX=on allows it)";
  if (!ucx::has_rdma_device()) return "there is no RDMA device here (/sys/class/infiniband)";
  return {};
}

}  // namespace

// What the greeting says of this end, if there shall be a lane.
std::optional<store_wire::lane_offer> client::offer_lane() {
  const auto mode = options_.ucx.value_or(lane_mode_of(env_read("PEERLANE_STORE_UCX").text).value_or(lane_mode::automatic));
  why_no_ucx_ = lane_wanted_not(options_.where, mode);
  if (!why_no_ucx_.empty()) return std::nullopt;
  if (lane_ == nullptr) {
    value_lane::options how;
    how.mode = mode;
    // A failure costs another copy, no more: the planner then goes through pinned memory of its own.
    how.pin = [this](void* at, std::size_t bytes) {
      if (auto pinned = options_.copies->register_host_memory(at, bytes, lane_device_))
        lane_staging_.push_back(*std::move(pinned));
    };
    auto opened = value_lane::open(std::move(how));
    if (!opened) {
      why_no_ucx_ = opened.error().message;
      return std::nullopt;
    }
    lane_ = *std::move(opened);
  }
  return lane_->offer();
}

void client::join_lane(const std::optional<store_wire::lane_offer>& theirs, const std::string& why_not) {
  if (lane_ == nullptr) return;
  if (!theirs) {
    why_no_ucx_ = why_not;
    return;
  }
  auto joined = lane_->connect(*theirs, theirs->secret);
  if (joined) lane_session_ = *std::move(joined);
  else why_no_ucx_ = joined.error().message;
}

bool client::check_path(operation& one, store_wire::path way, const char* what) const {
  if (way == store_wire::path::none && wire_) way = wire_->way();
  if (options_.require == store_wire::path::none || options_.require == way) return true;
  const bool read_only = way != store_wire::path::shm_direct && arena_ != nullptr && arena_->read_only();
  std::string why = read_only ? "the store's memory is mapped to read only" : why_no_shm_;
  if (options_.require == store_wire::path::ucx) why = lane_ready() ? "this get is in stream order" : why_no_ucx_;
  if (why.empty()) why = "that is how the store was reached";
  one.at = operation::stage::done;
  one.got.status = ENOTSUP;
  one.got.text =
      format("path %s was required, this %s would go by %s: %s", name_of(options_.require), what, name_of(way), why.c_str());
  return false;
}

// ---- Operations ----------------------------------------------------------------------------------------------------------

void client::submit_by_lane(const operation_ptr& one) {
  one->lane.reset();
  one->lane_answered = false;
  one->lane_bytes = 0;
  if (!lane_ready()) {
    asked_.erase(one->head.request_id);
    return go_by_socket(one, why_no_ucx_.empty() ? "the UCX lane broke" : why_no_ucx_);
  }
  if (one->mine.device) lane_device_ = one->mine.device->device_ordinal;
  const auto given = one->head.flags;
  one->head.flags |= flag::lane;
  if (one->how == operation::kind::put_lane) {
    ask(*one, opcode::alloc, {});
  } else {
    auto& in = one->lane = std::make_shared<lane_transfer>();
    in->token = random_token();
    in->bytes = one->mine.bytes;
    if (!one->mine.device) {
      in->pieces = {{reinterpret_cast<void*>(one->mine.address), one->mine.bytes}};
    } else {
      in->copy = [this, to = one->mine](std::uint64_t offset, std::byte* host, std::size_t bytes) {
        return options_.copies->copy({copy::direction::to_device, to.address + offset, copy::address_of(host), bytes},
                                     *to.device);
      };
    }
    lane_->add(lane_session_, in);
    on_lane_.push_back(one);
    auto fields = one->fields;
    fields.token = in->token;
    ask(*one, opcode::get, fields);
  }
  one->head.flags = given;
}

void client::lane_answered(const operation_ptr& one, const store_wire::head& what, const store_wire::tail& fields) {
  if (one->how == operation::kind::get_lane) {
    one->lane_answered = true;
    one->lane_bytes = what.value_bytes;
    one->got.fields = fields;
    return look_at_lane_operation(one);
  }
  one->token = fields.token.value_or(0);
  if (!lane_ready()) {  // it broke meanwhile
    give_grant_back(*one);
    asked_.erase(what.request_id);
    return go_by_socket(one, "the UCX lane broke");
  }
  auto& out = one->lane = std::make_shared<lane_transfer>();
  out->is_out = true;
  out->token = one->token;
  out->bytes = one->mine.bytes;
  if (!one->mine.device) {
    out->pieces = {{reinterpret_cast<void*>(one->mine.address), one->mine.bytes}};
  } else {
    out->copy = [this, from = one->mine, order = one->order](std::uint64_t offset, std::byte* host, std::size_t bytes) {
      return copy_out(from, offset, host, bytes, order);
    };
  }
  on_lane_.push_back(one);
  lane_->add(lane_session_, out);
  look_at_lane_operation(one);
}

// What has become of its transfer.
void client::look_at_lane_operation(const operation_ptr& one) {
  if (one->done() || !one->lane) return;
  auto& transfer = *one->lane;
  if (transfer.bad.code != 0) {
    if (one->lane_answered && one->how == operation::kind::put_lane) return give_grant_back(*one);  // and its answer tells
    const auto why = transfer.bad;
    if (one->how == operation::kind::put_lane) give_grant_back(*one);
    asked_.erase(one->head.request_id);
    if (why.code == ECONNABORTED || why.code == EBADMSG) return go_by_socket(one, why.message);
    return finish(one, why.code, why.message);
  }
  if (one->how == operation::kind::get_lane) {
    if (!one->lane_answered || transfer.moved_bytes < one->lane_bytes || transfer.under_way > 0) return;
    one->got.moved_bytes = transfer.moved_bytes;
    asked_.erase(one->head.request_id);
    return finish(one, 0);
  }
  if (one->lane_answered || transfer.begun_bytes < transfer.bytes) return;
  one->lane_answered = true;
  store_wire::tail fields = one->fields;
  fields.token = one->token;
  const bool part = (one->head.flags & flag::patch) != 0;
  if (!part && !fields.crc) fields.crc = transfer.crc;
  if (part && !fields.only) {
    const auto base = one->got.result.version;
    fields.only = base != 0 ? store_wire::precondition{store_wire::condition::if_version, base}
                            : store_wire::precondition{store_wire::condition::if_absent, 0};
  }
  ask(*one, opcode::commit, fields);
}

bool client::drive_lane() {
  if (lane_ == nullptr) return false;
  bool moved = false;
  while (lane_->progress()) moved = true;
  if (lane_session_ && lane_session_->lost) {
    // Not every end of a lane is seen at the other one.
    operation note;
    note.head.flags = flag::lane;
    if (wire_) ask(note, opcode::abort, {});
    const auto all = on_lane_;
    for (const auto& one : all) look_at_lane_operation(one);
    leave_lane();
    return true;
  }
  if (!moved) return false;
  const auto all = on_lane_;
  for (const auto& one : all) look_at_lane_operation(one);
  std::erase_if(on_lane_, [](const auto& one) { return one->done() || !one->lane; });
  return true;
}

// ---- The end -------------------------------------------------------------------------------------------------------------

// The store's room is given back, and nobody waits for the answer. Once.
void client::give_grant_back(operation& one) {
  if (one.token == 0 || !wire_) return;
  operation note;
  store_wire::tail fields;
  fields.token = std::exchange(one.token, 0);
  ask(note, opcode::abort, fields);
}

// Afterwards UCX touches the operation's memory no more.
void client::quiet_lane(operation& one) {
  if (!one.lane) return;
  const auto transfer = std::exchange(one.lane, nullptr);
  if (lane_ != nullptr && lane_session_) lane_->stop(lane_session_, transfer);
  transfer->stopped = true;
  const auto quiet_by = [&](clock::time_point end) {
    while (lane_ != nullptr && transfer->under_way > 0 && clock::now() < end)
      if (!lane_->progress()) std::this_thread::yield();
    return lane_ == nullptr || transfer->under_way == 0;
  };
  if (quiet_by(clock::now() + kQuietGrace)) return;
  // It does not end by itself: the other end hangs, or the network.
  if (lane_session_) lane_->close(lane_session_);  // its transfers see that when they are looked at
  why_no_ucx_ = "the UCX lane hung and was closed";
  if (!quiet_by(clock::now() + kMostClosing)) drop_lane();  // which takes UCX's worker down, and so ends everything
}

// All of the lane's transfers end. The next connection may have a lane again, with a worker of its own: UCX 1.22 crashed in
// a worker whose TCP connection had been closed by force and then heard of its peer again.
void client::leave_lane() {
  if (lane_ == nullptr) return;
  if (lane_session_) lane_->close(std::exchange(lane_session_, nullptr));
  for (const auto& one : std::exchange(on_lane_, {})) quiet_lane(*one);
  drop_lane();
}

void client::drop_lane() {
  lane_staging_.clear();
  lane_.reset();
}

void client::break_lane() {
  const lock_t hold(lock_);
  if (lane_ready()) lane_->close(lane_session_);
  why_no_ucx_ = "the lane was broken on purpose";
}

}  // namespace pl::store_client
