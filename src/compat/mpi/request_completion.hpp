// SPDX-License-Identifier: Apache-2.0
// The requests of one call that waits or tests.
#pragma once

#include "compat/mpi/guarded.hpp"

namespace pl::mpi {

// Holds the records of these requests while MPI may complete them: once it has, another thread's new request may get
// the same handle. What has not completed goes back to the table at the end.
class completing {
 public:
  completing(std::size_t n, const MPI_Request* list);
  ~completing();
  completing(const completing&) = delete;
  completing& operator=(const completing&) = delete;

  // Whether any of them has a stand-in. If not, the call is MPI's alone.
  bool is_concerned() const noexcept { return found_ != 0; }
  // MPI has ended request i: what it received is stored, and the status says its true size. A persistent one goes back as
  // inactive.
  int end(std::size_t i, MPI_Status& status);
  // MPI has ended request i with an error.
  void fail(std::size_t i);
  // After a failed call without statuses: what MPI did not set to null has not ended.
  void sort_out(const MPI_Request* now);

 private:
  std::vector<MPI_Request> handles_;
  std::vector<std::unique_ptr<record>> records_;
  std::size_t found_ = 0;
};

// The caller's statuses, or our own if he wants none.
class statuses_of_call {
 public:
  statuses_of_call(std::size_t n, MPI_Status* wanted) : own_(wanted != MPI_STATUSES_IGNORE ? 0 : n), wanted_(wanted) {}
  MPI_Status* get() noexcept { return own_.empty() ? wanted_ : own_.data(); }

 private:
  std::vector<MPI_Status> own_;
  MPI_Status* wanted_;
};

}  // namespace pl::mpi
