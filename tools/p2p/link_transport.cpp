// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/link_transport.hpp"

#include "base/text.hpp"
#include "messaging/messenger.hpp"
#include "tools/common/tool.hpp"

namespace pl::p2p {
namespace {

class link_transport : public transport {
 public:
  explicit link_transport(std::unique_ptr<messaging::messenger> messenger) : messenger_(std::move(messenger)) {}

  int rank() const override { return messenger_->rank(); }
  int size() const override { return messenger_->size(); }
  std::string library() const override { return "Peerlane"; }

  request isend(const void* data, std::size_t size_bytes, memory_kind kind, int peer, int tag) override {
    return keep(messenger_->isend(peer, as_buffer(data, size_bytes, kind), static_cast<std::uint64_t>(tag)));
  }
  request irecv(void* data, std::size_t size_bytes, memory_kind kind, int peer, int tag) override {
    return keep(messenger_->irecv(peer, as_buffer(data, size_bytes, kind), static_cast<std::uint64_t>(tag)));
  }
  void waitall(std::span<request> pending) override {
    for (const auto& one : pending) {
      auto& slot = slots_[one.word];
      tools::must(slot.wait());
      slot = {};
      free_.push_back(one.word);
    }
  }
  void send(const void* data, std::size_t size_bytes, memory_kind kind, int peer, int tag) override {
    tools::must(messenger_->send(peer, as_buffer(data, size_bytes, kind), static_cast<std::uint64_t>(tag)));
  }
  void recv(void* data, std::size_t size_bytes, memory_kind kind, int peer, int tag) override {
    tools::must(messenger_->recv(peer, as_buffer(data, size_bytes, kind), static_cast<std::uint64_t>(tag)));
  }

  void barrier() override { tools::must(messenger_->barrier()); }
  std::vector<double> all_gather(double mine) override { return gather_by_messages(*this, mine); }

  std::string plan() const override {
    std::string text;
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank()) text += format("to rank %d:\n", peer) + messenger_->plan(peer);
    return text;
  }

 private:
  static messaging::buffer as_buffer(const void* data, std::size_t size_bytes, memory_kind kind) {
    messaging::buffer out = messaging::host_buffer(data, size_bytes);
    if (kind == memory_kind::device) out.kind = messaging::memory_kind::device;
    if (kind == memory_kind::managed_host || kind == memory_kind::managed_device) out.kind = messaging::memory_kind::detect;
    return out;
  }
  request keep(messaging::request&& one) {
    if (free_.empty()) {
      slots_.push_back(std::move(one));
      return {slots_.size() - 1};
    }
    const auto slot = free_.back();
    free_.pop_back();
    slots_[slot] = std::move(one);
    return {slot};
  }

  std::unique_ptr<messaging::messenger> messenger_;
  std::vector<messaging::request> slots_;  // a request's word is its place here
  std::vector<std::uintptr_t> free_;
};

}  // namespace

std::unique_ptr<transport> open_link(const cu::driver_table* cuda, messaging::bootstrap& group) {
  return std::make_unique<link_transport>(tools::must(messaging::messenger::open(cuda, group)));
}

}  // namespace pl::p2p
