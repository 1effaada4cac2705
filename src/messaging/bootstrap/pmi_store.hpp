// SPDX-License-Identifier: Apache-2.0
// The store of MPICH's mpiexec (Hydra), by PMI 1, and of `srun --mpi=pmi2`, by PMI 2: over a socket that the launcher has
// left open (PMI_FD). No library is needed.
//
//   rank 0    put, barrier                     the others    barrier, wait for its end, get
//
// Slurm lets one user of the socket begin, once in the life of a process: an MPI that does so behind this one waits for
// ever. So it is left alone where an MPI is in the process, or a secret of the user's makes it needless. Hydra lets each
// begin: an MPI and this do not disturb each other there as long as they do not talk at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "messaging/bootstrap/launcher_store.hpp"
#include "messaging/bootstrap/pmi_connection.hpp"

namespace pl::messaging {

// Once it was open, the process has to end by exit() or a return from main: the launcher ends the job of one that ends by
// _exit() while others run.
class pmi_store final : public launcher_store {
 public:
  // Whether the launcher of this process says that it has one.
  static bool is_offered();
  // ENOSYS: PMI_FD is no socket of a launcher, it does not answer, or it is an MPI's.
  static result<std::unique_ptr<pmi_store>> open();
  ~pmi_store() override;

  int rank() const noexcept override { return rank_; }
  // EMSGSIZE: longer than the launcher takes.
  status publish(const std::string& key, const std::string& text) override;
  result<std::string> read(int rank, const std::string& key, unsigned timeout_s) override;

 private:
  pmi_store(int socket, int rank) : connection_(socket), rank_(rank) {}
  status begin(int version);
  status begin_lines();
  status begin_messages();
  status enter_barrier();
  status leave_barrier(std::uint64_t deadline_ns);

  pmi_connection connection_;
  int rank_;
  std::string name_space_;  // of PMI 1
  std::size_t longest_value_ = 0;
  bool is_in_barrier_ = false;
};

}  // namespace pl::messaging
