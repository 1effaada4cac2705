// SPDX-License-Identifier: Apache-2.0
// The store of MPICH's mpiexec (Hydra), by the PMI-1 protocol: lines of text over a socket that the launcher has left open
// (PMI_FD). `srun --mpi=pmi2` speaks it too. No library is needed.
//
//   rank 0    put, barrier_in                     the others    barrier_in, wait for barrier_out, get
//
// An MPI in the process uses the same socket, before or behind this: neither disturbs the other as long as they do not talk
// at the same time.
#pragma once

#include <cstdint>
#include <memory>
#include <string>

#include "messaging/bootstrap/launcher_store.hpp"

namespace pl::messaging {

// Once it was open, the process has to end by exit() or a return from main: the launcher ends the job of one that ends by
// _exit() while others run.
class pmi_store final : public launcher_store {
 public:
  // Whether the launcher of this process says that it has one.
  static bool is_offered();
  // ENOSYS: PMI_FD is no socket of a launcher, or it does not answer.
  static result<std::unique_ptr<pmi_store>> open();
  ~pmi_store() override;

  int rank() const noexcept override { return rank_; }
  // EMSGSIZE: longer than the launcher takes.
  status publish(const std::string& key, const std::string& text) override;
  result<std::string> read(int rank, const std::string& key, unsigned timeout_s) override;

 private:
  explicit pmi_store(int socket) : socket_(socket) {}
  status begin();
  status send(const std::string& line) const;
  // The next line, or ETIMEDOUT.
  result<std::string> receive(std::uint64_t deadline_ns);
  // The answer to `line`, which is a `reply`.
  result<std::string> ask(const std::string& line, const char* reply);
  status leave_barrier(std::uint64_t deadline_ns);

  int socket_;
  int rank_ = -1;
  std::string name_space_, unread_;
  std::size_t longest_value_ = 0;
  bool is_in_barrier_ = false;
};

// The value of a word "name=value" of a line; empty: there is none.
std::string pmi_value(const std::string& line, const std::string& name);

}  // namespace pl::messaging
