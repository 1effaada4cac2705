// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/nccl_transport.hpp"

#include <algorithm>
#include <cstring>
#include <exception>

#include "base/text.hpp"
#include "tools/common/tool.hpp"
#include "tools/p2p/nccl_library.hpp"

namespace pl::p2p {
namespace {

using tools::tool_failure;

constexpr unsigned kPollsPerErrorCheck = 1024;

class nccl_transport : public transport {
 public:
  nccl_transport(const nccl_options& options, const tools::gpu_session& gpu, messaging::bootstrap& group)
      : options_(options),
        gpu_(gpu),
        bootstrap_(group),
        nccl_(load_nccl()),
        stream_(gpu),
        rank_(group.rank()),
        size_(group.size()) {
    check(nccl_.CommInitRank(&communicator_, size_, agree_on_nccl_id(nccl_, group), rank_), "ncclCommInitRank");
  }
  ~nccl_transport() override {
    // Closing waits for the other ranks. A failing rank must not wait: the process ends.
    if (std::uncaught_exceptions() == 0) nccl_.CommDestroy(communicator_);
  }
  nccl_transport(const nccl_transport&) = delete;
  nccl_transport& operator=(const nccl_transport&) = delete;

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  std::string library() const override {
    int version = 0;
    check(nccl_.GetVersion(&version), "ncclGetVersion");
    return format("NCCL %d.%d.%d", version / 10000, version / 100 % 100, version % 100);
  }

  request isend(const void* data, std::size_t size_bytes, memory_kind kind, int peer, int) override {
    return keep({const_cast<void*>(data), size_bytes, kind, peer, true});
  }
  request irecv(void* data, std::size_t size_bytes, memory_kind kind, int peer, int) override {
    return keep({data, size_bytes, kind, peer, false});
  }
  // Waits for everything pending, including operations that the caller does not wait for yet: later launches are
  // ordered after it, and a send would wait for a receive that is not posted.
  void waitall(std::span<request>) override {
    launch();
    finish();
  }
  void send(const void* data, std::size_t size_bytes, memory_kind kind, int peer, int tag) override {
    isend(data, size_bytes, kind, peer, tag);
    launch();
    if (options_.sends_end_in_call) finish();
  }

  void barrier() override {
    finish();
    tools::must(bootstrap_.barrier());
  }
  std::vector<double> all_gather(double mine) override {
    finish();
    const auto all = tools::must(bootstrap_.all_gather(std::as_bytes(std::span(&mine, 1))));
    std::vector<double> out(all.size());
    for (std::size_t i = 0; i < all.size(); ++i) std::memcpy(&out[i], all[i].data(), sizeof(double));
    return out;
  }

 private:
  struct operation {
    void* data;
    std::size_t size_bytes;
    memory_kind kind;
    int peer;
    bool sends;
  };

  void check(int code, const char* action) const { nccl_.check(code, action); }

  request keep(const operation& one) {
    if (one.kind == memory_kind::host) throw tool_failure("NCCL does not support host memory: use D or MD for both sides");
    pending_.push_back(one);
    return {};
  }

  void launch() {
    if (pending_.empty()) return;
    check(nccl_.GroupStart(), "ncclGroupStart");
    for (const auto& one : pending_) {
      if (one.sends)
        check(nccl_.Send(one.data, one.size_bytes, nccl_type::uint8, one.peer, communicator_, stream_.get()), "ncclSend");
      else check(nccl_.Recv(one.data, one.size_bytes, nccl_type::uint8, one.peer, communicator_, stream_.get()), "ncclRecv");
    }
    pending_.clear();
    check(nccl_.GroupEnd(), "ncclGroupEnd");
  }

  // Polls, so that waiting costs little and a lost peer becomes an error.
  void finish() {
    for (unsigned polls = 1;; ++polls) {
      const auto code = gpu_.cuda().cuStreamQuery(stream_.get());
      if (code != cu::error_code::not_ready) return gpu_.check(code, "NCCL's stream");
      if (polls % kPollsPerErrorCheck != 0) continue;
      int error = 0;
      check(nccl_.CommGetAsyncError(communicator_, &error), "ncclCommGetAsyncError");
      check(error, "NCCL's message");
    }
  }

  nccl_options options_;
  const tools::gpu_session& gpu_;
  messaging::bootstrap& bootstrap_;
  nccl_table nccl_;
  tools::gpu_stream stream_;
  int rank_, size_;
  nccl_communicator* communicator_ = nullptr;
  std::vector<operation> pending_;
};

}  // namespace

std::unique_ptr<transport> open_nccl(const nccl_options& options, const tools::gpu_session& gpu,
                                     messaging::bootstrap& group) {
  return std::make_unique<nccl_transport>(options, gpu, group);
}

}  // namespace pl::p2p
