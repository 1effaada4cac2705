// SPDX-License-Identifier: Apache-2.0
// peerlane store gpu-direct-demo: the steps and the lines of MCAS's GPU-direct example, with what it left out: a warm-up,
// every byte compared, the path named, and the link's own rate measured in the same run.
#include <unistd.h>

#include <cstdio>
#include <cstring>
#include <optional>

#include "base/clock.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "tools/common/gpu.hpp"
#include "tools/common/planner_session.hpp"
#include "tools/common/report.hpp"
#include "tools/store/own_server.hpp"
#include "tools/store/reach.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {
namespace {

using tools::tool_failure;
constexpr unsigned char kFill = 0xbb;
constexpr double kMiB = 1024.0 * 1024.0;

struct demo_options {
  tools::common_options common;
  reach_options target;
  std::string server, level = "volatile", device, pool = "gpuPool";
  std::uint64_t bytes = 128u << 20;
  std::int64_t rounds = 10, values = 1, timeout_s = 30, debug = 0;
  std::uint64_t all_bytes() const { return bytes * static_cast<std::uint64_t>(values); }
};

struct rate {
  std::vector<double> ns;  // of each round
  double bytes = 0;
  double total_ns() const {
    double out = 0;
    for (const double one : ns) out += one;
    return out;
  }
  double gb_per_s() const { return bytes * static_cast<double>(ns.size()) / total_ns(); }
  double gib_per_s() const { return gb_per_s() * 1e9 / (1024.0 * kMiB); }
  double mib_per_s() const { return gb_per_s() * 1e9 / kMiB; }
};

class demo {
 public:
  demo(const demo_options& options, const tools::gpu_session& gpu, tools::planner_session& copies)
      : options_(options),
        gpu_(gpu),
        copies_(copies),
        buffer_(gpu, options.all_bytes()),
        host_(gpu, options.all_bytes()),
        store_(reach(options.target, &*copies, &gpu.cuda())) {
    mine_ = tools::must(store_->classify(buffer_.get(), options.all_bytes()));
    for (std::int64_t i = 0; i < options.values; ++i) keys_.push_back(format("key0/%lld", static_cast<long long>(i)));
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      store_client::batch_entry& one = entries_.emplace_back();
      one.key = keys_[i];
      one.buffer = {mine_.address + i * options.bytes, options.bytes, mine_.device};
    }
    pool_ = pool_of(*store_, options.pool, true);
  }

  void run(result_file& results) {
    std::printf("TLS: %s\n", store_->way() == store_protocol::path::tls ? "on" : "off");
    std::printf("Handshakes: 1\n");
    int count = 0;
    gpu_.check(gpu_.cuda().cuDeviceGetCount(&count), "cuDeviceGetCount");
    char name[256] = "";
    gpu_.check(gpu_.cuda().cuDeviceGetName(name, sizeof name, gpu_.device()), "cuDeviceGetName");
    std::printf("%s found\n[pid = %d, dev = %d] device name = [%s]\n",
                plural(static_cast<std::uint64_t>(count), "device").c_str(), getpid(), gpu_.ordinal(), name);
    std::printf("Allocated GPU buffer: %.0f MiB at 0x%llx\n", static_cast<double>(options_.all_bytes()) / kMiB,
                static_cast<unsigned long long>(buffer_.get()));
    std::printf("Registered with the store: %s\n", registration().c_str());
    fill(0);
    view();
    const rate put = puts();
    std::printf("GPU --> MCAS Throughput: %.2f MB/s\n", put.mib_per_s());
    gpu_.check(gpu_.cuda().cuMemsetD8_v2(buffer_.get(), 0, options_.all_bytes()), "cuMemsetD8");
    gpu_.synchronize();
    view();
    const rate get = gets();
    std::printf("GPU <-- MCAS Throughput: %.2f MB/s\n", get.mib_per_s());
    view();
    tell(put, get, results);
  }

 private:
  std::string registration() const {
    const std::string reason = store_->why_no_shm(), not_pinned = store_->why_not_pinned();
    if (store_->why_no_gpu_direct().empty()) return "the store moves the buffer's bytes itself";
    if (!reason.empty()) return "through the socket (" + reason + ")";
    return not_pinned.empty() ? "the store's memory is mapped"
                              : "the store's memory is mapped, not pinned (" + not_pinned + ")";
  }

  // Every round uses new bytes, so that an old value cannot pass for the new one.
  unsigned char byte_at(std::int64_t round, std::size_t i) const {
    return round == 0 ? kFill : static_cast<unsigned char>(i * 131 + (i >> 12) + static_cast<std::size_t>(round) * 7);
  }
  void fill(std::int64_t round) {
    auto* bytes = static_cast<unsigned char*>(host_.data());
    for (std::size_t i = 0; i < options_.all_bytes(); ++i) bytes[i] = byte_at(round, i);
    gpu_.check(gpu_.cuda().cuMemcpyHtoD_v2(buffer_.get(), bytes, options_.all_bytes()), "cuMemcpyHtoD");
    gpu_.synchronize();
  }
  void verify(std::int64_t round, const char* moment) {
    auto* bytes = static_cast<unsigned char*>(host_.data());
    std::memset(bytes, 0, options_.all_bytes());
    gpu_.check(gpu_.cuda().cuMemcpyDtoH_v2(bytes, buffer_.get(), options_.all_bytes()), "cuMemcpyDtoH");
    for (std::size_t i = 0; i < options_.all_bytes(); ++i)
      if (bytes[i] != byte_at(round, i))
        throw tool_failure(format("%s: byte %zu is 0x%02x, not 0x%02x", moment, i, bytes[i], byte_at(round, i)));
  }
  void view() {
    unsigned char three[3] = {};
    gpu_.check(gpu_.cuda().cuMemcpyDtoH_v2(three, buffer_.get(), sizeof three), "cuMemcpyDtoH");
    std::printf("Viewed from GPU: 0x%x 0x%x 0x%x\n", three[0], three[1], three[2]);
  }

  template <class Step>
  rate timed(const Step& step) {
    rate out;
    out.bytes = static_cast<double>(options_.all_bytes());
    // Warm-up: mappings, pinning; memory and disk that are used for the first time, which the second put still does, as the
    // first one's value is there.
    for (int i = 0; i < 3; ++i) step();
    for (std::int64_t i = 0; i < options_.rounds; ++i) {
      const std::uint64_t begin = monotonic_ns();
      step();
      out.ns.push_back(static_cast<double>(monotonic_ns() - begin));
    }
    return out;
  }
  rate puts() {
    return timed([&] { put_ = put(); });
  }
  store_client::reply put() {
    store_client::put_request options;
    options.level = durability_option(options_.level);
    if (options_.values > 1) return run_batch(store_protocol::opcode::batch_put, options.level);
    return must(store_->run(store_->make_put(pool_, "key0", mine_, options)));
  }
  store_client::reply get() {
    if (options_.values > 1) return run_batch(store_protocol::opcode::batch_get, std::nullopt);
    return must(store_->run(store_->make_get(pool_, "key0", mine_, {})));
  }
  // All values by one call; the answer is the last one's, of all bytes.
  store_client::reply run_batch(store_protocol::opcode op, std::optional<store_protocol::durability> level) {
    for (auto& one : entries_) one.level = level;
    auto replies = store_->run_batch(op, pool_, entries_);
    std::uint64_t moved_bytes = 0;
    for (auto& one : replies) {
      if (one.status != 0) return must(std::move(one));
      moved_bytes += one.moved_bytes;
    }
    replies.back().moved_bytes = moved_bytes;
    return std::move(replies.back());
  }
  rate gets() {
    const rate out = timed([&] {
      get_ = get();
      if (get_.moved_bytes != options_.all_bytes()) throw tool_failure("a get returned fewer bytes than were put");
    });
    verify(0, "get after the rounds");
    // Repeats with new bytes, from end to end.
    fill(1);
    put();
    gpu_.check(gpu_.cuda().cuMemsetD8_v2(buffer_.get(), 0, options_.all_bytes()), "cuMemsetD8");
    gpu_.synchronize();
    get();
    verify(1, "put and get of new bytes");
    fill(0);
    return out;
  }
  // The copy engine's own rate to and from pinned memory of this process.
  rate link(copy::direction way) {
    const auto host = copy::address_of(host_.data());
    return timed([&] {
      if (way == copy::direction::to_host)
        gpu_.check(gpu_.cuda().cuMemcpyDtoHAsync_v2(copy::host_pointer(host), buffer_.get(), options_.all_bytes(), nullptr),
                   "cuMemcpyDtoHAsync");
      else
        gpu_.check(gpu_.cuda().cuMemcpyHtoDAsync_v2(buffer_.get(), copy::host_pointer(host), options_.all_bytes(), nullptr),
                   "cuMemcpyHtoDAsync");
      gpu_.check(gpu_.cuda().cuStreamSynchronize(nullptr), "cuStreamSynchronize");
    });
  }

  void row(result_file& results, const char* direction, const rate& took, const rate& limit,
           const store_client::reply& got) {
    nlohmann::json one = latency_fields(took.ns);
    one["kind"] = "transfer";
    one["direction"] = direction;
    one["size_bytes"] = options_.bytes;
    one["values"] = options_.values;
    one["path"] = store_protocol::name_of(got.result.way);
    one["durability"] = store_protocol::name_of(got.result.reached);
    one["bandwidth_gb_per_s"] = took.gb_per_s();
    one["link_gb_per_s"] = limit.gb_per_s();
    one["ratio_to_link"] = took.gb_per_s() / limit.gb_per_s();
    results.add_row(one);
    std::printf("%-4s %8.2f GB/s %8.2f GiB/s  %5.1f %% of the link's %.2f GB/s  path %s, %s\n", direction, took.gb_per_s(),
                took.gib_per_s(), 100 * took.gb_per_s() / limit.gb_per_s(), limit.gb_per_s(),
                store_protocol::name_of(got.result.way), store_protocol::name_of(got.result.reached));
  }
  void tell(const rate& put, const rate& get, result_file& results) {
    const rate outbound = link(copy::direction::to_host), inbound = link(copy::direction::to_device);
    fill(0);
    std::printf("verified: every byte, of both values\n");
    row(results, "put", put, outbound, put_);
    row(results, "get", get, inbound, get_);
    if (const std::string reason = store_->why_not_pinned(); !reason.empty())
      results.add_note("arena not pinned: " + reason);
    std::printf("end of gpu direct demo\n");
  }

  const demo_options& options_;
  const tools::gpu_session& gpu_;
  tools::planner_session& copies_;
  tools::device_memory buffer_;
  tools::host_memory host_;
  std::unique_ptr<store_client::client> store_;
  store_client::memory mine_;
  std::vector<std::string> keys_;                   // of several values
  std::vector<store_client::batch_entry> entries_;  // of a call: an application has its keys and places at hand
  std::uint32_t pool_ = 0;
  store_client::reply put_, get_;
};

}  // namespace

int run_gpu_direct_demo(const tools::invocation& call) {
  demo_options options;
  tools::command_parser parser(
      call, "MCAS's GPU-direct example: puts a GPU buffer into the store and gets it back, timed and verified");
  parser.text("--server", "SOCKET|HOST:PORT", options.server,
              "The store: path of its socket or HOST:PORT [start a temporary server]");
  parser.integer("--debug", options.debug, 0, 3, "Accepted as in MCAS; without effect");
  parser.integer("--patience", "SECONDS", options.timeout_s, 1, 3600, "Timeout of one operation");
  parser.text("--device", "NAME", options.device,
              "Accepted as in MCAS; without effect: copies on one host need no network device");
  parser.size("--size", options.bytes, "Size of the buffer");
  parser.integer("--values", options.values, 1, 1 << 20,
                 "Number of values of that size; one call puts all, one call gets all");
  parser.integer("--rounds", options.rounds, 1, 100'000, "Number of timed puts, and of timed gets");
  parser.text("--pool", "NAME", options.pool, "Pool for the values; clients that run at the same time need separate pools");
  parser.text("--durability", "volatile|logged|durable", options.level,
              "What the puts survive: volatile, logged or durable [volatile]");
  add(parser, options.target);
  parser.common(options.common);
  if (const auto code = parser.parse()) return *code;
  if (!options.server.empty())
    (options.server.find('/') != std::string::npos ? options.target.socket : options.target.connect) = options.server;
  options.target.timeout_ms = options.timeout_s * 1000;
  std::optional<own_server> own;
  if (options.target.socket.empty() && options.target.connect.empty() && is_unserved(options.target.data)) {
    // Room for two values, and for the new version of one while the old one is still there.
    const std::uint64_t arena = std::max<std::uint64_t>(64u << 20, 4 * options.all_bytes());
    const std::uint64_t chunk = arena >= (256u << 20) ? 256u << 20 : 16u << 20;
    std::vector<std::string> more = {"--arena", std::to_string(arena), "--chunk", std::to_string(chunk)};
    // Its threads poll the channels: the default on few CPUs is to sleep.
    if (options.target.require == "gpu-direct") more.insert(more.end(), {"--spin-us", "50"});
    own.emplace(options.target.data, more);
    options.target.socket = own->socket();
  }
  tools::report report(call, options.common, "store gpu-direct-demo");  // first: it moves the text off standard output
  const tools::gpu_session gpu(options.common.gpu, false);
  report.describe(&gpu, nullptr, tools::place_thread(options.common, gpu.bus_id(), gpu.simulated()));
  report.file().set_parameter("size_bytes", options.bytes);
  report.file().set_parameter("values", options.values);
  report.file().set_parameter("rounds", options.rounds);
  report.file().set_parameter("durability", options.level);
  {
    tools::planner_session copies(gpu);
    demo(options, gpu, copies).run(report.file());
  }
  report.write();
  return tools::kExitOk;
}

}  // namespace pl::store_tools
