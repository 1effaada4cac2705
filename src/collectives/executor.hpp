// SPDX-License-Identifier: Apache-2.0
// Collectives between all processes of a messenger, on host or device memory, in place or not.
//
// Each rank begins the same collectives in the same order, with counts that fit together. Several may be under way; they are
// numbered by the order of their begins, and their messages have a tag space of their own.
//
// In place: gather and all_gather take `source` where its block lies in `destination`; scatter, and reduce_scatter, take
// `destination` as this rank's block of `source`; reduce, all_reduce and all_to_all take one memory for both. Other overlaps
// are refused.
//
// Device memory: bytes move by messages between device memories. Long reductions are combined by kernels of the GPU that has
// both sides' memory; short ones, and those that no kernel can do, by the CPU: the source goes to host memory first, the
// result back last.
//
// Failure: where a collective fails (a rank is gone, counts differ, or its operation is dropped before its end), every
// collective that is under way ends with an error, here and at all other ranks, and none can begin: the collectives are
// *stopped*. Messages go on. restore(), called by all ranks, lets collectives begin anew if all are alive. In an elastic job
// it waits until who is gone has come back; any loss stops the collectives there, and so does coming back.
//
// Owns: the collectives under way. Threads: any; one works at a time. Progress: inside calls on the executor and its
// operations only. Errors: EINVAL for arguments, with nothing begun; else those of the operation.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <span>
#include <string>
#include <utility>
#include <vector>

#include "collectives/algorithm_table.hpp"
#include "collectives/algorithms.hpp"
#include "collectives/device_combiner.hpp"
#include "collectives/rejoin_agreement.hpp"
#include "messaging/bootstrap/bootstrap.hpp"
#include "messaging/messenger.hpp"

namespace pl::collectives {

class executor;
struct running;  // a collective under way

// A collective that has begun. Dropping one that has not ended stops the collectives of all ranks. Must end before its
// executor. One thread at a time per object.
class operation {
 public:
  operation() = default;
  operation(operation&& other) noexcept
      : owner_(std::exchange(other.owner_, nullptr)), running_(std::exchange(other.running_, nullptr)) {}
  operation& operator=(operation&& other) noexcept;
  ~operation() { drop(); }

  bool is_empty() const noexcept { return running_ == nullptr; }
  // Makes progress once if it has not ended.
  bool test();
  bool has_ended() const;
  // ETIMEDOUT leaves it under way. A negative time waits without limit.
  status wait(std::chrono::milliseconds limit = std::chrono::milliseconds(-1));
  // Once ended. ECONNRESET a rank is gone, EMSGSIZE counts differ, ECANCELED a rank gave one up, or a message's error.
  status outcome() const;

 private:
  friend class executor;
  operation(executor* owner, running* begun) noexcept : owner_(owner), running_(begun) {}
  void drop() noexcept;
  executor* owner_ = nullptr;
  running* running_ = nullptr;
};

class executor {
 public:
  using buffer = messaging::buffer;

  // Collective, by the bootstrap. PEERLANE_COLLECTIVES_TABLE of rank 0 names a file of rules (algorithm_table.hpp).
  static result<std::unique_ptr<executor>> open(messaging::messenger& messages, messaging::bootstrap& group);
  ~executor();

  // ---- `bytes` of a buffer are all that its rank reads or writes: a gather's destination has size() blocks.
  result<operation> barrier();
  result<operation> broadcast(const buffer& data, int root);
  result<operation> gather(const buffer& source, const buffer& destination, int root);   // destination: at the root
  result<operation> scatter(const buffer& source, const buffer& destination, int root);  // source: at the root
  result<operation> all_gather(const buffer& source, const buffer& destination);
  result<operation> reduce(const buffer& source, const buffer& destination, summation terms, int root);
  result<operation> all_reduce(const buffer& source, const buffer& destination, summation terms);
  // `counts`: elements of each rank's block of the source.
  result<operation> reduce_scatter(const buffer& source, const buffer& destination, std::span<const std::size_t> counts,
                                   summation terms);
  result<operation> all_to_all(const buffer& source, const buffer& destination);
  // One side: bytes and offsets by rank.
  struct blocks {
    std::span<const std::size_t> bytes, offsets;
  };
  result<operation> all_to_all_v(const buffer& source, const blocks& sent, const buffer& destination,
                                 const blocks& received);

  // Advances everything once.
  bool progress();
  bool has_pending() const;
  // Collective. Success: collectives may begin again, and barriers of the messenger. ECONNRESET: a rank is gone, so they
  // cannot; in an elastic job rank 0, or a rank was lost meanwhile: call it again. ETIMEDOUT: not all ranks came; the next
  // call goes on with it.
  status restore(std::chrono::milliseconds limit = std::chrono::milliseconds(-1));

  int rank() const noexcept { return own_.rank; }
  int size() const noexcept { return own_.size; }
  // The same at all ranks, and not while collectives are under way.
  void use(algorithm_table table) { table_ = std::move(table); }
  const algorithm_table& table() const noexcept { return table_; }

 private:
  friend class operation;
  executor(messaging::messenger& messages, algorithm_table table);

  // The place of a buffer's memory, once its kind is known.
  result<place> locate(const buffer& memory);
  result<std::pair<place, place>> locate(const buffer& source, const buffer& destination);
  status check_root(int root) const;
  algorithm choose(collective kind, std::size_t bytes, bool is_device) const;

  // The combiner of the GPU that has both buffers' memory; null: the CPU combines.
  device_combiner* combiner_for(place source, place destination, std::size_t bytes, std::size_t width);
  // A reduction between `input` and `output`, which `plan` schedules on memory of one kind.
  template <class Plan>
  result<operation> begin_reduction(collective kind, std::pair<place, place> memory, std::size_t source_bytes,
                                    std::size_t result_bytes, const summation& terms, Plan&& plan);

  // A collective with an empty schedule; not begun yet.
  result<running*> prepare(collective kind);
  operation begin(running& one);
  result<operation> begin_move(collective kind, const buffer& source, const buffer& destination, int root,
                               std::size_t bytes);

  // ---- Under the lock
  bool advance(running& one, bool polls);
  bool run_step(running& one, const step& next, bool polls);
  bool combine_on_device(running& one, const step& next);
  bool finish(running& one, bool polls);
  bool check_message(running& one, std::uint32_t token, bool polls);
  bool advance_all(const running* polled);
  void stop(int code, const std::string& reason);
  void poll_notices();
  void discard_epoch();
  std::uint64_t tag_of(std::uint64_t sequence) const noexcept;
  void recycle(running& one);
  void note_losses();
  // Without the lock
  status meet_all(std::chrono::milliseconds limit);
  status begin_anew(std::chrono::milliseconds limit);

  messaging::messenger& messages_;
  const own_place own_;
  algorithm_table table_;
  mutable std::mutex mutex_;
  std::vector<std::unique_ptr<device_combiner>> combiners_;  // of each GPU that was used; outlives the schedules
  std::vector<running*> pending_;                            // in the order of their begins
  std::vector<std::unique_ptr<running>> all_;
  std::vector<running*> free_;
  std::optional<failure> stopped_;
  std::optional<rejoin_agreement> rejoin_agreement_;  // of an elastic job
  std::uint64_t seen_losses_ = 0;
  bool has_no_combiner_ = false;  // not in this build, or not with this driver
  std::vector<messaging::request> notices_;
  struct failure_notice {
    std::int32_t code = 0, rank = 0;
  } notice_;  // what the requests above send
  std::uint64_t epoch_ = 0, sequence_ = 0;
  unsigned rounds_ = 0;
};

}  // namespace pl::collectives
