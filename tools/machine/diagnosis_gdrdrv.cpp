// SPDX-License-Identifier: Apache-2.0
// The part of the diagnosis that is about the optional kernel module, and about what each backend gives and lacks.
#include <algorithm>

#include "base/text.hpp"
#include "tools/machine/diagnosis.hpp"

namespace pl::tools {
namespace {

constexpr const char* kSubject = "gdrdrv";

finding note(std::string message, std::string fix = "") {
  return {severity::note, kSubject, std::move(message), std::move(fix)};
}

const backend_state* state_of(const doctor_facts& facts, const char* name) {
  const auto found =
      std::find_if(facts.backends.begin(), facts.backends.end(), [&](const auto& one) { return one.name == name; });
  return found == facts.backends.end() ? nullptr : &*found;
}

std::string joined(const std::vector<std::string>& words) {
  std::string out;
  for (const auto& word : words) out += (out.empty() ? "" : ", ") + word;
  return out;
}

finding about_working(const gdrdrv_facts& module) {
  std::string message = "the gdrdrv module answers";
  if (!module.version.empty()) message += format(" (version %s)", module.version.c_str());
  if (module.is_persistent == false)
    return note(message + ": a pin ends when its memory is freed, and touching the mapping then is a SIGBUS",
                "load it with use_persistent_mapping=1 to keep the memory until it is unpinned");
  return {severity::ok, kSubject, message, ""};
}

std::string signature_reason(const gdrdrv_facts& module) {
  return module.is_secure_boot ? "Secure Boot is on" : "this kernel accepts signed modules only";
}

finding about_unloaded(const doctor_facts& facts) {
  const gdrdrv_facts& module = facts.module;
  const char* kernel = module.kernel_release.c_str();
  if (module.is_built_for_this_kernel()) {
    if (module.needs_signature)
      return note(format("gdrdrv is installed for kernel %s and not loaded; %s", kernel, signature_reason(module).c_str()),
                  "sign it with a key that the firmware knows (mokutil --import KEY.der, reboot, kmodsign sha512 ...), then "
                  "modprobe gdrdrv as root");
    return note(format("gdrdrv is installed for kernel %s and not loaded", kernel),
                "modprobe gdrdrv as root; if it refuses, dmesg has the reason "
                "(docs/kernel-module.md#when-it-does-not-load-or-refuses)");
  }
  if (!module.built_for.empty())
    return note(
        format("gdrdrv is built for kernel %s, this is %s", joined(module.built_for).c_str(), kernel),
        format("dkms autoinstall -k %s as root, or make -C driver/gdrdrv install; or go without: it is optional", kernel));
  std::string message = "/dev/gdrdrv is absent: mappings are made without a module";
  if (module.needs_signature) message += "; " + signature_reason(module) + ", so a module would have to be signed";
  return note(message, facts.in_container ? "optional: NVIDIA_GDRCOPY=enabled gives containers the node" : "");
}

finding about_node(const doctor_facts& facts, const backend_state& backend) {
  const gdrdrv_facts& module = facts.module;
  if (!facts.gdrdrv.exists && module.is_loaded) {
    if (facts.in_container)
      return note("the host has the gdrdrv module loaded, this container lacks /dev/gdrdrv",
                  "start it with NVIDIA_GDRCOPY=enabled, or --device /dev/gdrdrv");
    return note("the gdrdrv module is loaded and /dev/gdrdrv is absent (the stock module makes no node by itself)",
                "as root: mknod -m 666 /dev/gdrdrv c $(awk '$2==\"gdrdrv\"{print $1}' /proc/devices) 0");
  }
  if (!facts.gdrdrv.exists) return about_unloaded(facts);
  if (!facts.gdrdrv.accessible)
    return note("/dev/gdrdrv exists but this user may not open it",
                "chmod 0666 /dev/gdrdrv as root; driver/gdrdrv/70-gdrdrv.rules keeps it so");
  if (!module.is_loaded && !facts.in_container)
    return note(format("/dev/gdrdrv is there and the module is not loaded: a left-over node (%s)", backend.reason.c_str()),
                "modprobe gdrdrv, or remove the stale node");
  return note(format("/dev/gdrdrv is not usable%s: %s",
                     module.version.empty() ? "" : format(" (module version %s)", module.version.c_str()).c_str(),
                     backend.reason.c_str()),
              "load gdrdrv 2.0 or newer, or remove the stale node");
}

// ---- Backends compared ---------------------------------------------------------------------------------------------

struct tradeoff {
  const char* name;
  const char* gives;
  const char* lacks;
};

constexpr tradeoff kTradeoffs[] = {
    {"gdrdrv",
     "any NVIDIA driver from 535 on, whatever its private interface; pins that can end with the memory; programs that "
     "bring the stock library",
     "a module to build, sign and load for each kernel and each change of the NVIDIA driver's module interface"},
    {"dmabuf", "nothing to install, no private interface", "drivers older than CUDA 13.3; the module's revocable pins"},
    {"rm", "nothing to install, an ordinary user's rights, drivers already deployed",
     "drivers whose interface is not known (PEERLANE_RM_FORCE=1 tries them); the module's revocable pins"},
};

}  // namespace

void diagnose_gdrdrv(const doctor_facts& facts, std::vector<finding>& out) {
  const backend_state* backend = state_of(facts, "gdrdrv");
  if (backend == nullptr) return;
  out.push_back(backend->usable ? about_working(facts.module) : about_node(facts, *backend));
}

void compare_backends(const doctor_facts& facts, std::vector<finding>& out) {
  bool is_first = true;
  for (const auto& one : kTradeoffs) {
    const backend_state* backend = state_of(facts, one.name);
    if (backend == nullptr) continue;
    if (backend->usable)
      out.push_back(
          {severity::ok, "backend",
           format("%s, %s: it offers %s; it lacks %s", one.name, is_first ? "in use" : "also usable", one.gives, one.lacks),
           ""});
    else if (is_first)
      out.push_back({severity::note, "backend", format("%s, not usable here: it offers %s", one.name, one.gives), ""});
    is_first = is_first && !backend->usable;
  }
}

}  // namespace pl::tools
