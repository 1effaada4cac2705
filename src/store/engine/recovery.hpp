// SPDX-License-Identifier: Apache-2.0
// Decides whether the index can be opened without losing anything acknowledged. RocksDB silently opens any prefix of
// its log, and creates an empty index if it finds none. So before it opens anything, its files are compared with the
// mark (commit_mark.hpp): after a clean stop they must be those that were sealed; after a crash, replay must get as far
// as was acknowledged.
#pragma once

#include <functional>
#include <optional>
#include <string>

#include "store/engine/commit_mark.hpp"
#include "store/engine/index_log.hpp"
#include "store/engine/manifest.hpp"
#include "store/engine/types.hpp"

namespace pl::store {

struct recovery_plan {
  bool is_new = false;                // nothing was ever stored here: a new index is created
  bool is_sealed = false;             // the store stopped cleanly: the log has no torn end
  std::uint64_t required = 0;         // the sequence number that the opened index must reach
  std::optional<manifest_file> torn;  // to be cut before the index is opened
};

// How far a replay of the index gets, and which logs it reads.
struct replay_reach {
  std::uint64_t last_sequence = 0;
  std::uint64_t first_log = 0;
};

struct recovery_input {
  std::string index_folder;
  bool has_extents = false;  // there are files of large values, so something was stored
  std::optional<mark_state> mark;
  std::string boot;
  std::uint64_t last_family = 0;  // the highest column family that the index should have
  // Opens the index for reading, to find its replay_reach; with the whole part of a torn manifest if one is given.
  // Called only if the logs alone do not decide.
  std::function<result<replay_reach>(const manifest_file* torn)> replay;
};

// Fails if a file of the index is a FIFO, a socket or a device: RocksDB would wait for the writer of a FIFO. It refuses
// folders itself.
status need_regular_files(const std::string& index_folder);

// EUCLEAN if something is lost; the message names it and the next step. Changes nothing.
result<recovery_plan> plan_recovery(const recovery_input& question);

// What to seal at a clean stop: the files that define the index, and the logs that are not empty.
result<std::vector<file_seal>> seals_of(const std::string& index_folder);

// DIR/manifest.copy, a second copy of the manifest of a clean stop: without the manifest, nobody knows which tables the
// index has.
struct manifest_copy {
  std::string name, bytes;
};
status write_manifest_copy(const std::string& index_folder, const std::string& path);
std::optional<manifest_copy> read_manifest_copy(const std::string& path);

// The last sentence of a message about damage.
inline constexpr const char* kDamageAdvice =
    "; `peerlane store check --data DIR` says what is damaged, `store repair` saves what is good, `store restore` brings a "
    "backup";

}  // namespace pl::store
