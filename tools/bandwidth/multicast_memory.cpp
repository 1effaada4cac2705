// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/multicast_memory.hpp"

#include <algorithm>
#include <cerrno>

#include "base/text.hpp"
#include "tools/bandwidth/agreement.hpp"

namespace pl::bandwidth {
namespace {

constexpr const char* kNoAccess =
    "are all GPUs behind the same NVLink switches? nvidia-smi -q shows ClusterUUID and CliqueId";

status check_support(gpu_set& gpus, int gpu) {
  if (gpus.attribute(gpu, cu::device_attribute::multicast_supported) == 0)
    return failure{ENOTSUP, format("%s has no multicast: the driver reports 0 for CU_DEVICE_ATTRIBUTE_MULTICAST_SUPPORTED "
                                   "(it needs GPUs of compute capability 9.0 or more behind an NVLink switch)",
                                   gpus.name(gpu).c_str())};
  const auto& cuda = gpus.cuda();
  if (cuda.cuMulticastCreate == nullptr || cuda.cuMulticastAddDevice == nullptr || cuda.cuMulticastBindMem == nullptr ||
      cuda.cuMulticastUnbind == nullptr || cuda.cuMulticastGetGranularity == nullptr)
    return failure{ENOTSUP, "the driver has no multicast calls (530 or later has)"};
  // Ordinary kernels are built for older GPUs too, which cannot compile this one.
  if (const auto kernel = gpus.kernel(gpu, "bandwidth_multicast"); !kernel)
    return failure{ENOTSUP, "this build has no multicast kernel for this GPU (" + kernel.error().message + ")"};
  return {};
}

// What only multicast calls answer.
status explain(gpu_set& gpus, cu::result_t code, const char* step) {
  if (code == cu::error_code::success) return {};
  const std::string text = std::string(step) + ": " + cu::error_text(gpus.cuda(), code);
  if (code == cu::error_code::system_not_ready || code == cu::error_code::illegal_state)
    return failure{ENOTSUP, text + ": is the service nvidia-fabricmanager running and has it set up the switches?"};
  if (code == cu::error_code::not_supported) return failure{ENOTSUP, text};
  if (code == cu::error_code::out_of_memory)
    return failure{ENOMEM, text + ": the switches or the GPU's memory have no room; use a smaller -b"};
  return failure{cu::to_errno(code), text};
}

}  // namespace

result<std::unique_ptr<multicast_memory>> multicast_memory::open(gpu_set& gpus, group& ranks, int gpu, std::uint64_t bytes,
                                                                 unsigned count) {
  std::unique_ptr<multicast_memory> made(new multicast_memory(gpus, ranks, gpu, bytes, count));
  if (auto fine = agree(ranks, gpus.make_current(gpu)); !fine) return fine.error();
  if (auto fine = agree(ranks, check_support(gpus, gpu)); !fine) return fine.error();
  const auto handle_types = common_handle_types(gpus, ranks, gpu);
  if (!handle_types) return handle_types.error();
  status outcome;
  for (const int type : *handle_types) {
    outcome = made->attempt(type);
    if (outcome) return made;
    made->reset();
    if (outcome.code() != EPERM) break;  // another kind of handle would fail alike
    made->remark_ = outcome.error().message + "; using file descriptors within the host";
  }
  return outcome.error();
}

multicast_memory::~multicast_memory() { reset(); }

void multicast_memory::reset() {
  for (unsigned i = 0; i < bound_; ++i) gpus_.cuda().cuMulticastUnbind(teams_[i]->handle, gpu_, 0, bytes_);
  bound_ = 0;
  teams_.clear();
  replicas_.clear();
}

memory_view multicast_memory::view_of(const shared_piece& one) const {
  memory_view out;
  out.location = gpu_place(gpu_);
  out.address = one.address;
  out.bytes = wanted_bytes_;
  return out;
}

// Each step ends on all ranks before the next begins: the driver's calls for binding and mapping block until every device
// has joined, and for ever if a rank has failed.
status multicast_memory::attempt(int handle_type) {
  if (auto fine = choose_size(handle_type); !fine) return fine;
  if (auto fine = agree(ranks_, create(handle_type)); !fine) return fine;
  if (auto fine = share(handle_type); !fine) return fine;
  if (auto fine = agree(ranks_, join()); !fine) return fine;
  if (auto fine = agree(ranks_, bind()); !fine) return fine;
  return agree(ranks_, map());
}

cu::multicast_prop multicast_memory::properties(int handle_type) const {
  return {static_cast<unsigned>(ranks_.size()), bytes_, static_cast<unsigned long long>(handle_type), 0};
}

// The recommended unit (512 MiB on some machines) only for buffers that fill one.
status multicast_memory::choose_size(int handle_type) {
  const auto& cuda = gpus_.cuda();
  auto prop = properties(handle_type);
  prop.bytes = wanted_bytes_;
  const auto memory = memory_on(gpu_, handle_type);
  std::size_t least = 0, recommended = 0, piece = 0;
  status fine =
      explain(gpus_, cuda.cuMulticastGetGranularity(&least, &prop, cu::granularity::minimum), "cuMulticastGetGranularity");
  if (fine)
    fine = explain(gpus_, cuda.cuMulticastGetGranularity(&recommended, &prop, cu::granularity::recommended),
                   "cuMulticastGetGranularity");
  if (fine)
    fine = gpus_.check(cuda.cuMemGetAllocationGranularity(&piece, &memory, cu::granularity::minimum),
                       "cuMemGetAllocationGranularity");
  if (auto all_fine = agree(ranks_, fine); !all_fine) return all_fine;
  const std::uint64_t unit = std::max<std::uint64_t>(std::max(piece, least), wanted_bytes_ >= recommended ? recommended : 1);
  const auto all = gather_texts(ranks_, std::to_string((wanted_bytes_ + unit - 1) / unit * unit));
  if (!all) return all.error();
  for (const auto& text : *all) bytes_ = std::max(bytes_, static_cast<std::uint64_t>(parse_integer(text).value_or(0)));
  return {};
}

status multicast_memory::create(int handle_type) {
  const auto& cuda = gpus_.cuda();
  teams_.resize(count_);
  for (unsigned i = 0; i < count_; ++i) {
    auto one = std::make_unique<shared_piece>(cuda, bytes_);
    const auto prop = memory_on(gpu_, handle_type);
    const auto rc = cuda.cuMemCreate(&one->handle, bytes_, &prop, 0);
    one->has_handle = rc == cu::error_code::success;
    if (rc == cu::error_code::not_permitted && handle_type == cu::handle_type::fabric) return failure{EPERM, kNeedsImex};
    if (auto fine = explain(gpus_, rc, format("cuMemCreate of %s", format_size(bytes_).c_str()).c_str()); !fine) return fine;
    replicas_.push_back(std::move(one));
  }
  const auto own = static_cast<unsigned>(ranks_.rank());
  if (own >= count_) return {};
  auto team = std::make_unique<shared_piece>(cuda, bytes_);
  const auto prop = properties(handle_type);
  const auto rc = cuda.cuMulticastCreate(&team->handle, &prop);
  team->has_handle = rc == cu::error_code::success;
  if (rc == cu::error_code::not_permitted && handle_type == cu::handle_type::fabric) return failure{EPERM, kNeedsImex};
  if (auto fine = explain(gpus_, rc, "cuMulticastCreate"); !fine) return fine;
  teams_[own] = std::move(team);
  return {};
}

// Every rank hands over one handle; a rank without an object passes its memory's handle, which is not imported.
status multicast_memory::share(int handle_type) {
  const auto own = static_cast<unsigned>(ranks_.rank());
  const cu::physical_t mine = own < count_ ? teams_[own]->handle : replicas_[0]->handle;
  auto handles = handle_exchange::run(gpus_, ranks_, mine, handle_type);
  if (!handles) return handles.error();
  status outcome;
  for (unsigned i = 0; i < count_ && outcome; ++i) {
    if (i == own) continue;
    auto imported = handles->import_from(gpus_, static_cast<int>(i), bytes_);
    if (imported) teams_[i] = *std::move(imported);
    else outcome = imported.error();
  }
  return agree(ranks_, outcome);
}

status multicast_memory::join() {
  for (const auto& team : teams_)
    if (auto fine = explain(gpus_, gpus_.cuda().cuMulticastAddDevice(team->handle, gpu_), "cuMulticastAddDevice"); !fine)
      return fine;
  return {};
}

status multicast_memory::bind() {
  for (; bound_ < count_; ++bound_)
    if (auto fine = explain(
            gpus_, gpus_.cuda().cuMulticastBindMem(teams_[bound_]->handle, 0, replicas_[bound_]->handle, 0, bytes_, 0),
            "cuMulticastBindMem");
        !fine)
      return fine;
  return {};
}

status multicast_memory::map() {
  for (auto* pieces : {&replicas_, &teams_})
    for (auto& one : *pieces)
      if (auto fine = map_for(gpus_, gpu_, *one, kNoAccess); !fine) return fine;
  return {};
}

}  // namespace pl::bandwidth
