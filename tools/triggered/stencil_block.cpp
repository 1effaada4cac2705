// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/stencil_block.hpp"

#include <algorithm>

#include "tools/common/tool.hpp"
#include "tools/triggered/stencil_field.hpp"

namespace pl::async {

stencil_block::stencil_block(station& at, const block_place& place)
    : by_(at, place),
      step_(by_.find("stencil_step")),
      first_(at.gpu(), by_.field_bytes()),
      fields_{tools::device_memory(at.gpu(), by_.field_bytes()), tools::device_memory(at.gpu(), by_.field_bytes())} {
  const auto values = first_block(place);
  at.gpu().check(at.cuda().cuMemcpyHtoD_v2(first_.get(), values.data(), by_.field_bytes()), "cuMemcpyHtoD");
}

std::uint64_t stencil_block::updates_of_period() const { return 2 * by_.field_bytes() / sizeof(double); }

void stencil_block::launch_period(const send_halo& send) const {
  for (std::uint64_t step = 1; step <= 2; ++step) {
    const auto out = by_.edges_of(step, by_.place().n), in = by_.edges_of(step - 1, by_.place().n);
    auto n = static_cast<unsigned>(by_.place().n);
    std::uint64_t next = fields_[step % 2].get(), now = fields_[(step + 1) % 2].get(), ghosts = by_.at().in() + in.first,
                  edges = by_.at().out() + out.first, pitch = out.pitch;
    void* parameters[] = {&next, &now, &ghosts, &edges, &pitch, &n};
    by_.launch(step_, std::uint64_t{n} * n, parameters);
    send(out);
  }
}

void stencil_block::reset() const {
  const auto& at = by_.at();
  at.gpu().check(at.cuda().cuMemcpyDtoD_v2(fields_[0].get(), first_.get(), by_.field_bytes()), "cuMemcpyDtoD");
  by_.set_ghosts(first_ghosts(by_.place()));
  at.gpu().synchronize();
}

std::vector<double> stencil_block::reference(int periods) const { return block_after(by_.place(), 2 * periods); }

std::uint64_t stencil_block::reference_work(int periods) const {
  std::uint64_t most = 0;
  auto place = by_.place();
  for (place.rank = 0; place.rank < place.gx * place.gy; ++place.rank)
    most = std::max(most, async::reference_work(place, 2 * periods));
  return most;
}

}  // namespace pl::async
