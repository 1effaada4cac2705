// SPDX-License-Identifier: Apache-2.0
// Key-value store of a launcher: one rank publishes a text under a key, and any rank on any host reads it. Implementations:
// pmix_store.hpp, pmi_store.hpp.
#pragma once

#include <memory>
#include <string>

#include "base/status.hpp"

namespace pl::messaging {

// Not thread-safe: use it from one thread. All ranks of the job must use their keys in the same order; for each key rank 0
// publishes and the others read.
class launcher_store {
 public:
  launcher_store() = default;
  virtual ~launcher_store() = default;
  launcher_store(const launcher_store&) = delete;
  launcher_store& operator=(const launcher_store&) = delete;

  virtual int rank() const noexcept = 0;  // of this process, as the launcher numbers it
  // Publishes `text`, which any rank can read once this returns. A key can be published once per job. EIO: the launcher's
  // error, quoted in the message.
  virtual status publish(const std::string& key, const std::string& text) = 0;
  // Waits until `rank` has published the key, and returns its text. ETIMEDOUT: not within `timeout_s` seconds. EIO: the
  // launcher's error, quoted in the message.
  virtual result<std::string> read(int rank, const std::string& key, unsigned timeout_s) = 0;
};

// Whether the environment says that the launcher of this process has a store. Loads no library.
bool is_launcher_store_offered();
// Opens the store as `rank` of the job. ENOSYS: no store is reachable, or the launcher gives this process another rank; the
// message says why.
result<std::unique_ptr<launcher_store>> open_launcher_store(int rank);

}  // namespace pl::messaging
