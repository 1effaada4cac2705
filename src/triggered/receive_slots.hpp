// SPDX-License-Identifier: Apache-2.0
// This process's windows as the service thread writes them: through CPU mappings made beforehand, because it makes no CUDA
// call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "copy/gpu_context.hpp"
#include "copy/mapping_cache.hpp"

namespace pl::stream {

class landing {
 public:
  explicit landing(const copy::gpu_context& context) : context_(context) {}
  ~landing();
  landing(const landing&) = delete;
  landing& operator=(const landing&) = delete;

  // Application's threads; they map memory, which are CUDA calls. Mapping begins with need(): a process without proxy
  // channels does not spend BAR space. A window that cannot be mapped is kept with the reason.
  void add(std::uint32_t window, cu::device_ptr memory, std::uint64_t bytes);
  void remove(std::uint32_t window);  // after it, nothing is stored there any more
  void need();

  // Any thread, no CUDA call. Stores the bytes; they are visible to the GPU before a later word_pool::store.
  // EPROTO: no such window, or bytes outside it; nothing was written. ENOTSUP: it could not be mapped.
  status store(std::uint32_t window, std::uint64_t offset, const void* data, std::uint64_t bytes);

 private:
  struct place {
    cu::device_ptr memory = 0;
    std::uint64_t bytes = 0;
    bool is_tried = false;
    std::string why_not;
    std::vector<copy::mapping_cache::hold> pieces;  // kPieceBytes each, the last one less
  };
  void map(std::uint32_t window, cu::device_ptr memory, std::uint64_t bytes);

  copy::gpu_context context_;
  std::mutex changing_;  // held while mapping; store() never takes it
  bool is_needed_ = false;
  std::unique_ptr<copy::mapping_cache> cache_;
  std::mutex mutex_;  // of places_; never held over a CUDA call
  std::map<std::uint32_t, place> places_;
};

}  // namespace pl::stream
