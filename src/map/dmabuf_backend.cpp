// SPDX-License-Identifier: Apache-2.0
// mmap of the dma-buf that CUDA exports for a range: CUDA >= 13.3 says it can, and the simulated GPU does.
// One descriptor per memory object, so a range over several objects becomes several mmaps side by side.
#include <sys/mman.h>
#include <unistd.h>

#include <cerrno>
#include <optional>

#include "backend.hpp"
#include "reservation.hpp"
#include "text.hpp"
#include "unique_fd.hpp"

namespace pl {
namespace {

constexpr int kFirstVersionWithMmap = 13030;  // cuDriverGetVersion of CUDA 13.3

struct exported_piece {
  unique_fd fd;
  std::size_t size_bytes = 0;
  off_t offset = 0;
};

class dmabuf_pin final : public pinned_memory {
 public:
  dmabuf_pin(device_io& io, const cu::driver_table& cuda, pin_plan plan, bool verify, std::vector<exported_piece> pieces)
      : pinned_memory(plan.rounded, plan.device_ordinal),
        io_(io),
        cuda_(cuda),
        plan_(std::move(plan)),
        verify_(verify),
        pieces_(std::move(pieces)) {}

  result<cpu_view> map(std::size_t size_bytes, arch::mapping_type wanted) override {
    if (wanted != arch::mapping_type::none && wanted != arch::mapping_type::wc)
      return failure{EOPNOTSUPP, "a dma-buf mapping of this GPU is write-combined: ask for WC or the default"};
    auto place = reservation::make(io_, size_bytes);
    if (!place) return place.error();
    std::size_t at = 0;
    for (const auto& piece : pieces_) {
      if (at >= size_bytes) break;
      const std::size_t length = std::min(piece.size_bytes, size_bytes - at);
      void* got = io_.mmap(place->address() + at, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, piece.fd.get(),
                           piece.offset);
      if (got == MAP_FAILED) {
        const int code = errno;
        return failure{code,
                       format("mmap of a dma-buf (%s) failed: %s", format_size(length).c_str(), errno_text(code).c_str())};
      }
      at += length;
    }
    if (io_.madvise(place->address(), size_bytes, MADV_DONTFORK) != 0)
      return failure{errno, "madvise(MADV_DONTFORK) failed: " + errno_text(errno)};
    const cpu_view view{place->address(), size_bytes, arch::mapping_type::wc};
    if (verify_)
      if (auto s = verify_mapping(cuda_, plan_, view); !s) return s.error();
    place_.emplace(*std::move(place));
    return view;
  }

  void unmap(const cpu_view&) noexcept override { place_.reset(); }

 private:
  device_io& io_;
  const cu::driver_table& cuda_;
  pin_plan plan_;
  bool verify_;
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
    auto context = cu::context_scope::enter(cuda_, plan->device_ordinal, plan->context);
    if (!context) return context.error();
    std::vector<exported_piece> pieces;
    for (const auto& piece : plan->pieces) {
      auto exported = export_piece(piece.range, request.force_pcie);
      if (!exported) return exported.error();
      pieces.push_back(*std::move(exported));
    }
    return std::unique_ptr<pinned_memory>(new dmabuf_pin(io_, cuda_, *std::move(plan), request.verify, std::move(pieces)));
  }

 private:
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
};

}  // namespace

result<std::unique_ptr<backend>> open_dmabuf_backend(const backend_environment& environment) {
  auto found = driver_of(environment.cuda);
  if (!found) return found.error();
  const cu::driver_table* cuda = *found;
  if (cuda->driver_version < kFirstVersionWithMmap)
    return failure{ENOTSUP, format("the driver offers CUDA %d.%d; mapping a dma-buf needs 13.3 or newer",
                                   cuda->driver_version / 1000, cuda->driver_version % 1000 / 10)};
  if (cuda->cuMemGetHandleForAddressRange == nullptr) return failure{ENOTSUP, "libcuda lacks cuMemGetHandleForAddressRange"};
  return std::unique_ptr<backend>(new dmabuf_backend(*environment.io, *cuda));
}

}  // namespace pl
