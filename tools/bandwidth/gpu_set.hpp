// SPDX-License-Identifier: Apache-2.0
// Every visible GPU of this process: contexts, streams and kernels, made on first use.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "cuda/driver_table.hpp"

namespace pl::bandwidth {

// Used by one thread, except where said. Failures are values: a GPU that falls off the bus must not end the program.
class gpu_set {
 public:
  // CUDA must be chosen (gpu_choice.hpp) and initialised. Opens no context.
  static result<std::unique_ptr<gpu_set>> open(const cu::driver_table& cuda);
  ~gpu_set();
  gpu_set(const gpu_set&) = delete;
  gpu_set& operator=(const gpu_set&) = delete;

  const cu::driver_table& cuda() const { return cuda_; }
  bool simulated() const { return cuda_.is_simulated; }
  int count() const { return static_cast<int>(gpus_.size()); }

  const std::string& name(int gpu) const;
  const std::string& bus_id(int gpu) const;        // "0000:fe:00.0"
  std::string uuid(int gpu) const;                 // "GPU-9a6efb31-7320-ce3c-b72c-75d85b6d0cea"; empty if not known
  int attribute(int gpu, int attribute_id) const;  // 0 if the driver does not know it
  unsigned multiprocessors(int gpu) const;
  bool has_bulk_copies(int gpu) const;  // between global and shared memory: compute capability 9.0 and up
  // cuDeviceCanAccessPeer; true for gpu == peer.
  bool can_access(int gpu, int peer) const;

  // Makes the primary context of `gpu` current on the calling thread (any thread).
  status make_current(int gpu);
  // Peer access in this direction, once. EINVAL: not possible between the two.
  status enable_peer_access(int gpu, int peer);
  // Takes it back if it is on.
  status disable_peer_access(int gpu, int peer);
  // A kernel of kernels/bandwidth.cu for this GPU; ENOTSUP without GPU code in the build. The module is loaded on first use:
  // call this before a stream is gated (loading waits for the GPU).
  result<cu::function_t> kernel(int gpu, const char* name);

  // EIO etc. with the driver's words, unless `code` is success.
  status check(cu::result_t code, const std::string& description) const;

 private:
  struct device;
  explicit gpu_set(const cu::driver_table& cuda);
  const cu::driver_table& cuda_;
  std::vector<std::unique_ptr<device>> gpus_;
};

}  // namespace pl::bandwidth
