// SPDX-License-Identifier: Apache-2.0
// Key-value store of MPICH's mpiexec (Hydra), with PMI 1, and of `srun --mpi=pmi2`, with PMI 2. It uses the socket that the
// launcher passes to the process (PMI_FD) and needs no library.
//
//   rank 0    put, barrier                     other ranks    barrier, wait for its end, get
//
// Slurm accepts one initialisation of the socket in the lifetime of a process; an MPI library that initialises it second
// waits for ever. So this store is not used if the process contains an MPI library, or if the user's own secret makes the
// store unnecessary. Hydra accepts any number of initialisations: an MPI library and this store can share the socket as long
// as they do not use it at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "messaging/bootstrap/launcher_store.hpp"
#include "messaging/bootstrap/pmi_connection.hpp"

namespace pl::messaging {

// Use it from one thread. A process that has opened the store must end with exit() or by returning from main: the launcher
// ends the job if a process ends with _exit() while others still run.
class pmi_store final : public launcher_store {
 public:
  // Whether the environment says that the launcher of this process has PMI.
  static bool is_offered();
  // ENOSYS: PMI_FD is not the socket of a launcher, the launcher does not answer, or the socket is left to an MPI library.
  static result<std::unique_ptr<pmi_store>> open();
  ~pmi_store() override;

  int rank() const noexcept override { return rank_; }
  // EMSGSIZE: `text` is longer than the launcher accepts.
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
