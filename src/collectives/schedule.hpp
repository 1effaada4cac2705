// SPDX-License-Identifier: Apache-2.0
// What one rank does for one collective: a list of steps, carried out in order. A send or a receive only starts; a `wait`
// holds the list up until one of them has ended. So a schedule says exactly what may overlap. At its end all that was
// started is waited for.
//
// Messages between two ranks match in the order of their steps: both sides' schedules list them in the same order.
//
// Owns: the scratch memory of its collective, but for a GPU's, which its combiner owns. Threads: one at a time. Errors:
// none; whoever runs it reports those of messages.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <vector>

#include "collectives/device_combiner.hpp"
#include "collectives/element.hpp"
#include "messaging/messenger.hpp"

namespace pl::collectives {

// Memory of a known kind, host or device; its length stands where it is used.
struct place {
  std::uint64_t address = 0;
  messaging::memory_kind kind = messaging::memory_kind::host;

  bool is_device() const noexcept { return kind == messaging::memory_kind::device; }
  void* pointer() const noexcept { return reinterpret_cast<void*>(address); }  // of host memory
  place operator+(std::size_t bytes) const noexcept { return {address + bytes, kind}; }
  bool operator==(const place&) const = default;
};

struct step {
  enum class kind_t : std::uint8_t { send, receive, wait, copy, combine };
  kind_t kind = kind_t::wait;
  element type = element::uint8;   // combine
  reduction op = reduction::sum;   // combine
  int peer = -1;                   // send, receive
  std::uint32_t token = 0;         // send, receive: its own; wait: whose
  std::size_t amount = 0;          // bytes; combine: elements
  place first{}, second{}, out{};  // send, receive: first. copy: first to out
};

class schedule {
 public:
  using token = std::uint32_t;

  token send(int peer, place source, std::size_t bytes) { return message(step::kind_t::send, peer, source, bytes); }
  token receive(int peer, place destination, std::size_t bytes) {
    return message(step::kind_t::receive, peer, destination, bytes);
  }
  void wait(token started) { steps_.push_back({.kind = step::kind_t::wait, .token = started}); }
  // For all that was started so far.
  void wait_all() {
    for (token each = 0; each < messages_; ++each) wait(each);
  }
  // Complete when the next step runs. Memory of a GPU is copied by a message to oneself, which `self` says.
  void copy(int self, place destination, place source, std::size_t bytes);
  // Of memory of one kind; a GPU's lies at multiples of the element's size.
  void combine(element type, reduction op, place first, place second, place out, std::size_t count);
  // Memory until the schedule is cleared, aligned for every element. A GPU's is its combiner's (use_device); where that has
  // none left, problem() says so and the schedule is of no use.
  place scratch(std::size_t bytes, messaging::memory_kind kind = messaging::memory_kind::host);
  void use_device(device_combiner* combiner) noexcept { combiner_ = combiner; }
  device_combiner* combiner() const noexcept { return combiner_; }
  const status& problem() const noexcept { return problem_; }
  // Such memory with a copy of `source`: complete when the next step runs.
  place copy_of(int self, place source, std::size_t bytes);

  const std::vector<step>& steps() const noexcept { return steps_; }
  std::uint32_t messages() const noexcept { return messages_; }
  // Empties it, and keeps a little memory for the next one.
  void clear() noexcept;

 private:
  static constexpr std::size_t kKeptBytes = 64 << 10;
  token message(step::kind_t kind, int peer, place target, std::size_t bytes) {
    steps_.push_back({.kind = kind, .peer = peer, .token = messages_, .amount = bytes, .first = target});
    return messages_++;
  }
  std::vector<step> steps_;
  std::uint32_t messages_ = 0;
  std::unique_ptr<std::byte[]> kept_;
  std::size_t kept_used_ = 0;
  std::vector<std::unique_ptr<std::byte[]>> blocks_;
  device_combiner* combiner_ = nullptr;
  std::vector<std::uint64_t> device_blocks_;
  status problem_;
};

}  // namespace pl::collectives
