// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/mpi_library.hpp"

#include <dlfcn.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <exception>
#include <memory>
#include <type_traits>

#include "base/env.hpp"
#include "base/text.hpp"
#include "messaging/bootstrap/local_bootstrap.hpp"
#include "tools/common/tool.hpp"
#include "tools/p2p/collective_calls.hpp"

namespace pl::p2p {
namespace {

using tools::tool_failure;

constexpr const char* kOpenMpi = "libmpi.so.40";
// MPICH's binary interface; Debian names its library otherwise.
constexpr const char* kMpich = "libmpi.so.12";
constexpr const char* kDebianMpich = "libmpich.so.12";
constexpr std::size_t kMaxText = 8192;  // MPI_MAX_LIBRARY_VERSION_STRING of the larger one

// An MPI's functions with handles of type H.
template <class H>
struct mpi_functions {
  int (*Init)(int*, char***);
  int (*Initialized)(int*);
  int (*Finalize)();
  int (*Comm_rank)(H, int*);
  int (*Comm_size)(H, int*);
  int (*Comm_set_errhandler)(H, H);
  int (*Error_string)(int, char*, int*);
  int (*Get_library_version)(char*, int*);
  int (*Send)(const void*, int, H, int, int, H);
  int (*Recv)(void*, int, H, int, int, H, void*);
  int (*Isend)(const void*, int, H, int, int, H, H*);
  int (*Irecv)(void*, int, H, int, int, H, H*);
  int (*Waitall)(int, H*, void*);
  int (*Barrier)(H);
  int (*Allgather)(const void*, int, H, void*, int, H, H);
  int (*Bcast)(void*, int, H, int, H);
  int (*Gather)(const void*, int, H, void*, int, H, int, H);
  int (*Scatter)(const void*, int, H, void*, int, H, int, H);
  int (*Reduce)(const void*, void*, int, H, H, int, H);
  int (*Allreduce)(const void*, void*, int, H, H, H);
  int (*Reduce_scatter)(const void*, void*, const int*, H, H, H);
  int (*Alltoall)(const void*, int, H, void*, int, H, H);
  int (*Alltoallv)(const void*, const int*, const int*, H, void*, const int*, const int*, H, H);
};

struct open_mpi_abi {
  using handle = void*;
  static constexpr void* statuses_ignore = nullptr;
  handle world = nullptr, byte = nullptr, real = nullptr, sum = nullptr, errors_return = nullptr;
  void resolve(void* library) {
    world = symbol(library, "ompi_mpi_comm_world");
    byte = symbol(library, "ompi_mpi_byte");
    real = symbol(library, "ompi_mpi_float");
    sum = symbol(library, "ompi_mpi_op_sum");
    errors_return = symbol(library, "ompi_mpi_errors_return");
  }
  static void* symbol(void* library, const char* name) {
    void* found = dlsym(library, name);
    if (found == nullptr) throw tool_failure(format("%s has no %s: not Open MPI", kOpenMpi, name));
    return found;
  }
};

struct mpich_abi {
  using handle = int;
  static inline void* const statuses_ignore = reinterpret_cast<void*>(1);
  handle world = 0x44000000, byte = 0x4c00010d, real = 0x4c00040a, sum = 0x58000003, errors_return = 0x54000001;
  void resolve(void* /*library*/) {}
};

template <class Function>
void resolve_function(void* library, const char* name, Function& function) {
  function = reinterpret_cast<Function>(dlsym(library, name));
  if (function == nullptr) throw tool_failure(format("the MPI library has no %s", name));
}

template <class H>
mpi_functions<H> resolve_functions(void* library) {
  mpi_functions<H> out{};
  resolve_function(library, "MPI_Init", out.Init);
  resolve_function(library, "MPI_Initialized", out.Initialized);
  resolve_function(library, "MPI_Finalize", out.Finalize);
  resolve_function(library, "MPI_Comm_rank", out.Comm_rank);
  resolve_function(library, "MPI_Comm_size", out.Comm_size);
  resolve_function(library, "MPI_Comm_set_errhandler", out.Comm_set_errhandler);
  resolve_function(library, "MPI_Error_string", out.Error_string);
  resolve_function(library, "MPI_Get_library_version", out.Get_library_version);
  resolve_function(library, "MPI_Send", out.Send);
  resolve_function(library, "MPI_Recv", out.Recv);
  resolve_function(library, "MPI_Isend", out.Isend);
  resolve_function(library, "MPI_Irecv", out.Irecv);
  resolve_function(library, "MPI_Waitall", out.Waitall);
  resolve_function(library, "MPI_Barrier", out.Barrier);
  resolve_function(library, "MPI_Allgather", out.Allgather);
  resolve_function(library, "MPI_Bcast", out.Bcast);
  resolve_function(library, "MPI_Gather", out.Gather);
  resolve_function(library, "MPI_Scatter", out.Scatter);
  resolve_function(library, "MPI_Reduce", out.Reduce);
  resolve_function(library, "MPI_Allreduce", out.Allreduce);
  resolve_function(library, "MPI_Reduce_scatter", out.Reduce_scatter);
  resolve_function(library, "MPI_Alltoall", out.Alltoall);
  resolve_function(library, "MPI_Alltoallv", out.Alltoallv);
  return out;
}

// Only Open MPI's modules need the library's names in the global scope; elsewhere it does no harm.
void* open_library(const char* name) { return dlopen(name, RTLD_NOW | RTLD_GLOBAL); }

struct opened_library {
  void* handle = nullptr;
  bool is_open_mpi = false;
};

const opened_library& opened() {
  static const opened_library library = [] {
    // The launcher names the MPI of its processes; another MPI would see a job of one each.
    const bool mpich_first = !env_read("OMPI_COMM_WORLD_SIZE").is_set && env_read("PMI_SIZE").is_set;
    using names = std::array<const char*, 3>;
    for (const char* name : mpich_first ? names{kMpich, kDebianMpich, kOpenMpi} : names{kOpenMpi, kMpich, kDebianMpich})
      if (void* handle = open_library(name)) return opened_library{handle, name == std::string_view(kOpenMpi)};
    throw tool_failure(
        format("no MPI opens: neither %s (Open MPI) nor %s (MPICH, Intel MPI) is in the library path", kOpenMpi, kMpich));
  }();
  return library;
}

// MPI can be initialised and finalised once in a process.
int g_users = 0;
bool g_made_by_us = false;

// MPI of this process, from first use to the end of the last user.
template <class Abi>
class mpi_world {
 public:
  using H = typename Abi::handle;
  static std::shared_ptr<mpi_world> get(bool through_preload) {
    static std::weak_ptr<mpi_world> plain, preloaded;
    auto& slot = through_preload ? preloaded : plain;
    if (auto alive = slot.lock()) return alive;
    auto made = std::shared_ptr<mpi_world>(new mpi_world(through_preload));
    slot = made;
    return made;
  }
  ~mpi_world() {
    // Finalising waits for the other ranks. A failing rank must not wait: its launcher ends them.
    if (--g_users == 0 && g_made_by_us && std::uncaught_exceptions() == 0) call.Finalize();
  }
  mpi_world(const mpi_world&) = delete;
  mpi_world& operator=(const mpi_world&) = delete;

  void check(int code, const char* action) const {
    if (code == 0) return;
    char text[kMaxText] = "";
    int length = 0;
    call.Error_string(code, text, &length);
    throw tool_failure(format("%s failed: %s", action, text));
  }
  int rank() const {
    int value = 0;
    check(call.Comm_rank(abi.world, &value), "MPI_Comm_rank");
    return value;
  }
  int size() const {
    int value = 0;
    check(call.Comm_size(abi.world, &value), "MPI_Comm_size");
    return value;
  }

  Abi abi;
  mpi_functions<H> call;

 private:
  explicit mpi_world(bool through_preload) {
    abi.resolve(opened().handle);
    call = resolve_functions<H>(through_preload ? RTLD_DEFAULT : opened().handle);
    // A preloaded library sees MPI begin and end, whoever is first to use it here.
    resolve_function(RTLD_DEFAULT, "MPI_Init", call.Init);
    resolve_function(RTLD_DEFAULT, "MPI_Finalize", call.Finalize);
    if (through_preload && reinterpret_cast<void*>(call.Send) == dlsym(opened().handle, "MPI_Send"))
      throw tool_failure(format("no MPI shim is loaded: start with LD_PRELOAD=libpeerlane-mpi-%s.so, or use --via mpi",
                                opened().is_open_mpi ? "ompi" : "mpich"));
    int running = 0;
    call.Initialized(&running);
    if (running == 0) {
      check(call.Init(nullptr, nullptr), "MPI_Init");
      g_made_by_us = true;
    }
    ++g_users;
    check(call.Comm_set_errhandler(abi.world, abi.errors_return), "MPI_Comm_set_errhandler");
  }
};

// "Open MPI v4.1.4, package: ..., ident: ..." and "MPICH Version:      5.0.2\n..." say enough in their beginnings.
std::string beginning_of(const std::string& text) {
  std::string out;
  for (const char letter : text.substr(0, text.find_first_of(",\n")))
    if (letter != ' ' || (!out.empty() && out.back() != ' ')) out += letter;
  return out;
}

template <class Abi>
class mpi_collectives : public collective_calls {
 public:
  explicit mpi_collectives(const mpi_world<Abi>& world) : world_(world), call_(world.call), abi_(world.abi) {}

  void barrier() override { world_.check(call_.Barrier(abi_.world), "MPI_Barrier"); }
  void broadcast(void* data, std::size_t bytes, memory_kind, int root) override {
    world_.check(call_.Bcast(data, number(bytes), abi_.byte, root, abi_.world), "MPI_Bcast");
  }
  void gather(const exchange& memory, std::size_t bytes, int root) override {
    world_.check(call_.Gather(memory.source, number(bytes), abi_.byte, memory.destination, number(bytes), abi_.byte, root,
                              abi_.world),
                 "MPI_Gather");
  }
  void scatter(const exchange& memory, std::size_t bytes, int root) override {
    world_.check(call_.Scatter(memory.source, number(bytes), abi_.byte, memory.destination, number(bytes), abi_.byte, root,
                               abi_.world),
                 "MPI_Scatter");
  }
  void all_gather(const exchange& memory, std::size_t bytes) override {
    world_.check(
        call_.Allgather(memory.source, number(bytes), abi_.byte, memory.destination, number(bytes), abi_.byte, abi_.world),
        "MPI_Allgather");
  }
  void reduce(const exchange& memory, std::size_t count, int root) override {
    world_.check(call_.Reduce(memory.source, memory.destination, number(count), abi_.real, abi_.sum, root, abi_.world),
                 "MPI_Reduce");
  }
  void all_reduce(const exchange& memory, std::size_t count) override {
    world_.check(call_.Allreduce(memory.source, memory.destination, number(count), abi_.real, abi_.sum, abi_.world),
                 "MPI_Allreduce");
  }
  void reduce_scatter(const exchange& memory, std::span<const std::size_t> counts) override {
    fill(lengths_, counts);
    world_.check(call_.Reduce_scatter(memory.source, memory.destination, lengths_.data(), abi_.real, abi_.sum, abi_.world),
                 "MPI_Reduce_scatter");
  }
  void all_to_all(const exchange& memory, std::size_t bytes) override {
    world_.check(
        call_.Alltoall(memory.source, number(bytes), abi_.byte, memory.destination, number(bytes), abi_.byte, abi_.world),
        "MPI_Alltoall");
  }
  void all_to_all_v(const exchange& memory, std::span<const std::size_t> bytes,
                    std::span<const std::size_t> offsets) override {
    fill(lengths_, bytes);
    fill(offsets_, offsets);
    world_.check(call_.Alltoallv(memory.source, lengths_.data(), offsets_.data(), abi_.byte, memory.destination,
                                 lengths_.data(), offsets_.data(), abi_.byte, abi_.world),
                 "MPI_Alltoallv");
  }

 private:
  static int number(std::size_t value) { return static_cast<int>(value); }
  static void fill(std::vector<int>& out, std::span<const std::size_t> values) {
    out.clear();
    for (const std::size_t one : values) out.push_back(number(one));
  }
  const mpi_world<Abi>& world_;
  const mpi_functions<typename Abi::handle>& call_;
  const Abi& abi_;
  std::vector<int> lengths_, offsets_;
};

template <class Abi>
class mpi_transport : public transport {
 public:
  using H = typename Abi::handle;
  explicit mpi_transport(bool through_preload)
      : world_(mpi_world<Abi>::get(through_preload)), rank_(world_->rank()), size_(world_->size()), collectives_(*world_) {}

  int rank() const override { return rank_; }
  int size() const override { return size_; }
  collective_calls& collectives() override { return collectives_; }
  std::string library() const override {
    char text[kMaxText] = "";
    int length = 0;
    world_->check(world_->call.Get_library_version(text, &length), "MPI_Get_library_version");
    return beginning_of(text);
  }

  request isend(const void* data, std::size_t size_bytes, memory_kind, int peer, int tag) override {
    H handle{};
    world_->check(world_->call.Isend(data, static_cast<int>(size_bytes), abi().byte, peer, tag, abi().world, &handle),
                  "MPI_Isend");
    return as_request(handle);
  }
  request irecv(void* data, std::size_t size_bytes, memory_kind, int peer, int tag) override {
    H handle{};
    world_->check(world_->call.Irecv(data, static_cast<int>(size_bytes), abi().byte, peer, tag, abi().world, &handle),
                  "MPI_Irecv");
    return as_request(handle);
  }
  void waitall(std::span<request> pending) override {
    handles_.resize(pending.size());
    for (std::size_t i = 0; i < pending.size(); ++i) handles_[i] = as_handle(pending[i]);
    world_->check(world_->call.Waitall(static_cast<int>(handles_.size()), handles_.data(), Abi::statuses_ignore),
                  "MPI_Waitall");
  }
  void send(const void* data, std::size_t size_bytes, memory_kind, int peer, int tag) override {
    world_->check(world_->call.Send(data, static_cast<int>(size_bytes), abi().byte, peer, tag, abi().world), "MPI_Send");
  }
  void recv(void* data, std::size_t size_bytes, memory_kind, int peer, int tag) override {
    world_->check(
        world_->call.Recv(data, static_cast<int>(size_bytes), abi().byte, peer, tag, abi().world, Abi::statuses_ignore),
        "MPI_Recv");
  }

  void barrier() override { world_->check(world_->call.Barrier(abi().world), "MPI_Barrier"); }
  std::vector<double> all_gather(double mine) override {
    std::vector<double> all(static_cast<std::size_t>(size_));
    world_->check(world_->call.Allgather(&mine, sizeof mine, abi().byte, all.data(), sizeof mine, abi().byte, abi().world),
                  "MPI_Allgather");
    return all;
  }

 private:
  const Abi& abi() const { return world_->abi; }
  static request as_request(H handle) {
    if constexpr (std::is_pointer_v<H>) return {reinterpret_cast<std::uintptr_t>(handle)};
    else return {static_cast<std::uintptr_t>(static_cast<unsigned>(handle))};
  }
  static H as_handle(request value) {
    if constexpr (std::is_pointer_v<H>) return reinterpret_cast<H>(value.word);
    else return static_cast<H>(static_cast<unsigned>(value.word));
  }

  std::shared_ptr<mpi_world<Abi>> world_;
  int rank_, size_;
  mpi_collectives<Abi> collectives_;
  std::vector<H> handles_;
};

template <class Abi>
result<std::vector<messaging::byte_string>> gather_bytes(const mpi_world<Abi>& world, std::size_t ranks,
                                                         std::span<const std::byte> mine) {
  const auto gather = [&](const void* source, std::size_t bytes, void* all) {
    const auto& abi = world.abi;
    const int count = static_cast<int>(bytes);
    return world.call.Allgather(source, count, abi.byte, all, count, abi.byte, abi.world) == 0;
  };
  const failure refused{EIO, "MPI_Allgather failed"};
  const auto length = static_cast<std::uint64_t>(mine.size());
  std::vector<std::uint64_t> lengths(ranks);
  if (!gather(&length, sizeof length, lengths.data())) return refused;
  const std::size_t longest = std::max<std::size_t>(1, *std::max_element(lengths.begin(), lengths.end()));
  std::vector<std::byte> padded(longest), all(longest * ranks);
  std::copy(mine.begin(), mine.end(), padded.begin());
  if (!gather(padded.data(), longest, all.data())) return refused;
  std::vector<messaging::byte_string> out;
  for (std::size_t i = 0; i < ranks; ++i) out.emplace_back(&all[i * longest], &all[i * longest] + lengths[i]);
  return out;
}

template <class Abi>
std::unique_ptr<messaging::bootstrap> make_bootstrap() {
  auto world = mpi_world<Abi>::get(false);
  const int rank = world->rank(), size = world->size();
  return messaging::callback_bootstrap(rank, size, [world, size](std::span<const std::byte> mine) {
    return gather_bytes(*world, static_cast<std::size_t>(size), mine);
  });
}

}  // namespace

std::unique_ptr<transport> open_mpi(const mpi_options& options) {
  if (opened().is_open_mpi) return std::make_unique<mpi_transport<open_mpi_abi>>(options.through_preload);
  return std::make_unique<mpi_transport<mpich_abi>>(options.through_preload);
}

bool mpi_takes_device_memory() {
  const auto ask = reinterpret_cast<int (*)()>(dlsym(opened().handle, "MPIX_Query_cuda_support"));
  return ask != nullptr && ask() == 1;
}

std::unique_ptr<messaging::bootstrap> open_mpi_bootstrap() {
  return opened().is_open_mpi ? make_bootstrap<open_mpi_abi>() : make_bootstrap<mpich_abi>();
}

}  // namespace pl::p2p
