// SPDX-License-Identifier: Apache-2.0
// What is known of MPI requests whose buffers are stand-ins or that may be pipelined, from the call that creates them
// to the one that completes them.
#pragma once

#include <array>
#include <atomic>
#include <memory>
#include <mutex>
#include <unordered_map>
#include <vector>

#include "compat/mpi/pipelined.hpp"
#include "compat/mpi/staged_operation.hpp"

namespace pl::mpi {

struct record {
  enum class kind : std::uint8_t { send, receive, collective, file_read, exchange, one_sided };
  kind operation = kind::send;
  bool is_persistent = false;
  bool is_active = true;   // persistent: started and not yet completed
  bool is_stored = false;  // MPI_Request_get_status has reported the end already
  staged send, receive;
  std::unique_ptr<host_target> host;            // of a receive into host memory that may get a header
  std::unique_ptr<pipelined_send> pipelined;    // of a send that went as one
  std::shared_ptr<staged_operation> one_sided;  // which a synchronization of its window may end before the request is
  MPI_Status stored{};                          // as MPI_Request_get_status has reported it
};

// Thread-safe. MPI lets only one thread complete a request, so a record that was taken out has a single owner.
class request_table {
 public:
  // True if there is nothing to look for: one load, which is all that programs without device memory pay.
  bool is_empty() const noexcept { return size_.load(std::memory_order_acquire) == 0; }
  void put(MPI_Request request, std::unique_ptr<record> entry);
  std::unique_ptr<record> take(MPI_Request request);

  // Keeps a request that its owner freed while it was active: MPI is polled until it ends, and received data is stored.
  void abandon(MPI_Request request, std::unique_ptr<record> entry);
  // Polls all of them; `wait`: until every one has ended.
  void progress(bool wait = false);
  void clear();

 private:
  struct shard {
    std::mutex mutex;
    std::unordered_map<std::uint64_t, std::unique_ptr<record>> records;
  };
  struct abandoned {
    MPI_Request request;
    std::unique_ptr<record> data;
  };
  shard& shard_of(std::uint64_t key) { return shards_[(key ^ key >> 8) % shards_.size()]; }

  std::array<shard, 64> shards_;
  std::atomic<std::size_t> size_{0};
  std::mutex abandoned_mutex_;
  std::vector<abandoned> abandoned_;
  std::atomic<std::size_t> abandoned_count_{0};
};

request_table& requests();

// Called after MPI has ended the operation: stores the data of a receive, whose true size `status` then says.
int store_result(record& entry, MPI_Status& status);

}  // namespace pl::mpi
