// SPDX-License-Identifier: Apache-2.0
#include "triggered/mlx5_queue.hpp"

#include <endian.h>
#include <infiniband/mlx5dv.h>

#include <cstring>
#include <string>

namespace pl::triggered {
namespace {

constexpr std::size_t kBlock = MLX5_SEND_WQE_BB;
constexpr unsigned kSegments = 3;  // of 16 bytes each: control, remote address, and data or a word

}  // namespace

result<mlx5_place> mlx5_place::inspect(ibv_qp* qp, mlx5_inspector ask) {
  mlx5dv_qp found{};
  mlx5dv_obj all{};
  all.qp.in = qp;
  all.qp.out = &found;
  if (const int rc = ask.init_obj(&all, MLX5DV_OBJ_QP); rc != 0)
    return failure{ENOTSUP, "not an mlx5 queue pair: mlx5dv_init_obj answers " + std::to_string(rc)};
  if (found.sq.stride != kBlock || found.sq.wqe_cnt == 0 || (found.sq.wqe_cnt & (found.sq.wqe_cnt - 1)) != 0)
    return failure{ENOTSUP, "unknown layout of a send queue"};
  mlx5_place out;
  out.ring = static_cast<std::byte*>(found.sq.buf);
  out.blocks = found.sq.wqe_cnt;
  out.record = reinterpret_cast<std::uint32_t*>(&found.dbrec[MLX5_SND_DBR]);
  out.doorbell = static_cast<std::uint64_t*>(found.bf.reg);
  out.number = qp->qp_num;
  return out;
}

status mlx5_queue::begin(unsigned code, bool is_signaled, const mlx5_memory& target, std::byte*& rest) {
  if (!has_room(1)) return failure{EAGAIN, "the adapter has not completed what was written before: try again later"};
  std::byte* const request = layout_.ring + written_ % layout_.blocks * kBlock;
  std::memset(request, 0, kBlock);
  mlx5_wqe_ctrl_seg control{};
  control.opmod_idx_opcode = htobe32(static_cast<std::uint32_t>(written_ & 0xffff) << 8 | code);
  control.qpn_ds = htobe32(layout_.number << 8 | kSegments);
  control.fm_ce_se = is_signaled ? MLX5_WQE_CTRL_CQ_UPDATE : 0;
  mlx5_wqe_raddr_seg remote{};
  remote.raddr = htobe64(target.address);
  remote.rkey = htobe32(target.key);
  std::memcpy(request, &control, sizeof control);
  std::memcpy(request + sizeof control, &remote, sizeof remote);
  rest = request + sizeof control + sizeof remote;
  return {};
}

// A stream's write of the record comes before its write of the register: the adapter may look at the record at once.
void mlx5_queue::end(const std::byte* request) noexcept {
  ++written_;
  last_.record = htobe32(static_cast<std::uint32_t>(written_ & 0xffff));
  std::memcpy(&last_.doorbell, request, sizeof last_.doorbell);
}

status mlx5_queue::write(const mlx5_memory& local, std::uint64_t bytes, const mlx5_memory& remote) {
  if (bytes == 0 || bytes > kMaxBytes) return failure{EINVAL, "an adapter's write has 1 byte to 1 GiB"};
  std::byte* rest = nullptr;
  if (auto done = begin(MLX5_OPCODE_RDMA_WRITE, false, remote, rest); !done) return done;
  mlx5_wqe_data_seg data{};
  data.byte_count = htobe32(static_cast<std::uint32_t>(bytes));
  data.lkey = htobe32(local.key);
  data.addr = htobe64(local.address);
  std::memcpy(rest, &data, sizeof data);
  end(rest - sizeof(mlx5_wqe_ctrl_seg) - sizeof(mlx5_wqe_raddr_seg));
  return {};
}

status mlx5_queue::write_word(std::uint64_t value, const mlx5_memory& remote) {
  std::byte* rest = nullptr;
  if (auto done = begin(MLX5_OPCODE_RDMA_WRITE, true, remote, rest); !done) return done;
  const std::uint32_t head = htobe32(static_cast<std::uint32_t>(sizeof value) | MLX5_INLINE_SEG);
  std::memcpy(rest, &head, sizeof head);
  std::memcpy(rest + sizeof head, &value, sizeof value);
  end(rest - sizeof(mlx5_wqe_ctrl_seg) - sizeof(mlx5_wqe_raddr_seg));
  return {};
}

}  // namespace pl::triggered
