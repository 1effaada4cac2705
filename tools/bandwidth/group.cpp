// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/group.hpp"

#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstring>

#include "base/text.hpp"
#include "messaging/bootstrap/launcher.hpp"
#include "messaging/bootstrap/socket_star.hpp"
#include "os/device_io.hpp"
#include "tools/bandwidth/group_mpi.hpp"

namespace pl::bandwidth {
namespace {

constexpr const char* kByHand =
    "--nodes N --rank R --rendezvous HOST:PORT (a free port of rank 0's host) needs no launcher and no MPI";

// Host names may be equal on different hosts (containers, images), and sockets do not reach into other network namespaces.
std::string own_host_id() {
  const auto boot = real_device_io().read_text("/proc/sys/kernel/random/boot_id");
  char space[64] = {};
  if (readlink("/proc/self/ns/net", space, sizeof space - 1) < 0) space[0] = 0;
  return (boot ? *boot : std::string()) + space;
}

std::unique_ptr<group> star(std::unique_ptr<messaging::star_channel> channel, const group_options& options) {
  return std::make_unique<group>(std::make_unique<messaging::star_exchange>(std::move(channel), options.timeout_s));
}

result<std::unique_ptr<group>> by_bootstrap(messaging::job_settings settings, const group_options& options) {
  settings.timeout_s = options.timeout_s;
  settings.report = [](const std::string& line) { std::fprintf(stderr, "bandwidth: %s\n", line.c_str()); };
  auto channel = messaging::meet(settings);
  if (!channel) return channel.error();
  return star(std::move(*channel), options);
}

// Finds the ranks from the environment alone: MPI carries their messages, or the ranks of one host meet by the job's key.
result<std::unique_ptr<group>> by_launcher(const messaging::launcher& launcher, const group_options& options) {
  std::string reason = launcher.name + " starts no MPI";
  if (launcher.starts_mpi) {
    auto channel = open_mpi(launcher.size);
    if (channel) return star(std::move(*channel), options);
    reason = channel.error().message;
  }
  if (launcher.ranks_here != launcher.size)
    return failure{
        ENOSYS,
        format("%s has started ranks on several hosts and MPI cannot be used (%s); add --rendezvous HOST:PORT, a free "
               "port of rank 0's host, to the same command",
               launcher.name.c_str(), reason.c_str())};
  messaging::job_settings settings;
  settings.rendezvous = messaging::local_endpoint(launcher.job_key);
  settings.rank = launcher.rank;
  settings.size = launcher.size;
  return by_bootstrap(std::move(settings), options);
}

status check(const group_options& options, int nodes, int rank) {
  if (options.nodes < 0 || nodes < 1) return failure{EINVAL, "how many ranks? Add --nodes N"};
  if (nodes == 1) return {};
  if (rank < 0)
    return failure{EINVAL, format("--nodes %d: which of them is this process? Add --rank 0 .. %d", nodes, nodes - 1)};
  if (rank >= nodes)
    return failure{EINVAL, format("--rank %d does not exist among --nodes %d: the last is %d", rank, nodes, nodes - 1)};
  return {};
}

result<std::unique_ptr<group>> open_unnamed(const group_options& options) {
  const messaging::launcher launcher = messaging::read_launcher();
  const int nodes = options.nodes != 0           ? options.nodes
                    : launcher.size != 0         ? launcher.size
                    : options.rendezvous.empty() ? 1
                                                 : 0;
  const int rank = options.rank >= 0 ? options.rank : nodes == launcher.size ? launcher.rank : -1;
  if (auto fine = check(options, nodes, rank); !fine) return fine.error();
  if (nodes == 1) return std::make_unique<group>(nullptr);
  if (options.rendezvous.empty()) {
    if (launcher.size == nodes && launcher.rank == rank) return by_launcher(launcher, options);
    return failure{EINVAL, format("--nodes %d: where do they meet? %s", nodes, kByHand)};
  }
  messaging::job_settings settings;
  auto endpoint = messaging::parse_endpoint(options.rendezvous);
  if (!endpoint) return endpoint.error();
  settings.rendezvous = std::move(*endpoint);
  settings.rank = rank;
  settings.size = nodes;
  // Ranks left from an earlier run look for the same port.
  if (options.nodes == 0 && launcher.is_key_global) settings.job = launcher.job_number();
  return by_bootstrap(std::move(settings), options);
}

}  // namespace

result<std::vector<std::vector<std::byte>>> group::all_gather(std::span<const std::byte> mine) {
  if (exchange_) return exchange_->all_gather(mine);
  return std::vector<std::vector<std::byte>>{{mine.begin(), mine.end()}};
}

std::string group::name_of(int rank) const {
  const auto index = static_cast<std::size_t>(rank);
  if (index >= hosts_.size()) return format("rank %d", rank);
  return format("rank %d (%s)", rank, hosts_[index].c_str());
}

status group::exchange_hosts() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  const std::string mine = std::string(name) + '\n' + own_host_id();
  auto all = all_gather({reinterpret_cast<const std::byte*>(mine.data()), mine.size()});
  if (!all) return all.error();
  for (const auto& one : *all) {
    const std::string text(reinterpret_cast<const char*>(one.data()), one.size());
    const auto end = text.find('\n');
    hosts_.push_back(text.substr(0, end));
    host_ids_.push_back(end == std::string::npos ? "" : text.substr(end + 1));
  }
  if (exchange_) exchange_->set_hosts(hosts_);
  for (int other = 0; other < rank(); ++other) local_rank_ += same_host(other, rank()) ? 1 : 0;
  return {};
}

result<std::unique_ptr<group>> open_group(const group_options& options) {
  auto made = open_unnamed(options);
  if (!made) return made;
  if (auto named = (*made)->exchange_hosts(); !named) return named.error();
  return made;
}

}  // namespace pl::bandwidth
