// SPDX-License-Identifier: Apache-2.0
// The store of launchers with PMIx 2 to 5: Open MPI's mpirun, PRRTE and `srun --mpi=pmix`. The library is loaded when it is
// asked for, so nothing of ours needs it.
#pragma once

#include <memory>
#include <string>

#include "messaging/bootstrap/launcher_store.hpp"

namespace pl::messaging {

// One object at a time in a process; one thread. An MPI that is open in the process, or opens later, is not disturbed: PMIx
// counts its users. Once it was open, the process has to end by exit() or a return from main: the launcher takes one that
// ends by _exit() for one that failed.
class pmix_store final : public launcher_store {
 public:
  // Whether the launcher of this process says that it has one. No library is loaded.
  static bool is_offered();
  // ENOSYS: there is no libpmix.so.2, or it reaches no server.
  static result<std::unique_ptr<pmix_store>> open();
  ~pmix_store() override;

  int rank() const noexcept override;
  status publish(const std::string& key, const std::string& text) override;
  result<std::string> read(int rank, const std::string& key, unsigned timeout_s) override;

 private:
  struct state;
  explicit pmix_store(std::unique_ptr<state> made);
  std::unique_ptr<state> state_;
};

}  // namespace pl::messaging
