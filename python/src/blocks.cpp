// SPDX-License-Identifier: Apache-2.0
#include "blocks.hpp"

#include <nanobind/stl/unique_ptr.h>

#include <array>
#include <memory>
#include <peerlane/blocks.hpp>
#include <vector>

#include "copies.hpp"
#include "error.hpp"
#include "gil.hpp"
#include "operation.hpp"
#include "stream_order.hpp"
#include "tensor.hpp"
#include "torch.hpp"

namespace pl::py {
namespace {

// One side: tensors of one shape, whose first dimension counts blocks.
struct paged_tensors {
  const char* role = "";
  std::vector<tensor> planes;
  std::vector<std::uint64_t> addresses;
  tensor indices;
  bool has_indices = false;
  std::uint64_t block_bytes = 0;
  nb::object keep_alive;

  const tensor& first() const { return planes.front(); }
};

[[noreturn]] void refuse(const paged_tensors& side, const std::string& reason) {
  throw nb::value_error(("copy_blocks: the " + std::string(side.role) + ": " + reason).c_str());
}

// Whether each block (all dimensions but the first) is contiguous.
bool are_blocks_contiguous(const tensor& view) {
  std::int64_t step = view.type.bytes;
  for (std::size_t i = view.shape.size(); i-- > 1;) {
    if (view.shape[i] != 1 && view.strides[i] != step) return false;
    step *= view.shape[i];
  }
  return view.strides[0] >= step || view.shape[0] <= 1;
}

// A tuple of two numbers is a pointer and a length.
bool is_list_of_tensors(nb::handle planes) {
  if (nb::isinstance<nb::list>(planes)) return true;
  if (!nb::isinstance<nb::tuple>(planes)) return false;
  const auto tuple = nb::borrow<nb::tuple>(planes);
  return nb::len(tuple) == 0 || !nb::isinstance<nb::int_>(tuple[0]);
}

paged_tensors describe_side(const char* role, nb::handle planes) {
  paged_tensors side;
  side.role = role;
  const std::string described = "copy_blocks: the " + std::string(role);
  nb::list keep_alive;
  const auto add = [&](nb::handle plane) {
    tensor& view = side.planes.emplace_back(describe(plane, described.c_str()));
    keep_alive.append(keep_alive_of(plane, view));
  };
  if (is_list_of_tensors(planes))
    for (nb::handle each : planes) add(each);
  else add(planes);
  side.keep_alive = std::move(keep_alive);
  if (side.planes.empty()) refuse(side, "expected at least one tensor, got none");
  const tensor& first = side.first();
  if (first.shape.size() == 0) refuse(side, "a tensor without dimensions has no blocks");
  if (!are_blocks_contiguous(first)) refuse(side, "a block (all dimensions but the first) must lie in one piece");
  side.block_bytes = first.type.bytes;
  for (std::size_t i = 1; i < first.shape.size(); ++i) side.block_bytes *= static_cast<std::uint64_t>(first.shape[i]);
  for (const tensor& plane : side.planes) {
    if (plane.shape != first.shape || !plane.type.fits(first.type) || !are_blocks_contiguous(plane) ||
        plane.strides[0] != first.strides[0] || plane.location != first.location)
      refuse(side, "its tensors differ in shape, dtype, stride or place");
    side.addresses.push_back(plane.address);
  }
  return side;
}

void take_indices(paged_tensors& side, nb::handle indices) {
  if (indices.is_none()) return;
  side.indices = describe(indices, "copy_blocks: the indices");
  const std::string type = name_of(side.indices.type);
  if (side.indices.location != place::host) refuse(side, "indices in GPU memory: give them in host memory");
  if (type != "int32" && type != "int64") refuse(side, "indices of " + type + ": int32 and int64 are read where they are");
  if (side.indices.shape.size() != 1 || !side.indices.is_contiguous()) refuse(side, "indices must be one run of numbers");
  side.has_indices = true;
}

peerlane_paged_memory to_c(const paged_tensors& side) {
  const tensor& first = side.first();
  const auto blocks = static_cast<std::uint64_t>(first.shape[0]);
  peerlane_paged_memory out{};
  out.planes = side.addresses.data();
  out.stride_bytes = blocks > 1 ? static_cast<std::uint64_t>(first.strides[0]) : side.block_bytes;
  out.plane_size_bytes = blocks == 0 ? 0 : (blocks - 1) * out.stride_bytes + side.block_bytes;
  out.memory = first.location == place::device ? PEERLANE_MEMORY_DEVICE : PEERLANE_MEMORY_HOST;
  if (side.has_indices) {
    out.indices = reinterpret_cast<const void*>(static_cast<std::uintptr_t>(side.indices.address));
    out.index_size_bytes = side.indices.type.bytes;
  }
  return out;
}

std::size_t count_of(const paged_tensors& destination, const paged_tensors& source) {
  const auto given = [](const paged_tensors& side) {
    return static_cast<std::size_t>(side.has_indices ? side.indices.shape[0] : side.first().shape[0]);
  };
  const std::size_t written = given(destination), read = given(source);
  if (destination.has_indices != source.has_indices) return destination.has_indices ? written : read;
  if (written != read)
    throw nb::value_error(("copy_blocks: " + std::to_string(written) + " blocks of the destination, " +
                           std::to_string(read) + " of the source")
                              .c_str());
  return written;
}

// Fills `blocks`, which points into both sides.
void plan(peerlane_blocks& blocks, paged_tensors& destination, paged_tensors& source, nb::handle dst_indices,
          nb::handle src_indices) {
  for (const tensor& plane : destination.planes)
    if (!plane.is_writable) refuse(destination, "it is read-only");
  if (destination.planes.size() != source.planes.size())
    throw nb::value_error("copy_blocks: the destination and the source differ in number of tensors");
  if (destination.block_bytes != source.block_bytes || !destination.first().type.fits(source.first().type))
    throw nb::value_error(("copy_blocks: blocks of " + std::to_string(destination.block_bytes) + " bytes of " +
                           name_of(destination.first().type) + " in the destination, of " +
                           std::to_string(source.block_bytes) + " bytes of " + name_of(source.first().type) +
                           " in the source")
                              .c_str());
  if (destination.first().location == place::host && source.first().location == place::host)
    throw nb::value_error("copy_blocks: both sides lie in host memory: use NumPy");
  take_indices(destination, dst_indices);
  take_indices(source, src_indices);
  blocks.destination = to_c(destination);
  blocks.source = to_c(source);
  blocks.plane_count = destination.planes.size();
  blocks.block_size_bytes = destination.block_bytes;
  blocks.count = count_of(destination, source);
}

std::vector<stream_handle> streams_before(nb::handle after, const paged_tensors& destination, const paged_tensors& source) {
  std::vector<const tensor*> all;
  for (const paged_tensors* side : {&destination, &source})
    for (const tensor& plane : side->planes) all.push_back(&plane);
  return busy_streams(after, all);
}

std::unique_ptr<operation> copy_blocks_async(nb::handle dst, nb::handle src, nb::handle dst_indices, nb::handle src_indices,
                                             bool is_urgent, nb::handle after) {
  paged_tensors destination = describe_side("destination", dst), source = describe_side("source", src);
  peerlane_blocks blocks{};
  plan(blocks, destination, source, dst_indices, src_indices);
  const auto busy = streams_before(after, destination, source);
  // The operation itself can wait for one stream only.
  if (busy.size() > 1) wait_for(std::span(busy).subspan(1));
  auto begun = [&] {
    const gil_release waiting;
    peerlane_op_t op = PEERLANE_OP_INIT;
    const std::uint32_t flags = (busy.empty() ? 0u : static_cast<std::uint32_t>(PEERLANE_BEGIN_AFTER_STREAM)) |
                                (is_urgent ? static_cast<std::uint32_t>(PEERLANE_BEGIN_URGENT) : 0u);
    const int code = peerlane_blocks_begin(shared_copier().get(), &blocks, flags, busy.empty() ? nullptr : busy[0], &op);
    if (code != 0) throw error(code, peerlane_last_error());
    return peerlane::operation(op);
  }();
  return std::make_unique<operation>(std::move(begun), nb::none(), std::move(destination.keep_alive),
                                     std::move(source.keep_alive), operation::kind::copy);
}

// Addresses or sizes: 64-bit integers in host memory, read in place.
tensor describe_numbers(nb::handle numbers, const char* role) {
  tensor out = describe(numbers, role);
  const std::string type = name_of(out.type);
  const auto refuse_it = [&](const std::string& reason) {
    throw nb::value_error((std::string(role) + ": " + reason).c_str());
  };
  if (out.location != place::host) refuse_it("numbers in GPU memory: give them in host memory");
  if (type != "int64" && type != "uint64") refuse_it("numbers of " + type + ": int64 and uint64 are read where they are");
  if (out.shape.size() != 1 || !out.is_contiguous()) refuse_it("give one run of numbers");
  return out;
}

const std::uint64_t* numbers_of(const tensor& described) {
  return reinterpret_cast<const std::uint64_t*>(static_cast<std::uintptr_t>(described.address));
}

std::unique_ptr<operation> copy_block_list_async(nb::handle dst, nb::handle src, nb::handle sizes, bool is_urgent,
                                                 nb::handle after) {
  const tensor destinations = describe_numbers(dst, "copy_block_list: the destinations"),
               sources = describe_numbers(src, "copy_block_list: the sources");
  tensor each;
  peerlane_block_list list{};
  list.destinations = numbers_of(destinations);
  list.sources = numbers_of(sources);
  list.count = static_cast<std::size_t>(destinations.shape[0]);
  bool is_one_length = sources.shape[0] == destinations.shape[0];
  if (is_integer(sizes)) {
    list.block_size_bytes = unsigned_integer(sizes, "copy_block_list: the size");
  } else {
    each = describe_numbers(sizes, "copy_block_list: the sizes");
    list.sizes_bytes = numbers_of(each);
    is_one_length = is_one_length && each.shape[0] == destinations.shape[0];
  }
  if (!is_one_length) throw nb::value_error("copy_block_list: the arrays differ in length");
  const auto busy = busy_streams(after, {});
  auto begun = [&] {
    const gil_release waiting;
    peerlane_op_t op = PEERLANE_OP_INIT;
    const std::uint32_t flags = (busy.empty() ? 0u : static_cast<std::uint32_t>(PEERLANE_BEGIN_AFTER_STREAM)) |
                                (is_urgent ? static_cast<std::uint32_t>(PEERLANE_BEGIN_URGENT) : 0u);
    const int code = peerlane_block_list_begin(shared_copier().get(), &list, flags, busy.empty() ? nullptr : busy[0], &op);
    if (code != 0) throw error(code, peerlane_last_error());
    return peerlane::operation(op);
  }();
  return std::make_unique<operation>(std::move(begun), nb::none(), nb::none(), nb::none(), operation::kind::copy);
}

}  // namespace

void bind_blocks(nb::module_& module) {
  module.def("copy_blocks_async", &copy_blocks_async, nb::arg("dst").none(), nb::arg("src").none(),
             nb::arg("dst_indices").none(), nb::arg("src_indices").none(), nb::arg("urgent"), nb::arg("after").none());
  module.def("copy_block_list_async", &copy_block_list_async, nb::arg("dst"), nb::arg("src"), nb::arg("sizes"),
             nb::arg("urgent"), nb::arg("after").none());
}

}  // namespace pl::py
