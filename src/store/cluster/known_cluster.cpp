// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/known_cluster.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>

#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "store/engine/path_failure.hpp"

namespace pl::store_cluster {
namespace {

constexpr const char* kRemedy =
    "bring back etcd's data. Or remove %s to believe etcd: what it does not know of this server's pools and values is "
    "deleted then, so copy it first (`serve` without --cluster)";

failure failed(const std::string& file) { return {errno, format("store: %s: %s", file.c_str(), errno_text(errno).c_str())}; }

status sync(const std::string& path) {
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC);
  if (file < 0) return failed(path);
  const bool is_durable = ::fsync(file) == 0;
  const int error = errno;
  ::close(file);
  errno = error;
  return is_durable ? status() : status(failed(path));
}

}  // namespace

std::string known_cluster_file(const std::string& folder) { return folder + "/cluster.json"; }

result<std::optional<known_cluster>> read_known_cluster(const std::string& folder) {
  const std::string file = known_cluster_file(folder);
  if (status regular = need_regular_file(file); !regular) return store::path_failure(file, regular.error());
  const auto text = read_whole_file(file);
  if (text.code() == ENOENT) return std::optional<known_cluster>();
  if (!text) return store::path_failure(file, text.error());
  const auto read = nlohmann::json::parse(*text, nullptr, false);
  const bool is_good = read.is_object() && read.value("id", nlohmann::json()).is_number_unsigned() &&
                       read.value("epoch", nlohmann::json()).is_number_unsigned() &&
                       read.value("revision", nlohmann::json()).is_number_integer();
  if (!is_good)
    return failure{EUCLEAN,
                   format("store: %s is damaged: remove it if etcd is the one of this folder's cluster, and has all "
                          "of its data",
                          file.c_str())};
  return std::optional(known_cluster{read["id"].get<std::uint64_t>(), read["epoch"].get<std::uint64_t>(),
                                     read["revision"].get<std::int64_t>()});
}

status write_known_cluster(const std::string& folder, const known_cluster& now) {
  const std::string file = known_cluster_file(folder), next = file + ".next";
  if (status regular = need_regular_file(next); !regular) return store::path_failure(next, regular.error());
  {
    std::ofstream output(next, std::ios::binary | std::ios::trunc);
    output << nlohmann::json{{"id", now.id}, {"epoch", now.epoch}, {"revision", now.revision}}.dump() << "\n" << std::flush;
    if (!output) return failed(next);
  }
  if (status done = sync(next); !done) return done;
  if (std::rename(next.c_str(), file.c_str()) != 0) return failed(file);
  return sync(folder);
}

status fits(const std::optional<known_cluster>& known, bool has_pools, const known_cluster& etcd_has,
            const std::string& file) {
  std::string reason;
  if (etcd_has.epoch == 0 && (known || has_pools)) {
    reason = "etcd has no such cluster, but this server's folder belongs to it";
  } else if (known && known->id != 0 && etcd_has.id != 0 && known->id != etcd_has.id) {
    reason = "etcd's cluster of this name is not the one that this server's folder belongs to";
  } else if (known && (etcd_has.epoch < known->epoch || etcd_has.revision < known->revision)) {
    reason = format("what it has is older (epoch %llu, revision %lld) than what this server has seen (%llu, %lld)",
                    static_cast<unsigned long long>(etcd_has.epoch), static_cast<long long>(etcd_has.revision),
                    static_cast<unsigned long long>(known->epoch), static_cast<long long>(known->revision));
  } else {
    return {};
  }
  return failure{EUCLEAN, "etcd has lost data, or is not the right one: " + reason + ": " + format(kRemedy, file.c_str())};
}

}  // namespace pl::store_cluster
