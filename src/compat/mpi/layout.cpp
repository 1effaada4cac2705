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

int forget_twin(MPI_Datatype, int, void* kept, void*) {
  const std::unique_ptr<MPI_Datatype> twin(static_cast<MPI_Datatype*>(kept));
  return PMPI_Type_free(twin.get());
}

int twin_keyval() {
  static const int made = [] {
    int out = MPI_KEYVAL_INVALID;
    PMPI_Type_create_keyval(not_inherited, forget_twin, &out, nullptr);
    return out;
  }();
  return made;
}

MPI_Datatype make_twin(MPI_Datatype type, const pieces& rows) {
  std::vector<MPI_Datatype> parts(rows.size());
  std::vector<MPI_Aint> places;
  const std::vector<int> lengths(rows.size(), 1);
  for (std::size_t i = 0; i < rows.size(); ++i) {
    const piece& one = rows[i];
    PMPI_Type_create_hvector(static_cast<int>(one.rows), static_cast<int>(one.row_bytes), static_cast<MPI_Aint>(one.pitch),
                             byte_type(), &parts[i]);
    places.push_back(one.offset);
  }
  MPI_Datatype all, out;
  MPI_Aint lower = 0, extent = 0;
  PMPI_Type_get_extent(type, &lower, &extent);
  PMPI_Type_create_struct(static_cast<int>(parts.size()), lengths.data(), places.data(), parts.data(), &all);
  PMPI_Type_create_resized(all, lower, extent, &out);
  PMPI_Type_commit(&out);
  PMPI_Type_free(&all);
  for (auto& one : parts) PMPI_Type_free(&one);
  return out;
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
  if (type == type_null()) return failure{EINVAL, "the datatype is MPI_DATATYPE_NULL"};
  if (PMPI_Type_size_x(type, &size) != MPI_SUCCESS || PMPI_Type_get_extent(type, &lower, &extent) != MPI_SUCCESS ||
      PMPI_Type_get_true_extent(type, &true_lower, &true_extent) != MPI_SUCCESS)
    return failure{EINVAL, "the datatype's size and extent cannot be determined"};
  layout out{extent, true_lower, static_cast<std::size_t>(size), nullptr};
  const bool may_be_one_row = size == true_extent;
  if (may_be_one_row && is_predefined(type)) return out;
  auto found = remembered_pieces(type);
  if (!found) return found.error();
  // Elements without gaps may have another order than their addresses (MPI_Type_vector with a negative stride).
  if (may_be_one_row && is_one_row(**found)) return out;
  out.scattered = std::move(*found);
  return out;
}

MPI_Datatype byte_twin(MPI_Datatype type) {
  constexpr std::size_t kMaxRow = 1u << 30;  // the constructors count in int
  const auto form = layout_of(type);
  if (!form || form->scattered == nullptr) return type;
  for (const auto& one : *form->scattered)
    if (one.rows > kMaxRow || one.row_bytes > kMaxRow) return type;
  static std::mutex mutex;
  const std::lock_guard lock(mutex);
  void* kept = nullptr;
  int is_there = 0;
  PMPI_Type_get_attr(type, twin_keyval(), &kept, &is_there);
  if (is_there != 0) return *static_cast<MPI_Datatype*>(kept);
  auto made = std::make_unique<MPI_Datatype>(make_twin(type, *form->scattered));
  const MPI_Datatype out = *made;
  if (PMPI_Type_set_attr(type, twin_keyval(), made.get()) != MPI_SUCCESS) return PMPI_Type_free(made.get()), type;
  (void)made.release();
  return out;
}

}  // namespace pl::mpi
