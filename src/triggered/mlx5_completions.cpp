// SPDX-License-Identifier: Apache-2.0
#include "triggered/mlx5_completions.hpp"

#include <dlfcn.h>
#include <endian.h>
#include <infiniband/mlx5dv.h>

#include <cerrno>
#include <cstring>

#include "base/text.hpp"

namespace pl::triggered {
namespace {

constexpr std::uint8_t kInvalid = 0xf;  // what an entry's code is before the adapter has written it

const char* text_of(unsigned syndrome) {
  switch (syndrome) {
    case MLX5_CQE_SYNDROME_LOCAL_LENGTH_ERR:
      return "a length that the queue pair does not allow";
    case MLX5_CQE_SYNDROME_LOCAL_QP_OP_ERR:
      return "a request that the adapter does not understand";
    case MLX5_CQE_SYNDROME_LOCAL_PROT_ERR:
      return "memory of this process that is not registered, or not all of it";
    case MLX5_CQE_SYNDROME_WR_FLUSH_ERR:
      return "an earlier request has failed";
    case MLX5_CQE_SYNDROME_REMOTE_ACCESS_ERR:
      return "memory of the peer that is not registered for remote writes, or not all of it";
    case MLX5_CQE_SYNDROME_REMOTE_OP_ERR:
      return "the peer's adapter could not carry it out";
    case MLX5_CQE_SYNDROME_TRANSPORT_RETRY_EXC_ERR:
      return "the peer does not answer";
    case MLX5_CQE_SYNDROME_RNR_RETRY_EXC_ERR:
      return "the peer has no receive posted";
    default:
      return "see the adapter's manual";
  }
}

}  // namespace

result<mlx5_inspector> find_mlx5_inspector() {
  static void* const library = dlopen("libmlx5.so.1", RTLD_NOW | RTLD_LOCAL);
  static const auto ask =
      library != nullptr ? reinterpret_cast<decltype(&mlx5dv_init_obj)>(dlsym(library, "mlx5dv_init_obj")) : nullptr;
  if (ask == nullptr) return failure{ENOSYS, "libmlx5.so.1 is not installed (Debian: ibverbs-providers)"};
  return mlx5_inspector{ask};
}

result<mlx5_completion_place> mlx5_completion_place::inspect(ibv_cq* queue, mlx5_inspector ask) {
  mlx5dv_cq found{};
  mlx5dv_obj all{};
  all.cq.in = queue;
  all.cq.out = &found;
  if (const int rc = ask.init_obj(&all, MLX5DV_OBJ_CQ); rc != 0)
    return failure{ENOTSUP, format("not an mlx5 completion queue: mlx5dv_init_obj answers %d", rc)};
  const bool is_known =
      (found.cqe_size == 64 || found.cqe_size == 128) && found.cqe_cnt != 0 && (found.cqe_cnt & (found.cqe_cnt - 1)) == 0;
  if (!is_known)
    return failure{ENOTSUP,
                   format("unknown layout of a completion queue: %u entries of %u bytes", found.cqe_cnt, found.cqe_size)};
  mlx5_completion_place out;
  out.ring = static_cast<std::byte*>(found.buf);
  out.entries = found.cqe_cnt;
  out.entry_bytes = found.cqe_size;
  out.record = reinterpret_cast<std::uint32_t*>(found.dbrec);
  return out;
}

// The entry is the last 64 bytes of its place. The owner bit changes with each round of the ring, so that entries of the
// round before are not taken again; an entry of the first round may never have been written.
const std::byte* mlx5_completions::next() const noexcept {
  const auto* const entry =
      layout_.ring + taken_ % layout_.entries * layout_.entry_bytes + layout_.entry_bytes - sizeof(mlx5_cqe64);
  const auto* const last = reinterpret_cast<const std::uint8_t*>(entry + offsetof(mlx5_cqe64, op_own));
  const auto owner = __atomic_load_n(last, __ATOMIC_ACQUIRE);
  const auto round = static_cast<std::uint8_t>(taken_ / layout_.entries & 1);
  return owner >> 4 != kInvalid && (owner & MLX5_CQE_OWNER_MASK) == round ? entry : nullptr;
}

status mlx5_completions::take(const std::byte* entry) {
  mlx5_cqe64 done;
  std::memcpy(static_cast<void*>(&done), entry, sizeof done);
  const unsigned code = done.op_own >> 4;
  if (code == MLX5_CQE_REQ) {
    // The counter has 16 bits, and fewer requests than that are under way.
    const auto number = static_cast<std::uint16_t>(be16toh(done.wqe_counter) + 1);
    completed_ += static_cast<std::uint16_t>(number - static_cast<std::uint16_t>(completed_));
    return {};
  }
  if (code != MLX5_CQE_REQ_ERR) return failure{EIO, format("the adapter wrote a completion of kind %u", code)};
  mlx5_err_cqe error;
  std::memcpy(&error, entry, sizeof error);
  return failure{EIO, format("the adapter refused request %u: %s (syndrome 0x%02x, vendor's 0x%02x)",
                             static_cast<unsigned>(be16toh(error.wqe_counter)), text_of(error.syndrome), error.syndrome,
                             error.vendor_err_synd)};
}

status mlx5_completions::poll() {
  if (end_) return *end_;
  const auto before = taken_;
  status taken;
  // The adapter does not write more than a ring of them before it sees that they were read.
  for (std::uint32_t i = 0; i < layout_.entries && taken; ++i) {
    const auto* const entry = next();
    if (entry == nullptr) break;
    taken = take(entry);
    ++taken_;
  }
  // The adapter writes these entries again once it sees that they were read.
  if (taken_ != before)
    __atomic_store_n(layout_.record, htobe32(static_cast<std::uint32_t>(taken_ & 0xffffff)), __ATOMIC_RELEASE);
  if (!taken) end_ = taken.error();
  return taken;
}

}  // namespace pl::triggered
