// SPDX-License-Identifier: Apache-2.0
// Opens, closes and queries a communicator. The contract is in peerlane/communicator.h.
#include "capi/open_comm.hpp"

#include "base/env.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "capi/borrowed_planner.hpp"
#include "capi/collective_operations.hpp"
#include "copy/calibration.hpp"
#include "messaging/bootstrap/cpu_binding.hpp"
#include "messaging/bootstrap/local_bootstrap.hpp"

namespace pl {
namespace {

open_table<peerlane_comm, 64> g_comms;

constexpr const char* kForeignComm =
    "the communicator belongs to another process (made before fork): open one in this process, after the fork";

// ---- The caller's exchange

failure refused_by_caller(const char* message, int code) {
  return {code > 0 ? code : EIO, format("the bootstrap's %s failed: %s", message, errno_text(code).c_str())};
}

// Exchanges contributions of different lengths over an exchange of equal ones: lengths first, then all padded to the
// longest.
class callers_bootstrap final : public messaging::bootstrap {
 public:
  explicit callers_bootstrap(const peerlane_bootstrap& given) : given_(given) {}
  int rank() const noexcept override { return given_.rank; }
  int size() const noexcept override { return given_.size; }

  result<std::vector<messaging::byte_string>> all_gather(std::span<const std::byte> mine) override {
    const auto count = static_cast<std::size_t>(given_.size);
    const std::uint64_t length = mine.size();
    std::vector<std::uint64_t> lengths(count);
    if (const int code = given_.all_gather(given_.context, &length, sizeof length, lengths.data()))
      return refused_by_caller("all_gather", code);
    const std::uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
    if (longest > kMaxBytes || lengths[static_cast<std::size_t>(given_.rank)] != length)
      return failure{EPROTO,
                     "the bootstrap's all_gather gave what no rank sent: it must put the bytes of all ranks, in their "
                     "order, into `all`"};
    messaging::byte_string padded(mine.begin(), mine.end()), whole(count * longest);
    padded.resize(longest);
    if (longest != 0)
      if (const int code = given_.all_gather(given_.context, padded.data(), longest, whole.data()))
        return refused_by_caller("all_gather", code);
    std::vector<messaging::byte_string> out;
    for (std::size_t i = 0; i < count; ++i) {
      const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(i * longest);
      out.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(lengths[i]));
    }
    return out;
  }

  status barrier() override {
    if (given_.barrier == nullptr) return bootstrap::barrier();
    const int code = given_.barrier(given_.context);
    return code == 0 ? status() : status(refused_by_caller("barrier", code));
  }

 private:
  static constexpr std::uint64_t kMaxBytes = 64u << 20;
  peerlane_bootstrap given_;
};

// Exchanges of an elastic job: its meeting ends with the first process that leaves, but its collectives do not.
class exchange_by_collectives final : public messaging::bootstrap {
 public:
  exchange_by_collectives(messaging::messenger& messages, collectives::executor& collective)
      : messages_(messages), collective_(collective) {}
  int rank() const noexcept override { return messages_.rank(); }
  int size() const noexcept override { return messages_.size(); }
  bool stays_open() const noexcept override { return true; }

  // Lengths first, then all padded to the longest.
  result<std::vector<messaging::byte_string>> all_gather(std::span<const std::byte> mine) override {
    const auto count = static_cast<std::size_t>(size());
    const std::uint64_t length = mine.size();
    std::vector<std::uint64_t> lengths(count);
    if (auto done = gather(&length, sizeof length, lengths.data()); !done) return std::move(done).error();
    const std::uint64_t longest = *std::max_element(lengths.begin(), lengths.end());
    messaging::byte_string padded(mine.begin(), mine.end()), whole(count * longest);
    padded.resize(longest);
    if (longest != 0)
      if (auto done = gather(padded.data(), longest, whole.data()); !done) return std::move(done).error();
    std::vector<messaging::byte_string> out;
    for (std::size_t i = 0; i < count; ++i) {
      const auto begin = whole.begin() + static_cast<std::ptrdiff_t>(i * longest);
      out.emplace_back(begin, begin + static_cast<std::ptrdiff_t>(lengths[i]));
    }
    return out;
  }

 private:
  status gather(const void* mine, std::size_t bytes, void* all) {
    auto begun = collective_.all_gather(messaging::host_buffer(mine, bytes),
                                        messaging::host_buffer(all, bytes * static_cast<std::size_t>(size())));
    return begun ? begun->wait() : status(begun.error());
  }
  messaging::messenger& messages_;
  collectives::executor& collective_;
};

// ---- Options

void choose(std::uint32_t given, bool& value) {
  if (given != PEERLANE_AS_SET) value = given == PEERLANE_YES;
}
void choose(std::uint64_t given, std::size_t& value) {
  if (given != 0) value = given;
}
unsigned whole_seconds(std::int64_t timeout_ms) {
  constexpr std::int64_t kForEver = 24 * 3600;  // a day; its milliseconds fit into an int
  return static_cast<unsigned>(timeout_ms < 0 ? kForEver
                                              : std::min(kForEver, timeout_ms / 1000 + (timeout_ms % 1000 != 0 ? 1 : 0)));
}

// Null if no driver answers, or none is wanted.
const cu::driver_table* driver_for(const peerlane_comm_options& given) {
  if (given.host_only != 0) return nullptr;
  auto cuda = cu::driver();
  auto ready = cuda ? cu::initialize(**cuda) : status(cuda.error());
  if (ready) return *cuda;
  PL_LOG(info, "messages of host memory only: %s", ready.error().message.c_str());
  return nullptr;
}

cpu_numbers cpus_near_current(const cu::driver_table* cuda) {
  cu::device_t device = 0;
  cu::context_t current = nullptr;
  if (cuda == nullptr) return {};
  if (cuda->cuCtxGetCurrent(&current) != cu::error_code::success || current == nullptr ||
      cuda->cuCtxGetDevice(&device) != cu::error_code::success)
    device = 0;
  const auto cpus = copy::cpus_near_device(*cuda, device);
  return {cpus.begin(), cpus.end()};
}

result<std::string> bind_cpus(const peerlane_comm_options& given, const cu::driver_table* cuda, int rank) {
  const std::string policy = given.cpus != nullptr ? given.cpus : messaging::cpu_policy_from_environment();
  const auto launched = messaging::read_launcher();
  const int local_rank = launched.local_rank >= 0 ? launched.local_rank : rank;
  return messaging::bind_this_thread(policy, policy == "near" ? cpus_near_current(cuda) : cpu_numbers{},
                                     {local_rank, launched.ranks_here});
}

result<std::unique_ptr<open_comm>> open_with(const peerlane_comm_options& given) {
  auto made = std::make_unique<open_comm>();
  auto options = messenger_options_from(given);
  const cu::driver_table* const cuda = driver_for(given);
  if (given.copier != nullptr && cuda != nullptr) {
    int code = 0;
    options.planner = borrow_planner(given.copier, code);
    if (options.planner == nullptr) return failure{code, last_error()};
    made->copier = given.copier;
  }
  auto group = meet(given);
  if (!group) return std::move(group).error();
  made->group = *std::move(group);
  auto bound = bind_cpus(given, cuda, made->group->rank());
  if (!bound) return std::move(bound).error();
  made->cpus = *std::move(bound);
  auto opened = messaging::messenger::open(cuda, *made->group, options);
  if (!opened) return std::move(opened).error();
  made->messenger = *std::move(opened);
  auto collective = collectives::executor::open(*made->messenger, *made->group);
  if (!collective) return std::move(collective).error();
  made->collectives = *std::move(collective);
  if (!made->messenger->is_elastic()) return made;
  made->meeting = std::move(made->group);
  made->group = std::make_unique<exchange_by_collectives>(*made->messenger, *made->collectives);
  return made;
}

}  // namespace

result<peerlane_comm_options> read_comm_options(const peerlane_comm_options* options) {
  peerlane_comm_options given{};
  if (options == nullptr) return given;
  if (options->struct_bytes < sizeof(size_t) + sizeof(void*))
    return failure{EINVAL, "options->struct_bytes is not sizeof(struct peerlane_comm_options)"};
  std::memcpy(&given, options, std::min(options->struct_bytes, sizeof given));
  return given;
}

bool is_elastic(const peerlane_comm_options& given) {
  if (given.elastic != PEERLANE_AS_SET) return given.elastic == PEERLANE_YES;
  return env_read("PEERLANE_LINK_ELASTIC").integer != 0;
}

result<std::unique_ptr<messaging::bootstrap>> meet(const peerlane_comm_options& given) {
  if (given.bootstrap != nullptr) {
    const auto& own = *given.bootstrap;
    if (is_elastic(given))
      return failure{
          ENOTSUP,
          "an elastic job cannot use the caller's bootstrap, in which no rank can come back: set rendezvous, rank "
          "and size, or let a launcher start it"};
    if (own.all_gather == nullptr || own.size < 1 || own.rank < 0 || own.rank >= own.size)
      return failure{EINVAL, format("the bootstrap is invalid: rank %d of %d, or all_gather is null", own.rank, own.size)};
    return std::unique_ptr<messaging::bootstrap>(std::make_unique<callers_bootstrap>(own));
  }
  messaging::bootstrap_options options;
  if (given.rendezvous != nullptr) options.rendezvous = given.rendezvous;
  if (given.size != 0) {
    if (given.size < 0 || given.rank < 0 || given.rank >= given.size)
      return failure{EINVAL, format("rank %d of %d processes: ranks go from 0 to size - 1", given.rank, given.size)};
    options.rank = given.rank;
    options.size = given.size;
  }
  options.is_elastic = is_elastic(given);
  if (given.open_timeout_ms != 0) options.timeout_s = whole_seconds(given.open_timeout_ms);
  options.report = [](const std::string& line) { PL_LOG(info, "%s", line.c_str()); };
  return messaging::open_bootstrap(options);
}

messaging::messenger_options messenger_options_from(const peerlane_comm_options& given) {
  auto out = messaging::messenger_options::from_environment();
  using path = messaging::messenger_options::path_t;
  if (given.network_only != PEERLANE_AS_SET) out.path = given.network_only == PEERLANE_YES ? path::network : path::automatic;
  if (given.ucx_library != nullptr) out.ucx_library = given.ucx_library;
  if (given.rails != nullptr) out.rails = given.rails;
  choose(given.use_ipc, out.use_ipc);
  choose(given.use_gpu_lanes, out.use_ucx_gpu_lanes);
  choose(given.fixed_rail, out.fixed_rail);
  choose(given.calibrate, out.calibrate);
  choose(given.progress_thread, out.progress_thread);
  choose(given.eager_limit, out.eager_limit);
  choose(given.gdr_send_limit, out.gdr_send_limit);
  choose(given.gdr_receive_limit, out.gdr_receive_limit);
  choose(given.ipc_threshold, out.ipc_threshold);
  choose(given.chunk_bytes, out.chunk_bytes);
  choose(given.unexpected_bytes, out.unexpected_bytes);
  choose(given.stripe_threshold, out.stripe_threshold);
  if (given.peer_timeout_ms > 0) out.peer_timeout = std::chrono::milliseconds(given.peer_timeout_ms);
  return out;
}

int all_gather_equal(messaging::bootstrap& group, const void* mine, std::size_t bytes, void* all) {
  constexpr std::size_t kMaxBytes = 16u << 20;
  if (bytes > kMaxBytes) return fail(EINVAL, "all_gather is for setting up, 16 MiB at most: send messages");
  const auto parts = group.all_gather({static_cast<const std::byte*>(mine), bytes});
  if (!parts) return fail(parts.error());
  for (const auto& part : *parts)
    if (part.size() != bytes)
      return fail(EINVAL, "the ranks passed different numbers of bytes: all must pass the same number");
  auto* cursor = static_cast<std::byte*>(all);
  for (const auto& part : *parts) cursor = std::copy(part.begin(), part.end(), cursor);
  return 0;
}

open_comm::~open_comm() {
  end_all(*this);
  end_collectives(*this);
  collectives.reset();
  matched.clear();
  windows.clear();
  registrations.clear();
  messenger.reset();
  if (copier != nullptr) return_planner(copier);
}

open_comm* comm_of(peerlane_comm_t handle, int& code) noexcept { return g_comms.find(handle, kForeignComm, code); }

}  // namespace pl

using pl::fail;
using pl::kNullPointer;
using pl::open_comm;
using pl::return_code;
using pl::with_comm;

PL_EXPORT int peerlane_comm_open(const struct peerlane_comm_options* options, peerlane_comm_t* comm) try {
  const pl::errno_guard guard;
  if (comm == nullptr) return fail(EINVAL, kNullPointer);
  const auto given = pl::read_comm_options(options);
  if (!given) return fail(given.error());
  auto* const slot = pl::g_comms.reserve();
  if (slot == nullptr) return fail(ENFILE, "64 communicators are open: close one, or use one for all threads");
  auto made = pl::open_with(*given);
  pl::g_comms.publish(*slot, made ? made->release() : nullptr);
  if (!made) return fail(made.error());
  *comm = slot;
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_comm_close(peerlane_comm_t comm) try {
  return with_comm(comm, [&](open_comm& communicator) {
    if (pl::end_function::is_in_one_of(comm))
      return fail(EDEADLK, "a function of peerlane_op_then() cannot close the communicator: the call that it is in uses it");
    pl::g_comms.publish(*comm, nullptr);
    delete &communicator;
    return 0;
  });
}
PL_NO_EXCEPTIONS

PL_EXPORT int peerlane_comm_rank(peerlane_comm_t comm) {
  int rank = -1;
  with_comm(comm, [&](open_comm& communicator) { return rank = communicator.messenger->rank(), 0; });
  return rank;
}

PL_EXPORT int peerlane_comm_size(peerlane_comm_t comm) {
  int size = -1;
  with_comm(comm, [&](open_comm& communicator) { return size = communicator.messenger->size(), 0; });
  return size;
}

PL_EXPORT int peerlane_comm_peer_state(peerlane_comm_t comm, int peer) {
  return with_comm(comm, [&](open_comm& communicator) { return return_code(communicator.messenger->peer_state(peer)); });
}

PL_EXPORT int peerlane_comm_is_same_node(peerlane_comm_t comm, int peer, int* same) {
  if (same == nullptr) return fail(EINVAL, kNullPointer);
  return with_comm(comm, [&](open_comm& communicator) {
    if (peer < 0 || peer >= communicator.messenger->size()) return fail(EINVAL, "no such rank");
    *same = communicator.messenger->is_same_node(peer) ? 1 : 0;
    return 0;
  });
}

PL_EXPORT int peerlane_comm_progress(peerlane_comm_t comm, int* moved) {
  return with_comm(comm, [&](open_comm& communicator) {
    const bool did = communicator.collectives->progress();
    call_end_functions(communicator);
    if (moved != nullptr) *moved = did ? 1 : 0;
    return 0;
  });
}

PL_EXPORT int peerlane_comm_event_descriptor(peerlane_comm_t comm, int* descriptor) {
  if (descriptor == nullptr) return fail(EINVAL, kNullPointer);
  return with_comm(comm, [&](open_comm& communicator) {
    const auto opened = communicator.messenger->event_descriptor();
    if (opened) *descriptor = *opened;
    return opened ? 0 : fail(opened.code(), opened.error().message.c_str());
  });
}

PL_EXPORT int peerlane_comm_arm(peerlane_comm_t comm) {
  return with_comm(comm, [&](open_comm& communicator) {
    const auto armed = communicator.messenger->arm();
    call_end_functions(communicator);
    return return_code(armed);
  });
}

PL_EXPORT int peerlane_comm_barrier(peerlane_comm_t comm, int64_t timeout_ms) {
  return with_comm(comm, [&](open_comm& communicator) {
    return return_code(communicator.messenger->barrier(std::chrono::milliseconds(timeout_ms)));
  });
}

PL_EXPORT int peerlane_comm_all_gather(peerlane_comm_t comm, const void* mine, size_t size_bytes, void* all) {
  if ((mine == nullptr || all == nullptr) && size_bytes != 0) return fail(EINVAL, kNullPointer);
  return with_comm(
      comm, [&](open_comm& communicator) { return pl::all_gather_equal(*communicator.group, mine, size_bytes, all); });
}

PL_EXPORT int peerlane_comm_get_statistics(peerlane_comm_t comm, struct peerlane_comm_statistics* statistics) {
  if (statistics == nullptr) return fail(EINVAL, kNullPointer);
  if (statistics->struct_bytes < sizeof(size_t) + sizeof(uint64_t))
    return fail(EINVAL, "statistics->struct_bytes is not sizeof(struct peerlane_comm_statistics)");
  return with_comm(comm, [&](open_comm& communicator) {
    const auto now = communicator.messenger->counts();
    const peerlane_comm_statistics out{statistics->struct_bytes,
                                       now.eager,
                                       now.self,
                                       now.shared_ring,
                                       now.network_ring,
                                       now.ipc,
                                       now.ucx_direct,
                                       now.unexpected,
                                       now.waiting_sends,
                                       now.unexpected_bytes,
                                       now.operations,
                                       now.one_sided,
                                       now.dma};
    std::memcpy(statistics, &out, std::min(statistics->struct_bytes, sizeof out));
    return 0;
  });
}

PL_EXPORT int peerlane_comm_plan(peerlane_comm_t comm, int peer, char* text, size_t capacity, size_t* needed) {
  if (text == nullptr && capacity != 0) return fail(EINVAL, kNullPointer);
  return with_comm(comm, [&](open_comm& communicator) {
    if (peer < 0 || peer >= communicator.messenger->size()) return fail(EINVAL, "no such rank");
    return pl::give_text("this thread: CPUs " + communicator.cpus + "\n" + communicator.messenger->plan(peer), text,
                         capacity, needed);
  });
}
