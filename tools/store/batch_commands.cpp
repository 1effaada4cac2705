// SPDX-License-Identifier: Apache-2.0
// peerlane store multi-put, multi-get, exists: many keys by one call.
#include <algorithm>
#include <cinttypes>
#include <cstdio>

#include "arch/crc32c.hpp"
#include "base/text.hpp"
#include "tools/common/terminal.hpp"
#include "tools/store/files.hpp"
#include "tools/store/open_store.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {
namespace {

using store_client::batch_entry;
using store_protocol::opcode;
using tools::presence;
using tools::tool_failure;

// What a call holds in memory at a time: keys, and bytes of their values.
constexpr std::size_t kKeysAtATime = 1024;
constexpr std::uint64_t kBytesAtATime = 256u << 20;

struct named_file {
  std::string key, path;
};

named_file parse_pair(const std::string& given) {
  const auto equals = given.find('=');
  if (equals == 0 || equals == std::string::npos || equals + 1 == given.size())
    throw tool_failure(format("%s: give KEY=FILE", given.c_str()));
  return {given.substr(0, equals), given.substr(equals + 1)};
}

// What one call of the tool has done so far.
struct progress {
  std::size_t done = 0, failed = 0;
  std::uint64_t bytes = 0;
};

class putter {
 public:
  putter(open_store& store, const batch_entry& terms, bool is_atomic)
      : store_(store), terms_(terms), is_atomic_(is_atomic) {}
  void put(const std::vector<named_file>& files) {
    for (const named_file& one : files) {
      files_.push_back(file_memory::read(one.path));
      keys_.push_back(one.key);
      held_ += files_.back().size();
      if (!is_atomic_ && (keys_.size() == kKeysAtATime || held_ >= kBytesAtATime)) send();
    }
    send();
  }
  const progress& so_far() const { return so_far_; }

 private:
  void send() {
    std::vector<batch_entry> entries;
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      entries.push_back(terms_);
      entries.back().key = keys_[i];
      entries.back().buffer = {reinterpret_cast<std::uint64_t>(files_[i].data()), files_[i].size(), std::nullopt};
    }
    const auto replies = store_.batch(opcode::batch_put, entries, is_atomic_);
    (void)report_failures(keys_, replies);
    for (const file_memory& one : files_) one.check_unchanged();
    for (std::size_t i = 0; i < replies.size(); ++i) {
      so_far_.failed += replies[i].status != 0 ? 1 : 0;
      so_far_.done += replies[i].status == 0 ? 1 : 0;
      so_far_.bytes += replies[i].status == 0 ? files_[i].size() : 0;
    }
    files_.clear(), keys_.clear(), held_ = 0;
  }
  open_store& store_;
  const batch_entry terms_;
  const bool is_atomic_;
  std::vector<file_memory> files_;
  std::vector<std::string> keys_;
  std::uint64_t held_ = 0;
  progress so_far_;
};

class getter {
 public:
  getter(open_store& store, const std::string& folder) : store_(store), folder_(folder) {}
  // Their lengths are asked for first.
  void get(const std::vector<std::string>& keys) {
    for (std::size_t first = 0; first < keys.size(); first += kKeysAtATime) {
      const auto part = std::span(keys).subspan(first, std::min(kKeysAtATime, keys.size() - first));
      std::vector<batch_entry> entries(part.size());
      for (std::size_t i = 0; i < part.size(); ++i) entries[i].key = part[i];
      const auto known = store_.batch(opcode::batch_exists, entries);
      so_far_.failed += static_cast<std::size_t>(
          std::count_if(known.begin(), known.end(), [](const auto& one) { return one.status != 0; }));
      (void)report_failures(part, known);
      for (std::size_t i = 0; i < part.size(); ++i)
        if (known[i].status == 0) add(part[i], known[i].result.value_bytes);
      fetch();
    }
  }
  void add(const std::string& key, std::uint64_t bytes) {
    if (!keys_.empty() && (keys_.size() == kKeysAtATime || held_ + bytes > kBytesAtATime)) fetch();
    try {
      paths_.push_back(file_of_key(folder_, key));
    } catch (const tool_failure& wrong) {  // the others' files are written all the same
      std::fprintf(stderr, "%s\n", tools::without_controls(wrong.what()).c_str());
      ++so_far_.failed;
      return;
    }
    keys_.push_back(key);
    values_.emplace_back(bytes, '\0');
    held_ += bytes;
  }
  void fetch() {
    if (keys_.empty()) return;
    std::vector<batch_entry> entries(keys_.size());
    for (std::size_t i = 0; i < keys_.size(); ++i) {
      entries[i].key = keys_[i];
      entries[i].buffer = {reinterpret_cast<std::uint64_t>(values_[i].data()), values_[i].size(), std::nullopt};
    }
    const auto replies = store_.batch(opcode::batch_get, entries);
    (void)report_failures(keys_, replies);
    for (std::size_t i = 0; i < keys_.size(); ++i) keep(i, replies[i]);
    keys_.clear(), paths_.clear(), values_.clear(), held_ = 0;
  }
  const progress& so_far() const { return so_far_; }

 private:
  void keep(std::size_t i, const store_client::reply& got) {
    const auto& result = got.result;
    std::string wrong;
    if (got.status == 0 && result.value_bytes != got.moved_bytes)
      wrong = "a put changed its length in the meantime: repeat the get";
    else if (got.status == 0 && result.has_crc && arch::crc32c(values_[i].data(), got.moved_bytes) != result.crc)
      wrong = "the checksum does not match the value";
    if (!wrong.empty()) std::fprintf(stderr, "%s: %s\n", printable(keys_[i]).c_str(), wrong.c_str());
    if (got.status != 0 || !wrong.empty()) {
      ++so_far_.failed;
      return;
    }
    write_file(paths_[i], {values_[i].data(), got.moved_bytes});
    ++so_far_.done;
    so_far_.bytes += got.moved_bytes;
  }
  open_store& store_;
  const std::string folder_;
  std::vector<std::string> keys_, paths_, values_;
  std::uint64_t held_ = 0;
  progress so_far_;
};

int print_progress(const char* verb, const progress& so_far) {
  std::printf("%s %s of %s", verb, plural(so_far.done, "value").c_str(), plural(so_far.bytes, "byte").c_str());
  if (so_far.failed != 0) std::printf(", %zu failed", so_far.failed);
  std::printf("\n");
  return so_far.failed == 0 ? tools::kExitOk : tools::kExitFailed;
}

}  // namespace

int run_multi_put(const tools::invocation& call) {
  reach_options target;
  condition_options condition;
  std::string pool_name, level, folder, prefix;
  std::vector<std::string> pairs;
  bool make_pool = false, is_atomic = false;
  std::int64_t ttl_ms = 0;
  tools::command_parser parser(call, "Stores many files as values with one call and reports the outcome of each");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("PAIR", presence::optional, pairs, "Key and file: KEY=FILE");
  parser.text("--from", "DIR", folder, "Store every file below DIR; the key is the path below DIR");
  parser.text("--prefix", "PREFIX", prefix, "With --from: text in front of each path to form the key");
  parser.flag("--atomic", is_atomic, "Store all values or none: at most 4096 values, 4 MiB in total; not volatile");
  parser.text("--durability", "volatile|logged|durable", level,
              "What the put survives: volatile, logged or durable [the pool's setting]");
  parser.flag("--make-pool", make_pool, "Create the pool if it does not exist");
  parser.integer("--ttl-ms", "MILLISECONDS", ttl_ms, 0, INT64_MAX,
                 "For caches: time after which the values expire [the pool's setting]");
  condition.add(parser);
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  std::vector<named_file> files;
  for (const std::string& one : pairs) files.push_back(parse_pair(one));
  if (!prefix.empty() && folder.empty()) throw tool_failure("--prefix needs --from DIR");
  if (!folder.empty())
    for (const std::string& path : files_below(folder)) files.push_back({prefix + path, folder + "/" + path});
  if (files.empty())
    throw tool_failure(folder.empty() ? "expected KEY=FILE or --from DIR" : folder + ": the folder contains no files");
  open_store store(target, pool_name, make_pool);
  batch_entry terms;
  terms.level = durability_option(level);
  terms.only = condition.get();
  terms.ttl_ms = static_cast<std::uint64_t>(ttl_ms);
  putter all(store, terms, is_atomic);
  all.put(files);
  return print_progress("put", all.so_far());
}

int run_multi_get(const tools::invocation& call) {
  reach_options target;
  std::string pool_name, folder, prefix;
  std::vector<std::string> keys;
  tools::command_parser parser(call, "Writes many values to files below a folder; the key is the file's name");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("KEY", presence::optional, keys, "Keys");
  parser.text("--prefix", "PREFIX", prefix, "Write the values of all keys with this prefix");
  parser.text("--to", "DIR", folder, "Folder to write to; the value of a/b becomes file b in the subfolder a");
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  if (folder.empty()) throw tool_failure("give --to DIR: the folder to write the files to");
  if (keys.empty() == prefix.empty()) throw tool_failure("give keys or --prefix PREFIX");
  open_store store(target, pool_name);
  getter all(store, folder);
  if (!prefix.empty()) {
    store_client::key_search search;
    search.prefix = prefix;
    store.find(search, [&](const store_protocol::key_entry& one) { return all.add(one.key, one.value_bytes), true; });
    all.fetch();
  } else {
    all.get(keys);
  }
  return print_progress("got", all.so_far());
}

int run_exists(const tools::invocation& call) {
  reach_options target;
  std::string pool_name;
  std::vector<std::string> keys;
  bool is_quiet = false;
  tools::command_parser parser(call, "Shows which keys have values; exit code 0: all have one, 1: some have none");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("KEY", presence::required, keys, "Keys");
  parser.flag("-q,--quiet", is_quiet, "Print nothing; only set the exit code");
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  open_store store(target, pool_name);
  std::vector<batch_entry> entries(keys.size());
  for (std::size_t i = 0; i < keys.size(); ++i) entries[i].key = keys[i];
  const auto replies = store.batch(opcode::batch_exists, entries);
  if (const int code = report_failures(keys, replies, ENOENT)) return code;
  bool has_all = true;
  for (std::size_t i = 0; i < keys.size(); ++i) {
    const bool is_there = replies[i].status == 0;
    has_all = has_all && is_there;
    if (!is_quiet && is_there)
      std::printf("%s: yes, %s, version %" PRIu64 "\n", on_terminal(keys[i]).c_str(),
                  plural(replies[i].result.value_bytes, "byte").c_str(), replies[i].result.version);
    if (!is_quiet && !is_there) std::printf("%s: no\n", on_terminal(keys[i]).c_str());
  }
  return has_all ? tools::kExitOk : tools::kExitFailed;
}

}  // namespace pl::store_tools
