// SPDX-License-Identifier: Apache-2.0
// The pipeline below MPI's matching: which messages use it, how a header is recognised, and how the statuses that MPI
// returns for a header are corrected. Everything here is for calls of C functions; a process whose Fortran bindings
// could receive a header does not take part (begin_pipeline).
#pragma once

#include <memory>

#include "compat/mpi/pipeline_copy.hpp"
#include "compat/mpi/staged.hpp"

namespace pl::mpi {

namespace detail {
extern std::atomic<pipeline_peers*> g_pipeline;
}

// Around PMPI_Init and PMPI_Finalize.
void prepare_pipeline();
void begin_pipeline();
void end_pipeline() noexcept;

inline bool pipeline_is_on() noexcept { return detail::g_pipeline.load(std::memory_order_acquire) != nullptr; }

// Whether a receive could get a header. A smaller one is too small for the message too, and MPI reports that.
template <class Count>
bool may_get_header(Count count, MPI_Datatype type) {
  if (!pipeline_is_on() || count <= 0 || type == type_null()) [[likely]]
    return false;
  MPI_Count size = 0;
  return PMPI_Type_size_x(type, &size) == MPI_SUCCESS && size * count >= static_cast<MPI_Count>(kHeaderBytes);
}

// Whether a message of this size most likely comes as a header.
bool is_header_expected(std::size_t bytes) noexcept;

// The type that MPI receives where a header may arrive.
inline MPI_Datatype receive_type(MPI_Datatype type) {
#ifdef OPEN_MPI
  return type;
#else
  return pipeline_is_on() ? byte_twin(type) : type;
#endif
}

// A message that goes as a header.
class pipelined_send {
 public:
  // `data` is described and has no stand-in yet. Returns null if the message takes MPI's usual path.
  static std::unique_ptr<pipelined_send> begin(const staged& data, int destination, int tag, MPI_Comm comm);
  const void* header() const noexcept { return bytes_.data(); }
  int header_bytes() const noexcept { return static_cast<int>(kHeaderBytes + message_.slot); }
  // MPI has the header; the data follows, and is read when this returns. An MPI code.
  int send_data(const staged& data);
  // The header was not sent.
  void withdraw();

 private:
  std::array<std::byte, kHeaderBytes + kSlots> bytes_{};
  outgoing_message message_;
};

// Where a receive into host memory puts its bytes. Keeps what it needs of the type, which the caller may free.
class host_target {
 public:
  template <class Count>
  host_target(void* buffer, Count count, MPI_Datatype type)
      : host_target(static_cast<char*>(buffer), MPI_Count{count}, type) {}
  host_target(char* buffer, MPI_Count count, MPI_Datatype type);
  host_target(const host_target&) = delete;
  host_target& operator=(const host_target&) = delete;
  ~host_target();

  std::size_t capacity() const noexcept { return form_.bytes * static_cast<std::size_t>(count_); }
  // Empty: the type cannot be taken apart.
  pieces rows() const;
  // The first `bytes`.
  bool peek(void* out, std::size_t bytes) const;
  // For types that cannot be taken apart.
  int unpack(const std::byte* data, std::size_t bytes) const;

 private:
  char* buffer_;
  MPI_Count count_;
  layout form_;
  MPI_Datatype kept_;
  bool is_kept_ = false;
};

// MPI has ended a receive: if it got a header, receives the message and puts its true size into the status; otherwise
// copies what the stand-in received to device memory. Returns an MPI code.
int finish_receive(staged& device, MPI_Status& status);
int finish_receive(const host_target& host, MPI_Status& status);
// The same where MPI does not say how much it received: the whole stand-in is stored, in which everything was before.
int finish_unknown(staged& device);
int finish_unknown(const host_target& host);
// The same for a receive that has just ended.
template <class Count>
int finish_host_receive(void* buffer, Count count, MPI_Datatype type, MPI_Status& status) {
  const std::size_t bytes = received_bytes(status);
  if (bytes < kHeaderBytes || bytes >= kHeaderBytes + kSlots) [[likely]]
    return MPI_SUCCESS;
  return finish_receive(host_target(buffer, count, type), status);
}

// A probe has seen a message on `comm`: the status says its true size.
void tell_true_size(MPI_Comm comm, MPI_Status& status);

}  // namespace pl::mpi
