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
struct way {
  std::string name, back;
  bool is_pcie = false;
  double raw = 0;  // GB/s if it can be narrower than what its users cross anyway; 0: it cannot
};

struct load {
  double capacity = 0;
  std::vector<std::size_t> users;
  std::size_t limited_by_themselves = 0;  // users whose executor, not the link, is the limit
};

struct traffic_of {
  std::vector<way> ways;
  std::optional<expectation> alone;
  bool is_own_limit = false;  // its executor reaches less than the link carries
  bool has_opposite = false;  // somebody uses the other direction of one of its ways
  bool has_opposite_pcie = false;
  double rate = 0;
};

way one_way(const std::string& link, bool is_down, bool is_pcie, double raw = 0) {
  return {link + (is_down ? " in" : " out"), link + (is_down ? " out" : " in"), is_pcie, raw};
}

// A GPU's own PCIe link and, if other GPUs hang on the same bridge, that bridge's.
void add_pcie(const machine_links& links, int gpu, bool is_down, std::vector<way>& out) {
  out.push_back(one_way(format("PCIe of GPU %d", gpu), is_down, true));
  const auto& facts = links.gpus[static_cast<std::size_t>(gpu)];
  const double raw = pcie_raw_gb_per_s(facts.uplink_generation, facts.uplink_width);
  if (!facts.uplink_bus_id.empty() && raw > 0) out.push_back(one_way("uplink " + facts.uplink_bus_id, is_down, true, raw));
}

// GPUs behind the same bridge need not go above it to reach each other.
bool share_a_bridge(const machine_links& links, int a, int b) {
  const auto& bridge = links.gpus[static_cast<std::size_t>(a)].uplink_bus_id;
  return !bridge.empty() && bridge == links.gpus[static_cast<std::size_t>(b)].uplink_bus_id;
}

std::vector<way> ways_of(const machine_links& links, const transfer_path& path, const crossed_link& crossed) {
  std::vector<way> out;
  const int from = path.source.index, to = path.destination.index;
  switch (crossed.kind) {
    case traffic::host_to_gpu:
      add_pcie(links, to, true, out);
      break;
    case traffic::gpu_to_host:
      add_pcie(links, from, false, out);
      break;
    case traffic::local_copy:
      out.push_back({format("memory of GPU %d", from), "", false, 0});
      break;
    case traffic::peer_nvlink:
      if (links.gpus[static_cast<std::size_t>(from)].nvlinks_to_gpu.empty()) {
        out.push_back(one_way(format("NVLinks of GPU %d", from), false, false));
        out.push_back(one_way(format("NVLinks of GPU %d", to), true, false));
      } else {
        out.push_back(
            one_way(format("NVLinks of GPUs %d and %d", std::min(from, to), std::max(from, to)), from < to, false));
      }
      break;
    case traffic::peer_pcie:
      add_pcie(links, from, false, out);
      add_pcie(links, to, true, out);
      if (share_a_bridge(links, from, to)) std::erase_if(out, [](const way& one) { return one.raw > 0; });
      break;
  }
  return out;
}

class sharing {
 public:
  sharing(const machine_links& links, std::span<const transfer_path> paths) : links_(links), paths_(paths) {}
  shared_expectations run() {
    for (const auto& path : paths_) all_.push_back(look_at(path));
    for (std::size_t i = 0; i < all_.size(); ++i) note_opposite(i);
    load_ways();
    spread_ignorance();
    divide();
    return results();
  }

 private:
  traffic_of look_at(const transfer_path& path) const {
    traffic_of out;
    transfer_path alone = path;
    alone.same_direction = 1;
    alone.opposite_too = alone.is_sum_of_both = false;
    const auto crossed = find_crossed_link(links_, path);
    if (!crossed) return out;
    out.ways = ways_of(links_, path, *crossed);
    out.alone = expect(links_, alone);
    out.is_own_limit = out.alone && out.alone->limited_by != describe_link(links_, *crossed);
    return out;
  }

  void note_opposite(std::size_t i) {
    for (const way& mine : all_[i].ways)
      for (const auto& other : all_)
        for (const way& theirs : other.ways)
          if (!mine.back.empty() && theirs.name == mine.back) {
            all_[i].has_opposite = true;
            all_[i].has_opposite_pcie = all_[i].has_opposite_pcie || mine.is_pcie;
          }
    if (!all_[i].has_opposite || !all_[i].alone) return;
    all_[i].alone->value *= duplex_factor(links_, *find_crossed_link(links_, paths_[i]), paths_[i].by.what);
  }

  void load_ways() {
    for (std::size_t i = 0; i < all_.size(); ++i)
      for (const way& one : all_[i].ways) {
        load& on = loads_[one.name];
        on.users.push_back(i);
        if (!all_[i].alone) continue;
        const auto& alone = *all_[i].alone;
        double carries = all_[i].is_own_limit ? alone.limit : alone.value;
        if (one.raw > 0) carries = std::min(carries, carries / alone.limit * one.raw);
        on.capacity = std::max(on.capacity, carries);
        if (all_[i].is_own_limit) ++on.limited_by_themselves;
      }
  }

  // Two CPU threads, or two sets of workers, on one link: nothing says whether they add up.
  void spread_ignorance() {
    for (const auto& [name, on] : loads_)
      if (on.limited_by_themselves > 1)
        for (const std::size_t i : on.users) all_[i].alone.reset();
    for (bool has_changed = true; has_changed;) {
      has_changed = false;
      for (const auto& [name, on] : loads_) {
        const bool is_known = std::all_of(on.users.begin(), on.users.end(), [&](std::size_t i) { return all_[i].alone; });
        for (const std::size_t i : on.users)
          if (!is_known && all_[i].alone) all_[i].alone.reset(), has_changed = true;
      }
    }
  }

  // All grow together; who has what it can take, or is on a way that is full, stays as it is.
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

  // How much more transfer `i` can get if all of `growing` get the same.
  double room_of(std::size_t i, const std::vector<std::size_t>& growing) const {
    double room = all_[i].alone->value - all_[i].rate;
    for (const way& one : all_[i].ways) {
      const load& on = loads_.at(one.name);
      double left = on.capacity, sharers = 0;
      for (const std::size_t user : on.users) {
        left -= all_[user].rate;
        sharers += static_cast<double>(std::count(growing.begin(), growing.end(), user));
      }
      room = std::min(room, left / std::max(sharers, 1.0));
    }
    return std::max(room, 0.0);
  }

  std::size_t most_users(const traffic_of& one) const {
    std::size_t most = 1;
    for (const way& each : one.ways) most = std::max(most, loads_.at(each.name).users.size());
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
  std::map<std::string, load> loads_;
};

}  // namespace

shared_expectations expect_together(const machine_links& links, std::span<const transfer_path> paths) {
  return sharing(links, paths).run();
}

}  // namespace pl::bandwidth
