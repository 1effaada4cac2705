// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/link_share.hpp"

#include <algorithm>
#include <limits>
#include <map>
#include <string>

#include "base/text.hpp"
#include "tools/bandwidth/expectation.hpp"
#include "tools/bandwidth/pcie_rate.hpp"

namespace pl::bandwidth {
namespace {

// One direction of a link. `back`: the name of its other direction; empty for memory, which has none.
struct link_use {
  std::string name, back;
  bool is_pcie = false;
  double raw = 0;  // GB/s if it can be narrower than what its users cross anyway; 0: it cannot
};

struct link_load {
  double capacity = 0;
  std::vector<std::size_t> users;
  std::size_t limited_by_themselves = 0;  // users whose executor, not the link, is the limit
};

struct traffic_of {
  std::vector<link_use> link_uses;
  std::optional<expectation> alone;
  bool is_own_limit = false;  // its executor reaches less than the link carries
  bool has_opposite = false;  // another transfer uses the opposite direction of one of its links
  bool has_opposite_pcie = false;
  double rate = 0;
};

link_use use_of_direction(const std::string& link, bool is_down, bool is_pcie, double raw = 0) {
  return {link + (is_down ? " in" : " out"), link + (is_down ? " out" : " in"), is_pcie, raw};
}

// A GPU's own PCIe link and, if other GPUs hang on the same bridge, that bridge's.
void add_pcie(const machine_links& links, int gpu, bool is_down, std::vector<link_use>& out) {
  out.push_back(use_of_direction(format("PCIe of GPU %d", gpu), is_down, true));
  const auto& facts = links.gpus[static_cast<std::size_t>(gpu)];
  const double raw = pcie_raw_gb_per_s(facts.uplink_generation, facts.uplink_width);
  if (!facts.uplink_bus_id.empty() && raw > 0)
    out.push_back(use_of_direction("uplink " + facts.uplink_bus_id, is_down, true, raw));
}

// GPUs behind the same bridge reach each other below it.
bool share_a_bridge(const machine_links& links, int a, int b) {
  const auto& bridge = links.gpus[static_cast<std::size_t>(a)].uplink_bus_id;
  return !bridge.empty() && bridge == links.gpus[static_cast<std::size_t>(b)].uplink_bus_id;
}

std::vector<link_use> links_used(const machine_links& links, const transfer_path& path, const crossed_link& crossed) {
  std::vector<link_use> out;
  const int source = path.source.index, destination = path.destination.index;
  switch (crossed.kind) {
    case traffic::host_to_gpu:
      add_pcie(links, destination, true, out);
      break;
    case traffic::gpu_to_host:
      add_pcie(links, source, false, out);
      break;
    case traffic::local_copy:
      out.push_back({format("memory of GPU %d", source), "", false, 0});
      break;
    case traffic::peer_nvlink:
      if (links.gpus[static_cast<std::size_t>(source)].nvlinks_to_gpu.empty()) {
        out.push_back(use_of_direction(format("NVLinks of GPU %d", source), false, false));
        out.push_back(use_of_direction(format("NVLinks of GPU %d", destination), true, false));
      } else {
        out.push_back(use_of_direction(
            format("NVLinks of GPUs %d and %d", std::min(source, destination), std::max(source, destination)),
            source < destination, false));
      }
      break;
    case traffic::peer_pcie:
      add_pcie(links, source, false, out);
      add_pcie(links, destination, true, out);
      if (share_a_bridge(links, source, destination)) std::erase_if(out, [](const link_use& one) { return one.raw > 0; });
      break;
  }
  return out;
}

class sharing {
 public:
  sharing(const machine_links& links, std::span<const transfer_path> paths) : links_(links), paths_(paths) {}
  shared_expectations run() {
    for (const auto& path : paths_) all_.push_back(describe_traffic(path));
    for (std::size_t i = 0; i < all_.size(); ++i) note_opposite(i);
    add_loads();
    propagate_unknown();
    divide();
    return results();
  }

 private:
  traffic_of describe_traffic(const transfer_path& path) const {
    traffic_of out;
    transfer_path alone = path;
    alone.same_direction = 1;
    alone.opposite_too = alone.is_sum_of_both = false;
    const auto crossed = find_crossed_link(links_, path);
    if (!crossed) return out;
    out.link_uses = links_used(links_, path, *crossed);
    out.alone = expect(links_, alone);
    out.is_own_limit = out.alone && out.alone->limited_by != describe_link(links_, *crossed);
    return out;
  }

  void note_opposite(std::size_t i) {
    for (const link_use& mine : all_[i].link_uses)
      for (const auto& other : all_)
        for (const link_use& theirs : other.link_uses)
          if (!mine.back.empty() && theirs.name == mine.back) {
            all_[i].has_opposite = true;
            all_[i].has_opposite_pcie = all_[i].has_opposite_pcie || mine.is_pcie;
          }
    if (!all_[i].has_opposite || !all_[i].alone) return;
    all_[i].alone->value *= duplex_factor(links_, *find_crossed_link(links_, paths_[i]), paths_[i].executor.kind);
  }

  void add_loads() {
    for (std::size_t i = 0; i < all_.size(); ++i)
      for (const link_use& one : all_[i].link_uses) {
        link_load& entry = loads_[one.name];
        entry.users.push_back(i);
        if (!all_[i].alone) continue;
        const auto& alone = *all_[i].alone;
        double carries = all_[i].is_own_limit ? alone.limit : alone.value;
        if (one.raw > 0) carries = std::min(carries, carries / alone.limit * one.raw);
        entry.capacity = std::max(entry.capacity, carries);
        if (all_[i].is_own_limit) ++entry.limited_by_themselves;
      }
  }

  // Two CPU threads, or two sets of workers, on one link: no measurement says whether their rates add up.
  void propagate_unknown() {
    for (const auto& [name, entry] : loads_)
      if (entry.limited_by_themselves > 1)
        for (const std::size_t i : entry.users) all_[i].alone.reset();
    for (bool has_changed = true; has_changed;) {
      has_changed = false;
      for (const auto& [name, entry] : loads_) {
        const bool is_known =
            std::all_of(entry.users.begin(), entry.users.end(), [&](std::size_t i) { return all_[i].alone; });
        for (const std::size_t i : entry.users)
          if (!is_known && all_[i].alone) all_[i].alone.reset(), has_changed = true;
      }
    }
  }

  // All transfers grow together; a transfer at its own limit, or on a full link, stays as it is.
  void divide() {
    constexpr double kFull = 1e-9;
    std::vector<std::size_t> growing;
    for (std::size_t i = 0; i < all_.size(); ++i)
      if (all_[i].alone) growing.push_back(i);
    while (!growing.empty()) {
      double step = std::numeric_limits<double>::infinity();
      for (const std::size_t i : growing) step = std::min(step, room_of(i, growing));
      for (const std::size_t i : growing) all_[i].rate += step;
      const auto before = growing.size();
      const auto still = growing;
      std::erase_if(growing, [&](std::size_t i) { return room_of(i, still) < kFull; });
      if (growing.size() == before) return;  // rounding alone
    }
  }

  // The increase that transfer `i` can get if all of `growing` get the same.
  double room_of(std::size_t i, const std::vector<std::size_t>& growing) const {
    double room = all_[i].alone->value - all_[i].rate;
    for (const link_use& one : all_[i].link_uses) {
      const link_load& entry = loads_.at(one.name);
      double left = entry.capacity, sharers = 0;
      for (const std::size_t user : entry.users) {
        left -= all_[user].rate;
        sharers += static_cast<double>(std::count(growing.begin(), growing.end(), user));
      }
      room = std::min(room, left / std::max(sharers, 1.0));
    }
    return std::max(room, 0.0);
  }

  std::size_t most_users(const traffic_of& one) const {
    std::size_t most = 1;
    for (const link_use& each : one.link_uses) most = std::max(most, loads_.at(each.name).users.size());
    return most;
  }

  shared_expectations results() const {
    shared_expectations out;
    expectation total{0, 0, "all these links together", ""};
    bool is_known = !all_.empty();
    for (const auto& one : all_) {
      out.each.emplace_back();
      is_known = is_known && one.alone;
      if (!one.alone) continue;
      expectation mine = *one.alone;
      mine.value = one.rate;
      if (const auto users = most_users(one); users > 1) mine.limited_by += format(", shared by %zu transfers", users);
      total.value += mine.value;
      total.limit += mine.limit;
      if (total.source.find(mine.source) == std::string::npos)
        total.source += (total.source.empty() ? "" : "; ") + mine.source;
      if (!one.has_opposite_pcie) out.each.back() = std::move(mine);
    }
    if (is_known) out.total = std::move(total);
    return out;
  }

  const machine_links& links_;
  std::span<const transfer_path> paths_;
  std::vector<traffic_of> all_;
  std::map<std::string, link_load> loads_;
};

}  // namespace

shared_expectations expect_together(const machine_links& links, std::span<const transfer_path> paths) {
  return sharing(links, paths).run();
}

}  // namespace pl::bandwidth
