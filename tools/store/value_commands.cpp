// SPDX-License-Identifier: Apache-2.0
// peerlane store put, get, stat, rm: values and files.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cinttypes>
#include <cstdio>
#include <cstring>

#include "arch/crc32c.hpp"
#include "base/text.hpp"
#include "tools/store/reach.hpp"
#include "tools/store/store_commands.hpp"

namespace pl::store_tools {
namespace {

using tools::presence;
using tools::tool_failure;

// A file as memory; standard input and output are "-".
class file_memory {
 public:
  static file_memory read(const std::string& path) {
    file_memory out;
    const int fd = path == "-" ? dup(STDIN_FILENO) : open(path.c_str(), O_RDONLY | O_CLOEXEC);
    if (fd < 0) throw tool_failure(format("%s: %s", path.c_str(), errno_text(errno).c_str()));
    struct stat about {};
    if (fstat(fd, &about) == 0 && S_ISREG(about.st_mode) && about.st_size > 0) {
      out.bytes_ = static_cast<std::size_t>(about.st_size);
      void* address = mmap(nullptr, out.bytes_, PROT_READ, MAP_PRIVATE | MAP_POPULATE, fd, 0);
      if (address != MAP_FAILED) out.mapped_ = address;
    }
    const int code = out.mapped_ == nullptr ? out.read_text(fd) : 0;
    close(fd);
    // A directory, for one: what was read of it must not take the place of the value.
    if (code != 0) throw tool_failure(format("%s: %s", path.c_str(), errno_text(code).c_str()));
    return out;
  }
  file_memory(file_memory&& other) noexcept
      : mapped_(std::exchange(other.mapped_, nullptr)), bytes_(other.bytes_), text_(std::move(other.text_)) {}
  ~file_memory() {
    if (mapped_ != nullptr) munmap(mapped_, bytes_);
  }
  const void* data() const { return mapped_ != nullptr ? mapped_ : text_.data(); }
  std::size_t size() const { return bytes_; }

 private:
  file_memory() = default;
  // Of a pipe, to its end. 0 or an errno value.
  int read_text(int fd) {
    char piece[65536];
    for (;;) {
      const ssize_t got = ::read(fd, piece, sizeof piece);
      if (got < 0 && errno == EINTR) continue;
      if (got <= 0) return bytes_ = text_.size(), got < 0 ? errno : 0;
      text_.append(piece, static_cast<std::size_t>(got));
    }
  }
  void* mapped_ = nullptr;
  std::size_t bytes_ = 0;
  std::string text_;
};

void write_file(const std::string& path, std::string_view bytes) {
  const int fd = path == "-" ? dup(STDOUT_FILENO) : open(path.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
  if (fd < 0) throw tool_failure(format("%s: %s", path.c_str(), errno_text(errno).c_str()));
  while (!bytes.empty()) {
    const auto done = ::write(fd, bytes.data(), bytes.size());
    if (done <= 0) {
      const int code = errno;
      close(fd);
      throw tool_failure(format("%s: %s", path.c_str(), errno_text(code).c_str()));
    }
    bytes.remove_prefix(static_cast<std::size_t>(done));
  }
  close(fd);
}

// A pool of a store, or of the cluster that the store is one of.
class open_store {
 public:
  open_store(const reach_options& target, const std::string& pool, bool make_pool = false)
      : store_(reach(target)), cluster_(cluster_of(target, *store_)) {
    pool_ = cluster_ ? pool_of(*cluster_, pool, make_pool) : pool_of(*store_, pool, make_pool);
  }
  store_client::reply stat(const std::string& key) {
    return cluster_ ? cluster_->stat(pool_, key) : store_->run(store_->make_plain(store_protocol::opcode::stat, pool_, key));
  }
  store_client::reply put(const std::string& key, const store_client::memory& source,
                          const store_client::put_request& options) {
    return cluster_ ? cluster_->put(pool_, key, source, options)
                    : store_->run(store_->make_put(pool_, key, source, options));
  }
  store_client::reply get(const std::string& key, const store_client::memory& destination,
                          const store_client::get_request& options) {
    return cluster_ ? cluster_->get(pool_, key, destination, options)
                    : store_->run(store_->make_get(pool_, key, destination, options));
  }
  // In their order.
  std::vector<store_client::reply> erase(const std::vector<std::string>& keys) {
    std::vector<store_client::reply> out;
    if (cluster_) {
      for (const auto& key : keys) out.push_back(cluster_->erase(pool_, key));
      return out;
    }
    std::vector<store_client::operation_ptr> all;
    for (const auto& key : keys) all.push_back(store_->make_erase(pool_, key, {}));
    store_->start(all);
    for (const auto& one : all) {
      store_->wait(one);
      out.push_back(one->got);
    }
    return out;
  }

 private:
  std::unique_ptr<store_client::client> store_;
  std::unique_ptr<store_client::router> cluster_;
  std::uint32_t pool_ = 0;
};

struct condition_options {
  bool if_absent = false;
  std::int64_t if_version = 0;
  void add(tools::command_parser& parser) {
    parser.flag("--if-absent", if_absent, "Only if there is no such key (EEXIST)");
    parser.integer("--if-version", if_version, 0, INT64_MAX, "Only if this is the present version (ESTALE) [any]");
  }
  std::optional<store_protocol::precondition> get() const {
    if (if_absent) return store_protocol::precondition{store_protocol::condition::if_absent, 0};
    if (if_version != 0)
      return store_protocol::precondition{store_protocol::condition::if_version, static_cast<std::uint64_t>(if_version)};
    return std::nullopt;
  }
};

}  // namespace

int run_put(const tools::invocation& call) {
  reach_options target;
  condition_options condition;
  std::string pool_name, key, path, level;
  bool make_pool = false;
  std::int64_t ttl_ms = 0;
  tools::command_parser parser(call, "Puts a file's bytes as a value and says how they went and what they survive");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("KEY", presence::required, key, "Key");
  parser.positional("FILE", presence::required, path, "File; - is standard input");
  parser.text("--durability", "volatile|logged|durable", level, "volatile, logged or durable [the pool's]");
  parser.flag("--make-pool", make_pool, "Make the pool if there is none of this name");
  parser.integer("--ttl-ms", "MILLISECONDS", ttl_ms, 0, INT64_MAX,
                 "Into a cache: the value is gone after so long [the pool's]");
  condition.add(parser);
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  const auto file = file_memory::read(path);
  open_store store(target, pool_name, make_pool);
  store_client::put_request options;
  options.level = durability_option(level);
  options.only = condition.get();
  if (ttl_ms != 0) options.ttl_ms = static_cast<std::uint64_t>(ttl_ms);
  const auto got = must(store.put(key, {reinterpret_cast<std::uint64_t>(file.data()), file.size(), std::nullopt}, options));
  if (got.result.has_crc && got.result.crc != arch::crc32c(file.data(), file.size()))
    throw tool_failure("the store's checksum is not that of the file, which changed while it was put");
  std::printf("put %s/%s: %s, %s\n", pool_name.c_str(), key.c_str(), plural(file.size(), "byte").c_str(),
              describe_reply(got).c_str());
  return tools::kExitOk;
}

int run_get(const tools::invocation& call) {
  reach_options target;
  std::string pool_name, key, path;
  std::uint64_t offset = 0, length = 0;
  bool verify = false;
  tools::command_parser parser(call, "Writes a value's bytes into a file");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("KEY", presence::required, key, "Key");
  parser.positional("FILE", presence::required, path, "File; - is standard output");
  parser.size("--offset", offset, "From this byte on");
  parser.size("--length", length, "At most so many; 0: to the end");
  parser.flag("--verify", verify, "Have the store hold the value against its checksum first");
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  open_store store(target, pool_name);
  store_client::get_request options;
  options.offset = offset;
  options.verify = verify;
  std::string bytes;
  store_client::reply got;
  // The value may grow between the question for its length and the answer with its bytes.
  for (;;) {
    const auto known = must(store.stat(key)).result.value_bytes;
    std::uint64_t wanted = known > offset ? known - offset : 0;
    if (length != 0) wanted = std::min(wanted, length);
    bytes.resize(wanted);
    got = must(store.get(key, {reinterpret_cast<std::uint64_t>(bytes.data()), wanted, std::nullopt}, options));
    if (got.result.value_bytes <= known || length != 0) break;
  }
  bytes.resize(got.moved_bytes);
  const bool whole = offset == 0 && got.moved_bytes == got.result.value_bytes;
  if (whole && got.result.has_crc && arch::crc32c(bytes.data(), bytes.size()) != got.result.crc)
    throw tool_failure(format("%s/%s: the bytes are not those that were put (checksum)", pool_name.c_str(), key.c_str()));
  write_file(path, bytes);
  std::fprintf(path == "-" ? stderr : stdout, "get %s/%s: %s, %s\n", pool_name.c_str(), key.c_str(),
               plural(bytes.size(), "byte").c_str(), describe_reply(got).c_str());
  return tools::kExitOk;
}

namespace {

const char* name_of_policy(std::uint8_t number) {
  const bool known = number <= static_cast<std::uint8_t>(store::eviction::last);
  return known ? store::name_of(static_cast<store::eviction>(number)) : "unknown";
}

void print_pool(const reach_options& target, const std::string& name) {
  const auto connection = reach(target);
  const auto got = must(connection->run(connection->make_plain(store_protocol::opcode::pool_open, 0, name)));
  if (!got.fields.statistics) throw tool_failure("the server tells nothing of its pools: it is of an earlier release");
  const auto& now = *got.fields.statistics;
  std::printf("keys %" PRIu64 "\nbytes %" PRIu64 "\nhits %" PRIu64 "\nmisses %" PRIu64 "\n", now.keys, now.bytes, now.hits,
              now.misses);
  const auto& cache = got.fields.cache_is;
  if (!cache) return;
  std::printf("evicted %" PRIu64 "\nevicted_bytes %" PRIu64 "\nexpired %" PRIu64 "\nspilled %" PRIu64 "\n", now.evicted,
              now.evicted_bytes, now.expired, now.spilled);
  std::printf("memory_bytes %" PRIu64 "\ndisk_bytes %" PRIu64 "\n", now.memory_bytes, now.disk_bytes);
  std::printf("eviction %s\nttl_ms %" PRIu64 "\n", name_of_policy(cache->policy), cache->ttl_ms);
}

}  // namespace

int run_stat(const tools::invocation& call) {
  reach_options target;
  std::string pool_name, key;
  tools::command_parser parser(call, "What is known of a value, or of a pool: hits, misses, what was evicted");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("KEY", presence::optional, key, "Key; without one: the pool");
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  if (key.empty()) {
    print_pool(target, pool_name);
    return tools::kExitOk;
  }
  const auto got = must(open_store(target, pool_name).stat(key)).result;
  std::printf(
      "bytes %" PRIu64 "\nversion %" PRIu64 "\ncrc32c %08x\ndurability %s\nuser_flags %u\nwritten_unix_ns %" PRId64 "\n",
      got.value_bytes, got.version, got.crc, store_protocol::name_of(got.reached), got.user_flags, got.written_unix_ns);
  return tools::kExitOk;
}

int run_rm(const tools::invocation& call) {
  reach_options target;
  std::string pool_name;
  std::vector<std::string> keys;
  bool force = false;
  tools::command_parser parser(call, "Erases values");
  parser.positional("POOL", presence::required, pool_name, "Pool");
  parser.positional("KEY", presence::required, keys, "Keys");
  parser.flag("-f,--force", force, "Keys that are not there are no error");
  add(parser, target);
  if (const auto code = parser.parse()) return *code;
  const auto all = open_store(target, pool_name).erase(keys);
  int code = tools::kExitOk;
  for (std::size_t i = 0; i < all.size(); ++i) {
    if (all[i].status == 0 || (force && all[i].status == ENOENT)) continue;
    std::fprintf(stderr, "%s: %s\n", keys[i].c_str(), all[i].text.c_str());
    code = tools::kExitFailed;
  }
  return code;
}

}  // namespace pl::store_tools
