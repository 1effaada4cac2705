// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/buffers.hpp"

#include <sys/mman.h>

#include <algorithm>
#include <atomic>
#include <cstring>

#include "base/text.hpp"
#include "tools/common/tool.hpp"

namespace pl::p2p {
namespace {

class host_buffer : public message_buffer {
 public:
  explicit host_buffer(std::size_t size_bytes) : size_bytes_(std::max<std::size_t>(size_bytes, 1)) {
    data_ = mmap(nullptr, size_bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (data_ == MAP_FAILED)
      throw tools::tool_failure(format("cannot allocate %s of host memory", format_size(size_bytes_).c_str()));
  }
  ~host_buffer() override { munmap(data_, size_bytes_); }
  void* data() const override { return data_; }
  std::size_t size_bytes() const override { return size_bytes_; }
  memory_kind kind() const override { return memory_kind::host; }
  void fill(std::uint8_t value, std::size_t count) override { std::memset(data_, value, count); }
  void store(std::span<const std::uint8_t> bytes) override {
    if (!bytes.empty()) std::memcpy(data_, bytes.data(), bytes.size());
  }
  void load(std::span<std::uint8_t> bytes) const override {
    if (!bytes.empty()) std::memcpy(bytes.data(), data_, bytes.size());
  }

 private:
  std::size_t size_bytes_;
  void* data_ = nullptr;
};

}  // namespace

std::unique_ptr<message_buffer> allocate_host_buffer(std::size_t size_bytes) {
  return std::make_unique<host_buffer>(size_bytes);
}

void consume_on_host(const void* data, std::size_t size_bytes) {
  const auto* bytes = static_cast<const unsigned char*>(data);
  std::uint64_t sum = 0;
  std::size_t offset = 0;
  for (; offset + sizeof sum <= size_bytes; offset += sizeof sum) {
    std::uint64_t word;
    std::memcpy(&word, bytes + offset, sizeof word);
    sum += word;
  }
  for (; offset < size_bytes; ++offset) sum += bytes[offset];
  static std::atomic<std::uint64_t> sink;  // the compiler must not notice that the sum is never read
  sink.store(sum, std::memory_order_relaxed);
}

buffer_pool::buffer_pool(buffer_source& source, const buffer_plan& plan) : source_(source), plan_(plan) {
  const std::size_t sets = plan_.cold ? 1 : plan_.rotation;
  for (std::size_t i = 0; i < sets; ++i) sets_.push_back(make_set());
}

buffer_set buffer_pool::make_set() {
  buffer_set set;
  for (std::size_t slot = 0; slot < plan_.slots; ++slot) {
    set.send.push_back(source_.allocate(plan_.kind, plan_.size_bytes));
    set.receive.push_back(source_.allocate(plan_.kind, plan_.size_bytes));
    set.send.back()->fill('a', plan_.size_bytes);
    set.receive.back()->fill('b', plan_.size_bytes);
  }
  return set;
}

const buffer_set& buffer_pool::at_iteration(std::uint64_t iteration) {
  if (!plan_.cold) return sets_[iteration % sets_.size()];
  // The new memory before the old goes: else the same addresses might come back, which caches may know.
  sets_.front() = make_set();
  return sets_.front();
}

}  // namespace pl::p2p
