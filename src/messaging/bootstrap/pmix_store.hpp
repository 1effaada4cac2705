// SPDX-License-Identifier: Apache-2.0
// Key-value store of launchers with PMIx 2 to 5: Open MPI's mpirun, PRRTE and `srun --mpi=pmix`. libpmix is loaded on first
// use, so Peerlane does not depend on it.
#pragma once

#include <memory>
#include <string>

#include "messaging/bootstrap/launcher_store.hpp"

namespace pl::messaging {

// At most one object per process; use it from one thread. It does not interfere with an MPI library in the same process,
// initialised before or after: PMIx counts its users. A process that has opened the store must end with exit() or by
// returning from main; the launcher treats a process that ends with _exit() as failed.
class pmix_store final : public launcher_store {
 public:
  // Whether the environment says that the launcher of this process has PMIx. Loads no library.
  static bool is_offered();
  // ENOSYS: libpmix.so.2 is not installed, or it cannot reach a server.
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
