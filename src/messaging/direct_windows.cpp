// SPDX-License-Identifier: Apache-2.0
#include "messaging/direct_windows.hpp"

#include <sys/mman.h>
#include <sys/uio.h>

#include <algorithm>
#include <atomic>
#include <cerrno>

#include "base/shortage.hpp"
#include "base/text.hpp"
#include "os/sealed_memory.hpp"

namespace pl::messaging {
namespace {

// Bytes between two checks whether the window is still live.
constexpr std::size_t kStep = 1 << 20;

failure window_ended() { return {EINVAL, "the target refuses: its window has ended, or the range leaves it"}; }

}  // namespace

std::uint64_t apply_atomic(void* word, const atomic_request& request) noexcept {
  std::atomic_ref<std::uint64_t> target(*static_cast<std::uint64_t*>(word));
  switch (request.op) {
    case atomic_op::add:
      return target.fetch_add(request.operand);
    case atomic_op::bit_and:
      return target.fetch_and(request.operand);
    case atomic_op::bit_or:
      return target.fetch_or(request.operand);
    case atomic_op::bit_xor:
      return target.fetch_xor(request.operand);
    case atomic_op::swap:
      return target.exchange(request.operand);
    case atomic_op::compare_swap: {
      std::uint64_t seen = request.compare;
      target.compare_exchange_strong(seen, request.operand);
      return seen;
    }
  }
  return target.load();
}

// ---- Pages

shared_pages::~shared_pages() {
  if (data_ != nullptr) munmap(data_, bytes_);
}

status shared_pages::map(int fd, std::size_t bytes) {
  void* const mapped = mmap(nullptr, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (mapped == MAP_FAILED)
    return failure{errno,
                   format("a window of %s cannot be mapped: %s", format_size(bytes).c_str(), errno_text(errno).c_str())};
  data_ = static_cast<std::byte*>(mapped);
  bytes_ = bytes;
  return {};
}

result<shared_pages> shared_pages::make(std::size_t bytes) {
  if (bytes == 0) return failure{EINVAL, "a window of 0 bytes: give its size"};
  auto made = sealed_memory::make("peerlane-window", bytes);
  if (!made) return std::move(made).error();
  shared_pages out;
  if (auto done = out.map(made->fd.get(), bytes); !done) return done.error();
  out.fd_ = std::move(made->fd);
  out.inode_ = made->inode;
  return out;
}

result<shared_pages> shared_pages::open(std::int32_t pid, const window_place& place) {
  const auto opened = sealed_memory::open(pid, place.fd, place.inode, place.bytes);
  if (!opened) return opened.error();
  shared_pages out;
  if (auto done = out.map(opened->fd.get(), place.bytes); !done) return done.error();
  madvise(out.data_, out.bytes_, MADV_DONTFORK);
  return out;
}

window_place shared_pages::place() const noexcept {
  return {window_place::kind::shared, fd_.get(), inode_, reinterpret_cast<std::uint64_t>(data_), bytes_};
}

// ---- Opening, and this process's windows

result<window_table::name> direct_windows::make_table() {
  auto made = window_table::make(context_.size);
  if (!made) return std::move(made).error();
  own_ = *std::move(made);
  return own_.own_name();
}

void direct_windows::open_table(int rank, const window_table::name& file) {
  auto opened = window_table::open(file, context_.size);
  if (opened) tables_[static_cast<std::size_t>(rank)] = *std::move(opened);
}

void direct_windows::publish_gpu(std::uint32_t id, const memory& range) {
  if (!own_.is_open() || !context_.options.use_channels) return;
  if (auto place = gpu_.share(id, range)) own_.publish(id, *place);
  else gpu_.refuse(std::move(place).error().message);
}

int direct_windows::user(std::uint32_t id) const noexcept {
  for (const auto& each : context_.peers)
    if (each.rank != context_.rank && !each.is_lost && !each.is_dead && own_.is_used_by(each.rank, id)) return each.rank;
  return -1;
}

// ---- Windows of other processes

void direct_windows::forget(int rank) {
  std::erase_if(known_, [&](const auto& each) { return each.first >> 32 == static_cast<std::uint64_t>(rank); });
  tables_[static_cast<std::size_t>(rank)] = {};
}

void direct_windows::drop_ended() {
  std::erase_if(
      known_, [&](const auto& each) { return !tables_[each.first >> 32].is_live(static_cast<std::uint32_t>(each.first)); });
}

direct_windows::known_window* direct_windows::learn(const window::key_t& key, const window_place& place) {
  drop_ended();
  known_window found{{}, {}, place, false};
  if (place.memory == window_place::kind::shared) {
    const auto& owner = tables_[static_cast<std::size_t>(key.rank)].own_name();
    auto pages = shared_pages::open(owner.pid, place);
    if (!pages && is_shortage_or_full(pages.code())) return nullptr;  // the next operation may map it
    if (pages) found.pages = *std::move(pages);
    else found.is_denied = true;
  }
  return &(known_[number_of(key)] = std::move(found));
}

direct_windows::known_window* direct_windows::find(const window::key_t& key, std::uint64_t offset, std::uint64_t bytes,
                                                   std::optional<status>& outcome) {
  auto& table = tables_[static_cast<std::size_t>(key.rank)];
  if (!table.is_open()) return nullptr;
  const auto have = known_.find(number_of(key));
  known_window* found = nullptr;
  if (have != known_.end() && table.is_live(key.id)) found = &have->second;
  else {
    window_place place;
    const auto state = table.find(key.id, place);
    if (state == window_table::state::ended) outcome = status(window_ended());
    if (state != window_table::state::live) return nullptr;
    found = learn(key, place);
  }
  if (found == nullptr || found->is_denied) return nullptr;
  const bool is_inside = offset <= found->place.bytes && bytes <= found->place.bytes - offset;
  if (!is_inside) outcome = status(window_ended());
  return is_inside ? found : nullptr;
}

std::optional<status> direct_windows::move(const window::key_t& key, std::uint64_t offset, const memory& local,
                                           bool is_put) {
  std::optional<status> outcome;
  known_window* const found = find(key, offset, local.bytes, outcome);
  if (found == nullptr) return outcome;
  if (found->place.memory == window_place::kind::owned) return move_owned(key, *found, offset, local, is_put);
  if (found->place.memory == window_place::kind::device) return move_device(key, *found, offset, local, is_put);
  std::byte* const remote = found->pages.data() + offset;
  const auto access = context_.touch_of(local);
  auto done = is_put ? context_.buffers.read(local, 0, remote, local.bytes, access)
                     : context_.buffers.write(local, 0, remote, local.bytes, access);
  if (done && !tables_[static_cast<std::size_t>(key.rank)].is_live(key.id))
    return status(failure{ECANCELED, "the target has ended its window meanwhile"});
  return done;
}

std::optional<result<std::uint64_t>> direct_windows::atomic(const window::key_t& key, std::uint64_t offset,
                                                            const atomic_request& request) {
  std::optional<status> outcome;
  known_window* const found = find(key, offset, sizeof(std::uint64_t), outcome);
  if (found == nullptr) return outcome ? std::optional<result<std::uint64_t>>(outcome->error()) : std::nullopt;
  if (found->place.memory != window_place::kind::shared) return std::nullopt;
  return apply_atomic(found->pages.data() + offset, request);
}

// An import keeps the memory allocated, even if the process of its owner ends.
std::optional<status> direct_windows::move_device(const window::key_t& key, known_window& found, std::uint64_t offset,
                                                  const memory& local, bool is_put) {
  if (!context_.options.use_channels) return std::nullopt;
  auto& table = tables_[static_cast<std::size_t>(key.rank)];
  if (!table.enter(context_.rank, key.id)) return status(window_ended());
  const auto leave = [&](std::optional<status> outcome) { return table.leave(context_.rank), outcome; };
  if (found.device == nullptr) {
    if (check_owner(table.own_name()) == owner_state::gone) return leave(status(owner_gone(key.rank)));
    auto opened = gpu_.open(table.own_name(), found.place);
    if (!opened) {
      gpu_.refuse(opened.error().message);
      found.is_denied = !is_shortage_or_full(opened.code());
      return leave(std::nullopt);
    }
    found.device = *std::move(opened);
  }
  const auto is_live = [&] { return table.is_live(key.id); };
  return leave(gpu_.move(*found.device, found.place.address + offset, local, is_put, is_live));
}

std::optional<status> direct_windows::set_gpu_word(const window::key_t& key, std::uint64_t offset, std::uint64_t value) {
  std::optional<status> outcome;
  if (key.rank == context_.rank) return std::nullopt;
  known_window* const found = find(key, offset, sizeof value, outcome);
  const bool is_stored = found != nullptr && found->place.memory == window_place::kind::device &&
                         (found->place.address + offset) % sizeof value == 0;
  if (!is_stored) return outcome;
  memory word;
  word.set_host(copy::address_of(&value), sizeof value);
  return move_device(key, *found, offset, word, true);
}

void direct_windows::release_ended() {
  std::erase_if(known_, [&](const auto& each) {
    return each.second.device != nullptr && !tables_[each.first >> 32].is_live(static_cast<std::uint32_t>(each.first));
  });
}

// Moves all bytes, usually with one system call. Returns 0 or an errno value.
int direct_windows::move_some(const window_table::name& target, std::uint64_t remote, void* local, std::size_t bytes,
                              bool is_put) {
  for (std::size_t done = 0; done != bytes;) {
    const iovec own_part{static_cast<std::byte*>(local) + done, bytes - done};
    const iovec remote_part{copy::host_pointer(remote + done), bytes - done};
    const auto moved = is_put ? process_vm_writev(target.pid, &own_part, 1, &remote_part, 1, 0)
                              : process_vm_readv(target.pid, &own_part, 1, &remote_part, 1, 0);
    if (moved <= 0) return moved < 0 ? errno : EFAULT;
    done += static_cast<std::size_t>(moved);
  }
  return 0;
}

direct_windows::owner_state direct_windows::check_owner(const window_table::name& target) {
  std::uint64_t probe = 0;
  const int code = move_some(target, target.probe_address, &probe, sizeof probe, false);
  if (code == EPERM || code == ENOSYS || code == EACCES) return owner_state::denied;
  return code == 0 && probe == target.probe_value ? owner_state::alive : owner_state::gone;
}

failure direct_windows::owner_gone(int rank) {
  return {ECONNRESET, format("rank %d is gone: its process has ended or runs another program", rank)};
}

std::optional<status> direct_windows::move_owned(const window::key_t& key, known_window& found, std::uint64_t offset,
                                                 const memory& local, bool is_put) {
  const auto rank = static_cast<std::size_t>(key.rank);
  if (!context_.options.use_cma || is_denied_[rank]) return std::nullopt;
  auto& table = tables_[rank];
  const auto& target = table.own_name();
  if (!table.enter(context_.rank, key.id)) return status(window_ended());
  const auto leave = [&](std::optional<status> outcome) { return table.leave(context_.rank), outcome; };

  const auto owner = check_owner(target);
  if (owner == owner_state::denied) {
    is_denied_[rank] = true;
    return leave(std::nullopt);
  }
  if (owner == owner_state::gone) return leave(status(owner_gone(key.rank)));

  if (local.is_device && bounce_.empty()) bounce_.resize(kStep);
  for (std::size_t done = 0; done < local.bytes;) {
    const std::size_t bytes = std::min(local.bytes - done, kStep);
    void* const place = local.is_device ? bounce_.data() : copy::host_pointer(local.address + done);
    const auto access = context_.touch_of(local);
    if (local.is_device && is_put)
      if (auto read = context_.buffers.read(local, done, place, bytes, access); !read) return leave(read);
    if (const int code = move_some(target, found.place.address + offset + done, place, bytes, is_put); code != 0) {
      // For example memory of a driver, which only the target itself can access.
      found.is_denied = code == EFAULT && done == 0;
      if (found.is_denied) return leave(std::nullopt);
      return leave(status(failure{code == ESRCH ? ECONNRESET : code, format("the window of rank %d could not be reached: %s",
                                                                            key.rank, errno_text(code).c_str())}));
    }
    if (local.is_device && !is_put)
      if (auto written = context_.buffers.write(local, done, place, bytes, access); !written) return leave(written);
    done += bytes;
    if (!table.is_live(key.id)) return leave(status(failure{ECANCELED, "the target has ended its window meanwhile"}));
  }
  return leave(status{});
}

}  // namespace pl::messaging
