// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/group_mpi.hpp"

#include <dlfcn.h>
#include <poll.h>

#include <cerrno>
#include <list>

#include "base/text.hpp"
#include "tools/bandwidth/mpi_bridge.h"
#include "tools/common/gpu_choice.hpp"

namespace pl::bandwidth {
namespace {

constexpr const char* kLibrary = "libpeerlane_mpi.so";
// Rank 0 reports the failure and ends the job; another rank ends it only if rank 0 does not.
constexpr int kLeaveItToRank0Ms = 10'000;

struct bridge {
  decltype(&peerlane_mpi_init) init = nullptr;
  decltype(&peerlane_mpi_send) send = nullptr;
  decltype(&peerlane_mpi_probe) probe = nullptr;
  decltype(&peerlane_mpi_take) take = nullptr;
  decltype(&peerlane_mpi_finalize) finalize = nullptr;
  decltype(&peerlane_mpi_abort) abort = nullptr;
};

template <class F>
bool resolve(void* library, const char* name, F& out) {
  out = reinterpret_cast<F>(dlsym(library, name));
  return out != nullptr;
}

// Never closed: MPI keeps threads and handlers.
result<bridge> load_bridge() {
  // Global symbols: Open MPI loads its components as libraries that look for its symbols.
  void* library = dlopen((tools::program_folder() + "/" + kLibrary).c_str(), RTLD_NOW | RTLD_GLOBAL);
  if (library == nullptr) return failure{ENOENT, dlerror()};
  bridge all;
  const bool is_whole =
      resolve(library, "peerlane_mpi_init", all.init) && resolve(library, "peerlane_mpi_send", all.send) &&
      resolve(library, "peerlane_mpi_probe", all.probe) && resolve(library, "peerlane_mpi_take", all.take) &&
      resolve(library, "peerlane_mpi_finalize", all.finalize) && resolve(library, "peerlane_mpi_abort", all.abort);
  if (!is_whole) return failure{ENOENT, std::string(kLibrary) + " has another version than the program"};
  return all;
}

class mpi_channel final : public messaging::star_channel {
 public:
  mpi_channel(const bridge& mpi, const peerlane_mpi_world& world) : mpi_(mpi), world_(world) {}
  ~mpi_channel() override {
    if (is_abandoned_) end_job();
    else mpi_.finalize();
  }
  int rank() const override { return world_.rank; }
  int size() const override { return world_.size; }
  std::string library() const override { return std::string("MPI: ") + world_.library; }
  void abandon() override { is_abandoned_ = true; }

  status send(int peer, std::span<const std::byte> message, unsigned timeout_ms) override {
    // Kept for ever after a time-out, because MPI may still read it.
    const auto& kept = in_flight_.emplace_back(message.begin(), message.end());
    const int rc = mpi_.send(peer, kept.data(), kept.size(), timeout_ms);
    if (rc == PL_MPI_TIMEOUT) return failure{ETIMEDOUT, "nothing is taken"};
    in_flight_.pop_back();
    return rc == PL_MPI_OK ? status() : status(failure{ECONNRESET, "MPI cannot send"});
  }

  std::optional<messaging::channel_event> receive(unsigned timeout_ms) override {
    messaging::channel_event event;
    std::size_t count = 0;
    const int rc = mpi_.probe(&event.peer, &count, timeout_ms);
    if (rc == PL_MPI_TIMEOUT) return std::nullopt;
    if (rc == PL_MPI_OK) event.data.resize(count);
    if (rc == PL_MPI_OK && mpi_.take(event.peer, event.data.data(), count) == PL_MPI_OK) return event;
    if (event.peer < 0) event.peer = rank() == 0 ? 1 : 0;  // MPI does not say which
    event.is_lost = true;
    event.reason = "MPI cannot receive";
    return event;
  }

 private:
  void end_job() {
    if (world_.rank != 0) poll(nullptr, 0, kLeaveItToRank0Ms);
    mpi_.abort();
  }

  bridge mpi_;
  peerlane_mpi_world world_;
  std::list<std::vector<std::byte>> in_flight_;
  bool is_abandoned_ = false;
};

}  // namespace

result<std::unique_ptr<messaging::star_channel>> open_mpi(int expected_size) {
  auto mpi = load_bridge();
  if (!mpi) return mpi.error();
  peerlane_mpi_world world{};
  if (mpi->init(&world) != PL_MPI_OK) return failure{EPROTO, "MPI_Init failed"};
  if (world.size != expected_size) {
    mpi->finalize();
    return failure{EPROTO, format("%s sees %d ranks and the launcher has started %d: they are of different MPIs",
                                  world.library, world.size, expected_size)};
  }
  return std::unique_ptr<messaging::star_channel>(std::make_unique<mpi_channel>(*mpi, world));
}

}  // namespace pl::bandwidth
