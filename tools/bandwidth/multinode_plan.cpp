// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/multinode_plan.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace pl::bandwidth {
namespace {

constexpr unsigned kSource = 0, kDestination = 1;  // the buffers of pairs

enum class form { pair, pair_both, all_to_one, one_to_all_multicast, all_to_all_multicast, bisection };

struct multinode_case {
  form shape;
  bool reads;  // the row's rank pulls; else it pushes
  executor_kind kind;
};

multinode_case multinode_case_of(int index) {
  if (index == 43 || index == 44) return {form::all_to_one, index == 44, executor_kind::sm};
  if (index == 45) return {form::one_to_all_multicast, false, executor_kind::sm};
  if (index == 46) return {form::all_to_all_multicast, false, executor_kind::sm};
  if (index == 47) return {form::bisection, false, executor_kind::ce};
  const int within = (index - 35) % 4;  // read, write, both by reads, both by writes; first CE, then SM
  return {within < 2 ? form::pair : form::pair_both, within % 2 == 0, index < 39 ? executor_kind::ce : executor_kind::sm};
}

struct planner {
  int index;
  multinode_case spec;
  const rank_shape& shape;
  rank_plan plan;

  std::vector<std::string> labels() const {
    std::vector<std::string> out;
    for (int r = 0; r < shape.size; ++r) out.push_back(std::to_string(r));
    return out;
  }
  void add_matrix(std::string part, std::string title, std::vector<std::string> rows, std::vector<std::string> columns) {
    matrix one;
    one.part = std::move(part);
    one.title = std::move(title);
    one.row_label = "GPU";
    one.cells.assign(rows.size(), std::vector<cell>(columns.size()));
    one.rows = std::move(rows);
    one.columns = std::move(columns);
    plan.matrices.push_back(std::move(one));
  }
  cell& cell_of(const rank_target& target) { return plan.matrices[target.matrix].cells[target.row][target.column]; }
  const std::string& why_not(int source, int destination) const {
    return shape.why_not[static_cast<std::size_t>(source)][static_cast<std::size_t>(destination)];
  }

  // `worker` pulls from `other`, or pushes to it.
  rank_transfer transfer(int worker, int other, bool reads, std::vector<rank_target> targets) const {
    rank_transfer out{worker, worker, kSource, other, kDestination, std::move(targets)};
    if (reads) std::swap(out.source_rank, out.destination_rank);
    return out;
  }

  void plan_pairs();
  void add_pair_round(const std::vector<std::pair<int, int>>& pairs);
  void add_pair(rank_round& round, int row, int column);
  std::string pair_title(const char* suffix) const;
  void plan_all_to_one();
  void plan_one_to_all_multicast();
  void plan_all_to_all_multicast();
  void plan_bisection();
};

std::string planner::pair_title(const char* suffix) const {
  const bool both = spec.shape == form::pair_both;
  // Arrows show the direction of the data. The original's show that of the request, some of them reversed.
  const char* arrow = both ? "<->" : spec.reads != shape.original_mistakes ? "<-" : "->";
  const char* row = both && shape.original_mistakes ? "CPU" : "GPU";
  const char* engine = to_string(index == 39 && shape.original_mistakes ? executor_kind::ce : spec.kind);
  return format("memcpy %s %s(row) %s GPU(column) %sbandwidth (GB/s)", engine, row, arrow, suffix);
}

void planner::plan_pairs() {
  if (spec.shape == form::pair) {
    add_matrix("", pair_title(""), labels(), labels());
  } else {
    const bool titled_read = spec.reads || shape.original_mistakes;
    add_matrix(spec.reads ? "read1" : "write1", pair_title(titled_read ? "Read1 " : "Write1 "), labels(), labels());
    add_matrix(spec.reads ? "read2" : "write2", pair_title(titled_read ? "Read2 " : "Write2 "), labels(), labels());
    add_matrix("total", pair_title("Total "), labels(), labels());
  }
  for (matrix& one : plan.matrices)
    for (std::size_t r = 0; r < one.cells.size(); ++r) one.cells[r][r].reason = "a pair needs two GPUs";
  for (const auto& pairs : round_robin_schedule(shape.size)) {
    if (shape.pairs_at_once) {
      add_pair_round(pairs);
      continue;
    }
    for (const auto& one : pairs) add_pair_round({one});
  }
}

// Once with the first of each pair as the row, once with the second.
void planner::add_pair_round(const std::vector<std::pair<int, int>>& pairs) {
  rank_round forth, back;
  for (const auto& [a, b] : pairs) {
    add_pair(forth, a, b);
    add_pair(back, b, a);
  }
  for (rank_round* one : {&forth, &back})
    if (!one->transfers.empty()) plan.rounds.push_back(std::move(*one));
}

void planner::add_pair(rank_round& round, int row, int column) {
  const auto r = static_cast<std::size_t>(row), c = static_cast<std::size_t>(column);
  const bool both = spec.shape == form::pair_both;
  const std::string& reason = !why_not(row, column).empty() || !both ? why_not(row, column) : why_not(column, row);
  for (std::size_t m = 0; m < plan.matrices.size(); ++m) cell_of({m, r, c}).reason = reason;
  if (!reason.empty()) return;
  if (!shape.pairs.includes(row, column)) {
    for (std::size_t m = 0; m < plan.matrices.size(); ++m) cell_of({m, r, c}).reason = kNotChosen;
    return;
  }
  round.name += format("%s%d and %d", round.name.empty() ? "ranks " : ", ", row, column);
  round.transfers.push_back(transfer(row, column, spec.reads, {{0, r, c}}));
  if (!both) return;
  round.transfers.back().targets.push_back({2, r, c});
  round.transfers.push_back(transfer(column, row, spec.reads, {{1, r, c}, {2, r, c}}));
}

// A rank's copy to itself would not use a link, so the rank in the middle takes no part with its own GPU's work.
void planner::plan_all_to_one() {
  const char* arrow = spec.reads ? "<-" : "->";
  add_matrix("", format("memcpy SM All Gpus %s GPU(column) total bandwidth (GB/s)", arrow), {"0"}, labels());
  plan.matrices[0].row_label = "all";
  for (int one = 0; one < shape.size; ++one) {
    const rank_target target{0, 0, static_cast<std::size_t>(one)};
    rank_round round;
    round.name = format("all ranks and %d", one);
    for (int other = 0; other < shape.size; ++other) {
      if (other == one) continue;
      if (!why_not(other, one).empty()) cell_of(target).reason = why_not(other, one);
      rank_transfer made = transfer(other, one, spec.reads, {target});
      // Each transfer has its own buffer in the middle.
      (spec.reads ? made.source_buffer : made.destination_buffer) = kDestination + static_cast<unsigned>(other);
      (spec.reads ? made.destination_buffer : made.source_buffer) = kSource;
      round.transfers.push_back(std::move(made));
    }
    if (cell_of(target).reason.empty()) plan.rounds.push_back(std::move(round));
  }
}

// All take turns with one object.
void planner::plan_one_to_all_multicast() {
  add_matrix("", "multicast SM GPU(column) -> All Gpus total bandwidth (GB/s)", {"0"}, labels());
  plan.matrices[0].row_label = "all";
  for (int one = 0; one < shape.size; ++one) {
    rank_round round;
    round.name = format("%d to all ranks", one);
    round.transfers.push_back({one, one, kSource, kEveryRank, 0, {{0, 0, static_cast<std::size_t>(one)}}});
    plan.rounds.push_back(std::move(round));
  }
}

void planner::plan_all_to_all_multicast() {
  add_matrix("", "multicast SM All -> All Gpus total bandwidth (GB/s)", {"0"}, {"0"});
  plan.matrices[0].row_label = plan.matrices[0].column_label = "all";
  rank_round round;
  round.name = "all ranks to all ranks";
  for (int one = 0; one < shape.size; ++one)
    round.transfers.push_back({one, one, kSource, kEveryRank, static_cast<unsigned>(one), {{0, 0, 0}}});
  plan.rounds.push_back(std::move(round));
}

void planner::plan_bisection() {
  const auto width = static_cast<int>(std::to_string(shape.size - 1).size());
  std::vector<std::string> rows;
  rank_round round;
  round.name = "all ranks to the other half";
  for (int a = 0; a < shape.size; ++a) {
    const int b = (a + shape.size / 2) % shape.size;
    rows.push_back(format("%*d->%*d", width, a, width, b));
    // The original has source and destination the wrong way round.
    const int source = shape.original_mistakes ? b : a, destination = shape.original_mistakes ? a : b;
    round.transfers.push_back(transfer(source, destination, false, {{0, static_cast<std::size_t>(a), 0}}));
  }
  add_matrix("", "Bisect benchmarking, simultaneous write CE BW", std::move(rows), {"0"});
  plan.matrices[0].row_label = "ranks";
  std::string reason;
  for (const auto& one : round.transfers)
    if (reason.empty()) reason = why_not(one.executor_rank, one.destination_rank);
  for (auto& row : plan.matrices[0].cells) row[0].reason = reason;
  if (reason.empty()) plan.rounds.push_back(std::move(round));
}

}  // namespace

std::vector<std::vector<std::pair<int, int>>> round_robin_schedule(int n) {
  const int seats = n + n % 2;  // with an odd number, the rank opposite the empty seat has a break
  std::vector<int> circle;
  for (int i = 0; i < seats; ++i) circle.push_back(i);
  std::vector<std::vector<std::pair<int, int>>> rounds;
  for (int round = 0; round + 1 < seats; ++round) {
    auto& pairs = rounds.emplace_back();
    for (int i = 0; i < seats / 2; ++i) {
      const auto [low, high] =
          std::minmax(circle[static_cast<std::size_t>(i)], circle[static_cast<std::size_t>(seats - 1 - i)]);
      if (high < n) pairs.emplace_back(low, high);
    }
    std::rotate(circle.begin() + 1, circle.end() - 1, circle.end());  // all but the first move on by one seat
  }
  return rounds;
}

unsigned buffers_of_multinode(int index, int size) {
  return multinode_case_of(index).shape == form::all_to_one ? 1 + static_cast<unsigned>(size) : 2;
}

unsigned multicast_objects_of(int index, int size) {
  return index == 45 ? 1 : index == 46 ? static_cast<unsigned>(size) : 0;
}

rank_plan plan_multinode(int index, const rank_shape& shape) {
  planner made{index, multinode_case_of(index), shape, {}};
  made.plan.kind = made.spec.kind;
  switch (made.spec.shape) {
    case form::pair:
    case form::pair_both:
      made.plan_pairs();
      break;
    case form::all_to_one:
      made.plan_all_to_one();
      break;
    case form::one_to_all_multicast:
      made.plan_one_to_all_multicast();
      break;
    case form::all_to_all_multicast:
      made.plan_all_to_all_multicast();
      break;
    case form::bisection:
      made.plan_bisection();
      break;
  }
  return std::move(made.plan);
}

}  // namespace pl::bandwidth
