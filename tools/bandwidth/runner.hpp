// SPDX-License-Identifier: Apache-2.0
// Runs transfers at the same time and times them.
//
// Method of one sample: destination cleared and source filled with a pattern of this sample's seed; every stream is gated by
// cuStreamWaitValue32 on one word in pinned host memory (a wait that cannot time out by itself and occupies no
// multiprocessor); behind the gate: warm-up copies, start event, the copies, end event. The host waits until all streams
// have been enqueued (and CPU executors are at their start line), calls hooks.before_release, opens the gate, and waits with
// a time limit. Streams of GPUs start together: each waits for the start event of the first. Then every byte of every
// destination is compared with the pattern, by a kernel on the GPU that can reach it or by CPU threads.
//
// Rates: of copy engines that run together (with `balance`), `own` and `total` are what one or all measured transfers moved
// while all ran, which events between the copies tell, / that time. Else `own` = bytes of one transfer / its own start..end,
// `total` = bytes of all measured transfers / the one window from the first start to the last end. With `balance`, the
// number of copies of each transfer is chosen from a first untimed round such that all end at about the same time, so
// `total` is simultaneous traffic and interference lasts.
#pragma once

#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "tools/bandwidth/buffer.hpp"

namespace pl::bandwidth {

struct method {
  unsigned samples = 5;
  unsigned copies = 16;  // of a transfer per sample (--loopCount); raised for small sizes so that a sample lasts
                         // min_sample_ns, and split into several gated windows when they do not fit the launch queue
  unsigned warm_up = 4;
  std::uint64_t min_sample_ns = 200'000;  // 0: exactly `copies`, as the original
  bool verify = true;
  bool balance = true;
  bool whole_microseconds = false;  // the original's arithmetic: bytes / floor(us)
  std::uint64_t seed = 1;
  unsigned timeout_s = 30;  // for one sample; then ETIMEDOUT, and the GPU is left alone until the gated work has ended
};

struct bound_transfer {
  memory_view source;
  memory_view destination;
  bandwidth::executor executor;
  std::uint64_t bytes = 0;
  bool measured = true;
  unsigned copies = 0;               // 0: the method's
  bool without_peer_access = false;  // between GPUs, by copy engine: taken back before, so that the driver stages the data
  bool is_multicast = false;         // the destination is a multicast object's address; `arrivals` lists what to compare
  std::uint64_t data_key = 0;        // which pattern the source gets; 0: that of its address
};

// Memory that a multicast transfer writes, of whatever process: cleared before and compared after each sample. Its
// `data_key` is that transfer's and not 0.
struct arrival {
  memory_view view;
  std::uint64_t bytes = 0;
  std::uint64_t data_key = 0;
};

struct mismatch {
  std::uint64_t bytes = 0;                // number of wrong bytes; 0: all right
  std::uint64_t first_offset = 0;         // of the first wrong one
  std::uint64_t expected = 0, found = 0;  // the 8 bytes around it
  std::uint64_t flipped_bits = 0;         // OR of expected XOR found over all words
};

struct transfer_outcome {
  std::vector<double> own_gb_per_s;  // per sample, GB = 1e9 bytes
  unsigned copies = 0;               // per sample, as run
  std::uint64_t retries = 0;         // copies that the copy kernel refused for the moment (EAGAIN), in the whole run
  mismatch wrong;                    // over all samples
};

struct set_outcome {
  std::vector<transfer_outcome> each;  // in the order given
  std::vector<mismatch> arrived;       // in the order given, over all samples
  std::vector<double> total_gb_per_s;  // per sample; measured transfers over their common window
  std::vector<double> overlap;         // per sample: share of the common window in which all transfers ran, 0..1
};

// For processes that measure together. Both are called once a sample.
struct run_hooks {
  std::function<status()> before_release;  // everything is enqueued here
  std::function<status()> after_sample;    // everything has ended here, before verification
};

class runner {
 public:
  explicit runner(gpu_set& gpus);
  ~runner();

  // An empty list is allowed (a rank that only takes part in the hooks). EINVAL: a combination that cannot work (bar between
  // two GPUs, ...), with what could; EIO, ETIMEDOUT: nothing of this run is in flight any more, or the GPU is lost and
  // later calls on it fail at once. Data that arrives wrong is not a failure here: see mismatch.
  result<set_outcome> run(std::span<const bound_transfer> transfers, const method& settings, const run_hooks& hooks = {},
                          std::span<const arrival> arrivals = {});

 private:
  struct state;
  std::unique_ptr<state> state_;
};

}  // namespace pl::bandwidth
