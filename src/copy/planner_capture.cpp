// SPDX-License-Identifier: Apache-2.0
// Copies as nodes of a graph that is being captured. They are CUDA's: a channel executes what is queued once, and
// nothing on the GPU queues it again at each launch (docs/design/0004).
#include <cerrno>

#include "base/text.hpp"
#include "copy/planner_impl.hpp"
#include "copy/stream_capture.hpp"
#include "copy/stream_copy.hpp"

namespace pl::copy {

status planner::capture(std::span<const transfer> list, cu::stream_t stream) {
  std::vector<sides> inspected(list.size());
  for (std::size_t i = 0; i < list.size(); ++i) {
    if (is_empty(list[i])) continue;
    if (auto good = inspect(list[i], inspected[i]); !good) return good;
    inspect_other(list[i], inspected[i]);
    if (inspected[i].other == other_side::pageable)
      return failure{ENOTSUP,
                     format("copy %zu of %zu: its host memory is not pinned, which a graph's copies need: register it "
                            "with cuMemHostRegister (cudaHostRegister), or allocate it pinned",
                            i + 1, list.size())};
  }
  const cu::relaxed_capture unharmed(cuda_);
  if (auto captured = require_capture(cuda_, stream); !captured) return captured;
  for (std::size_t i = 0; i < list.size(); ++i)  // empty copies add no node
    if (const auto rc = queue_copy(cuda_, list[i], stream); rc != cu::error_code::success)
      return cu::make_error(cuda_, rc,
                            format("copy %zu of %zu (%s) in the capture, which can no longer be used", i + 1, list.size(),
                                   describe(list[i]).c_str()));
  return {};
}

}  // namespace pl::copy
