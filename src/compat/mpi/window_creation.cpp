// SPDX-License-Identifier: Apache-2.0
// Windows: their creation and end, and what they say of their memory.
#include <algorithm>
#include <cstring>

#include "base/env.hpp"
#include "base/log.hpp"
#include "compat/mpi/windows.hpp"

using namespace pl;
using namespace pl::mpi;

namespace {

// What each rank tells all others before the window is made. Plain bytes.
struct window_info {
  std::int64_t size = 0, unit = 1;
  std::int32_t is_device = 0, is_exported = 0, has_failed = 0;
  exported_memory memory;
};

bool is_any(const std::vector<window_info>& all, std::int32_t window_info::*flag) {
  return std::any_of(all.begin(), all.end(), [&](const window_info& one) { return one.*flag != 0; });
}

template <class Value>
int tell_all(MPI_Comm comm, const Value* own, std::size_t n, std::vector<Value>& all) {
  int ranks = 0;
  if (const int code = PMPI_Comm_size(comm, &ranks); code != MPI_SUCCESS) return code;
  all.resize(n * static_cast<std::size_t>(ranks));
  const int bytes = static_cast<int>(n * sizeof(Value));
  return PMPI_Allgather(own, bytes, byte_type(), all.data(), bytes, byte_type(), comm);
}

window_info describe_window(void* base, MPI_Aint size, MPI_Aint unit) {
  window_info own;
  own.size = size;
  own.unit = unit;
  own.is_device = size > 0 && on_device(base) ? 1 : 0;
  if (own.is_device == 0) return own;
  const auto pointer = reinterpret_cast<std::uint64_t>(base);
  const auto bytes = static_cast<std::size_t>(size);
  if (!is_within_allocation(pointer, bytes)) {
    own.has_failed = 1;
    complain("MPI_Win_create", {EINVAL, "the window leaves its allocation of device memory"});
    return own;
  }
  if (env_read("PEERLANE_MPI_WINDOWS").text == "copied") return own;
  if (auto exported = export_memory({pointer, bytes})) {
    own.memory = *exported;
    own.is_exported = 1;
  } else PL_LOG(info, "peerlane-mpi: a window is copied: %s", exported.error().message.c_str());
  return own;
}

// The communicator's ranks as one host sees them, in the same order; empty: they are on several.
std::optional<MPI_Comm> on_one_host(MPI_Comm comm) {
  int ranks = 0, rank = 0, host_ranks = 0;
  MPI_Comm host;
  PMPI_Comm_size(comm, &ranks);
  PMPI_Comm_rank(comm, &rank);
  if (PMPI_Comm_split_type(comm, MPI_COMM_TYPE_SHARED, rank, info_null(), &host) != MPI_SUCCESS) return std::nullopt;
  PMPI_Comm_size(host, &host_ranks);
  if (host_ranks == ranks) return host;
  PMPI_Comm_free(&host);
  return std::nullopt;
}

// Maps the others' memory. A rank's memory is direct only if every rank has mapped it. An MPI code.
int open_targets(window& made, const std::vector<window_info>& all, MPI_Comm comm, bool is_one_host) {
  const std::size_t n = all.size();
  std::vector<std::uint8_t> own(n), everyone;
  const auto own_memory =
      all[static_cast<std::size_t>(made.rank)].is_device != 0 ? reinterpret_cast<std::uint64_t>(made.base) : 0;
  made.targets.resize(n);
  for (std::size_t i = 0; i < n; ++i) {
    auto& target = made.targets[i];
    target.size = static_cast<MPI_Aint>(all[i].size);
    target.unit = static_cast<MPI_Aint>(all[i].unit);
    if (!is_one_host || all[i].is_exported == 0) continue;
    if (static_cast<int>(i) == made.rank) {
      target.pointer = own_memory;
      own[i] = 1;
    } else if (auto opened = imported_memory::open(all[i].memory, own_memory)) {
      target.memory = std::move(*opened);
      target.pointer = target.memory.pointer();
      own[i] = 1;
    } else {
      PL_LOG(info, "peerlane-mpi: the window of rank %zu is copied: %s", i, opened.error().message.c_str());
    }
  }
  if (const int code = tell_all(comm, own.data(), n, everyone); code != MPI_SUCCESS) return code;
  for (std::size_t i = 0; i < n; ++i) {
    if (all[i].is_device == 0) continue;
    bool is_direct = true;
    for (std::size_t other = 0; other < n; ++other) is_direct = is_direct && everyone[other * n + i] != 0;
    made.targets[i].way = is_direct ? reach::direct : reach::copied;
    if (!is_direct) made.targets[i].memory = {}, made.targets[i].pointer = 0, made.is_separate = true;
  }
  return MPI_SUCCESS;
}

// The locks, in memory that MPI shares among the ranks of a host.
int open_locks(window& made, MPI_Comm host, bool is_dynamic) {
  constexpr std::size_t kAlignment = 64;
  const std::size_t locks_bytes = window_locks::bytes_for(made.ranks());  // a multiple of the alignment
  const std::size_t bytes = locks_bytes + (is_dynamic ? window_regions::bytes_for(made.ranks()) : 0);
  MPI_Aint size = made.rank == 0 ? static_cast<MPI_Aint>(bytes + kAlignment) : 0;
  void* memory = nullptr;
  int unit = 1;
  int code = PMPI_Win_allocate_shared(size, 1, info_null(), host, &memory, &made.shared);
  if (code != MPI_SUCCESS) return code;
  if ((code = PMPI_Win_shared_query(made.shared, 0, &size, &unit, &memory)) != MPI_SUCCESS) return code;
  // Mapped at page boundaries, so that all ranks see the same alignment.
  memory = reinterpret_cast<void*>((reinterpret_cast<std::uintptr_t>(memory) + kAlignment - 1) / kAlignment * kAlignment);
  void* const regions = static_cast<std::byte*>(memory) + locks_bytes;
  if (made.rank == 0) {
    window_locks::format(memory, made.ranks());
    if (is_dynamic) window_regions::format(regions, made.ranks());
  }
  if ((code = PMPI_Barrier(host)) != MPI_SUCCESS) return code;
  made.locks = std::make_unique<window_locks>(memory, made.ranks(), made.rank);
  made.comm = host;
  if (is_dynamic) made.regions = std::make_unique<window_regions>(regions, made.rank);
  return PMPI_Barrier(host);
}

// Makes what a dynamic window needs if device memory may be attached to it: all ranks on one host, and a rank uses CUDA.
int open_dynamic(window& made, MPI_Comm comm) {
  std::vector<std::uint8_t> all;
  const std::uint8_t own = driver_is_there() && env_read("PEERLANE_MPI_WINDOWS").text != "copied" ? 1 : 0;
  if (const int code = tell_all(comm, &own, 1, all); code != MPI_SUCCESS) return code;
  if (std::count(all.begin(), all.end(), 0) == static_cast<std::ptrdiff_t>(all.size())) return MPI_SUCCESS;
  auto host = on_one_host(comm);
  if (!host) return MPI_SUCCESS;
  PMPI_Comm_rank(comm, &made.rank);
  made.targets.resize(all.size());
  const int code = open_locks(made, *host, true);
  if (made.locks == nullptr) PMPI_Comm_free(&*host);
  return code;
}

// Public copies, on the ranks that need one. All ranks fail if one does.
int open_copy(window& made, MPI_Comm comm) {
  std::vector<std::uint8_t> all;
  std::uint8_t is_there = 1;
  const auto& own = made.targets[static_cast<std::size_t>(made.rank)];
  if (own.way == reach::copied) {
    auto copy = public_copy::make(reinterpret_cast<std::uint64_t>(made.base), static_cast<std::size_t>(own.size));
    if (copy) made.copy = std::move(*copy);
    else complain("MPI_Win_create", copy.error()), is_there = 0;
  }
  if (const int code = tell_all(comm, &is_there, 1, all); code != MPI_SUCCESS) return code;
  return std::count(all.begin(), all.end(), 0) == 0 ? MPI_SUCCESS : MPI_ERR_NO_MEM;
}

// The info without what is true of the caller's sizes and not of those that MPI gets.
class info_of_window {
 public:
  explicit info_of_window(MPI_Info given) : info_(given) {
    char value[8];
    int flag = 0;
    if (given == info_null() || PMPI_Info_get(given, kKey, sizeof value - 1, value, &flag) != MPI_SUCCESS || flag == 0)
      return;
    if (PMPI_Info_dup(given, &info_) != MPI_SUCCESS) return;
    is_own_ = true;
    PMPI_Info_delete(info_, kKey);
  }
  info_of_window(const info_of_window&) = delete;
  info_of_window& operator=(const info_of_window&) = delete;
  ~info_of_window() {
    if (is_own_) PMPI_Info_free(&info_);
  }
  MPI_Info get() const { return info_; }

 private:
  static constexpr const char* kKey = "same_size";
  MPI_Info info_;
  bool is_own_ = false;
};

// `call` makes MPI's window of the memory that it is given.
template <class Call>
int make_window(window& made, const std::vector<window_info>& all, MPI_Info info, MPI_Comm comm, Call call) {
  const auto host = on_one_host(comm);
  int code = open_targets(made, all, comm, host.has_value());
  const bool has_direct =
      std::any_of(made.targets.begin(), made.targets.end(), [](const auto& one) { return one.way == reach::direct; });
  if (code == MPI_SUCCESS && made.is_separate) code = open_copy(made, comm);
  if (code == MPI_SUCCESS && has_direct) code = open_locks(made, *host, false);
  if (host && made.locks == nullptr) {
    MPI_Comm unused = *host;
    PMPI_Comm_free(&unused);
  }
  if (code != MPI_SUCCESS) return code;
  const auto& own = made.targets[static_cast<std::size_t>(made.rank)];
  void* const memory = own.way == reach::direct ? nullptr : made.copy != nullptr ? made.copy->data() : made.base;
  const info_of_window kept(info);
  return call(memory, own.way == reach::direct ? 0 : own.size, kept.get());
}

template <class Call>
int create_window(void* base, MPI_Aint size, MPI_Aint unit, MPI_Info info, MPI_Comm comm, MPI_Win* out, Call call) {
  int is_inter = 0;
  if (comm == comm_null() || PMPI_Comm_test_inter(comm, &is_inter) != MPI_SUCCESS || is_inter != 0)
    return call(base, size, info);
  return guarded(comm, [&] {
    // Some ranks may have device memory and others not: so all ask, whatever they have.
    std::vector<window_info> all;
    const window_info own = describe_window(base, size, unit);
    if (const int code = tell_all(comm, &own, 1, all); code != MPI_SUCCESS) return code;
    if (!is_any(all, &window_info::is_device)) return call(base, size, info);
    if (is_any(all, &window_info::has_failed)) return raise(comm, MPI_ERR_BUFFER);
    auto made = std::make_shared<window>();
    made->base = base;
    PMPI_Comm_rank(comm, &made->rank);
    const int code = make_window(*made, all, info, comm, call);
    if (code != MPI_SUCCESS) return made->close(), raise(comm, code);
    made->handle = *out;
    windows().add(std::move(made));
    return MPI_SUCCESS;
  });
}

}  // namespace

int MPI_Win_create(void* base, MPI_Aint size, int unit, MPI_Info info, MPI_Comm comm, MPI_Win* out) {
  return create_window(base, size, unit, info, comm, out, [&](void* memory, MPI_Aint bytes, MPI_Info kept) {
    return PMPI_Win_create(memory, bytes, unit, kept, comm, out);
  });
}

#if MPI_VERSION >= 4
int MPI_Win_create_c(void* base, MPI_Aint size, MPI_Aint unit, MPI_Info info, MPI_Comm comm, MPI_Win* out) {
  return create_window(base, size, unit, info, comm, out, [&](void* memory, MPI_Aint bytes, MPI_Info kept) {
    return PMPI_Win_create_c(memory, bytes, unit, kept, comm, out);
  });
}
#endif

int MPI_Win_create_dynamic(MPI_Info info, MPI_Comm comm, MPI_Win* out) {
  int is_inter = 0;
  if (comm == comm_null() || PMPI_Comm_test_inter(comm, &is_inter) != MPI_SUCCESS || is_inter != 0)
    return PMPI_Win_create_dynamic(info, comm, out);
  return guarded(comm, [&] {
    auto made = std::make_shared<window>();
    if (const int code = open_dynamic(*made, comm); code != MPI_SUCCESS) return made->close(), raise(comm, code);
    if (const int code = PMPI_Win_create_dynamic(info, comm, out); code != MPI_SUCCESS) return made->close(), code;
    made->handle = *out;
    if (made->is_dynamic()) windows().add(std::move(made));
    return MPI_SUCCESS;
  });
}

int MPI_Win_free(MPI_Win* handle) {
  auto known = windows().take(*handle);
  if (known == nullptr) return PMPI_Win_free(handle);
  const MPI_Win window = *handle;
  return guarded_window(window, [&] {
    if (known->has_direct()) PMPI_Barrier(known->comm);  // MPI need not wait for ranks of which it knows no operation
    if (const int code = PMPI_Win_free(handle); code != MPI_SUCCESS) return windows().add(known), code;
    int code = known->finish_all();
    if (code == MPI_SUCCESS) code = known->adopt();
    const int closed = known->close();
    return code != MPI_SUCCESS ? raise(comm_world(), code) : closed;
  });
}

int MPI_Win_get_attr(MPI_Win handle, int key, void* value, int* flag) {
  const int code = PMPI_Win_get_attr(handle, key, value, flag);
  const auto known = windows().find(handle);
  if (code != MPI_SUCCESS || known == nullptr || known->targets.empty()) return code;
  static int separate = MPI_WIN_SEPARATE;
  auto** const out = static_cast<void**>(value);
  if (key == MPI_WIN_BASE) *out = known->base;
  if (key == MPI_WIN_SIZE) *out = &known->targets[static_cast<std::size_t>(known->rank)].size;
  if (key == MPI_WIN_MODEL && known->is_separate) *out = &separate;
  return code;
}
