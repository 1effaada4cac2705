// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/command_line.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstdio>
#include <cstdlib>

#include "base/text.hpp"
#include "tools/common/subcommand.hpp"
#include "tools/common/terminal.hpp"
#include "tools/common/word_list.hpp"
#include "tools/p2p/osu_text.hpp"

namespace pl::p2p {
namespace {

using tools::tool_failure;

constexpr std::size_t kMaxBytes = std::size_t{1} << 30;  // MPI counts are 31 bits

struct named_benchmark {
  const char *word, *program, *help;
  benchmark kind;
};
constexpr std::array kBenchmarks = {
    named_benchmark{"latency", "osu_latency", "half a round trip of one message", benchmark::latency},
    named_benchmark{"bw", "osu_bw", "a window of messages one way, then an answer", benchmark::bandwidth},
    named_benchmark{"bibw", "osu_bibw", "a window each way at once", benchmark::bidirectional},
    named_benchmark{"mbw_mr", "osu_mbw_mr", "bandwidth and message rate of several pairs", benchmark::multi_bandwidth},
    named_benchmark{"multi_lat", "osu_multi_lat", "latency of several pairs at once", benchmark::multi_latency},
    named_benchmark{"put_latency", "osu_put_latency", "one put to the other's window, complete there",
                    benchmark::put_latency},
    named_benchmark{"put_bw", "osu_put_bw", "a window of puts, then a flush", benchmark::put_bandwidth},
    named_benchmark{"get_latency", "osu_get_latency", "one get from the other's window", benchmark::get_latency},
    named_benchmark{"get_bw", "osu_get_bw", "a window of gets, then a flush", benchmark::get_bandwidth},
    named_benchmark{"fop_latency", "osu_fop_latency", "an atomic add that returns the old value", benchmark::fetch_latency},
    named_benchmark{"cas_latency", "osu_cas_latency", "an atomic compare and swap", benchmark::compare_latency},
    named_benchmark{"barrier", "osu_barrier", "returns once every process has come", benchmark::barrier},
    named_benchmark{"bcast", "osu_bcast", "rank 0's bytes to all", benchmark::broadcast},
    named_benchmark{"gather", "osu_gather", "a block of every process to rank 0", benchmark::gather},
    named_benchmark{"scatter", "osu_scatter", "a block of rank 0 to every process", benchmark::scatter},
    named_benchmark{"allgather", "osu_allgather", "a block of every process to all", benchmark::all_gather},
    named_benchmark{"reduce", "osu_reduce", "sums of float32, at rank 0", benchmark::reduce},
    named_benchmark{"allreduce", "osu_allreduce", "sums of float32, at all", benchmark::all_reduce},
    named_benchmark{"reduce_scatter", "osu_reduce_scatter", "sums of float32, a part at each", benchmark::reduce_scatter},
    named_benchmark{"alltoall", "osu_alltoall", "a block of each process to each", benchmark::all_to_all},
    named_benchmark{"alltoallv", "osu_alltoallv", "the same, with a length for each", benchmark::all_to_all_v},
};

// Options that stay text until everything is known.
struct raw_options {
  std::string sizes, buffers = "single", accelerator, format = "7.0", libraries = "ours", percentiles, gpus, launch = "auto";
  std::vector<std::string> places;
  std::int64_t iterations = -1, warm_up = -1, window = kWindow, validation_warm_up = kValidationWarmUp, pairs = 0;
  std::int64_t vary_window = 0, print_rate = 1, batches = 1, rotate = 1, processes = 2;
  std::uint64_t memory_limit = kMemoryLimitBytes;
};

std::size_t size_in(const std::string& text) {
  const auto size = parse_size(text);
  if (!size || *size > kMaxBytes) throw tool_failure(format("-m: \"%s\" is not a size of at most 1G", text.c_str()));
  return *size;
}

void read_sizes(const std::string& text, settings& parsed) {
  if (is_collective(parsed.kind)) parsed.max_bytes = kMaxCollectiveBytes;
  if (text.empty()) return;
  const auto colon = text.find(':');
  const std::string low = colon == std::string::npos ? "" : text.substr(0, colon);
  const std::string high = colon == std::string::npos ? text : text.substr(colon + 1);
  if (!low.empty()) parsed.min_bytes = size_in(low);
  if (!high.empty()) parsed.max_bytes = size_in(high);
  if (parsed.min_bytes.value_or(0) > parsed.max_bytes)
    throw tool_failure(format("-m %s: the smallest size is above the largest", text.c_str()));
  if (!is_latency(parsed.kind) && (parsed.min_bytes == 0u || parsed.max_bytes == 0))
    throw tool_failure("-m: bandwidths begin at 1 byte");
}

memory_kind kind_in(const std::string& text) {
  if (text == "H") return memory_kind::host;
  if (text == "D") return memory_kind::device;
  if (text == "MD" || text == "M") return memory_kind::managed_device;
  if (text == "MH") return memory_kind::managed_host;
  throw tool_failure(format("\"%s\" is not a kind of memory: use H, D, MD or MH", text.c_str()));
}

void read_places(const raw_options& raw, settings& parsed) {
  if (!raw.accelerator.empty() && raw.accelerator != "cuda" && raw.accelerator != "managed")
    throw tool_failure(format("-d %s: cuda or managed", raw.accelerator.c_str()));
  if (raw.accelerator == "managed") parsed.source = parsed.destination = memory_kind::managed_device;
  if (raw.places.size() == 1 || raw.places.size() > 2) throw tool_failure("name both sides' memory: D D, H D, ...");
  if (raw.places.size() == 2) {
    parsed.source = kind_in(raw.places[0]);
    parsed.destination = kind_in(raw.places[1]);
  }
  parsed.names_accelerator = !raw.accelerator.empty() || parsed.needs_gpu();
}

arm arm_in(const std::string& text) {
  for (const arm one : {arm::ours, arm::ucx, arm::mpi, arm::shim, arm::nccl})
    if (text == to_string(one)) return one;
  throw tool_failure(format("--via: \"%s\" is not one of ours, ucx, mpi, shim, nccl", text.c_str()));
}

void read_lists(const raw_options& raw, settings& parsed) {
  parsed.arms.clear();
  for (const auto& word : tools::split_list(raw.libraries)) {
    const arm one = arm_in(word);
    if (std::find(parsed.arms.begin(), parsed.arms.end(), one) != parsed.arms.end())
      throw tool_failure(format("--via names %s twice", word.c_str()));
    parsed.arms.push_back(one);
  }
  if (!raw.percentiles.empty())
    for (const auto& word : tools::split_list(raw.percentiles)) {
      char* end = nullptr;
      const double value = std::strtod(word.c_str(), &end);
      if (word.empty() || *end != '\0' || !(value > 0 && value <= 100))
        throw tool_failure(format("--pct: \"%s\" is not a percentage above 0", word.c_str()));
      parsed.percentiles.push_back(value);
    }
  if (!raw.gpus.empty())
    for (const auto& word : tools::split_list(raw.gpus)) {
      const auto value = parse_integer(word);
      if (!value || *value < 0 || *value > 1023)
        throw tool_failure(format("--gpus: \"%s\" is not a GPU number", word.c_str()));
      parsed.gpus.push_back(static_cast<int>(*value));
    }
}

void read_launch(const raw_options& raw, settings& parsed) {
  using kind = settings::launch_kind;
  if (raw.launch == "auto") parsed.launch = kind::automatic;
  else if (raw.launch == "fork") parsed.launch = kind::fork;
  else if (raw.launch == "env") parsed.launch = kind::environment;
  else throw tool_failure(format("--launch %s: auto, fork or env", raw.launch.c_str()));
  if (!parsed.listen.empty() && !parsed.peer.empty())
    throw tool_failure("--listen is for one machine and --peer for the other");
}

void read_formats(const raw_options& raw, settings& parsed) {
  if (raw.format == "7.0") parsed.format = osu_format::v7_0;
  else if (raw.format == "7.5") parsed.format = osu_format::v7_5;
  else throw tool_failure(format("--osu-format %s: 7.0 or 7.5", raw.format.c_str()));
  if (raw.buffers != "single" && raw.buffers != "multiple")
    throw tool_failure(format("-b %s: single or multiple", raw.buffers.c_str()));
  parsed.multiple_buffers = raw.buffers == "multiple";
}

// Managed memory migrates as a whole, so with one buffer for the window only its first message would count.
void settle_buffers(settings& parsed) {
  const auto is_managed = [](memory_kind kind) { return needs_gpu(kind) && kind != memory_kind::device; };
  if (is_latency(parsed.kind)) parsed.multiple_buffers = false;
  else if ((is_managed(parsed.source) || is_managed(parsed.destination)) && !parsed.multiple_buffers)
    parsed.multiple_buffers = true;
}

void check_together(const settings& asked) {
  if (asked.vary_window && asked.kind != benchmark::multi_bandwidth) throw tool_failure("-V is for mbw_mr");
  if (asked.vary_window && (asked.arms.size() > 1 || !asked.percentiles.empty() || asked.batches > 1))
    throw tool_failure("-V has a table of its own: it goes with one library and without --pct and --batches");
  if (asked.asks_for(arm::nccl)) {
    if (!needs_gpu(asked.source) || !needs_gpu(asked.destination))
      throw tool_failure("--via nccl: NCCL does not support host memory, so use D or MD for both sides");
    if (asked.min_bytes == 0u || asked.max_bytes == 0)
      throw tool_failure("--via nccl: NCCL sends no empty messages: -m 1:...");
  }
  if (is_one_sided(asked.kind)) {
    if (asked.asks_for(arm::mpi) || asked.asks_for(arm::shim) || asked.asks_for(arm::nccl))
      throw tool_failure("put, get and atomics are measured --via ours and ucx");
    if (asked.destination != memory_kind::host && asked.destination != memory_kind::device)
      throw tool_failure("the window of a one-sided test is host memory or GPU memory: H H, D H, H D or D D");
    if (asked.cold || asked.rotate > 1 || asked.consume || asked.stage || asked.multiple_buffers)
      throw tool_failure("--cold, --rotate, --consume, --stage and -b multiple are for messages between two processes");
    if (asked.destination == memory_kind::device && asked.asks_for(arm::ucx))
      throw tool_failure("a window of GPU memory is measured --via ours");
  }
  if (is_collective(asked.kind)) {
    if (asked.asks_for(arm::ucx) || asked.asks_for(arm::nccl))
      throw tool_failure("collectives are measured --via ours, mpi and shim");
    if (asked.cold || asked.rotate > 1 || asked.consume || asked.stage)
      throw tool_failure("--cold, --rotate, --consume and --stage are for messages between two processes");
    if (asked.source != asked.destination) throw tool_failure("a collective has one kind of memory: H H or D D");
    if (has_elements(asked.kind) && asked.min_bytes.value_or(sizeof(float)) % sizeof(float) != 0)
      throw tool_failure("-m: the sizes of reductions are multiples of 4 bytes (float32)");
  }
  if (asked.cold && asked.rotate > 1)
    throw tool_failure("--cold uses new memory each time, so --rotate has no buffers to rotate");
}

// As OSU does: sizes above the limit are left out, with a notice.
void respect_memory_limit(settings& parsed) {
  const std::size_t windows = parsed.vary_window ? kVariedWindows[std::size(kVariedWindows) - 1] : parsed.window;
  const std::size_t buffers =
      2 * (parsed.multiple_buffers ? windows : 1) * static_cast<std::size_t>(std::max(1, parsed.rotate));
  const std::size_t fits = parsed.memory_limit_bytes / buffers;
  if (parsed.max_bytes <= fits) return;
  std::fprintf(stderr, "note: %zu buffers of %s exceed the limit of %s (-M): the largest size is %zu\n", buffers,
               format_size(parsed.max_bytes).c_str(), format_size(parsed.memory_limit_bytes).c_str(), fits);
  parsed.max_bytes = fits;
  if (parsed.min_bytes.value_or(0) > fits) throw tool_failure("-m: the smallest size is above the memory limit (-M)");
}

void add_osu_options(tools::command_parser& parser, raw_options& raw, settings& parsed) {
  parser.text("-m,--message-size", "[MIN:]MAX", raw.sizes,
              "Message sizes [MIN:]MAX in bytes; each is twice the previous one [0 or 1 to 4M; collectives: to 1M]");
  parser.integer("-i,--iterations", raw.iterations, 1, 1'000'000'000,
                 "Timed iterations at every size [OSU's: fewer above 8 KiB]");
  parser.integer("-x,--warmup", raw.warm_up, 0, 1'000'000'000, "Untimed iterations before them [OSU's]");
  parser.integer("-W,--window-size", raw.window, 1, kMaxWindow, "Number of messages in flight (bandwidths)");
  parser.text("-b,--buffer-num", "single|multiple", raw.buffers,
              "single: one buffer for the window; multiple: one for each message [single]");
  parser.flag("-c,--validation", parsed.validate, "Check every byte; prints Pass or Fail");
  parser.integer("-u,--warmup-validation", raw.validation_warm_up, 0, kMaxValidationWarmUp,
                 "Untimed exchanges in each validated iteration");
  parser.text("-d,--accelerator", "cuda|managed", raw.accelerator, "Device memory: cuda, or managed (both sides MD)");
  parser.flag("-f,--full", parsed.full, "Also print minimum, maximum and iterations (latencies)");
  parser.size("-M,--mem-limit", raw.memory_limit, "Memory for buffers");
  parser.integer("-p,--num-pairs", raw.pairs, 1, 1'000'000, "Pairs (mbw_mr, multi_lat); 0: half of the processes");
  parser.integer("-V,--vary-window", "0|1", raw.vary_window, 0, 1, "1: measure windows of 1 to 128 messages (mbw_mr)");
  parser.integer("-R,--print-rate", "0|1", raw.print_rate, 0, 1, "0: do not print the message rate (mbw_mr)");
  parser.words("memory", "H|D|MD|MH", raw.places, "Memory of rank 0 and of rank 1: H, D, MD, MH [H H]");
}

void add_own_options(tools::command_parser& parser, raw_options& raw, settings& parsed) {
  parser.text("--osu-format", "VERSION", raw.format, "Print like this version of the OSU benchmarks: 7.0 or 7.5 [7.0]");
  parser.text("--via", "LIST", raw.libraries,
              "ours, ucx, mpi, shim, nccl; several, with commas, are compared in interleaved runs [ours]");
  parser.flag("--stage", parsed.stage, "ucx, mpi: copy device memory through the host; the time includes this");
  parser.text("--pct", "PERCENT,...", raw.percentiles, "Print percentiles of the iterations, for example 50,99,99.9");
  parser.integer("--batches", raw.batches, 1, 100'000, "Repeat each size; prints the median, lowest and highest");
  parser.flag("--cold", parsed.cold, "Allocate new memory in each iteration");
  parser.integer("--rotate", raw.rotate, 1, 100'000, "Number of buffers that are used in turn");
  parser.flag("--consume", parsed.consume, "The receiver's GPU (or CPU) reads the data; the time includes this");
  parser.flag("--show-plan", parsed.show_plan, "Print which transport carries the messages");
  parser.text("--gpus", "N,...", raw.gpus, "GPU of each local rank, for example 0,1 [local rank modulo number of GPUs]");
  parser.text("--launch", "auto|fork|env", raw.launch,
              "fork: local processes; env: those of mpirun or srun; auto: env under a launcher, else fork [auto]");
  parser.integer("-n,--processes", raw.processes, 2, 128, "Number of processes for --launch fork");
  parser.text("--listen", "[ADDRESS:]PORT", parsed.listen,
              "Run as rank 0 of two, and wait at this port for rank 1 (--peer)");
  parser.text("--peer", "HOST:PORT", parsed.peer, "Run as rank 1 of two, and connect to rank 0 (--listen)");
  parser.text("--cpu", "auto|none|LIST", parsed.common.cpu,
              "CPU binding: auto (near the GPU), none, or CPUs, one list item for each local rank [auto]");
  parser.common(parsed.common, false);
}

void settle(const raw_options& raw, settings& parsed) {
  read_formats(raw, parsed);
  read_sizes(raw.sizes, parsed);
  read_places(raw, parsed);
  read_lists(raw, parsed);
  read_launch(raw, parsed);
  if (raw.iterations >= 0) parsed.iterations = static_cast<int>(raw.iterations);
  if (raw.warm_up >= 0) parsed.warm_up = static_cast<int>(raw.warm_up);
  parsed.window = static_cast<int>(raw.window);
  parsed.validation_warm_up = static_cast<int>(raw.validation_warm_up);
  parsed.pairs = static_cast<int>(raw.pairs);
  parsed.vary_window = raw.vary_window != 0;
  parsed.print_rate = raw.print_rate != 0;
  parsed.batches = static_cast<int>(raw.batches);
  parsed.rotate = static_cast<int>(raw.rotate);
  parsed.processes = static_cast<int>(raw.processes);
  parsed.memory_limit_bytes = raw.memory_limit;
  settle_buffers(parsed);
  check_together(parsed);
  respect_memory_limit(parsed);
}

void print_benchmarks(FILE* out) {
  std::fputs("usage: peerlane p2p BENCHMARK [options] [H|D|MD|MH H|D|MD|MH]\n\nbenchmarks:\n", out);
  for (const auto& one : kBenchmarks) std::fprintf(out, "  %-14s  %-18s  %s\n", one.word, one.program, one.help);
  std::fputs("\npeerlane p2p BENCHMARK -h lists the options.\n", out);
}

}  // namespace

std::optional<benchmark> benchmark_of_program(const std::string& name) {
  for (const auto& one : kBenchmarks)
    if (name == one.program) return one.kind;
  return std::nullopt;
}

namespace {

void print_facts(const tools::invocation& call) {
  for (const auto& one : kBenchmarks) {
    auto& inner = call.facts->commands.emplace_back();
    inner.name = one.word;
    inner.help = one.help;
    inner.drop_in = one.program;
    tools::invocation asked = call;
    asked.arguments = {one.word};
    asked.facts = &inner;
    parse_command(asked);
  }
}

std::string hint(const std::string& word) {
  std::vector<std::string> names;
  for (const auto& one : kBenchmarks) names.emplace_back(one.word);
  return tools::did_you_mean(word, names);
}

}  // namespace

parsed_command parse_command(const tools::invocation& call) {
  parsed_command out;
  if (call.facts != nullptr && call.arguments.empty()) {
    print_facts(call);
    out.exit_code = tools::kExitOk;
    return out;
  }
  tools::invocation rest = call;
  const auto by_name = benchmark_of_program(call.program);
  const auto is_version = [](const std::string& one) { return one == "-v" || one == "--version"; };
  if (by_name) {
    out.asked.kind = *by_name;
    if (std::any_of(call.arguments.begin(), call.arguments.end(), is_version)) {
      std::fputs(osu_version(out.asked).c_str(), stdout);
      out.exit_code = tools::kExitOk;
      return out;
    }
  } else {
    const std::string word = call.arguments.empty() ? "" : call.arguments.front();
    const auto found =
        std::find_if(kBenchmarks.begin(), kBenchmarks.end(), [&](const auto& one) { return word == one.word; });
    if (found == kBenchmarks.end()) {
      const bool help = word == "-h" || word == "--help";
      if (!help && !word.empty())
        std::fprintf(stderr, "peerlane p2p: unknown benchmark \"%s\"%s; peerlane p2p -h lists them\n",
                     tools::without_controls(word).c_str(), hint(word).c_str());
      else print_benchmarks(help ? stdout : stderr);
      out.exit_code = help ? tools::kExitOk : tools::kExitFailed;
      return out;
    }
    out.asked.kind = found->kind;
    rest.program += " " + word;
    rest.arguments.erase(rest.arguments.begin());
  }
  raw_options raw;
  tools::command_parser parser(rest,
                               "Measures messages between the buffers of two processes, like the OSU micro-benchmarks");
  add_osu_options(parser, raw, out.asked);
  add_own_options(parser, raw, out.asked);
  out.exit_code = parser.parse();
  if (!out.exit_code) settle(raw, out.asked);
  return out;
}

}  // namespace pl::p2p
