// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/layout.hpp"

#include <mutex>

#include "compat/mpi/type_tree.hpp"

namespace pl::mpi {
namespace {

bool is_one_row(const pieces& rows) { return rows.size() == 1 && rows[0].rows == 1; }

int forget(MPI_Datatype, int, void* kept, void*) {
  delete static_cast<std::shared_ptr<const pieces>*>(kept);
  return MPI_SUCCESS;
}

int not_inherited(MPI_Datatype, int, void*, void*, void*, int* flag) {
  *flag = 0;
  return MPI_SUCCESS;
}

// The attribute under which a type remembers its pieces; MPI frees it with the type.
int keyval() {
  static const int made = [] {
    int out = MPI_KEYVAL_INVALID;
    PMPI_Type_create_keyval(not_inherited, forget, &out, nullptr);
    return out;
  }();
  return made;
}

result<std::shared_ptr<const pieces>> remembered_pieces(MPI_Datatype type) {
  // Two threads may meet a type for the first time: the second must not delete what the first uses.
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  void* kept = nullptr;
  int is_there = 0;
  PMPI_Type_get_attr(type, keyval(), &kept, &is_there);
  if (is_there != 0) return *static_cast<std::shared_ptr<const pieces>*>(kept);
  auto found = take_apart(type);
  if (!found) return found.error();
  auto made = std::make_shared<const pieces>(std::move(*found));
  auto holder = std::make_unique<std::shared_ptr<const pieces>>(made);
  if (PMPI_Type_set_attr(type, keyval(), holder.get()) == MPI_SUCCESS) (void)holder.release();
  return made;
}

}  // namespace

pieces repeat(pieces rows, std::size_t n, std::ptrdiff_t step) {
  if (n == 0) return {};
  if (n == 1 || rows.empty()) return rows;
  auto& first = rows[0];
  const auto pitch = static_cast<std::size_t>(step);
  if (is_one_row(rows) && step > 0) {
    if (pitch == first.row_bytes) return first.row_bytes *= n, rows;
    if (pitch > first.row_bytes) return first.rows = n, first.pitch = pitch, rows;
  }
  if (rows.size() == 1 && step > 0 && first.rows * first.pitch == pitch) return first.rows *= n, rows;
  pieces out;
  out.reserve(rows.size() * n);
  for (std::size_t i = 0; i < n; ++i)
    for (piece one : rows) {
      one.offset += static_cast<std::ptrdiff_t>(i) * step;
      out.push_back(one);
    }
  return out;
}

pieces layout::rows_of(std::size_t count) const {
  if (scattered != nullptr) return repeat(*scattered, count, extent);
  return repeat({piece{first, bytes, 1, bytes}}, count, extent);
}

result<layout> layout_of(MPI_Datatype type) {
  MPI_Aint lower = 0, extent = 0, true_lower = 0, true_extent = 0;
  MPI_Count size = 0;
  if (PMPI_Type_size_x(type, &size) != MPI_SUCCESS || PMPI_Type_get_extent(type, &lower, &extent) != MPI_SUCCESS ||
      PMPI_Type_get_true_extent(type, &true_lower, &true_extent) != MPI_SUCCESS)
    return failure{EINVAL, "the datatype's size and extent cannot be told"};
  layout out{extent, true_lower, static_cast<std::size_t>(size), nullptr};
  if (size == true_extent) return out;
  auto found = remembered_pieces(type);
  if (!found) return found.error();
  out.scattered = std::move(*found);
  return out;
}

}  // namespace pl::mpi
