// SPDX-License-Identifier: Apache-2.0
// `peerlane blocks --beside`: how much lists of blocks slow down kernels that run at the same time, and the reverse.
//
// A chain of kernels is queued; while it runs, lists are moved without a pause, two in flight. Events time the chain,
// with lists of each contender and without, in turns.
#include <algorithm>
#include <functional>
#include <map>

#include "base/text.hpp"
#include "load_image.hpp"
#include "measure/progress.hpp"
#include "measure/samples.hpp"
#include "measure/text_table.hpp"
#include "tools/blocks/blocks_command.hpp"

namespace pl::tools {
namespace {

constexpr const char* kNobody = "no lists";
constexpr double kChainMs = 40;
constexpr std::uint64_t kBlockSizes[] = {4096, 16u << 10};
constexpr std::size_t kCount = 1024;
constexpr const char* kLoads[] = {"arithmetic", "memory"};

class chain {
 public:
  chain(const gpu_session& gpu, const std::string& load)
      : gpu_(gpu),
        is_arithmetic_(load == kLoads[0]),
        is_small_(gpu.simulated()),
        half_bytes_(is_small_ ? 16u << 10 : 256u << 20),
        memory_(gpu, gpu.ordinal(), 2 * half_bytes_),
        module_(gpu, kernels::load()),
        stream_(gpu) {
    gpu.check(gpu.cuda().cuEventCreate(&begin_, cu::event_flag::standard), "cuEventCreate");
    gpu.check(gpu.cuda().cuEventCreate(&end_, cu::event_flag::standard), "cuEventCreate");
    memory_.set(0, 1, 2 * half_bytes_);
    if (is_small_) return;
    run([] {});  // loads the kernel
    launches_ = 20;
    repeats_ = is_arithmetic_ ? 1000 : 1;
    const double taken_ms = run([] {}) / 1e6;
    repeats_ = static_cast<std::uint32_t>(std::clamp(repeats_ * kChainMs / std::max(0.01, taken_ms), 1.0, 1e8));
  }
  ~chain() {
    gpu_.cuda().cuEventDestroy_v2(begin_);
    gpu_.cuda().cuEventDestroy_v2(end_);
  }
  chain(const chain&) = delete;
  chain& operator=(const chain&) = delete;

  // Time of the kernels, while `work` is called again and again.
  double run(const std::function<void()>& work) {
    const auto& cuda = gpu_.cuda();
    gpu_.check(cuda.cuEventRecord(begin_, stream_.get()), "cuEventRecord");
    for (unsigned i = 0; i < launches_; ++i) launch();
    gpu_.check(cuda.cuEventRecord(end_, stream_.get()), "cuEventRecord");
    do work();  // at least once, however short the kernels are
    while (cuda.cuEventQuery(end_) == cu::error_code::not_ready);
    gpu_.check(cuda.cuEventSynchronize(end_), "the kernels");
    float taken_ms = 0;
    gpu_.check(cuda.cuEventElapsedTime(&taken_ms, begin_, end_), "cuEventElapsedTime");
    return static_cast<double>(taken_ms) * 1e6;
  }

 private:
  void launch() {
    const auto processors = static_cast<unsigned>(std::max(1, gpu_.attribute(cu::device_attribute::multiprocessor_count)));
    const unsigned blocks = is_small_ ? 2 : processors * 4, threads = is_small_ ? 32 : 256;
    if (is_arithmetic_) module_.launch("load_compute", blocks, threads, 0, stream_.get(), memory_.get(), repeats_);
    else
      module_.launch("load_memory", blocks, threads, 0, stream_.get(), memory_.get(), memory_.get() + half_bytes_,
                     half_bytes_ / 16, repeats_);
  }

  const gpu_session& gpu_;
  const bool is_arithmetic_, is_small_;
  const std::uint64_t half_bytes_;
  const device_block memory_;
  const kernel_module module_;
  const gpu_stream stream_;
  cu::event_t begin_ = nullptr, end_ = nullptr;
  unsigned launches_ = 1;
  std::uint32_t repeats_ = 8;
};

// Two movers of one kind that take turns, so that the next list is queued when one ends.
class list_pump {
 public:
  list_pump(mover_set& movers, const std::string& name, const block_list& first, const block_list& second)
      : movers_{movers.make(name), movers.make(name)} {
    movers_[0]->take(first);
    movers_[1]->take(second);
  }
  void step() {
    block_mover& next = *movers_[turn_];
    if (in_flight_[turn_]) next.finish(), ++done_;
    next.submit();
    in_flight_[turn_] = true;
    turn_ = 1 - turn_;
  }
  void drain() {
    for (std::size_t i = 0; i < 2; ++i)
      if (in_flight_[i]) movers_[i]->finish(), ++done_, in_flight_[i] = false;
  }
  std::uint64_t take_done() { return std::exchange(done_, 0); }

 private:
  std::unique_ptr<block_mover> movers_[2];
  bool in_flight_[2] = {};
  std::size_t turn_ = 0;
  std::uint64_t done_ = 0;
};

struct measured {
  std::vector<double> chain_ns, lists_gb_per_s;
};

class beside_bench {
 public:
  beside_bench(mover_set& movers, const blocks_options& options, result_file& results)
      : movers_(movers),
        options_(options),
        results_(results),
        rounds_(movers.gpu.simulated() ? 1 : 7),
        count_(movers.gpu.simulated() ? 16 : kCount) {
    for (const auto& name : movers.names())
      if (name != kEach && is_wanted_mover(options, name) && movers.make(name)) names_.push_back(name);
    order_ = names_;
    order_.insert(order_.begin(), kNobody);
  }

  void run() {
    text_table table({{"kernels", text_table::align::left},
                      {"lists", text_table::align::left},
                      {"by", text_table::align::left},
                      {"kernels ms"},
                      {"loss %"},
                      {"lists GB/s"}});
    {
      progress line("blocks --beside", std::size(kLoads) * std::size(kBlockSizes) * options_.directions.size());
      std::size_t done = 0;
      block_arena arena(movers_.gpu, 2 * kCount * kBlockSizes[1], kBlockSizes[1], static_cast<std::uint64_t>(options_.seed));
      for (const char* const load : kLoads) {
        chain kernels(movers_.gpu, load);
        for (const auto way : options_.directions)
          for (const std::uint64_t size : kBlockSizes) {
            line.start_step(done++, format("%s, %s %s", load, label_of(way), format_size(size).c_str()));
            measure(kernels, arena, load, way, size, table);
          }
      }
    }
    std::printf("\nkernels beside lists of %zu blocks, two lists in flight\n%s", count_, table.render().c_str());
  }

 private:
  void measure(chain& kernels, block_arena& arena, const char* load, copy::direction way, std::uint64_t size,
               text_table& table) {
    const block_list first = arena.make_list(way, size, count_), second = arena.make_list(way, size, count_);
    std::map<std::string, measured> all;
    std::map<std::string, list_pump> pumps;
    for (const auto& name : names_) pumps.try_emplace(name, movers_, name, first, second);
    for (std::size_t round = 0; round <= rounds_; ++round) {
      std::vector<std::string> order = order_;
      std::rotate(order.begin(), order.begin() + static_cast<std::ptrdiff_t>(round % order.size()), order.end());
      for (const auto& name : order) {
        const auto pump = pumps.find(name);
        const std::uint64_t begin_ns = monotonic_ns();
        const double chain_ns = pump == pumps.end() ? kernels.run([] {}) : kernels.run([&] { pump->second.step(); });
        double gb_per_s = 0;
        if (pump != pumps.end()) {
          pump->second.drain();
          gb_per_s =
              static_cast<double>(pump->second.take_done() * first.bytes()) / static_cast<double>(monotonic_ns() - begin_ns);
        }
        if (round == 0) continue;  // warm-up
        all[name].chain_ns.push_back(chain_ns);
        all[name].lists_gb_per_s.push_back(gb_per_s);
      }
    }
    report(all, load, way, size, table);
  }

  void report(const std::map<std::string, measured>& all, const char* load, copy::direction way, std::uint64_t size,
              text_table& table) {
    const double alone_ns = summarize(all.at(kNobody).chain_ns).p50;
    for (const auto& name : order_) {
      const measured& found = all.at(name);
      const double chain_ns = summarize(found.chain_ns).p50, gb_per_s = summarize(found.lists_gb_per_s).p50;
      const double loss_percent = alone_ns > 0 ? (1 - alone_ns / chain_ns) * 100 : 0;
      table.add_row({load, format("%s %s", label_of(way), format_size(size).c_str()), name, format("%.3f", chain_ns / 1e6),
                     name == kNobody ? "" : format("%.1f", loss_percent), name == kNobody ? "" : short_number(gb_per_s)});
      nlohmann::json row{{"kind", "blocks_beside"}, {"kernels", load}, {"direction", label_of(way)},
                         {"block_bytes", size},     {"count", count_}, {"method", name}};
      row.update(latency_fields(found.chain_ns));
      row["loss_percent"] = loss_percent;
      row["bandwidth_gb_per_s"] = gb_per_s;
      results_.add_row(std::move(row));
    }
  }

  mover_set& movers_;
  const blocks_options& options_;
  result_file& results_;
  const std::size_t rounds_, count_;
  std::vector<std::string> names_, order_;  // contenders; and no lists before them
};

}  // namespace

void run_blocks_beside(mover_set& movers, const blocks_options& options, result_file& results) {
  if (const auto reason = kernel_module::why_missing(movers.gpu); !reason.empty()) {
    std::printf("note: kernels beside lists are not measured: %s\n", reason.c_str());
    results.add_note("kernels beside lists are not measured: " + reason);
    return;
  }
  beside_bench(movers, options, results).run();
}

}  // namespace pl::tools
