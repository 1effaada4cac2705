// SPDX-License-Identifier: Apache-2.0
#include "rm/export_listener.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstdarg>
#include <cstring>
#include <mutex>

#include "base/log.hpp"
#include "base/text.hpp"
#include "rm/import_slot.hpp"

namespace pl::rm {
namespace {

using ioctl_function = int (*)(int, unsigned long, ...);

constexpr std::size_t kUsualPieces = 128;    // of one announcement; a larger one is requested again, with enough room
constexpr std::size_t kMaxPieces = 1 << 20;  // bounds what a foreign struct may make us allocate

// What an export announces. It is recorded within libcuda's own frames, where neither an allocation nor an exception
// may happen, so the memory is allocated in advance. Announcements say where their objects are in the list, so a
// repeated one (an ioctl that a signal interrupted) changes nothing.
struct announcement {
  backing_piece* pieces = nullptr;
  std::size_t capacity = 0;
  std::size_t count = 0;
  std::size_t wanted = 0;  // room that would have been needed
};

// Set only while this thread requests an export from libcuda. Initial-exec, because the hook runs within libcuda's
// ioctl calls, where a TLS access must not allocate.
__attribute__((tls_model("initial-exec"))) thread_local announcement* t_listening = nullptr;

std::atomic<void*> g_next{nullptr};

template <class Params>
void record(const void* argument, announcement& out) noexcept {
  Params params;
  std::memcpy(&params, argument, sizeof params);
  const std::size_t first = params.index;
  const std::size_t count = std::min<std::size_t>(params.object_count, kExportMaxHandles);
  out.wanted = std::max({out.wanted, std::size_t{params.total_objects}, first + count});
  if (first + count > out.capacity) return;
  for (std::size_t i = 0; i < count; ++i)
    out.pieces[first + i] = {params.client, params.handles[i], params.offsets[i], params.sizes[i]};
  out.count = first == 0 ? count : std::max(out.count, first + count);
}

void listen(unsigned long request, const void* argument, announcement& out) noexcept {
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
  if (number != esc_export_dma_buf || argument == nullptr) return;
  if (bytes == sizeof(export_dma_buf_params)) record<export_dma_buf_params>(argument, out);
  else if (bytes == sizeof(export_dma_buf_params_2600)) record<export_dma_buf_params_2600>(argument, out);
}

int listening_ioctl(int fd, unsigned long request, ...) {
  va_list args;
  va_start(args, request);
  void* argument = va_arg(args, void*);
  va_end(args);
  if (t_listening != nullptr) [[unlikely]]
    listen(request, argument, *t_listening);
  return reinterpret_cast<ioctl_function>(g_next.load(std::memory_order_acquire))(fd, request, argument);
}

class [[nodiscard]] listening_scope {
 public:
  explicit listening_scope(announcement& out) { t_listening = &out; }
  ~listening_scope() { t_listening = nullptr; }
  listening_scope(const listening_scope&) = delete;
  listening_scope& operator=(const listening_scope&) = delete;
};

status install(const cu::driver_table& cuda) {
  auto slot = find_import_slot(cuda.library, "ioctl");
  if (!slot) return failure{ENOTSUP, slot.error().message + ": the calls of this libcuda cannot be observed"};
  return hook_import_slot(*slot, "ioctl", reinterpret_cast<void*>(&listening_ioctl), g_next);
}

// Runs one export and records the announced objects in `out`.
cu::result_t export_once(const cu::driver_table& cuda, std::uint64_t pointer, std::uint64_t size_bytes, announcement& out) {
  int dma_buf = -1;
  // Without this flag the simulated GPU rejects ranges that begin inside their object.
  const auto flags = cuda.is_simulated ? std::uint64_t{cu::range_flag::sim_offset_in_position} : 0;
  cu::result_t rc = 0;
  {
    const listening_scope scope(out);
    rc = cuda.cuMemGetHandleForAddressRange(&dma_buf, pointer, size_bytes, cu::range_handle_type::dma_buf_fd, flags);
  }
  if (rc == cu::error_code::success && dma_buf >= 0) ::close(dma_buf);
  return rc;
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
  std::vector<backing_piece> pieces(kUsualPieces);
  announcement heard{pieces.data(), pieces.size()};
  cu::result_t rc = export_once(cuda, pointer, size_bytes, heard);
  if (heard.wanted > pieces.size()) {
    if (heard.wanted > kMaxPieces)
      return failure{ENOTSUP, format("libcuda's export names %zu objects: its ABI has changed", heard.wanted)};
    pieces.resize(heard.wanted);
    heard = {pieces.data(), pieces.size()};
    rc = export_once(cuda, pointer, size_bytes, heard);
  }
  pieces.resize(heard.count);
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
