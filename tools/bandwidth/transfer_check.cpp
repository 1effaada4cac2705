// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/transfer_check.hpp"

#include <cerrno>

#include "base/checked_math.hpp"
#include "base/text.hpp"

namespace pl::bandwidth {
namespace {

bool is_gpu_memory(const memory_view& view) { return view.location.type == place::kind::gpu; }

bool overlap(const memory_view& a, std::uint64_t a_bytes, const memory_view& b, std::uint64_t b_bytes) {
  return a.address < b.address + b_bytes && b.address < a.address + a_bytes;
}

failure refuse(const bound_transfer& transfer, const std::string& reason) {
  return failure{EINVAL, describe(transfer) + ": " + reason};
}

status check_view(const gpu_set& gpus, const bound_transfer& transfer, const memory_view& view) {
  if (view.address == 0 || view.bytes < transfer.bytes)
    return refuse(transfer,
                  format("its buffer %s has %s", to_string(view.location).c_str(), format_size(view.bytes).c_str()));
  if (!is_gpu_memory(view)) return {};
  if (view.location.index < 0 || view.location.index >= gpus.count())
    return refuse(transfer, format("no GPU %d: there are %d", view.location.index, gpus.count()));
  return {};
}

status check_kernel_reach(const gpu_set& gpus, const bound_transfer& transfer, const memory_view& view) {
  if (!view.gpu_reachable)
    return refuse(transfer, "kernels do not reach pageable memory: use pinned memory, or the copy engines (CE)");
  if (is_gpu_memory(view) && !gpus.can_access(transfer.executor.gpu, view.location.index))
    return refuse(transfer,
                  format("GPU %d cannot access the memory of GPU %d: use the copy engines (CE), which go through the host",
                         transfer.executor.gpu, view.location.index));
  return {};
}

status check_special_kernel(const gpu_set& gpus, const bound_transfer& transfer) {
  if (transfer.executor.kind == executor_kind::sm) return {};
  for (const auto* view : {&transfer.source, &transfer.destination})
    if (!is_gpu_memory(*view) || view->address % 16 != 0)
      return refuse(transfer, "this kernel works on GPU memory at multiples of 16 bytes: use SM");
  if (transfer.executor.kind == executor_kind::tma) {
    if (gpus.has_bulk_copies(transfer.executor.gpu)) return {};
    return failure{ENOTSUP, describe(transfer) + ": bulk copies (TMA) need compute capability 9.0: use SM"};
  }
  if (transfer.source.location.index == transfer.executor.gpu &&
      transfer.destination.location.index == transfer.executor.gpu)
    return {};
  return refuse(transfer, "this kernel works on its own GPU's memory only");
}

status check_one(const gpu_set& gpus, const bound_transfer& transfer) {
  if (transfer.bytes < 4) return refuse(transfer, "4 bytes are the least");
  if (transfer.executor.gpu < 0 || transfer.executor.gpu >= gpus.count())
    return refuse(transfer, format("no GPU %d: there are %d", transfer.executor.gpu, gpus.count()));
  for (const auto* view : {&transfer.source, &transfer.destination})
    if (auto good = check_view(gpus, transfer, *view); !good) return good;
  if (overlap(transfer.source, transfer.bytes, transfer.destination, transfer.bytes))
    return refuse(transfer, "source and destination overlap: give them different memory");
  if (transfer.is_multicast && (transfer.executor.kind != executor_kind::sm || transfer.bytes % 4 != 0))
    return refuse(transfer, "multicast objects take whole words of 4 bytes, from kernels only");
  const bool one_side_is_host = is_gpu_memory(transfer.source) != is_gpu_memory(transfer.destination);
  if (!is_gpu_memory(transfer.source) && !is_gpu_memory(transfer.destination) && transfer.executor.kind != executor_kind::sm)
    return refuse(transfer, "both sides are host memory: only SM copies that");
  switch (transfer.executor.kind) {
    case executor_kind::ce:
      return {};
    case executor_kind::sm:
    case executor_kind::tma:
    case executor_kind::sm_read:
    case executor_kind::sm_write:
      if (auto good = check_special_kernel(gpus, transfer); !good) return good;
      for (const auto* view : {&transfer.source, &transfer.destination})
        if (auto good = check_kernel_reach(gpus, transfer, *view); !good) return good;
      return {};
    case executor_kind::bar:
    case executor_kind::engine:
    case executor_kind::dma:
      if (!one_side_is_host)
        return refuse(transfer, "this executor needs host memory on one side: between GPUs use CE or SM");
      if ((is_gpu_memory(transfer.source) ? transfer.source : transfer.destination).location.index != transfer.executor.gpu)
        return refuse(transfer, format("the GPU on its other side is not GPU %d: name the one that has the memory",
                                       transfer.executor.gpu));
      if ((is_gpu_memory(transfer.source) ? transfer.destination : transfer.source).host == nullptr)
        return refuse(transfer, "the CPU cannot reach this host memory");
      if (transfer.executor.kind == executor_kind::engine)
        return check_kernel_reach(gpus, transfer, is_gpu_memory(transfer.source) ? transfer.destination : transfer.source);
      return {};
  }
  return {};
}

}  // namespace

std::string describe(const bound_transfer& transfer) {
  return format("%s -> %s by %s of GPU %d, %s", to_string(transfer.source.location).c_str(),
                to_string(transfer.destination.location).c_str(), to_string(transfer.executor.kind), transfer.executor.gpu,
                format_size(transfer.bytes).c_str());
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
                      "its source partly overlaps that of another transfer: start at the same byte, or use other buffers");
    }
  return {};
}

bool blocks_the_cpu(const gpu_set& gpus, const bound_transfer& transfer) {
  if (transfer.executor.kind != executor_kind::ce) return false;
  if (!transfer.source.gpu_reachable || !transfer.destination.gpu_reachable || transfer.without_peer_access) return true;
  for (const auto* view : {&transfer.source, &transfer.destination})
    if (is_gpu_memory(*view) && !gpus.can_access(transfer.executor.gpu, view->location.index)) return true;
  return false;
}

status prepare_peer_access(gpu_set& gpus, const bound_transfer& transfer) {
  if (transfer.without_peer_access) {
    const int source = transfer.source.location.index, destination = transfer.destination.location.index;
    if (auto closed = gpus.disable_peer_access(source, destination); !closed) return closed;
    return gpus.disable_peer_access(destination, source);
  }
  for (const auto* view : {&transfer.source, &transfer.destination})
    if (is_gpu_memory(*view) && gpus.can_access(transfer.executor.gpu, view->location.index))
      if (auto open = gpus.enable_peer_access(transfer.executor.gpu, view->location.index); !open) return open;
  return {};
}

}  // namespace pl::bandwidth
