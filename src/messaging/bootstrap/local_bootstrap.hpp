// SPDX-License-Identifier: Apache-2.0
// Bootstraps without a network: for forked processes, for processes that share a folder, and for callers that supply their
// own exchange.
#pragma once

#include <chrono>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "messaging/bootstrap/bootstrap.hpp"

namespace pl::messaging {

constexpr std::chrono::milliseconds kBootstrapTimeout{30000};

// Connects processes that are forked from one parent. Make it before the fork; then each process calls take() once, with its
// own rank. take() closes the descriptors of all other ranks.
class fork_bootstrap {
 public:
  // `size`: number of ranks. errno of socketpair(2).
  static result<fork_bootstrap> make(int size);
  fork_bootstrap(fork_bootstrap&&) noexcept;
  fork_bootstrap& operator=(fork_bootstrap&&) = delete;
  ~fork_bootstrap();
  std::unique_ptr<bootstrap> take(int rank, std::chrono::milliseconds limit = kBootstrapTimeout);
  // Call it in a parent that is not a rank itself.
  void close();

 private:
  fork_bootstrap() = default;
  int size_ = 0;
  std::vector<int> ends_;  // size x size: descriptor of rank i for rank j; -1 on the diagonal
};

// Collective: all processes name the same folder, on a file system with atomic rename (NFS has it). The folder is created if
// it does not exist, and may contain files of an earlier run. Concurrent runs need separate folders.
result<std::unique_ptr<bootstrap>> file_bootstrap(const std::string& folder, int rank, int size,
                                                  std::chrono::milliseconds limit = kBootstrapTimeout);

// Uses the caller's all-gather, which must return the contributions of all ranks in rank order. A barrier is an all-gather
// of empty contributions.
std::unique_ptr<bootstrap> callback_bootstrap(
    int rank, int size, std::function<result<std::vector<byte_string>>(std::span<const std::byte>)> all_gather);

}  // namespace pl::messaging
