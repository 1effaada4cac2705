// SPDX-License-Identifier: Apache-2.0
// The sweep of `peerlane copy`. At every size, in one interleaved run:
//
//   each way the planner has   by force (planner::copy_by), "cpu_store x4"
//   cuMemcpy                   the driver's synchronous copy; between GPU memories, which it does not wait for, with
//                              cuStreamSynchronize
//   planner                    planner::copy with plain pointers
//   planner_registered         the same with the device memory registered, and pinned host memory too: where a CPU or the
//   GPU
//                              engine copies, up to 256 KiB, in a run of its own after the others, to whose planner the
//                              memory would be known
//
// Before, each of them copies once between unaligned places and is compared byte for byte. Where the planner seems to lie
// above the best single way, the two are measured again, alone and in turns (copy_case.hpp: compare_pairs), and that counts.
#include <algorithm>
#include <cinttypes>
#include <list>
#include <map>
#include <set>

#include "base/text.hpp"
#include "measure/progress.hpp"
#include "measure/text_table.hpp"
#include "tools/common/planner_session.hpp"
#include "tools/copy/copy_arena.hpp"
#include "tools/copy/copy_command.hpp"
#include "tools/copy/copy_contender.hpp"

namespace pl::tools {
namespace {

using copy::choice;
using copy::direction;
using copy::method;
using copy::other_side;
using copy::transfer;

constexpr const char* kPlanner = "planner";
constexpr const char* kRegistered = "planner_registered";
constexpr const char* kCuMemcpy = "cuMemcpy";
// From here on each copy takes milliseconds: a method is left out if it took this many times the best one's time at the
// previous size.
constexpr std::uint64_t kLong = 128u << 20;
constexpr double kHopeless = 3;
constexpr std::uint64_t kMaxRegistered = 256u << 10;  // the driver's queries it saves are some 0.3 us

std::string us(double ns) { return short_number(ns / 1e3); }

status driver_copy(const cu::driver_table& cuda, const copy::transfer& transfer) {
  cu::result_t rc = cu::error_code::success;
  if (transfer.way == direction::to_device) {
    rc = cuda.cuMemcpyHtoD_v2(transfer.dst, copy::host_pointer(transfer.src), transfer.row_bytes);
  } else if (transfer.way == direction::to_host) {
    rc = cuda.cuMemcpyDtoH_v2(copy::host_pointer(transfer.dst), transfer.src, transfer.row_bytes);
  } else {
    rc = cuda.cuMemcpyDtoD_v2(transfer.dst, transfer.src, transfer.row_bytes);
    if (rc == cu::error_code::success) rc = cuda.cuStreamSynchronize(nullptr);
  }
  if (rc == cu::error_code::success) return {};
  return cu::make_error(cuda, rc, kCuMemcpy);
}

// One line of a size: a contender and what is known of it besides its samples.
struct sweep_entry {
  std::string name;
  std::optional<choice> forced_choice;  // a way of the planner, by force
  call_record record;
  bool is_short_store = false;
};

struct case_summary {
  copy_case test_case;
  std::size_t sizes = 0, repeated = 0, exceeding = 0;
  double worst_ratio = 0;
  std::uint64_t worst_bytes = 0;
};

class copy_sweep {
 public:
  copy_sweep(const gpu_session& gpu, const copy_options& options, result_file& results)
      : gpu_(gpu), options_(options), results_(results), cases_(usable_cases()) {
    if (cases_.empty()) throw tool_failure("nothing to measure: --direction and --memory leave no case on this machine");
    check_methods();
    arena_.emplace(gpu, cases_, options.max_bytes, static_cast<std::uint64_t>(options.seed));
    planner_.emplace(gpu);
    if (!options.no_hold && !planner_->hold()) note("the copy kernel is not held: " + planner_->why_not());
    const std::string& origin = (*planner_)->costs_origin();  // the file's name suffices; its folder stays private
    results.set_parameter("costs", origin.substr(origin.find('/') == 0 ? origin.rfind('/') + 1 : 0));
    results.set_parameter("threads", (*planner_)->threads());
    results.set_unit("ratio", "planner / best single method, medians");
    results.add_note("cuMemcpy of pageable memory may return when the driver has the data, before the GPU has it");
    results.add_note("between GPU memories cuMemcpy is cuMemcpyDtoD and cuStreamSynchronize");
    results.add_note("stores of up to 4 KiB are timed in batches of 16, so p99 is of batch means there");
    std::printf("costs: %s; %u CPU threads; copy kernel %s\n", (*planner_)->costs_origin().c_str(), (*planner_)->threads(),
                options.no_hold               ? "not held (--no-hold)"
                : planner_->why_not().empty() ? "held hot"
                                              : "not held");
  }

  void run() {
    const auto sizes = sweep_sizes(options_.min_bytes, options_.max_bytes, options_.odd);
    progress line("copy", sizes.size() * cases_.size());
    std::size_t done = 0;
    for (const auto& test_case : cases_) {
      begin_case(test_case);
      for (const auto bytes : sizes) {
        line.start_step(done++,
                        format("%s %s %s", direction_label(test_case), memory_label(test_case), format_size(bytes).c_str()));
        measure(test_case, bytes);
      }
      end_case(test_case);
    }
    line.start_step(done, "done");
    finish();
  }

 private:
  std::vector<copy_case> usable_cases() {
    int count = 1;
    gpu_.cuda().cuDeviceGetCount(&count);
    auto out = options_.cases;
    if (count < 2 && std::erase_if(out, [](const copy_case& one) { return one.side == other_side::peer_gpu; }) != 0)
      note("p2p is left out: this process sees one GPU");
    return out;
  }

  // A misspelt name would leave empty tables.
  void check_methods() const {
    std::set<std::string> known{kCuMemcpy, kPlanner, kRegistered};
    for (const auto& test_case : cases_)
      for (const auto& candidate : copy::candidates(test_case.way, test_case.side)) known.insert(copy::to_text(candidate));
    for (const auto& wanted : options_.methods) {
      if (std::any_of(known.begin(), known.end(), [&](const auto& name) { return is_wanted({wanted}, name); })) continue;
      std::string names;
      for (const auto& name : known) names += (names.empty() ? "" : ", ") + name;
      throw tool_failure(format("--methods: \"%s\" is not one of %s", wanted.c_str(), names.c_str()));
    }
  }

  void note(const std::string& text) {
    if (!noted_.insert(text).second) return;
    results_.add_note(text);
    notes_.push_back(text);
  }

  void begin_case(const copy_case& test_case) {
    arena_->begin(test_case);
    summary_ = {test_case, 0, 0, 0, 0, 0};
    hopeless_.clear();
    rows_.clear();
    columns_.clear();
  }

  void end_case(const copy_case& test_case) {
    print_table(test_case);
    summaries_.push_back(summary_);
  }

  std::list<sweep_entry> entrants_of(const copy_case& test_case, std::uint64_t bytes) const {
    std::list<sweep_entry> out;
    const bool stores = test_case.way == direction::to_device;
    for (const auto& candidate : copy::candidates(test_case.way, test_case.side)) {
      const auto limits = copy::limits_of(test_case.way, candidate);
      if (bytes < limits.least || bytes > limits.most) continue;
      const bool is_ring = candidate.kind == method::dma_ring;
      if (is_ring && !(*planner_)->has_channel_rings()) continue;
      const bool is_by_threads = is_ring || copy::needed_executor(candidate.kind) == copy::executor::none;
      if (is_by_threads && candidate.width > (*planner_)->threads()) continue;
      out.push_back({copy::to_text(candidate), candidate, {}, candidate.kind == method::cpu_store});
    }
    out.push_back({kCuMemcpy, {}, {}, false});
    out.push_back({kPlanner, {}, {}, stores});
    std::erase_if(out, [&](const sweep_entry& one) {
      return !is_wanted(options_.methods, one.name) || (bytes >= kLong && hopeless_.count(one.name) != 0);
    });
    return out;
  }

  status call(const sweep_entry& one, const copy::transfer& transfer) {
    if (one.forced_choice) return (*planner_)->copy_by(*one.forced_choice, transfer);
    if (one.name == kCuMemcpy) return driver_copy(gpu_.cuda(), transfer);
    return (*planner_)->copy(transfer);
  }

  // Copies once, with a comparison unless --no-verify. Returns false if this method is not available here.
  bool prove(const copy_case& test_case, std::uint64_t bytes, sweep_entry& one) {
    const auto attempt = [&](const copy::transfer& transfer) {
      status done = call(one, transfer);
      for (unsigned i = 0; !done && done.code() == EAGAIN && i < kAttempts && !options_.no_hold; ++i) {
        usleep(100);
        done = call(one, transfer);
      }
      if (done) return ++one.record.done, true;
      if (!one.forced_choice || (done.code() != EAGAIN && done.code() != ENOTSUP))
        throw tool_failure(format("%s %s %s of %" PRIu64 " bytes: %s", direction_label(test_case), memory_label(test_case),
                                  one.name.c_str(), bytes, done.error().message.c_str()));
      note(format("%s is left out where it is not open: %s", one.name.c_str(), done.error().message.c_str()));
      return false;
    };
    return options_.no_verify ? attempt(arena_->aligned(test_case, bytes))
                              : arena_->verify(test_case, bytes, one.name, attempt);
  }

  contender contender_of(sweep_entry& one, const sampling& sampling_options, const copy::transfer& transfer) {
    auto& planner = **planner_;
    // Makes one closure for each contender, because nothing may be looked up between the clock's readings (samples.hpp).
    if (one.forced_choice) {
      return make_contender(one.name, one.record, sampling_options,
                            [&planner, &transfer, way = *one.forced_choice] { return planner.copy_by(way, transfer); });
    }
    if (one.name == kCuMemcpy)
      return make_contender(one.name, one.record, sampling_options,
                            [&cuda = gpu_.cuda(), &transfer] { return driver_copy(cuda, transfer); });
    return make_contender(one.name, one.record, sampling_options, [&planner, &transfer] { return planner.copy(transfer); });
  }

  void measure(const copy_case& test_case, std::uint64_t bytes) {
    auto entrants = entrants_of(test_case, bytes);
    std::erase_if(entrants, [&](sweep_entry& one) { return !prove(test_case, bytes, one); });
    const copy::transfer transfer = arena_->aligned(test_case, bytes);
    const auto before = (*planner_)->counts();
    std::vector<contender> all;
    bool is_short = true;
    for (auto& one : entrants) {
      one.record = {};
      sampling sampling_options = sampling_for(bytes, one.is_short_store);
      if (options_.no_hold) sampling_options.pause_us = 0;
      is_short = sampling_options.has_uncounted_call;
      all.push_back(contender_of(one, sampling_options, transfer));
    }
    run_budget(all, static_cast<std::uint64_t>(options_.time_ms) * 1'000'000, static_cast<std::size_t>(options_.samples),
               is_short);
    const auto after = (*planner_)->counts();
    if (auto last = registered_contender(test_case, bytes, transfer, entrants)) all.push_back(*std::move(last));
    std::uint64_t forced[copy::kMethods] = {};
    for (const auto& one : entrants)
      if (one.forced_choice) forced[static_cast<std::size_t>(one.forced_choice->kind)] += one.record.done;
    report_size(test_case, transfer, entrants, all, max_taken(before.copies, after.copies, forced));
  }

  // Compares the planner with the best single method by new samples.
  paired_comparison measure_again(std::list<sweep_entry>& entrants, const std::string& best,
                                  const copy::transfer& transfer) {
    const auto named = [&](const std::string& name) -> contender {
      auto& one =
          *std::find_if(entrants.begin(), entrants.end(), [&](const sweep_entry& each) { return each.name == name; });
      sampling sampling_options = sampling_for(transfer.row_bytes, one.is_short_store);
      if (options_.no_hold) sampling_options.pause_us = 0;
      return contender_of(one, sampling_options, transfer);
    };
    std::vector<sample_pair> pairs;
    for (const auto& [planner_ns, best_ns] :
         run_pairs(named(kPlanner), named(best), static_cast<std::uint64_t>(options_.time_ms) * 1'000'000))
      pairs.push_back({planner_ns, best_ns});
    return compare_pairs(pairs);
  }

  // Runs after the others, because registered memory is known to their planner too.
  std::optional<contender> registered_contender(const copy_case& test_case, std::uint64_t bytes,
                                                const copy::transfer& transfer, std::list<sweep_entry>& entrants) {
    const auto picked = (*planner_)->costs().pick(test_case.way, test_case.side, (*planner_)->best_executor(), bytes).kind;
    if (test_case.way == direction::on_device || bytes > kMaxRegistered || !is_wanted(options_.methods, kRegistered) ||
        (picked != method::cpu_store && picked != method::cpu_load && copy::needed_executor(picked) == copy::executor::none))
      return std::nullopt;
    const bool to_device = test_case.way == direction::to_device;
    auto device = (*planner_)->register_memory(arena_->device().get(), arena_->device_bytes());
    if (!device) return note(std::string(kRegistered) + " is left out: " + device.error().message), std::nullopt;
    std::optional<copy::planner::registration> host;
    if (test_case.side == other_side::pinned) {
      auto made = (*planner_)->register_host_memory(copy::host_pointer(to_device ? transfer.src : transfer.dst), bytes,
                                                    gpu_.ordinal());
      if (!made) return note(std::string(kRegistered) + " is left out: " + made.error().message), std::nullopt;
      host.emplace(*std::move(made));
    }
    entrants.push_back({kRegistered, {}, {}, to_device});
    auto& one = entrants.back();
    prove(test_case, bytes, one);
    one.record = {};
    std::vector<contender> alone;
    alone.push_back(contender_of(one, sampling_for(bytes, one.is_short_store), transfer));
    run_budget(alone, static_cast<std::uint64_t>(options_.time_ms) * 250'000, static_cast<std::size_t>(options_.samples),
               true);
    return std::move(alone.front());
  }

  void report_size(const copy_case& test_case, const copy::transfer& transfer, std::list<sweep_entry>& entrants,
                   std::span<const contender> all, const dominant_method& taken) {
    const std::uint64_t bytes = transfer.row_bytes;
    std::vector<measured_method> measured;
    std::uint64_t misses = 0;
    size_row row;
    row.bytes = bytes;
    auto one = entrants.begin();
    for (std::size_t i = 0; i < all.size(); ++i, ++one) {
      misses += one->record.misses;
      if (all[i].samples_ns.empty()) {
        note(format("%s has no sample at some sizes: the copy kernel never took it", one->name.c_str()));
        continue;
      }
      add_method_row(test_case, bytes, *one, all[i]);
      const summary sum = summarize(all[i].samples_ns);
      measured.push_back({one->name, sum.p50, one->forced_choice || one->name == kCuMemcpy, one->forced_choice.has_value()});
      row.p50_ns[one->name] = sum.p50;
      if (one->name == kPlanner) row.planner_p99_ns = sum.p99;
      if (std::find(columns_.begin(), columns_.end(), one->name) == columns_.end()) columns_.push_back(one->name);
    }
    row.verdict = judge(measured);
    if (row.verdict && row.verdict->exceeds) row.again = measure_again(entrants, row.verdict->best_method, transfer);
    if (row.verdict && bytes >= kLong / 2)
      for (const auto& each : measured)
        if (each.is_single && each.p50_ns > kHopeless * row.verdict->best_ns) hopeless_.insert(each.name);
    row.choice = to_text(taken, (*planner_)->costs(), test_case, bytes);
    if (row.verdict) add_envelope_row(test_case, row, taken, judge(measured, kRegistered), misses);
    rows_.push_back(std::move(row));
  }

  void add_method_row(const copy_case& test_case, std::uint64_t bytes, const sweep_entry& one, const contender& measured) {
    const std::string series =
        format("%s_%s_%s_%" PRIu64, direction_label(test_case), memory_label(test_case), one.name.c_str(), bytes);
    nlohmann::json out{{"kind", "method"},
                       {"direction", direction_label(test_case)},
                       {"memory", memory_label(test_case)},
                       {"method", one.name},
                       {"size_bytes", bytes}};
    out.update(latency_fields(measured.samples_ns));
    const double p50_ns = out["latency_ns_p50"];
    out["bandwidth_gb_per_s"] = p50_ns > 0 ? static_cast<double>(bytes) / p50_ns : 0.0;
    out["misses"] = one.record.misses;
    if (options_.keep_samples) {
      out["series"] = series;
      results_.add_samples(series, measured.samples_ns);
    }
    results_.add_row(std::move(out));
  }

  struct size_row {
    std::uint64_t bytes = 0;
    std::map<std::string, double> p50_ns;
    std::optional<envelope_point> verdict;
    std::optional<paired_comparison> again;  // where the verdict was that the planner exceeds
    std::string choice = "-";
    bool exceeds() const { return again ? again->exceeds : verdict && verdict->exceeds; }
    double ratio() const { return again ? again->ratio.middle : verdict->ratio; }
    double planner_p99_ns = 0;
  };

  void add_envelope_row(const copy_case& test_case, const size_row& row, const dominant_method& taken,
                        const std::optional<envelope_point>& registered, std::uint64_t misses) {
    const auto& verdict = *row.verdict;
    nlohmann::json out{{"kind", "envelope"},
                       {"direction", direction_label(test_case)},
                       {"memory", memory_label(test_case)},
                       {"size_bytes", row.bytes},
                       {"best_method", verdict.best_method},
                       {"best_ns", verdict.best_ns},
                       {"best_way", verdict.best_available},
                       {"best_way_ns", verdict.best_available_ns},
                       {"planner_ns", verdict.planner_ns},
                       {"ratio", row.ratio()},
                       {"exceeds", row.exceeds()},
                       {"repeated", row.again.has_value()},
                       {"choice", row.choice},
                       {"choice_share", taken.share},
                       {"misses", misses}};
    if (registered) {
      out["registered_ns"] = registered->planner_ns;
      out["registered_ratio"] = registered->ratio;
    }
    if (row.again) {
      out["first_ratio"] = verdict.ratio;
      out["again_planner_ns"] = row.again->planner_ns;
      out["again_best_ns"] = row.again->best_ns;
      out["ratio_low"] = row.again->ratio.low;
      out["ratio_high"] = row.again->ratio.high;
    }
    results_.add_row(std::move(out));
    ++summary_.sizes;
    if (row.again) ++summary_.repeated;
    if (row.exceeds()) ++summary_.exceeding;
    if (row.ratio() > summary_.worst_ratio) {
      summary_.worst_ratio = row.ratio();
      summary_.worst_bytes = row.bytes;
    }
  }

  void print_table(const copy_case& test_case) const {
    constexpr auto kLeft = text_table::align::left;
    const auto has = [&](const char* name) { return std::find(columns_.begin(), columns_.end(), name) != columns_.end(); };
    std::vector<text_table::column> columns{{"size"},        {"planner p50"},      {"p99"},
                                            {"best single"}, {"by", kLeft},        {"ratio"},
                                            {"", kLeft},     {"way taken", kLeft}, {kCuMemcpy}};
    if (has(kRegistered)) columns.push_back({"registered"});
    std::vector<std::string> more;
    if (options_.all_columns)
      for (const auto& name : columns_)
        if (name != kPlanner && name != kCuMemcpy && name != kRegistered) more.push_back(name);
    for (const auto& name : more) columns.push_back({name});
    text_table table(std::move(columns));
    for (const auto& row : rows_) {
      const auto cell = [&](const std::string& name) {
        const auto found = row.p50_ns.find(name);
        return found == row.p50_ns.end() ? std::string("-") : us(found->second);
      };
      std::vector<std::string> cells{format_size(row.bytes), cell(kPlanner), us(row.planner_p99_ns)};
      if (row.verdict) {
        cells.insert(cells.end(), {us(row.verdict->best_ns), row.verdict->best_method, format("%.2f", row.ratio()),
                                   row.exceeds() ? "!"
                                   : row.again   ? "="
                                                 : ""});
      } else {
        cells.insert(cells.end(), {"-", "-", "-", ""});
      }
      cells.push_back(row.choice);
      cells.push_back(cell(kCuMemcpy));
      if (has(kRegistered)) cells.push_back(cell(kRegistered));
      for (const auto& name : more) cells.push_back(cell(name));
      table.add_row(std::move(cells));
    }
    std::printf(
        "\n%s, %s memory, microseconds (!: planner above the best single method by more than %.0f %% and %.0f ns, measured "
        "again; =: seemed so, and was not when the two were measured again: the ratio is of that)\n%s",
        direction_label(test_case), memory_label(test_case), kEnvelopeShare * 100, kEnvelopeNs, table.render().c_str());
  }

  void finish() {
    text_table table(
        {{"case", text_table::align::left}, {"sizes"}, {"measured again"}, {"above envelope"}, {"worst ratio"}, {"at"}});
    for (const auto& one : summaries_)
      table.add_row({format("%s %s", direction_label(one.test_case), memory_label(one.test_case)), format("%zu", one.sizes),
                     format("%zu", one.repeated), format("%zu", one.exceeding), format("%.2f", one.worst_ratio),
                     format_size(one.worst_bytes)});
    std::printf("\nplanner against the envelope\n%s", table.render().c_str());
    const auto counts = (*planner_)->counts();
    std::printf("\ncopy kernel: %" PRIu64 " launches, %" PRIu64 " refusals while not resident, %" PRIu64
                " while busy, %" PRIu64 " left before they looked; planner fell back %" PRIu64 " times\n",
                counts.engine.launches, counts.engine.not_hot, counts.engine.all_busy, counts.engine.left,
                counts.engine_not_taken);
    for (const auto& text : notes_) std::printf("note: %s\n", text.c_str());
    results_.set_parameter("engine_launches", counts.engine.launches);
    results_.set_parameter("engine_not_taken", counts.engine_not_taken);
  }

  const gpu_session& gpu_;
  const copy_options& options_;
  result_file& results_;
  std::vector<std::string> notes_;
  std::set<std::string> noted_;
  std::vector<copy_case> cases_;
  std::optional<copy_arena> arena_;
  std::optional<planner_session> planner_;

  // Of the current case.
  std::vector<size_row> rows_;
  std::vector<std::string> columns_;  // contenders, in order of appearance
  std::set<std::string> hopeless_;    // methods that are left out at the largest sizes
  case_summary summary_{};
  std::vector<case_summary> summaries_;
};

}  // namespace

void run_copy_sweep(const gpu_session& gpu, const copy_options& options, result_file& results) {
  copy_sweep(gpu, options, results).run();
}

}  // namespace pl::tools
