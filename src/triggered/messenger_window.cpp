// SPDX-License-Identifier: Apache-2.0
#include "triggered/messenger_window.hpp"

#include <cerrno>
#include <string>
#include <utility>

#include "base/text.hpp"

namespace pl::triggered {
namespace {

class message_transfer final : public device::remote_transfer {
 public:
  message_transfer(int peer, const char* kind) : peer_(peer), kind_(kind) {}
  void begin(messaging::request made) { request_ = std::move(made); }
  std::uint32_t& word() noexcept { return word_; }

  bool poll() override { return request_.test(); }
  status outcome() const override {
    status ended = request_.outcome();
    if (ended) return ended;
    const std::string words = ended.code() == EINVAL ? "the window has ended, or is another's" : ended.error().message;
    return failure{ended.code(), format("%s that a kernel has posted to rank %d: %s", kind_, peer_, words.c_str())};
  }

 private:
  const int peer_;
  const char* const kind_;
  std::uint32_t word_ = 0;  // outlives the request, which reads it
  messaging::request request_;
};

class messenger_window final : public device::remote_target {
 public:
  messenger_window(messaging::messenger& messages, const messaging::window::key_t& key) : messages_(messages), key_(key) {}

  std::uint64_t size_bytes() const noexcept override { return key_.bytes; }
  std::unique_ptr<device::remote_transfer> put(std::uint64_t offset, std::uint64_t address, std::uint64_t bytes) override {
    auto made = std::make_unique<message_transfer>(key_.rank, "a put");
    made->begin(messages_.put(key_, offset, {address, bytes, messaging::memory_kind::detect}));
    return made;
  }
  std::unique_ptr<device::remote_transfer> get(std::uint64_t offset, std::uint64_t address, std::uint64_t bytes) override {
    auto made = std::make_unique<message_transfer>(key_.rank, "a get");
    made->begin(messages_.get(key_, offset, {address, bytes, messaging::memory_kind::detect}));
    return made;
  }
  std::unique_ptr<device::remote_transfer> put_word(std::uint64_t offset, std::uint32_t value) override {
    auto made = std::make_unique<message_transfer>(key_.rank, "a signal");
    made->word() = value;
    made->begin(messages_.put(key_, offset, messaging::host_buffer(&made->word(), sizeof value)));
    return made;
  }
  std::unique_ptr<device::remote_transfer> put_signal(std::uint64_t offset, std::uint64_t address, std::uint64_t bytes,
                                                      const remote_target& word_target, std::uint64_t word_offset,
                                                      std::uint32_t value) override {
    const auto* const word = dynamic_cast<const messenger_window*>(&word_target);
    if (word == nullptr || word->key_.rank != key_.rank || &word->messages_ != &messages_) return nullptr;
    auto made = std::make_unique<message_transfer>(key_.rank, "a put");
    made->begin(messages_.put_signal(key_, offset, {address, bytes, messaging::memory_kind::detect},
                                     {word->key_, word_offset, value, messaging::signal_kind::set_32}));
    return made;
  }

 private:
  messaging::messenger& messages_;
  const messaging::window::key_t key_;
};

}  // namespace

result<std::shared_ptr<device::remote_target>> reach_window(messaging::messenger& messages,
                                                            const messaging::window::key_t& key) {
  if (key.rank < 0 || key.rank >= messages.size())
    return failure{EINVAL, format("rank %d does not exist: the job has %d", key.rank, messages.size())};
  if (key.bytes == 0) return failure{EINVAL, "the key belongs to an empty window: its size is 0"};
  static_cast<void>(messages.packet_limit(key.rank));  // connects: a kernel's put finds the way open
  return std::shared_ptr<device::remote_target>(std::make_shared<messenger_window>(messages, key));
}

}  // namespace pl::triggered
