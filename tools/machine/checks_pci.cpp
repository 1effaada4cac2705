// SPDX-License-Identifier: Apache-2.0
// Checks of the PCI tree: detours, slow links, settings of adapters.
#include <algorithm>
#include <set>

#include "base/text.hpp"
#include "tools/machine/checks.hpp"

namespace pl::tools::topo {
namespace {

constexpr unsigned kSmallReadRequest = 512;
constexpr unsigned kAdvisedReadRequest = 4096;

using device_list = std::vector<const pci_device*>;

// Many ports with one fault are one finding: a DGX has dozens.
std::string first_names(const std::set<std::string>& names) {
  constexpr std::size_t kMaxNames = 4;
  std::string out;
  std::size_t count = 0;
  for (const auto& name : names) {
    if (count++ == kMaxNames) return out + format(" and %zu more", names.size() - kMaxNames);
    out += (out.empty() ? "" : ", ") + name;
  }
  return out;
}

device_list endpoints_of(const machine& all) {
  device_list out;
  for (const auto& one : all.gpus) out.push_back(&all.device_of(one));
  for (const auto& one : all.hcas) out.push_back(&all.device_of(one));
  return out;
}

// Bridges below the root at which traffic between two of the devices can turn: those under a common bridge.
device_list turning_bridges(const machine& all) {
  const auto ends = endpoints_of(all);
  std::set<std::string> seen;
  device_list out;
  for (const auto* left : ends)
    for (const auto* right : ends) {
      const auto separation = relate(all, *left, *right).separation;
      if (separation != distance::one_bridge && separation != distance::several_bridges) continue;
      for (const auto* bridge : all.tree.bridges_above(*left)) {
        if (std::find(right->chain.begin(), right->chain.end(), bridge->address) != right->chain.end()) break;
        if (seen.insert(bridge->address).second) out.push_back(bridge);
      }
    }
  return out;
}

std::string rate_text(const link_rate& one) { return format("%g GT/s x%u", one.gt_per_s, one.width); }

struct slow_links {
  std::set<std::string> narrow, slow, idle_gpus;
};

void check_link(const pci_device& one, slow_links& out) {
  if (!one.link_now.is_known() || !one.link_max.is_known()) return;
  const std::string text =
      format("%s %s of %s", one.address.c_str(), rate_text(one.link_now).c_str(), rate_text(one.link_max).c_str());
  if (one.link_now.width < one.link_max.width) out.narrow.insert(text);
  else if (one.link_now.gt_per_s < one.link_max.gt_per_s) (one.is_nvidia_gpu() ? out.idle_gpus : out.slow).insert(text);
}

}  // namespace

void check_acs(const machine& all, std::vector<finding>& out) {
  std::set<std::string> redirecting, unknown;
  const auto bridges = turning_bridges(all);
  for (const auto* bridge : bridges) {
    if (!bridge->acs) unknown.insert(bridge->address);
    else if (bridge->acs->redirects()) redirecting.insert(bridge->address);
  }
  if (!redirecting.empty())
    add_finding(out, all.host.is_virtual_machine ? severity::note : severity::blocker, "ACS",
                "ACS sends peer-to-peer traffic up to the root complex at " + first_names(redirecting),
                "switch ACS off in the firmware, or as root at each boot: setpci -s " + *redirecting.begin() +
                    " ECAP_ACS+0x6.w=0000, and so for each of them (not where virtual machines use the devices)");
  else if (!unknown.empty())
    add_finding(out, severity::note, "ACS",
                "not known at " + first_names(unknown) + ": only root may read their configuration space",
                "run this as root, or look at lspci -vvv for ACSCtl with ReqRedir+");
  else if (!bridges.empty())
    add_finding(out, severity::ok, "ACS", "no bridge between GPUs and adapters redirects peer-to-peer traffic");
}

void check_iommu(const machine& all, std::vector<finding>& out) {
  std::set<std::string> translated;
  bool has_any = false;
  for (const auto* one : endpoints_of(all)) {
    has_any = has_any || one->iommu_group >= 0;
    if (one->iommu_type.starts_with("DMA")) translated.insert(one->address);
  }
  if (!translated.empty())
    add_finding(out, severity::note, "IOMMU",
                "it translates addresses of " + first_names(translated) + ": peer-to-peer traffic goes by way of it",
                "boot with iommu=pt (Intel: intel_iommu=on iommu=pt), or switch it off in the firmware");
  else if (has_any) add_finding(out, severity::ok, "IOMMU", "on, but it passes addresses of GPUs and adapters through");
  else if (!endpoints_of(all).empty()) add_finding(out, severity::ok, "IOMMU", "off, as far as this kernel shows");
}

void check_links(const machine& all, std::vector<finding>& out) {
  slow_links found;
  bool has_known = false;
  for (const auto* end : endpoints_of(all))
    for (const auto* one : all.tree.links_above(*end)) {
      has_known = has_known || one->link_now.is_known();
      check_link(*one, found);
    }
  if (!found.narrow.empty())
    add_finding(
        out, severity::note, "link width", "fewer lanes than the device has: " + first_names(found.narrow),
        "reseat the board or its riser; look at the slot's lanes in the board's manual and at bifurcation in the firmware");
  if (!found.slow.empty())
    add_finding(
        out, severity::note, "link speed", "slower than the device can: " + first_names(found.slow),
        "look for a forced generation in the firmware, a riser of an older generation, and errors: dmesg | grep -i pcie");
  if (!found.idle_gpus.empty())
    add_finding(out, severity::note, "link speed", "slower than the GPU can: " + first_names(found.idle_gpus),
                "an idle GPU slows its link down: look again under load (peerlane copybw, nvidia-smi -q -d PERFORMANCE)");
  if (found.narrow.empty() && found.slow.empty() && found.idle_gpus.empty() && has_known)
    add_finding(out, severity::ok, "links", "every PCIe link on the way runs at its full width and speed");
}

void check_adapter_settings(const machine& all, std::vector<finding>& out) {
  std::set<std::string> small, strict;
  bool is_known = false;
  for (const auto& one : all.hcas) {
    const auto& device = all.device_of(one);
    if (!device.control || !device.physical_function.empty()) continue;  // a virtual function has its parent's settings
    is_known = true;
    if (device.control->max_read_request_bytes < kSmallReadRequest)
      small.insert(format("%s (%u bytes)", one.name.c_str(), device.control->max_read_request_bytes));
    if (!device.control->is_relaxed_ordering_enabled) strict.insert(one.name);
  }
  if (!small.empty())
    add_finding(
        out, severity::note, "MaxReadReq", "small read requests: " + first_names(small),
        format("set %u bytes: setpci -s ADDRESS CAP_EXP+8.w=5000:7000, or the vendor's mlnx_tune", kAdvisedReadRequest));
  if (!strict.empty())
    add_finding(out, severity::note, "ordering", "relaxed ordering is off for " + first_names(strict),
                "allow it in the firmware (PCI_WR_ORDERING of mlxconfig); UCX_IB_PCI_RELAXED_ORDERING=try uses it");
  if (is_known && small.empty() && strict.empty())
    add_finding(out, severity::ok, "adapters", "read requests of 512 bytes or more, relaxed ordering allowed");
}

}  // namespace pl::tools::topo
