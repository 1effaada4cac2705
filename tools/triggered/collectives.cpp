// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/collectives.hpp"

#include <algorithm>
#include <cstdio>
#include <functional>
#include <memory>

#include "base/statistics.hpp"
#include "base/text.hpp"
#include "collectives/small_float.hpp"
#include "tools/common/tool.hpp"
#include "tools/p2p/nccl_library.hpp"
#include "tools/triggered/captured_work.hpp"

namespace pl::async {
namespace {

using collectives::element;
using kind_t = stream_collective;

constexpr collectives::reduction kSum = collectives::reduction::sum;
constexpr std::size_t kManyBytes = 1 << 20;

struct nccl_ranks {
  nccl_ranks(bench_rank& session) : nccl(p2p::load_nccl(true)) {
    const auto id = p2p::agree_on_nccl_id(nccl, session.bootstrap());
    nccl.check(nccl.CommInitRank(&communicator, session.bootstrap().size(), id, session.rank()), "ncclCommInitRank");
  }
  ~nccl_ranks() { nccl.CommDestroy(communicator); }
  nccl_ranks(const nccl_ranks&) = delete;
  nccl_ranks& operator=(const nccl_ranks&) = delete;
  p2p::nccl_table nccl;
  p2p::nccl_communicator* communicator = nullptr;
};

int nccl_type_of(element type) {
  switch (type) {
    case element::int32:
      return p2p::nccl_type::int32;
    case element::float16:
      return p2p::nccl_type::float16;
    case element::bfloat16:
      return p2p::nccl_type::bfloat16;
    case element::float64:
      return p2p::nccl_type::float64;
    default:
      return p2p::nccl_type::float32;
  }
}

// Small integers, which every type holds.
void write_number(unsigned char* out, element type, int value) {
  const auto real = static_cast<float>(value);
  const auto write = [&](auto bits) { std::memcpy(out, &bits, sizeof bits); };
  if (type == element::int32) write(value);
  else if (type == element::float64) write(static_cast<double>(value));
  else if (type == element::float16) write(static_cast<std::uint16_t>(collectives::float16_format::encode(real)));
  else if (type == element::bfloat16) write(static_cast<std::uint16_t>(collectives::bfloat16_format::encode(real)));
  else write(real);
}

class collectives_bench {
 public:
  collectives_bench(bench_rank& session, const collectives_plan& plan, result_file* file)
      : session_(session), plan_(plan), file_(file), ranks_(static_cast<std::size_t>(session.bootstrap().size())) {
    if (plan.has_ours)
      ours_ = tools::must(collectives::stream_collectives::open(session.context(), session.bootstrap(), plan.options));
    if (!plan.has_nccl) return;
    nccl_ = std::make_unique<nccl_ranks>(session);
    int version = 0;
    nccl_->nccl.check(nccl_->nccl.GetVersion(&version), "ncclGetVersion");
    if (file != nullptr)
      file->set_parameter("nccl", format("%d.%d.%d", version / 10000, version / 100 % 100, version % 100));
  }

  int all() {
    for (const auto kind : plan_.kinds) {
      std::printf("# %s of %s by %s between %zu ranks, us (median of %d repetitions), and GB/s of the size\n", name_of(kind),
                  collectives::name_of(plan_.type), plan_.has_ours ? "ours" : "NCCL", ranks_, plan_.repeats);
      std::printf("%12s %10s %10s %10s %10s", "bytes", "graph", "p99", "GB/s", "stream");
      if (plan_.has_ours && plan_.has_nccl) std::printf(" %10s %8s", "NCCL graph", "ratio");
      std::printf("\n");
      for (const auto size : plan_.sizes)
        if (kind == kind_t::all_reduce || block_of(size) != 0) one_size(kind, size);
    }
    session_.synchronize();
    nccl_.reset();
    if (ours_ != nullptr) tools::must(ours_->close());
    if (file_ != nullptr && is_wrong_) file_->set_pass(false);
    return is_wrong_ ? tools::kExitFailed : tools::kExitOk;
  }

 private:
  struct contender {
    const char* name;
    std::function<status()> queue;
    std::unique_ptr<captured_work> graph;
    std::vector<double> in_graph_ns, in_stream_ns;
  };

  std::size_t block_of(std::size_t size) const {
    const std::size_t width = collectives::size_of(plan_.type);
    return size / ranks_ / width * width;
  }

  status queue_ours(kind_t kind, std::size_t size) {
    const auto stream = session_.stream();
    const std::uint64_t source = session_.send_buffer(), target = session_.receive_buffer();
    const collectives::summation terms{plan_.type, kSum};
    switch (kind) {
      case kind_t::all_reduce:
        return ours_->all_reduce(stream, source, target, size, terms);
      case kind_t::reduce_scatter:
        return ours_->reduce_scatter(stream, source, target, block_of(size), terms);
      case kind_t::all_gather:
        return ours_->all_gather(stream, source, target, block_of(size));
      case kind_t::all_to_all:
        return ours_->all_to_all(stream, source, target, block_of(size));
    }
    return {};
  }

  status queue_nccl(kind_t kind, std::size_t size) {
    const auto stream = session_.stream();
    const auto* const source = reinterpret_cast<const void*>(session_.send_buffer());
    auto* const target = reinterpret_cast<void*>(session_.receive_buffer());
    const int type = nccl_type_of(plan_.type);
    const std::size_t width = collectives::size_of(plan_.type), count = size / width, block = block_of(size) / width;
    const auto& nccl = nccl_->nccl;
    auto* const comm = nccl_->communicator;
    switch (kind) {
      case kind_t::all_reduce:
        nccl.check(nccl.AllReduce(source, target, count, type, p2p::kNcclSum, comm, stream), "ncclAllReduce");
        return {};
      case kind_t::reduce_scatter:
        nccl.check(nccl.ReduceScatter(source, target, block, type, p2p::kNcclSum, comm, stream), "ncclReduceScatter");
        return {};
      case kind_t::all_gather:
        nccl.check(nccl.AllGather(source, target, block, type, comm, stream), "ncclAllGather");
        return {};
      case kind_t::all_to_all:
        break;
    }
    nccl.check(nccl.GroupStart(), "ncclGroupStart");
    for (std::size_t rank = 0; rank < ranks_; ++rank) {
      const int peer = static_cast<int>(rank);
      const std::size_t offset = rank * block * width;
      nccl.check(nccl.Send(static_cast<const char*>(source) + offset, block, type, peer, comm, stream), "ncclSend");
      nccl.check(nccl.Recv(static_cast<char*>(target) + offset, block, type, peer, comm, stream), "ncclRecv");
    }
    nccl.check(nccl.GroupEnd(), "ncclGroupEnd");
    return {};
  }

  // Element i of what a rank gives.
  static int value_of(std::size_t rank, std::size_t i) { return static_cast<int>((i * 7 + i / 1021) % 7 * (rank + 1)); }

  void fill(std::size_t bytes) {
    const std::size_t width = collectives::size_of(plan_.type);
    std::vector<unsigned char> content(bytes);
    for (std::size_t i = 0; i < bytes / width; ++i)
      write_number(content.data() + i * width, plan_.type, value_of(static_cast<std::size_t>(session_.rank()), i));
    session_.gpu().check(session_.cuda().cuMemcpyHtoD_v2(session_.send_buffer(), content.data(), bytes), "cuMemcpyHtoD");
    session_.gpu().check(session_.cuda().cuMemsetD8_v2(session_.receive_buffer(), 0xee, bytes), "cuMemsetD8");
    session_.gpu().synchronize();
  }

  int wanted(kind_t kind, std::size_t i, std::size_t block_elements) const {
    const auto own = static_cast<std::size_t>(session_.rank());
    if (kind == kind_t::all_gather) return value_of(i / block_elements, i % block_elements);
    if (kind == kind_t::all_to_all) return value_of(i / block_elements, own * block_elements + i % block_elements);
    const std::size_t place = kind == kind_t::reduce_scatter ? own * block_elements + i : i;
    int sum = 0;
    for (std::size_t rank = 0; rank < ranks_; ++rank) sum += value_of(rank, place);
    return sum;
  }

  void verify(kind_t kind, std::size_t size, const char* name) {
    const std::size_t width = collectives::size_of(plan_.type), block = block_of(size);
    const std::size_t bytes = kind == kind_t::all_reduce ? size : kind == kind_t::reduce_scatter ? block : block * ranks_;
    std::vector<unsigned char> got(bytes), right(bytes);
    session_.gpu().check(session_.cuda().cuMemcpyDtoH_v2(got.data(), session_.receive_buffer(), bytes), "cuMemcpyDtoH");
    for (std::size_t i = 0; i < bytes / width; ++i)
      write_number(right.data() + i * width, plan_.type, wanted(kind, i, block / width));
    int is_wrong = got != right ? 1 : 0;
    const auto all = tools::must(session_.bootstrap().all_gather(std::as_bytes(std::span(&is_wrong, 1))));
    for (std::size_t rank = 0; rank < all.size(); ++rank) {
      int theirs = 0;
      std::memcpy(&theirs, all[rank].data(), sizeof theirs);
      if (theirs == 0) continue;
      is_wrong_ = true;
      std::printf("WRONG: %s by %s, %zu bytes, at rank %zu\n", name_of(kind), name, size, rank);
    }
  }

  void one_size(kind_t kind, std::size_t size) {
    const int calls = size > kManyBytes ? std::max(plan_.calls / 4, 1) : plan_.calls;
    std::vector<contender> contenders;
    if (ours_ != nullptr) contenders.push_back({"ours", [this, kind, size] { return queue_ours(kind, size); }, {}, {}, {}});
    if (nccl_ != nullptr) contenders.push_back({"nccl", [this, kind, size] { return queue_nccl(kind, size); }, {}, {}, {}});
    for (auto& one : contenders) {
      fill(size);
      session_.barrier();
      tools::must(one.queue());
      session_.synchronize();
      verify(kind, size, one.name);
      const auto row = [&]() -> status {
        for (int i = 0; i < calls; ++i)
          if (auto done = one.queue(); !done) return done;
        return {};
      };
      one.graph = std::make_unique<captured_work>(tools::must(captured_work::make(session_, row)));
    }
    for (int turn = -1; turn < plan_.repeats; ++turn)
      for (auto& one : contenders) {
        session_.barrier();
        const double graph_ns = session_.time_on_gpu(1, [&] { one.graph->launch(); }) / calls;
        session_.barrier();
        const double stream_ns = session_.time_on_gpu(calls, [&] { tools::must(one.queue()); });
        if (turn < 0) continue;  // the first launch of a graph uploads it
        one.in_graph_ns.push_back(graph_ns);
        one.in_stream_ns.push_back(stream_ns);
      }
    for (auto& one : contenders) verify(kind, size, one.name);
    report(kind, size, contenders);
  }

  void report(kind_t kind, std::size_t size, std::vector<contender>& contenders) {
    for (const auto& one : contenders) {
      const auto graph = summarize(one.in_graph_ns), stream = summarize(one.in_stream_ns);
      // The first one fills the columns; another one is compared with it.
      if (&one == &contenders.front())
        std::printf("%12zu %10.2f %10.2f %10.1f %10.2f", size, graph.p50 / 1e3, graph.p99 / 1e3,
                    static_cast<double>(size) / graph.p50, stream.p50 / 1e3);
      else std::printf(" %10.2f %8.2f", graph.p50 / 1e3, graph.p50 / summarize(contenders.front().in_graph_ns).p50);
      if (file_ == nullptr) continue;
      const std::string series = format("%s %zu %s", name_of(kind), size, one.name);
      file_->add_samples(series + " graph", one.in_graph_ns);
      file_->add_samples(series + " stream", one.in_stream_ns);
      file_->add_row({{"series", series},
                      {"collective", name_of(kind)},
                      {"size_bytes", size},
                      {"contender", one.name},
                      {"graph_ns_p50", graph.p50},
                      {"graph_ns_p99", graph.p99},
                      {"stream_ns_p50", stream.p50},
                      {"stream_ns_p99", stream.p99},
                      {"bandwidth_gb_per_s", static_cast<double>(size) / graph.p50}});
    }
    std::printf("\n");
    std::fflush(stdout);
  }

  bench_rank& session_;
  const collectives_plan plan_;
  result_file* const file_;
  const std::size_t ranks_;
  std::unique_ptr<collectives::stream_collectives> ours_;
  std::unique_ptr<nccl_ranks> nccl_;
  bool is_wrong_ = false;
};

}  // namespace

const char* name_of(stream_collective kind) {
  constexpr const char* kNames[] = {"all_reduce", "reduce_scatter", "all_gather", "all_to_all"};
  return kNames[static_cast<unsigned>(kind)];
}

int run_collectives(bench_rank& session, const collectives_plan& plan, result_file* file) {
  return collectives_bench(session, plan, file).all();
}

}  // namespace pl::async
