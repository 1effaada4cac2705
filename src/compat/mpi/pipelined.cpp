// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/pipelined.hpp"

#include <dlfcn.h>

#include <cstring>

#include "base/env.hpp"
#include "base/log.hpp"
#include "compat/mpi/job_key.hpp"
#include "os/launcher_siblings.hpp"

namespace pl::mpi {

namespace detail {
std::atomic<pipeline_peers*> g_pipeline{nullptr};
}

namespace {

struct settings {
  std::string job_key;
  std::size_t smallest = 0;
  int rank = -1;
  MPI_Group world;
};
settings& own() {
  static auto* const made = new settings;  // never destroyed, as the request table
  return *made;
}

// Their receives call the C library from inside, where a header would stay one.
bool has_fortran() {
  for (const char* name : {"libmpi_mpifh.so.40", "libmpichfort.so.12", "libmpifort.so.12"})
    if (void* const library = dlopen(name, RTLD_LAZY | RTLD_NOLOAD)) return dlclose(library), true;
  return dlsym(RTLD_DEFAULT, "mpi_recv_") != nullptr;
}

// -1: none, or of another job.
int world_rank_of(MPI_Comm comm, int rank) {
  if (rank < 0) return -1;
  if (comm == comm_world()) return rank;
  int is_inter = 0, size = 0, out = -1;
  if (PMPI_Comm_test_inter(comm, &is_inter) != MPI_SUCCESS) return -1;
  if ((is_inter != 0 ? PMPI_Comm_remote_size(comm, &size) : PMPI_Comm_size(comm, &size)) != MPI_SUCCESS || rank >= size)
    return -1;
  MPI_Group group;
  if ((is_inter != 0 ? PMPI_Comm_remote_group(comm, &group) : PMPI_Comm_group(comm, &group)) != MPI_SUCCESS) return -1;
  if (PMPI_Group_translate_ranks(group, 1, &rank, own().world, &out) != MPI_SUCCESS) out = MPI_UNDEFINED;
  PMPI_Group_free(&group);
  return out == MPI_UNDEFINED ? -1 : out;
}

int failed(const char* description, const failure& reason, int code) {
  complain(description, reason);
  return code;
}

void set_size(MPI_Status& status, std::uint64_t bytes) {
  PMPI_Status_set_elements_x(&status, byte_type(), static_cast<MPI_Count>(bytes));
}

std::optional<unsigned> slot_in(const MPI_Status& status) {
  const std::size_t bytes = received_bytes(status);
  if (bytes < kHeaderBytes || bytes >= kHeaderBytes + kSlots) return std::nullopt;
  return static_cast<unsigned>(bytes - kHeaderBytes);
}

// `target`: has peek(). Empty: the message is an ordinary one of this size.
template <class Target>
std::optional<message_header> header_in(const Target& target, const MPI_Status& status) {
  const auto slot = slot_in(status);
  message_header header;
  if (!slot || !target.peek(&header, sizeof header)) return std::nullopt;
  if (header.magic != kHeaderMagic || header.slot != *slot || header.bytes < kLeastPipelined) return std::nullopt;
  return header;
}

// The same by the buffer alone, which may hold an old header: then nobody is sending its message.
template <class Target>
std::optional<message_header> header_in(const Target& target) {
  auto* const peers = detail::g_pipeline.load(std::memory_order_acquire);
  message_header header;
  if (peers == nullptr || !target.peek(&header, sizeof header) || header.magic != kHeaderMagic) return std::nullopt;
  if (header.bytes < kLeastPipelined || !peers->find(header)) return std::nullopt;
  return header;
}

// Types that cannot be taken apart get their bytes in one piece.
int receive_whole(pipeline_peers& peers, const incoming_message& message, const host_target& host, std::uint64_t bytes) {
  std::vector<std::byte> whole(static_cast<std::size_t>(bytes));
  const pieces rows{{reinterpret_cast<std::ptrdiff_t>(whole.data()), whole.size(), 1, whole.size()}};
  if (auto done = receive_rows(peers, message, rows, place_kind::host); !done)
    return failed("a large message", done.error(), MPI_ERR_OTHER);
  return host.unpack(whole.data(), whole.size());
}

template <class Receive>
int take_in(const message_header& header, std::size_t capacity, MPI_Status& status, Receive receive) {
  auto* const peers = detail::g_pipeline.load(std::memory_order_acquire);
  if (peers == nullptr) return MPI_ERR_OTHER;
  auto message = peers->find(header);
  if (!message) return failed("a large message", message.error(), MPI_ERR_OTHER);
  set_size(status, header.bytes);
  if (header.bytes > capacity) return drop_message(*message), MPI_ERR_TRUNCATE;
  return receive(*peers, *message);
}

}  // namespace

void prepare_pipeline() { own().job_key = find_job_key(); }

void begin_pipeline() {
  const auto budget = static_cast<std::size_t>(env_read("PEERLANE_MPI_PIPELINE").integer);
  int ranks = 0;
  PMPI_Comm_size(comm_world(), &ranks);
  PMPI_Comm_rank(comm_world(), &own().rank);
  MPI_Comm parent;
  // The processes of a second MPI_Comm_spawn would have the same names.
  const bool is_spawned = PMPI_Comm_get_parent(&parent) != MPI_SUCCESS || parent != comm_null();
  if (budget == 0 || ranks < 2 || own().job_key.empty() || is_spawned || has_fortran()) return;
  own().smallest = std::max(static_cast<std::size_t>(env_read("PEERLANE_MPI_PIPELINE_FROM").integer), kLeastPipelined);
  const auto ring = std::max<std::size_t>(static_cast<std::size_t>(env_read("PEERLANE_MPI_PIPELINE_RING").integer), 65536);
  PMPI_Comm_group(comm_world(), &own().world);
  let_launcher_siblings_in();  // who reads device memory directly
  auto made = pipeline_peers::open(own().job_key, own().rank, ranks, {budget, std::min(ring, budget)});
  if (!made) {
    PL_LOG(warn, "peerlane-mpi: large messages are not pipelined: %s", made.error().message.c_str());
    return;
  }
  detail::g_pipeline.store(made->release(), std::memory_order_release);
}

void end_pipeline() noexcept { delete detail::g_pipeline.exchange(nullptr, std::memory_order_acq_rel); }

bool is_header_expected(std::size_t bytes) noexcept { return pipeline_is_on() && bytes >= own().smallest; }

// ---- Sending ----------------------------------------------------------------------------------------------------------

std::unique_ptr<pipelined_send> pipelined_send::begin(const staged& data, int destination, int tag, MPI_Comm comm) {
  auto* const peers = detail::g_pipeline.load(std::memory_order_acquire);
  if (peers == nullptr || data.bytes() < own().smallest) return nullptr;
  const int rank = world_rank_of(comm, destination);
  // Unreadable memory is refused before anything is sent, as without the pipeline.
  if (rank < 0 || rank == own().rank || !data.is_readable()) return nullptr;
  auto message = peers->begin(rank, tag, data.bytes());
  if (!message) return nullptr;
  auto made = std::make_unique<pipelined_send>();
  made->message_ = std::move(*message);
  const auto header = peers->header_of(made->message_);
  std::memcpy(made->bytes_.data(), &header, sizeof header);
  return made;
}

int pipelined_send::send_data(const staged& data) {
  auto* const peers = detail::g_pipeline.load(std::memory_order_acquire);
  if (auto done = send_rows(*peers, message_, data.rows()); !done)
    return failed("data of device memory to the host", done.error(), MPI_ERR_BUFFER);
  return MPI_SUCCESS;
}

void pipelined_send::withdraw() {
  if (auto* const peers = detail::g_pipeline.load(std::memory_order_acquire)) peers->withdraw(message_);
}

// ---- Receiving --------------------------------------------------------------------------------------------------------

host_target::host_target(char* buffer, MPI_Count count, MPI_Datatype type) : buffer_(buffer), count_(count), kept_(type) {
  if (auto form = layout_of(type)) {
    form_ = std::move(*form);
    return;
  }
  MPI_Count size = 0;
  PMPI_Type_size_x(type, &size);
  form_.bytes = static_cast<std::size_t>(size);
  is_kept_ = PMPI_Type_dup(type, &kept_) == MPI_SUCCESS;
}

host_target::~host_target() {
  if (is_kept_) PMPI_Type_free(&kept_);
}

pieces host_target::rows() const {
  if (is_kept_) return {};
  auto out = form_.rows_of(static_cast<std::size_t>(count_));
  for (auto& one : out) one.offset += reinterpret_cast<std::ptrdiff_t>(buffer_);
  std::erase_if(out, [](const piece& one) { return one.bytes() == 0; });
  return out;
}

bool host_target::peek(void* out, std::size_t bytes) const {
  if (is_kept_) {
    // Packed, the bytes lie side by side. The buffer is as large as a header.
    std::vector<char> packed(capacity());
    int position = 0;
    if (PMPI_Pack(buffer_, static_cast<int>(count_), kept_, packed.data(), static_cast<int>(packed.size()), &position,
                  comm_world()) != MPI_SUCCESS ||
        static_cast<std::size_t>(position) < bytes)
      return false;
    std::memcpy(out, packed.data(), bytes);
    return true;
  }
  return gather(rows(), 0, out, bytes);
}

int host_target::unpack(const std::byte* data, std::size_t bytes) const {
  MPI_Count size = 0;
  PMPI_Type_size_x(kept_, &size);
  int position = 0;
  return PMPI_Unpack(data, static_cast<int>(bytes), &position, buffer_,
                     static_cast<int>(static_cast<MPI_Count>(bytes) / size), kept_, comm_world());
}

namespace {

int receive_message(const message_header& header, staged& device, MPI_Status& status) {
  return take_in(header, device.bytes(), status, [&](pipeline_peers& peers, const incoming_message& message) {
    const auto rows = piece_cursor(device.rows()).next(static_cast<std::size_t>(header.bytes));
    if (auto done = receive_rows(peers, message, rows, place_kind::device); !done)
      return failed("received data to device memory", done.error(),
                    done.error().code == EPIPE ? MPI_ERR_OTHER : MPI_ERR_BUFFER);
    return MPI_SUCCESS;
  });
}

int receive_message(const message_header& header, const host_target& host, MPI_Status& status) {
  return take_in(header, host.capacity(), status, [&](pipeline_peers& peers, const incoming_message& message) {
    const auto rows = host.rows();
    if (rows.empty()) return receive_whole(peers, message, host, header.bytes);
    if (auto done = receive_rows(peers, message, rows, place_kind::host); !done)
      return failed("a large message", done.error(), MPI_ERR_OTHER);
    return MPI_SUCCESS;
  });
}

}  // namespace

int finish_receive(staged& device, MPI_Status& status) {
  const auto header = device.is_host_copy() ? header_in(device, status) : std::nullopt;
  return header ? receive_message(*header, device, status) : device.store_first(received_bytes(status));
}

int finish_receive(const host_target& host, MPI_Status& status) {
  const auto header = header_in(host, status);
  return header ? receive_message(*header, host, status) : MPI_SUCCESS;
}

int finish_unknown(staged& device) {
  MPI_Status unused;
  const auto header = device.is_host_copy() ? header_in(device) : std::nullopt;
  return header ? receive_message(*header, device, unused) : device.store();
}

int finish_unknown(const host_target& host) {
  MPI_Status unused;
  const auto header = header_in(host);
  return header ? receive_message(*header, host, unused) : MPI_SUCCESS;
}

void tell_true_size(MPI_Comm comm, MPI_Status& status) {
  auto* const peers = detail::g_pipeline.load(std::memory_order_acquire);
  const auto slot = peers == nullptr ? std::nullopt : slot_in(status);
  if (!slot) return;
  const int rank = world_rank_of(comm, status.MPI_SOURCE);
  if (const auto bytes = rank < 0 ? 0 : peers->size_behind(rank, *slot, status.MPI_TAG); bytes != 0) set_size(status, bytes);
}

}  // namespace pl::mpi
