// SPDX-License-Identifier: Apache-2.0
// Values that this server itself moves between its arena and device memory of the client (device_imports.hpp):
//
//   put   grant ─▶ the client's word is claimed ─▶ copies by DMA channel ─▶ checksums ─▶ word: ended ─▶ commit ─▶ answer
//   get   pin   ─▶ the client's word is claimed ─▶ copy  by DMA channel ─▶ word: ended ─▶ unpin ─▶ answer
//
// A request that cannot be served this way is answered with ENOTSUP, and the client takes another path. Everything runs
// on the connection's thread.
#include <algorithm>

#include "arch/crc32c.hpp"
#include "base/text.hpp"
#include "store/client/checksum_pool.hpp"
#include "store/server/device_claim.hpp"
#include "store/server/session.hpp"

namespace pl::store_server {
namespace {

namespace flag = store_protocol::flag;
using store_client::value_part;
using store_protocol::path;

constexpr std::uint64_t kSmallestPart = 64 << 10;  // its checksum takes 3 us
// Longer values are summed by several threads if there are any, because one thread takes 10 us for 256 KiB.
constexpr std::uint64_t kAloneBytes = 96 << 10;
// The steps of clients that copy the bytes themselves
constexpr std::uint64_t kReportFrom = 16u << 20, kReportBytes = 4u << 20;

}  // namespace

// A use of the client's memory. The destructor sets the word to "ended" at the latest.
struct session::device_transfer : device_claim {
  request_ptr request;
  std::string key;
  std::vector<store::segment> segments;
  std::uint64_t skip = 0, bytes = 0;  // of the value

  store::grant_id grant = 0;  // put
  std::uint64_t held_bytes = 0;
  std::size_t copies_left = 0;
  status outcome;
  std::deque<std::shared_ptr<value_part>> parts;  // in order; finished ones at the front are in `crc` and removed
  std::uint32_t crc = 0;
  bool has_crc = false;
  std::uint64_t summed_bytes = 0, reported_bytes = 0;

  std::uint64_t pin = 0;  // get
  store_protocol::outcome found;
};

void session::link_device(const request_ptr& request) {
  if (wire_->other().way != path::unix_socket)
    return answer(request, {ENOTSUP, "device memory is handed over through the unix socket only"});
  if (parts_.device == nullptr) return answer(request, {ENOTSUP, parts_.device_refusal});
  if (!wire_->may_ring()) return answer(request, {ENOTSUP, "the store's threads do not look for work (\"spin_us\": 0)"});
  if (imports_ != nullptr) return answer(request, {EEXIST, "this connection has a device link already"});
  const auto mine = parts_.principals.find(wire_->other().principal);
  auto made =
      device_imports::open({home_,
                            *parts_.device,
                            parts_.blocking,
                            wire_->other().principal,
                            {parts_.config.max_principal_device_bytes, parts_.config.max_principal_device_memories}},
                           account_share(mine, &account::device_bytes), account_share(mine, &account::device_memories));
  if (!made) return answer(request, made.error());
  imports_ = *std::move(made);
  answer_with_descriptor(request, {}, imports_->client_end());
}

void session::unlink_device() {
  if (imports_ != nullptr) imports_->close();
  imports_.reset();
}

status session::name_device_memory(const pending_request& request, device_claim& claim) const {
  const auto& asked = request.fields.device;
  if (!asked) return failure{EPROTO, "a request for device memory does not name it"};
  if (imports_ == nullptr || transfers_here == nullptr)
    return failure{ENOTSUP, "this connection has handed over no device memory"};
  claim.memory = imports_->find(asked->memory);
  const std::uint64_t size = claim.memory != nullptr ? claim.memory->bound.size_bytes() : 0;
  if (size == 0) return failure{ENOTSUP, format("device memory %u is not one of this connection's", asked->memory)};
  if (asked->slot >= store_protocol::kDeviceSlots || asked->offset > size || request.head.value_bytes > size - asked->offset)
    return failure{EINVAL, format("%llu bytes from %llu on lie outside of device memory %u, which has %llu",
                                  static_cast<unsigned long long>(request.head.value_bytes),
                                  static_cast<unsigned long long>(asked->offset), asked->memory,
                                  static_cast<unsigned long long>(size))};
  claim.part = *asked;
  claim.imports = imports_;
  return {};
}

result<std::shared_ptr<session::device_transfer>> session::make_device_transfer(const request_ptr& request,
                                                                                std::string_view key) {
  auto made = std::make_shared<device_transfer>();
  if (const status found = name_device_memory(*request, *made); !found) return found.error();
  made->request = request;
  made->key = key;
  return made;
}

// A failure of the channel or of pinning is no failure of the request: the client takes another path.
failure session::device_refusal(const failure& reason) {
  const bool is_over = reason.code == ECANCELED;
  if (!is_over) {
    ++parts_.counters.device_failures;
    parts_.log.write(event_log::level::warn, "device_transfer",
                     {{"principal", wire_->other().principal}, {"why", reason.message}});
  }
  return {is_over ? ECANCELED : ENOTSUP, reason.message};
}

void session::refuse_device(const request_ptr& request, const failure& reason) { answer(request, device_refusal(reason)); }

// ---- Puts ----------------------------------------------------------------------------------------------------------------

void session::put_from_device(const request_ptr& request, std::string_view key) {
  const bool is_whole = (request->head.flags & (flag::patch | flag::streamed)) == 0 && request->head.value_bytes > 0;
  if (!is_whole) return answer(request, {EINVAL, "the store fetches whole values from device memory"});
  if (request->head.value_bytes > parts_.engine.max_in_memory_bytes())
    return answer(request, {EFBIG, "the value does not fit into the memory tier"});
  auto made = make_device_transfer(request, key);
  if (!made) return answer(request, made.error());
  const device_transfer_ptr one = *std::move(made);
  until_room(
      request,
      [this, one]() -> status {
        std::uint64_t patch_at = 0;
        auto begun = begin(*one->request, one->key, {}, patch_at);
        if (begun.code() == ENOSPC && bypasses_memory(*one->request)) return failure{ENOTSUP, begun.error().message};
        if (!begun) return begun.error();
        one->grant = begun->id;
        one->segments = begun->segments;
        one->bytes = begun->length_bytes;
        return {};
      },
      [me = shared_from_this(), one](const status& begun) {
        if (!begun) return me->answer(one->request, begun.error());
        if (me->parts_.engine.is_in_private_arena(one->segments)) {
          (void)me->parts_.engine.abort(me->engine_session_, one->grant);
          return me->answer(one->request, kApart);
        }
        one->held_bytes = std::max(one->bytes, kMinHeldBytes);
        me->hold(one->held_bytes);
        me->bind_for_device(one->memory->gpu, one->segments, [me, one](const status& bound) {
          one->outcome = bound;
          me->fetch_from_device(one);
        });
      });
}

void session::abort_device_put(const device_transfer_ptr& one) {
  release_hold(std::exchange(one->held_bytes, 0));
  (void)parts_.engine.abort(engine_session_, one->grant);
}

void session::fetch_from_device(const device_transfer_ptr& one) {
  if (one->outcome && (closed_ || !one->claim())) one->outcome = failure{ECANCELED, "the client no longer waits for it"};
  if (!one->outcome) {
    abort_device_put(one);
    one->end_memory();
    return refuse_device(one->request, one->outcome.error());
  }
  const bool has_several = parts_.sums->thread_count() >= kSeveralThreads;
  one->has_crc = one->bytes > (has_several ? kAloneBytes : kUnsummedBytes);
  // Separate lists let the first parts be summed while the last ones are being copied. They use one channel, so that
  // they arrive one after another and not all at the end.
  std::vector<std::uint64_t> sizes;
  for (std::uint64_t left = one->bytes; left > 0; left -= sizes.back())
    sizes.push_back(one->has_crc ? store_client::checksum_pool::copy_bytes(left) : left);
  one->copies_left = sizes.size();
  if (one->has_crc) transfers_here->watch([me = shared_from_this(), one] { return me->device_sums_ended(one); });
  segment_walk walk(one->segments, 0);
  std::uint64_t device_address = one->memory->bound.address() + one->part.offset;
  for (const std::uint64_t size : sizes) {
    add_device_fetch(one, walk, device_address, size);
    device_address += size;
    if (one->has_crc) transfers_here->flush();
  }
  if (one->has_crc) parts_.sums->call(one->parts.size());  // the copies continue meanwhile
  else if (!parsing_) transfers_here->flush();
}

// The copy of the next `size` bytes, and the parts that it delivers.
void session::add_device_fetch(const device_transfer_ptr& one, segment_walk& walk, std::uint64_t device_address,
                               std::uint64_t size) {
  const auto& gpu = one->memory->gpu;
  device_queue::job copy{gpu, device_gpu::way::to_store, {}, {}, size < one->bytes};
  std::vector<std::shared_ptr<value_part>> parts;
  const std::uint64_t part_bytes = std::clamp(size / 8, kSmallestPart, store_client::checksum_pool::kPartBytes);
  walk.next(size, [&](std::uint64_t offset, std::uint64_t bytes) {
    gpu->add_blocks(copy.direction, offset, device_address, bytes, copy.blocks);
    device_address += bytes;
    for (std::uint64_t done = 0; one->has_crc && done < bytes; done += part_bytes) {
      parts.push_back(std::make_shared<value_part>());
      parts.back()->source = parts_.engine.arena().base + offset + done;
      parts.back()->bytes = std::min(part_bytes, bytes - done);
    }
  });
  one->parts.insert(one->parts.end(), parts.begin(), parts.end());
  copy.ended = [me = shared_from_this(), one, parts = std::move(parts)](const status& ended) {
    --one->copies_left;
    if (!ended && one->outcome) one->outcome = ended;
    if (one->outcome)
      for (const auto& part : parts) part->given = true;
    if (one->outcome && !parts.empty()) me->parts_.sums->give(parts);
    if (one->copies_left == 0) one->end_memory();
    if (one->copies_left == 0 && one->parts.empty()) me->device_put_arrived(one);
  };
  transfers_here->add(std::move(copy));
}

// Joins the checksums of parts that have arrived. Returns true if nothing of the value is in progress any more.
bool session::device_sums_ended(const device_transfer_ptr& one) {
  for (; !one->parts.empty() && one->parts.front()->summed.load(std::memory_order_acquire); one->parts.pop_front()) {
    one->crc = arch::crc32c_combine(one->crc, one->parts.front()->crc, one->parts.front()->bytes);
    one->summed_bytes += one->parts.front()->bytes;
  }
  if (!one->outcome) {  // parts that were handed out are being read
    const bool is_read = std::any_of(one->parts.begin(), one->parts.end(), [](const auto& part) {
      return part->given && !part->summed.load(std::memory_order_acquire);
    });
    if (is_read || one->copies_left > 0) return false;
    one->parts.clear();
  }
  if (!one->parts.empty() || one->copies_left > 0) {
    if (one->bytes >= kReportFrom && one->summed_bytes >= one->reported_bytes + kReportBytes) {
      one->reported_bytes = one->summed_bytes;
      (void)parts_.engine.arrived(engine_session_, one->grant, one->summed_bytes,
                                  put_options_of(one->request->fields, 0).level);
    }
    // While other threads are awake, this one watches the copies of other connections, which a long part would delay.
    if (one->copies_left == 0 && parts_.sums->is_asleep()) (void)parts_.sums->help();
    return false;
  }
  device_put_arrived(one);
  return true;
}

void session::device_put_arrived(const device_transfer_ptr& one) {
  const auto& request = one->request;
  if (one->outcome && closed_) one->outcome = failure{ECANCELED, "the client has disconnected"};
  if (!one->outcome) {
    abort_device_put(one);
    one->end_memory();
    return refuse_device(one->request, one->outcome.error());
  }
  status refusal;
  if (!may_still_write(request->head.pool_id)) refusal = permission_lost(request->head.pool_id);
  else if (one->has_crc && request->fields.crc && *request->fields.crc != one->crc)
    refusal = failure{
        EBADMSG, format("the value that arrived has checksum %08x, its writer says %08x", one->crc, *request->fields.crc)};
  if (!refusal) {
    abort_device_put(one);
    return answer(request, refusal.error());
  }
  store::commit_options options;
  options.put = put_options_of(request->fields, parts_.values.request_group(request->head.pool_id, one->key));
  options.take_crc = one->has_crc;
  options.check_crc = !one->has_crc && request->fields.crc.has_value();
  options.crc32c = one->has_crc ? one->crc : request->fields.crc.value_or(0);
  parts_.values.commit_async(engine_session_, one->grant, request->head.pool_id, one->key, options,
                             [me = shared_from_this(), one](result<store::put_result> done) {
                               me->run_on_home_thread([me, one, done = std::move(done)] {
                                 me->release_hold(std::exchange(one->held_bytes, 0));
                                 if (!done) return me->answer(one->request, done.error());
                                 me->parts_.counters.bytes(path::gpu_direct, true, one->bytes);
                                 store_protocol::tail fields;
                                 fields.result = me->outcome_of(*done, one->bytes, path::gpu_direct);
                                 me->answer(one->request, {}, std::move(fields));
                               });
                             });
}

// ---- Gets ----------------------------------------------------------------------------------------------------------------

void session::send_to_device(const request_ptr& request, const store::pinned_value& value) {
  const auto refuse = [&](const failure& reason) {
    let_go({&value.pin, 1});
    answer(request, reason);
  };
  if (parts_.engine.is_in_private_arena(value.segments)) return refuse(kApart);  // its pool's list has just changed
  auto made = make_device_transfer(request, {});
  if (!made) return refuse(made.error());
  const device_transfer_ptr one = *std::move(made);
  const std::uint64_t whole = value.info.length_bytes;
  one->skip = request->head.offset;
  if (one->skip > whole)
    return refuse({EINVAL, format("offset %llu is beyond the value's end (%llu bytes)",
                                  static_cast<unsigned long long>(one->skip), static_cast<unsigned long long>(whole))});
  one->bytes = std::min(request->head.value_bytes, whole - one->skip);
  one->pin = value.pin;
  one->segments = value.segments;
  one->found = outcome_of(value.info);
  one->found.way = path::gpu_direct;
  hold_pin(value.pin, whole);
  bind_for_device(one->memory->gpu, one->segments, [me = shared_from_this(), one](const status& bound) {
    one->outcome = bound;
    me->write_to_device(one);
  });
}

void session::write_to_device(const device_transfer_ptr& one) {
  if (one->outcome && (closed_ || !one->claim())) one->outcome = failure{ECANCELED, "the client no longer waits for it"};
  if (!one->outcome || one->bytes == 0) return device_get_ended(one);
  const auto& gpu = one->memory->gpu;
  device_queue::job copy{gpu, device_gpu::way::to_device, {}, {}};
  std::uint64_t device_address = one->memory->bound.address() + one->part.offset;
  segment_walk(one->segments, one->skip).next(one->bytes, [&](std::uint64_t offset, std::uint64_t bytes) {
    gpu->add_blocks(copy.direction, offset, device_address, bytes, copy.blocks);
    device_address += bytes;
  });
  copy.ended = [me = shared_from_this(), one](const status& ended) {
    one->outcome = ended;
    me->device_get_ended(one);
  };
  transfers_here->add(std::move(copy));
  if (!parsing_) transfers_here->flush();
}

void session::device_get_ended(const device_transfer_ptr& one) {
  one->end_memory();
  let_go({&one->pin, 1});
  if (!one->outcome) return refuse_device(one->request, one->outcome.error());
  parts_.counters.bytes(path::gpu_direct, false, one->bytes);
  store_protocol::tail fields;
  fields.result = one->found;
  answer(one->request, {}, std::move(fields), {}, one->bytes);
}

}  // namespace pl::store_server
