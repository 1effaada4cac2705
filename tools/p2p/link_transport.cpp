// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/link_transport.hpp"

#include <cstring>

#include "base/text.hpp"
#include "collectives/executor.hpp"
#include "messaging/messenger.hpp"
#include "tools/common/tool.hpp"
#include "tools/p2p/collective_calls.hpp"
#include "tools/p2p/one_sided_calls.hpp"

namespace pl::p2p {
namespace {

messaging::buffer as_buffer(const void* data, std::size_t size_bytes, memory_kind kind) {
  messaging::buffer out = messaging::host_buffer(data, size_bytes);
  if (kind == memory_kind::device) out.kind = messaging::memory_kind::device;
  if (kind == memory_kind::managed_host || kind == memory_kind::managed_device) out.kind = messaging::memory_kind::detect;
  return out;
}

class link_collectives : public collective_calls {
 public:
  explicit link_collectives(std::unique_ptr<collectives::executor> all) : all_(std::move(all)) {}
  const collectives::algorithm_table& table() const { return all_->table(); }

  void barrier() override { finish(all_->barrier()); }
  void broadcast(void* data, std::size_t bytes, memory_kind kind, int root) override {
    finish(all_->broadcast(as_buffer(data, bytes, kind), root));
  }
  void gather(const exchange& memory, std::size_t bytes, int root) override {
    finish(all_->gather(source(memory, bytes), destination(memory, bytes * ranks()), root));
  }
  void scatter(const exchange& memory, std::size_t bytes, int root) override {
    finish(all_->scatter(source(memory, bytes * ranks()), destination(memory, bytes), root));
  }
  void all_gather(const exchange& memory, std::size_t bytes) override {
    finish(all_->all_gather(source(memory, bytes), destination(memory, bytes * ranks())));
  }
  void reduce(const exchange& memory, std::size_t count, int root) override {
    finish(all_->reduce(source(memory, count * sizeof(float)), destination(memory, count * sizeof(float)), kSum, root));
  }
  void all_reduce(const exchange& memory, std::size_t count) override {
    finish(all_->all_reduce(source(memory, count * sizeof(float)), destination(memory, count * sizeof(float)), kSum));
  }
  void reduce_scatter(const exchange& memory, std::span<const std::size_t> counts) override {
    std::size_t total = 0;
    for (const std::size_t one : counts) total += one;
    finish(all_->reduce_scatter(source(memory, total * sizeof(float)),
                                destination(memory, counts[static_cast<std::size_t>(all_->rank())] * sizeof(float)), counts,
                                kSum));
  }
  void all_to_all(const exchange& memory, std::size_t bytes) override {
    finish(all_->all_to_all(source(memory, bytes * ranks()), destination(memory, bytes * ranks())));
  }
  void all_to_all_v(const exchange& memory, std::span<const std::size_t> bytes,
                    std::span<const std::size_t> offsets) override {
    const std::size_t whole = offsets.back() + bytes.back();
    finish(all_->all_to_all_v(source(memory, whole), {bytes, offsets}, destination(memory, whole), {bytes, offsets}));
  }

 private:
  static constexpr collectives::summation kSum{collectives::element::float32, collectives::reduction::sum};
  std::size_t ranks() const { return static_cast<std::size_t>(all_->size()); }
  static messaging::buffer source(const exchange& memory, std::size_t bytes) {
    return as_buffer(memory.source, bytes, memory.kind);
  }
  static messaging::buffer destination(const exchange& memory, std::size_t bytes) {
    return as_buffer(memory.destination, bytes, memory.kind);
  }
  static void finish(result<collectives::operation> begun) {
    auto one = tools::must(std::move(begun));
    tools::must(one.wait());
  }
  std::unique_ptr<collectives::executor> all_;
};

class link_one_sided : public one_sided_calls {
 public:
  explicit link_one_sided(messaging::messenger& messenger) : messenger_(messenger) {}

  void* open_window(std::size_t bytes) override {
    mine_ = tools::must(messenger_.allocate(bytes));
    exchange_keys();
    return mine_.data();
  }
  void open_window_on(void* memory, std::size_t bytes) override {
    mine_ = tools::must(messenger_.expose(as_buffer(memory, bytes, memory_kind::device)));
    exchange_keys();
  }
  void close_window() override {
    tools::must(messenger_.barrier());
    tools::must(mine_.close());
  }
  void put(const void* data, std::size_t bytes, memory_kind kind, int peer, std::size_t offset) override {
    keep(messenger_.put(key_of(peer), offset, as_buffer(data, bytes, kind)));
  }
  void get(void* data, std::size_t bytes, memory_kind kind, int peer, std::size_t offset) override {
    keep(messenger_.get(key_of(peer), offset, as_buffer(data, bytes, kind)));
  }
  void flush(int /*peer*/) override {
    for (auto& one : pending_) tools::must(one.wait());
    pending_.clear();
  }
  std::uint64_t fetch_add(int peer, std::size_t offset, std::uint64_t operand) override {
    std::uint64_t before = 0;
    tools::must(messenger_.atomic(key_of(peer), offset, messaging::atomic_op::add, operand, 0, &before).wait());
    return before;
  }
  std::uint64_t compare_swap(int peer, std::size_t offset, std::uint64_t compare, std::uint64_t operand) override {
    std::uint64_t before = 0;
    tools::must(
        messenger_.atomic(key_of(peer), offset, messaging::atomic_op::compare_swap, operand, compare, &before).wait());
    return before;
  }

 private:
  void exchange_keys() {
    keys_.resize(static_cast<std::size_t>(messenger_.size()));
    std::vector<messaging::request> pending;
    const auto own = messaging::host_buffer(&mine_.key(), sizeof(messaging::window::key_t));
    for (int peer = 0; peer < messenger_.size(); ++peer) {
      auto& key = keys_[static_cast<std::size_t>(peer)];
      pending.push_back(messenger_.irecv(peer, messaging::host_buffer(&key, sizeof key), kCollectiveTag));
      pending.push_back(messenger_.isend(peer, own, kCollectiveTag));
    }
    for (auto& one : pending) tools::must(one.wait());
  }
  const messaging::window::key_t& key_of(int peer) const { return keys_[static_cast<std::size_t>(peer)]; }
  void keep(messaging::request one) {
    if (one.has_ended()) return tools::must(one.outcome());
    pending_.push_back(std::move(one));
  }
  messaging::messenger& messenger_;
  messaging::window mine_;
  std::vector<messaging::window::key_t> keys_;
  std::vector<messaging::request> pending_;
};

class link_transport : public transport {
 public:
  link_transport(std::unique_ptr<messaging::messenger> messenger, std::unique_ptr<collectives::executor> all)
      : messenger_(std::move(messenger)), collectives_(std::move(all)), one_sided_(*messenger_) {}

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

  collective_calls& collectives() override { return collectives_; }
  one_sided_calls& one_sided() override { return one_sided_; }

  std::string plan() const override {
    std::string text = collectives_.table().text();
    for (int peer = 0; peer < size(); ++peer)
      if (peer != rank()) text += format("to rank %d:\n", peer) + messenger_->plan(peer);
    return text;
  }

 private:
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
  link_collectives collectives_;
  link_one_sided one_sided_;
  std::vector<messaging::request> slots_;  // a request's word is its place here
  std::vector<std::uintptr_t> free_;
};

}  // namespace

std::unique_ptr<transport> open_link(const cu::driver_table* cuda, messaging::bootstrap& group) {
  auto messenger = tools::must(messaging::messenger::open(cuda, group));
  auto all = tools::must(collectives::executor::open(*messenger, group));
  return std::make_unique<link_transport>(std::move(messenger), std::move(all));
}

}  // namespace pl::p2p
