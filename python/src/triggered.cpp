// SPDX-License-Identifier: Apache-2.0
#include "triggered.hpp"

#include <nanobind/stl/optional.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/unique_ptr.h>

#include <cstring>
#include <memory>
#include <optional>
#include <peerlane/triggered.hpp>

#include "arguments.hpp"
#include "collectives.hpp"
#include "device_span.hpp"
#include "gil.hpp"
#include "stream_order.hpp"
#include "torch.hpp"
#include "waiting.hpp"

namespace pl::py {
namespace {

class stream_context {
 public:
  stream_context(const std::string& rendezvous, int rank, int size, std::optional<int> device, bool economy,
                 double wait_timeout_s) {
    auto meeting = peerlane::communicator::options();
    meeting.rendezvous = rendezvous.empty() ? nullptr : rendezvous.c_str();
    meeting.rank = rank;
    meeting.size = size;
    auto options = peerlane::triggered::context::options();
    options.comm = &meeting;
    options.mode = economy ? PEERLANE_TRIGGERED_ECONOMY : PEERLANE_TRIGGERED_PERFORMANCE;
    options.has_device = device ? 1 : 0;
    options.device = device.value_or(0);
    options.wait_timeout_ms = static_cast<std::int64_t>(wait_timeout_s * 1e3);
    const gil_release waiting;
    context_ = value_of(peerlane::triggered::context::open(&options));
  }
  ~stream_context() { close(); }
  stream_context(const stream_context&) = delete;
  stream_context& operator=(const stream_context&) = delete;
  void close() {
    const gil_release waiting;
    context_.reset();
  }
  const peerlane::triggered::context& open() const {
    if (context_.get() == nullptr) throw nb::value_error("the stream context is closed");
    return context_;
  }

 private:
  peerlane::triggered::context context_;
};

// A tensor that peers may put into. Keeps the tensor alive.
struct exposed {
  nb::object context, memory;
  peerlane::triggered::window window;
};
struct imported {
  nb::object context;
  peerlane::triggered::remote_window window;
};
struct channel {
  nb::object context;
  peerlane::triggered::channel end;
  ~channel() {
    const gil_release waiting;
    end.reset();
  }
};

using self_t = nb::handle_t<stream_context>;
const peerlane::triggered::context& context_of(self_t self) { return nb::inst_ptr<stream_context>(self)->open(); }

std::unique_ptr<exposed> expose(self_t self, nb::handle x) {
  tensor view = describe(x, "the tensor");
  must_be_one_run(view, true);
  auto made = value_of(context_of(self).expose(memory_of(view)));
  return std::unique_ptr<exposed>(new exposed{nb::borrow(self), keep_alive_of(x, view), std::move(made)});
}

nb::bytes key_of(const exposed& self) { return nb::bytes(self.window.key().bytes, sizeof self.window.key().bytes); }

std::unique_ptr<imported> import_window(self_t self, bytes_argument given) {
  const nb::bytes key = given.as("key");
  peerlane::triggered::window_key plain{};
  if (key.size() != sizeof plain.bytes)
    throw nb::value_error("the key does not belong to a window: pass the key of a window from expose()");
  std::memcpy(plain.bytes, key.c_str(), sizeof plain.bytes);
  return std::unique_ptr<imported>(new imported{nb::borrow(self), value_of(context_of(self).import(plain))});
}

std::unique_ptr<channel> connect(self_t self, integer_argument peer, integer_argument id, integer_argument depth) {
  auto options = peerlane::triggered::context::channel_options();
  options.depth = depth.as<std::uint32_t>("depth");
  return std::unique_ptr<channel>(new channel{
      nb::borrow(self), value_of(context_of(self).connect(peer.as<int>("peer"), id.as<std::uint32_t>("id"), &options))});
}

std::unique_ptr<stream_collectives> open_collectives(self_t self) {
  const auto& context = context_of(self);
  auto opened = [&] {
    const gil_release waiting;
    return value_of(context.open_collectives());
  }();
  return std::unique_ptr<stream_collectives>(new stream_collectives{nb::borrow(self), std::move(opened)});
}

nb::typed<nb::list, nb::bytes> all_gather(self_t self, bytes_argument given) {
  const nb::bytes mine = given.as("all_gather");
  const auto& context = context_of(self);
  const auto bytes = mine.size();
  std::string all(bytes * static_cast<std::size_t>(context.size()), '\0');
  {
    const gil_release waiting;
    if (const int code = peerlane_triggered_all_gather(context.get(), mine.c_str(), bytes, all.data()))
      throw error(code, peerlane_last_error());
  }
  nb::list out;
  for (int rank = 0; rank < context.size(); ++rank)
    out.append(nb::bytes(all.data() + static_cast<std::size_t>(rank) * bytes, bytes));
  return out;
}

// The first call on a channel waits for the peer, so all of these calls release the GIL.
std::uint64_t put_signal(const channel& self, nb::handle stream, const imported& target, integer_argument offset,
                         nb::handle x) {
  const auto offset_bytes = offset.as<std::uint64_t>("offset");
  const tensor view = describe(x, "the tensor");
  must_be_one_run(view, false);
  auto* const native_stream = stream_of(stream);
  const gil_release waiting;
  return value_of(self.end.put_signal(native_stream, target.window, offset_bytes, memory_of(view)));
}

std::uint64_t signal(const channel& self, nb::handle stream) {
  auto* const native_stream = stream_of(stream);
  const gil_release waiting;
  return value_of(self.end.signal(native_stream));
}

std::uint64_t wait_signal(const channel& self, nb::handle stream, integer_argument sequence) {
  const auto number = sequence.as<std::uint64_t>("sequence");
  auto* const native_stream = stream_of(stream);
  const gil_release waiting;
  return value_of(self.end.wait_signal(native_stream, number));
}

void release(const channel& self, nb::handle stream, integer_argument sequence) {
  const auto number = sequence.as<std::uint64_t>("sequence");
  auto* const native_stream = stream_of(stream);
  const gil_release waiting;
  must(self.end.release(native_stream, number));
}

// Repeats wait(slice) while it returns ETIMEDOUT, so that Ctrl-C is noticed between slices.
template <class Wait>
void wait_for_peer(std::chrono::milliseconds limit, Wait&& wait) {
  peerlane::status outcome;
  (void)wait_in_slices(limit, [&](std::chrono::milliseconds slice) {
    outcome = wait(slice);
    return outcome || outcome.code() != ETIMEDOUT;
  });
  must(outcome);
}

void host_wait(const channel& self, integer_argument sequence, nb::handle timeout) {
  const auto number = sequence.as<std::uint64_t>("sequence");
  const auto limit = limit_of(timeout);
  wait_for_peer(limit, [&](std::chrono::milliseconds slice) { return self.end.host_wait(number, slice); });
}

nb::typed<nb::dict, nb::str, nb::any> state_of(const channel& self) {
  const auto state = value_of(self.end.state());
  constexpr const char* kExecutors[] = {"not ready", "peer", "proxy", "dma"};
  nb::dict out;
  out["executor"] = state.executor < 4 ? kExecutors[state.executor] : "unknown";
  out["error"] = state.error;
  out["puts"] = state.puts;
  out["sent"] = state.sent;
  out["waits"] = state.waits;
  out["reached"] = state.reached;
  out["passed"] = state.passed;
  return out;
}

void bind_channel(nb::module_& module) {
  nb::class_<exposed>(module, "StreamWindow",
                      "GPU memory of this process that peers can put to, as long as this object lives.")
      .def_prop_ro("key", &key_of, "The key, as bytes, for the peers.");
  nb::class_<imported>(module, "RemoteWindow", "A peer's window.");
  nb::class_<channel>(
      module, "Channel",
      "This process's end of a channel. Puts and signals are numbered from 1, and so are waits: wait n ends when put or "
      "signal n of\nthe peer is complete. A stream is a CUstream as an integer, or a stream of PyTorch or CuPy.")
      .def(
          "ready",
          [](const channel& self, nb::handle timeout) {
            const auto limit = limit_of(timeout);
            wait_for_peer(limit, [&](std::chrono::milliseconds slice) { return self.end.ready(slice); });
          },
          nb::arg("timeout").none() = nb::none(), nb::sig("def ready(self, timeout: float | None = None) -> None"),
          "Waits until the peer has opened its end.")
      .def("put_signal", &put_signal, nb::arg("stream").none(), nb::arg("to"), nb::arg("offset").none(), nb::arg("x").none(),
           nb::sig("def put_signal(self, stream: peerlane._types.Stream, to: RemoteWindow, offset: int, x: "
                   "peerlane._types.DeviceArray) -> int"),
           "When the stream reaches this call, it copies x to `offset` (bytes) of the window and then signals the peer. "
           "Returns the\nnumber of the signal. Keep x unchanged until the stream has passed the call (PyTorch: "
           "x.record_stream).")
      .def("signal", &signal, nb::arg("stream").none(), nb::sig("def signal(self, stream: peerlane._types.Stream) -> int"),
           "Like put_signal, without a put.")
      .def("wait_signal", &wait_signal, nb::arg("stream").none(), nb::arg("sequence").none() = 0,
           nb::sig("def wait_signal(self, stream: peerlane._types.Stream, sequence: int = 0) -> int"),
           "The stream waits until the peer's signal is complete; 0: the next signal. Returns the number of the signal.")
      .def("release", &release, nb::arg("stream").none(), nb::arg("sequence").none(),
           nb::sig("def release(self, stream: peerlane._types.Stream, sequence: int) -> None"),
           "When the stream has reached this call, the peer may overwrite the data of puts up to `sequence`.")
      .def(
          "arrived",
          [](const channel& self, integer_argument sequence) {
            return value_of(self.end.arrived(sequence.as<std::uint64_t>("sequence")));
          },
          nb::arg("sequence").none(), nb::sig("def arrived(self, sequence: int) -> bool"),
          "Whether the peer's signal with this number is complete. It does not wait.")
      .def("host_wait", &host_wait, nb::arg("sequence").none(), nb::arg("timeout").none() = nb::none(),
           nb::sig("def host_wait(self, sequence: int, timeout: float | None = None) -> None"),
           "Waits for the signal on this thread. The limit is in seconds.")
      .def(
          "cancel", [](const channel& self) { must(self.end.cancel()); },
          "Releases every stream that waits on the channel, and ends the channel with an error on both sides.")
      .def("state", &state_of, nb::sig("def state(self) -> peerlane._types.ChannelState"),
           "Executor, error (0: none) and counts of puts and waits, as a dictionary.")
      .def(
          "diag", [](const channel& self) { return value_of(self.end.diag()); },
          "Returns what the channel waits for, as readable text.");
}

}  // namespace

void bind_triggered(nb::module_& module) {
  bind_channel(module);
  bind_stream_collectives(module);
  nb::class_<stream_context>(module, "StreamContext", nb::is_weak_referenceable(), "What peerlane.triggered.open() returns.")
      .def(nb::init<const std::string&, int, int, std::optional<int>, bool, double>(), nb::arg("rendezvous"),
           nb::arg("rank"), nb::arg("size"), nb::arg("device").none(), nb::arg("economy"), nb::arg("wait_timeout"))
      .def("close", &stream_context::close,
           "Closes the channels; synchronise the streams first. You may call it repeatedly.")
      .def_prop_ro(
          "rank", [](self_t self) { return context_of(self).rank(); }, "Rank of this process, from 0.")
      .def_prop_ro(
          "size", [](self_t self) { return context_of(self).size(); }, "Number of processes that take part.")
      .def("expose", &expose, nb::arg("x").none(),
           nb::sig("def expose(self, x: peerlane._types.DeviceArray) -> StreamWindow"),
           "Lets peers put to the GPU tensor. The window keeps the tensor. Send the window's key to the peers.")
      .def("import_window", &import_window, nb::arg("key").none(),
           nb::sig("def import_window(self, key: bytes) -> RemoteWindow"), "Makes a peer's window from its key.")
      .def("connect", &connect, nb::arg("peer").none(), nb::arg("id").none(), nb::arg("depth").none() = 0,
           nb::sig("def connect(self, peer: int, id: int, depth: int = 0) -> Channel"),
           "Opens this process's end of channel `id`; the peer connects with the same id. `depth`: put n waits until put n "
           "- depth was\nreleased; 0: no such wait.")
      .def("open_collectives", &open_collectives,
           "Opens collectives between all ranks, which streams execute. Collective. Close them before the context.")
      .def("all_gather", &all_gather, nb::arg("mine").none(), nb::sig("def all_gather(self, mine: bytes) -> list[bytes]"),
           "Returns the bytes of every rank, in the order of ranks. All have one length. Use it for setup.")
      .def(
          "barrier",
          [](self_t self) {
            const auto& context = context_of(self);
            const gil_release waiting;
            must(context.barrier());
          },
          "Returns when every process has called it.")
      .def(
          "diag", [](self_t self) { return value_of(context_of(self).diag()); },
          "Returns the state of every channel and of the proxy thread, as readable text.");
}

}  // namespace pl::py
