// SPDX-License-Identifier: Apache-2.0
#include "sim/store_buffer.hpp"

#include <time.h>

#include <algorithm>
#include <condition_variable>
#include <cstring>
#include <map>
#include <system_error>
#include <utility>

#include "sim/stream.hpp"

namespace pl::sim {

std::uint32_t g_store_delay_us = 0;

namespace {

constexpr std::size_t kMaxHeld = 256;  // beyond that stores arrive early, which is always allowed

struct all_buffers {
  std::mutex mutex;  // before a buffer's own
  std::condition_variable changed;
  std::vector<std::shared_ptr<store_buffer>> known;      // those that may hold something
  std::map<int, std::shared_ptr<store_buffer>> network;  // by target device; -1: the host
  bool has_drainer = false;
};

all_buffers& buffers() {
  static auto* const instance = new all_buffers;
  return *instance;
}

thread_local const std::shared_ptr<store_buffer>* t_writer = nullptr;

std::vector<std::shared_ptr<store_buffer>> known_buffers() {
  const std::lock_guard lock(buffers().mutex);
  return buffers().known;
}

void nap() {
  const std::uint64_t most_ns = std::uint64_t{__atomic_load_n(&g_store_delay_us, __ATOMIC_RELAXED)} * 1000 + 1000;
  const std::uint64_t ns = random_below(most_ns);
  const timespec pause{static_cast<time_t>(ns / 1'000'000'000), static_cast<long>(ns % 1'000'000'000)};
  nanosleep(&pause, nullptr);
}

// Lets held stores arrive little by little, for ever.
void drain_in_the_background() {
  auto& all = buffers();
  for (;;) {
    {
      std::unique_lock lock(all.mutex);
      all.changed.wait(lock, [&] { return !all.known.empty(); });
    }
    nap();
    for (const auto& buffer : known_buffers()) {
      if (buffer->drain_some()) continue;
      const std::lock_guard lock(all.mutex);
      if (buffer->forget_if_empty()) std::erase(all.known, buffer);
    }
  }
}

void make_known(const std::shared_ptr<store_buffer>& buffer) {
  auto& all = buffers();
  const std::lock_guard lock(all.mutex);
  all.known.push_back(buffer);
  try {
    if (!all.has_drainer) start_thread(&drain_in_the_background);
    all.has_drainer = true;
  } catch (const std::system_error&) {}  // whoever waits for a stream drains its stores, and the next buffer tries again
  all.changed.notify_all();
}

template <class T>
bool store_as(std::byte* destination, const std::byte* source, std::size_t bytes) {
  if (reinterpret_cast<std::uintptr_t>(destination) % sizeof(T) != 0 || bytes % sizeof(T) != 0) return false;
  for (std::size_t offset = 0; offset < bytes; offset += sizeof(T)) {
    T word;
    std::memcpy(&word, source + offset, sizeof word);
    __atomic_store_n(reinterpret_cast<T*>(destination + offset), word, __ATOMIC_RELEASE);
  }
  return true;
}

std::shared_ptr<store_buffer> network_to(int device) {
  auto& all = buffers();
  const std::lock_guard lock(all.mutex);
  auto& found = all.network[device];
  if (found == nullptr) found = std::make_shared<store_buffer>(device, true);
  return found;
}

}  // namespace

void set_store_delay(std::uint32_t us) {
  if (us == 0) settle_all_stores();
  __atomic_store_n(&g_store_delay_us, us, __ATOMIC_RELAXED);
}

void store_words(std::byte* destination, const std::byte* source, std::size_t bytes) {
  if (!store_as<std::uint64_t>(destination, source, bytes) && !store_as<std::uint32_t>(destination, source, bytes))
    store_as<std::uint8_t>(destination, source, bytes);
}

void store_buffer::hold(std::byte* destination, const void* source, std::size_t bytes, object_ref keep,
                        store_author author) {
  bool is_new = false;
  {
    const std::lock_guard lock(mutex_);
    const auto* first = static_cast<const std::byte*>(source);
    held_.push_back({destination, std::vector<std::byte>(first, first + bytes), std::move(keep), author});
    if (held_.size() > kMaxHeld) drain_one_locked(random_below(held_.size()));
    is_new = !std::exchange(is_known_, true);
  }
  if (is_new) make_known(shared_from_this());
}

// The given store, or one that must arrive before it.
void store_buffer::drain_one_locked(std::size_t index) {
  if (is_fifo_) index = 0;
  for (std::size_t earlier = 0; earlier < index; ++earlier)
    if (held_[earlier].overlaps(held_[index].destination, held_[index].bytes.size())) index = earlier;
  store_words(held_[index].destination, held_[index].bytes.data(), held_[index].bytes.size());
  held_.erase(held_.begin() + static_cast<std::ptrdiff_t>(index));
}

void store_buffer::drain_locked() {
  while (!held_.empty()) drain_one_locked(random_below(held_.size()));
}

void store_buffer::drain() {
  const std::lock_guard lock(mutex_);
  drain_locked();
}

void store_buffer::drain_of(store_author author) {
  const std::lock_guard lock(mutex_);
  for (;;) {
    const auto mine = std::find_if(held_.begin(), held_.end(), [&](const store& s) {
      return s.author.block == author.block && (s.author.thread == author.thread || s.author.thread == store_author::kAll);
    });
    if (mine == held_.end()) return;
    drain_one_locked(static_cast<std::size_t>(mine - held_.begin()));
  }
}

void store_buffer::join_block(std::uint64_t block) {
  const std::lock_guard lock(mutex_);
  for (auto& s : held_)
    if (s.author.block == block) s.author.thread = store_author::kAll;
}

void store_buffer::drain_if_overlapping(const std::byte* data, std::size_t bytes) {
  const std::lock_guard lock(mutex_);
  if (std::any_of(held_.begin(), held_.end(), [&](const store& s) { return s.overlaps(data, bytes); })) drain_locked();
}

bool store_buffer::drain_some() {
  const std::lock_guard lock(mutex_);
  for (std::size_t count = random_below(held_.size() + 1); count > 0; --count) drain_one_locked(random_below(held_.size()));
  return !held_.empty();
}

bool store_buffer::forget_if_empty() {
  const std::lock_guard lock(mutex_);
  if (held_.empty()) is_known_ = false;
  return held_.empty();
}

writer_scope::writer_scope(const std::shared_ptr<store_buffer>& buffer) : before_(std::exchange(t_writer, &buffer)) {}
writer_scope::~writer_scope() { t_writer = before_; }

std::shared_ptr<store_buffer> current_writer() { return t_writer != nullptr ? *t_writer : nullptr; }

void order_stores() {
  if (!stores_are_delayed() || t_writer == nullptr) return;
  (*t_writer)->drain();
}

void observe(const std::byte* data, std::size_t bytes, int device) {
  if (!stores_are_delayed()) return;
  for (const auto& buffer : known_buffers())
    if (buffer->device() == device) buffer->drain_if_overlapping(data, bytes);
}

void flush_network_writes(int device) {
  if (!stores_are_delayed()) return;
  if (device >= 0) return network_to(device)->drain();
  for (const auto& d : devices()) network_to(d.ordinal)->drain();
}

void settle_all_stores() {
  if (!stores_are_delayed()) return;
  for (const auto& buffer : known_buffers()) buffer->drain();
}

// A network adapter's DMA write into memory of a device or of the host. Writes to one target arrive in order; between
// targets there is no order, and a device sees what was sent to it only after a flush or when it has arrived by itself.
PL_SIM_EXPORT int peerlaneSimNetworkWrite(device_ptr destination, const void* source, std::size_t bytes) {
  std::vector<piece> pieces;
  if (const auto rc = address_space::instance().resolve(destination, bytes, pieces); rc != code::success) return rc;
  const auto* source_bytes = static_cast<const std::byte*>(source);
  for (const auto& p : pieces) {
    if (stores_are_delayed())
      network_to(p.keep != nullptr ? p.keep->device_ordinal() : -1)->hold(p.data, source_bytes, p.bytes, p.keep);
    else store_words(p.data, source_bytes, p.bytes);
    source_bytes += p.bytes;
  }
  return code::success;
}

}  // namespace pl::sim
