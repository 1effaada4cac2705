// SPDX-License-Identifier: Apache-2.0
// A transport between threads of one process that keeps count of everything: what the loops really send.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <cstring>
#include <deque>
#include <functional>
#include <map>
#include <mutex>
#include <thread>
#include <vector>

#include "tools/p2p/buffers.hpp"
#include "tools/p2p/transport.hpp"

namespace pl::p2p::test {

using bytes = std::vector<std::uint8_t>;

struct message {
  int sender = 0, receiver = 0, tag = 0;
  bytes data;
  const void* source = nullptr;  // where the sender had it
};

// What the ranks share.
class memory_world {
 public:
  explicit memory_world(int ranks) : size(ranks), gathered(static_cast<std::size_t>(ranks)) {}

  const int size;
  std::vector<message> sent;  // all, in the order of the calls
  int barriers = 0;           // of all ranks together, once each
  // May change a message on its way; false: the receiver's buffer is left as it is.
  std::function<bool(message&)> on_the_way = [](message&) { return true; };

  std::size_t count(int source_rank, int tag) const {
    std::size_t found = 0;
    for (const auto& one : sent) found += one.sender == source_rank && one.tag == tag ? 1 : 0;
    return found;
  }

  void put(message one) {
    const std::lock_guard lock(mutex_);
    sent.push_back(one);
    queue_[{one.sender, one.receiver, one.tag}].push_back(std::move(one));
    changed_.notify_all();
  }
  message take(int source_rank, int destination_rank, int tag) {
    std::unique_lock lock(mutex_);
    auto& waiting = queue_[{source_rank, destination_rank, tag}];
    changed_.wait(lock, [&] { return !waiting.empty(); });
    message one = std::move(waiting.front());
    waiting.pop_front();
    return one;
  }
  void meet() {
    std::unique_lock lock(mutex_);
    const int now = generation_;
    if (++arrived_ == size) {
      arrived_ = 0;
      ++generation_;
      changed_.notify_all();
      return;
    }
    changed_.wait(lock, [&] { return generation_ != now; });
  }
  std::vector<double> gathered;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::tuple<int, int, int>, std::deque<message>> queue_;
  int arrived_ = 0, generation_ = 0;
};

class memory_transport : public transport {
 public:
  memory_transport(memory_world& world, int rank) : world_(world), rank_(rank) {}
  int rank() const override { return rank_; }
  int size() const override { return world_.size; }
  std::string library() const override { return "memory"; }

  request isend(const void* data, std::size_t size_bytes, memory_kind, int peer, int tag) override {
    const auto* first = static_cast<const std::uint8_t*>(data);
    world_.put({rank_, peer, tag, bytes(first, first + size_bytes), data});
    return {};
  }
  request irecv(void* data, std::size_t size_bytes, memory_kind, int peer, int tag) override {
    pending_.push_back({data, size_bytes, peer, tag});
    return {pending_.size()};
  }
  void waitall(std::span<request> pending) override {
    for (const auto& one : pending)
      if (one.word != 0) finish(pending_[one.word - 1]);
  }
  void barrier() override {
    if (rank_ == 0) ++world_.barriers;
    world_.meet();
  }
  std::vector<double> all_gather(double mine) override {
    world_.gathered[static_cast<std::size_t>(rank_)] = mine;
    world_.meet();
    auto all = world_.gathered;
    world_.meet();
    return all;
  }
  // Receives whose message had another length than the buffer.
  int wrong_lengths = 0;

 private:
  struct receive {
    void* data;
    std::size_t size_bytes;
    int peer, tag;
  };
  void finish(const receive& posted) {
    message one = world_.take(posted.peer, rank_, posted.tag);
    if (one.data.size() != posted.size_bytes) ++wrong_lengths;
    if (world_.on_the_way(one) && !one.data.empty()) std::memcpy(posted.data, one.data.data(), one.data.size());
  }
  memory_world& world_;
  int rank_;
  std::vector<receive> pending_;
};

class host_buffers : public buffer_source {
 public:
  std::unique_ptr<message_buffer> allocate(memory_kind, std::size_t size_bytes) override {
    return allocate_host_buffer(size_bytes);
  }
  void consume(const message_buffer& buffer, std::size_t size_bytes) override {
    ++consumed;
    consume_on_host(buffer.data(), size_bytes);
  }
  int consumed = 0;
};

// Runs `body(rank)` on a thread for each rank and returns what each gave back.
template <class Result>
std::vector<Result> on_ranks(int ranks, const std::function<Result(int)>& body) {
  std::vector<Result> results(static_cast<std::size_t>(ranks));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < ranks; ++rank)
    threads.emplace_back([&, rank] { results[static_cast<std::size_t>(rank)] = body(rank); });
  for (auto& one : threads) one.join();
  return results;
}

}  // namespace pl::p2p::test
