// SPDX-License-Identifier: Apache-2.0
#include "test/dma/fake_engine.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <random>
#include <utility>

namespace pl::test {
namespace {

constexpr std::uint32_t kCannotPin = 0x1e;

class small_machine final : public sim::machine {
 public:
  explicit small_machine(const fake_engine::options& wanted)
      : seed_(wanted.seed), gpus_(wanted.gpus), has_links_(wanted.has_links) {}
  std::vector<sim::board_address> boards() override {
    std::vector<sim::board_address> out;
    for (unsigned slot = 0; slot < gpus_; ++slot) out.push_back({6, slot});
    return out;
  }
  bool is_linked(unsigned, unsigned) override { return has_links_; }
  sim::random_source make_random() override {
    if (seed_ == 0) return machine::make_random();
    return [numbers = std::mt19937_64(seed_++)](std::uint64_t limit) mutable { return numbers() % limit; };
  }

 private:
  std::uint64_t seed_;
  const unsigned gpus_;
  const bool has_links_;
};

}  // namespace

fake_engine::fake_engine(options given)
    : options_(std::move(given)),
      manager_(sim::resource_manager::make(
          std::make_shared<small_machine>(options_),
          {options_.version, options_.is_deaf, options_.mig_mode, options_.is_confidential, options_.knows_restrictions})) {}

int fake_engine::ioctl(int fd, unsigned long request, void* argument) {
  if (calls_++ == options_.failing_call) return errno = EIO, -1;
  const unsigned number = request & 0xff;
  if (number == rm::esc_alloc_memory && options_.pins_nothing)
    return static_cast<rm::host_memory_params*>(argument)->status = kCannotPin, 0;
  if (number == rm::esc_alloc && static_cast<rm::alloc_params*>(argument)->object_class == rm::kChannelClasses[2])
    if (const rm::handle object = error_object_.exchange(0))
      reinterpret_cast<rm::channel_params*>(static_cast<rm::alloc_params*>(argument)->params)->error_object = object;
  return manager_->ioctl(fd, request, argument);
}

int fake_engine::munmap(void* address, std::size_t size_bytes) { return ::munmap(address, size_bytes); }
int fake_engine::madvise(void* address, std::size_t size_bytes, int advice) {
  return ::madvise(address, size_bytes, advice);
}

}  // namespace pl::test
