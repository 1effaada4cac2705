// SPDX-License-Identifier: Apache-2.0
#include "export_listener.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <mutex>

#include "import_slot.hpp"
#include "log.hpp"
#include "text.hpp"

namespace pl::rm {
namespace {

using ioctl_function = int (*)(int, unsigned long, ...);

// Set only while this thread asks libcuda for an export. Initial-exec: the hook runs inside libcuda's ioctl calls, where
// an allocating TLS access would be out of place.
__attribute__((tls_model("initial-exec"))) thread_local std::vector<backing_piece>* t_listening = nullptr;

std::atomic<ioctl_function> g_next{nullptr};

template <class Params>
void record(const Params& params, std::vector<backing_piece>& out) {
  const std::uint32_t count =
      params.object_count < kExportMaxHandles ? params.object_count : static_cast<std::uint32_t>(kExportMaxHandles);
  for (std::uint32_t i = 0; i < count; ++i)
    out.push_back({params.client, params.handles[i], params.offsets[i], params.sizes[i]});
}

void listen(unsigned long request, const void* argument, std::vector<backing_piece>& out) {
  unsigned number = request & 0xff;
  std::size_t bytes = (request >> 16) & 0x3fff;
  if (((request >> 8) & 0xff) != 'F' || argument == nullptr) return;
  if (number == esc_transfer && bytes == sizeof(transfer_params)) {
    transfer_params transfer;
    std::memcpy(&transfer, argument, sizeof transfer);
    number = transfer.number;
    bytes = transfer.size_bytes;
    argument = reinterpret_cast<const void*>(transfer.pointer);
  }
  if (number != esc_export_dma_buf) return;
  if (bytes == sizeof(export_dma_buf_params)) record(*static_cast<const export_dma_buf_params*>(argument), out);
  else if (bytes == sizeof(export_dma_buf_params_2600))
    record(*static_cast<const export_dma_buf_params_2600*>(argument), out);
}

int listening_ioctl(int fd, unsigned long request, ...) {
  va_list args;
  va_start(args, request);
  void* argument = va_arg(args, void*);
  va_end(args);
  if (t_listening != nullptr) [[unlikely]]
    listen(request, argument, *t_listening);
  return g_next.load(std::memory_order_acquire)(fd, request, argument);
}

class [[nodiscard]] listening_scope {
 public:
  explicit listening_scope(std::vector<backing_piece>& out) { t_listening = &out; }
  ~listening_scope() { t_listening = nullptr; }
  listening_scope(const listening_scope&) = delete;
  listening_scope& operator=(const listening_scope&) = delete;
};

status install(const cu::driver_table& cuda) {
  auto slot = find_import_slot(cuda.library, "ioctl");
  if (!slot) return failure{ENOTSUP, slot.error().message + ": this libcuda cannot be listened to"};
  void* target = current_target(*slot, "ioctl");
  if (target == nullptr) return failure{ENOTSUP, "libc's ioctl was not found"};
  if (target == reinterpret_cast<void*>(&listening_ioctl)) return {};  // ours already: it must not lead to itself
  g_next.store(reinterpret_cast<ioctl_function>(target), std::memory_order_release);
  return replace_import_slot(*slot, reinterpret_cast<void*>(&listening_ioctl));
}

}  // namespace

status install_export_listener(const cu::driver_table& cuda) {
  static std::mutex mutex;
  static void* installed_for = nullptr;
  const std::lock_guard lock(mutex);
  if (installed_for == cuda.library) return {};
  auto outcome = install(cuda);
  if (outcome) installed_for = cuda.library;
  return outcome;
}

result<std::vector<backing_piece>> find_backing(const cu::driver_table& cuda, std::uint64_t pointer,
                                                std::uint64_t size_bytes) {
  if (cuda.cuMemGetHandleForAddressRange == nullptr)
    return failure{ENOTSUP, "this libcuda has no cuMemGetHandleForAddressRange (CUDA 11.7 or newer is needed)"};
  if (auto s = install_export_listener(cuda); !s) return s.error();
  std::vector<backing_piece> pieces;
  int dma_buf = -1;
  cu::result_t rc = 0;
  {
    const listening_scope scope(pieces);
    rc = cuda.cuMemGetHandleForAddressRange(&dma_buf, pointer, size_bytes, cu::range_handle_type::dma_buf_fd, 0);
  }
  if (rc == cu::error_code::success && dma_buf >= 0) ::close(dma_buf);
  if (pieces.empty()) {
    if (rc != cu::error_code::success)
      return cu::make_error(cuda, rc,
                            format("CUDA's export of %s at 0x%llx", format_size(size_bytes).c_str(),
                                   static_cast<unsigned long long>(pointer)));
    return failure{ENOTSUP, "libcuda exported the range without the ioctl that we know: its ABI has changed"};
  }
  std::uint64_t total = 0;
  for (const auto& piece : pieces) total += piece.size_bytes;
  if (total != size_bytes)
    return failure{ENOTSUP, format("libcuda's export names %llu bytes of objects for a range of %llu: its ABI has changed",
                                   static_cast<unsigned long long>(total), static_cast<unsigned long long>(size_bytes))};
  return pieces;
}

}  // namespace pl::rm
