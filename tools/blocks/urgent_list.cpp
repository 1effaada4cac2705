// SPDX-License-Identifier: Apache-2.0
// `peerlane blocks --urgent`: how long a short list takes while a long one is in progress, normally and marked as
// urgent.
#include "base/text.hpp"
#include "copy/completion.hpp"
#include "measure/progress.hpp"
#include "measure/samples.hpp"
#include "measure/text_table.hpp"
#include "tools/blocks/blocks_command.hpp"

namespace pl::tools {
namespace {

struct short_list {
  std::uint64_t block_bytes;
  std::size_t count;
};
// One that has the quick channel anyway, and one that is long enough to wait for other long ones unless it is urgent.
constexpr short_list kShortLists[] = {{4096, 16}, {16u << 10, 256}};
constexpr std::uint64_t kLongBlock = 16u << 10;

struct condition {
  const char* name;
  bool has_long, is_urgent;
  bool is_other_way = false;  // the long one goes the other way
};
constexpr condition kConditions[] = {{"alone", false, false},
                                     {"behind a long list", true, false},
                                     {"behind it, urgent", true, true},
                                     {"long list the other way", true, true, true}};

class urgent_bench {
 public:
  urgent_bench(mover_set& movers, const blocks_options& options)
      : movers_(movers),
        long_bytes_(options.memory_bytes / kLongBlock * kLongBlock),
        seed_(static_cast<std::uint64_t>(options.seed)),
        long_arena_(movers.gpu, long_bytes_, kLongBlock, seed_),
        arena_(movers.gpu, kShortLists[1].block_bytes * kShortLists[1].count, kShortLists[1].block_bytes, seed_) {}

  std::uint64_t long_bytes() const { return long_bytes_; }

  // Nanoseconds from begin to end, several in a row during one long list. Those during which the long list ended are
  // left out; but a list that is queued behind it ends after it, and that is its time.
  void sample(const block_list& many, const block_list& few, const condition& setup, std::vector<double>& samples_ns) {
    constexpr int kInRow = 4;
    auto& planner = *movers_.planner;
    copy::planner::async_options wanted;
    wanted.is_urgent = setup.is_urgent;
    const auto move = [&] { must(must(planner.begin_blocks(few.transfer(), wanted)).wait()); };
    move();  // code and driver are cold after a wait of milliseconds
    std::optional<copy::completion> long_one;
    if (setup.has_long) long_one.emplace(must(planner.begin_blocks(many.transfer(), {})));
    for (int i = 0; i < kInRow; ++i) {
      const double taken_ns = time_once_ns(move);
      const bool has_ended = long_one && must(long_one->test());
      if (!has_ended || (i == 0 && !setup.is_urgent)) samples_ns.push_back(taken_ns);
      if (has_ended) return;
    }
    if (long_one) must(long_one->wait());
  }

  block_list long_list(copy::direction way) { return long_arena_.make_list(way, kLongBlock, long_bytes_ / kLongBlock); }
  block_list make(copy::direction way, const short_list& shape) {
    return arena_.make_list(way, shape.block_bytes, shape.count);
  }

 private:
  mover_set& movers_;
  const std::uint64_t long_bytes_;
  const std::uint64_t seed_;
  block_arena long_arena_, arena_;
};

}  // namespace

void run_urgent_list(mover_set& movers, const blocks_options& options, result_file& results) {
  const std::size_t rounds = movers.gpu.simulated() ? 5 : 30;
  if (options.memory_bytes < kLongBlock) throw tool_failure("--urgent needs --memory of 16K or more for its long list");
  urgent_bench bench(movers, options);
  text_table table(
      {{"list", text_table::align::left}, {"", text_table::align::left}, {"p50 us"}, {"p99 us"}, {"max us"}, {"samples"}});
  std::optional<progress> line;
  line.emplace("blocks --urgent", options.directions.size() * std::size(kShortLists));
  std::size_t done = 0;
  for (const auto way : options.directions) {
    const block_list many = bench.long_list(way);
    const block_list opposite =
        bench.long_list(way == copy::direction::to_host ? copy::direction::to_device : copy::direction::to_host);
    for (const auto& shape : kShortLists) {
      line->start_step(done++, format("%s %zu x %s", label_of(way), shape.count, format_size(shape.block_bytes).c_str()));
      const block_list few = bench.make(way, shape);
      std::vector<double> samples_ns[std::size(kConditions)];
      for (std::size_t round = 0; round <= rounds; ++round)
        for (std::size_t i = 0; i < std::size(kConditions); ++i) {
          if (round == 1) samples_ns[i].clear();  // the first round binds memory
          bench.sample(kConditions[i].is_other_way ? opposite : many, few, kConditions[i], samples_ns[i]);
        }
      for (std::size_t i = 0; i < std::size(kConditions); ++i) {
        const summary sum = summarize(samples_ns[i]);
        const auto cell = [&](double ns) { return sum.count > 0 ? short_number(ns / 1e3) : std::string("-"); };
        table.add_row({format("%s %zu x %s", label_of(way), shape.count, format_size(shape.block_bytes).c_str()),
                       kConditions[i].name, cell(sum.p50), cell(sum.p99), cell(sum.max), format("%zu", sum.count)});
        if (sum.count == 0) {
          results.add_note(
              format("%s %s: no sample, the long list had always ended before", label_of(way), kConditions[i].name));
          continue;
        }
        nlohmann::json row{{"kind", "urgent"},
                           {"direction", label_of(way)},
                           {"condition", kConditions[i].name},
                           {"block_bytes", shape.block_bytes},
                           {"count", shape.count},
                           {"long_bytes", bench.long_bytes()}};
        row.update(latency_fields(samples_ns[i]));
        results.add_row(std::move(row));
      }
    }
  }
  line.reset();
  std::printf("\na list beside a long one of %s, begin to end\n%s", format_size(bench.long_bytes()).c_str(),
              table.render().c_str());
}

}  // namespace pl::tools
