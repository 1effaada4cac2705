// SPDX-License-Identifier: Apache-2.0
// Grants: a writer fills the value's memory itself and then commits it; it may report progress meanwhile.
#include <algorithm>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.hpp"
#include "store/engine/engine.hpp"
#include "store/engine/engine_impl.hpp"

namespace pl::store {
namespace {

// Computes the checksum unless the value is being written to disk. EBADMSG if it is known to be wrong.
status settle_checksum(const engine::impl& owner, commit_unit& unit) {
  const operation& op = unit.operations.front();
  value& made = *op.made;
  unit.crc_missing = owner.is_large(made.length_bytes, unit.level);
  if (!unit.crc_missing) made.crc = crc_of(made);
  return unit.crc_missing ? status() : compare_checksum(unit);
}

}  // namespace

status check_pool_quota(const pool_state& pool, std::uint64_t length_bytes) {
  if (!pool.has_quota()) return {};
  const auto limits = pool.options();
  if (limits->quota_bytes == 0 || length_bytes <= limits->quota_bytes) return {};
  return failure{EDQUOT, "store: pool " + shown(pool.name) + ": a value greater than its quota"};
}

// Submits a unit whose early write is complete or nearly so. Its final options may differ from those assumed at the
// start.
void engine::impl::submit_when_written(unit_ref unit, early_write early) {
  const std::uint64_t length = unit->operations.front().made->length_bytes;
  auto shared = std::make_shared<unit_ref>(std::move(unit));
  early.finish(length, [this, shared](const status& written) {
    unit_ref back = std::move(*shared);
    value& made = *back->operations.front().made;
    if (!written || back->crc_missing || !is_large(made.length_bytes, back->level)) {
      if (std::exchange(made.owns_extents, false)) space->release(made.take_on_disk());
    } else {
      count(state.early_writes);
    }
    submit(std::move(back));
  });
}

result<grant> engine::begin_put(session_id session, pool_id pool, std::string_view key, std::uint64_t length_bytes,
                                const begin_options& options) {
  auto found = impl_->need_pool(pool);
  if (!found) return std::move(found).error();
  if (status good = impl_->check_key(key); !good) return std::move(good).error();
  if (status able = impl_->state.writable(); !able) return std::move(able).error();
  status fits = check_pool_quota(**found, length_bytes);
  if (fits) fits = impl_->check_owner(**found, key, options.owner, length_bytes, options.request);
  if (!fits)
    return impl_->why_refused(**found, key, options.precondition, options.expected_version, std::move(fits).error());
  // A small value may be committed as volatile, whatever the pool's level.
  const bool small = length_bytes <= arena::kSlotBytes;
  const auto level = small ? durability::volatile_ : (*found)->level(options.level);
  if (status good = impl_->check_cached_put(**found, (*found)->level(durability::pool_default), 0, length_bytes); !good)
    return std::move(good).error();
  impl_->trim_cache(**found, length_bytes);
  auto made = impl_->make_value(length_bytes, options.deadline, impl_->place_of(**found, level));
  if (!made) return std::move(made).error();
  grant given;
  given.segments = (*made)->segments().copy();
  given.length_bytes = length_bytes;
  std::string full = full_key(pool, key);
  if (options.from_current) {
    auto now = impl_->acquire(**found, full, options.deadline);
    if (!now && now.error().code != ENOENT) return std::move(now).error();
    std::vector<std::span<std::byte>> source = now ? (*now)->spans() : std::vector<std::span<std::byte>>{};
    if (now) given.base_version = (*now)->version;
    std::size_t offset = 0;
    for (std::span<std::byte> target : (*made)->spans()) {
      while (!target.empty()) {
        while (offset < source.size() && source[offset].empty()) ++offset;
        if (offset == source.size()) {
          std::memset(target.data(), 0, target.size());
          break;
        }
        const std::size_t size = std::min(target.size(), source[offset].size());
        std::memcpy(target.data(), source[offset].data(), size);
        target = target.subspan(size);
        source[offset] = source[offset].subspan(size);
      }
    }
  }
  given.id = impl_->owners.add(session, open_grant{*found, std::move(full), std::move(*made)});
  if (given.id == 0) return failure{EBADF, "store: no such session"};
  return given;
}

void engine::commit_async(session_id session, grant_id id, const commit_options& options, completion<put_result> done) {
  auto taken = impl_->owners.take_grant(session, id);
  if (!taken) return done(failure{EBADF, "store: no such grant in this session"});
  impl_->commit_grant(*std::move(taken), options, std::move(done));
}

void engine::impl::commit_grant(open_grant taken, const commit_options& given, completion<put_result> done,
                                run_kind of_run) {
  if (closed) return done(failure{ESHUTDOWN, "store: closed"});
  if (status good = check_given(given.put.level); !good) return done(good.error());
  if (status good = check_request(given.put.request); !good) return done(good.error());
  taken.made->user_flags = given.put.user_flags;
  auto unit = std::make_unique<commit_unit>();
  unit->level = taken.pool->level(given.put.level);
  unit->is_of_long_run = of_run == run_kind::long_;
  unit->request = given.put.request;
  if (status good = check_cached_put(*taken.pool, unit->level, given.put.ttl_ms, taken.made->length_bytes); !good)
    return done(good.error());
  taken.made->join_cache(taken.pool->cache, given.put.ttl_ms);
  taken.made->join_owner(given.put.owner);
  if (unit->level == durability::volatile_ && !taken.pool->cache && !taken.made->is_sole_copy_held) {
    if (!memory->mark_sole_copy(taken.made->segments().span()))
      return done(failure{ENOSPC, "store: volatile values fill what they may take of the memory tier"});
    taken.made->is_sole_copy_held = true;
  }
  unit->operations.push_back(operation{operation::kind::put,
                                       std::move(taken.full),
                                       std::move(taken.made),
                                       given.put.precondition,
                                       given.put.expected_version,
                                       0,
                                       {},
                                       given.put.copy});
  unit->pool = std::move(taken.pool);
  if (given.check_crc) unit->expected_crc = given.crc32c;
  if (given.take_crc) {
    unit->operations.front().made->crc = given.crc32c;
  } else if (status right = settle_checksum(*this, *unit); !right) {
    return done(right.error());
  }
  unit->done = answer_put(*this, std::move(done));
  if (taken.early.has_begun()) return submit_when_written(std::move(unit), std::move(taken.early));
  if (of_run != run_kind::none && unit->level != durability::volatile_ &&
      !order.enter(unit, gets_extents(*unit, *unit->operations.front().made)))
    return;
  submit(std::move(unit));
}

status engine::arrived(session_id session, grant_id id, std::uint64_t bytes, durability level) {
  if (status good = check_given(level); !good) return good;
  status outcome;
  const bool found = impl_->owners.with_grant(session, id, [&](open_grant& grant) {
    const std::uint64_t length = grant.made->length_bytes;
    if (bytes > length) {
      outcome = failure{EINVAL, format("store: %llu bytes were written into a grant of %llu",
                                       static_cast<unsigned long long>(bytes), static_cast<unsigned long long>(length))};
      return;
    }
    if (!grant.early.has_begun()) {
      if (impl_->closed || !impl_->is_large(length, grant.pool->level(level)) || impl_->writes_early.exchange(true)) return;
      grant.early.begin(*impl_->writer, grant.made, [owner = impl_.get()] { owner->writes_early = false; });
    }
    grant.early.reach(bytes);
  });
  if (!found) return failure{EBADF, "store: no such grant in this session"};
  return outcome;
}

result<put_result> engine::commit(session_id session, grant_id id, const commit_options& options) {
  return wait_for<put_result>([&](completion<put_result> done) { commit_async(session, id, options, std::move(done)); });
}

status engine::abort(session_id session, grant_id id) {
  if (!impl_->owners.take_grant(session, id)) return failure{EBADF, "store: no such grant in this session"};
  return {};
}

}  // namespace pl::store
