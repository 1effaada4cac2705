// SPDX-License-Identifier: Apache-2.0
#include "map/mapping_proof.hpp"

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "arch/copy_dispatch.hpp"
#include "base/clock.hpp"
#include "base/text.hpp"
#include "map/bounded_call.hpp"

namespace pl {
namespace {

constexpr std::size_t kNonceBytes = 64;
constexpr std::size_t kCompareBytes = 4096;

failure wrong_memory() {
  return failure{
      EIO,
      "a fresh mapping does not show the memory it should: this driver's ABI differs from the known one; please report "
      "the driver version, and use another backend meanwhile"};
}

// What CUDA sees at `pointer`, read on a bounded thread. The buffer belongs to that thread, which may outlive the
// caller's wait.
result<std::vector<unsigned char>> read_through_cuda(const proof_context& proof, std::uint64_t pointer, std::size_t bytes) {
  auto seen = std::make_shared<std::vector<unsigned char>>(bytes);
  auto outcome = call_bounded(*proof.cuda, [proof, pointer, seen]() -> status {
    auto context = cu::context_scope::enter(*proof.cuda, proof.device_ordinal, proof.context);
    if (!context) return context.error();
    proof_stream stream(*proof.cuda);
    if (auto s = stream.open(); !s) return s;
    return stream.read(seen->data(), pointer, seen->size());
  });
  if (!outcome) return unproved(outcome.error());
  return std::move(*seen);
}

void fill_with_nonce(unsigned char* out, std::size_t bytes) {
  std::uint64_t state = ticks() | 1;
  for (std::size_t i = 0; i < bytes; ++i) {
    state = state * 6364136223846793005u + 1442695040888963407u;
    out[i] = static_cast<unsigned char>(state >> 56);
  }
}

// The user's bytes at the start of a mapping, at most `limit`.
struct owned_part {
  unsigned char* cpu = nullptr;
  std::uint64_t pointer = 0;
  std::size_t bytes = 0;
};

owned_part owned_part_of(const pin_plan& plan, const cpu_view& view, std::size_t limit) {
  const std::uint64_t skip = plan.owned.begin - plan.rounded.begin;
  if (skip >= view.size_bytes) return {};  // none of the user's bytes is mapped, and other bytes must not be touched
  const std::uint64_t mapped = view.size_bytes - skip;
  return {static_cast<unsigned char*>(view.address) + skip, plan.owned.begin,
          static_cast<std::size_t>(std::min({std::uint64_t{limit}, plan.owned.size_bytes, mapped}))};
}

}  // namespace

failure unproved(const failure& reason) {
  if (reason.code == EIO) return reason;  // the comparison ran
  return failure{reason.code, "the mapping could not be proved: " + reason.message};
}

proof_context context_for_proof(const cu::driver_table& cuda, const pin_plan& plan) noexcept {
  cu::context_t current = nullptr;
  cu::device_t device = -1;
  if (plan.context == nullptr && cuda.cuCtxGetCurrent(&current) == cu::error_code::success && current != nullptr &&
      cuda.cuCtxGetDevice(&device) == cu::error_code::success && device == plan.device_ordinal)
    return {&cuda, plan.device_ordinal, current};
  return {&cuda, plan.device_ordinal, plan.context};
}

proof_stream::~proof_stream() {
  if (stream_ != nullptr) cuda_.cuStreamDestroy_v2(stream_);
}

status proof_stream::open() {
  const auto rc = cuda_.cuStreamCreate(&stream_, cu::stream_flag::non_blocking);
  return rc == cu::error_code::success ? status() : cu::make_error(cuda_, rc, "making a stream");
}

status proof_stream::synchronize() {
  const auto rc = cuda_.cuStreamSynchronize(stream_);
  return rc == cu::error_code::success ? status() : cu::make_error(cuda_, rc, "waiting for a stream");
}

status proof_stream::read(void* out, std::uint64_t pointer, std::size_t bytes) {
  const auto rc = cuda_.cuMemcpyDtoHAsync_v2(out, pointer, bytes, stream_);
  return rc == cu::error_code::success ? synchronize() : cu::make_error(cuda_, rc, "reading device memory");
}

status proof_stream::write(std::uint64_t pointer, const void* bytes, std::size_t count) {
  const auto rc = cuda_.cuMemcpyHtoDAsync_v2(pointer, bytes, count, stream_);
  return rc == cu::error_code::success ? synchronize() : cu::make_error(cuda_, rc, "writing device memory");
}

result<std::unique_ptr<scratch_memory>> scratch_memory::make(const proof_context& context) {
  const auto& cuda = *context.cuda;
  auto scope = cu::context_scope::enter(cuda, context.device_ordinal, context.context);
  if (!scope) return scope.error();
  auto made = std::unique_ptr<scratch_memory>(new scratch_memory(cuda, *std::move(scope)));
  if (auto s = made->stream_.open(); !s) return s.error();
  // Allocates from the pool if there is one: cuMemAlloc and cuMemFree wait for every running kernel.
  cu::result_t rc = cu::error_code::not_supported;
  if (cuda.cuMemAllocAsync != nullptr && cuda.cuMemFreeAsync != nullptr)
    rc = cuda.cuMemAllocAsync(&made->pointer_, kBytes, made->stream_.get());
  made->is_pool_memory_ = rc == cu::error_code::success;
  if (rc == cu::error_code::not_supported) rc = cuda.cuMemAlloc_v2(&made->pointer_, kBytes);
  if (rc != cu::error_code::success) return cu::make_error(cuda, rc, "allocating 2 MiB of device memory");
  if (auto s = made->stream_.synchronize(); !s) return s.error();
  return made;
}

scratch_memory::~scratch_memory() {
  if (pointer_ == 0) return;
  if (!is_pool_memory_) {
    cuda_.cuMemFree_v2(pointer_);
    return;
  }
  cuda_.cuMemFreeAsync(pointer_, stream_.get());
  (void)stream_.synchronize();  // pools return to the system what is free at such a moment
}

status scratch_memory::check_place(const cpu_view& mapped, std::size_t offset) {
  std::array<unsigned char, kCompareBytes> nonce, seen;
  auto* const cpu = static_cast<unsigned char*>(mapped.address) + offset;
  fill_with_nonce(nonce.data(), nonce.size());
  arch::copy_to(mapped.type, cpu, nonce.data(), nonce.size());
  if (auto s = stream_.read(seen.data(), pointer_ + offset, seen.size()); !s) return s;
  if (seen != nonce) return wrong_memory();
  fill_with_nonce(nonce.data(), nonce.size());
  if (auto s = stream_.write(pointer_ + offset, nonce.data(), nonce.size()); !s) return s;
  arch::copy_from(mapped.type, seen.data(), cpu, seen.size());
  return seen == nonce ? status() : wrong_memory();
}

status scratch_memory::check(const cpu_view& mapped) {
  for (const std::size_t offset : {std::size_t{0}, kMappedBytes / 2, kMappedBytes - kCompareBytes})
    if (auto s = check_place(mapped, offset); !s) return s;
  return {};
}

status compare_mapping(const proof_context& context, const pin_plan& plan, const cpu_view& view, bool* has_evidence) {
  const owned_part part = owned_part_of(plan, view, kCompareBytes);
  std::vector<unsigned char> before(part.bytes), after(part.bytes);
  if (has_evidence != nullptr) *has_evidence = false;
  if (part.bytes == 0) return {};
  arch::copy_from(view.type, before.data(), part.cpu, part.bytes);
  auto seen = read_through_cuda(context, part.pointer, part.bytes);
  if (!seen) return seen.error();
  arch::copy_from(view.type, after.data(), part.cpu, part.bytes);
  bool differs = false, varies = false;
  for (std::size_t i = 0; i < part.bytes; ++i) {
    if (before[i] != after[i]) continue;  // another writer is changing it
    differs = differs || before[i] != (*seen)[i];
    varies = varies || before[i] != before[0];
  }
  if (has_evidence != nullptr) *has_evidence = varies;
  return differs ? wrong_memory() : status();
}

status verify_mapping(const cu::driver_table& cuda, const pin_plan& plan, const cpu_view& view) {
  const owned_part part = owned_part_of(plan, view, kNonceBytes);
  if (part.bytes == 0) return {};
  std::array<unsigned char, kNonceBytes> shown, nonce;
  volatile unsigned char* const cpu = part.cpu;
  fill_with_nonce(nonce.data(), part.bytes);
  for (std::size_t i = 0; i < part.bytes; ++i) {
    shown[i] = cpu[i];
    cpu[i] = nonce[i];
  }
  arch::publish_to_device(view.type);
  auto seen = read_through_cuda(context_for_proof(cuda, plan), part.pointer, part.bytes);
  // The bytes are written back to where they were read, so a mapping of the wrong memory leaves that memory unchanged.
  for (std::size_t i = 0; i < part.bytes; ++i) cpu[i] = shown[i];
  arch::publish_to_device(view.type);
  if (!seen) return seen.error();
  return std::memcmp(seen->data(), nonce.data(), part.bytes) == 0 ? status() : wrong_memory();
}

}  // namespace pl
