// SPDX-License-Identifier: Apache-2.0
// The windows of this process, as the proxy thread writes them: through CPU mappings that are made beforehand, because the
// proxy thread makes no CUDA call.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <vector>

#include "copy/gpu_context.hpp"
#include "copy/mapping_cache.hpp"
#include "triggered/receive_engine.hpp"

namespace pl::triggered {

class receive_slots {
 public:
  explicit receive_slots(const copy::gpu_context& context) : context_(context) {}
  ~receive_slots();
  receive_slots(const receive_slots&) = delete;
  receive_slots& operator=(const receive_slots&) = delete;

  // Called on the application's threads, because mapping memory makes CUDA calls. Mapping begins with need(): a process
  // without proxy channels does not use BAR space. A window that cannot be mapped is kept with the reason.
  void add(std::uint32_t window, cu::device_ptr memory, std::uint64_t bytes);
  void remove(std::uint32_t window);  // nothing is stored there afterwards
  void need();

  // Any thread, no CUDA call. Stores the bytes; they are visible to the GPU before a later word_pool::store.
  // EPROTO: no such window, or bytes outside it; nothing was written. ENOTSUP: it could not be mapped.
  status store(std::uint32_t window, std::uint64_t offset, const void* data, std::uint64_t bytes);
  // Makes the same checks, for bytes that another method stores.
  status check(std::uint32_t window, std::uint64_t offset, std::uint64_t bytes);

  // The engine for large pieces, which need() opens. Null: there is none; see why_no_engine().
  receive_engine* engine() const noexcept { return engine_.get(); }
  const std::string& why_no_engine() const noexcept { return why_no_engine_; }

 private:
  struct place {
    cu::device_ptr memory = 0;
    std::uint64_t bytes = 0;
    bool is_tried = false;
    std::string why_not;
    std::vector<copy::mapping_cache::hold> pieces;  // kPieceBytes each, the last one less
  };
  status check_locked(std::uint32_t window, std::uint64_t offset, std::uint64_t bytes);
  void map(std::uint32_t window, cu::device_ptr memory, std::uint64_t bytes);

  copy::gpu_context context_;
  std::mutex changing_;  // held while mapping; store() never takes it
  bool is_needed_ = false;
  std::unique_ptr<receive_engine> engine_;  // opened before the first channel
  std::string why_no_engine_ = "no channel needs it";
  std::unique_ptr<copy::mapping_cache> cache_;
  std::mutex mutex_;  // of places_; never held over a CUDA call
  std::map<std::uint32_t, place> places_;
};

}  // namespace pl::triggered
