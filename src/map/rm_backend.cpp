// SPDX-License-Identifier: Apache-2.0
// The backend without any module: pins and mappings made by the NVIDIA resource manager itself (rm_space.hpp).
#include <optional>

#include "backend.hpp"
#include "env.hpp"
#include "log.hpp"
#include "reservation.hpp"
#include "rm_space.hpp"
#include "text.hpp"

namespace pl {
namespace {

class rm_pin final : public pinned_memory {
 public:
  // `verify`: prove each mapping. `until_proved`: prove mappings of this GPU until one was right; null: none.
  rm_pin(device_io& io, const cu::driver_table& cuda, pin_plan plan, std::vector<rm_placement> placements, bool verify,
         std::shared_ptr<rm_space> space, const rm::gpu* until_proved)
      : pinned_memory(plan.rounded, plan.device_ordinal),
        io_(io),
        cuda_(cuda),
        plan_(std::move(plan)),
        placements_(std::move(placements)),
        verify_(verify),
        space_(std::move(space)),
        until_proved_(until_proved) {}

  result<cpu_view> map(std::size_t size_bytes, arch::mapping_type wanted) override {
    if (wanted != arch::mapping_type::none && wanted != arch::mapping_type::wc)
      return failure{EOPNOTSUPP, "the resource manager maps BAR1 write-combined: ask for WC or the default"};
    auto address = placements_.size() == 1 ? map_one() : map_many(size_bytes);
    if (!address) return address.error();
    const cpu_view view{*address, size_bytes, arch::mapping_type::wc};
    if (verify_ || (until_proved_ != nullptr && !space_->is_proved(until_proved_))) {
      if (auto s = verify_mapping(cuda_, plan_, view); !s) {
        unmap(view);
        return s.error();
      }
      if (until_proved_ != nullptr) space_->set_proved(until_proved_);
    }
    return view;
  }

  void unmap(const cpu_view&) noexcept override {
    if (placements_.size() == 1) {
      placements_[0].object->release(lease_);
      return;
    }
    for (std::size_t i = 0; i < pieces_.size(); ++i) placements_[i].object->unmap_fixed(pieces_[i]);
    pieces_.clear();
    place_.reset();
  }

 private:
  result<void*> map_one() {
    const rm_placement& only = placements_[0];
    auto lease = only.object->acquire(only.offset, only.length, only.object_bytes);
    if (!lease) return lease.error();
    lease_ = *lease;
    return lease_.address;
  }

  result<void*> map_many(std::size_t size_bytes) {
    auto place = reservation::make(io_, size_bytes);
    if (!place) return place.error();
    std::size_t at = 0;
    for (const auto& placement : placements_) {
      if (at >= size_bytes) break;
      const std::size_t length = std::min<std::size_t>(placement.length, size_bytes - at);
      auto mapping = placement.object->map_fixed(placement.offset, length, place->address() + at);
      if (!mapping) {
        for (std::size_t i = 0; i < pieces_.size(); ++i) placements_[i].object->unmap_fixed(pieces_[i]);
        pieces_.clear();
        return mapping.error();
      }
      pieces_.push_back(*mapping);
      at += length;
    }
    place_.emplace(*std::move(place));
    return place_->address();
  }

  device_io& io_;
  const cu::driver_table& cuda_;
  pin_plan plan_;
  std::vector<rm_placement> placements_;
  bool verify_;
  std::shared_ptr<rm_space> space_;
  const rm::gpu* until_proved_;
  rm_object::lease lease_;               // of a range in one object
  std::vector<rm::cpu_mapping> pieces_;  // of a range over several
  std::optional<reservation> place_;
};

enum class proving { never, until_one_was_right, always };

class rm_backend final : public backend {
 public:
  rm_backend(const backend_environment& environment, std::shared_ptr<rm_space> space, proving policy)
      : io_(*environment.io), cuda_(environment.cuda), space_(std::move(space)), proving_(policy) {}
  const char* name() const noexcept override { return "rm"; }

  result<std::unique_ptr<pinned_memory>> pin(const pin_request& request) override {
    auto cuda = driver_of(cuda_);
    if (!cuda) return cuda.error();
    auto plan = plan_pin(**cuda, request.range, request.granule_bytes, request.rule);
    if (!plan) return plan.error();
    auto placements = space_->resolve(**cuda, *plan);
    if (!placements) return placements.error();
    const rm::gpu* until_proved = nullptr;
    if (proving_ == proving::until_one_was_right) {
      auto gpu = space_->gpu_of(**cuda, plan->device_ordinal);
      if (!gpu) return gpu.error();
      until_proved = *gpu;
    }
    const bool verify = request.verify || proving_ == proving::always;
    return std::unique_ptr<pinned_memory>(
        new rm_pin(io_, **cuda, *std::move(plan), *std::move(placements), verify, space_, until_proved));
  }

 private:
  device_io& io_;
  const cu::driver_table* cuda_;
  std::shared_ptr<rm_space> space_;
  proving proving_;
};

result<proving> proving_policy(device_io& io) {
  if (env_read("PEERLANE_RM_VERIFY").integer != 0) return proving::always;
  auto version = rm::driver_version(io);
  if (!version) return version.error();
  switch (rm::abi_of(*version)) {
    case rm::abi_knowledge::measured:
      return proving::never;
    case rm::abi_knowledge::read:
      return proving::until_one_was_right;
    case rm::abi_knowledge::unknown:
      break;
  }
  if (env_read("PEERLANE_RM_FORCE").integer != 0) return proving::always;
  return failure{
      ENOTSUP,
      format("the interface of driver %s is not known to this version of Peerlane: set PEERLANE_RM_FORCE=1 to try it "
             "(every mapping is then verified), or update Peerlane",
             version->c_str())};
}

}  // namespace

result<std::unique_ptr<backend>> open_rm_backend(const backend_environment& environment) {
  auto policy = proving_policy(*environment.io);
  if (!policy) return policy.error();
  auto space = rm_space::get(*environment.io);
  if (!space) return space.error();
  return std::unique_ptr<backend>(new rm_backend(environment, *std::move(space), *policy));
}

}  // namespace pl
