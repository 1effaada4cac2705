// SPDX-License-Identifier: Apache-2.0
// The commands of a copy engine: methods of the channel (subchannel 0) and of the copy class (subchannel 4).
// Source: NVIDIA open-gpu-doc, class headers clc36f.h to clc96f.h and clc3b5.h to clc9b5.h; the same in all
// supported generations (rm/channel_abi.hpp).
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
// Data transfer: none; pipelined with other transfers; after the transfers before it.
constexpr std::uint32_t kNone = 0, kPipelined = 1, kNotPipelined = 2;
constexpr std::uint32_t kFlush = 1u << 2;        // data is visible before the semaphore is written
constexpr std::uint32_t kReleaseWord = 1u << 3;  // one 32-bit word
constexpr std::uint32_t kInterrupt = 2u << 5;    // raised by the engine after the semaphore; does not delay the channel
constexpr std::uint32_t kPitchLayouts = 1u << 7 | 1u << 8;
constexpr std::uint32_t kManyLines = 1u << 9;
constexpr std::uint32_t kRemap = 1u << 10;
// With kReleaseWord: the GPU atomically adds the payload to the word instead of storing it.
constexpr std::uint32_t kAddWord = 5u << 14 | 1u << 18 | 1u << 19;
}  // namespace launch

// A fill: component remapping that writes constant A to each 4-byte element, or its lowest byte to each byte.
constexpr std::uint32_t kRemapFill32 = 4u << 0 | 3u << 16;  // destination X = constant A; component size 4
constexpr std::uint32_t kRemapFill8 = 4u << 0;              // component size 1

constexpr std::uint32_t method_header(std::uint32_t subchannel, std::uint32_t number, std::uint32_t words) {
  return 1u << 29 | words << 16 | subchannel << 13 | number >> 2;
}
// A method whose value (13 bits) is in the header.
constexpr std::uint32_t immediate(std::uint32_t subchannel, std::uint32_t number, std::uint32_t value) {
  return 4u << 29 | value << 16 | subchannel << 13 | number >> 2;
}

// An entry of the ring (GPFIFO): address and number of `words` of commands. `is_fenced`: the engine fetches them only when
// all earlier entries are done. This is needed if the commands are written after the entry was queued.
constexpr std::uint64_t ring_entry(std::uint64_t address, std::uint32_t words, bool is_fenced = false) {
  return address | std::uint64_t{words} << 42 | (is_fenced ? std::uint64_t{1} << 63 : 0);
}

// Writes commands into the caller's memory, which must have room for k<Name>Words words for each call.
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
  // Sets the address and the `payload` for the next launch with kReleaseWord.
  void completion(std::uint64_t address, std::uint32_t payload) {
    put(method_header(method::kCopySubchannel, method::kSemaphoreAddressHigh, 3));
    put_address(address);
    put(payload);
  }
  // Copies `lines` rows of `row_bytes`, at most 2^32 - 1 each.
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
  // Repeats the last copy, with the same size, at other addresses.
  void copy_again(std::uint64_t destination, std::uint64_t source, std::uint32_t flags) {
    put(method_header(method::kCopySubchannel, method::kSourceHigh, 4));
    put_address(source);
    put_address(destination);
    launch(launch::kPitchLayouts | flags);
  }
  void launch(std::uint32_t flags) { put(immediate(method::kCopySubchannel, method::kLaunch, flags)); }
  // The same for flags with more than 13 bits.
  void launch_word(std::uint32_t flags) {
    put(method_header(method::kCopySubchannel, method::kLaunch, 1));
    put(flags);
  }
  // Selects what the next fills write: words or bytes.
  void remap(std::uint32_t components) {
    put(method_header(method::kCopySubchannel, method::kRemapComponents, 1));
    put(components);
  }
  // Fills `elements` words, or bytes, with `pattern`.
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

// Writes the copies of a list. A block takes a few instructions and three stores, because lists have up to 10^5 blocks.
// `room`: command_writer::kCopyWords words for each block, or kBlockWords if all blocks have the same size, plus kEndWords.
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

  // For loops that keep the position in a register: the position of the next block, the size it must have, and its three
  // stores, which return the position after it. advance() then stores the final position.
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

  // Makes the launch of the last block end the list: it writes `payload` at `address`. Precondition: there is a block.
  void end(std::uint64_t address, std::uint32_t payload, std::uint32_t end_flags) noexcept {
    --next_;
    command_writer last({next_, kEndWords});
    last.completion(address, payload);
    last.launch(launch::kPitchLayouts | launch::kPipelined | end_flags);
    next_ += last.words();
  }
  // Ends the list with a separate transfer that writes the word: a fill that waits for the whole list.
  void end_settled(std::uint64_t address, std::uint32_t payload) noexcept {
    static_assert(command_writer::kFillWords <= kEndWords);
    command_writer last({next_, kEndWords});
    last.fill(address, payload, 1, launch::kNotPipelined);
    next_ += last.words();
    size_bytes_ = 0;  // the fill has changed the length
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
  std::uint32_t size_bytes_ = 0;  // length set by the last copy
};

}  // namespace pl::dma
