// SPDX-License-Identifier: Apache-2.0
#include "compat/mpi/request_table.hpp"

namespace pl::mpi {

namespace {

bool has_ended(MPI_Request request, record& entry, bool wait) {
  MPI_Status status;
  int done = 1;
  const int code = wait ? PMPI_Wait(&request, &status) : PMPI_Test(&request, &done, &status);
  if (code == MPI_SUCCESS && done == 0) return false;
  if (code == MPI_SUCCESS) store_result(entry, status);
  if (entry.is_persistent) PMPI_Request_free(&request);
  return true;
}

}  // namespace

request_table& requests() {
  static auto* const table = new request_table;  // never destroyed: destructors of other libraries may still call MPI
  return *table;
}

void request_table::put(MPI_Request request, std::unique_ptr<record> entry) {
  const auto key = number_of(request);
  auto& part = shard_of(key);
  const std::lock_guard lock(part.mutex);
  part.records[key] = std::move(entry);
  size_.fetch_add(1, std::memory_order_release);
}

std::unique_ptr<record> request_table::take(MPI_Request request) {
  const auto key = number_of(request);
  auto& part = shard_of(key);
  const std::lock_guard lock(part.mutex);
  const auto found = part.records.find(key);
  if (found == part.records.end()) return nullptr;
  auto out = std::move(found->second);
  part.records.erase(found);
  size_.fetch_sub(1, std::memory_order_release);
  return out;
}

void request_table::abandon(MPI_Request request, std::unique_ptr<record> entry) {
  const std::lock_guard lock(abandoned_mutex_);
  abandoned_.push_back({request, std::move(entry)});
  abandoned_count_.store(abandoned_.size(), std::memory_order_release);
}

void request_table::progress(bool wait) {
  if (abandoned_count_.load(std::memory_order_acquire) == 0) return;
  std::unique_lock lock(abandoned_mutex_, std::defer_lock);
  if (wait) lock.lock();
  else if (!lock.try_lock()) return;
  for (std::size_t i = 0; i < abandoned_.size();) {
    if (!has_ended(abandoned_[i].request, *abandoned_[i].data, wait)) {
      ++i;
      continue;
    }
    abandoned_[i] = std::move(abandoned_.back());
    abandoned_.pop_back();
  }
  abandoned_count_.store(abandoned_.size(), std::memory_order_release);
}

void request_table::clear() {
  for (auto& part : shards_) {
    const std::lock_guard lock(part.mutex);
    size_.fetch_sub(part.records.size(), std::memory_order_release);
    part.records.clear();
  }
}

int store_result(record& entry, MPI_Status& status) {
  if (!entry.is_active) return MPI_SUCCESS;
  if (entry.is_stored) return status = entry.stored, MPI_SUCCESS;
  if (entry.operation == record::kind::one_sided) return entry.one_sided->finish_request();
  if (entry.operation == record::kind::collective) return entry.receive.store();
  // Nobody cancels these, and Open MPI's say now and then that somebody has.
  if (entry.operation == record::kind::file_read) return entry.receive.store_first(received_bytes(status));
  // MPICH's exchanges do not say how much they received.
  if (entry.operation == record::kind::exchange)
    return entry.host != nullptr ? finish_unknown(*entry.host) : finish_unknown(entry.receive);
  int cancelled = 0;
  PMPI_Test_cancelled(&status, &cancelled);
  if (entry.operation == record::kind::send) {
    if (cancelled != 0 && entry.pipelined != nullptr) entry.pipelined->withdraw();
    return MPI_SUCCESS;
  }
  if (cancelled != 0) return MPI_SUCCESS;
  return entry.host != nullptr ? finish_receive(*entry.host, status) : finish_receive(entry.receive, status);
}

}  // namespace pl::mpi
