// SPDX-License-Identifier: Apache-2.0
// `peerlane blocks`: every way to move a list, by block size and count. The ways take turns, and each is checked once at
// each point.
#include <algorithm>
#include <cinttypes>
#include <limits>
#include <list>
#include <map>
#include <set>

#include "base/text.hpp"
#include "measure/progress.hpp"
#include "measure/text_table.hpp"
#include "tools/blocks/blocks_command.hpp"
#include "tools/copy/copy_contender.hpp"

namespace pl::tools {
namespace {

struct sweep_entry {
  std::string name;
  block_mover* mover;
  std::vector<double> submit_ns;  // until the CPU was free, of the counted samples
  std::string failed;             // why it stopped; it is not asked again at this point
};

// A contender that fails ends its own samples only: what is left of them is dropped with the others that are no number.
contender contender_of(sweep_entry& one, std::size_t turn) {
  const auto guarded = [&one](const auto& work) {
    if (!one.failed.empty()) return;
    try {
      work();
    } catch (const tool_failure& reason) { one.failed = reason.what(); }
  };
  contender out(
      one.name, [&one, guarded] { guarded([&] { one.mover->move(); }); }, turn);
  out.sample_ns = [&one, guarded] {
    double submit_ns = 0;
    const double taken_ns = time_once_ns([&] {
      guarded([&] {
        const std::uint64_t begin = ticks_ordered();
        one.mover->submit();
        submit_ns = ticks_to_ns(ticks_ordered() - begin);
        one.mover->finish();
      });
    });
    if (!one.failed.empty()) return std::numeric_limits<double>::quiet_NaN();
    one.submit_ns.push_back(submit_ns);
    return taken_ns;
  };
  return out;
}

struct point {
  copy::direction way;
  std::uint64_t block_bytes;
  std::size_t count;
};

class block_sweep {
 public:
  block_sweep(mover_set& movers, const blocks_options& options, const link_limit& link, result_file& results)
      : movers_(movers), options_(options), link_(link), results_(results) {
    for (const auto way : options.directions)
      for (const std::uint64_t size : options.sizes)
        for (const std::size_t count : options.counts)
          if (size * count <= options.memory_bytes) points_.push_back({way, size, count});
    if (points_.empty())
      throw tool_failure("no list fits: give --memory for the longest list, or smaller --sizes and --counts");
    for (const auto& name : movers.names()) {
      if (!is_wanted_mover(options, name)) continue;
      if (auto made = movers.make(name)) made_.emplace_back(name, std::move(made));
      else note(name + " is left out: " + movers.why_not);
    }
  }

  // Returns false if a contender failed somewhere.
  bool run() {
    std::uint64_t longest = 0;
    for (const auto& one : points_) longest = std::max(longest, one.block_bytes * one.count);
    block_arena arena(movers_.gpu, longest, options_.sizes.back(), static_cast<std::uint64_t>(options_.seed));
    {
      progress line("blocks", points_.size());
      for (std::size_t i = 0; i < points_.size(); ++i) {
        const point& shape = points_[i];
        if (i == 0 || points_[i - 1].way != shape.way) arena.begin(shape.way);
        line.start_step(i, format("%s %zu x %s", label_of(shape.way), shape.count, format_size(shape.block_bytes).c_str()));
        measure(arena, shape);
      }
    }
    for (const auto way : options_.directions) print_table(way);
    for (const auto& text : notes_) std::printf("note: %s\n", text.c_str());
    if (points_with_rival_ > 0)
      std::printf("\n%s was the fastest, or within 2 %% of it, at %zu of %zu points\n", kOurs, best_, points_with_rival_);
    return !has_failed_;
  }

 private:
  void note(const std::string& text) {
    if (!noted_.insert(text).second) return;
    notes_.push_back(text);
    results_.add_note(text);
  }

  void add_failure(const point& shape, const std::string& name, const std::string& reason) {
    results_.add_row({{"kind", "blocks_failed"},
                      {"direction", label_of(shape.way)},
                      {"method", name},
                      {"block_bytes", shape.block_bytes},
                      {"count", shape.count},
                      {"reason", reason}});
    notes_.push_back(format("%s %zu x %s: %s failed: %s", label_of(shape.way), shape.count,
                            format_size(shape.block_bytes).c_str(), name.c_str(), reason.c_str()));
    has_failed_ = true;
  }

  // Takes the list on, moves it once and checks it; false: it failed, which is noted.
  bool try_mover(block_arena& arena, const point& shape, const block_list& list, const std::string& name,
                 block_mover& mover) {
    try {
      mover.take(list);
      if (options_.no_verify) mover.move();
      else arena.verify(list, name, [&] { mover.move(); });
      return true;
    } catch (const tool_failure& reason) {
      add_failure(shape, name, reason.what());
      return false;
    }
  }

  void measure(block_arena& arena, const point& shape) {
    const block_list list = arena.make_list(shape.way, shape.block_bytes, shape.count);
    std::list<sweep_entry> entrants;
    std::vector<contender> all;
    const std::size_t turn = list.bytes() <= 1u << 20 ? 4 : 1;
    for (auto& [name, mover] : made_) {
      if (name == kEach && shape.count > static_cast<std::size_t>(options_.most_each)) continue;
      if (!try_mover(arena, shape, list, name, *mover)) continue;
      entrants.push_back({name, mover.get(), {}, {}});
      all.push_back(contender_of(entrants.back(), turn));
    }
    constexpr std::uint64_t kLong = 64u << 20;
    run_budget(all, static_cast<std::uint64_t>(options_.time_ms) * 1'000'000, static_cast<std::size_t>(options_.samples),
               list.bytes() <= kLong);
    add_rows(shape, list, entrants, all);
  }

  struct cell {
    double gb_per_s = 0, gb_per_s_p99 = 0, submit_ns_per_block = 0;
  };
  struct table_row {
    point shape;
    std::map<std::string, cell> cells;
  };

  void add_rows(const point& shape, const block_list& list, const std::list<sweep_entry>& entrants,
                const std::vector<contender>& all) {
    table_row row{shape, {}};
    const auto bytes = static_cast<double>(list.bytes());
    auto one = entrants.begin();
    for (const auto& measured : all) {
      const sweep_entry& present = *one++;
      if (!present.failed.empty()) add_failure(shape, present.name, present.failed);
      if (measured.samples_ns.empty()) continue;
      const summary total = summarize(measured.samples_ns);
      cell& found = row.cells[measured.name];
      found.gb_per_s = bytes / total.p50;
      found.gb_per_s_p99 = bytes / total.p99;
      found.submit_ns_per_block = summarize(present.submit_ns).p50 / static_cast<double>(shape.count);
      nlohmann::json out{{"kind", "blocks"},
                         {"direction", label_of(shape.way)},
                         {"method", measured.name},
                         {"block_bytes", shape.block_bytes},
                         {"count", shape.count},
                         {"size_bytes", list.bytes()},
                         {"verified", !options_.no_verify}};
      out.update(latency_fields(measured.samples_ns));
      out["bandwidth_gb_per_s"] = found.gb_per_s;
      out["bandwidth_p99_gb_per_s"] = found.gb_per_s_p99;
      out["submit_ns_per_block"] = found.submit_ns_per_block;
      if (link_.rate(shape.way) > 0) out["link_share"] = found.gb_per_s / link_.rate(shape.way);
      results_.add_row(std::move(out));
    }
    count_best(row);
    rows_.push_back(std::move(row));
  }

  // Ours against the fastest other one; 0 without one.
  static double ratio_to_best(const table_row& row) {
    double best = 0;
    for (const auto& [name, found] : row.cells)
      if (name != kOurs) best = std::max(best, found.gb_per_s);
    const auto ours = row.cells.find(kOurs);
    return best > 0 && ours != row.cells.end() ? ours->second.gb_per_s / best : 0;
  }
  void count_best(const table_row& row) {
    const double ratio = ratio_to_best(row);
    if (ratio == 0) return;
    ++points_with_rival_;
    if (ratio >= 0.98) ++best_;
    results_.add_row({{"kind", "blocks_best"},
                      {"direction", label_of(row.shape.way)},
                      {"block_bytes", row.shape.block_bytes},
                      {"count", row.shape.count},
                      {"ratio_to_best", ratio}});
  }

  void print_table(copy::direction way) const {
    std::vector<text_table::column> columns{{"block"}, {"count"}};
    for (const auto& [name, mover] : made_) {
      columns.push_back({name});
      if (name != kOurs) continue;
      columns.insert(columns.end(), {{"p99"}, {"ns/block"}, {"of link"}, {"/ best other"}});
    }
    text_table table(std::move(columns));
    for (const auto& row : rows_) {
      if (row.shape.way != way) continue;
      std::vector<std::string> cells{format_size(row.shape.block_bytes), format("%zu", row.shape.count)};
      for (const auto& [name, mover] : made_) {
        const auto found = row.cells.find(name);
        const bool is_there = found != row.cells.end();
        cells.push_back(is_there ? short_number(found->second.gb_per_s) : "-");
        if (name != kOurs) continue;
        cells.push_back(is_there ? short_number(found->second.gb_per_s_p99) : "-");
        cells.push_back(is_there ? short_number(found->second.submit_ns_per_block) : "-");
        cells.push_back(is_there && link_.rate(way) > 0 ? format("%.0f %%", 100 * found->second.gb_per_s / link_.rate(way))
                                                        : "-");
        const double ratio = ratio_to_best(row);
        cells.push_back(ratio > 0 ? format("%.2f", ratio) : "-");
      }
      table.add_row(std::move(cells));
    }
    std::printf(
        "\n%s, GB/s at the median until the CPU sees the end; ns/block: CPU time until submitted; link: %s\n%s",
        label_of(way),
        link_.rate(way) > 0 ? format("%s, %.1f GB/s", link_.text.c_str(), link_.rate(way)).c_str() : "its rate is not known",
        table.render().c_str());
  }

  mover_set& movers_;
  const blocks_options& options_;
  const link_limit& link_;
  result_file& results_;
  std::vector<point> points_;
  std::vector<std::pair<std::string, std::unique_ptr<block_mover>>> made_;
  std::vector<table_row> rows_;
  std::vector<std::string> notes_;
  std::set<std::string> noted_;
  bool has_failed_ = false;
  std::size_t best_ = 0, points_with_rival_ = 0;
};

}  // namespace

bool run_block_sweep(mover_set& movers, const blocks_options& options, const link_limit& link, result_file& results) {
  return block_sweep(movers, options, link, results).run();
}

}  // namespace pl::tools
