// SPDX-License-Identifier: Apache-2.0
// mmap of the dma-buf that CUDA exports for a range, on GPUs for which CUDA (13.3 and newer) reports support and a
// trial mapping of one page succeeded. On a platform whose CPU reads GPU memory coherently (Grace) the mapping is
// cached, unless BAR1 was requested. Each memory object has its own descriptor, so a range over several objects becomes
// several adjacent mmaps.
#include <sys/mman.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <optional>

#include "base/text.hpp"
#include "map/backend.hpp"
#include "map/mapping_proof.hpp"
#include "os/reservation.hpp"
#include "os/unique_fd.hpp"

namespace pl {
namespace {

constexpr int kFirstVersionWithMmap = 13030;  // cuDriverGetVersion of CUDA 13.3

// 0 if the driver does not know the attribute.
int device_attribute_of(const cu::driver_table& cuda, int ordinal, int attribute) {
  cu::device_t device = 0;
  int value = 0;
  if (cuda.cuDeviceGet(&device, ordinal) != cu::error_code::success ||
      cuda.cuDeviceGetAttribute(&value, attribute, device) != cu::error_code::success)
    return 0;
  return value;
}

bool maps_dma_bufs(const cu::driver_table& cuda, int ordinal) {
  return device_attribute_of(cuda, ordinal, cu::device_attribute::dma_buf) != 0 &&
         device_attribute_of(cuda, ordinal, cu::device_attribute::dma_buf_mmap) != 0;
}

struct exported_piece {
  unique_fd fd;
  std::size_t size_bytes = 0;
  off_t offset = 0;
};

class dmabuf_pin final : public pinned_memory {
 public:
  dmabuf_pin(device_io& io, const cu::driver_table& cuda, pin_plan plan, bool verify, arch::mapping_type type,
             std::vector<exported_piece> pieces)
      : pinned_memory("dmabuf", plan.rounded, plan.device_ordinal),
        io_(io),
        cuda_(cuda),
        plan_(std::move(plan)),
        verify_(verify),
        type_(type),
        pieces_(std::move(pieces)) {}

  result<cpu_view> map(std::size_t size_bytes, arch::mapping_type wanted) override {
    if (wanted != arch::mapping_type::none && wanted != type_)
      return failure{EOPNOTSUPP,
                     type_ == arch::mapping_type::cached
                         ? "a dma-buf mapping of this GPU is cached: ask for CACHING or the default, or pin with "
                           "FORCE_PCIE for write-combining"
                         : "a dma-buf mapping of this GPU is write-combined: ask for WC or the default"};
    auto place = reservation::make(io_, size_bytes);
    if (!place) return place.error();
    std::size_t index = 0;
    for (const auto& piece : pieces_) {
      if (index >= size_bytes) break;
      const std::size_t length = std::min(piece.size_bytes, size_bytes - index);
      void* got = io_.mmap(place->address() + index, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, piece.fd.get(),
                           piece.offset);
      if (got == MAP_FAILED) {
        const int code = errno;
        return failure{code,
                       format("mmap of a dma-buf (%s) failed: %s", format_size(length).c_str(), errno_text(code).c_str())};
      }
      index += length;
    }
    if (io_.madvise(place->address(), size_bytes, MADV_DONTFORK) != 0)
      return failure{errno, "madvise(MADV_DONTFORK) failed: " + errno_text(errno)};
    const cpu_view view{place->address(), size_bytes, type_};
    if (verify_)
      if (auto s = verify_mapping(cuda_, plan_, view); !s) return s.error();
    place_.emplace(*std::move(place));
    return view;
  }

  void unmap(const cpu_view&, unmapping mode) noexcept override {
    if (mode == unmapping::forgotten && place_) place_->leave_faulting();
    place_.reset();
  }

 private:
  device_io& io_;
  const cu::driver_table& cuda_;
  pin_plan plan_;
  bool verify_;
  arch::mapping_type type_;
  std::vector<exported_piece> pieces_;
  std::optional<reservation> place_;
};

class dmabuf_backend final : public backend {
 public:
  dmabuf_backend(device_io& io, const cu::driver_table& cuda) : io_(io), cuda_(cuda) {}
  const char* name() const noexcept override { return "dmabuf"; }

  result<std::unique_ptr<pinned_memory>> pin(const pin_request& request) override {
    auto plan = plan_pin(cuda_, request.range, request.granule_bytes, request.rule);
    if (!plan) return plan.error();
    auto device = inspect_device(plan->device_ordinal);
    if (!device) return device.error();
    auto context = cu::context_scope::enter(cuda_, plan->device_ordinal, plan->context);
    if (!context) return context.error();
    std::vector<exported_piece> pieces;
    for (const auto& piece : plan->pieces) {
      auto exported = export_piece(piece.range, request.force_pcie);
      if (!exported) return exported.error();
      pieces.push_back(*std::move(exported));
    }
    if (auto s = try_to_map(plan->device_ordinal, pieces.front()); !s) return s.error();
    const bool is_cached = device->is_coherent && !request.force_pcie;
    const auto type = is_cached ? arch::mapping_type::cached : arch::mapping_type::wc;
    return std::unique_ptr<pinned_memory>(
        new dmabuf_pin(io_, cuda_, *std::move(plan), request.verify, type, std::move(pieces)));
  }

 private:
  struct device_traits {
    bool is_coherent = false;
  };

  result<device_traits> inspect_device(int ordinal) {
    if (!maps_dma_bufs(cuda_, ordinal))
      return failure{ENOTSUP,
                     format("CUDA says that dma-bufs of device %d cannot be mapped (device attribute 152)", ordinal)};
    constexpr int kCoherent = cu::device_attribute::pageable_memory_access_uses_host_page_tables;
    return device_traits{device_attribute_of(cuda_, ordinal, kCoherent) != 0};
  }

  // Maps the first page until that has worked once for a device. A refused mmap then fails the pin, while another
  // backend can still be chosen.
  status try_to_map(int ordinal, const exported_piece& piece) {
    const std::uint64_t bit = ordinal >= 0 && ordinal < 64 ? std::uint64_t{1} << ordinal : 0;
    if ((mapped_devices_.load(std::memory_order_relaxed) & bit) != 0) return {};
    void* const page = io_.mmap(nullptr, kHostPageBytes, PROT_READ | PROT_WRITE, MAP_SHARED, piece.fd.get(), piece.offset);
    if (page == MAP_FAILED) {
      const int code = errno;
      const bool is_shortage = code == ENOMEM;
      return failure{is_shortage ? ENOMEM : ENOTSUP,
                     format("a dma-buf of device %d cannot be mapped: %s", ordinal, errno_text(code).c_str())};
    }
    io_.munmap(page, kHostPageBytes);
    mapped_devices_.fetch_or(bit, std::memory_order_relaxed);
    return {};
  }

  result<exported_piece> export_piece(address_range range, bool force_pcie) {
    int fd = -1;
    unsigned long long flags = 0;
    if (force_pcie) flags |= cu::range_flag::mapping_type_pcie;
    if (cuda_.is_simulated) flags |= cu::range_flag::sim_offset_in_position;
    const cu::result_t rc =
        cuda_.cuMemGetHandleForAddressRange(&fd, range.begin, range.size_bytes, cu::range_handle_type::dma_buf_fd, flags);
    if (rc != cu::error_code::success)
      return cu::make_error(
          cuda_, rc,
          format("CUDA's dma-buf export of 0x%llx + %llu bytes", static_cast<unsigned long long>(range.begin),
                 static_cast<unsigned long long>(range.size_bytes)));
    exported_piece piece{unique_fd(io_, fd), range.size_bytes, 0};
    if (cuda_.is_simulated) piece.offset = ::lseek(fd, 0, SEEK_CUR);
    return piece;
  }

  device_io& io_;
  const cu::driver_table& cuda_;
  std::atomic<std::uint64_t> mapped_devices_{0};  // one bit per device: mmap has worked there
};

// Whether any GPU can be used this way. True if CUDA is not initialised yet; the first pin decides then.
bool some_device_maps(const cu::driver_table& cuda) {
  int count = 0;
  if (cuda.cuDeviceGetCount(&count) != cu::error_code::success) return true;
  for (int ordinal = 0; ordinal < count; ++ordinal)
    if (maps_dma_bufs(cuda, ordinal)) return true;
  return false;
}

}  // namespace

result<std::unique_ptr<backend>> open_dmabuf_backend(const backend_environment& environment) {
  auto found = driver_of(environment.cuda);
  if (!found) return found.error();
  const cu::driver_table* cuda = *found;
  if (cuda->driver_version < kFirstVersionWithMmap)
    return failure{ENOTSUP, format("the driver offers CUDA %d.%d; mapping a dma-buf needs 13.3 or newer",
                                   cuda->driver_version / 1000, cuda->driver_version % 1000 / 10)};
  if (cuda->cuMemGetHandleForAddressRange == nullptr) return failure{ENOTSUP, "libcuda lacks cuMemGetHandleForAddressRange"};
  if (!some_device_maps(*cuda))
    return failure{ENOTSUP, "CUDA reports for every GPU that its dma-bufs cannot be mapped (device attribute 152)"};
  return std::unique_ptr<backend>(new dmabuf_backend(*environment.io, *cuda));
}

}  // namespace pl
