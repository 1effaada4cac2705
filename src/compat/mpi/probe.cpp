// SPDX-License-Identifier: Apache-2.0
// MPI functions that look at a message without receiving it: of a pipelined one they see the header, whose size is not the
// message's.
#include "compat/mpi/point_to_point.hpp"

using namespace pl::mpi;

namespace {

template <class Call>
int probe(MPI_Comm comm, MPI_Status* wanted, Call call) {
  requests().progress();
  int found = 1;
  const int code = call(found);
  if (code == MPI_SUCCESS && found != 0 && wanted != MPI_STATUS_IGNORE && pipeline_is_on()) tell_true_size(comm, *wanted);
  return code;
}

}  // namespace

int MPI_Probe(int source, int tag, MPI_Comm comm, MPI_Status* status) {
  return probe(comm, status, [&](int&) { return PMPI_Probe(source, tag, comm, status); });
}

int MPI_Iprobe(int source, int tag, MPI_Comm comm, int* flag, MPI_Status* status) {
  return probe(comm, status, [&](int& found) {
    const int code = PMPI_Iprobe(source, tag, comm, flag, status);
    if (code == MPI_SUCCESS) found = *flag;
    return code;
  });
}

int MPI_Mprobe(int source, int tag, MPI_Comm comm, MPI_Message* message, MPI_Status* status) {
  return probe(comm, status, [&](int&) { return PMPI_Mprobe(source, tag, comm, message, status); });
}

int MPI_Improbe(int source, int tag, MPI_Comm comm, int* flag, MPI_Message* message, MPI_Status* status) {
  return probe(comm, status, [&](int& found) {
    const int code = PMPI_Improbe(source, tag, comm, flag, message, status);
    if (code == MPI_SUCCESS) found = *flag;
    return code;
  });
}
