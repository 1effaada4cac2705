// SPDX-License-Identifier: Apache-2.0
// Bootstraps without a network: for processes that one process forks, for processes that share a folder, and for whoever has
// an exchange of his own.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "messaging/bootstrap/bootstrap.hpp"

namespace pl::link {

constexpr std::chrono::milliseconds kBootstrapTimeout{30000};

// Made before the fork; each process then takes its rank, once. Descriptors of other ranks are closed there.
class fork_bootstrap {
 public:
  static result<fork_bootstrap> make(int size);
  fork_bootstrap(fork_bootstrap&&) noexcept;
  fork_bootstrap& operator=(fork_bootstrap&&) = delete;
  ~fork_bootstrap();
  std::unique_ptr<bootstrap> take(int rank, std::chrono::milliseconds limit = kBootstrapTimeout);
  // In the process that only forked.
  void close();

 private:
  fork_bootstrap() = default;
  int size_ = 0;
  std::vector<int> ends_;  // size x size: how rank i reaches rank j, -1 on the diagonal
};

// Collective. Every process names the same folder (of a file system that renames atomically, NFS included); it is made if it
// is not there, and what an earlier run left in it does no harm. Two runs at a time need two folders.
result<std::unique_ptr<bootstrap>> file_bootstrap(const std::string& folder, int rank, int size,
                                                  std::chrono::milliseconds limit = kBootstrapTimeout);

// The caller's own exchange; barrier is an exchange of nothing.
std::unique_ptr<bootstrap> callback_bootstrap(
    int rank, int size, std::function<result<std::vector<byte_string>>(std::span<const std::byte>)> all_gather);

}  // namespace pl::link
