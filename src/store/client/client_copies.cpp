// SPDX-License-Identifier: Apache-2.0
// The store's memory is mapped here: values are copied between it and the caller's memory, and summed on the way.
//
//   host memory      granted or pinned ─▶ copied and summed in one pass; long ones in parts, with the checksum pool
//   put from a GPU   granted ─▶ one copy │ the GPU sums what it reads ─▶ both there: commit
//        or, where no kernel runs: copies of at most 16 MiB ─▶ the pool sums each one that has arrived ─▶ commit
#include <algorithm>
#include <cstring>

#include "arch/crc32c.hpp"
#include "base/text.hpp"
#include "store/client/client.hpp"

namespace pl::store_client {
namespace {

using store_protocol::opcode;

// Up to this size a copy is done at once, not started in the background
constexpr std::uint64_t kShortCopy = 256 << 10;
// For copies between host memories. Waking a thread takes 50 us, in which one thread copies 600 KiB. A value below 8
// MiB may still be read from the cache (crc32c_copy).
constexpr std::uint64_t kTogetherFrom = 4 << 20, kNonTemporalFrom = 8 << 20;
// From this size on, starting a kernel costs less than waking threads and waiting for the last part (1 MiB: 129 and 76
// us, 4 MiB: 152 and 202 us; H200, H100).
constexpr std::uint64_t kGpuSumFrom = 2 << 20;
// From this size on, the store writes a durable value to disk while it arrives, and gets progress reports: writing that
// many bytes takes the disk longer than a message takes.
constexpr std::uint64_t kReportProgressFrom = 16 << 20, kProgressStepBytes = 8 << 20;
// How long to wait, after the last byte, for a kernel that is delayed by other kernels. The kernel itself takes less
// time than the copy.
constexpr auto kGpuTimeout = std::chrono::microseconds(500);

}  // namespace

status client::copy_in(const memory& destination, std::string_view body) {
  if (!destination.device) {
    std::memcpy(reinterpret_cast<void*>(destination.address), body.data(), body.size());
    return {};
  }
  return options_.copies->copy({copy::direction::to_device, destination.address, copy::address_of(body.data()), body.size()},
                               *destination.device);
}

// The pieces of the arena that this operation reads or writes, each with its place in the caller's memory.
result<std::vector<copy::transfer>> client::pieces_of(operation& one) {
  const bool put = one.method == operation::kind::put_shm;
  const std::uint64_t whole = one.got.result.value_bytes;
  const std::uint64_t first = put && !one.is_patch() ? 0 : one.head.offset;
  if (first > whole)
    return failure{EINVAL, format("offset %llu is beyond the value's end (%llu bytes)",
                                  static_cast<unsigned long long>(first), static_cast<unsigned long long>(whole))};
  std::uint64_t left = std::min(one.mine.bytes, whole - first), skip = first, done = 0;
  std::vector<copy::transfer> out;
  for (const auto& piece : one.extents) {
    const std::uint64_t begin = std::min(skip, piece.bytes), part = std::min(left, piece.bytes - begin);
    skip -= begin;
    left -= part;
    if (part == 0) continue;
    const auto data = arena_->at(piece);
    if (!data) return data.error();
    const std::uint64_t theirs = copy::address_of(*data + begin), mine = one.mine.address + done;
    out.push_back(
        {put ? copy::direction::to_host : copy::direction::to_device, put ? theirs : mine, put ? mine : theirs, part});
    done += part;
  }
  if (left > 0) return failure{EPROTO, "the store named less memory than the value has bytes"};
  one.got.moved_bytes = done;
  return out;
}

// Copies between host memories: done here, or started in the checksum pool if long.
void client::copy_on_cpu(operation& one, const std::vector<copy::transfer>& pieces) {
  one.sum = 0;
  const bool non_temporal = one.got.moved_bytes >= kNonTemporalFrom;
  if (one.got.moved_bytes < kTogetherFrom) {
    for (const auto& piece : pieces)
      one.sum = arch::crc32c_copy(copy::host_pointer(piece.dst), copy::host_pointer(piece.src), piece.row_bytes, *one.sum,
                                  non_temporal);
    return;
  }
  one.phase = operation::stage::copying;
  for (const auto& piece : pieces) add_parts(one, piece, nullptr);
  give_all(one);
}

// Compares the checksum of a whole value that a get has read with the stored one, which detects overwritten memory.
status client::check_sum(const operation& one) {
  const auto& outcome = one.got.result;
  if (one.method != operation::kind::get_shm || !one.sum || !outcome.has_crc || one.head.offset != 0 ||
      one.got.moved_bytes != outcome.value_bytes || *one.sum == outcome.crc)
    return {};
  return failure{EBADMSG, format("the value (version %llu) in the store's memory has checksum 0x%08x, should have 0x%08x: a "
                                 "client that maps this memory has written to it, or it is faulty. Put the value again",
                                 static_cast<unsigned long long>(outcome.version), *one.sum, outcome.crc)};
}

// Starts the copy (GPU), or does it (host memory, short values). Called by the driving thread without the lock.
status client::begin_copy(operation& one) {
  auto pieces = pieces_of(one);
  if (!pieces) return pieces.error();
  const bool put = one.method == operation::kind::put_shm;
  const bool whole = put && !one.is_patch();  // then this checksum is the value's
  if (!one.mine.device) {
    copy_on_cpu(one, *pieces);
    return {};
  }
  arena_->prepare(one.extents, one.mine.device->device_ordinal);
  if (one.got.moved_bytes <= kShortCopy && !one.order.has) {
    for (const auto& piece : *pieces)
      if (auto done = options_.copies->copy(piece, *one.mine.device); !done) return done;
    return {};
  }
  one.phase = operation::stage::copying;
  const copy::planner::async_options options{one.order.has, one.order.stream};
  // The GPU's sum comes with the last byte, which would make the disk wait, so it is not used for values that report
  // progress.
  if (whole && sums_on_gpu_ && one.got.moved_bytes >= kGpuSumFrom && !one.reports_arrival) {
    auto sum = options_.copies->begin_checksum(*one.mine.device, one.mine.address, one.got.moved_bytes, options);
    if (sum) one.gpu_sum = *std::move(sum);
  }
  if (whole && !one.gpu_sum.is_there()) return begin_parts(one, *pieces);
  auto begun = options_.copies->begin(*pieces, options);
  if (!begun) {
    one.gpu_sum.give_up();
    return begun.error();
  }
  one.copies = *std::move(begun);
  if (!one.leave_to_stream) return {};
  return one.copies.make_wait(one.order.stream);
}

// Adds the parts of a piece: those that `copied` delivers, those already in memory, and those in host memory that the
// summing thread copies.
void client::add_parts(operation& one, const copy::transfer& piece, const std::shared_ptr<copy::completion>& copied) {
  for (std::size_t offset = 0; offset < piece.row_bytes; offset += checksum_pool::kPartBytes) {
    const auto& part = one.parts.emplace_back(std::make_shared<value_part>());
    auto* const memory = static_cast<std::byte*>(copy::host_pointer(piece.dst + offset));
    part->source = memory;
    part->bytes = std::min<std::size_t>(checksum_pool::kPartBytes, piece.row_bytes - offset);
    part->copied = copied;
    if (one.mine.device) continue;
    part->source = static_cast<const std::byte*>(copy::host_pointer(piece.src + offset));
    part->destination = memory;
    part->non_temporal = one.got.moved_bytes >= kNonTemporalFrom;
  }
}

void client::give_all(operation& one) {
  for (const auto& part : one.parts) part->given = true;
  checksum_pool_.call(one.parts.size());
  checksum_pool_.give(std::vector<std::shared_ptr<value_part>>(one.parts.begin(), one.parts.end()));
}

status client::begin_parts(operation& one, const std::vector<copy::transfer>& pieces) {
  one.sum = 0;
  std::uint64_t all_left = one.got.moved_bytes;
  copy::planner::async_options options{one.order.has, one.order.stream};
  for (auto piece : pieces) {
    for (std::size_t left = piece.row_bytes; left > 0;) {
      piece.row_bytes = std::min(left, checksum_pool::copy_bytes(all_left));
      options.turn = 1 - options.turn;
      auto begun = options_.copies->begin({&piece, 1}, options);
      if (!begun) {
        wait_for_copies(one);
        return begun.error();
      }
      add_parts(one, piece, std::make_shared<copy::completion>(*std::move(begun)));
      piece.dst += piece.row_bytes;
      piece.src += piece.row_bytes;
      left -= piece.row_bytes;
      all_left -= piece.row_bytes;
    }
  }
  checksum_pool_.call(one.parts.size());
  return {};
}

// Waits until no copy touches the memory, after a failure and before the memory changes hands.
void client::wait_for_copies(operation& one) {
  one.gpu_sum.give_up();
  (void)one.copies.wait().ok();
  for (const auto& part : one.parts)
    if (part->copied) (void)part->copied->wait().ok();
  while (std::any_of(one.parts.begin(), one.parts.end(),
                     [](const auto& part) { return part->given && !part->summed.load(std::memory_order_acquire); }))
    std::this_thread::yield();
  one.parts.clear();
}

// Returns true if the value is in the arena with its checksum. If other kernels keep the GPU's kernel from running, the
// sum is computed here.
result<bool> client::gpu_sum_ended(operation& one) {
  if (const auto sum = one.gpu_sum.test()) {
    one.sum = sum;
    return true;
  }
  const auto now = clock::now();
  if (one.gpu_sum_until == clock::time_point()) one.gpu_sum_until = now + kGpuTimeout;
  if (now < one.gpu_sum_until) return false;
  one.gpu_sum.give_up();
  one.sum = 0;
  const std::uint64_t moved = one.got.moved_bytes;
  const auto pieces = pieces_of(one);
  if (!pieces) return pieces.error();
  one.got.moved_bytes = moved;
  for (const auto& piece : *pieces) add_parts(one, piece, nullptr);
  give_all(one);
  return false;
}

result<bool> client::copy_ended(operation& one) {
  if (one.gpu_sum.is_there()) {
    const auto ended = one.copies.test();
    if (!ended) one.gpu_sum.give_up();
    if (!ended || !*ended) return ended;
    return gpu_sum_ended(one);
  }
  if (one.parts.empty()) return one.copies.test();
  // Copies arrive nearly in order; all parts of one copy arrive together.
  std::vector<std::shared_ptr<value_part>> arrived;
  for (const auto& part : one.parts) {
    if (part->given) continue;
    if (arrived.empty() || arrived.back()->copied != part->copied) {
      const auto ended = part->copied->test();
      if (!ended) {
        const failure reason = ended.error();
        wait_for_copies(one);
        return reason;
      }
      if (!*ended) break;
    }
    arrived.push_back(part);
  }
  if (!arrived.empty()) {
    for (const auto& part : arrived) part->given = true;
    checksum_pool_.give(arrived);
  }
  // Sums are combined while later parts are being copied, so that only the last parts are left at the end.
  for (; !one.parts.empty() && one.parts.front()->summed.load(std::memory_order_acquire); one.parts.pop_front()) {
    one.sum = arch::crc32c_combine(*one.sum, one.parts.front()->crc, one.parts.front()->bytes);
    one.arrived_bytes += one.parts.front()->bytes;
  }
  if (one.parts.empty()) return true;
  report_arrival(one);
  if (one.parts.back()->given) checksum_pool_.help();  // nothing else is left to do for this value
  return false;
}

bool client::may_report_arrival(const operation& one, std::optional<store_protocol::durability> of_pool) const {
  using store_protocol::durability;
  auto level = one.fields.level.value_or(durability::pool_default);
  if (level == durability::pool_default) level = of_pool.value_or(durability::volatile_);
  return one.method == operation::kind::put_shm && !one.is_patch() && one.mine.bytes >= kReportProgressFrom &&
         level != durability::volatile_ && (server_.capabilities & store_protocol::capability::arrived) != 0;
}

void client::report_arrival(operation& one) {
  if (!one.reports_arrival || one.arrived_bytes < one.reported_bytes + kProgressStepBytes) return;
  one.reported_bytes = one.arrived_bytes;
  operation note;  // answered, but not waited for
  note.head.pool_id = one.head.pool_id;
  note.head.value_bytes = one.reported_bytes;
  store_protocol::tail fields;
  fields.token = one.token;
  fields.level = one.fields.level;
  ask(note, opcode::arrived, fields);
}

bool client::run_copies(lock_t& hold) {
  bool moved = false;
  const std::size_t count = copies_.size();
  for (std::size_t i = 0; i < count && !copies_.empty(); ++i) {
    const auto one = copies_.front();
    copies_.pop_front();
    if (one->phase == operation::stage::to_copy) {
      moved = true;
      hold.unlock();
      const auto begun = begin_copy(*one);
      hold.lock();
      const bool begun_only = begun.ok() && one->phase == operation::stage::copying;
      if (!begun_only) {
        copied(one, begun ? check_sum(*one) : begun);
        continue;
      }
      if (one->leave_to_stream) {
        // The copy is queued on the stream; the pin is dropped when it has ended.
        one->unpin_later = true;
        asked_.erase(one->head.request_id);
        finish(one, 0);
      }
    }
    const auto ended = copy_ended(*one);
    if (ended.ok() && !*ended) {
      copies_.push_back(one);
      continue;
    }
    moved = true;
    if (one->unpin_later) {
      --noticed_;
      let_go(one->token, one->got.moved_bytes);
    } else {
      copied(one, ended.ok() ? check_sum(*one) : status(ended.error()));
    }
  }
  return moved;
}

void client::copied(const operation_ptr& one, const status& outcome) {
  if (!wire_ || one->done()) return;
  if (one->method == operation::kind::get_shm) {
    let_go(one->token, one->got.moved_bytes);
    asked_.erase(one->head.request_id);
    return finish(one, outcome.code(), outcome ? std::string() : outcome.error().message);
  }
  store_protocol::tail fields = outcome ? one->fields : store_protocol::tail{};
  fields.token = one->token;
  one->phase = operation::stage::asked;
  if (!outcome) {
    ask(*one, opcode::abort, fields);
    return finish(one, outcome.code(), outcome.error().message);
  }
  if (!fields.crc && !one->is_patch()) fields.crc = one->sum;
  if (one->is_patch() && !fields.only) {
    const auto base = one->got.result.version;
    fields.only = base != 0 ? store_protocol::precondition{store_protocol::condition::if_version, base}
                            : store_protocol::precondition{store_protocol::condition::if_absent, 0};
  }
  ask(*one, opcode::commit, fields);
}

}  // namespace pl::store_client
