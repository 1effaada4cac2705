// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "base/text.hpp"
#include "tools/common/tool.hpp"
#include "tools/common/word_list.hpp"
#include "tools/triggered/arguments.hpp"
#include "tools/triggered/collectives.hpp"
#include "tools/triggered/commands.hpp"
#include "tools/triggered/ranks.hpp"

namespace pl::async {
namespace {

using collectives::element;

std::vector<stream_collective> kinds_in(const std::string& text) {
  std::vector<stream_collective> out;
  for (const auto& word : tools::split_list(text)) {
    bool is_known = false;
    for (const auto kind : {stream_collective::all_reduce, stream_collective::reduce_scatter, stream_collective::all_gather,
                            stream_collective::all_to_all})
      if (word == name_of(kind)) out.push_back(kind), is_known = true;
    if (!is_known)
      throw tools::tool_failure(
          format("--kinds: \"%s\" is not one of all_reduce, reduce_scatter, all_gather, all_to_all", word.c_str()));
  }
  return out;
}

element type_in(const std::string& text) {
  for (const auto type : {element::float32, element::float16, element::bfloat16, element::float64, element::int32})
    if (text == collectives::name_of(type)) return type;
  throw tools::tool_failure(format("--type: \"%s\" is not one of float32, float16, bfloat16, float64, int32", text.c_str()));
}

}  // namespace

int run_collectives_command(const tools::invocation& call) {
  collectives_plan plan;
  rank_plan ranks;
  std::string kinds = "all_reduce", sizes = "8,1K,4K,16K,64K,256K,1M,4M,16M,64M,256M", contenders = "ours", type = "float32",
              gpus;
  std::int64_t repeats = plan.repeats, calls = plan.calls, count = 2, blocks = 0, slot_kib = 0, depth = 0, small_kib = 0;
  tools::command_parser parser(call, "Measures collectives that streams execute, queued and as graphs, beside NCCL's.");
  parser.text("--kinds", "LIST", kinds, "collectives, comma-separated: all_reduce, reduce_scatter, all_gather, all_to_all");
  parser.text("-s,--sizes", "SIZE,...", sizes, "bytes of the larger side, comma-separated, K/M/G allowed");
  parser.text("--via", "LIST", contenders, "contenders, comma-separated: ours, nccl");
  parser.text("--type", "NAME", type, "type of the elements: float32, float16, bfloat16, float64, int32");
  parser.integer("-n,--ranks", count, 2, collectives::kMaxStreamRanks, "processes");
  parser.text("--gpus", "N,...", gpus, "ordinals of the ranks' GPUs, comma-separated");
  parser.integer("-r,--repeats", repeats, 1, 100'000, "repetitions of each contender, interleaved");
  parser.integer("-i,--iterations", calls, 1, 1000, "calls in a repetition; a quarter of them above 1 MiB");
  parser.integer("--blocks", blocks, 0, collectives::kMaxStreamBlocks, "maximum number of blocks of a kernel (0: default)");
  parser.integer("--slot-kib", slot_kib, 0, 16384, "chunk size of large collectives in KiB (0: default)");
  parser.integer("--depth", depth, 0, 64, "chunks of a block in flight (0: default)");
  parser.integer("--small-kib", small_kib, 0, 1 << 20, "largest size in KiB that counts as small (0: default)");
  parser.common(ranks.common, false);
  if (const auto code = parser.parse()) return *code;
  tools::smaller_run smaller(parser);
  smaller.number("--repeats", repeats, 3);
  smaller.number("--iterations", calls, 4);
  smaller.text("--sizes", sizes, "8,1K,16K,256K,1M");
  plan.kinds = kinds_in(kinds);
  plan.sizes = sizes_in("--sizes", sizes);
  plan.type = type_in(type);
  plan.has_ours = plan.has_nccl = false;
  for (const auto& word : tools::split_list(contenders)) {
    if (word == "ours") plan.has_ours = true;
    else if (word == "nccl") plan.has_nccl = true;
    else throw tools::tool_failure(format("--via: \"%s\" is not one of ours, nccl", word.c_str()));
  }
  plan.repeats = static_cast<int>(repeats);
  plan.calls = static_cast<int>(calls);
  plan.options.blocks = static_cast<unsigned>(blocks);
  plan.options.slot_bytes = static_cast<std::size_t>(slot_kib) << 10;
  plan.options.depth = static_cast<unsigned>(depth);
  plan.options.small_bytes = static_cast<std::size_t>(small_kib) << 10;
  ranks.ranks = static_cast<int>(count);
  if (!gpus.empty()) ranks.gpus = integers_in("--gpus", gpus, 0, 1023);
  ranks.window_bytes = *std::max_element(plan.sizes.begin(), plan.sizes.end());
  return run_ranks(call, ranks, [&](bench_rank& session, result_file* file) {
    if (file != nullptr) {
      file->set_parameter("ranks", count);
      file->set_parameter("repeats", plan.repeats);
      file->set_parameter("calls", plan.calls);
      file->set_parameter("type", type);
    }
    return run_collectives(session, plan, file);
  });
}

}  // namespace pl::async
