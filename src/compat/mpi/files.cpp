// SPDX-License-Identifier: Apache-2.0
// MPI functions that read and write files: MPI works on stand-ins, as for messages.
#include "compat/mpi/guarded.hpp"

using namespace pl::mpi;

namespace {

int raise_on(MPI_File file, int code) {
  if (code != MPI_SUCCESS) PMPI_File_call_errhandler(file, code);
  return code;
}

template <class Work>
int guarded_file(MPI_File file, Work work) {
  return guarded_with([file](int code) { return raise_on(file, code); }, std::move(work));
}

// `place...` is the file and, for some functions, an offset in it.
template <auto Pmpi, class Count, class... Place>
int read_file(void* buffer, Count count, MPI_Datatype type, MPI_Status* wanted, MPI_File file, Place... place) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(file, place..., buffer, count, type, wanted);
  return guarded_file(file, [&] {
    staged data;
    MPI_Status own;
    MPI_Status* const status = wanted != MPI_STATUS_IGNORE ? wanted : &own;
    if (int code = data.attach(buffer, count, type); code != MPI_SUCCESS) return raise_on(file, code);
    if (int code = Pmpi(file, place..., data.pointer(), count, type, status); code != MPI_SUCCESS) return code;
    return raise_on(file, data.store_first(received_bytes(*status)));
  });
}

template <auto Pmpi, class Count, class... Place>
int write_file(const void* buffer, Count count, MPI_Datatype type, MPI_Status* wanted, MPI_File file, Place... place) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(file, place..., buffer, count, type, wanted);
  return guarded_file(file, [&] {
    staged data;
    if (int code = data.attach(buffer, count, type); code != MPI_SUCCESS) return raise_on(file, code);
    if (int code = data.load(); code != MPI_SUCCESS) return raise_on(file, code);
    return Pmpi(file, place..., data.pointer(), count, type, wanted);
  });
}

template <auto Pmpi, class Count, class... Place>
int begin_read_file(void* buffer, Count count, MPI_Datatype type, MPI_Request* request, MPI_File file, Place... place) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(file, place..., buffer, count, type, request);
  return guarded_file(file, [&] {
    auto made = std::make_unique<record>();
    made->operation = record::kind::file_read;
    if (int code = made->receive.attach(buffer, count, type); code != MPI_SUCCESS) return raise_on(file, code);
    const int code = Pmpi(file, place..., made->receive.pointer(), count, type, request);
    if (code == MPI_SUCCESS) requests().put(*request, std::move(made));
    return code;
  });
}

template <auto Pmpi, class Count, class... Place>
int begin_write_file(const void* buffer, Count count, MPI_Datatype type, MPI_Request* request, MPI_File file,
                     Place... place) {
  if (!on_device(buffer, count, type)) [[likely]]
    return Pmpi(file, place..., buffer, count, type, request);
  return guarded_file(file, [&] {
    auto made = std::make_unique<record>();
    if (int code = made->send.attach(buffer, count, type); code != MPI_SUCCESS) return raise_on(file, code);
    if (int code = made->send.load(); code != MPI_SUCCESS) return raise_on(file, code);
    const int code = Pmpi(file, place..., made->send.pointer(), count, type, request);
    if (code == MPI_SUCCESS) requests().put(*request, std::move(made));
    return code;
  });
}

}  // namespace

#define PL_FUNCTIONS "files.inc"
#include "compat/mpi/both_counts.inc"
