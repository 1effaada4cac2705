// SPDX-License-Identifier: Apache-2.0
// peerlane store crash-demo: shows the promise of a durable put. A buffer in GPU memory goes into its own store, the server
// is killed by SIGKILL during further puts, a new server opens the same folder, and the value comes back into GPU memory,
// where every byte is compared.
#include <stdlib.h>

#include <cstdio>
#include <cstring>
#include <filesystem>
#include <optional>
#include <vector>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "measure/text_table.hpp"
#include "tools/common/gpu.hpp"
#include "tools/common/planner_session.hpp"
#include "tools/common/report.hpp"
#include "tools/common/temporary_folder.hpp"
#include "tools/store/own_server.hpp"
#include "tools/store/reach.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {
namespace {

using tools::tool_failure;

struct crash_options {
  tools::common_options common;
  std::string folder;
  std::uint64_t bytes = 16u << 20;
};

class crash_demo {
 public:
  crash_demo(const crash_options& options, const tools::gpu_session& gpu, tools::planner_session& copies)
      : options_(options),
        gpu_(gpu),
        copies_(copies),
        folder_("crash", options.folder),
        source_(gpu, options.bytes),
        destination_(gpu, options.bytes),
        pattern_(options.bytes) {
    for (std::size_t i = 0; i < pattern_.size(); ++i) pattern_[i] = static_cast<unsigned char>(i * 131 + (i >> 12) * 7 + 1);
    gpu_.check(gpu_.cuda().cuMemcpyHtoD_v2(source_.get(), pattern_.data(), pattern_.size()), "cuMemcpyHtoD");
    gpu_.check(gpu_.cuda().cuMemsetD8_v2(destination_.get(), 0, options.bytes), "cuMemsetD8");
    gpu_.synchronize();
  }

  void run(result_file& results) {
    start();
    const double put_ns = put_durable();
    const double restart_ns = kill_and_restart();
    const double get_ns = get_back();
    compare();
    const double bytes = static_cast<double>(options_.bytes);
    results.add_row({{"kind", "crash"},
                     {"size_bytes", options_.bytes},
                     {"put_gb_per_s", bytes / put_ns},
                     {"get_gb_per_s", bytes / get_ns},
                     {"restart_ns", restart_ns},
                     {"puts_under_way_when_killed", kInFlight},
                     {"mismatched_bytes", 0}});
    std::printf("verified: all %zu bytes of the value that was put before the kill\n", pattern_.size());
  }

 private:
  static constexpr int kInFlight = 8;

  template <class Step>
  static double timed(const Step& step) {
    const std::uint64_t begin_ns = monotonic_ns();
    step();
    return static_cast<double>(monotonic_ns() - begin_ns);
  }

  void start() {
    // Room for the value, for those in progress, and for a new version in addition to an old one.
    const std::uint64_t arena = std::max<std::uint64_t>(64u << 20, (kInFlight + 4) * options_.bytes);
    server_.reset();
    server_.emplace(folder_.path(), std::vector<std::string>{"--arena", std::to_string(arena), "--chunk", "16777216"});
    reach_options target;
    target.socket = server_->socket();
    store_ = reach(target, &*copies_, &gpu_.cuda());
    pool_ = pool_of(*store_, "crash-demo", true);
  }

  store_client::put_request durable() const {
    store_client::put_request request;
    request.level = durability_option("durable");
    return request;
  }

  double put_durable() {
    const auto memory = tools::must(store_->classify(source_.get(), options_.bytes));
    store_client::reply answer;
    const double ns = timed([&] { answer = must(store_->run(store_->make_put(pool_, "value", memory, durable()))); });
    std::printf("durable put of %zu bytes from GPU memory: acknowledged after %s (%s)\n", pattern_.size(),
                format_duration_ns(ns).c_str(), describe_reply(answer).c_str());
    return ns;
  }

  // The kill hits puts of other keys that are not acknowledged yet. Their client reconnects and finishes them with the new
  // server.
  double kill_and_restart() {
    const auto memory = tools::must(store_->classify(source_.get(), options_.bytes));
    std::vector<store_client::operation_ptr> in_flight;
    for (int i = 0; i < kInFlight; ++i)
      in_flight.push_back(store_->make_put(pool_, format("other-%d", i), memory, durable()));
    for (const auto& one : in_flight) store_->start(one);
    const pid_t process = server_->kill_hard();
    std::printf("server (pid %d) killed by SIGKILL with %d further puts in progress\n", static_cast<int>(process),
                kInFlight);
    const auto earlier = std::move(store_);
    const double ns = timed([&] { start(); });
    std::printf("new server on the same folder: answers after %s\n", format_duration_ns(ns).c_str());
    for (const auto& one : in_flight) {
      earlier->wait(one);
      must(one->got);
    }
    std::printf("the %d puts in progress: finished by the new server\n", kInFlight);
    return ns;
  }

  double get_back() {
    const auto memory = tools::must(store_->classify(destination_.get(), options_.bytes));
    store_client::reply answer;
    const double ns = timed([&] { answer = must(store_->run(store_->make_get(pool_, "value", memory, {}))); });
    std::printf("get into other GPU memory: %s (%s)\n", format_duration_ns(ns).c_str(), describe_reply(answer).c_str());
    return ns;
  }

  void compare() {
    std::vector<unsigned char> got(pattern_.size());
    gpu_.check(gpu_.cuda().cuMemcpyDtoH_v2(got.data(), destination_.get(), got.size()), "cuMemcpyDtoH");
    for (std::size_t i = 0; i < got.size(); ++i)
      if (got[i] != pattern_[i])
        throw tool_failure(format("the durable value is damaged: byte %zu is 0x%02x, not 0x%02x", i, got[i], pattern_[i]));
  }

  const crash_options& options_;
  const tools::gpu_session& gpu_;
  tools::planner_session& copies_;
  tools::temporary_folder folder_;
  tools::device_memory source_, destination_;
  std::vector<unsigned char> pattern_;
  std::optional<own_server> server_;
  std::unique_ptr<store_client::client> store_;
  std::uint32_t pool_ = 0;
};

}  // namespace

int run_crash_demo(const tools::invocation& call) {
  crash_options options;
  tools::command_parser parser(
      call, "Puts a value durably from GPU memory, kills the server (kill -9), restarts it and compares every byte");
  parser.size("--size", options.bytes, "Size of the value");
  parser.text("--folder", "DIR", options.folder, "Where the demo creates its temporary store folder [TMPDIR or /tmp]");
  parser.common(options.common);
  if (const auto code = parser.parse()) return *code;
  if (options.bytes == 0 || options.bytes > (1u << 30)) throw tool_failure("--size: from 1 byte to 1G");
  tools::report report(call, options.common, "store crash-demo");
  const tools::gpu_session gpu(options.common.gpu, false);
  report.describe(&gpu, nullptr, tools::place_thread(options.common, gpu.bus_id(), gpu.simulated()));
  report.file().set_parameter("size_bytes", options.bytes);
  {
    tools::planner_session copies(gpu);
    crash_demo(options, gpu, copies).run(report.file());
  }
  report.write();
  return tools::kExitOk;
}

}  // namespace pl::store_tools
