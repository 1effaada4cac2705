// SPDX-License-Identifier: Apache-2.0
#include "collectives.hpp"

#include <nanobind/stl/unique_ptr.h>

#include <cstring>
#include <memory>
#include <vector>

#include "arguments.hpp"
#include "device_span.hpp"
#include "gil.hpp"
#include "operation.hpp"
#include "stream_order.hpp"
#include "torch.hpp"

namespace pl::py {
namespace {

peerlane_element element_of(const tensor& view) {
  const auto& type = view.type;
  const auto of_size = [&](peerlane_element smallest) {
    return static_cast<peerlane_element>(static_cast<unsigned>(smallest) + (type.bytes == 1   ? 0u
                                                                            : type.bytes == 2 ? 1u
                                                                            : type.bytes == 4 ? 2u
                                                                                              : 3u));
  };
  if (type.kind == element_kind::signed_integer) return of_size(PEERLANE_INT8);
  if (type.kind == element_kind::unsigned_integer) return of_size(PEERLANE_UINT8);
  if (type.kind == element_kind::brain) return PEERLANE_BFLOAT16;
  if (type.kind == element_kind::real && type.bytes == 2) return PEERLANE_FLOAT16;
  if (type.kind == element_kind::real && type.bytes == 4) return PEERLANE_FLOAT32;
  if (type.kind == element_kind::real && type.bytes == 8) return PEERLANE_FLOAT64;
  if (type.name != nullptr && std::strcmp(type.name, "float8_e4m3fn") == 0) return PEERLANE_FLOAT8_E4M3;
  if (type.name != nullptr && std::strcmp(type.name, "float8_e5m2") == 0) return PEERLANE_FLOAT8_E5M2;
  throw nb::type_error(("elements of type " + name_of(type) + " cannot be reduced").c_str());
}

peerlane_reduction reduction_of(const std::string& name) {
  constexpr const char* kNames[] = {"sum", "product", "minimum", "maximum"};
  for (unsigned i = 0; i < 4; ++i)
    if (name == kNames[i]) return static_cast<peerlane_reduction>(i);
  throw nb::value_error(("op: \"" + name + "\" is not one of sum, product, minimum, maximum").c_str());
}

void must_match(const tensor& source, const tensor& destination) {
  if (!source.type.fits(destination.type))
    throw nb::type_error(
        ("the tensors have elements of type " + name_of(source.type) + " and " + name_of(destination.type)).c_str());
}

// ---- Of communicators

using self_t = nb::handle_t<communicator>;

// Source and destination of a collective. Without `out`, it is in place. A rank that has no tensor on one side gives None.
struct two_sides {
  tensor source, destination;
  nb::object source_keep_alive, destination_keep_alive;
  peerlane::buffer source_memory{}, destination_memory{};

  two_sides(nb::handle x, nb::handle out, nb::handle after) {
    if (!x.is_none()) {
      source = settled(x, out.is_none(), after);
      source_memory = memory_of(source);
      source_keep_alive = keep_alive_of(x, source);
    }
    if (out.is_none()) return;
    destination = settled(out, true, after);
    destination_memory = memory_of(destination);
    destination_keep_alive = keep_alive_of(out, destination);
    if (!x.is_none()) must_match(source, destination);
  }
  void place_in_source(nb::handle out) {
    if (out.is_none()) destination_memory = source_memory;
  }
};

// Small collectives may end within this call.
template <class Begin>
std::unique_ptr<operation> begun_by(self_t self, two_sides& sides, Begin&& begin) {
  const auto& owner = *nb::inst_ptr<communicator>(self);
  const communicator::call link(owner);
  auto begun = [&] {
    const gil_release waiting;
    return value_of(begin(*link));
  }();
  const auto or_none = [](nb::object& one) { return one.is_valid() ? std::move(one) : nb::none(); };
  return std::make_unique<operation>(std::move(begun), nb::borrow(self), or_none(sides.source_keep_alive),
                                     or_none(sides.destination_keep_alive), operation::kind::collective, owner.gate());
}

std::unique_ptr<operation> ibroadcast(self_t self, nb::handle x, integer_argument root, nb::handle after) {
  two_sides sides(x, nb::none(), after);
  const int root_rank = root.as<int>("root");
  return begun_by(self, sides, [&](const auto& link) { return link.ibroadcast(sides.source_memory, root_rank); });
}

std::unique_ptr<operation> igather(self_t self, nb::handle x, nb::handle out, integer_argument root, nb::handle after) {
  two_sides sides(x, out, after);
  const int root_rank = root.as<int>("root");
  return begun_by(self, sides,
                  [&](const auto& link) { return link.igather(sides.source_memory, sides.destination_memory, root_rank); });
}

std::unique_ptr<operation> iscatter(self_t self, nb::handle x, nb::handle out, integer_argument root, nb::handle after) {
  two_sides sides(x, out, after);
  const int root_rank = root.as<int>("root");
  return begun_by(self, sides,
                  [&](const auto& link) { return link.iscatter(sides.source_memory, sides.destination_memory, root_rank); });
}

std::unique_ptr<operation> iall_gather(self_t self, nb::handle x, nb::handle out, nb::handle after) {
  two_sides sides(x, out, after);
  return begun_by(self, sides,
                  [&](const auto& link) { return link.iall_gather(sides.source_memory, sides.destination_memory); });
}

std::unique_ptr<operation> iall_to_all(self_t self, nb::handle x, nb::handle out, nb::handle after) {
  two_sides sides(x, out, after);
  sides.place_in_source(out);
  return begun_by(self, sides,
                  [&](const auto& link) { return link.iall_to_all(sides.source_memory, sides.destination_memory); });
}

std::unique_ptr<operation> ireduce(self_t self, nb::handle x, nb::handle out, const std::string& op, integer_argument root,
                                   nb::handle after) {
  two_sides sides(x, out, after);
  const int root_rank = root.as<int>("root");
  sides.place_in_source(out);
  const auto type = element_of(sides.source);
  const auto reduction = reduction_of(op);
  return begun_by(self, sides, [&](const auto& link) {
    return link.ireduce(sides.source_memory, sides.destination_memory, type, reduction, root_rank);
  });
}

std::unique_ptr<operation> iall_reduce(self_t self, nb::handle x, nb::handle out, const std::string& op, nb::handle after) {
  two_sides sides(x, out, after);
  sides.place_in_source(out);
  const auto type = element_of(sides.source);
  const auto reduction = reduction_of(op);
  return begun_by(self, sides, [&](const auto& link) {
    return link.iall_reduce(sides.source_memory, sides.destination_memory, type, reduction);
  });
}

std::unique_ptr<operation> ireduce_scatter(self_t self, nb::handle x, nb::handle out, const std::string& op,
                                           nb::handle after) {
  two_sides sides(x, out, after);
  const auto type = element_of(sides.source);
  const auto reduction = reduction_of(op);
  return begun_by(self, sides, [&](const auto& link) {
    const std::vector<std::size_t> counts(static_cast<std::size_t>(link.size()),
                                          sides.destination_memory.size_bytes() / sides.source.type.bytes);
    return link.ireduce_scatter(sides.source_memory, sides.destination_memory, counts, type, reduction);
  });
}

// ---- Of streams

// The caller must keep the tensors until the stream has used them, as for channels: these calls do not wait for streams.
struct stream_sides {
  peerlane::buffer source{}, destination{};
  peerlane_element type = PEERLANE_UINT8;

  stream_sides(nb::handle x, nb::handle out, bool is_reduction) {
    const tensor given = describe(x, "the source");
    must_be_one_run(given, out.is_none());
    source = destination = memory_of(given);
    if (is_reduction) type = element_of(given);
    if (out.is_none()) return;
    const tensor wanted = describe(out, "the destination");
    must_be_one_run(wanted, true);
    must_match(given, wanted);
    destination = memory_of(wanted);
  }
};

void all_reduce_on(const stream_collectives& self, nb::handle stream, nb::handle x, nb::handle out, const std::string& op) {
  const stream_sides sides(x, out, true);
  must(self.all.all_reduce(stream_of(stream), sides.source, sides.destination, sides.type, reduction_of(op)));
}
void reduce_scatter_on(const stream_collectives& self, nb::handle stream, nb::handle x, nb::handle out,
                       const std::string& op) {
  const stream_sides sides(x, out, true);
  must(self.all.reduce_scatter(stream_of(stream), sides.source, sides.destination, sides.type, reduction_of(op)));
}
void all_gather_on(const stream_collectives& self, nb::handle stream, nb::handle x, nb::handle out) {
  const stream_sides sides(x, out, false);
  must(self.all.all_gather(stream_of(stream), sides.source, sides.destination));
}
void all_to_all_on(const stream_collectives& self, nb::handle stream, nb::handle x, nb::handle out) {
  const stream_sides sides(x, out, false);
  must(self.all.all_to_all(stream_of(stream), sides.source, sides.destination));
}

}  // namespace

void bind_collectives(nb::class_<communicator>& type) {
  const auto any = nb::arg("after").none() = "auto";
  const auto out = nb::arg("out").none() = nb::none();
  const auto op = nb::arg("op") = "sum";
  type.def("ibroadcast", &ibroadcast, nb::arg("x").none(), nb::arg("root").none() = 0, nb::kw_only(), any,
           nb::sig("def ibroadcast(self, x: peerlane._types.AnyArray, root: int = 0, *, after: peerlane._types.After = "
                   "'auto') -> Operation"),
           "Begins to send the root's tensor to all ranks.")
      .def("igather", &igather, nb::arg("x").none(), out, nb::arg("root").none() = 0, nb::kw_only(), any,
           nb::sig("def igather(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray | None = None, root: int = "
                   "0, *, after: peerlane._types.After = 'auto') -> Operation"),
           "Begins to collect the tensors of all ranks at the root, in `out` there, by rank.")
      .def("iscatter", &iscatter, nb::arg("x").none(), nb::arg("out").none(), nb::arg("root").none() = 0, nb::kw_only(), any,
           nb::sig("def iscatter(self, x: peerlane._types.AnyArray | None, out: peerlane._types.AnyArray, root: int = 0, *, "
                   "after: peerlane._types.After = 'auto') -> Operation"),
           "Begins to send each rank its block of the root's x, into `out`. Ranks other than the root pass None for x.")
      .def("iall_gather", &iall_gather, nb::arg("x").none(), nb::arg("out").none(), nb::kw_only(), any,
           nb::sig("def iall_gather(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray, *, after: "
                   "peerlane._types.After = 'auto') -> Operation"),
           "Begins to collect the tensors of all ranks at every rank, in `out`, by rank.")
      .def("iall_to_all", &iall_to_all, nb::arg("x").none(), out, nb::kw_only(), any,
           nb::sig(
               "def iall_to_all(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray | None = None, *, after: "
               "peerlane._types.After = 'auto') -> Operation"),
           "Begins to send each rank its block of every rank's x. In place if `out` is None.")
      .def("ireduce", &ireduce, nb::arg("x").none(), out, op, nb::arg("root").none() = 0, nb::kw_only(), any,
           nb::sig(
               "def ireduce(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray | None = None, op: "
               "peerlane._types.Reduction = 'sum', root: int = 0, *, after: peerlane._types.After = 'auto') -> Operation"),
           "Begins to combine the elements of all ranks at the root, in `out` there, or in x.")
      .def("iall_reduce", &iall_reduce, nb::arg("x").none(), out, op, nb::kw_only(), any,
           nb::sig("def iall_reduce(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray | None = None, op: "
                   "peerlane._types.Reduction = 'sum', *, after: peerlane._types.After = 'auto') -> Operation"),
           "Begins to combine the elements of all ranks, in `out`, or in x.")
      .def("ireduce_scatter", &ireduce_scatter, nb::arg("x").none(), nb::arg("out").none(), op, nb::kw_only(), any,
           nb::sig("def ireduce_scatter(self, x: peerlane._types.AnyArray, out: peerlane._types.AnyArray, op: "
                   "peerlane._types.Reduction = 'sum', *, after: peerlane._types.After = 'auto') -> Operation"),
           "Begins to combine the elements of all ranks. Each rank gets its block of the result in `out`. All blocks have "
           "one size.");
}

void bind_stream_collectives(nb::module_& module) {
  const auto out = nb::arg("out").none() = nb::none();
  const auto op = nb::arg("op") = "sum";
  const auto stream = nb::arg("stream").none();
  nb::class_<stream_collectives>(
      module, "StreamCollectives",
      "Collectives that streams execute. Every rank queues the same calls in the same order, on one stream. Keep the "
      "tensors until\nthe stream has passed the call (PyTorch: x.record_stream). Calls may be captured in graphs.")
      .def("all_reduce", &all_reduce_on, stream, nb::arg("x").none(), out, op,
           nb::sig("def all_reduce(self, stream: peerlane._types.Stream, x: peerlane._types.DeviceArray, out: "
                   "peerlane._types.DeviceArray | None = None, op: peerlane._types.Reduction = 'sum') -> None"),
           "Combines the elements of all ranks, in `out`, or in x.")
      .def("reduce_scatter", &reduce_scatter_on, stream, nb::arg("x").none(), nb::arg("out").none(), op,
           nb::sig("def reduce_scatter(self, stream: peerlane._types.Stream, x: peerlane._types.DeviceArray, out: "
                   "peerlane._types.DeviceArray, op: peerlane._types.Reduction = 'sum') -> None"),
           "Combines the elements of all ranks. Each rank gets its block of the result in `out`.")
      .def("all_gather", &all_gather_on, stream, nb::arg("x").none(), nb::arg("out").none(),
           nb::sig("def all_gather(self, stream: peerlane._types.Stream, x: peerlane._types.DeviceArray, out: "
                   "peerlane._types.DeviceArray) -> None"),
           "Collects x of all ranks in `out`, by rank.")
      .def("all_to_all", &all_to_all_on, stream, nb::arg("x").none(), nb::arg("out").none(),
           nb::sig("def all_to_all(self, stream: peerlane._types.Stream, x: peerlane._types.DeviceArray, out: "
                   "peerlane._types.DeviceArray) -> None"),
           "Sends each rank its block of every rank's x.")
      .def(
          "barrier", [](const stream_collectives& self, nb::handle queue) { must(self.all.barrier(stream_of(queue))); },
          stream, nb::sig("def barrier(self, stream: peerlane._types.Stream) -> None"),
          "Later work on the stream begins when the streams of all ranks have reached the barrier.")
      .def(
          "check", [](const stream_collectives& self) { must(self.all.state()); },
          "Raises the reason if the collectives have been stopped. It does not wait.")
      .def(
          "cancel", [](const stream_collectives& self) { must(self.all.cancel()); },
          "Stops the collectives: waiting kernels end.")
      .def(
          "close",
          [](stream_collectives& self) {
            const auto outcome = [&] {
              const gil_release waiting;
              return self.all.get() != 0 ? self.all.close() : peerlane::status();
            }();
            must(outcome);
          },
          "Frees the memory. Collective; call it when everything queued has ended. You may call it repeatedly.");
}

}  // namespace pl::py
