// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/transfer_check.hpp"

#include "base/checked_math.hpp"
#include "base/text.hpp"

namespace pl::bandwidth {
namespace {

bool is_gpu(const memory_view& view) { return view.where.what == place::kind::gpu; }

bool overlap(const memory_view& a, std::uint64_t a_bytes, const memory_view& b, std::uint64_t b_bytes) {
  return a.address < b.address + b_bytes && b.address < a.address + a_bytes;
}

failure refuse(const bound_transfer& what, const std::string& why) { return failure{EINVAL, describe(what) + ": " + why}; }

status check_view(const gpu_set& gpus, const bound_transfer& what, const memory_view& view) {
  if (view.address == 0 || view.bytes < what.bytes)
    return refuse(what, format("its buffer %s has %s", to_string(view.where).c_str(), format_size(view.bytes).c_str()));
  if (!is_gpu(view)) return {};
  if (view.where.index < 0 || view.where.index >= gpus.count())
    return refuse(what, format("no GPU %d: there are %d", view.where.index, gpus.count()));
  return {};
}

status check_kernel_reach(const gpu_set& gpus, const bound_transfer& what, const memory_view& view) {
  if (!view.gpu_reachable)
    return refuse(what, "kernels do not reach pageable memory: use pinned memory, or the copy engines (CE)");
  if (is_gpu(view) && !gpus.can_access(what.by.gpu, view.where.index))
    return refuse(what,
                  format("GPU %d cannot access the memory of GPU %d: use the copy engines (CE), which go through the host",
                         what.by.gpu, view.where.index));
  return {};
}

status check_one(const gpu_set& gpus, const bound_transfer& what) {
  if (what.bytes < 4) return refuse(what, "4 bytes are the least");
  if (what.by.gpu < 0 || what.by.gpu >= gpus.count())
    return refuse(what, format("no GPU %d: there are %d", what.by.gpu, gpus.count()));
  for (const auto* view : {&what.source, &what.destination})
    if (auto good = check_view(gpus, what, *view); !good) return good;
  if (overlap(what.source, what.bytes, what.destination, what.bytes))
    return refuse(what, "source and destination overlap: give them different memory");
  if (what.is_multicast && (what.by.what != executor_kind::sm || what.bytes % 4 != 0))
    return refuse(what, "multicast objects take whole words of 4 bytes, from kernels only");
  const bool one_side_is_host = is_gpu(what.source) != is_gpu(what.destination);
  if (!is_gpu(what.source) && !is_gpu(what.destination) && what.by.what != executor_kind::sm)
    return refuse(what, "both sides are host memory: only SM copies that");
  switch (what.by.what) {
    case executor_kind::ce:
      return {};
    case executor_kind::sm:
      for (const auto* view : {&what.source, &what.destination})
        if (auto good = check_kernel_reach(gpus, what, *view); !good) return good;
      return {};
    case executor_kind::bar:
    case executor_kind::engine:
      if (!one_side_is_host) return refuse(what, "this way needs the host on one side: between GPUs use CE or SM");
      if ((is_gpu(what.source) ? what.source : what.destination).where.index != what.by.gpu)
        return refuse(what,
                      format("the GPU on its other side is not GPU %d: name the one that has the memory", what.by.gpu));
      if ((is_gpu(what.source) ? what.destination : what.source).host == nullptr)
        return refuse(what, "the CPU cannot reach this host memory");
      if (what.by.what == executor_kind::engine)
        return check_kernel_reach(gpus, what, is_gpu(what.source) ? what.destination : what.source);
      return {};
  }
  return {};
}

}  // namespace

std::string describe(const bound_transfer& what) {
  return format("%s -> %s by %s of GPU %d, %s", to_string(what.source.where).c_str(),
                to_string(what.destination.where).c_str(), to_string(what.by.what), what.by.gpu,
                format_size(what.bytes).c_str());
}

status check_transfers(gpu_set& gpus, std::span<const bound_transfer> transfers, bool will_verify) {
  for (const auto& one : transfers)
    if (auto good = check_one(gpus, one); !good) return good;
  if (!will_verify) return {};
  for (std::size_t i = 0; i < transfers.size(); ++i)
    for (std::size_t j = 0; j < transfers.size(); ++j) {
      if (i == j) continue;
      const auto& writer = transfers[i];
      const auto& other = transfers[j];
      if (overlap(writer.destination, writer.bytes, other.destination, other.bytes) ||
          overlap(writer.destination, writer.bytes, other.source, other.bytes))
        return refuse(writer,
                      "it writes memory that another transfer uses too, so nothing can be verified: use other buffers, "
                      "or skip verification");
      // One source may be read by several, but then it has one pattern: from the same first byte.
      if (writer.source.address != other.source.address && overlap(writer.source, writer.bytes, other.source, other.bytes))
        return refuse(writer,
                      "its source lies partly in that of another transfer: begin at the same byte, or use other buffers");
    }
  return {};
}

bool blocks_the_cpu(const gpu_set& gpus, const bound_transfer& what) {
  if (what.by.what != executor_kind::ce) return false;
  if (!what.source.gpu_reachable || !what.destination.gpu_reachable || what.without_peer_access) return true;
  for (const auto* view : {&what.source, &what.destination})
    if (is_gpu(*view) && !gpus.can_access(what.by.gpu, view->where.index)) return true;
  return false;
}

status prepare_peer_access(gpu_set& gpus, const bound_transfer& what) {
  if (what.without_peer_access) {
    const int from = what.source.where.index, to = what.destination.where.index;
    if (auto closed = gpus.disable_peer_access(from, to); !closed) return closed;
    return gpus.disable_peer_access(to, from);
  }
  for (const auto* view : {&what.source, &what.destination})
    if (is_gpu(*view) && gpus.can_access(what.by.gpu, view->where.index))
      if (auto open = gpus.enable_peer_access(what.by.gpu, view->where.index); !open) return open;
  return {};
}

}  // namespace pl::bandwidth
