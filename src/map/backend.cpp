// SPDX-License-Identifier: Apache-2.0
#include "backend.hpp"

#include <algorithm>
#include <cstring>

#include "clock.hpp"
#include "env.hpp"
#include "log.hpp"
#include "text.hpp"

namespace pl {
namespace {

using opener = result<std::unique_ptr<backend>> (*)(const backend_environment&);
struct candidate {
  const char* name;
  opener open;
};
constexpr candidate kCandidates[] = {
    {"gdrdrv", open_gdrdrv_backend}, {"dmabuf", open_dmabuf_backend}, {"rm", open_rm_backend}};

}  // namespace

result<std::unique_ptr<backend>> open_backend(const backend_environment& environment, const std::string& name) {
  std::string reasons;
  int code = ENODEV;
  bool known = false;
  for (const auto& entry : kCandidates) {
    if (name != "auto" && name != entry.name) continue;
    known = true;
    auto opened = entry.open(environment);
    if (opened) {
      PL_LOG(info, "mapping backend: %s", entry.name);
      return opened;
    }
    PL_LOG(info, "backend %s is not usable: %s", entry.name, opened.error().message.c_str());
    reasons += format("%s%s: %s", reasons.empty() ? "" : "; ", entry.name, opened.error().message.c_str());
    code = opened.code();
  }
  if (!known) return failure{EINVAL, format("\"%s\" is no backend: give auto, gdrdrv, dmabuf or rm", name.c_str())};
  return failure{code, "no way to map GPU memory works here (" + reasons + "); `peerlane doctor` tells what to do"};
}

std::vector<backend_report> probe_backends() {
  std::vector<backend_report> reports;
  for (const auto& entry : kCandidates) {
    auto opened = entry.open({&default_device_io(), nullptr});
    reports.push_back({entry.name, opened.ok(), opened ? std::string() : opened.error().message});
  }
  return reports;
}

status verify_mapping(const cu::driver_table& cuda, const pin_plan& plan, const cpu_view& view) {
  constexpr std::size_t kNonceBytes = 64;
  const std::uint64_t skip = plan.owned.begin - plan.rounded.begin;
  if (skip >= view.size_bytes) return {};  // none of the user's bytes is mapped, and others' are not ours to touch
  const auto count = static_cast<std::size_t>(
      std::min({std::uint64_t{kNonceBytes}, plan.owned.size_bytes, static_cast<std::uint64_t>(view.size_bytes) - skip}));
  auto context = cu::context_scope::enter(cuda, plan.device_ordinal, plan.context);
  if (!context) return context.error();
  auto* cpu = static_cast<volatile unsigned char*>(view.address) + skip;
  unsigned char shown[kNonceBytes], seen[kNonceBytes], nonce[kNonceBytes];
  std::uint64_t state = ticks() | 1;
  for (std::size_t i = 0; i < count; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    shown[i] = cpu[i];
    cpu[i] = nonce[i] = static_cast<unsigned char>(state >> 56);
  }
  arch::publish_to_device(view.type);
  const cu::result_t rc = cuda.cuMemcpyDtoH_v2(seen, plan.owned.begin, count);
  // Back to where they were read: if the mapping is of the wrong place, that place is whole again.
  for (std::size_t i = 0; i < count; ++i) cpu[i] = shown[i];
  arch::publish_to_device(view.type);
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "reading back a mapping's nonce");
  if (std::memcmp(seen, nonce, count) != 0)
    return failure{
        EIO,
        "a fresh mapping does not show the memory it should: this driver's ABI differs from the known one; please report "
        "the driver version, and use another backend meanwhile"};
  return {};
}

}  // namespace pl
