// SPDX-License-Identifier: Apache-2.0
// Kernels that put into and get from windows of another host, and look at what comes from there.
#include "cuda/device_port.cuh"

#if !defined(__CUDACC__)
#include "base/two_views.hpp"
#endif

namespace pd = peerlane::device;
using ring_t = peerlane_device_ring;
using window_t = peerlane_device_window;

namespace {

PL_DEVICE std::uint64_t mix(std::uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9ull;
  value = (value ^ (value >> 27)) * 0x94d049bb133111ebull;
  return value ^ (value >> 31);
}
// Byte `place` of round `round` of a rank.
PL_DEVICE std::uint8_t pattern(unsigned rank, unsigned round, std::uint64_t place) {
  return static_cast<std::uint8_t>(mix(place + (std::uint64_t{round} << 32) + rank) >> 7);
}
PL_DEVICE void answer(std::uint64_t address, long long value) {
  pl::dev::store_release<std::uint64_t>(address, static_cast<std::uint64_t>(value));
}
// The word comes by a mapping of the CPU's, of which ThreadSanitizer knows nothing.
PL_DEVICE int wait_word(const window_t& words, std::uint64_t offset, unsigned value, std::uint64_t timeout_ns) {
  const int code = pd::wait_signal(words, offset, value, timeout_ns);
#if !defined(__CUDACC__)
  pl::after_load_in_view(words.address + offset);
#endif
  return code;
}
PL_DEVICE long long count_wrong(std::uint64_t address, std::uint64_t begin, std::uint64_t bytes, unsigned rank,
                                unsigned round) {
  long long wrong = 0;
  for (std::uint64_t i = begin; i < begin + bytes; ++i)
    wrong += pl::dev::load_relaxed<std::uint8_t>(address + i) != pattern(rank, round, i) ? 1 : 0;
  return wrong;
}

}  // namespace

// One thread, `rounds` times: a piece of random place and size of `mine` becomes this round's and goes to the same place of
// `theirs`, in parts, the last one with the signal; then the peer's signal is awaited and its piece looked at, byte for
// byte. Both ranks draw from the same seed. `answer_to`: how many bytes were wrong, or an error.
PL_KERNEL void exchange_pieces(ring_t ring, window_t mine, window_t theirs, window_t words, window_t their_words,
                               window_t received, unsigned rank, unsigned rounds, std::uint64_t seed,
                               std::uint64_t answer_to) {
  long long wrong = 0, code = 0;
  for (unsigned round = 1; round <= rounds && code >= 0; ++round) {
    const std::uint64_t draw = mix(seed + round);
    // Some of each order of magnitude.
    const std::uint64_t most = mine.size_bytes >> (draw % 12), bytes = mix(draw) % most + 1;
    const std::uint64_t begin = mix(draw + 1) % (mine.size_bytes - bytes + 1);
    for (std::uint64_t i = begin; i < begin + bytes; ++i)
      pl::dev::store_relaxed<std::uint8_t>(mine.address + i, pattern(rank, round, i));
    const unsigned parts = static_cast<unsigned>(draw >> 40) % 4 + 1;
    std::uint64_t done = 0;
    for (unsigned part = 1; part < parts && code >= 0; ++part) {
      const std::uint64_t piece = mix(draw + part) % (bytes - done + 1);
      code = pd::put(ring, theirs, begin + done, mine, begin + done, piece);
      done += piece;
    }
    if (code >= 0)
      code = pd::put_signal(ring, theirs, begin + done, mine, begin + done, bytes - done, their_words, 0, round);
    if (code >= 0) code = pd::wait(ring, code);  // the source is written again in the next round
    if (code >= 0) code = wait_word(words, 0, round, ring.timeout_ns);
    if (code >= 0) wrong += count_wrong(received.address, begin, bytes, 1 - rank, round);
    // What the peer puts next may go over what this thread has read.
    if (code >= 0) code = pd::signal(ring, their_words, 64, round);
    if (code >= 0) code = wait_word(words, 64, round, ring.timeout_ns);
  }
  answer(answer_to, code < 0 ? code : wrong);
}
PL_EXPORT_KERNEL(exchange_pieces)

// One thread: gets pieces of `theirs` into `mine`, from the begin of the window on, until all is there.
PL_KERNEL void get_pieces(ring_t ring, window_t mine, window_t theirs, std::uint64_t seed, std::uint64_t answer_to) {
  std::uint64_t state = mix(seed), done = 0;
  long long code = 0;
  while (done < theirs.size_bytes && code >= 0) {
    state = mix(state + 1);
    std::uint64_t piece = state % (state % 3 == 0 ? 100'000 : 700) + 1;
    if (piece > theirs.size_bytes - done) piece = theirs.size_bytes - done;
    code = pd::get(ring, mine, done, theirs, done, piece);
    done += piece;
  }
  answer(answer_to, code < 0 ? code : pd::quiet(ring));
}
PL_EXPORT_KERNEL(get_pieces)

// One thread: there and back through the other host's memory, each step of what the one before brought. `fences`: between
// them stand fences, else the flag that says so.
PL_KERNEL void go_round(ring_t ring, window_t mine, window_t theirs, std::uint64_t bytes, unsigned steps, unsigned fences,
                        std::uint64_t answer_to) {
  const unsigned flags = fences != 0 ? 0u : static_cast<unsigned>(PEERLANE_DEVICE_ORDERED);
  long long code = 0;
  for (unsigned step = 0; step < steps && code >= 0; ++step) {
    code = pd::put(ring, theirs, step * bytes, mine, step * bytes, bytes, flags);
    if (fences != 0 && code >= 0) code = pd::fence(ring);
    if (code >= 0) code = pd::get(ring, mine, (step + 1) * bytes, theirs, step * bytes, bytes, flags);
    if (fences != 0 && code >= 0) code = pd::fence(ring);
  }
  answer(answer_to, code < 0 ? code : pd::quiet(ring));
}
PL_EXPORT_KERNEL(go_round)

// One thread: from `mine` to `between`, both of this GPU, from there to the other host, back to `between` and on into
// `mine`, a piece behind the other.
PL_KERNEL void relay(ring_t ring, window_t mine, window_t between, window_t theirs, std::uint64_t bytes, unsigned steps,
                     std::uint64_t answer_to) {
  long long code = 0;
  for (unsigned step = 0; step < steps && code >= 0; ++step) {
    code = pd::put(ring, between, 0, mine, step * bytes, bytes, PEERLANE_DEVICE_ORDERED);
    if (code >= 0) code = pd::put(ring, theirs, step * bytes, between, 0, bytes, PEERLANE_DEVICE_ORDERED);
    if (code >= 0) code = pd::get(ring, between, bytes, theirs, step * bytes, bytes, PEERLANE_DEVICE_ORDERED);
    if (code >= 0) code = pd::put(ring, mine, (step + 1) * bytes, between, bytes, bytes, PEERLANE_DEVICE_ORDERED);
  }
  answer(answer_to, code < 0 ? code : pd::quiet(ring));
}
PL_EXPORT_KERNEL(relay)

// Posts until the ring says no: the error, and behind it how long the call took that brought it, ns.
PL_KERNEL void put_until_error(ring_t ring, window_t mine, window_t theirs, std::uint64_t bytes, std::uint64_t answer_to) {
  long long code = 0;
  std::uint64_t begin_ns = 0;
  while (code >= 0) {
    begin_ns = pl::dev::global_timer_ns();
    code = pd::put(ring, theirs, 0, mine, 0, bytes);
    if (code >= 0) code = pd::wait(ring, code);
  }
  answer(answer_to + 8, static_cast<long long>(pl::dev::global_timer_ns() - begin_ns));
  answer(answer_to, code);
}
PL_EXPORT_KERNEL(put_until_error)

// What is refused before anything is posted: the answers of three calls.
PL_KERNEL void post_wrong(ring_t ring, window_t mine, window_t theirs, std::uint64_t answer_to) {
  answer(answer_to, pd::put(ring, theirs, theirs.size_bytes - 3, mine, 0, 4));
  answer(answer_to + 8, pd::put(ring, theirs, 0, theirs, 64, 4));
  answer(answer_to + 16, pd::wait_signal(theirs, 0, 1, 1000));
}
PL_EXPORT_KERNEL(post_wrong)
