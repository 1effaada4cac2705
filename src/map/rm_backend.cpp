// SPDX-License-Identifier: Apache-2.0
// The backend without any module: pins and mappings made by the NVIDIA resource manager itself (rm_space.hpp).
#include <cerrno>
#include <new>
#include <optional>
#include <utility>

#include "base/env.hpp"
#include "base/text.hpp"
#include "map/backend.hpp"
#include "map/mapping_proof.hpp"
#include "map/rm_space.hpp"
#include "os/reservation.hpp"

namespace pl {
namespace {

enum class proving { never, until_first_success, always };

// The proof that a mapping needs before it is handed out.
struct proof_requirement {
  proving policy = proving::never;
  std::shared_ptr<rm_space> space;
  const rm::gpu* gpu = nullptr;
};

// Short enough to need no allocation.
failure out_of_memory() noexcept { return failure{ENOMEM, "out of memory"}; }

class rm_pin final : public pinned_memory {
 public:
  rm_pin(device_io& io, const cu::driver_table& cuda, pin_plan plan, std::vector<rm_placement> placements,
         const pin_request& request, proof_requirement duty)
      : pinned_memory("rm", plan.rounded, plan.device_ordinal),
        io_(io),
        cuda_(cuda),
        plan_(std::move(plan)),
        placements_(std::move(placements)),
        verify_(request.verify),
        is_sole_(request.is_sole),
        duty_(std::move(duty)) {}
  ~rm_pin() override { unmap({}, unmapping::by_request); }

  result<cpu_view> map(std::size_t size_bytes, arch::mapping_type wanted) override {
    if (wanted != arch::mapping_type::none && wanted != arch::mapping_type::wc)
      return failure{EOPNOTSUPP, "the resource manager maps BAR1 write-combined: ask for WC or the default"};
    if (duty_.policy != proving::never) {
      const auto context = context_for_proof(cuda_, plan_);
      if (auto s = duty_.space->prove_way(context, *duty_.gpu, duty_.policy == proving::always); !s) return s.error();
    }
    auto address = placements_.size() > 1 ? map_many(size_bytes) : is_sole_ ? map_sole(size_bytes) : map_shared();
    if (!address) return address.error();
    const cpu_view view{*address, size_bytes, arch::mapping_type::wc};
    if (auto s = prove(view); !s) {
      unmap(view, unmapping::by_request);
      return s.error();
    }
    return view;
  }

  backing find_backing() const override {
    if (placements_.size() != 1 || placements_[0].is_guess) return {};
    return {placements_[0].object, placements_[0].offset};
  }

  void unmap(const cpu_view&, unmapping mode) noexcept override {
    const bool is_forgotten = mode == unmapping::forgotten;
    const auto left = is_forgotten ? rm::unmap_policy::faulting : rm::unmap_policy::hole;
    if (lease_.mapped != nullptr) placements_[0].object->release(std::exchange(lease_, {}), left);
    for (std::size_t i = 0; i < pieces_.size(); ++i)
      placements_[i].object->unmap_own(pieces_[i], place_ ? rm::unmap_policy::reservation : left);
    pieces_.clear();
    if (place_ && is_forgotten) place_->leave_faulting();
    place_.reset();
  }

 private:
  // Proves this mapping. Must not throw: the mapping would leak.
  status prove(const cpu_view& view) noexcept try {
    if (duty_.policy == proving::always) {
      if (auto s = compare_mapping(context_for_proof(cuda_, plan_), plan_, view, nullptr); !s) return s;
    }
    if (placements_[0].is_guess) {
      if (auto s = prove_guess(view); !s) return s;
    }
    return verify_ ? verify_mapping(cuda_, plan_, view) : status();
  } catch (const std::bad_alloc&) { return out_of_memory(); }

  // Checks that an IPC handle led to the memory at the address by comparing contents, since another process uses the memory.
  status prove_guess(const cpu_view& view) {
    bool has_evidence = false;
    if (auto s = compare_mapping(context_for_proof(cuda_, plan_), plan_, view, &has_evidence); !s) return s;
    if (has_evidence || verify_) return {};  // a nonce comes next
    return failure{EAGAIN,
                   "this memory of another process cannot be verified, because all its bytes are equal: map it "
                   "when something has been written, or with PEERLANE_MAP_VERIFY, which writes a nonce for a moment"};
  }

  // Its part of the mapping that the pins of this object share.
  result<void*> map_shared() {
    const rm_placement& only = placements_[0];
    auto lease = only.object->acquire(only.offset, only.length, only.object_bytes);
    if (!lease) return lease.error();
    lease_ = *lease;
    return lease_.address;
  }

  result<void*> map_sole(std::size_t size_bytes) {
    pieces_.reserve(1);
    auto mapping = placements_[0].object->map_own(placements_[0].offset, size_bytes, nullptr);
    if (!mapping) return mapping.error();
    pieces_.push_back(*mapping);
    return mapping->address;
  }

  result<void*> map_many(std::size_t size_bytes) {
    pieces_.reserve(placements_.size());
    auto place = reservation::make(io_, size_bytes);
    if (!place) return place.error();
    place_.emplace(*std::move(place));
    std::size_t index = 0;
    for (const auto& placement : placements_) {
      if (index >= size_bytes) break;
      const std::size_t length = std::min<std::size_t>(placement.length, size_bytes - index);
      auto mapping = placement.object->map_own(placement.offset, length, place_->address() + index);
      if (!mapping) {
        unmap({}, unmapping::by_request);
        return mapping.error();
      }
      pieces_.push_back(*mapping);
      index += length;
    }
    return place_->address();
  }

  device_io& io_;
  const cu::driver_table& cuda_;
  pin_plan plan_;
  std::vector<rm_placement> placements_;
  bool verify_;
  bool is_sole_;
  proof_requirement duty_;
  rm_object::lease lease_;               // for a range in one object, shared with other pins
  std::vector<rm::cpu_mapping> pieces_;  // for a range over several objects, or a pin that shares none
  std::optional<reservation> place_;
};

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
    auto placements = space_->resolve(**cuda, *plan, request.ipc_handle);
    if (!placements) return placements.error();
    proof_requirement duty{proving_, space_, nullptr};
    if (proving_ != proving::never) {
      auto gpu = space_->gpu_of(**cuda, plan->device_ordinal);
      if (!gpu) return gpu.error();
      duty.gpu = *gpu;
    }
    return std::unique_ptr<pinned_memory>(
        new rm_pin(io_, **cuda, *std::move(plan), *std::move(placements), request, std::move(duty)));
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
      return proving::until_first_success;
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
