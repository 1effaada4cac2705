// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/staged_transport.hpp"

#include <deque>

namespace pl::p2p {
namespace {

class staged_transport : public transport {
 public:
  staged_transport(std::unique_ptr<transport> below, const tools::gpu_session& gpu) : below_(std::move(below)), gpu_(gpu) {}

  int rank() const override { return below_->rank(); }
  int size() const override { return below_->size(); }
  std::string library() const override { return below_->library() + ", staged through the host"; }
  void barrier() override { below_->barrier(); }
  std::vector<double> all_gather(double mine) override { return below_->all_gather(mine); }
  std::string plan() const override { return below_->plan(); }

  request isend(const void* data, std::size_t size_bytes, memory_kind kind, int peer, int tag) override {
    auto& op = take();
    if (kind == memory_kind::host) {
      op.below = below_->isend(data, size_bytes, kind, peer, tag);
      return as_request(op);
    }
    void* host = stage(op, size_bytes);
    if (size_bytes != 0)
      gpu_.check(gpu_.cuda().cuMemcpyDtoH_v2(host, reinterpret_cast<cu::device_ptr>(data), size_bytes), "cuMemcpyDtoH");
    op.below = below_->isend(host, size_bytes, memory_kind::host, peer, tag);
    return as_request(op);
  }

  request irecv(void* data, std::size_t size_bytes, memory_kind kind, int peer, int tag) override {
    auto& op = take();
    if (kind == memory_kind::host) {
      op.below = below_->irecv(data, size_bytes, kind, peer, tag);
      return as_request(op);
    }
    op.destination = data;
    op.size_bytes = size_bytes;
    op.below = below_->irecv(stage(op, size_bytes), size_bytes, memory_kind::host, peer, tag);
    return as_request(op);
  }

  void waitall(std::span<request> pending) override {
    waiting_.clear();
    for (const auto& one : pending) waiting_.push_back(as_operation(one).below);
    below_->waitall(waiting_);
    for (const auto& one : pending) {
      auto& op = as_operation(one);
      if (op.destination != nullptr && op.size_bytes != 0)
        gpu_.check(
            gpu_.cuda().cuMemcpyHtoD_v2(reinterpret_cast<cu::device_ptr>(op.destination), op.host->data(), op.size_bytes),
            "cuMemcpyHtoD");
      op.destination = nullptr;
      free_.push_back(&op);
    }
  }

 private:
  struct operation {
    request below;
    std::unique_ptr<tools::host_memory> host;  // kept for the next message
    void* destination = nullptr;
    std::size_t size_bytes = 0;
  };
  static request as_request(operation& op) { return {reinterpret_cast<std::uintptr_t>(&op)}; }
  static operation& as_operation(const request& value) { return *reinterpret_cast<operation*>(value.word); }

  operation& take() {
    if (free_.empty()) {
      operations_.emplace_back();
      return operations_.back();
    }
    operation* op = free_.back();
    free_.pop_back();
    return *op;
  }
  void* stage(operation& op, std::size_t size_bytes) {
    if (!op.host || op.host->size_bytes() < size_bytes)
      op.host = std::make_unique<tools::host_memory>(gpu_, std::max<std::size_t>(size_bytes, 4096));
    return op.host->data();
  }

  std::unique_ptr<transport> below_;
  const tools::gpu_session& gpu_;
  std::deque<operation> operations_;  // addresses stay
  std::vector<operation*> free_;
  std::vector<request> waiting_;
};

}  // namespace

std::unique_ptr<transport> stage_through_host(std::unique_ptr<transport> below, const tools::gpu_session& gpu) {
  return std::make_unique<staged_transport>(std::move(below), gpu);
}

}  // namespace pl::p2p
