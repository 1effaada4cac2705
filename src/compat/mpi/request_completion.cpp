// SPDX-License-Identifier: Apache-2.0
// MPI functions that complete requests.
#include "compat/mpi/request_completion.hpp"

using namespace pl::mpi;

completing::completing(std::size_t n, const MPI_Request* list) : handles_(list, list + n), records_(n) {
  for (std::size_t i = 0; i < n; ++i)
    if (list[i] != request_null())
      if ((records_[i] = requests().take(list[i])) != nullptr) ++found_;
}

completing::~completing() {
  for (std::size_t i = 0; i < records_.size(); ++i)
    if (records_[i] != nullptr) requests().put(handles_[i], std::move(records_[i]));
}

int completing::end(std::size_t i, MPI_Status& status) {
  auto& entry = records_[i];
  if (entry == nullptr) return MPI_SUCCESS;
  const int code = store_result(*entry, status);
  fail(i);
  return code;
}

void completing::fail(std::size_t i) {
  auto& entry = records_[i];
  if (entry == nullptr) return;
  entry->is_active = entry->is_stored = false;
  if (!entry->is_persistent) entry.reset();
}

void completing::sort_out(const MPI_Request* now) {
  for (std::size_t i = 0; i < records_.size(); ++i)
    if (now[i] == request_null()) fail(i);
}

namespace {

constexpr int kNone = MPI_UNDEFINED;

// The fast path of every function here: no request of this process has a stand-in.
bool nothing_to_do() {
  requests().progress();
  return requests().is_empty();
}

int raise_on_world(int code) { return unless(code, comm_world()); }

// MPI has ended some requests; `code` is its result, and status i belongs to index_of(i). What fails on our side is reported
// as MPI reports its own failures: one by one in the statuses.
template <class Index>
int end_listed(completing& held, std::size_t n, Index index_of, MPI_Status* status, int code) {
  std::vector<int> codes(n, MPI_SUCCESS);
  bool has_failed = false;
  for (std::size_t i = 0; i < n; ++i) {
    if (code != MPI_SUCCESS) codes[i] = status[i].MPI_ERROR;
    if (codes[i] == MPI_ERR_PENDING) continue;
    if (codes[i] != MPI_SUCCESS) {
      held.fail(index_of(i));
    } else if ((codes[i] = held.end(index_of(i), status[i])) != MPI_SUCCESS) {
      has_failed = true;
    }
  }
  if (!has_failed) return code;
  for (std::size_t i = 0; i < n; ++i) status[i].MPI_ERROR = codes[i];
  return code != MPI_SUCCESS ? code : raise_on_world(MPI_ERR_IN_STATUS);
}

// All of them have ended; `code` is MPI's result.
int end_all(completing& held, std::size_t n, const MPI_Request* now, MPI_Status* status, int code) {
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) return held.sort_out(now), code;
  return end_listed(
      held, n, [](std::size_t i) { return i; }, status, code);
}

// Those of `indices` have ended; status i belongs to indices[i].
int end_some(completing& held, int n, const int* indices, const MPI_Request* now, MPI_Status* status, int code) {
  if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) return held.sort_out(now), code;
  return end_listed(
      held, static_cast<std::size_t>(n), [&](std::size_t i) { return static_cast<std::size_t>(indices[i]); }, status, code);
}

int end_one(completing& held, std::size_t index, const MPI_Request* now, MPI_Status& status, int code) {
  if (code != MPI_SUCCESS) return held.sort_out(now), code;
  return raise_on_world(held.end(index, status));
}

std::size_t size_of(int n) { return n > 0 ? static_cast<std::size_t>(n) : 0; }

// Each as it ends, not all at the end: a sender waits for its message to be taken, and sends the next one then.
int wait_one_by_one(completing& held, int n, MPI_Request* list, MPI_Status* status) {
  const std::size_t all = size_of(n);
  std::vector<int> indices(all), codes(all, MPI_SUCCESS);
  std::vector<MPI_Status> ended(all);
  std::vector<bool> has_ended(all);
  bool has_failed = false;
  for (;;) {
    int count = 0;
    const int code = PMPI_Waitsome(n, list, &count, indices.data(), ended.data());
    if (code != MPI_SUCCESS && code != MPI_ERR_IN_STATUS) return held.sort_out(list), code;
    if (count == kNone) break;
    for (std::size_t i = 0; i < size_of(count); ++i) {
      const auto index = size_of(indices[i]);
      has_ended[index] = true;
      codes[index] = code == MPI_SUCCESS ? MPI_SUCCESS : ended[i].MPI_ERROR;
      if (codes[index] != MPI_SUCCESS) held.fail(index);
      else codes[index] = held.end(index, ended[i]);
      has_failed |= codes[index] != MPI_SUCCESS;
      status[index] = ended[i];
    }
  }
  for (std::size_t i = 0; i < all; ++i) {
    MPI_Request none = request_null();
    if (!has_ended[i]) PMPI_Wait(&none, &status[i]);  // the empty status
  }
  if (!has_failed) return MPI_SUCCESS;
  for (std::size_t i = 0; i < all; ++i) status[i].MPI_ERROR = codes[i];
  return raise_on_world(MPI_ERR_IN_STATUS);
}

}  // namespace

int MPI_Wait(MPI_Request* request, MPI_Status* wanted) {
  if (nothing_to_do()) return PMPI_Wait(request, wanted);
  completing held(1, request);
  if (!held.is_concerned()) return PMPI_Wait(request, wanted);
  statuses_of_call status(1, wanted);
  const int code = PMPI_Wait(request, status.get());
  return end_one(held, 0, request, *status.get(), code);
}

int MPI_Test(MPI_Request* request, int* flag, MPI_Status* wanted) {
  if (nothing_to_do()) return PMPI_Test(request, flag, wanted);
  completing held(1, request);
  if (!held.is_concerned()) return PMPI_Test(request, flag, wanted);
  statuses_of_call status(1, wanted);
  const int code = PMPI_Test(request, flag, status.get());
  if (code == MPI_SUCCESS && *flag == 0) return code;
  return end_one(held, 0, request, *status.get(), code);
}

int MPI_Waitany(int n, MPI_Request* list, int* index, MPI_Status* wanted) {
  if (nothing_to_do()) return PMPI_Waitany(n, list, index, wanted);
  completing held(size_of(n), list);
  if (!held.is_concerned()) return PMPI_Waitany(n, list, index, wanted);
  statuses_of_call status(1, wanted);
  const int code = PMPI_Waitany(n, list, index, status.get());
  if (code == MPI_SUCCESS && *index == kNone) return code;
  return end_one(held, size_of(*index), list, *status.get(), code);
}

int MPI_Testany(int n, MPI_Request* list, int* index, int* flag, MPI_Status* wanted) {
  if (nothing_to_do()) return PMPI_Testany(n, list, index, flag, wanted);
  completing held(size_of(n), list);
  if (!held.is_concerned()) return PMPI_Testany(n, list, index, flag, wanted);
  statuses_of_call status(1, wanted);
  const int code = PMPI_Testany(n, list, index, flag, status.get());
  if (code == MPI_SUCCESS && (*flag == 0 || *index == kNone)) return code;
  return end_one(held, size_of(*index), list, *status.get(), code);
}

int MPI_Waitall(int n, MPI_Request* list, MPI_Status* wanted) {
  if (nothing_to_do()) return PMPI_Waitall(n, list, wanted);
  completing held(size_of(n), list);
  if (!held.is_concerned()) return PMPI_Waitall(n, list, wanted);
  statuses_of_call status(size_of(n), wanted);
  if (pipeline_is_on()) return wait_one_by_one(held, n, list, status.get());
  const int code = PMPI_Waitall(n, list, status.get());
  return end_all(held, size_of(n), list, status.get(), code);
}

int MPI_Testall(int n, MPI_Request* list, int* flag, MPI_Status* wanted) {
  if (nothing_to_do()) return PMPI_Testall(n, list, flag, wanted);
  completing held(size_of(n), list);
  if (!held.is_concerned()) return PMPI_Testall(n, list, flag, wanted);
  statuses_of_call status(size_of(n), wanted);
  const int code = PMPI_Testall(n, list, flag, status.get());
  if (code == MPI_SUCCESS && *flag == 0) return code;
  return end_all(held, size_of(n), list, status.get(), code);
}

int MPI_Waitsome(int n, MPI_Request* list, int* ended, int* indices, MPI_Status* wanted) {
  if (nothing_to_do()) return PMPI_Waitsome(n, list, ended, indices, wanted);
  completing held(size_of(n), list);
  if (!held.is_concerned()) return PMPI_Waitsome(n, list, ended, indices, wanted);
  statuses_of_call status(size_of(n), wanted);
  const int code = PMPI_Waitsome(n, list, ended, indices, status.get());
  if (code == MPI_SUCCESS && *ended == kNone) return code;
  return end_some(held, *ended, indices, list, status.get(), code);
}

int MPI_Testsome(int n, MPI_Request* list, int* ended, int* indices, MPI_Status* wanted) {
  if (nothing_to_do()) return PMPI_Testsome(n, list, ended, indices, wanted);
  completing held(size_of(n), list);
  if (!held.is_concerned()) return PMPI_Testsome(n, list, ended, indices, wanted);
  statuses_of_call status(size_of(n), wanted);
  const int code = PMPI_Testsome(n, list, ended, indices, status.get());
  if (code == MPI_SUCCESS && *ended == kNone) return code;
  return end_some(held, *ended, indices, list, status.get(), code);
}

// Reports the end without completing the request: the data must be there already, and is not stored again later, when
// the program may have written to the buffer.
int MPI_Request_get_status(MPI_Request request, int* flag, MPI_Status* wanted) {
  auto entry = nothing_to_do() || request == request_null() ? nullptr : requests().take(request);
  if (entry == nullptr) return PMPI_Request_get_status(request, flag, wanted);
  statuses_of_call status(1, wanted);
  int code = PMPI_Request_get_status(request, flag, status.get());
  if (code == MPI_SUCCESS && *flag != 0) {
    const int stored = store_result(*entry, *status.get());
    entry->is_stored = true;
    entry->stored = *status.get();
    code = raise_on_world(stored);
  }
  requests().put(request, std::move(entry));
  return code;
}

// MPI would continue a request that we could then no longer query, so it is freed when it has ended.
int MPI_Request_free(MPI_Request* request) {
  auto entry = nothing_to_do() || *request == request_null() ? nullptr : requests().take(*request);
  if (entry == nullptr || !entry->is_active) return PMPI_Request_free(request);
  requests().abandon(*request, std::move(entry));
  *request = request_null();
  requests().progress();
  return MPI_SUCCESS;
}
