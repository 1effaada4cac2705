// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/kernel_put.hpp"

#include <algorithm>
#include <cstdio>
#include <cstring>
#include <memory>
#include <string>

#include "base/clock.hpp"
#include "base/statistics.hpp"
#include "base/text.hpp"
#include "cuda/kernel_image.hpp"
#include "device/session.hpp"
#include "kernel_put_image.hpp"
#include "tools/common/tool.hpp"

namespace pl::async {
namespace {

constexpr const char* kScopes[] = {"thread", "warp", "block"};
constexpr unsigned kBlockThreads = 128;
constexpr std::uint64_t kMemoryBytes = std::uint64_t{64} << 20;

class put_bench {
 public:
  put_bench(const tools::gpu_session& gpu, const kernel_put_plan& plan, result_file* file)
      : gpu_(gpu),
        plan_(plan),
        file_(file),
        bytes_(std::max<std::uint64_t>(std::min(kMemoryBytes, gpu.simulated() ? kMemoryBytes / 16 : kMemoryBytes),
                                       *std::max_element(plan.sizes.begin(), plan.sizes.end()))),
        source_(gpu, bytes_),
        device_(gpu, bytes_),
        words_(gpu, 65536),
        host_(gpu, bytes_),
        stream_(gpu) {
    device::session_options wanted;
    wanted.device_ordinal = gpu.ordinal();
    session_ = tools::must(device::session::open(gpu.cuda(), wanted));
    module_ = tools::must(cu::load_kernels(gpu.cuda(), kernels::kernel_put()));
    source_window_ = tools::must(session_->add_window(source_.get(), bytes_));
    destinations_[0] = tools::must(session_->add_window(device_.get(), bytes_));
    destinations_[1] = tools::must(session_->add_window(reinterpret_cast<std::uint64_t>(host_.data()), bytes_));
    word_ = tools::must(session_->add_window(words_.get(), 4096));
    pattern_.resize(bytes_);
    for (std::size_t i = 0; i < pattern_.size(); ++i) pattern_[i] = static_cast<unsigned char>(i * 131 + (i >> 8) * 7);
    check(gpu.cuda().cuMemcpyHtoD_v2(source_.get(), pattern_.data(), bytes_), "cuMemcpyHtoD");
    check(gpu.cuda().cuMemsetD8_v2(words_.get(), 0, 65536), "cuMemsetD8");
    gpu.synchronize();
  }
  ~put_bench() {
    session_.reset();
    static_cast<void>(gpu_.cuda().cuModuleUnload(module_));
  }

  int all() {
    const std::string backend =
        session_->why_proxy().empty() ? "a copy engine" : "the CPU's proxy: " + session_->why_proxy();
    std::printf("# executed by %s\n", backend.c_str());
    if (file_ != nullptr) {
      file_->set_parameter("carried_out_by", session_->why_proxy().empty() ? "copy engine" : "proxy");
    }
    latencies();
    rates();
    if (file_ != nullptr && is_wrong_) file_->set_pass(false);
    return is_wrong_ ? tools::kExitFailed : tools::kExitOk;
  }

 private:
  static constexpr const char* kPlaces[] = {"device", "host"};

  void check(cu::result_t code, const char* step) const { gpu_.check(code, step); }

  template <class... Args>
  void launch(const char* name, unsigned blocks, unsigned threads, Args... args) {
    cu::function_t function = nullptr;
    check(gpu_.cuda().cuModuleGetFunction(&function, module_, name), name);
    void* parameters[] = {&args...};
    check(gpu_.cuda().cuLaunchKernel(function, blocks, 1, 1, threads, 1, 1, 0, stream_.get(), parameters, nullptr), name);
    check(gpu_.cuda().cuStreamSynchronize(stream_.get()), name);
  }

  std::int64_t answer(std::size_t place) {
    std::int64_t out = 0;
    check(gpu_.cuda().cuMemcpyDtoH_v2(&out, answers() + place * sizeof out, sizeof out), "cuMemcpyDtoH");
    if (out < 0) {
      const auto now = session_->ring(0).read();
      throw tools::tool_failure(format("a kernel's put was answered with %lld%s%s", static_cast<long long>(out),
                                       now.reason ? ": " : "", now.reason ? now.reason->message.c_str() : ""));
    }
    return out;
  }
  cu::device_ptr answers() const { return words_.get() + 4096; }

  void clear(std::size_t place) {
    if (place == 1) std::memset(host_.data(), 0xee, bytes_);
    else check(gpu_.cuda().cuMemsetD8_v2(device_.get(), 0xee, bytes_), "cuMemsetD8");
    gpu_.synchronize();
  }
  void verify(std::size_t place, std::uint64_t bytes, const std::string& step) {
    std::vector<unsigned char> got(bytes);
    if (place == 1) std::memcpy(got.data(), host_.data(), bytes);
    else check(gpu_.cuda().cuMemcpyDtoH_v2(got.data(), device_.get(), bytes), "cuMemcpyDtoH");
    if (std::equal(got.begin(), got.end(), pattern_.begin())) return;
    is_wrong_ = true;
    std::printf("WRONG bytes: %s\n", step.c_str());
  }

  void latencies() {
    std::printf("# put_signal until its word is seen, us (median of %d repetitions of %d puts)\n%-8s %9s %9s %9s %9s\n",
                plan_.repeats, plan_.rounds, "to", "bytes", kScopes[0], kScopes[1], kScopes[2]);
    for (std::size_t place = 0; place < 2; ++place)
      for (const auto bytes : plan_.sizes) {
        clear(place);
        std::printf("%-8s %9zu", kPlaces[place], bytes);
        for (unsigned scope = 0; scope < 3; ++scope) std::printf(" %9.2f", latency(place, bytes, scope) * 1e-3);
        std::printf("\n");
        std::fflush(stdout);
        verify(place, bytes, format("puts of %zu B to the %s", bytes, kPlaces[place]));
      }
  }

  double latency(std::size_t place, std::size_t bytes, unsigned scope) {
    std::vector<double> put_ns;
    const auto rounds = static_cast<unsigned>(plan_.rounds);
    for (int turn = 0; turn <= plan_.repeats; ++turn) {
      launch("kernel_put_latency", 1,
             scope == 0   ? 1
             : scope == 1 ? 32
                          : kBlockThreads,
             ring(), destinations_[place], source_window_, std::uint64_t{bytes}, word_, next_, rounds, scope,
             std::uint64_t{answers()});
      next_ += rounds;
      if (turn != 0) put_ns.push_back(static_cast<double>(answer(0)) / rounds);
    }
    const double middle_ns = summarize(put_ns).p50;
    if (file_ != nullptr) {
      const std::string series = format("latency %s %s %zu", kPlaces[place], kScopes[scope], bytes);
      file_->add_samples(series, put_ns);
      file_->add_row({{"series", series},
                      {"kind", "latency"},
                      {"to", kPlaces[place]},
                      {"scope", kScopes[scope]},
                      {"size_bytes", bytes},
                      {"put_ns_p50", middle_ns}});
    }
    return middle_ns;
  }

  void rates() {
    std::printf("# puts of all blocks, million a second (GB/s)\n%-8s %9s %7s %18s %18s %18s\n", "to", "bytes", "blocks",
                kScopes[0], kScopes[1], kScopes[2]);
    for (std::size_t place = 0; place < 2; ++place)
      for (const auto bytes : plan_.sizes)
        for (const int blocks : plan_.blocks) {
          if (std::uint64_t{bytes} * static_cast<unsigned>(blocks) > bytes_) continue;
          clear(place);
          std::printf("%-8s %9zu %7d", kPlaces[place], bytes, blocks);
          for (unsigned scope = 0; scope < 3; ++scope) {
            const double per_s = rate(place, bytes, blocks, scope);
            std::printf(" %9.3f (%6.2f)", per_s / 1e6, per_s * static_cast<double>(bytes) / 1e9);
          }
          std::printf("\n");
          std::fflush(stdout);
        }
  }

  double rate(std::size_t place, std::size_t bytes, int blocks, unsigned scope) {
    const std::uint64_t slice = bytes_ / static_cast<unsigned>(blocks) / bytes * bytes;
    const auto share = static_cast<std::uint64_t>(plan_.puts) / static_cast<unsigned>(blocks);
    const std::uint64_t most = std::max<std::uint64_t>(1, (std::uint64_t{4} << 30) / static_cast<unsigned>(blocks) / bytes);
    const auto count = static_cast<unsigned>(std::max<std::uint64_t>(32, std::min(share, most)) / 32 * 32);
    const std::uint64_t begin_ns = monotonic_ns();
    launch("kernel_put_rate", static_cast<unsigned>(blocks),
           scope == 0   ? 1u
           : scope == 1 ? 32u
                        : kBlockThreads,
           ring(), destinations_[place], source_window_, std::uint64_t{bytes}, slice, count, scope,
           std::uint64_t{answers()});
    const double seconds = static_cast<double>(monotonic_ns() - begin_ns) / 1e9;
    for (int i = 0; i < blocks; ++i) static_cast<void>(answer(static_cast<std::size_t>(i)));
    const std::uint64_t moved = std::min<std::uint64_t>(slice, std::uint64_t{count} * bytes);
    verify(place, moved,
           format("%d blocks of scope %s, puts of %zu B to the %s", blocks, kScopes[scope], bytes, kPlaces[place]));
    const double per_s = static_cast<double>(count) * blocks / seconds;
    if (file_ != nullptr)
      file_->add_row({{"series", format("rate %s %s %zu %d", kPlaces[place], kScopes[scope], bytes, blocks)},
                      {"kind", "rate"},
                      {"to", kPlaces[place]},
                      {"scope", kScopes[scope]},
                      {"size_bytes", bytes},
                      {"blocks", blocks},
                      {"puts_per_s", per_s},
                      {"bandwidth_gb_per_s", per_s * static_cast<double>(bytes) / 1e9}});
    return per_s;
  }

  const peerlane_device_ring& ring() const { return session_->ring(0).handle(); }

  const tools::gpu_session& gpu_;
  const kernel_put_plan plan_;
  result_file* const file_;
  const std::uint64_t bytes_;
  tools::device_memory source_, device_, words_;
  tools::host_memory host_;
  tools::gpu_stream stream_;
  std::unique_ptr<device::session> session_;
  cu::module_t module_ = nullptr;
  peerlane_device_window source_window_{}, destinations_[2]{}, word_{};
  std::vector<unsigned char> pattern_;
  unsigned next_ = 1;
  bool is_wrong_ = false;
};

}  // namespace

int run_kernel_put(const tools::gpu_session& gpu, const kernel_put_plan& plan, result_file* file) {
  return put_bench(gpu, plan, file).all();
}

}  // namespace pl::async
