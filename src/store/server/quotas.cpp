// SPDX-License-Identifier: Apache-2.0
#include "store/server/quotas.hpp"

#include <algorithm>
#include <cerrno>
#include <optional>
#include <set>

#include "base/text.hpp"
#include "store/server/access.hpp"

namespace pl::store_server {
namespace {

// "5000", "5k", "1M", "2G": powers of 1000.
std::optional<std::uint64_t> parse_count(std::string_view text) {
  constexpr std::string_view kUnits = "kMG";
  std::uint64_t unit = 1;
  if (const auto found = text.empty() ? std::string_view::npos : kUnits.find(text.back()); found != std::string_view::npos) {
    for (std::size_t i = 0; i <= found; ++i) unit *= 1000;
    text.remove_suffix(1);
  }
  const auto number = parse_integer(text);
  if (!number || *number < 0 || static_cast<std::uint64_t>(*number) > ~std::uint64_t{0} / unit) return std::nullopt;
  return static_cast<std::uint64_t>(*number) * unit;
}

std::string_view trim(std::string_view text) {
  while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
  while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
  return text;
}

// Takes words off the end, because a principal's name may contain spaces.
std::optional<store::owner_quota> parse_quota(std::string_view line) {
  store::owner_quota out;
  for (line = trim(line);;) {
    const auto space = line.rfind(' ');
    const auto word = space == std::string_view::npos ? std::string_view() : line.substr(space + 1);
    constexpr std::string_view kOfCluster = "cluster-";
    const bool is_of_cluster = word.starts_with(kOfCluster);
    const auto limit = is_of_cluster ? word.substr(kOfCluster.size()) : word;
    const bool is_bytes = limit.starts_with("bytes="), is_keys = limit.starts_with("keys=");
    if (!is_bytes && !is_keys) break;
    const auto number = is_bytes ? parse_size(limit.substr(6)) : parse_count(limit.substr(5));
    auto& limit_of_line = is_of_cluster ? (is_bytes ? out.cluster_bytes : out.cluster_keys)
                          : is_bytes    ? out.bytes
                                        : out.keys;
    // 0 stands for no limit in the engine, and whoever writes it means the opposite.
    if (!number || *number == 0 || limit_of_line != 0) return std::nullopt;
    limit_of_line = *number;
    line = trim(line.substr(0, space));
  }
  out.name = line;
  if (!is_principal(line)) return std::nullopt;
  return out;
}

}  // namespace

result<std::vector<store::owner_quota>> parse_quotas(const std::vector<std::string>& lines) {
  std::vector<store::owner_quota> out;
  std::set<std::string> names;
  for (const std::string& line : lines) {
    auto one = parse_quota(line);
    if (!one)
      return failure{EINVAL, format("quota \"%s\" is not PRINCIPAL [bytes=SIZE] [keys=COUNT] [cluster-bytes=SIZE] "
                                    "[cluster-keys=COUNT] with a principal of uid:N, cert:URI, cn:NAME, tcp or *, like "
                                    "\"uid:1000 bytes=10G keys=1M\"; each limit is from 1, and given once",
                                    line.c_str())};
    if (!names.insert(one->name).second)
      return failure{EINVAL, format("quota \"%s\": there is already a quota of %s", line.c_str(), one->name.c_str())};
    out.push_back(*std::move(one));
  }
  return out;
}

quotas::quotas(store::engine& counts, std::vector<store::owner_quota> first) : engine_(counts) {
  is_counting_ = !engine_.list_owners().empty();
  set(first);
}

void quotas::set(const std::vector<store::owner_quota>& next) {
  engine_.set_quotas(next);
  if (!next.empty()) is_counting_ = true;
}

std::vector<store::owner_info> quotas::list(std::string_view principal) const {
  auto out = engine_.list_owners();
  if (!principal.empty()) std::erase_if(out, [&](const store::owner_info& one) { return one.name != principal; });
  return out;
}

}  // namespace pl::store_server
