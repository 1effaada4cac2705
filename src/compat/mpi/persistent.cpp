// SPDX-License-Identifier: Apache-2.0
// MPI functions that start persistent requests.
#include "compat/mpi/guarded.hpp"

using namespace pl::mpi;

namespace {

// The contents of the buffer at the start are sent.
int prepare(MPI_Request request) {
  auto found = request == request_null() ? nullptr : requests().take(request);
  if (found == nullptr) return MPI_SUCCESS;
  int code = found->send.load();
  if (code == MPI_SUCCESS && found->receive.is_read_at_start()) code = found->receive.load();
  found->is_active = code == MPI_SUCCESS;
  found->is_stored = false;
  requests().put(request, std::move(found));
  return code;
}

}  // namespace

int MPI_Start(MPI_Request* request) {
  requests().progress();
  if (requests().is_empty()) return PMPI_Start(request);
  if (const int code = prepare(*request); code != MPI_SUCCESS) return raise(comm_world(), code);
  return PMPI_Start(request);
}

int MPI_Startall(int n, MPI_Request* list) {
  requests().progress();
  if (requests().is_empty()) return PMPI_Startall(n, list);
  for (int i = 0; i < n; ++i)
    if (const int code = prepare(list[i]); code != MPI_SUCCESS) return raise(comm_world(), code);
  return PMPI_Startall(n, list);
}
