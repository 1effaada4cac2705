// SPDX-License-Identifier: Apache-2.0
#include "sim/copy_engine_model.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "base/clock.hpp"
#include "dma/commands.hpp"
#include "rm/channel_abi.hpp"

namespace pl::sim {
namespace {

constexpr std::uint64_t kChunkBytes = 64u << 10;
// The hardware's pipeline is short: this much may be under way.
constexpr std::uint64_t kMaxPendingBytes = 512u << 10, kMaxPendingWords = 8;
// Larger buffers are used again: malloc would give their pages back, and new ones cost more than the copy.
constexpr std::size_t kSmallBuffer = 4096, kMaxSpareBuffers = 16;
constexpr std::uint64_t kCommandBudget = 64;  // what executing one word counts, in bytes of copied data

namespace host_method {
constexpr std::uint32_t kSetObject = 0x00, kInterrupt = 0x20, kPayloadLow = 0x64, kExecute = 0x6c, kWaitForIdle = 0x78;
constexpr std::uint32_t kOperation = 7, kAcquireEqual = 0, kRelease = 1, kWithoutWait = 1u << 20;
constexpr std::uint32_t kKnownBits = kOperation | dma::method::kExecuteAcquireYields | kWithoutWait;
}  // namespace host_method

namespace launch_bits {
constexpr std::uint32_t kTransfer = 3;
constexpr std::uint32_t kKnown = kTransfer | dma::launch::kFlush | dma::launch::kReleaseWord | dma::launch::kInterrupt |
                                 dma::launch::kPitchLayouts | dma::launch::kManyLines | dma::launch::kRemap |
                                 dma::launch::kAddWord;
}  // namespace launch_bits

constexpr std::uint16_t kNotifierError = 0xffff;

bool is_copy_method(std::uint32_t method) {
  using namespace dma::method;
  return method == kSetObject || method == kLaunch ||
         (method >= kSemaphoreAddressHigh && method <= kSemaphoreAddressHigh + 8) ||
         (method >= kSourceHigh && method <= kLineLength + 4) || (method >= kRemapConstantA && method <= kRemapComponents);
}

}  // namespace

std::optional<std::uint64_t> copy_channel::take_fault_address() { return std::exchange(fault_address_, std::nullopt); }

// Nothing that was under way is written any more.
void copy_channel::end(fault_code code, std::uint64_t address) {
  if (is_dead()) return;
  fault_ = code;
  if (code == mmu_fault) fault_address_ = address;
  queue_.clear();
  active_.reset();
  pending_.clear();
  record_fault();
}

// Two words before the one that holds the status: who sees a status may read the rest.
void copy_channel::record_fault() const {
  if (settings_.error_notifier == nullptr) return;
  const std::uint64_t now_ns = monotonic_ns();
  const rm::notification record{
      {static_cast<std::uint32_t>(now_ns), static_cast<std::uint32_t>(now_ns >> 32)}, fault_, 0, kNotifierError};
  std::uint32_t last = 0;
  constexpr std::size_t kLastWord = sizeof record - sizeof last;
  std::memcpy(&last, reinterpret_cast<const std::byte*>(&record) + kLastWord, sizeof last);
  if (settings_.error_notifier->write(0, &record, kLastWord)) settings_.error_notifier->store_word(kLastWord, last);
}

// ---- Fetching

void copy_channel::fetch() {
  if (is_dead()) return;
  const auto put = settings_.user_words->load_word(settings_.user_words_offset + rm::kPutOffset);
  if (!put || *put >= settings_.ring_entries) return end(bad_command);
  for (; get_ != *put; get_ = (get_ + 1) % settings_.ring_entries) {
    const std::uint64_t place = settings_.ring_address + std::uint64_t{get_} * sizeof(std::uint64_t);
    std::uint64_t bits = 0;
    if (!settings_.space->read(place, &bits, sizeof bits)) return end(mmu_fault, place);
    entry one;
    one.address = bits & ((std::uint64_t{1} << 40) - 4);
    one.count = static_cast<std::uint32_t>(bits >> 42) & ((1u << 21) - 1);
    one.is_fenced = bits >> 63 != 0;
    if (!one.is_fenced && !load_commands(one)) return;
    queue_.push_back(std::move(one));
  }
}

bool copy_channel::load_commands(entry& front) {
  front.is_fenced = false;
  front.words.resize(front.count);
  const std::size_t bytes = front.words.size() * sizeof front.words[0];
  if (bytes == 0 || settings_.space->read(front.address, front.words.data(), bytes)) return true;
  end(mmu_fault, front.address);
  return false;
}

// ---- Executing

bool copy_channel::step(std::uint64_t budget_bytes) {
  bool has_worked = false;
  while (!is_dead() && budget_bytes > 0) {
    if (active_) {
      advance_transfer(budget_bytes);
    } else if (queue_.empty()) {
      return !is_idle() || has_worked;
    } else if (queue_.front().is_fenced) {
      load_commands(queue_.front());  // all before it is executed; what was copied may still be on its way
    } else if (next_word_ == queue_.front().words.size()) {
      end_entry();
    } else if (execute_word(queue_.front()) == outcome::waits) {
      return !is_idle() || has_worked;
    } else {
      budget_bytes -= std::min(budget_bytes, kCommandBudget);
    }
    has_worked = true;
  }
  return has_worked;
}

void copy_channel::end_entry() {
  if (left_ > 0) return end(bad_command);  // a method without all its values
  queue_.pop_front();
  next_word_ = 0;
}

// A header or one of its values.
copy_channel::outcome copy_channel::execute_word(const entry& front) {
  const std::uint32_t word = front.words[next_word_];
  if (left_ > 0) {
    if (set_method(subchannel_, method_, word) == outcome::waits) return outcome::waits;
    if (kind_ == packet::incrementing || kind_ == packet::once) method_ += 4;
    if (kind_ == packet::once) kind_ = packet::fixed;
    --left_;
  } else if (word >> 29 == 4) {
    const std::uint32_t value = word >> 16 & 0x1fff;
    if (set_method(word >> 13 & 7, (word & 0xfff) << 2, value) == outcome::waits) return outcome::waits;
  } else {
    begin_packet(word);
  }
  ++next_word_;
  return outcome::done;
}

void copy_channel::begin_packet(std::uint32_t header) {
  switch (header >> 29) {
    case 1:
      kind_ = packet::incrementing;
      break;
    case 3:
      kind_ = packet::fixed;
      break;
    case 5:
      kind_ = packet::once;
      break;
    default:
      return end(bad_command);
  }
  left_ = header >> 16 & 0x1fff;
  subchannel_ = header >> 13 & 7;
  method_ = (header & 0xfff) << 2;
}

copy_channel::outcome copy_channel::set_method(std::uint32_t subchannel, std::uint32_t method, std::uint32_t value) {
  if (subchannel == dma::method::kHostSubchannel) return set_host_method(method, value);
  if (subchannel == dma::method::kCopySubchannel) set_copy_method(method, value);
  else end(bad_command);
  return outcome::done;
}

copy_channel::outcome copy_channel::set_host_method(std::uint32_t method, std::uint32_t value) {
  switch (method) {
    case host_method::kSetObject:
      return outcome::done;
    case host_method::kInterrupt:
      raise();
      return outcome::done;
    case host_method::kWaitForIdle:
      arrive_all();
      return outcome::done;
    case host_method::kExecute:
      return use_semaphore(value);
    default:
      if (method >= dma::method::kSemaphoreAddressLow && method < host_method::kExecute) host_[method >> 2] = value;
      else end(bad_command);
      return outcome::done;
  }
}

copy_channel::outcome copy_channel::use_semaphore(std::uint32_t execute) {
  const std::uint64_t address = host_[dma::method::kSemaphoreAddressLow >> 2] |
                                std::uint64_t{host_[(dma::method::kSemaphoreAddressLow >> 2) + 1]} << 32;
  const std::uint32_t payload = host_[host_method::kPayloadLow >> 2];
  const std::uint32_t operation = execute & host_method::kOperation;
  const bool is_known = operation == host_method::kAcquireEqual || operation == host_method::kRelease ||
                        operation == dma::method::kExecuteAcquireAtLeast;
  if (!is_known || (execute & ~host_method::kKnownBits) != 0) {
    end(bad_command);
    return outcome::done;
  }
  if (operation == host_method::kRelease) {
    if ((execute & host_method::kWithoutWait) == 0) arrive_all();
    if (!is_dead() && !settings_.space->store_word(address, payload)) end(mmu_fault, address);
    return outcome::done;
  }
  const auto now = settings_.space->load_word(address);
  if (!now) {
    end(mmu_fault, address);
    return outcome::done;
  }
  const bool has_come =
      operation == host_method::kAcquireEqual ? *now == payload : static_cast<std::int32_t>(*now - payload) >= 0;
  return has_come ? outcome::done : outcome::waits;
}

void copy_channel::set_copy_method(std::uint32_t method, std::uint32_t value) {
  if (!is_copy_method(method)) return end(bad_command);
  if (method == dma::method::kSetObject && value != settings_.copy_class) return end(bad_command);
  copy_[method >> 2] = value;
  if (method == dma::method::kLaunch) launch(value);
}

// ---- Copies

void copy_channel::launch(std::uint32_t flags) {
  const std::uint32_t kind = flags & launch_bits::kTransfer;
  if ((flags & ~launch_bits::kKnown) != 0 || kind == launch_bits::kTransfer) return end(bad_command);
  if (kind == dma::launch::kPipelined) ++pipelined_;
  if (kind == dma::launch::kNotPipelined) settle();
  if (is_dead()) return;
  if (kind != dma::launch::kNone && begin_transfer(flags)) return;  // step() moves it
  if (!is_dead()) finish_launch(flags);
}

// False: there is nothing to move, or the channel has ended.
bool copy_channel::begin_transfer(std::uint32_t flags) {
  using namespace dma::method;
  transfer made;
  made.is_fill = (flags & dma::launch::kRemap) != 0;
  const bool is_known = (flags & dma::launch::kPitchLayouts) == dma::launch::kPitchLayouts &&
                        (!made.is_fill || copy_value(kRemapComponents) == dma::kRemapFill32 ||
                         copy_value(kRemapComponents) == dma::kRemapFill8);
  if (!is_known) return end(bad_command), false;
  made.source = copy_address(kSourceHigh);
  made.destination = copy_address(kSourceHigh + 8);
  made.source_pitch = copy_value(kSourcePitch);
  made.destination_pitch = copy_value(kSourcePitch + 4);
  made.pattern = copy_value(kRemapConstantA);
  const bool is_of_words = made.is_fill && copy_value(kRemapComponents) == dma::kRemapFill32;
  if (!is_of_words) made.pattern = (made.pattern & 0xff) * 0x0101'0101u;
  made.row_bytes = std::uint64_t{copy_value(kLineLength)} * (is_of_words ? sizeof made.pattern : 1);
  made.lines = (flags & dma::launch::kManyLines) != 0 ? copy_value(kLineLength + 4) : 1;
  made.flags = flags;
  if (made.row_bytes == 0 || made.lines == 0) return false;
  active_ = made;
  return true;
}

copy_channel::pending_write copy_channel::stage(std::uint64_t address, std::uint64_t count) {
  pending_write one{address, {}, {}, false};
  if (count > kSmallBuffer && !spare_.empty()) {
    one.bytes = std::move(spare_.back());
    spare_.pop_back();
  }
  one.bytes.resize(count);
  return one;
}

// Reads now and writes later, a chunk at a time.
void copy_channel::advance_transfer(std::uint64_t& budget_bytes) {
  transfer& now = *active_;
  const std::uint64_t count = std::min(now.row_bytes - now.offset, kChunkBytes);
  const std::uint64_t source = now.source + std::uint64_t{now.line} * now.source_pitch + now.offset;
  pending_write one = stage(now.destination + std::uint64_t{now.line} * now.destination_pitch + now.offset, count);
  if (now.is_fill) {
    for (std::uint64_t i = 0; i < count; i += sizeof now.pattern)
      std::memcpy(&one.bytes[i], &now.pattern, std::min<std::uint64_t>(count - i, sizeof now.pattern));
  } else {
    if (!late_.empty() && settings_.space->is_peer(source)) arrive_all();  // what it reads there it has written
    if (!settings_.space->read(source, one.bytes.data(), count)) return end(mmu_fault, source);
  }
  if (!settings_.space->contains(one.address, count)) return end(mmu_fault, one.address);
  if (is_late(one.address, count)) arrive_all();  // two writes of one place keep their order
  pending_.push_back(std::move(one));
  pending_bytes_ += count;
  budget_bytes -= std::min(budget_bytes, count + kCommandBudget);
  if (pending_bytes_ > kMaxPendingBytes) arrive_all();
  if (is_dead()) return;
  if (now.offset += count; now.offset < now.row_bytes) return;
  now.offset = 0;
  if (++now.line < now.lines) return;
  const std::uint32_t flags = now.flags;
  active_.reset();
  finish_launch(flags);
}

void copy_channel::finish_launch(std::uint32_t flags) {
  if ((flags & dma::launch::kFlush) != 0) arrive_all();
  if (is_dead()) return;
  if ((flags & dma::launch::kReleaseWord) != 0) {
    const std::uint64_t address = copy_address(dma::method::kSemaphoreAddressHigh);
    if (!settings_.space->contains(address, sizeof(std::uint32_t))) return end(mmu_fault, address);
    if ((flags & dma::launch::kAddWord) != 0) {
      complete_all();
      const std::uint32_t payload = copy_value(dma::method::kSemaphoreAddressHigh + 8);
      if (is_dead() || !settings_.space->store_word(address, *settings_.space->load_word(address) + payload))
        end(mmu_fault, address);
      return;
    }
    pending_.push_back(
        {address, {}, copy_value(dma::method::kSemaphoreAddressHigh + 8), (flags & dma::launch::kInterrupt) != 0});
    ++pending_words_;
  } else if ((flags & dma::launch::kInterrupt) != 0) {
    complete_all();
    if (!is_dead()) raise();
  }
  if ((flags & dma::launch::kFlush) != 0 || pending_words_ > kMaxPendingWords) complete_all();
  else complete_some();
}

// With random numbers some of what is under way arrives early, and some words before what they tell of.
void copy_channel::complete_some() {
  if (settings_.random(4) == 3) complete(settings_.random(pending_.size() + 1));
  else if (settings_.random(4) == 3) overtake();
}

// The first word that is under way arrives now, and what stands before it a while later: data was launched without a flush.
void copy_channel::overtake() {
  constexpr std::uint64_t kLateNs = 20'000;
  const auto found =
      std::find_if(pending_.begin(), pending_.end(), [](const pending_write& one) { return one.word.has_value(); });
  if (found == pending_.begin() || found == pending_.end()) return;
  pending_write word = std::move(*found);
  pending_.erase(found);
  arrive(word);
  late_until_ns_ = monotonic_ns() + kLateNs;
}

// Nothing is left to execute: whether all has arrived. Late bytes keep the engine awake until they are due.
bool copy_channel::is_idle() {
  const bool are_late = !pending_.empty() || !late_.empty();
  if (are_late && monotonic_ns() < late_until_ns_) return false;
  arrive_all();
  return !are_late;
}

// A transfer that is not pipelined begins when those before it have ended. What these wrote to another board has left this
// one, and may still be on its way there.
void copy_channel::settle() {
  constexpr std::uint64_t kLateNs = 3'000'000;
  if (settings_.random(4) == 3) {
    const auto stays = [&](const pending_write& one) { return one.word || !settings_.space->is_peer(one.address); };
    const auto first_late = std::stable_partition(pending_.begin(), pending_.end(), stays);
    if (first_late != pending_.end()) late_until_ns_ = monotonic_ns() + kLateNs;
    std::move(first_late, pending_.end(), std::back_inserter(late_));
    pending_.erase(first_late, pending_.end());
  }
  complete_all();
}

bool copy_channel::is_late(std::uint64_t address, std::uint64_t count) const {
  return std::any_of(late_.begin(), late_.end(), [&](const pending_write& one) {
    return address < one.address + one.bytes.size() && one.address < address + count;
  });
}

void copy_channel::arrive_all() {
  for (auto& one : std::exchange(late_, {}))
    if (!is_dead()) arrive(one);
  complete_all();
}

bool copy_channel::complete_all() {
  const bool has_some = !pending_.empty();
  complete(pending_.size());
  return has_some;
}

// Between two completion words in any order.
void copy_channel::complete(std::size_t count) {
  std::size_t next_word = 0;
  for (std::size_t i = 0; i < count && !is_dead(); ++i) {
    if (next_word <= i) {
      const auto found = std::find_if(pending_.begin() + static_cast<std::ptrdiff_t>(i), pending_.end(),
                                      [](const pending_write& one) { return one.word.has_value(); });
      next_word = static_cast<std::size_t>(found - pending_.begin());
    }
    if (i < next_word) std::swap(pending_[i], pending_[i + settings_.random(next_word - i)]);
    arrive(pending_[i]);
  }
  if (!is_dead()) pending_.erase(pending_.begin(), pending_.begin() + static_cast<std::ptrdiff_t>(count));
}

void copy_channel::arrive(pending_write& one) {
  const std::uint64_t address = one.address;
  pending_bytes_ -= one.bytes.size();
  pending_words_ -= one.word ? 1 : 0;
  const bool has_arrived = one.word ? settings_.space->store_word(address, *one.word)
                                    : settings_.space->write(address, one.bytes.data(), one.bytes.size());
  if (!has_arrived) return end(mmu_fault, address);
  if (one.interrupts) raise();
  if (one.bytes.size() > kSmallBuffer && spare_.size() < kMaxSpareBuffers) spare_.push_back(std::move(one.bytes));
}

}  // namespace pl::sim
