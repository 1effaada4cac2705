// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/bootstrap.hpp"

#include <unistd.h>

#include <cerrno>

#include "base/env.hpp"
#include "base/text.hpp"
#include "messaging/bootstrap/launcher_rendezvous.hpp"
#include "messaging/bootstrap/local_bootstrap.hpp"
#include "messaging/bootstrap/socket_star.hpp"
#include "messaging/bootstrap/star_exchange.hpp"

namespace pl::messaging {
namespace {

constexpr const char* kByHand =
    "give rank, number of processes and HOST:PORT of rank 0 (or file:FOLDER), or set PEERLANE_LINK_RANK, PEERLANE_LINK_SIZE "
    "and PEERLANE_LINK_RENDEZVOUS";

std::string own_host() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

// Exchanges host names, so that errors can name the host of a rank.
result<std::unique_ptr<bootstrap>> introduced(std::unique_ptr<star_exchange> star) {
  const std::string mine = own_host();
  auto all = star->all_gather(std::as_bytes(std::span(mine)));
  if (!all) return std::move(all).error();
  std::vector<std::string> hosts;
  for (const auto& one : *all) hosts.emplace_back(reinterpret_cast<const char*>(one.data()), one.size());
  star->set_hosts(std::move(hosts));
  return std::unique_ptr<bootstrap>(std::move(star));
}

result<std::unique_ptr<bootstrap>> by_sockets(const bootstrap_plan& plan, launcher_rendezvous place,
                                              const bootstrap_options& options) {
  job_settings settings;
  settings.rendezvous = std::move(place.rendezvous);
  settings.secret = std::move(place.secret);
  settings.rank = plan.rank;
  settings.size = plan.size;
  // Ranks of an earlier run may still be searching for the same address.
  if (plan.is_launched && plan.launched_by.is_key_global) settings.job = plan.launched_by.job_number();
  settings.stays_open = options.is_elastic;
  settings.timeout_s = options.timeout_s;
  settings.report = options.report;
  constexpr unsigned kMaxGatherings = 20;
  for (unsigned gatherings = 1;; ++gatherings) {
    auto channel = meet(settings, std::move(place.listener));
    if (!channel) return std::move(channel).error();
    const bool has_come_back = (*channel)->survivors() != nullptr;
    auto made = introduced(std::make_unique<star_exchange>(*std::move(channel), options.timeout_s));
    // A survivor that learns of another loss, or withdraws its consent, closes its connection when it is welcomed. It is
    // still alive, and all survivors connect again.
    if (made || !has_come_back || made.code() != ECONNRESET || gatherings == kMaxGatherings) return made;
  }
}

result<endpoint> place_of(const launcher& launched_by) {
  if (launched_by.ranks_here == launched_by.size) return local_endpoint(launched_by.job_key);
  if (!launched_by.first_host.empty())
    return parse_endpoint(launched_by.first_host + ":" +
                          std::to_string(launched_by.first_port != 0 ? launched_by.first_port : launched_by.free_port()));
  return failure{ENOSYS, format("%s has started ranks on several hosts and does not say where rank 0 is: set "
                                "PEERLANE_LINK_RENDEZVOUS=HOST:PORT for all, a free port of rank 0's host, or "
                                "PEERLANE_LINK_RENDEZVOUS=file:FOLDER of a shared file system",
                                launched_by.name.c_str())};
}

// Ranks on one host share a key. Ranks on several hosts find rank 0 through the launcher's store, the host list of Slurm, or
// the first host that torchrun names.
result<launcher_rendezvous> rendezvous_of(const bootstrap_plan& plan, unsigned timeout_s) {
  launcher_rendezvous out;
  std::string why_no_store;
  const bool has_one_host = plan.launched_by.ranks_here == plan.launched_by.size;
  if (plan.rendezvous.empty() && !has_one_host && is_launcher_store_offered()) {
    auto arranged = arrange_rendezvous(plan.rank, timeout_s);
    if (arranged || arranged.code() != ENOSYS) return arranged;
    why_no_store = "; the launcher would tell it: " + arranged.error().message;
  }
  auto place = plan.rendezvous.empty() ? place_of(plan.launched_by) : parse_endpoint(plan.rendezvous);
  if (!place) return failure{place.code(), place.error().message + why_no_store};
  out.rendezvous = *std::move(place);
  return out;
}

int number_of(const char* name, int otherwise) {
  const auto value = env_read(name);
  return value.is_set ? static_cast<int>(value.integer) : otherwise;
}

class single_rank final : public bootstrap {
 public:
  int rank() const noexcept override { return 0; }
  int size() const noexcept override { return 1; }
  result<std::vector<byte_string>> all_gather(std::span<const std::byte> mine) override {
    return std::vector<byte_string>{{mine.begin(), mine.end()}};
  }
};

}  // namespace

result<bootstrap_plan> plan_bootstrap(const bootstrap_options& options) {
  bootstrap_plan out;
  out.launched_by = read_launcher();
  out.rendezvous = options.rendezvous.empty() ? env_read("PEERLANE_LINK_RENDEZVOUS").text : options.rendezvous;
  const int size = options.size > 0 ? options.size : number_of("PEERLANE_LINK_SIZE", 0);
  const int rank = options.rank >= 0 ? options.rank : number_of("PEERLANE_LINK_RANK", -1);
  out.size = size > 0 ? size : out.launched_by.size;
  out.rank = rank >= 0 ? rank : out.size == out.launched_by.size ? out.launched_by.rank : -1;
  out.is_launched = out.launched_by.size != 0 && out.size == out.launched_by.size && out.rank == out.launched_by.rank;
  if (out.size == 0)
    return failure{ENODATA, env_read("PMI_PORT").is_set
                                ? std::string("mpiexec -pmi-port does not tell a process its rank by the environment: leave "
                                              "-pmi-port out, or ") +
                                      kByHand
                                : format("no launcher's variables are set, so it is not known who takes part: %s", kByHand)};
  if (out.size == 1 && out.rank < 0) out.rank = 0;
  if (out.rank < 0 || out.rank >= out.size)
    return failure{EINVAL,
                   format("rank %d of %d processes: ranks go from 0 to %d; %s", out.rank, out.size, out.size - 1, kByHand)};
  if (out.size > 1 && out.rendezvous.empty() && !out.is_launched)
    return failure{EINVAL, format("rank %d of %d does not know where to meet the others: %s", out.rank, out.size, kByHand)};
  return out;
}

result<std::unique_ptr<bootstrap>> open_bootstrap(const bootstrap_options& options) {
  auto plan = plan_bootstrap(options);
  if (!plan) return std::move(plan).error();
  if (plan->size == 1) return std::unique_ptr<bootstrap>(std::make_unique<single_rank>());
  if (plan->rendezvous.rfind("file:", 0) == 0) {
    if (options.is_elastic)
      return failure{ENOTSUP,
                     "an elastic job cannot use a folder as rendezvous, where no process waits for a rank that comes back; "
                     "use HOST:PORT of "
                     "rank 0"};
    std::string folder = plan->rendezvous.substr(5);
    if (folder.empty()) return failure{EINVAL, "rendezvous \"file:\" names no folder: use file:/shared/folder"};
    if (plan->is_launched && plan->launched_by.is_key_global) folder += "/" + std::to_string(plan->launched_by.job_number());
    return file_bootstrap(folder, plan->rank, plan->size, std::chrono::seconds(options.timeout_s));
  }
  auto place = rendezvous_of(*plan, options.timeout_s);
  if (!place) return std::move(place).error();
  return by_sockets(*plan, *std::move(place), options);
}

}  // namespace pl::messaging
