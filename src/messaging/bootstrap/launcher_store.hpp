// SPDX-License-Identifier: Apache-2.0
// What a launcher keeps for the ranks of a job: texts that one rank publishes under a key and any other reads, on whatever
// host. Which launchers have one: pmix_store.hpp, pmi_store.hpp.
#pragma once

#include <memory>
#include <string>

#include "base/status.hpp"

namespace pl::messaging {

// One thread. All ranks of the job make their calls for one key in the same order: rank 0 publishes, the others read.
class launcher_store {
 public:
  launcher_store() = default;
  virtual ~launcher_store() = default;
  launcher_store(const launcher_store&) = delete;
  launcher_store& operator=(const launcher_store&) = delete;

  virtual int rank() const noexcept = 0;  // in the job, as the launcher counts
  // Any rank can read it from then on. Each key once in a job. EIO with the launcher's reason.
  virtual status publish(const std::string& key, const std::string& text) = 0;
  // Waits until `rank` has published it. ETIMEDOUT; EIO with the launcher's reason.
  virtual result<std::string> read(int rank, const std::string& key, unsigned timeout_s) = 0;
};

// Whether the launcher of this process says that it has one. No library is loaded.
bool is_launcher_store_offered();
// As `rank` of the job. ENOSYS: none can be reached in which this process is that rank; the sentence says why.
result<std::unique_ptr<launcher_store>> open_launcher_store(int rank);

}  // namespace pl::messaging
