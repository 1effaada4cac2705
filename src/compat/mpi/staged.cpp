// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/staged.hpp"

#include <algorithm>
#include <cstring>

#include "base/checked_math.hpp"

namespace pl::mpi {
namespace {

constexpr std::size_t kSparseFrom = 1u << 20;  // smaller spans come from the pool, whatever their gaps
constexpr std::size_t kSparseRatio = 4;

std::ptrdiff_t end_of(const piece& one) {
  return one.offset + static_cast<std::ptrdiff_t>((one.rows - 1) * one.pitch + one.row_bytes);
}

copy::transfer transfer_of(const piece& one, std::ptrdiff_t to_host, bool to_device) {
  const auto device = static_cast<std::uint64_t>(one.offset);
  const auto host = static_cast<std::uint64_t>(one.offset + to_host);
  if (to_device) return {copy::direction::to_device, device, host, one.row_bytes, one.rows, one.pitch, one.pitch};
  return {copy::direction::to_host, host, device, one.row_bytes, one.rows, one.pitch, one.pitch};
}

// Whether runs of bytes lie in device memory: the driver is asked once for neighbours, which are of one kind.
class kind_of_runs {
 public:
  bool is_device(const piece& one) {
    constexpr unsigned kNeighbourhood = 16;  // log2 of bytes: no page of a GPU is smaller
    const auto place = static_cast<std::uint64_t>(one.offset) >> kNeighbourhood;
    if (place != last_) is_last_device_ = is_device_memory(reinterpret_cast<const void*>(one.offset));
    last_ = place;
    return is_last_device_;
  }

 private:
  std::uint64_t last_ = ~std::uint64_t{0};
  bool is_last_device_ = false;
};

// Refuses a count that no memory has, before its elements become a list of runs.
status check_count(const void* buffer, const part& one, const layout& type) {
  constexpr std::uint64_t kFewElements = 1u << 16;
  const auto count = static_cast<std::uint64_t>(one.count);
  const auto step = static_cast<std::uint64_t>(type.extent < 0 ? -type.extent : type.extent);
  const auto reach = checked_mul(count, std::max<std::uint64_t>(step, type.bytes));
  if (!reach || *reach > static_cast<std::uint64_t>(PTRDIFF_MAX))
    return failure{EINVAL, "its elements are more than any memory has: check the count and the datatype"};
  if (type.scattered == nullptr || count <= kFewElements || buffer == MPI_BOTTOM) return {};
  const auto first = reinterpret_cast<std::ptrdiff_t>(buffer) + one.offset + type.scattered->front().offset;
  const auto last = first + static_cast<std::ptrdiff_t>(count - 1) * type.extent;
  if (!is_device_memory(reinterpret_cast<const void*>(first)) || is_device_memory(reinterpret_cast<const void*>(last)))
    return {};
  return failure{EINVAL, "the last of its elements is not in device memory: check the count"};
}

}  // namespace

int report_buffer(const char* description, const failure& reason) {
  complain(description, reason);
  return reason.code == ENOMEM ? MPI_ERR_NO_MEM : MPI_ERR_BUFFER;
}

bool any_on_device(std::span<const part> absolute) {
  kind_of_runs kind;
  for (const auto& one : absolute) {
    if (one.count <= 0 || one.type == type_null()) continue;
    auto type = layout_of(one.type);
    MPI_Aint first = 0, extent = 0;
    // A type that cannot be taken apart: attach() refuses it where its first byte is the device's.
    if (!type && PMPI_Type_get_true_extent(one.type, &first, &extent) == MPI_SUCCESS &&
        kind.is_device({one.offset + first, 1, 1, 1}))
      return true;
    if (!type || type->bytes == 0) continue;
    for (piece run : type->rows_of(static_cast<std::size_t>(one.count))) {
      run.offset += one.offset;
      if (kind.is_device(run)) return true;
    }
  }
  return false;
}

int staged::describe(const void* buffer, std::span<const part> buffer_parts) {
  pointer_ = const_cast<void*>(buffer);
  pieces runs;
  for (const auto& one : buffer_parts) {
    if (one.count <= 0 || one.type == type_null()) continue;  // MPI refuses a negative count and a type that is none
    auto type = layout_of(one.type);
    if (!type) return report_buffer("a datatype", type.error());
    if (type->bytes == 0) continue;
    if (auto possible = check_count(buffer, one, *type); !possible)
      return report_buffer("a buffer of device memory", possible.error());
    for (piece run : type->rows_of(static_cast<std::size_t>(one.count))) {
      run.offset += one.offset + reinterpret_cast<std::ptrdiff_t>(buffer);
      runs.push_back(run);
    }
  }
  return take(buffer, std::move(runs));
}

int staged::attach_bytes(const void* buffer, std::size_t bytes) {
  pointer_ = const_cast<void*>(buffer);
  if (bytes == 0) return MPI_SUCCESS;
  const int code = take(buffer, {piece{reinterpret_cast<std::ptrdiff_t>(buffer), bytes, 1, bytes}});
  return code == MPI_SUCCESS ? make_host_copy() : code;
}

int staged::take(const void* buffer, pieces&& runs) {
  std::erase_if(runs, [](const piece& one) { return one.bytes() == 0; });
  if (runs.empty()) return MPI_SUCCESS;
  if (buffer == MPI_BOTTOM) {
    kind_of_runs kind;
    std::size_t devices = 0;
    for (const auto& one : runs) devices += kind.is_device(one) ? 1 : 0;
    if (devices != 0 && devices != runs.size())
      return report_buffer("MPI_BOTTOM", {ENOTSUP,
                                          "its types combine device and host memory, which is not supported: use "
                                          "two messages"});
  }
  const auto* const first = reinterpret_cast<const void*>(runs[0].offset);
  // Without an answer of the driver, this may still be memory of a forked child's parent, which must not be touched.
  device_ = device_info(first);
  if (!device_ && !is_device_memory(first)) {
    // Displacements that lead out of the memory: MPI must not touch what the argument points to.
    if (first == buffer || buffer == MPI_BOTTOM || !is_device_memory(buffer)) return MPI_SUCCESS;
    return report_buffer("a buffer of device memory", {EINVAL, "the first byte of its datatype is not in device memory"});
  }
  for (const auto& one : runs) bytes_ += one.bytes();
  runs_ = std::move(runs);
  return MPI_SUCCESS;
}

int staged::make_host_copy(bool is_header_expected) {
  if (runs_.empty()) return MPI_SUCCESS;
  std::ptrdiff_t begin = runs_[0].offset, end = begin;
  for (const auto& one : runs_) {
    begin = std::min(begin, one.offset);
    end = std::max(end, end_of(one));
  }
  const auto span = static_cast<std::size_t>(end - begin);
  // What leaves its allocation is refused, or stays untouched: a count that is too large must not pin that much memory.
  const bool sparse = span >= kSparseFrom && (is_header_expected || span / kSparseRatio > bytes_ || !is_readable());
  // The low bits of the address stay, for MPI libraries that compute with aligned types.
  const auto misfit = static_cast<std::size_t>(begin) % 64;
  auto memory = take_staging(static_cast<std::uint64_t>(runs_[0].offset), span + misfit, sparse);
  if (!memory) return runs_.clear(), report_buffer("host memory for a message", memory.error());
  memory_ = std::move(*memory);
  to_host_ = reinterpret_cast<std::ptrdiff_t>(memory_.data()) + static_cast<std::ptrdiff_t>(misfit) - begin;
  pointer_ = reinterpret_cast<void*>(reinterpret_cast<std::ptrdiff_t>(pointer_) + to_host_);
  return MPI_SUCCESS;
}

bool staged::is_readable() const {
  for (const auto& one : runs_) {
    const address_range place{static_cast<std::uint64_t>(one.offset), static_cast<std::size_t>(end_of(one) - one.offset)};
    if (device_ && device_->allocation.contains(place)) continue;
    if (!is_within_allocation(place.begin, place.size_bytes)) return false;
  }
  return true;
}

bool staged::peek(void* out, std::size_t bytes) const { return gather(runs_, to_host_, out, bytes); }

int staged::copy_runs(const pieces& runs, bool to_device) const {
  const char* const description = to_device ? "received data to device memory" : "data of device memory to the host";
  const auto* const device = device_ ? &*device_ : nullptr;
  if (runs.size() == 1) {
    const auto only = transfer_of(runs[0], to_host_, to_device);
    if (auto done = copy_all({&only, 1}, device); !done) return report_buffer(description, done.error());
    return MPI_SUCCESS;
  }
  std::vector<copy::transfer> list;
  list.reserve(runs.size());
  for (const auto& one : runs) list.push_back(transfer_of(one, to_host_, to_device));
  if (auto done = copy_all(list, nullptr); !done) return report_buffer(description, done.error());
  return MPI_SUCCESS;
}

int staged::load() { return is_host_copy() ? copy_runs(runs_, false) : MPI_SUCCESS; }

int staged::store() { return store_first(SIZE_MAX); }

int staged::store_first(std::size_t bytes) {
  bytes = std::min(bytes, limit_);
  if (!is_host_copy() || bytes == 0) return MPI_SUCCESS;
  if (bytes >= bytes_) return copy_runs(runs_, true);
  return copy_runs(piece_cursor(runs_).next(bytes), true);
}

bool gather(const pieces& rows, std::ptrdiff_t shift, void* out, std::size_t bytes) {
  auto* place = static_cast<std::byte*>(out);
  for (const auto& one : piece_cursor(rows).next(bytes))
    for (std::size_t row = 0; row < one.rows; ++row, place += one.row_bytes)
      std::memcpy(place, reinterpret_cast<const void*>(one.offset + shift + static_cast<std::ptrdiff_t>(row * one.pitch)),
                  one.row_bytes);
  return place == static_cast<std::byte*>(out) + bytes;
}

std::size_t received_bytes(const MPI_Status& status) {
  MPI_Count bytes = 0;
  if (PMPI_Get_elements_x(const_cast<MPI_Status*>(&status), byte_type(), &bytes) != MPI_SUCCESS || bytes < 0) return 0;
  return static_cast<std::size_t>(bytes);
}

}  // namespace pl::mpi
