// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/shared_piece.hpp"

#include <cerrno>

#include "base/text.hpp"
#include "tools/bandwidth/agreement.hpp"
#include "tools/bandwidth/descriptor_exchange.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::size_t kFabricHandleBytes = 64;

}  // namespace

const char* const kNeedsImex =
    "fabric handles need the service nvidia-imex, and an IMEX channel (/dev/nvidia-caps-imex-channels/channel0) that this "
    "process may open";

shared_piece::~shared_piece() {
  if (is_mapped) cuda.cuMemUnmap(address, bytes);
  if (address != 0) cuda.cuMemAddressFree(address, bytes);
  if (has_handle) cuda.cuMemRelease(handle);
}

status map_for(gpu_set& gpus, int gpu, shared_piece& one, const char* no_access) {
  const auto& cuda = gpus.cuda();
  if (auto fine = gpus.check(cuda.cuMemAddressReserve(&one.address, one.bytes, 0, 0, 0), "reserving addresses"); !fine)
    return fine;
  if (auto fine = gpus.check(cuda.cuMemMap(one.address, one.bytes, 0, one.handle, 0), "cuMemMap"); !fine) return fine;
  one.is_mapped = true;
  const cu::access_desc access{{cu::location_type::device, gpu}, cu::access_flags::read_write};
  const auto rc = cuda.cuMemSetAccess(one.address, one.bytes, &access, 1);
  if (rc == cu::error_code::success) return {};
  return failure{cu::to_errno(rc), "the GPU gets no access (" + cu::error_text(cuda, rc) + "): " + no_access};
}

const char* handle_name(int handle_type) {
  return handle_type == cu::handle_type::fabric ? "fabric handles" : "file descriptors";
}

cu::allocation_prop memory_on(int gpu, int handle_type) {
  cu::allocation_prop prop{};
  prop.type = cu::allocation_type::pinned;
  prop.requested_handle_types = handle_type;
  prop.location = {cu::location_type::device, gpu};
  return prop;
}

bool on_one_host(const group& ranks) {
  for (int r = 1; r < ranks.size(); ++r)
    if (!ranks.same_host(0, r)) return false;
  return true;
}

// All ranks have the same data and compute the same list.
result<std::vector<int>> common_handle_types(gpu_set& gpus, group& ranks, int gpu) {
  const bool manages = gpus.attribute(gpu, cu::device_attribute::virtual_memory_management) != 0;
  const bool fabric = manages && gpus.attribute(gpu, cu::device_attribute::handle_type_fabric) != 0;
  const bool descriptor = manages && gpus.attribute(gpu, cu::device_attribute::handle_type_posix_fd) != 0;
  const auto all = gather_texts(ranks, std::string(fabric ? "f" : "-") + (descriptor ? "d" : "-"));
  if (!all) return all.error();
  bool all_fabric = true, all_descriptors = on_one_host(ranks);
  std::string lacking;
  for (int r = 0; r < ranks.size(); ++r) {
    const std::string& can = (*all)[static_cast<std::size_t>(r)];
    if (can[0] != 'f') {
      all_fabric = false;
      lacking = "the GPU or driver of " + ranks.name_of(r) + " has no fabric handles";
    }
    all_descriptors = all_descriptors && can[1] == 'd';
  }
  std::vector<int> out;
  if (all_fabric) out.push_back(cu::handle_type::fabric);
  if (all_descriptors) out.push_back(cu::handle_type::posix_fd);
  if (!out.empty()) return out;
  if (!on_one_host(ranks))
    return failure{ENOTSUP,
                   lacking + ", which GPU memory of several hosts needs (GPUs of one NVLink domain, driver 550 or later)"};
  return failure{ENOTSUP, lacking + ", nor memory that file descriptors can share (CUDA's virtual memory management)"};
}

result<handle_exchange> handle_exchange::run(gpu_set& gpus, group& ranks, cu::physical_t mine, int handle_type) {
  const bool by_descriptor = handle_type == cu::handle_type::posix_fd;
  std::vector<std::byte> fabric(kFabricHandleBytes);
  int descriptor = -1;
  void* out = by_descriptor ? static_cast<void*>(&descriptor) : fabric.data();
  const auto rc = gpus.cuda().cuMemExportToShareableHandle(out, mine, handle_type, 0);
  const unique_fd exported(real_device_io(), descriptor);
  const auto fine = gpus.check(rc, std::string("exporting memory by ") + handle_name(handle_type));
  if (auto all_fine = agree(ranks, fine); !all_fine) return all_fine.error();
  handle_exchange made;
  made.handle_type_ = handle_type;
  if (by_descriptor) {
    auto all = exchange_descriptors(ranks, descriptor);
    if (!all) return all.error();
    made.descriptors_ = std::move(*all);
  } else {
    auto all = ranks.all_gather(fabric);
    if (!all) return all.error();
    made.fabric_ = std::move(*all);
  }
  return made;
}

result<std::unique_ptr<shared_piece>> handle_exchange::import_from(gpu_set& gpus, int rank, std::uint64_t bytes) {
  const auto r = static_cast<std::size_t>(rank);
  void* handle = handle_type_ == cu::handle_type::posix_fd
                     ? reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptors_[r].get()))
                     : fabric_[r].data();
  auto one = std::make_unique<shared_piece>(gpus.cuda(), bytes);
  const auto rc = gpus.cuda().cuMemImportFromShareableHandle(&one->handle, handle, handle_type_);
  if (auto fine = gpus.check(rc, std::string("importing memory by ") + handle_name(handle_type_)); !fine)
    return fine.error();
  one->has_handle = true;
  return one;
}

}  // namespace pl::bandwidth
