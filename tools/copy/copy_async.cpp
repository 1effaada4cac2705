// SPDX-License-Identifier: Apache-2.0
// `peerlane copy --async`: many small copies in one call against one by one and against CUDA's own, and how long a copy
// takes that is begun and then waited for.
#include <algorithm>
#include <cstring>
#include <functional>

#include "base/text.hpp"
#include "copy/completion.hpp"
#include "measure/progress.hpp"
#include "measure/text_table.hpp"
#include "tools/common/planner_session.hpp"
#include "tools/copy/copy_arena.hpp"
#include "tools/copy/copy_command.hpp"
#include "tools/copy/copy_contender.hpp"

namespace pl::tools {
namespace {

using copy::direction;
using copy::transfer;

struct piece_list {
  direction way;
  std::size_t pieces;
  std::uint64_t piece_bytes;
};
constexpr piece_list kLists[] = {{direction::to_host, 64, 64},
                                 {direction::to_host, 512, 32},
                                 {direction::to_device, 64, 64},
                                 {direction::to_device, 512, 32}};
// Pieces of a structure each: far apart in GPU memory, closer together in the host's.
constexpr std::uint64_t kDeviceStride = 4096 + 64;
constexpr std::uint64_t kHostStride = 96;

constexpr std::uint64_t kAsyncBytes[] = {64u << 10, 1u << 20};
constexpr std::uint64_t kBytes = 4u << 20;

class async_bench {
 public:
  async_bench(const gpu_session& gpu, const copy_options& options, result_file& results)
      : gpu_(gpu),
        options_(options),
        results_(results),
        random_(static_cast<std::uint64_t>(options.seed)),
        device_(gpu, gpu.ordinal(), kBytes),
        host_(gpu, kBytes),
        check_(gpu, kBytes),
        pageable_(kBytes),
        stream_(gpu),
        planner_(gpu) {
    if (!options.no_hold && !planner_.hold()) results.add_note("the copy kernel is not held: " + planner_.why_not());
  }

  void run() {
    progress line("copy --async", std::size(kLists) + std::size(kAsyncBytes) * 4);
    std::size_t done = 0;
    text_table lists({{"list", text_table::align::left},
                      {"copy_list p50"},
                      {"p99"},
                      {"one by one p50"},
                      {"p99"},
                      {"cuMemcpyAsync p50"},
                      {"p99"}});
    for (const auto& one : kLists) {
      line.start_step(done++, "lists");
      measure_list(one, lists);
    }
    text_table async({{"copy", text_table::align::left},
                      {"begin + wait p50"},
                      {"p99"},
                      {"begin alone p50"},
                      {"p99"},
                      {"planner.copy p50"},
                      {"p99"},
                      {"cuMemcpyAsync p50"},
                      {"p99"}});
    for (const auto way : {direction::to_host, direction::to_device})
      for (const bool pinned : {true, false})
        for (const auto bytes : kAsyncBytes) {
          line.start_step(done++, format_size(bytes));
          measure_async(way, pinned, bytes, async);
        }
    line.start_step(done, "done");
    std::printf("\nlists of small copies, page-locked host memory, microseconds for the whole list\n%s",
                lists.render().c_str());
    std::printf("\ncopies that are begun and waited for, microseconds\n%s", async.render().c_str());
  }

 private:
  std::uint64_t budget_ns() const { return static_cast<std::uint64_t>(options_.time_ms) * 1'000'000; }

  status check(cu::result_t rc, const char* description) const {
    if (rc == cu::error_code::success) return {};
    return cu::make_error(gpu_.cuda(), rc, description);
  }
  status queue(const copy::transfer& transfer) const {
    return transfer.way == direction::to_host
               ? check(gpu_.cuda().cuMemcpyDtoHAsync_v2(copy::host_pointer(transfer.dst), transfer.src, transfer.row_bytes,
                                                        stream_.get()),
                       "cuMemcpyDtoHAsync")
               : check(gpu_.cuda().cuMemcpyHtoDAsync_v2(transfer.dst, copy::host_pointer(transfer.src), transfer.row_bytes,
                                                        stream_.get()),
                       "cuMemcpyHtoDAsync");
  }
  status by_driver(std::span<const transfer> list) const {
    for (const auto& transfer : list)
      if (auto queued = queue(transfer); !queued) return queued;
    return check(gpu_.cuda().cuStreamSynchronize(stream_.get()), "cuStreamSynchronize");
  }
  status one_by_one(std::span<const transfer> list) {
    for (const auto& transfer : list)
      if (auto done = planner_->copy(transfer); !done) return done;
    return {};
  }
  status begin_and_wait(std::span<const transfer> list) {
    auto begun = planner_->begin(list, {});
    return begun ? begun->wait() : begun.error();
  }

  // Fresh data at the source, another byte everywhere at the destination; after `run` exactly the pieces have changed.
  void prove(std::span<const transfer> list, unsigned char* host, const char* contender_name,
             const std::function<status()>& run) {
    if (options_.no_verify) return must(run());
    const bool to_host = list[0].way == direction::to_host;
    const auto blank = static_cast<unsigned char>(random_.next());
    std::vector<unsigned char> expected(kBytes, blank);
    const auto offset_of = [&](std::uint64_t address, bool on_host) {
      return address - (on_host ? copy::address_of(host) : device_.get());
    };
    if (to_host) {
      random_.fill(check_.bytes(), kBytes);
      device_.write(0, check_.bytes(), kBytes);
      std::memset(host, blank, kBytes);
    } else {
      random_.fill(host, kBytes);
      device_.set(0, blank, kBytes);
    }
    for (const auto& transfer : list)
      std::memcpy(expected.data() + offset_of(transfer.dst, to_host),
                  (to_host ? check_.bytes() : host) + offset_of(transfer.src, !to_host), transfer.row_bytes);
    must(run());
    if (!to_host) device_.read(0, check_.bytes(), kBytes);
    const unsigned char* const seen = to_host ? host : check_.bytes();
    const auto [is, should] = std::mismatch(seen, seen + kBytes, expected.begin());
    if (is != seen + kBytes)
      throw tool_failure(format("%s: byte %td is 0x%02x instead of 0x%02x (--seed %lld)", contender_name, is - seen, *is,
                                *should, static_cast<long long>(options_.seed)));
  }

  void add_cells(std::vector<std::string>& cells, const contender& one) const {
    const summary sum = summarize(one.samples_ns);
    cells.push_back(short_number(sum.p50 / 1e3));
    cells.push_back(short_number(sum.p99 / 1e3));
  }

  void measure_list(const piece_list& shape, text_table& table) {
    std::vector<transfer> list;
    for (std::size_t i = 0; i < shape.pieces; ++i) {
      const std::uint64_t device = device_.get() + 64 + i * kDeviceStride;
      const std::uint64_t host = copy::address_of(host_.bytes()) + 64 + i * kHostStride;
      list.push_back(shape.way == direction::to_host ? transfer{shape.way, host, device, shape.piece_bytes}
                                                     : transfer{shape.way, device, host, shape.piece_bytes});
    }
    prove(list, host_.bytes(), "copy_list", [&] { return planner_->copy_list(list); });
    prove(list, host_.bytes(), "one by one", [&] { return one_by_one(list); });
    prove(list, host_.bytes(), "cuMemcpyAsync", [&] { return by_driver(list); });
    call_record records[3];
    const sampling sampling_options{.turn = 2};
    std::vector<contender> all;
    all.push_back(make_contender("copy_list", records[0], sampling_options, [&] { return planner_->copy_list(list); }));
    all.push_back(make_contender("one_by_one", records[1], sampling_options, [&] { return one_by_one(list); }));
    all.push_back(make_contender("cuMemcpyAsync", records[2], sampling_options, [&] { return by_driver(list); }));
    run_budget(all, budget_ns(), static_cast<std::size_t>(options_.samples), true);
    const char* const label = shape.way == direction::to_host ? "d2h" : "h2d";
    std::vector<std::string> cells{format("%s %zu x %s", label, shape.pieces, format_size(shape.piece_bytes).c_str())};
    for (const auto& one : all) {
      nlohmann::json row{{"kind", "list"},     {"direction", label},     {"memory", "pinned"},
                         {"method", one.name}, {"pieces", shape.pieces}, {"piece_bytes", shape.piece_bytes}};
      row.update(latency_fields(one.samples_ns));
      results_.add_row(std::move(row));
      add_cells(cells, one);
    }
    table.add_row(std::move(cells));
  }

  // Time until the call returns; the wait is outside the clock.
  contender begin_alone(std::span<const transfer> list, std::size_t turn) {
    contender out(
        "begin", [this, list] { must(begin_and_wait(list)); }, turn);
    out.sample_ns = [this, list] {
      std::optional<result<copy::completion>> begun;
      const double taken_ns = time_once_ns([&] { begun.emplace(planner_->begin(list, {})); });
      if (!*begun) throw tool_failure((*begun).error().message);
      must((*begun)->wait());
      return taken_ns;
    };
    return out;
  }

  void measure_async(direction way, bool pinned, std::uint64_t bytes, text_table& table) {
    unsigned char* const host = pinned ? host_.bytes() : pageable_.data();
    const copy::transfer transfer = way == direction::to_host
                                        ? copy::transfer{way, copy::address_of(host) + 4096, device_.get() + 4096, bytes}
                                        : copy::transfer{way, device_.get() + 4096, copy::address_of(host) + 4096, bytes};
    const std::span list(&transfer, 1);
    prove(list, host, "begin and wait", [&] { return begin_and_wait(list); });
    call_record records[3];
    const sampling sampling_options{.turn = 2};
    std::vector<contender> all;
    all.push_back(make_contender("begin_wait", records[0], sampling_options, [&] { return begin_and_wait(list); }));
    all.push_back(begin_alone(list, sampling_options.turn));
    all.push_back(make_contender("planner", records[1], sampling_options, [&] { return planner_->copy(transfer); }));
    all.push_back(make_contender("cuMemcpyAsync", records[2], sampling_options, [&] { return by_driver(list); }));
    run_budget(all, budget_ns(), static_cast<std::size_t>(options_.samples), true);
    const char* const label = way == direction::to_host ? "d2h" : "h2d";
    std::vector<std::string> cells{format("%s %s %s", label, pinned ? "pinned" : "pageable", format_size(bytes).c_str())};
    for (const auto& one : all) {
      nlohmann::json row{{"kind", "async"},
                         {"direction", label},
                         {"memory", pinned ? "pinned" : "pageable"},
                         {"method", one.name},
                         {"size_bytes", bytes}};
      row.update(latency_fields(one.samples_ns));
      results_.add_row(std::move(row));
      add_cells(cells, one);
    }
    table.add_row(std::move(cells));
  }

  const gpu_session& gpu_;
  const copy_options& options_;
  result_file& results_;
  random_bytes random_;
  device_block device_;
  host_memory host_, check_;
  std::vector<unsigned char> pageable_;
  gpu_stream stream_;
  planner_session planner_;
};

}  // namespace

void run_copy_async(const gpu_session& gpu, const copy_options& options, result_file& results) {
  async_bench(gpu, options, results).run();
}

}  // namespace pl::tools
