// SPDX-License-Identifier: Apache-2.0
#include "shared_memory.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "agreement.hpp"
#include "descriptor_exchange.hpp"
#include "text.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::size_t kFabricHandleBytes = 64;
constexpr const char* kNeedsImex =
    "fabric handles need the service nvidia-imex, and an IMEX channel (/dev/nvidia-caps-imex-channels/channel0) that this "
    "process may open";

bool has_own_memory_management(gpu_set& gpus, int gpu) {
  return gpus.attribute(gpu, cu::device_attribute::virtual_memory_management) != 0;
}

cu::allocation_prop properties(int gpu, int handle_type) {
  cu::allocation_prop prop{};
  prop.type = cu::allocation_type::pinned;
  prop.requested_handle_types = handle_type;
  prop.where = {cu::location_type::device, gpu};
  return prop;
}

bool one_host(const group& ranks) {
  for (int r = 1; r < ranks.size(); ++r)
    if (!ranks.same_host(0, r)) return false;
  return true;
}

}  // namespace

// The memory of one rank: a handle, an address range, the range mapped.
struct shared_memory::piece {
  piece(const cu::driver_table& driver, std::uint64_t size_bytes) : cuda(driver), bytes(size_bytes) {}
  piece(const piece&) = delete;
  piece& operator=(const piece&) = delete;
  ~piece() {
    if (is_mapped) cuda.cuMemUnmap(address, bytes);
    if (address != 0) cuda.cuMemAddressFree(address, bytes);
    if (has_handle) cuda.cuMemRelease(handle);
  }
  const cu::driver_table& cuda;
  std::uint64_t bytes;
  cu::physical_t handle = 0;
  bool has_handle = false;
  cu::device_ptr address = 0;
  bool is_mapped = false;
};

shared_memory::shared_memory(gpu_set& gpus, group& ranks, int gpu) : gpus_(gpus), ranks_(ranks), gpu_(gpu) {}
shared_memory::~shared_memory() = default;

const char* shared_memory::means() const {
  return handle_type_ == cu::handle_type::fabric ? "fabric handles" : "file descriptors";
}

const std::string& shared_memory::why_not(int from, int to) const {
  return unreachable_[static_cast<std::size_t>(from)][static_cast<std::size_t>(to)];
}

memory_view shared_memory::view(int rank, unsigned buffer) const {
  memory_view out;
  out.where = gpu_place(gpu_);
  out.address = pieces_[static_cast<std::size_t>(rank)]->address + buffer * buffer_bytes_;
  out.bytes = wanted_bytes_;
  return out;
}

result<std::unique_ptr<shared_memory>> shared_memory::open(gpu_set& gpus, group& ranks, int gpu, std::uint64_t bytes,
                                                           unsigned count) {
  std::unique_ptr<shared_memory> made(new shared_memory(gpus, ranks, gpu));
  made->wanted_bytes_ = bytes;
  made->count_ = count;
  std::vector<int> handle_types;
  if (auto fine = made->plan(handle_types); !fine) return fine.error();
  if (auto fine = agree(ranks, gpus.make_current(gpu)); !fine) return fine.error();
  status outcome;
  for (const int type : handle_types) {
    outcome = made->attempt(type);
    if (outcome) return made;
    if (outcome.code() != EPERM && outcome.code() != ENOTSUP) break;  // another kind of handle would fail alike
    made->remark_ = outcome.error().message + "; using file descriptors within the host";
  }
  return outcome.error();
}

// What to try, in this order. The same on all ranks, as all know the same of each other.
status shared_memory::plan(std::vector<int>& handle_types) {
  const bool manages = has_own_memory_management(gpus_, gpu_);
  const bool fabric = manages && gpus_.attribute(gpu_, cu::device_attribute::handle_type_fabric) != 0;
  const bool descriptor = manages && gpus_.attribute(gpu_, cu::device_attribute::handle_type_posix_fd) != 0;
  const auto all = gather_texts(ranks_, std::string(fabric ? "f" : "-") + (descriptor ? "d" : "-"));
  if (!all) return all.error();
  bool all_fabric = true, all_descriptors = one_host(ranks_);
  std::string lacking;
  for (int r = 0; r < ranks_.size(); ++r) {
    const std::string& can = (*all)[static_cast<std::size_t>(r)];
    if (can[0] != 'f') {
      all_fabric = false;
      lacking = "the GPU or driver of " + ranks_.name_of(r) + " has no fabric handles";
    }
    all_descriptors = all_descriptors && can[1] == 'd';
  }
  if (all_fabric) handle_types.push_back(cu::handle_type::fabric);
  if (all_descriptors) handle_types.push_back(cu::handle_type::posix_fd);
  if (!handle_types.empty()) return {};
  if (!one_host(ranks_))
    return failure{ENOTSUP,
                   lacking + ", which GPU memory of several hosts needs (GPUs of one NVLink domain, driver 550 or later)"};
  return failure{ENOTSUP, lacking + ", nor memory that file descriptors can share (CUDA's virtual memory management)"};
}

status shared_memory::attempt(int handle_type) {
  handle_type_ = handle_type;
  pieces_.clear();
  pieces_.resize(static_cast<std::size_t>(ranks_.size()));
  if (auto fine = agree(ranks_, create(handle_type)); !fine) return fine;
  if (auto fine = agree(ranks_, map(*pieces_[static_cast<std::size_t>(ranks_.rank())])); !fine) return fine;
  return export_and_import(handle_type);
}

status shared_memory::create(int handle_type) {
  const auto& cuda = gpus_.cuda();
  const auto prop = properties(gpu_, handle_type);
  std::size_t unit = 0;
  const auto rc = cuda.cuMemGetAllocationGranularity(&unit, &prop, cu::granularity::recommended);
  if (rc != cu::error_code::success || unit == 0)
    return failure{ENOTSUP, std::string("no granularity for ") + means() + ": " + cu::error_text(cuda, rc)};
  buffer_bytes_ = (wanted_bytes_ + unit - 1) / unit * unit;
  auto own = std::make_unique<piece>(cuda, buffer_bytes_ * count_);
  const auto made = cuda.cuMemCreate(&own->handle, own->bytes, &prop, 0);
  own->has_handle = made == cu::error_code::success;
  if (made == cu::error_code::not_permitted && handle_type == cu::handle_type::fabric) return failure{EPERM, kNeedsImex};
  if (made == cu::error_code::not_supported)
    return failure{ENOTSUP, std::string("memory with ") + means() + ": " + cu::error_text(cuda, made)};
  if (made == cu::error_code::out_of_memory)
    return failure{ENOMEM, format("%u buffers of %s do not fit the GPU's memory; use a smaller -b", count_,
                                  format_size(buffer_bytes_).c_str())};
  if (auto fine = gpus_.check(made, format("cuMemCreate of %s", format_size(own->bytes).c_str())); !fine) return fine;
  pieces_[static_cast<std::size_t>(ranks_.rank())] = std::move(own);
  return {};
}

status shared_memory::map(piece& one) {
  const auto& cuda = gpus_.cuda();
  if (auto fine = gpus_.check(cuda.cuMemAddressReserve(&one.address, one.bytes, 0, 0, 0), "reserving addresses"); !fine)
    return fine;
  if (auto fine = gpus_.check(cuda.cuMemMap(one.address, one.bytes, 0, one.handle, 0), "cuMemMap"); !fine) return fine;
  one.is_mapped = true;
  const cu::access_desc access{{cu::location_type::device, gpu_}, cu::access_flags::read_write};
  const auto rc = cuda.cuMemSetAccess(one.address, one.bytes, &access, 1);
  if (rc == cu::error_code::success) return {};
  const bool is_fabric = handle_type_ == cu::handle_type::fabric;
  return failure{cu::to_errno(rc),
                 "the GPU gets no access (" + cu::error_text(cuda, rc) + "): " +
                     (is_fabric ? "are both GPUs in one NVLink clique? nvidia-smi -q shows ClusterUUID and CliqueId"
                                : "no peer access between the two GPUs")};
}

status shared_memory::import_from(int rank, void* handle, int handle_type) {
  const auto own_bytes = pieces_[static_cast<std::size_t>(ranks_.rank())]->bytes;
  auto one = std::make_unique<piece>(gpus_.cuda(), own_bytes);
  const auto rc = gpus_.cuda().cuMemImportFromShareableHandle(&one->handle, handle, handle_type);
  if (auto fine = gpus_.check(rc, std::string("importing memory by ") + means()); !fine) return fine;
  one->has_handle = true;
  if (auto fine = map(*one); !fine) return fine;
  pieces_[static_cast<std::size_t>(rank)] = std::move(one);
  return {};
}

status shared_memory::export_and_import(int handle_type) {
  const auto& cuda = gpus_.cuda();
  const auto own = static_cast<std::size_t>(ranks_.rank());
  const bool by_descriptor = handle_type == cu::handle_type::posix_fd;
  std::vector<std::byte> fabric(kFabricHandleBytes);
  int descriptor = -1;
  void* out = by_descriptor ? static_cast<void*>(&descriptor) : fabric.data();
  const auto rc = cuda.cuMemExportToShareableHandle(out, pieces_[own]->handle, handle_type, 0);
  const unique_fd exported(real_device_io(), descriptor);
  auto fine = gpus_.check(rc, std::string("exporting memory by ") + means());
  if (fine = agree(ranks_, fine); !fine) return fine;

  std::vector<unique_fd> descriptors;
  std::vector<std::vector<std::byte>> handles;
  if (by_descriptor) {
    auto all = exchange_descriptors(ranks_, descriptor);
    if (!all) return all.error();
    descriptors = std::move(*all);
  } else {
    auto all = ranks_.all_gather(fabric);
    if (!all) return all.error();
    handles = std::move(*all);
  }
  std::vector<std::string> unreachable(pieces_.size());
  for (std::size_t r = 0; r < pieces_.size(); ++r) {
    if (r == own) continue;
    void* handle =
        by_descriptor ? reinterpret_cast<void*>(static_cast<std::intptr_t>(descriptors[r].get())) : handles[r].data();
    const auto imported = import_from(static_cast<int>(r), handle, handle_type);
    if (!imported) unreachable[r] = imported.error().message;
  }
  return tell_reach(unreachable);
}

// Every rank must know of every pair whether it can be measured.
status shared_memory::tell_reach(const std::vector<std::string>& mine) {
  std::string lines;
  for (const auto& why : mine) lines += why + '\n';
  const auto all = gather_texts(ranks_, lines);
  if (!all) return all.error();
  unreachable_.clear();
  for (const auto& text : *all) {
    auto& row = unreachable_.emplace_back();
    std::size_t at = 0;
    for (std::size_t r = 0; r < mine.size(); ++r) {
      const auto end = text.find('\n', at);
      if (end == std::string::npos) return failure{EPROTO, "a rank has told too little of what it reaches"};
      row.push_back(text.substr(at, end - at));
      at = end + 1;
    }
  }
  return {};
}

}  // namespace pl::bandwidth
