// SPDX-License-Identifier: Apache-2.0
// Whether the index can be opened without losing anything that was acknowledged. RocksDB opens whatever is a prefix of its
// log, and makes an empty index where it finds none; both are silent. So before it opens anything, its files are held
// against the mark (commit_mark.hpp): after a clean stop they are those that were sealed, after a crash replay must come as
// far as was acknowledged.
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
  bool is_new = false;                // nothing was ever stored here: an index is made
  bool is_sealed = false;             // stopped cleanly: the log holds nothing torn
  std::uint64_t required = 0;         // the sequence number that must be there when it is open
  std::optional<manifest_file> torn;  // to be cut before the index is opened
};

// How far a replay of the index comes, and which logs it reads.
struct replay_reach {
  std::uint64_t last_sequence = 0;
  std::uint64_t first_log = 0;
};

struct recovery_question {
  std::string index_folder;
  bool has_extents = false;  // files of large values: something was stored
  std::optional<mark_state> mark;
  std::string boot;
  std::uint64_t last_family = 0;  // that the index has
  // Opens the index to read, for replay_reach; with a torn manifest that was cut, if one is given. Asked only if the logs
  // alone do not settle the matter.
  std::function<result<replay_reach>(const manifest_file* torn)> replay;
};

// EUCLEAN: something is lost; the message names it and the next step. Changes nothing.
result<recovery_plan> plan_recovery(const recovery_question& question);

// What to seal at a clean stop: the files that define the index, and the logs that are not empty.
result<std::vector<file_seal>> seals_of(const std::string& index_folder);

// The manifest of a clean stop a second time, in DIR/manifest.copy: without it the index's set of tables is unknown.
struct manifest_copy {
  std::string name, bytes;
};
status write_manifest_copy(const std::string& index_folder, const std::string& path);
std::optional<manifest_copy> read_manifest_copy(const std::string& path);

// Closes a message about damage.
inline constexpr const char* kDamageAdvice =
    "; `peerlane store check --data DIR` says what is damaged, `store repair` saves what is good, `store restore` brings a "
    "backup";

}  // namespace pl::store
