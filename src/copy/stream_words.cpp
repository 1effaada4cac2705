// SPDX-License-Identifier: Apache-2.0
#include "copy/stream_words.hpp"

#include <algorithm>
#include <array>
#include <map>
#include <mutex>
#include <utility>
#include <vector>

namespace pl::copy {

struct stream_words::page {
  std::pair<cu::context_t, unsigned long long> context;
  pinned_buffer memory;
  std::array<line, kLines> lines;
};

// Of this process, and never destroyed: streams may read the words until it ends.
struct stream_words::pool {
  std::mutex mutex;
  std::map<std::pair<cu::context_t, unsigned long long>, std::vector<std::unique_ptr<page>>> idle;
  std::vector<std::unique_ptr<page>> unsettled;
  static pool& instance() {
    static auto* const one = new pool;
    return *one;
  }
};

result<std::unique_ptr<stream_words>> stream_words::borrow(const gpu_context& context) {
  auto& all = pool::instance();
  const std::pair key{context.handle, context.id};
  {
    const std::lock_guard lock(all.mutex);
    if (auto& idle = all.idle[key]; !idle.empty()) {
      std::unique_ptr<stream_words> out(new stream_words(std::move(idle.back())));
      idle.pop_back();
      return out;
    }
  }
  auto made = pinned_buffer::make(context, kPageBytes);
  if (!made) return made.error();
  auto fresh = std::make_unique<page>();
  fresh->context = key;
  fresh->memory = *std::move(made);
  for (std::size_t i = 0; i < kLines; ++i) {
    line& one = fresh->lines[i];
    one.offset = i * kLineBytes;
    one.word = reinterpret_cast<std::uint32_t*>(fresh->memory.data() + one.offset);
    one.cuda_address = fresh->memory.device_address() + one.offset;
  }
  return std::unique_ptr<stream_words>(new stream_words(std::move(fresh)));
}

stream_words::stream_words(std::unique_ptr<page> mine) : page_(std::move(mine)) {}

stream_words::~stream_words() {
  const bool is_settled =
      std::all_of(page_->lines.begin(), page_->lines.end(), [](const line& one) { return one.value() == one.promised; });
  auto& all = pool::instance();
  const std::lock_guard lock(all.mutex);
  auto& home = is_settled ? all.idle[page_->context] : all.unsettled;
  home.push_back(std::move(page_));
}

std::byte* stream_words::data() const noexcept { return page_->memory.data(); }

stream_words::line* stream_words::take() noexcept { return taken_ < kLines ? &page_->lines[taken_++] : nullptr; }

}  // namespace pl::copy
