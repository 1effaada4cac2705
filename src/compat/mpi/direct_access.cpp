// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/direct_access.hpp"

#include <algorithm>
#include <cstring>

#include "compat/mpi/row_pairs.hpp"
#include "compat/mpi/type_tree.hpp"

namespace pl::mpi {
namespace {

constexpr std::size_t kElementsAtOnce = 1u << 20;  // bytes of an accumulate that pass the CPU at a time

int check(MPI_Count count, MPI_Datatype type) {
  if (count < 0) return MPI_ERR_COUNT;
  return type == type_null() ? MPI_ERR_TYPE : MPI_SUCCESS;
}

struct rows_of_argument {
  pieces rows;  // of addresses
  std::size_t bytes = 0;
  bool is_device = false;
};

void sum_up(rows_of_argument& out) {
  std::erase_if(out.rows, [](const piece& one) { return one.bytes() == 0; });
  out.bytes = 0;
  for (const auto& one : out.rows) out.bytes += one.bytes();
}

int describe(const origin_buffer& buffer, rows_of_argument& out) {
  if (const int code = check(buffer.count, buffer.type); code != MPI_SUCCESS) return code;
  if (buffer.count == 0) return MPI_SUCCESS;
  staged device;
  if (const int code = device.describe(buffer.pointer, buffer.count, buffer.type); code != MPI_SUCCESS) return code;
  if (device.is_host_copy()) {
    out = {device.rows(), device.bytes(), true};
    return MPI_SUCCESS;
  }
  auto form = layout_of(buffer.type);
  if (!form) return report_buffer("a datatype", form.error());
  out.rows = form->rows_of(static_cast<std::size_t>(buffer.count));
  for (auto& one : out.rows) one.offset += reinterpret_cast<std::ptrdiff_t>(buffer.pointer);
  sum_up(out);
  return MPI_SUCCESS;
}

// Checks that it is within the window; otherwise MPI_ERR_RMA_RANGE.
int describe(const window_target& target, const target_place& place, rows_of_argument& out) {
  if (const int code = check(place.count, place.type); code != MPI_SUCCESS) return code;
  out.is_device = true;
  if (place.count == 0) return MPI_SUCCESS;
  auto form = layout_of(place.type);
  if (!form) return report_buffer("a datatype", form.error());
  MPI_Aint begin = 0;
  if (__builtin_mul_overflow(place.offset, target.unit, &begin)) return MPI_ERR_RMA_RANGE;
  out.rows = form->rows_of(static_cast<std::size_t>(place.count));
  sum_up(out);
  for (auto& one : out.rows) {
    MPI_Aint first = 0, end = 0;
    const auto span = static_cast<MPI_Aint>((one.rows - 1) * one.pitch + one.row_bytes);
    if (__builtin_add_overflow(begin, static_cast<MPI_Aint>(one.offset), &first) ||
        __builtin_add_overflow(first, span, &end) || first < 0 || end > target.size)
      return MPI_ERR_RMA_RANGE;
    one.offset = static_cast<std::ptrdiff_t>(target.pointer) + first;
  }
  return MPI_SUCCESS;
}

int move(const pieces& destination, bool to_device, const pieces& source, bool from_device) {
  const auto way = !to_device     ? copy::direction::to_host
                   : !from_device ? copy::direction::to_device
                                  : copy::direction::on_device;
  const auto list = pair_rows(destination, source, way);
  if (list.empty()) return MPI_SUCCESS;
  if (to_device || from_device) {
    if (auto done = copy_all(list, nullptr); !done) return report_buffer("a one-sided operation", done.error());
    return MPI_SUCCESS;
  }
  for (const auto& one : list)
    for (std::size_t row = 0; row < one.rows; ++row)
      std::memcpy(copy::host_pointer(one.dst + row * one.dst_pitch), copy::host_pointer(one.src + row * one.src_pitch),
                  one.row_bytes);
  return MPI_SUCCESS;
}

// The region of a dynamic window that an operation meets first. Its offset there is an address.
std::optional<window_regions::region> find_attached(const window& window, const target_place& place) {
  if (place.rank < 0 || place.rank >= window.ranks() || window.regions->is_empty(place.rank)) return std::nullopt;
  if (place.count <= 0 || place.type == type_null()) return std::nullopt;
  const auto address = static_cast<std::uint64_t>(place.offset);
  auto form = layout_of(place.type);
  if (!form) return window.regions->find(place.rank, {address, 1});
  for (const auto& one : form->rows_of(static_cast<std::size_t>(place.count))) {
    if (one.bytes() == 0) continue;
    const address_range span{address + static_cast<std::uint64_t>(one.offset), (one.rows - 1) * one.pitch + one.row_bytes};
    if (auto found = window.regions->find(place.rank, span)) return found;
  }
  return std::nullopt;
}

int begin_attached(window& window, const target_place& place, rows_of_argument& out) {
  const auto attached = find_attached(window, place);
  if (!attached) return MPI_ERR_RMA_RANGE;  // detached meanwhile
  window_target target;
  target.size = static_cast<MPI_Aint>(attached->bytes.size_bytes);
  if (const int code = window.reach_attached(place.rank, *attached, target.pointer); code != MPI_SUCCESS) return code;
  target_place inside = place;
  inside.offset -= static_cast<MPI_Aint>(attached->bytes.begin);
  return describe(target, inside, out);
}

// The target of an operation, and its rows there, which are reached directly.
int begin(window& window, const target_place& place, rows_of_argument& out) {
  if (place.offset < 0) return MPI_ERR_DISP;
  const int code =
      window.is_dynamic() ? begin_attached(window, place, out) : describe(*window.direct_target(place.rank), place, out);
  if (code != MPI_SUCCESS) return code;
  return window.enter(place.rank) ? MPI_SUCCESS : MPI_ERR_RMA_SYNC;
}

// Contiguous elements of a predefined type in host memory, as MPI_Reduce_local takes them.
class elements {
 public:
  int make(MPI_Datatype type, std::uint64_t device, std::size_t bytes) {
    auto form = layout_of(type);
    if (!form) return report_buffer("a datatype", form.error());
    form_ = std::move(*form);
    most_ = std::max<std::size_t>(std::min(bytes, kElementsAtOnce) / form_.bytes, 1);
    auto memory = take_staging(device, most_ * static_cast<std::size_t>(form_.extent), false);
    if (!memory) return report_buffer("host memory for an accumulate", memory.error());
    memory_ = std::move(*memory);
    return MPI_SUCCESS;
  }
  void* data() const { return memory_.data(); }
  std::size_t chunk_bytes() const { return most_ * form_.bytes; }
  pieces rows(std::size_t bytes) const {
    auto out = form_.rows_of(bytes / form_.bytes);
    for (auto& one : out) one.offset += reinterpret_cast<std::ptrdiff_t>(data());
    return out;
  }

 private:
  layout form_;
  std::size_t most_ = 0;
  staging_pool::block memory_;
};

// An accumulate whose arguments have been checked.
struct accumulation {
  rows_of_argument source, result, target;
  bool has_result = false;
  MPI_Datatype element;
  MPI_Op op;

  int run() {
    elements operands, values;
    const auto device = static_cast<std::uint64_t>(target.rows[0].offset);
    if (const int code = operands.make(element, device, target.bytes); code != MPI_SUCCESS) return code;
    if (const int code = values.make(element, device, target.bytes); code != MPI_SUCCESS) return code;
    piece_cursor source_rows(source.rows), destination_rows(target.rows), old(result.rows);
    for (std::size_t done = 0; done < target.bytes;) {
      const std::size_t n = std::min(values.chunk_bytes(), target.bytes - done);
      const pieces part = op == op_no_op() ? pieces() : source_rows.next(n);
      if (const int code = run_part(operands, part, values, destination_rows.next(n), old.next(n), n); code != MPI_SUCCESS)
        return code;
      done += n;
    }
    return MPI_SUCCESS;
  }

  int run_part(const elements& operands, const pieces& part, const elements& values, const pieces& place,
               const pieces& previous, std::size_t n) const {
    int code = MPI_SUCCESS;
    if (op != op_no_op()) code = move(operands.rows(n), false, part, source.is_device);
    const bool reads = has_result || op != op_replace();
    if (code == MPI_SUCCESS && reads) code = move(values.rows(n), false, place, true);
    if (code == MPI_SUCCESS && has_result) code = move(previous, result.is_device, values.rows(n), false);
    if (code != MPI_SUCCESS || op == op_no_op()) return code;
    if (op == op_replace()) return move(place, true, operands.rows(n), false);
    int size = 0;
    PMPI_Type_size(element, &size);
    code =
        PMPI_Reduce_local(operands.data(), values.data(), static_cast<int>(n / static_cast<std::size_t>(size)), element, op);
    return code == MPI_SUCCESS ? move(place, true, values.rows(n), false) : code;
  }
};

int find_element(MPI_Datatype type, MPI_Datatype& out) {
  auto found = element_type(type);
  if (!found) return complain("an accumulate", found.error()), MPI_ERR_TYPE;
  out = *found;
  return MPI_SUCCESS;
}

}  // namespace

bool is_direct(const window& window, const target_place& place) {
  return window.is_dynamic() ? find_attached(window, place).has_value() : window.direct_target(place.rank) != nullptr;
}

int put_directly(window& window, const origin_buffer& source, const target_place& place) {
  rows_of_argument source_rows, destination_rows;
  if (const int code = describe(source, source_rows); code != MPI_SUCCESS) return code;
  if (const int code = begin(window, place, destination_rows); code != MPI_SUCCESS) return code;
  if (source_rows.bytes > destination_rows.bytes) return MPI_ERR_TRUNCATE;
  return move(destination_rows.rows, true, source_rows.rows, source_rows.is_device);
}

int get_directly(window& window, const origin_buffer& destination, const target_place& place) {
  rows_of_argument source_rows, destination_rows;
  if (const int code = describe(destination, destination_rows); code != MPI_SUCCESS) return code;
  if (const int code = begin(window, place, source_rows); code != MPI_SUCCESS) return code;
  if (source_rows.bytes > destination_rows.bytes) return MPI_ERR_TRUNCATE;
  return move(destination_rows.rows, destination_rows.is_device, source_rows.rows, true);
}

int accumulate_directly(window& window, const origin_buffer& source, const origin_buffer* result, const target_place& place,
                        MPI_Op op) {
  accumulation all{{}, {}, {}, result != nullptr, place.type, op};
  int code = op == op_no_op() ? MPI_SUCCESS : describe(source, all.source);
  if (code == MPI_SUCCESS && result != nullptr) code = describe(*result, all.result);
  if (code == MPI_SUCCESS) code = begin(window, place, all.target);
  if (code != MPI_SUCCESS || all.target.bytes == 0) return code;
  if ((op != op_no_op() && all.source.bytes != all.target.bytes) ||
      (result != nullptr && all.result.bytes < all.target.bytes))
    return MPI_ERR_TRUNCATE;
  if ((code = find_element(place.type, all.element)) != MPI_SUCCESS) return code;
  const window_locks::element_lock held(*window.locks, place.rank);
  return all.run();
}

int compare_and_swap_directly(window& window, const void* source, const void* compare, void* result,
                              const target_place& place) {
  rows_of_argument given, wanted, previous, target;
  int code = describe({source, 1, place.type}, given);
  if (code == MPI_SUCCESS) code = describe({compare, 1, place.type}, wanted);
  if (code == MPI_SUCCESS) code = describe({result, 1, place.type}, previous);
  if (code == MPI_SUCCESS) code = begin(window, place, target);
  if (code != MPI_SUCCESS) return code;
  std::array<std::byte, 64> value{}, expected{}, found{};
  const std::size_t n = target.bytes;
  if (n > value.size() || target.rows.size() != 1) return MPI_ERR_TYPE;
  const auto row = [n](auto& memory) { return pieces{{reinterpret_cast<std::ptrdiff_t>(memory.data()), n, 1, n}}; };
  if ((code = move(row(value), false, given.rows, given.is_device)) != MPI_SUCCESS) return code;
  if ((code = move(row(expected), false, wanted.rows, wanted.is_device)) != MPI_SUCCESS) return code;
  const window_locks::element_lock held(*window.locks, place.rank);
  if ((code = move(row(found), false, target.rows, true)) != MPI_SUCCESS) return code;
  if ((code = move(previous.rows, previous.is_device, row(found), false)) != MPI_SUCCESS) return code;
  return std::memcmp(found.data(), expected.data(), n) == 0 ? move(target.rows, true, row(value), false) : MPI_SUCCESS;
}

}  // namespace pl::mpi
