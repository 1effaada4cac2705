// SPDX-License-Identifier: Apache-2.0
// What a copy engine is told, word by word: methods of the channel (subchannel 0) and of the copy class (subchannel 4).
// Facts: NVIDIA open-gpu-doc, class headers clc36f.h to clc96f.h and clc3b5.h to clc9b5.h; the same in all generations that
// are driven here (rm/channel_abi.hpp).
//
// A method header is {29: incrementing, 28..16: words that follow, 15..13: subchannel, 12..0: method / 4}. Methods keep
// their values, so a list of copies sets only what changes.
#pragma once

#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>

namespace pl::dma {

namespace method {
constexpr std::uint32_t kHostSubchannel = 0, kCopySubchannel = 4;
constexpr std::uint32_t kSetObject = 0x000;
// Channel
constexpr std::uint32_t kSemaphoreAddressLow = 0x05c;  // then address high, payload low, payload high, execute
constexpr std::uint32_t kExecuteAcquireAtLeast = 3;    // cyclic: payload or later
constexpr std::uint32_t kExecuteAcquireYields = 1u << 12;
// Copy class
constexpr std::uint32_t kSemaphoreAddressHigh = 0x240;  // then address low, payload
constexpr std::uint32_t kLaunch = 0x300;
constexpr std::uint32_t kSourceHigh = 0x400;  // then source low, destination high and low, pitches, line length, line count
constexpr std::uint32_t kSourcePitch = 0x410;
constexpr std::uint32_t kLineLength = 0x418;
constexpr std::uint32_t kRemapConstantA = 0x700;
constexpr std::uint32_t kRemapComponents = 0x708;
}  // namespace method

namespace launch {
// What becomes of data: nothing; moved beside other transfers; moved after those before it.
constexpr std::uint32_t kNone = 0, kPipelined = 1, kNotPipelined = 2;
constexpr std::uint32_t kFlush = 1u << 2;        // writes are visible before the semaphore
constexpr std::uint32_t kReleaseWord = 1u << 3;  // one 32-bit word
constexpr std::uint32_t kInterrupt = 2u << 5;    // of the engine, behind the semaphore; holds nothing up
constexpr std::uint32_t kPitchLayouts = 1u << 7 | 1u << 8;
constexpr std::uint32_t kManyLines = 1u << 9;
constexpr std::uint32_t kRemap = 1u << 10;
// With kReleaseWord: the payload is added to the word, by the GPU and at once, in place of being stored.
constexpr std::uint32_t kAddWord = 5u << 14 | 1u << 18 | 1u << 19;
}  // namespace launch

// Remapping that writes constant A to each element of 4 bytes, or its lowest byte to each byte: a fill.
constexpr std::uint32_t kRemapFill32 = 4u << 0 | 3u << 16;  // destination X = constant A; component size 4
constexpr std::uint32_t kRemapFill8 = 4u << 0;              // component size 1

constexpr std::uint32_t method_header(std::uint32_t subchannel, std::uint32_t number, std::uint32_t words) {
  return 1u << 29 | words << 16 | subchannel << 13 | number >> 2;
}
// A method with its value (13 bits) in the header.
constexpr std::uint32_t immediate(std::uint32_t subchannel, std::uint32_t number, std::uint32_t value) {
  return 4u << 29 | value << 16 | subchannel << 13 | number >> 2;
}

// An entry of the ring (GPFIFO): where `words` commands lie. `is_fenced`: they are fetched only when all before them is
// done, which commands that somebody writes after this entry was queued need.
constexpr std::uint64_t ring_entry(std::uint64_t address, std::uint32_t words, bool is_fenced = false) {
  return address | std::uint64_t{words} << 42 | (is_fenced ? std::uint64_t{1} << 63 : 0);
}

// Writes commands into memory of the caller's, which must have room for them (k<Name>Words each).
class command_writer {
 public:
  explicit command_writer(std::span<std::uint32_t> room) : begin_(room.data()), next_(room.data()) {}
  std::size_t words() const { return static_cast<std::size_t>(next_ - begin_); }

  static constexpr std::size_t kCopyWords = 11, kBlockWords = 6, kCompletionWords = 4, kSemaphoreWords = 6, kFillWords = 12,
                               kObjectWords = 2;

  void set_object(std::uint32_t copy_class) {
    put(method_header(method::kCopySubchannel, method::kSetObject, 1));
    put(copy_class);
  }
  // Where the next launch with kReleaseWord writes `payload`.
  void completion(std::uint64_t address, std::uint32_t payload) {
    put(method_header(method::kCopySubchannel, method::kSemaphoreAddressHigh, 3));
    put_address(address);
    put(payload);
  }
  // `lines` rows of `row_bytes`, at most 2^32 - 1 each.
  void copy(std::uint64_t destination, std::uint64_t source, std::uint32_t row_bytes, std::uint32_t flags,
            std::uint32_t lines = 1, std::uint32_t destination_pitch = 0, std::uint32_t source_pitch = 0) {
    put(method_header(method::kCopySubchannel, method::kSourceHigh, 8));
    put_address(source);
    put_address(destination);
    put(source_pitch);
    put(destination_pitch);
    put(row_bytes);
    put(lines);
    launch(launch::kPitchLayouts | flags | (lines > 1 ? launch::kManyLines : 0));
  }
  // As the last copy, of as many bytes, elsewhere.
  void copy_again(std::uint64_t destination, std::uint64_t source, std::uint32_t flags) {
    put(method_header(method::kCopySubchannel, method::kSourceHigh, 4));
    put_address(source);
    put_address(destination);
    launch(launch::kPitchLayouts | flags);
  }
  void launch(std::uint32_t flags) { put(immediate(method::kCopySubchannel, method::kLaunch, flags)); }
  // The same for flags that need more than the 13 bits of an immediate.
  void launch_word(std::uint32_t flags) {
    put(method_header(method::kCopySubchannel, method::kLaunch, 1));
    put(flags);
  }
  // What the next fills write: their components.
  void remap(std::uint32_t components) {
    put(method_header(method::kCopySubchannel, method::kRemapComponents, 1));
    put(components);
  }
  // `elements` words of `pattern`, or bytes of it.
  void fill(std::uint64_t destination, std::uint32_t pattern, std::uint32_t elements, std::uint32_t flags,
            std::uint32_t components = kRemapFill32) {
    put(method_header(method::kCopySubchannel, method::kRemapConstantA, 1));
    put(pattern);
    remap(components);
    put(method_header(method::kCopySubchannel, method::kSourceHigh + 8, 2));
    put_address(destination);
    put(method_header(method::kCopySubchannel, method::kLineLength, 2));
    put(elements);
    put(1);
    launch(launch::kPitchLayouts | launch::kRemap | flags);
  }
  // The channel waits until the word at `address` is `payload` or later (cyclic).
  void acquire(std::uint64_t address, std::uint32_t payload, bool yields = false) {
    semaphore(address, payload, method::kExecuteAcquireAtLeast | (yields ? method::kExecuteAcquireYields : 0));
  }

 private:
  void put(std::uint32_t word) { *next_++ = word; }
  void put_address(std::uint64_t address) {
    put(static_cast<std::uint32_t>(address >> 32));
    put(static_cast<std::uint32_t>(address));
  }
  void semaphore(std::uint64_t address, std::uint32_t payload, std::uint32_t execute) {
    put(method_header(method::kHostSubchannel, method::kSemaphoreAddressLow, 5));
    put(static_cast<std::uint32_t>(address));
    put(static_cast<std::uint32_t>(address >> 32));
    put(payload);
    put(0);
    put(execute);
  }

  std::uint32_t* begin_;
  std::uint32_t* next_;
};

// Writes the copies of a list, block by block: a few instructions and three stores for each, since lists have 10^5 of them.
// `room` has command_writer::kCopyWords for each block, or kBlockWords where all have one size, and kEndWords.
class list_writer {
 public:
  static constexpr std::size_t kEndWords = command_writer::kCompletionWords + command_writer::kCopyWords;
  explicit list_writer(std::uint32_t* room) noexcept : begin_(room), next_(room) {}

  std::size_t words() const noexcept { return static_cast<std::size_t>(next_ - begin_); }
  bool is_empty() const noexcept { return next_ == begin_; }
  std::span<const std::uint32_t> commands() const noexcept { return {begin_, words()}; }
  void restart() noexcept {
    next_ = begin_;
    size_bytes_ = 0;
  }
  void add(std::uint64_t destination, std::uint64_t source, std::uint32_t size_bytes) noexcept {
    if (size_bytes == size_bytes_) next_ = put_block(next_, destination, source);
    else add_first(destination, source, size_bytes);
  }

  // For loops, which keep the place in a register: where the next block goes, the size that it must have, and its three
  // stores, which return the place behind it. advance() tells how far that went.
  std::uint32_t* next() const noexcept { return next_; }
  std::uint32_t size_bytes() const noexcept { return size_bytes_; }
  static std::uint32_t* put_block(std::uint32_t* next, std::uint64_t destination, std::uint64_t source) noexcept {
    constexpr std::uint64_t kHigh = 0xffff'ffff'0000'0000;
    const std::uint64_t pairs[] = {kAddresses | (source & kHigh), (source & ~kHigh) | (destination & kHigh),
                                   (destination & ~kHigh) | kLaunch << 32};
    std::memcpy(next, pairs, sizeof pairs);
    return next + command_writer::kBlockWords;
  }
  void advance(std::uint32_t* next) noexcept { next_ = next; }

  // The last block's launch becomes that of the list, which writes `payload` at `address`. There is a block.
  void end(std::uint64_t address, std::uint32_t payload, std::uint32_t end_flags) noexcept {
    --next_;
    command_writer last({next_, kEndWords});
    last.completion(address, payload);
    last.launch(launch::kPitchLayouts | launch::kPipelined | end_flags);
    next_ += last.words();
  }
  // The word is written by a transfer of its own, behind all of the list: a fill that waits for it.
  void end_settled(std::uint64_t address, std::uint32_t payload) noexcept {
    static_assert(command_writer::kFillWords <= kEndWords);
    command_writer last({next_, kEndWords});
    last.fill(address, payload, 1, launch::kNotPipelined);
    next_ += last.words();
    size_bytes_ = 0;  // it has set another length
  }

 private:
  static constexpr std::uint64_t kAddresses = method_header(method::kCopySubchannel, method::kSourceHigh, 4);
  static constexpr std::uint64_t kLaunch =
      immediate(method::kCopySubchannel, method::kLaunch, launch::kPitchLayouts | launch::kPipelined);

  void add_first(std::uint64_t destination, std::uint64_t source, std::uint32_t size_bytes) noexcept {
    command_writer one({next_, command_writer::kCopyWords});
    one.copy(destination, source, size_bytes_ = size_bytes, launch::kPipelined);
    next_ += one.words();
  }

  std::uint32_t* begin_;
  std::uint32_t* next_;
  std::uint32_t size_bytes_ = 0;  // of the copies that were written last
};

}  // namespace pl::dma
