// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/type_tree.hpp"

#include <algorithm>

#include "base/text.hpp"

namespace pl::mpi {
namespace {

struct envelope {
  int integers = 0, addresses = 0, types = 0, combiner = MPI_COMBINER_NAMED;
  int counts = 0;  // of a constructor with MPI_Count arguments
};

envelope envelope_of(MPI_Datatype type) {
  envelope out;
#if MPI_VERSION >= 4
  // The other form is an error for a type of large counts, and error handlers end the program.
  MPI_Count integers = 0, addresses = 0, counts = 0, types = 0;
  PMPI_Type_get_envelope_c(type, &integers, &addresses, &counts, &types, &out.combiner);
  if (counts != 0) {
    out.integers = static_cast<int>(integers), out.addresses = static_cast<int>(addresses);
    out.counts = static_cast<int>(counts), out.types = static_cast<int>(types);
    return out;
  }
#endif
  PMPI_Type_get_envelope(type, &out.integers, &out.addresses, &out.types, &out.combiner);
  return out;
}

// The arguments of a type's constructor. The types among them are handles of our own, to be freed unless predefined. Those
// of a constructor with MPI_Count arguments are put where the other form has them.
class arguments {
 public:
  arguments(MPI_Datatype type, const envelope& form)
      : addresses(static_cast<std::size_t>(form.addresses)), types(static_cast<std::size_t>(form.types)) {
    std::vector<int> numbers(static_cast<std::size_t>(form.integers));
#if MPI_VERSION >= 4
    if (form.counts != 0) {
      std::vector<MPI_Count> counts(static_cast<std::size_t>(form.counts));
      PMPI_Type_get_contents_c(type, form.integers, form.addresses, form.counts, form.types, numbers.data(),
                               addresses.data(), counts.data(), types.data());
      sort(form.combiner, numbers, counts);
      return;
    }
#endif
    PMPI_Type_get_contents(type, form.integers, form.addresses, form.types, numbers.data(), addresses.data(), types.data());
    integers.assign(numbers.begin(), numbers.end());
  }
  arguments(const arguments&) = delete;
  arguments& operator=(const arguments&) = delete;
  ~arguments() {
    for (auto& type : types)
      if (envelope_of(type).combiner != MPI_COMBINER_NAMED) PMPI_Type_free(&type);
  }
  std::vector<MPI_Count> integers;
  std::vector<MPI_Aint> addresses;
  std::vector<MPI_Datatype> types;

 private:
  void sort(int combiner, const std::vector<int>& numbers, const std::vector<MPI_Count>& counts) {
    std::size_t first_address = counts.size();
    if (combiner == MPI_COMBINER_HVECTOR || combiner == MPI_COMBINER_HINDEXED_BLOCK) first_address = 2;
    if (combiner == MPI_COMBINER_HINDEXED || combiner == MPI_COMBINER_STRUCT)
      first_address = 1 + static_cast<std::size_t>(counts[0]);
    const auto middle = counts.begin() + static_cast<std::ptrdiff_t>(std::min(first_address, counts.size()));
    integers.assign(counts.begin(), middle);
    addresses.assign(middle, counts.end());
    // The sizes of an array are counts, and the other arguments are not.
    if (combiner == MPI_COMBINER_SUBARRAY) {
      integers.insert(integers.begin(), numbers[0]);  // how many dimensions
      integers.push_back(numbers[1]);                 // their order
    }
    if (combiner == MPI_COMBINER_DARRAY) {
      constexpr auto kBeforeSizes = 3;
      integers.insert(integers.begin(), numbers.begin(), numbers.begin() + kBeforeSizes);
      integers.insert(integers.end(), numbers.begin() + kBeforeSizes, numbers.end());
    }
  }
};

std::ptrdiff_t extent_of(MPI_Datatype type) {
  MPI_Aint lower = 0, extent = 0;
  PMPI_Type_get_extent(type, &lower, &extent);
  return extent;
}

void append(pieces& out, const pieces& rows, std::ptrdiff_t offset) {
  for (piece one : rows) {
    one.offset += offset;
    if (!out.empty() && out.back().rows == 1 && one.rows == 1 &&
        out.back().offset + static_cast<std::ptrdiff_t>(out.back().row_bytes) == one.offset)
      out.back().row_bytes += one.row_bytes;
    else out.push_back(one);
  }
}

// A predefined type with a gap is a value and an int at its end: MPI_SHORT_INT and its like.
pieces take_pair_apart(MPI_Datatype type) {
  MPI_Aint lower = 0, extent = 0;
  int size = 0;
  PMPI_Type_size(type, &size);
  PMPI_Type_get_true_extent(type, &lower, &extent);
  const auto bytes = static_cast<std::size_t>(size);
  if (size == extent) return {piece{lower, bytes, 1, bytes}};
  const std::size_t value = bytes - sizeof(int);
  return {piece{0, value, 1, value}, piece{extent - static_cast<std::ptrdiff_t>(sizeof(int)), sizeof(int), 1, sizeof(int)}};
}

// Blocks of one base type: block i has lengths(i) elements and lies `at(i)` bytes from the beginning.
template <class Length, class At>
pieces take_blocks(const pieces& base, std::ptrdiff_t extent, MPI_Count n, Length length, At offset_of) {
  pieces out;
  for (MPI_Count i = 0; i < n; ++i) append(out, repeat(base, static_cast<std::size_t>(length(i)), extent), offset_of(i));
  return out;
}

pieces take_subarray(const std::vector<MPI_Count>& numbers, pieces base, std::ptrdiff_t extent) {
  const MPI_Count n = numbers[0];
  const auto number = [&](MPI_Count group, MPI_Count dimension) {
    return numbers[static_cast<std::size_t>(1 + group * n + dimension)];
  };
  const bool c_order = numbers[static_cast<std::size_t>(1 + 3 * n)] == MPI_ORDER_C;
  std::ptrdiff_t step = extent, begin = 0;
  for (MPI_Count i = 0; i < n; ++i) {  // the dimension whose neighbours lie closest first
    const MPI_Count dimension = c_order ? n - 1 - i : i;
    base = repeat(std::move(base), static_cast<std::size_t>(number(1, dimension)), step);
    begin += number(2, dimension) * step;
    step *= number(0, dimension);
  }
  pieces out;
  append(out, base, begin);
  return out;
}

// Elements of one dimension that a process holds.
struct share {
  MPI_Count size, distribution, block, processes, coordinate;

  // Calls `found(first, n)` for each run of them.
  template <class Found>
  void for_each_run(Found found) const {
    if (distribution == MPI_DISTRIBUTE_NONE) return found(MPI_Count{0}, size);
    const bool is_cyclic = distribution == MPI_DISTRIBUTE_CYCLIC;
    const MPI_Count usual = is_cyclic ? 1 : (size + processes - 1) / processes;
    const MPI_Count length = block == MPI_DISTRIBUTE_DFLT_DARG ? usual : block;
    const MPI_Count step = is_cyclic ? length * processes : size;  // a block distribution has one run
    for (MPI_Count first = coordinate * length; first < size; first += step) found(first, std::min(length, size - first));
  }
};

// The numbers: processes, own rank, n dimensions, and for each dimension its size, distribution, block and processes; order.
pieces take_darray(const std::vector<MPI_Count>& numbers, pieces base, std::ptrdiff_t extent) {
  const MPI_Count n = numbers[2];
  const auto number = [&](MPI_Count group, MPI_Count dimension) {
    return numbers[static_cast<std::size_t>(3 + group * n + dimension)];
  };
  std::vector<MPI_Count> coordinates(static_cast<std::size_t>(n));
  MPI_Count rank = numbers[1];
  for (MPI_Count i = n; i-- > 0;) {  // the grid of processes is row by row in both orders
    coordinates[static_cast<std::size_t>(i)] = rank % number(3, i);
    rank /= number(3, i);
  }
  const bool c_order = numbers[static_cast<std::size_t>(3 + 4 * n)] == MPI_ORDER_C;
  std::ptrdiff_t step = extent;
  for (MPI_Count i = 0; i < n; ++i) {  // the dimension whose neighbours lie closest first
    const MPI_Count dimension = c_order ? n - 1 - i : i;
    const share own{number(0, dimension), number(1, dimension), number(2, dimension), number(3, dimension),
                    coordinates[static_cast<std::size_t>(dimension)]};
    pieces rows;
    own.for_each_run([&](MPI_Count first, MPI_Count length) {
      append(rows, repeat(base, static_cast<std::size_t>(length), step), first * step);
    });
    base = std::move(rows);
    step *= own.size;
  }
  return base;
}

result<pieces> take_struct(const arguments& contents) {
  pieces out;
  for (std::size_t i = 0; i < contents.types.size(); ++i) {
    auto field = take_apart(contents.types[i]);
    if (!field) return field;
    append(out, repeat(std::move(*field), static_cast<std::size_t>(contents.integers[1 + i]), extent_of(contents.types[i])),
           contents.addresses[i]);
  }
  return out;
}

// All the constructors that have one base type.
result<pieces> take_regular(int combiner, const arguments& contents, const pieces& base, std::ptrdiff_t extent) {
  const auto& numbers = contents.integers;
  const auto number = [&](MPI_Count i) { return numbers[static_cast<std::size_t>(i)]; };
  const auto address = [&](MPI_Count i) { return contents.addresses[static_cast<std::size_t>(i)]; };
  const MPI_Count n = numbers.empty() ? 0 : numbers[0];
  const auto vector = [&](std::ptrdiff_t stride) {
    return repeat(repeat(base, static_cast<std::size_t>(number(1)), extent), static_cast<std::size_t>(n), stride);
  };
  switch (combiner) {
    case MPI_COMBINER_DUP:
    case MPI_COMBINER_RESIZED:
      return base;
    case MPI_COMBINER_CONTIGUOUS:
      return repeat(base, static_cast<std::size_t>(n), extent);
    case MPI_COMBINER_VECTOR:
      return vector(number(2) * extent);
    case MPI_COMBINER_HVECTOR:
      return vector(address(0));
    case MPI_COMBINER_INDEXED:
      return take_blocks(
          base, extent, n, [&](MPI_Count i) { return number(1 + i); },
          [&](MPI_Count i) { return number(1 + n + i) * extent; });
    case MPI_COMBINER_HINDEXED:
      return take_blocks(
          base, extent, n, [&](MPI_Count i) { return number(1 + i); }, address);
    case MPI_COMBINER_INDEXED_BLOCK:
      return take_blocks(
          base, extent, n, [&](MPI_Count) { return number(1); }, [&](MPI_Count i) { return number(2 + i) * extent; });
    case MPI_COMBINER_HINDEXED_BLOCK:
      return take_blocks(
          base, extent, n, [&](MPI_Count) { return number(1); }, address);
    case MPI_COMBINER_SUBARRAY:
      return take_subarray(numbers, base, extent);
    case MPI_COMBINER_DARRAY:
      return take_darray(numbers, base, extent);
    default:
      return failure{ENOTSUP,
                     format("a datatype of device memory was made in a way that is not supported (combiner %d)", combiner)};
  }
}

}  // namespace

bool is_predefined(MPI_Datatype type) {
  const envelope form = envelope_of(type);
  return form.combiner == MPI_COMBINER_NAMED || form.types == 0;
}

result<pieces> take_apart(MPI_Datatype type) {
  const envelope form = envelope_of(type);
  if (form.combiner == MPI_COMBINER_NAMED || form.types == 0) return take_pair_apart(type);
  const arguments contents(type, form);
  if (form.combiner == MPI_COMBINER_STRUCT) return take_struct(contents);
  auto base = take_apart(contents.types[0]);
  if (!base) return base;
  return take_regular(form.combiner, contents, *base, extent_of(contents.types[0]));
}

result<MPI_Datatype> element_type(MPI_Datatype type) {
  const envelope form = envelope_of(type);
  if (form.combiner == MPI_COMBINER_NAMED || form.types == 0) return type;
  const arguments contents(type, form);
  auto out = element_type(contents.types[0]);
  for (std::size_t i = 1; out && i < contents.types.size(); ++i) {
    auto other = element_type(contents.types[i]);
    if (!other) return other;
    if (*other != *out) return failure{EINVAL, "an accumulate takes a datatype that consists of a single predefined type"};
  }
  return out;
}

}  // namespace pl::mpi
