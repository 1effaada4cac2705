// SPDX-License-Identifier: Apache-2.0
// Testcases 35-47: memory of several processes' GPUs.
//
// Every rank runs the same plan: the memory is shared once, then the rounds follow, each with the transfers that run at the
// same time. All ranks end a round with all results, so all take the same decisions.
#include <algorithm>
#include <cerrno>
#include <cinttypes>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "tools/bandwidth/agreement.hpp"
#include "tools/bandwidth/case_plan.hpp"
#include "tools/bandwidth/cell_judge.hpp"
#include "tools/bandwidth/multicast_memory.hpp"
#include "tools/bandwidth/multinode_plan.hpp"
#include "tools/bandwidth/round_report.hpp"
#include "tools/bandwidth/shared_memory.hpp"
#include "tools/bandwidth/testcase.hpp"

namespace pl::bandwidth {
namespace {

constexpr int kBisection = 47;

struct rank_gpu {
  std::string bus_id;
  bool has_switch = false;  // pairs of GPUs share no link
};

// The ranks' reports on one transfer: rates from its executor, and errors from the ranks that checked the data.
struct reported_transfer {
  const std::vector<double>* rates = nullptr;
  const mismatch* wrong = nullptr;
  int seen_by = -1;
};

class multinode_test {
 public:
  multinode_test(const testcase& self, test_context& context, test_outcome& out)
      : self_(self),
        context_(context),
        ranks_(*context.ranks),
        out_(out),
        gpu_(ranks_.local_rank() % context.gpus.count()) {}

  // A failure here is the same on all ranks.
  status run();

 private:
  status exchange_gpus();
  status open_memory();
  bool is_shared(std::string& conflict) const;
  rank_shape shape() const;
  bool run_round(const rank_round& round);
  result<bound_transfer> bind(const rank_transfer& one);
  std::vector<arrival> arrivals_of(const rank_round& round) const;
  result<set_outcome> measure(const rank_round& round, const std::vector<std::size_t>& own, sample_votes& votes);
  void fill(const rank_round& round, const std::vector<round_report>& reports);
  void fill_cell(const rank_round& round, const rank_target& target, const std::vector<reported_transfer>& reported);
  transfer_path path_of(const rank_round& round, const rank_target& target) const;
  int ordinal_here(int rank) const;
  bool stop_at(const rank_round& round, const std::vector<round_report>& reports);
  void mark(const rank_round& round, cell_state state, const std::string& cause);
  void finish();
  cell& cell_of(const rank_target& target) { return out_.matrices[target.matrix].cells[target.row][target.column]; }

  const testcase& self_;
  test_context& context_;
  group& ranks_;
  test_outcome& out_;
  int gpu_;
  std::vector<rank_gpu> rank_gpus_;
  std::unique_ptr<shared_memory> memory_;  // or, of the multicast tests:
  std::unique_ptr<multicast_memory> multicast_;
  executor_kind kind_ = executor_kind::ce;
};

status multinode_test::exchange_gpus() {
  const auto& facts = context_.links.gpus;
  const auto index = static_cast<std::size_t>(gpu_);
  // The simulated GPUs' links are memory of the host, which all share in any order.
  const bool has_switch = context_.gpus.simulated() || (index < facts.size() && facts[index].has_nvswitch);
  const auto all = gather_texts(ranks_, (has_switch ? "s" : "-") + context_.gpus.bus_id(gpu_));
  if (!all) return all.error();
  for (const auto& one : *all) rank_gpus_.push_back({one.substr(1), one[0] == 's'});
  return {};
}

bool multinode_test::is_shared(std::string& conflict) const {
  for (int a = 0; a < ranks_.size(); ++a)
    for (int b = a + 1; b < ranks_.size(); ++b) {
      const auto& one = rank_gpus_[static_cast<std::size_t>(a)];
      if (!ranks_.same_host(a, b) || one.bus_id != rank_gpus_[static_cast<std::size_t>(b)].bus_id) continue;
      conflict = format("%s and rank %d share GPU %s, so they measure each other; start one rank for each GPU",
                        ranks_.name_of(a).c_str(), b, one.bus_id.c_str());
      return true;
    }
  return false;
}

rank_shape multinode_test::shape() const {
  rank_shape out;
  out.size = ranks_.size();
  std::string ignored;
  out.pairs_at_once = !is_shared(ignored) &&
                      std::all_of(rank_gpus_.begin(), rank_gpus_.end(), [](const auto& one) { return one.has_switch; });
  out.original_mistakes = context_.options.original_mistakes;
  out.pairs = context_.options.pairs;
  for (int source = 0; source < out.size; ++source) {
    auto& row = out.why_not.emplace_back();
    for (int destination = 0; destination < out.size; ++destination)
      row.push_back(memory_ != nullptr ? memory_->why_not(source, destination) : "");
  }
  return out;
}

status multinode_test::open_memory() {
  const std::uint64_t bytes = context_.options.bytes;
  const unsigned objects = multicast_objects_of(self_.plan, ranks_.size());
  if (objects == 0) {
    auto memory = shared_memory::open(context_.gpus, ranks_, gpu_, bytes, buffers_of_multinode(self_.plan, ranks_.size()));
    if (!memory) return memory.error();
    memory_ = std::move(*memory);
    return {};
  }
  std::string conflict;
  if (is_shared(conflict)) return failure{ENOTSUP, conflict + ": a GPU can be in a multicast object once"};
  auto memory = multicast_memory::open(context_.gpus, ranks_, gpu_, bytes, objects);
  if (!memory) return memory.error();
  multicast_ = std::move(*memory);
  return {};
}

status multinode_test::run() {
  if (auto fine = exchange_gpus(); !fine) return fine;
  if (auto fine = open_memory(); !fine) return fine;
  rank_plan plan = plan_multinode(self_.plan, shape());
  kind_ = plan.kind;
  out_.matrices = std::move(plan.matrices);
  for (std::size_t i = 0; i < plan.rounds.size(); ++i) {
    if (context_.progress) context_.progress(i, plan.rounds.size(), plan.rounds[i].name);
    if (!run_round(plan.rounds[i])) break;
  }
  finish();
  return {};
}

// Returns false if the test ends here.
bool multinode_test::run_round(const rank_round& round) {
  std::vector<std::size_t> own;
  for (std::size_t i = 0; i < round.transfers.size(); ++i)
    if (round.transfers[i].executor_rank == ranks_.rank()) own.push_back(i);
  sample_votes votes(ranks_, context_.options.settings.samples, context_.interrupted);
  const auto outcome = measure(round, own, votes);
  votes.settle(!outcome);
  const auto reports = exchange_reports(ranks_, make_report(outcome, own));
  if (!reports) {
    mark(round, cell_state::error, reports.error().message);
    out_.state = test_state::error;
    out_.reason = reports.error().message;
    return false;
  }
  if (stop_at(round, *reports)) return false;
  fill(round, *reports);
  return true;
}

result<set_outcome> multinode_test::measure(const rank_round& round, const std::vector<std::size_t>& own,
                                            sample_votes& votes) {
  std::vector<bound_transfer> bound;
  for (const std::size_t i : own) {
    auto made = bind(round.transfers[i]);
    if (!made) return made.error();
    bound.push_back(*made);
  }
  return context_.run.run(bound, context_.options.settings, votes.hooks(), arrivals_of(round));
}

// The ranks' joint result for a multicast transfer's data.
std::uint64_t data_key_of(const rank_transfer& one) { return static_cast<std::uint64_t>(one.executor_rank) + 1; }

result<bound_transfer> multinode_test::bind(const rank_transfer& one) {
  bound_transfer made;
  made.executor = {kind_, gpu_, kind_ == executor_kind::sm ? context_.options.sm_count : 0};
  made.bytes = context_.options.bytes;
  if (multicast_ == nullptr) {
    made.source = memory_->view(one.source_rank, one.source_buffer);
    made.destination = memory_->view(one.destination_rank, one.destination_buffer);
    return made;
  }
  const auto source = context_.pool.get(gpu_place(gpu_), made.bytes, 0, gpu_);
  if (!source) return source.error();
  made.source = *source;
  made.destination = multicast_->object(one.destination_buffer);
  made.is_multicast = true;
  made.data_key = data_key_of(one);
  return made;
}

// Every rank checks its own memory behind each object of the round.
std::vector<arrival> multinode_test::arrivals_of(const rank_round& round) const {
  std::vector<arrival> out;
  if (multicast_ == nullptr) return out;
  for (const rank_transfer& one : round.transfers)
    out.push_back({multicast_->replica(one.destination_buffer), context_.options.bytes, data_key_of(one)});
  return out;
}

bool multinode_test::stop_at(const rank_round& round, const std::vector<round_report>& reports) {
  using ending = round_report::ending;
  for (int r = 0; r < ranks_.size(); ++r) {
    const auto& one = reports[static_cast<std::size_t>(r)];
    if (one.outcome != ending::failed) continue;
    out_.state = test_state::error;
    out_.reason = ranks_.name_of(r) + ": " + one.reason.message;
    mark(round, cell_state::error, out_.reason);
    return true;
  }
  if (std::any_of(reports.begin(), reports.end(), [](const auto& one) { return one.outcome == ending::interrupted; })) {
    out_.state = test_state::interrupted;
    mark(round, cell_state::not_applicable, "interrupted before it was measured");
    return true;
  }
  return false;
}

void multinode_test::mark(const rank_round& round, cell_state state, const std::string& cause) {
  for (const auto& transfer : round.transfers)
    for (const auto& target : transfer.targets) {
      cell_of(target).state = state;
      cell_of(target).reason = cause;
    }
}

void multinode_test::fill(const rank_round& round, const std::vector<round_report>& reports) {
  std::vector<reported_transfer> by_transfer(round.transfers.size());
  for (int r = 0; r < ranks_.size(); ++r)
    for (const auto& entry : reports[static_cast<std::size_t>(r)].entries) {
      if (entry.transfer >= by_transfer.size()) continue;
      reported_transfer& one = by_transfer[entry.transfer];
      if (!entry.gb_per_s.empty()) one.rates = &entry.gb_per_s;
      if (entry.wrong.bytes != 0 && one.wrong == nullptr) one.wrong = &entry.wrong, one.seen_by = r;
    }
  for (std::size_t i = 0; i < round.transfers.size(); ++i)
    for (const auto& target : round.transfers[i].targets)
      if (cell_of(target).samples.empty()) fill_cell(round, target, by_transfer);
}

bool is_same(const rank_target& a, const rank_target& b) {
  return a.matrix == b.matrix && a.row == b.row && a.column == b.column;
}

bool belongs_to(const rank_transfer& transfer, const rank_target& target) {
  return std::any_of(transfer.targets.begin(), transfer.targets.end(),
                     [&](const auto& one) { return is_same(one, target); });
}

void add_to(std::vector<double>& sum, const std::vector<double>& samples) {
  sum.resize(std::max(sum.size(), samples.size()));
  for (std::size_t i = 0; i < samples.size(); ++i) sum[i] += samples[i];
}

void multinode_test::fill_cell(const rank_round& round, const rank_target& target,
                               const std::vector<reported_transfer>& reported) {
  cell& one = cell_of(target);
  double sum_of_values = 0;
  const auto value_of = [&](const std::vector<double>& samples) {
    const auto all = describe(samples);
    return context_.options.use_mean ? all.mean : all.median;
  };
  one.state = cell_state::measured;
  for (std::size_t i = 0; i < reported.size(); ++i) {
    if (!belongs_to(round.transfers[i], target)) continue;
    const rank_transfer& transfer = round.transfers[i];
    if (reported[i].rates == nullptr) {
      one.state = cell_state::error;
      one.reason = ranks_.name_of(transfer.executor_rank) + " has reported no rate";
      return;
    }
    add_to(one.samples, *reported[i].rates);
    sum_of_values += value_of(*reported[i].rates);
    if (reported[i].wrong == nullptr) continue;
    one.state = cell_state::mismatch;
    one.wrong = *reported[i].wrong;
    const int destination = transfer.destination_rank == kEveryRank ? reported[i].seen_by : transfer.destination_rank;
    one.reason = format(
        "%" PRIu64 " bytes from %s to %s, copied by %s of rank %d, arrived wrong; the first at offset %" PRIu64
        ": expected %016" PRIx64 ", found %016" PRIx64 " (bits that ever differ: %016" PRIx64 ")",
        one.wrong.bytes, ranks_.name_of(transfer.source_rank).c_str(), ranks_.name_of(destination).c_str(), to_string(kind_),
        transfer.executor_rank, one.wrong.first_offset, one.wrong.expected, one.wrong.found, one.wrong.flipped_bits);
  }
  // The original adds the medians of rates that need not belong to one moment.
  one.value = context_.options.original_mistakes ? sum_of_values : value_of(one.samples);
  if (one.state == cell_state::measured) one.reason.clear();
  one.path = path_of(round, target);
  // The model covers the links of this host's GPUs, and one rank prints the verdict.
  const bool has_link_facts = one.path.source.index >= 0 && one.path.destination.index >= 0 && one.path.executor.gpu >= 0;
  if (one.state == cell_state::measured && ranks_.rank() == 0 && has_link_facts) judge_cell(context_, one);
  if (context_.cell_done && ranks_.rank() == 0)
    context_.cell_done(self_.key, out_.matrices[target.matrix], target.row, target.column);
}

// The GPU of a rank as this process counts; -1 for one that it does not see.
int multinode_test::ordinal_here(int rank) const {
  if (!ranks_.same_host(rank, ranks_.rank())) return -1;
  for (int gpu = 0; gpu < context_.gpus.count(); ++gpu)
    if (context_.gpus.bus_id(gpu) == rank_gpus_[static_cast<std::size_t>(rank)].bus_id) return gpu;
  return -1;
}

transfer_path multinode_test::path_of(const rank_round& round, const rank_target& target) const {
  const auto first =
      std::find_if(round.transfers.begin(), round.transfers.end(), [&](const auto& one) { return belongs_to(one, target); });
  const bool both_ways = out_.matrices.size() == 3;
  transfer_path path;
  path.source = gpu_place(ordinal_here(first->source_rank));
  path.destination = gpu_place(first->destination_rank == kEveryRank ? -1 : ordinal_here(first->destination_rank));
  path.executor = {kind_, ordinal_here(first->executor_rank), 0};
  path.bytes = context_.options.bytes;
  path.opposite_too = both_ways || self_.plan == kBisection;
  path.is_sum_of_both = both_ways && target.matrix == 2;
  return path;
}

void multinode_test::finish() {
  rejudge_with_evidence(context_, out_);
  const bool was_interrupted = out_.state == test_state::interrupted;
  if (out_.state != test_state::error) conclude(out_, was_interrupted);
  if (out_.state != test_state::passed) return;
  out_.reason = memory_ != nullptr ? memory_->remark() : multicast_->remark();
  std::string shared;
  if (is_shared(shared)) out_.reason += (out_.reason.empty() ? "" : "; ") + shared;
}

// Checks that need no other rank; empty: the test can run.
std::string waiver(const testcase& self, const test_context& context) {
  if (context.ranks == nullptr || context.ranks->size() < 2)
    return "needs several processes, one for each GPU: mpirun -n N, or --nodes N --rank R --rendezvous HOST:PORT";
  if (multicast_objects_of(self.plan, context.ranks->size()) == 0) return "";
  if (!context.options.allow_multicast)
    return "multicast objects are made only when asked for, as some shared machines forbid them: add --multicast";
  if (context.options.bytes % 4 != 0) return "multicast objects take whole words: -b must be a multiple of 4";
  return "";
}

}  // namespace

test_outcome run_multinode(const testcase& self, test_context& context) {
  test_outcome out;
  out.index = self.index;
  out.key = self.key;
  const std::uint64_t begin = monotonic_ns();
  out.reason = waiver(self, context);
  if (!out.reason.empty()) {
    out.state = test_state::waived;
  } else if (auto fine = multinode_test(self, context, out).run(); !fine) {
    out.state = fine.code() == ENOTSUP ? test_state::waived : test_state::error;
    out.reason = fine.error().message;
  }
  out.seconds = static_cast<double>(monotonic_ns() - begin) * 1e-9;
  return out;
}

}  // namespace pl::bandwidth
