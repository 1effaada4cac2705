// SPDX-License-Identifier: Apache-2.0
#include "dma/channel.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <string>

#include "arch/copy_dispatch.hpp"
#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "base/raise_to.hpp"
#include "base/text.hpp"
#include "base/two_views.hpp"

namespace pl::dma {
namespace {

// In the channel's own GPU memory, between the ring of entries and the commands.
constexpr std::uint64_t kUserWordsOffset = 0x10000;
constexpr std::uint64_t kLineBytes = 64;  // submissions begin on lines of their own: each line is written once
// Of the first host page: notifications, which the driver counts by itself, then the spare words. Completion words follow, a
// page further on.
constexpr std::size_t kSpareOffset = 0xc00;  // what an operation moves that has nothing to move
constexpr std::uint64_t kFullTimeoutNs = 10'000'000'000;
// A doorbell that the engine missed would stop the channel until the next one: who waits this long rings again.
// One of some 50 000 is missed (H200), however many fences stand before it: inside the GPU it overtakes the position, which
// is memory.
constexpr std::uint64_t kRingAgainNs = 10'000;
constexpr std::uint64_t kMaxRowBytes = 0x8000'0000;  // one launch; larger copies take several
constexpr std::uint32_t kMaxWordsInSubmission = 1u << 16;
constexpr auto kView = arch::mapping_type::wc;

std::uint32_t end_flags(ordering order) {
  if (order == ordering::none_settled) return 0;  // settle() writes the word
  const bool is_flushed = order == ordering::flush_last || order == ordering::none_flushed;
  return launch::kReleaseWord | (is_flushed ? launch::kFlush : 0);
}

std::uint32_t first_flags(ordering order) {
  const bool is_independent = order == ordering::none || order == ordering::none_flushed || order == ordering::none_settled;
  return is_independent ? launch::kPipelined : launch::kNotPipelined;
}

struct engine_kinds {
  std::vector<unsigned> independent, shared;
};

engine_kinds engine_kinds_of(rm::channel_objects& objects) {
  engine_kinds out;
  for (unsigned number = 0; number < rm::kMaxCopyEngines; ++number) {
    const auto caps = objects.copy_engine_capabilities(number);
    if (!caps) continue;
    (*caps & rm::kCopyEngineShared ? out.shared : out.independent).push_back(number);
  }
  return out;
}

}  // namespace

std::vector<unsigned> copy_engines(rm::channel_objects& objects, bool only_independent) {
  auto [engines, shared] = engine_kinds_of(objects);
  if (only_independent && engines.size() >= 2) return engines;
  engines.insert(engines.end(), shared.begin(), shared.end());
  return engines;
}

std::vector<unsigned> engines_for_rings(std::span<const unsigned> independent, std::span<const unsigned> shared) {
  if (independent.empty()) return {shared.rbegin(), shared.rend()};
  std::vector<unsigned> out{independent.back()};
  if (!shared.empty()) out.push_back(shared.back());
  out.insert(out.end(), independent.rbegin() + 1, independent.rend());
  return out;
}

std::vector<unsigned> engines_for_rings(rm::channel_objects& objects) {
  const engine_kinds engines = engine_kinds_of(objects);
  return engines_for_rings(engines.independent, engines.shared);
}

result<std::unique_ptr<channel>> channel::open(std::shared_ptr<address_space> space, const channel_options& options) {
  std::unique_ptr<channel> out(new channel(std::move(space), options));
  if (status done = out->set_up(); !done) return done.error();
  return out;
}

status channel::set_up() {
  rm::channel_objects& objects = space_->objects();
  auto memory = space_->make_device_memory(options_.memory_bytes);
  if (!memory) return memory.error();
  memory_ = std::move(*memory);
  auto view = objects.owner().map(objects.device(), memory_.memory, 0, options_.memory_bytes, nullptr);
  if (!view) return view.error();
  cpu_view_ = *view;
  view_ = static_cast<std::byte*>(cpu_view_.address);
  // No entry and no position of an earlier owner's; and the first lists do not wait for page faults.
  arch::fill_to(kView, view_, 0, options_.memory_bytes);

  const auto page = static_cast<std::size_t>(sysconf(_SC_PAGESIZE));
  const std::size_t words_bytes = (options_.ring_entries * sizeof(std::uint32_t) + page - 1) / page * page;
  auto pages = unforked_pages::make(page + words_bytes);
  if (!pages) return failure{pages.code(), "DMA channel: no pages for its completion words: " + pages.error().message};
  completion_pages_ = *std::move(pages);
  completions_ = reinterpret_cast<std::uint32_t*>(completion_pages_.data() + page);
  error_ = reinterpret_cast<rm::notification*>(completion_pages_.data());
  auto bound = space_->bind_host(completion_pages_.data(), completion_pages_.size_bytes());
  if (!bound) return bound.error();
  completion_region_ = std::move(*bound);

  entries_.resize(options_.ring_entries);
  rm::channel_objects::channel_request request;
  request.address_space = space_->handle();
  request.engine = options_.engine;
  request.ring_address = memory_.bound.address();
  request.ring_entries = options_.ring_entries;
  request.user_words_memory = memory_.memory;
  request.user_words_offset = kUserWordsOffset;
  request.error_memory = completion_region_.memory();
  auto made = objects.make_channel(request);
  if (!made) return made.error();
  handles_ = *made;
  if (options_.timeslice_us != 0)
    if (status set = objects.set_timeslice(handles_.group, options_.timeslice_us); !set) return set.error();
  auto doorbell = space_->map_doorbell();
  if (!doorbell) return doorbell.error();
  doorbell_view_ = *doorbell;
  doorbell_ = reinterpret_cast<std::uint32_t*>(static_cast<std::byte*>(doorbell_view_.address) + rm::kDoorbellOffset);

  // The first submission names the copy class. Its completion shows that the channel works.
  const auto first = submit_one(command_writer::kObjectWords, {}, [&](command_writer& commands, ordering order) {
    commands.set_object(objects.copy_class());
    commands.launch(end_flags(order));
    settle(commands, order);
  });
  if (!first) return first.error();
  constexpr std::uint64_t kFirstTimeoutNs = 2'000'000'000;
  if (status done = wait(*first, kFirstTimeoutNs); !done)
    return failure{EIO, format("DMA channel: the GPU did not answer its first command (%s); copies go without channels",
                               done.error().message.c_str())};
  return {};
}

void channel::stop() noexcept {
  if (handles_.group == 0 || is_stopped_.exchange(true)) return;
  space_->objects().release(handles_.group);
}

std::optional<failure> channel::fault() const {
  if (__atomic_load_n(&error_->status, __ATOMIC_ACQUIRE) != 0) {
    constexpr std::uint32_t kMmuFault = 31;
    const std::uint32_t reason = error_->info;
    std::string text = format("DMA channel: the GPU ended it, Xid %u", reason);
    if (reason == kMmuFault) {
      const auto address = space_->objects().fault_address(handles_.channel);
      text += address ? format(" (no memory at the channel's address 0x%llx: it was freed while a copy used it)",
                               static_cast<unsigned long long>(*address))
                      : " (a wrong address: memory that was freed while a copy used it)";
    }
    return failure{EIO, text};
  }
  if (is_stopped_.load(std::memory_order_acquire)) return failure{EIO, "DMA channel: it was ended by a copy that failed"};
  return {};
}

channel::~channel() {
  rm::channel_objects& objects = space_->objects();
  stop();
  if (doorbell_view_.address != nullptr) objects.owner().unmap(doorbell_view_, rm::unmap_policy::hole);
  if (cpu_view_.address != nullptr) objects.owner().unmap(cpu_view_, rm::unmap_policy::hole);
}

sequence channel::completed() const noexcept {
  sequence now = seen_.load(std::memory_order_acquire);
  // A word that is not there yet holds an older number, or 0. A late word of an earlier operation hides no later one.
  const auto has_come = [this](sequence number) {
    const auto* const word = &completions_[word_index(number)];
    if (__atomic_load_n(word, __ATOMIC_ACQUIRE) != static_cast<std::uint32_t>(number)) return false;
    after_load_in_view(reinterpret_cast<std::uint64_t>(word));
    return true;
  };
  while (has_come(now + 1)) ++now;
  return raise_to(seen_, now, std::memory_order_acq_rel);
}

status channel::wait(sequence number, std::uint64_t timeout_ns) const {
  constexpr unsigned kPollsBetweenClocks = 64;
  std::uint64_t begin_ns = 0, ring_ns = 0;
  for (unsigned polls = 1; !is_done(number); ++polls) {
    arch::relax();
    if (polls % kPollsBetweenClocks != 0) continue;
    if (auto reason = fault()) return is_done(number) ? status() : *std::move(reason);
    const std::uint64_t now_ns = monotonic_ns();
    if (begin_ns == 0) begin_ns = ring_ns = now_ns;
    if (now_ns - ring_ns > kRingAgainNs) {
      ring_ns = now_ns;
      ring();
    }
    if (now_ns - begin_ns > timeout_ns)
      return failure{ETIMEDOUT,
                     format("DMA channel: operation %llu is not done after %llu ms; the last that is done is %llu",
                            static_cast<unsigned long long>(number), static_cast<unsigned long long>(timeout_ns / 1'000'000),
                            static_cast<unsigned long long>(completed()))};
  }
  return {};
}

status channel::reserve(std::uint32_t words) {
  const std::uint64_t bytes = (words * sizeof(std::uint32_t) + kLineBytes - 1) / kLineBytes * kLineBytes;
  std::uint64_t begin = commands_next_;
  std::uint64_t offset = next_offset_;
  if (offset + bytes > commands_bytes_) {  // commands lie in one piece
    begin += commands_bytes_ - offset;
    offset = 0;
  }
  std::uint64_t end_ns = 0;
  if (auto reason = fault()) return *std::move(reason);
  for (;;) {
    const sequence done = completed();
    while (entries_done_ < entries_made_ && entries_[entries_done_ % options_.ring_entries].number <= done)
      commands_free_ = entries_[entries_done_++ % options_.ring_entries].commands_end;
    if (begin + bytes <= commands_free_ + commands_bytes_ && entries_made_ - entries_done_ < options_.ring_entries - 1)
      break;
    if (auto reason = fault()) return *std::move(reason);
    const std::uint64_t now_ns = monotonic_ns();
    if (end_ns == 0) end_ns = now_ns + kFullTimeoutNs;
    if (now_ns > end_ns) return failure{ETIMEDOUT, "DMA channel: its ring is full, and the engine no longer takes commands"};
    arch::relax();
  }
  commands_next_ = begin;
  begin_offset_ = next_offset_ = offset;
  return {};
}

void channel::append(std::span<const std::uint32_t> commands) {
  arch::write_commands_unfenced(view_ + kCommandsOffset + next_offset_, commands.data(), commands.size_bytes());
  next_offset_ += commands.size_bytes();
}

void channel::ring() const noexcept { __atomic_store_n(doorbell_, handles_.token, __ATOMIC_RELEASE); }

sequence channel::submit() {
  const std::uint64_t address = memory_.bound.address() + kCommandsOffset + begin_offset_;
  const auto words = static_cast<std::uint32_t>((next_offset_ - begin_offset_) / sizeof(std::uint32_t));
  next_offset_ = (next_offset_ + kLineBytes - 1) / kLineBytes * kLineBytes;
  commands_next_ += next_offset_ - begin_offset_;
  entries_[entries_made_++ % options_.ring_entries] = {++submitted_, commands_next_};
  add_entry(ring_entry(address, words));
  publish_entries();
  return submitted_;
}

void channel::add_entry(std::uint64_t entry) {
  __atomic_store_n(reinterpret_cast<std::uint64_t*>(view_) + put_, entry, __ATOMIC_RELEASE);
  put_ = (put_ + 1) % options_.ring_entries;
}

void channel::publish_entries() const {
  // Commands and entry must be there before the position: an engine that finds the position takes whatever lies there. Not
  // even an idle one may be trusted to come later: with one fence for all, one of some millions of operations was never done
  // (H200), since the GPU had fetched what its slot held before.
  arch::publish_to_device(kView);
  __atomic_store_n(reinterpret_cast<std::uint32_t*>(view_ + kUserWordsOffset + rm::kPutOffset), put_, __ATOMIC_RELEASE);
  // The first doorbell saves the fence's 0.13 us. Where it overtakes the position, which is a store to other memory, the
  // second one tells. It costs an idle engine nothing.
  ring();
  arch::publish_to_device(kView);
  ring();
}

void channel::queue_entries(std::span<const std::uint64_t> entries) {
  const std::lock_guard hold(mutex_);
  for (const std::uint64_t one : entries) add_entry(one);
  publish_entries();
}

std::uint64_t channel::completion_address(sequence number) const noexcept {
  const auto* const word = reinterpret_cast<const std::byte*>(&completions_[word_index(number)]);
  return completion_region_.address() + static_cast<std::uint64_t>(word - completion_pages_.data());
}

void channel::name_completion(command_writer& commands) const {
  commands.completion(completion_address(), static_cast<std::uint32_t>(submitted_ + 1));
}

void channel::settle(command_writer& commands, ordering order) const {
  if (order != ordering::none_settled) return;
  commands.fill(completion_address(), static_cast<std::uint32_t>(submitted_ + 1), 1, launch::kNotPipelined);
}

// `build` writes at most `max_words` beside its last launch, which takes end_flags and so ends the operation.
template <class Build>
result<sequence> channel::submit_one(std::size_t max_words, std::optional<ordering> order, Build build) {
  std::uint32_t room[64];
  const ordering chosen = order.value_or(options_.order);
  const std::lock_guard hold(mutex_);
  if (status reserved =
          reserve(static_cast<std::uint32_t>(max_words + command_writer::kCompletionWords + command_writer::kFillWords + 2));
      !reserved)
    return reserved.error();
  command_writer commands(room);
  name_completion(commands);
  if (chosen == ordering::flush_first) commands.launch(launch::kFlush);
  build(commands, chosen);
  append({room, commands.words()});
  return submit();
}

result<sequence> channel::copy(std::uint64_t destination, std::uint64_t source, std::uint64_t size_bytes,
                               std::optional<ordering> order) {
  for (; size_bytes > kMaxRowBytes; size_bytes -= kMaxRowBytes, destination += kMaxRowBytes, source += kMaxRowBytes)
    if (auto part = copy_rows(destination, 0, source, 0, static_cast<std::uint32_t>(kMaxRowBytes), 1, order); !part)
      return part;
  return copy_rows(destination, 0, source, 0, static_cast<std::uint32_t>(size_bytes), 1, order);
}

result<sequence> channel::copy_rows(std::uint64_t destination, std::uint32_t destination_pitch, std::uint64_t source,
                                    std::uint32_t source_pitch, std::uint32_t row_bytes, std::uint32_t rows,
                                    std::optional<ordering> order) {
  return submit_one(command_writer::kCopyWords, order, [&](command_writer& commands, ordering chosen) {
    commands.copy(destination, source, row_bytes, first_flags(chosen) | end_flags(chosen), rows, destination_pitch,
                  source_pitch);
    settle(commands, chosen);
  });
}

result<sequence> channel::fill(std::uint64_t destination, std::uint32_t pattern, std::uint64_t size_bytes,
                               std::optional<ordering> order) {
  return submit_one(command_writer::kFillWords, order, [&](command_writer& commands, ordering chosen) {
    commands.fill(destination, pattern, static_cast<std::uint32_t>(size_bytes / sizeof pattern),
                  first_flags(chosen) | end_flags(chosen));
    settle(commands, chosen);
  });
}

// The words in the middle as words, what is left at the ends as bytes.
result<sequence> channel::fill_bytes(std::uint64_t destination, std::uint8_t value, std::uint64_t size_bytes,
                                     std::optional<ordering> order) {
  constexpr std::uint64_t kWord = sizeof(std::uint32_t), kMaxBytes = std::uint64_t{1} << 33;
  if (size_bytes == 0) return flush();
  result<sequence> last = sequence{0};
  while (size_bytes != 0) {
    const std::uint64_t now = std::min(size_bytes, kMaxBytes);
    last = submit_one(3 * command_writer::kFillWords, order, [&](command_writer& commands, ordering chosen) {
      std::uint32_t flags = first_flags(chosen);
      for (std::uint64_t done = 0; done < now;) {
        const std::uint64_t place = destination + done, left = now - done;
        const bool is_whole = place % kWord == 0 && left >= kWord;
        const std::uint64_t bytes = is_whole ? left / kWord * kWord : std::min(left, kWord - place % kWord);
        done += bytes;
        commands.fill(place, 0x0101'0101u * value, static_cast<std::uint32_t>(is_whole ? bytes / kWord : bytes),
                      flags | (done == now ? end_flags(chosen) : 0), is_whole ? kRemapFill32 : kRemapFill8);
        flags = launch::kPipelined;
      }
      settle(commands, chosen);
    });
    if (!last) return last;
    destination += now;
    size_bytes -= now;
  }
  return last;
}

result<sequence> channel::add(std::uint64_t address, std::uint32_t value) {
  return submit_one(2 * command_writer::kCompletionWords + 2, {}, [&](command_writer& commands, ordering) {
    commands.completion(address, value);
    commands.launch_word(launch::kReleaseWord | launch::kAddWord | launch::kFlush);
    name_completion(commands);
    commands.launch(launch::kReleaseWord);
  });
}

result<sequence> channel::flush() {
  return submit_one(1, {},
                    [](command_writer& commands, ordering) { commands.launch(launch::kReleaseWord | launch::kFlush); });
}

// With a transfer of a word: so it was run on hardware (an interrupt of a launch without data was not).
result<sequence> channel::interrupt() {
  constexpr std::uint32_t kBytes = 4;
  return submit_one(command_writer::kCopyWords, {}, [&](command_writer& commands, ordering) {
    const std::uint64_t spare = completion_region_.address() + kSpareOffset;
    commands.copy(spare + kBytes, spare, kBytes, launch::kPipelined | launch::kReleaseWord | launch::kInterrupt);
  });
}

result<sequence> channel::acquire(std::uint64_t address, std::uint32_t payload, bool yields) {
  return submit_one(command_writer::kSemaphoreWords, {}, [&](command_writer& commands, ordering) {
    commands.acquire(address, payload, yields);
    commands.launch(launch::kReleaseWord);
  });
}

// Later operations of the other channel use the word again, with larger numbers.
result<sequence> channel::wait_for(const channel& other, sequence number) {
  return acquire(other.completion_address(number), static_cast<std::uint32_t>(number), true);
}

result<sequence> channel::release(std::uint64_t address, std::uint32_t payload) {
  return submit_one(2 * command_writer::kCompletionWords + 1, {}, [&](command_writer& commands, ordering) {
    commands.completion(address, payload);  // by the copy engine, so behind what it has copied
    commands.launch(launch::kReleaseWord | launch::kFlush);
    name_completion(commands);
    commands.launch(launch::kReleaseWord);
  });
}

result<sequence> channel::copy_blocks(std::span<const block> blocks, std::optional<ordering> order) {
  const ordering chosen = order.value_or(options_.order);
  const std::lock_guard hold(mutex_);
  std::uint32_t room[1024];
  constexpr std::size_t kMaxBlockWords = command_writer::kCopyWords;
  constexpr std::size_t kBlocksInSubmission = kMaxWordsInSubmission / kMaxBlockWords;
  constexpr std::size_t kEndWords = command_writer::kCompletionWords + command_writer::kFillWords;
  while (!blocks.empty()) {
    const auto now = blocks.first(std::min(blocks.size(), kBlocksInSubmission));
    blocks = blocks.subspan(now.size());
    const std::size_t words =
        now.size() * kMaxBlockWords + command_writer::kCompletionWords + command_writer::kFillWords + 1;
    if (status reserved = reserve(static_cast<std::uint32_t>(words)); !reserved) return reserved.error();
    std::uint32_t size_bytes = 0;
    for (std::size_t i = 0; i < now.size();) {
      command_writer commands(room);
      if (i == 0 && chosen == ordering::flush_first) commands.launch(launch::kFlush);
      for (; i < now.size() && commands.words() + kMaxBlockWords + kEndWords <= std::size(room); ++i) {
        const block& one = now[i];
        std::uint32_t flags = i == 0 ? first_flags(chosen) : launch::kPipelined;
        if (i + 1 == now.size()) {
          name_completion(commands);
          flags |= end_flags(chosen);
        }
        if (one.size_bytes == size_bytes) commands.copy_again(one.destination, one.source, flags);
        else commands.copy(one.destination, one.source, size_bytes = one.size_bytes, flags);
        if (i + 1 == now.size()) settle(commands, chosen);
      }
      append({room, commands.words()});
    }
    submit();
  }
  return submitted_;
}

result<sequence> channel::copy_blocks(list_writer& list, ordering order) {
  const std::lock_guard hold(mutex_);
  if (status reserved = reserve(static_cast<std::uint32_t>(list.words() + list_writer::kEndWords)); !reserved)
    return reserved.error();
  const auto number = static_cast<std::uint32_t>(submitted_ + 1);
  if (order == ordering::none_settled) list.end_settled(completion_address(), number);
  else list.end(completion_address(), number, end_flags(order));
  append(list.commands());
  return submit();
}

}  // namespace pl::dma
