// SPDX-License-Identifier: Apache-2.0
// The device files of the simulated machine: its boards and CUDA's memory behind the resource manager's calls, exported as
// one table (rm/simulated_calls.hpp). They work without cuInit, as the real ones do.
#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>

#include "base/env.hpp"
#include "base/text.hpp"
#include "rm/simulated_calls.hpp"
#include "sim/api.hpp"
#include "sim/device.hpp"
#include "sim/identity.hpp"
#include "sim/object.hpp"
#include "sim/resource_manager.hpp"
#include "sim/settings.hpp"

namespace pl::sim {
namespace {

// CUDA's memory object, which lives as long as a share of it.
class shared_object final : public channel_memory {
 public:
  explicit shared_object(object_ref shared)
      : channel_memory(shared->view(), shared->bytes(), shared->fd()), shared_(std::move(shared)) {}

 private:
  object_ref shared_;
};

channel_memory_ref share(object_ref shared, unsigned& board) {
  const device* const owner = shared != nullptr ? find_device(shared->device_ordinal()) : nullptr;
  if (owner == nullptr) return nullptr;
  board = static_cast<unsigned>(owner->physical);
  return std::make_shared<shared_object>(std::move(shared));
}

bool has_cuda() { return check_initialized() != code::not_initialized; }

class simulated_machine final : public machine {
 public:
  // All of them: CUDA_VISIBLE_DEVICES is CUDA's business.
  std::vector<board_address> boards() override {
    std::vector<board_address> out;
    for (unsigned slot = 0; slot < read_board_count(); ++slot) out.push_back({kBoardBus, slot});
    return out;
  }

  // It counts against the device's memory where CUDA sees the device.
  channel_memory_ref make_memory(unsigned board, std::uint64_t size_bytes) override {
    if (has_cuda())
      for (auto& gpu : devices()) {
        if (gpu.physical != static_cast<int>(board)) continue;
        result_t reason = code::success;
        auto made = object::create(gpu, size_bytes, reason);
        return made != nullptr ? std::make_shared<shared_object>(std::move(made)) : nullptr;
      }
    return make_anonymous_memory(size_bytes, board);
  }

  channel_memory_ref find_memory(rm::handle client, rm::handle handle, unsigned& board) override {
    return has_cuda() ? share(find_object(client, handle), board) : nullptr;
  }

  channel_memory_ref import_memory(int fd, unsigned& board) override {
    struct stat info {};
    const device* const owner = has_cuda() ? device_of_descriptor(fd) : nullptr;
    if (owner == nullptr) return adopt_memory(fd, board);  // CUDA is not there, or does not see the board
    if (fstat(fd, &info) != 0) return nullptr;
    const int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);
    if (own < 0) return nullptr;
    return share(object::adopt(own, static_cast<std::size_t>(info.st_size), owner->ordinal), board);
  }

  bool is_linked(unsigned, unsigned) override { return env_read("PEERLANE_SIM_MODE").text != "no_peers"; }

  // PEERLANE_SIM_SEED, which may change while the program runs.
  random_source make_random() override {
    return [](std::uint64_t limit) { return seed() != 0 ? random_below(limit) : 0; };
  }
};

// PEERLANE_SIM_MODE
resource_manager::options read_options() {
  const std::string mode = env_read("PEERLANE_SIM_MODE").text;
  resource_manager::options out;
  out.version = kKernelDriverVersion;
  out.mig_mode = mode == "mig" ? rm::kMigEnabled : 0;
  out.is_confidential = mode == "confidential";
  return out;
}

resource_manager& manager() {
  static auto* const instance =
      new std::shared_ptr<resource_manager>(resource_manager::make(std::make_shared<simulated_machine>(), read_options()));
  return **instance;
}

ssize_t read_driver_text(const char* path, char* out, std::size_t room) {
  std::string text;
  if (std::strcmp(path, "/sys/module/nvidia/version") == 0) text = format("%s\n", kKernelDriverVersion);
  else if (std::strcmp(path, "/proc/driver/nvidia/version") == 0)
    text = format("NVRM version: %s  %s  Release Build\n", kBoardName, kKernelDriverVersion);
  if (text.empty()) return errno = std::strstr(path, "nvidia") != nullptr ? ENOENT : EXDEV, -1;
  text.copy(out, room);
  return static_cast<ssize_t>(text.size());
}

}  // namespace

PL_SIM_EXPORT unsigned long long peerlaneSimLastTimeslice() { return manager().last_timeslice_us(); }
PL_SIM_EXPORT void peerlaneSimRefuseTimeslices(int is_on) { manager().refuse_timeslices(is_on != 0); }
PL_SIM_EXPORT void peerlaneSimLoseGpus(int is_lost) { manager().lose_gpus(is_lost != 0); }

PL_SIM_EXPORT const rm::simulated_calls* peerlaneSimSystemCalls() {
  static constexpr rm::simulated_calls kCalls = {
      rm::simulated_calls::kVersion,
      [](const char* path, int flags) { return manager().open(path, flags); },
      [](int fd) { return manager().close(fd); },
      [](int fd, unsigned long request, void* argument) { return manager().ioctl(fd, request, argument); },
      [](void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) {
        return manager().mmap(address, size_bytes, protection, flags, fd, offset);
      },
      [](void* address, std::size_t size_bytes) { return ::munmap(address, size_bytes); },
      [](void* address, std::size_t size_bytes, int advice) { return ::madvise(address, size_bytes, advice); },
      [](int fd) { manager().clear_event(fd); },
      read_driver_text,
  };
  return &kCalls;
}

}  // namespace pl::sim
