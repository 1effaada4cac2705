// SPDX-License-Identifier: Apache-2.0
// A command's own server, for demonstrations and benchmarks: a process of this program with a directory of its own.
#pragma once

#include <sys/types.h>

#include <optional>
#include <string>
#include <vector>

#include "tools/common/temporary_folder.hpp"

namespace pl::store_tools {

// Returns false if a store's server answers on the socket of this directory; true also for an empty directory name.
bool is_unserved(const std::string& directory);

// Made before CUDA is initialised: the process is forked. Throws when the server does not come up.
class own_server {
 public:
  // `directory` empty: a new one in TMPDIR, deleted at the end. `more`: options of `peerlane store serve`.
  explicit own_server(std::string directory, const std::vector<std::string>& more = {});
  // SIGTERM, and waits until it has drained.
  ~own_server();
  own_server(const own_server&) = delete;
  own_server& operator=(const own_server&) = delete;
  // SIGKILL: nothing is drained. Returns what the process's number was; the folder stays until the end of this object.
  pid_t kill_hard();
  std::string socket() const { return directory_ + "/store.sock"; }

 private:
  std::string directory_;
  std::optional<tools::temporary_folder> temporary_;  // deleted when the server has ended
  pid_t process_ = -1;
};

}  // namespace pl::store_tools
