// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/multigrid_block.hpp"

#include "tools/common/tool.hpp"
#include "tools/triggered/multigrid_field.hpp"
#include "tools/triggered/stencil_field.hpp"

namespace pl::async {
namespace {

constexpr std::uint64_t level_bytes(int n) { return 8ull * static_cast<unsigned>(n) * static_cast<unsigned>(n); }
// Two fields and a right side on each level: a third more than on the finest.
constexpr std::size_t all_levels_bytes(int n) { return n < kCoarsest ? 0 : 3 * level_bytes(n) + all_levels_bytes(n / 2); }

}  // namespace

// One V-cycle as it is launched: how many halos have been sent, and which of its two fields a level is in.
class multigrid_block::cycle {
 public:
  cycle(const multigrid_block& block, const send_halo& send) : block_(block), send_(send) {}

  void run(std::size_t depth) {
    const bool is_coarsest = depth + 1 == block_.levels_.size();
    smooth(depth, is_coarsest ? coarsest_smooths(block_.kernels_.place().n) : kSmoothsBefore, depth != 0);
    if (is_coarsest) return;
    restrict_from(depth);
    run(depth + 1);
    correct(depth);
    smooth(depth, kSmoothsAfter, false);
  }

 private:
  std::uint64_t ghosts() const {
    return block_.kernels_.session().receive_buffer() + block_.kernels_.edges_of(sent_, 0).first;
  }
  std::uint64_t edges() const {
    return block_.kernels_.session().send_buffer() + block_.kernels_.edges_of(sent_ + 1, 0).first;
  }
  void send(int n) { send_(block_.kernels_.edges_of(++sent_, n)); }

  void smooth(std::size_t depth, int count, bool is_from_zero) {
    const auto& level = block_.levels_[depth];
    for (int i = 0; i < count; ++i) {
      auto n = static_cast<unsigned>(level.n), walls = block_.walls_, from_zero = unsigned{is_from_zero && i == 0};
      std::uint64_t now = level.field[is_odd_[depth]], next = level.field[!is_odd_[depth]], right = level.right,
                    received = ghosts(), out = edges(), pitch = block_.kernels_.row_bytes();
      void* parameters[] = {&next, &now, &right, &received, &out, &pitch, &n, &walls, &from_zero};
      block_.kernels_.launch(block_.smooth_, std::uint64_t{n} * n, parameters);
      is_odd_[depth] = !is_odd_[depth];
      send(level.n);
    }
  }

  void restrict_from(std::size_t depth) {
    const auto& level = block_.levels_[depth];
    auto n = static_cast<unsigned>(level.n), walls = block_.walls_;
    std::uint64_t coarse = block_.levels_[depth + 1].right, now = level.field[is_odd_[depth]], right = level.right,
                  received = ghosts(), pitch = block_.kernels_.row_bytes();
    void* parameters[] = {&coarse, &now, &right, &received, &pitch, &n, &walls};
    block_.kernels_.launch(block_.restrict_, std::uint64_t{n} * n / 4, parameters);
  }

  void correct(std::size_t depth) {
    const auto& level = block_.levels_[depth];
    auto n = static_cast<unsigned>(level.n), walls = block_.walls_;
    std::uint64_t now = level.field[is_odd_[depth]], coarse = block_.levels_[depth + 1].field[is_odd_[depth + 1]],
                  received = ghosts(), out = edges(), pitch = block_.kernels_.row_bytes();
    void* parameters[] = {&now, &coarse, &received, &out, &pitch, &n, &walls};
    block_.kernels_.launch(block_.correct_, std::uint64_t{n} * n, parameters);
    send(level.n);
  }

  const multigrid_block& block_;
  const send_halo& send_;
  std::uint64_t sent_ = 0;
  std::vector<bool> is_odd_ = std::vector<bool>(block_.levels_.size());
};

multigrid_block::multigrid_block(bench_rank& session, const block_place& place)
    : kernels_(session, place),
      smooth_(kernels_.find("multigrid_smooth")),
      restrict_(kernels_.find("multigrid_restrict")),
      correct_(kernels_.find("multigrid_correct")),
      memory_(session.gpu(), all_levels_bytes(place.n)) {
  std::uint64_t free = memory_.get();
  const auto take = [&](int n) {
    const auto out = free;
    free += level_bytes(n);
    return out;
  };
  for (int n = place.n; n >= kCoarsest; n /= 2) levels_.push_back({n, {take(n), take(n)}, take(n)});
  for (int i = 0; i < kSides; ++i)
    if (place.neighbour(static_cast<side>(i)) < 0) walls_ |= 1u << i;
  const auto values = first_block(place);
  session.gpu().check(session.cuda().cuMemcpyHtoD_v2(levels_.front().right, values.data(), kernels_.field_bytes()),
                      "cuMemcpyHtoD");
}

void multigrid_block::launch_period(const send_halo& send) const { cycle(*this, send).run(0); }

void multigrid_block::reset() const {
  const auto& session = kernels_.session();
  session.gpu().check(session.cuda().cuMemsetD8_v2(levels_.front().field[0], 0, kernels_.field_bytes()), "cuMemsetD8");
  kernels_.set_ghosts(std::vector<double>(kSides * static_cast<std::size_t>(kernels_.place().n)));
  session.gpu().synchronize();
}

std::vector<double> multigrid_block::reference(int periods) const {
  multigrid_domain whole(kernels_.place().gx, kernels_.place().gy, kernels_.place().n);
  for (int i = 0; i < periods; ++i) whole.cycle();
  return whole.block(kernels_.place());
}

std::uint64_t multigrid_block::reference_work(int periods) const {
  std::uint64_t points = 0;
  for (const auto& each : levels_) points += level_bytes(each.n) / 8 * (kSmoothsBefore + kSmoothsAfter + 2);
  return points * blocks() * static_cast<std::uint64_t>(periods);
}

}  // namespace pl::async
