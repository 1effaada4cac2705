// SPDX-License-Identifier: Apache-2.0
// Bootstraps without a network: for forked processes, for processes that share a folder, and for callers with their own
// exchange.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "messaging/bootstrap/bootstrap.hpp"

namespace pl::messaging {

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

// Collective. All processes name the same folder, on a file system that renames atomically (NFS does). It is created if
// missing, and may hold files of an earlier run. Two concurrent runs need two folders.
result<std::unique_ptr<bootstrap>> file_bootstrap(const std::string& folder, int rank, int size,
                                                  std::chrono::milliseconds limit = kBootstrapTimeout);

// The caller's own exchange; barrier is an exchange of nothing.
std::unique_ptr<bootstrap> callback_bootstrap(
    int rank, int size, std::function<result<std::vector<byte_string>>(std::span<const std::byte>)> all_gather);

}  // namespace pl::messaging
