// SPDX-License-Identifier: Apache-2.0
#include "tools/triggered/stencil_block.hpp"

#include <algorithm>

#include "tools/common/tool.hpp"
#include "tools/triggered/stencil_field.hpp"

namespace pl::async {

stencil_block::stencil_block(bench_rank& session, const block_place& place)
    : kernels_(session, place),
      step_(kernels_.find("stencil_step")),
      first_(session.gpu(), kernels_.field_bytes()),
      fields_{tools::device_memory(session.gpu(), kernels_.field_bytes()),
              tools::device_memory(session.gpu(), kernels_.field_bytes())} {
  const auto values = first_block(place);
  session.gpu().check(session.cuda().cuMemcpyHtoD_v2(first_.get(), values.data(), kernels_.field_bytes()), "cuMemcpyHtoD");
}

std::uint64_t stencil_block::updates_of_period() const { return 2 * kernels_.field_bytes() / sizeof(double); }

void stencil_block::launch_period(const send_halo& send) const {
  for (std::uint64_t step = 1; step <= 2; ++step) {
    const auto out = kernels_.edges_of(step, kernels_.place().n), received = kernels_.edges_of(step - 1, kernels_.place().n);
    auto n = static_cast<unsigned>(kernels_.place().n);
    std::uint64_t next = fields_[step % 2].get(), now = fields_[(step + 1) % 2].get(),
                  ghosts = kernels_.session().receive_buffer() + received.first,
                  edges = kernels_.session().send_buffer() + out.first, pitch = out.pitch;
    void* parameters[] = {&next, &now, &ghosts, &edges, &pitch, &n};
    kernels_.launch(step_, std::uint64_t{n} * n, parameters);
    send(out);
  }
}

void stencil_block::reset() const {
  const auto& session = kernels_.session();
  session.gpu().check(session.cuda().cuMemcpyDtoD_v2(fields_[0].get(), first_.get(), kernels_.field_bytes()),
                      "cuMemcpyDtoD");
  kernels_.set_ghosts(first_ghosts(kernels_.place()));
  session.gpu().synchronize();
}

std::vector<double> stencil_block::reference(int periods) const { return block_after(kernels_.place(), 2 * periods); }

std::uint64_t stencil_block::reference_work(int periods) const {
  std::uint64_t most = 0;
  auto place = kernels_.place();
  for (place.rank = 0; place.rank < place.gx * place.gy; ++place.rank)
    most = std::max(most, async::reference_work(place, 2 * periods));
  return most;
}

}  // namespace pl::async
