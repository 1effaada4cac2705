// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/shared_memory.hpp"

#include <cerrno>

#include "base/text.hpp"
#include "tools/bandwidth/agreement.hpp"

namespace pl::bandwidth {

shared_memory::shared_memory(gpu_set& gpus, group& ranks, int gpu) : gpus_(gpus), ranks_(ranks), gpu_(gpu) {}
shared_memory::~shared_memory() = default;

const char* shared_memory::means() const { return handle_name(handle_type_); }

const std::string& shared_memory::why_not(int source, int destination) const {
  return unreachable_[static_cast<std::size_t>(source)][static_cast<std::size_t>(destination)];
}

memory_view shared_memory::view(int rank, unsigned buffer) const {
  memory_view out;
  out.location = gpu_place(gpu_);
  out.address = pieces_[static_cast<std::size_t>(rank)]->address + buffer * buffer_bytes_;
  out.bytes = wanted_bytes_;
  return out;
}

result<std::unique_ptr<shared_memory>> shared_memory::open(gpu_set& gpus, group& ranks, int gpu, std::uint64_t bytes,
                                                           unsigned count) {
  std::unique_ptr<shared_memory> made(new shared_memory(gpus, ranks, gpu));
  made->wanted_bytes_ = bytes;
  made->count_ = count;
  const auto handle_types = common_handle_types(gpus, ranks, gpu);
  if (!handle_types) return handle_types.error();
  if (auto fine = agree(ranks, gpus.make_current(gpu)); !fine) return fine.error();
  status outcome;
  for (const int type : *handle_types) {
    outcome = made->attempt(type);
    if (outcome) return made;
    if (outcome.code() != EPERM && outcome.code() != ENOTSUP) break;  // another kind of handle would fail alike
    made->remark_ = outcome.error().message + "; using file descriptors within the host";
  }
  return outcome.error();
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
  const auto prop = memory_on(gpu_, handle_type);
  std::size_t unit = 0;
  const auto rc = cuda.cuMemGetAllocationGranularity(&unit, &prop, cu::granularity::recommended);
  if (rc != cu::error_code::success || unit == 0)
    return failure{ENOTSUP, std::string("no granularity for ") + means() + ": " + cu::error_text(cuda, rc)};
  buffer_bytes_ = (wanted_bytes_ + unit - 1) / unit * unit;
  auto own = std::make_unique<shared_piece>(cuda, buffer_bytes_ * count_);
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

status shared_memory::map(shared_piece& one) {
  return map_for(gpus_, gpu_, one,
                 handle_type_ == cu::handle_type::fabric
                     ? "are both GPUs in one NVLink clique? nvidia-smi -q shows ClusterUUID and CliqueId"
                     : "no peer access between the two GPUs");
}

status shared_memory::export_and_import(int handle_type) {
  const auto own = static_cast<std::size_t>(ranks_.rank());
  auto handles = handle_exchange::run(gpus_, ranks_, pieces_[own]->handle, handle_type);
  if (!handles) return handles.error();
  std::vector<std::string> unreachable(pieces_.size());
  for (std::size_t r = 0; r < pieces_.size(); ++r) {
    if (r == own) continue;
    auto imported = handles->import_from(gpus_, static_cast<int>(r), pieces_[own]->bytes);
    const status mapped = imported ? map(**imported) : status(imported.error());
    if (mapped) pieces_[r] = *std::move(imported);
    else unreachable[r] = mapped.error().message;
  }
  return publish_reach(unreachable);
}

// Every rank must know for every pair whether it can be measured.
status shared_memory::publish_reach(const std::vector<std::string>& mine) {
  std::string lines;
  for (const auto& reason : mine) lines += reason + '\n';
  const auto all = gather_texts(ranks_, lines);
  if (!all) return all.error();
  unreachable_.clear();
  for (const auto& text : *all) {
    auto& row = unreachable_.emplace_back();
    std::size_t offset = 0;
    for (std::size_t r = 0; r < mine.size(); ++r) {
      const auto end = text.find('\n', offset);
      if (end == std::string::npos)
        return failure{EPROTO, "a rank's description of the memory that it can access is too short"};
      row.push_back(text.substr(offset, end - offset));
      offset = end + 1;
    }
  }
  return {};
}

}  // namespace pl::bandwidth
