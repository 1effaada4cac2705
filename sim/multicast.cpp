// SPDX-License-Identifier: Apache-2.0
#include "sim/multicast.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#include <bit>
#include <cstring>
#include <new>

#include "base/file_limit.hpp"
#include "base/text.hpp"
#include "sim/device.hpp"

namespace pl::sim {

namespace {

constexpr char kName[] = "peerlane-team";
constexpr unsigned kMaxBindings = 64;

enum binding_state : std::uint32_t { unused = 0, changing = 1, bound = 2 };

struct binding {
  std::atomic<std::uint32_t> state;
  std::int32_t board;
  std::int32_t fd;  // of the memory, in that process
  std::int32_t pid;
  std::uint64_t inode;
  std::uint64_t team_offset, memory_offset, bytes, memory_bytes;
};

bool overlap(const binding& one, std::size_t offset, std::size_t bytes) {
  return one.team_offset < offset + bytes && offset < one.team_offset + one.bytes;
}

bool is_aligned(std::size_t value) { return value % kGpuPageBytes == 0; }

// The teams of this process by inode. A handle imported where the team is known already stands for the same object, so that
// what is bound stays bound until the last handle and mapping go, as on a real machine.
struct registry {
  std::mutex mutex;
  std::map<std::uint64_t, std::weak_ptr<multicast_team>> known;
};

registry& teams() {
  static auto* const instance = new registry;
  return *instance;
}

std::uint64_t inode_of(int fd) {
  struct stat info {};
  return fstat(fd, &info) == 0 ? info.st_ino : 0;
}

// The memory of another process; null when it has gone.
object_ref open_elsewhere(const binding& one) {
  const int fd = open(format("/proc/%d/fd/%d", one.pid, one.fd).c_str(), O_RDWR | O_CLOEXEC);
  struct stat info {};
  if (fd < 0) return nullptr;
  if (fstat(fd, &info) == 0 && info.st_ino == one.inode) return object::adopt(fd, one.memory_bytes, 0);
  close(fd);
  return nullptr;
}

}  // namespace

struct shared_team {
  std::uint32_t devices;
  std::int32_t handle_types;
  std::uint64_t bytes;
  std::atomic<std::uint32_t> boards;   // a bit for each that was added
  std::atomic<std::uint32_t> changes;  // grows with every bind and unbind
  binding bindings[kMaxBindings];      // zeroed memory: all unused
};

std::shared_ptr<multicast_team> multicast_team::create(const multicast_prop& prop) {
  const int fd = memfd_create(kName, MFD_CLOEXEC);
  void* table = MAP_FAILED;
  const file_limit_as_error during_growth;
  if (fd >= 0 && ftruncate(fd, sizeof(shared_team)) == 0)
    table = mmap(nullptr, sizeof(shared_team), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (table == MAP_FAILED) {
    if (fd >= 0) close(fd);
    return nullptr;
  }
  auto* const team = new (table) shared_team;
  team->devices = prop.devices;
  team->handle_types = static_cast<int>(prop.handle_types);
  team->bytes = prop.bytes;
  std::shared_ptr<multicast_team> made(new multicast_team(fd, team));
  const std::lock_guard lock(teams().mutex);
  teams().known[inode_of(fd)] = made;
  return made;
}

std::shared_ptr<multicast_team> multicast_team::adopt(int fd) {
  char name[64] = {};
  if (readlink(format("/proc/self/fd/%d", fd).c_str(), name, sizeof name - 1) < 0) return nullptr;
  if (std::strncmp(name, "/memfd:peerlane-team", std::strlen("/memfd:peerlane-team")) != 0) return nullptr;
  const std::lock_guard lock(teams().mutex);
  auto& place = teams().known[inode_of(fd)];
  if (auto known = place.lock()) {
    close(fd);
    return known;
  }
  void* table = mmap(nullptr, sizeof(shared_team), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (table == MAP_FAILED) return nullptr;
  std::shared_ptr<multicast_team> made(new multicast_team(fd, static_cast<shared_team*>(table)));
  place = made;
  return made;
}

multicast_team::~multicast_team() {
  for (const auto& [place, memory] : own_) table_->bindings[place].state.store(unused);
  if (!own_.empty()) ++table_->changes;
  munmap(table_, sizeof(shared_team));
  close(fd_);
}

int multicast_team::reopen() const { return open(format("/proc/self/fd/%d", fd_).c_str(), O_RDWR | O_CLOEXEC); }
std::size_t multicast_team::bytes() const { return table_->bytes; }
int multicast_team::handle_types() const { return table_->handle_types; }

bool multicast_team::is_complete() const {
  return static_cast<unsigned>(std::popcount(table_->boards.load())) == table_->devices;
}

result_t multicast_team::add(const device& member) {
  const std::uint32_t bit = 1u << member.physical;
  std::uint32_t boards = table_->boards.load();
  do {
    if ((boards & bit) != 0 || static_cast<unsigned>(std::popcount(boards)) >= table_->devices) return code::invalid_value;
  } while (!table_->boards.compare_exchange_weak(boards, boards | bit));
  return code::success;
}

result_t multicast_team::bind(std::size_t offset, const physical_memory& memory, std::size_t memory_offset,
                              std::size_t bytes) {
  const device* gpu = memory.memory != nullptr ? find_device(memory.prop.location.id) : nullptr;
  struct stat info {};
  if (gpu == nullptr || bytes == 0 || !is_aligned(offset) || !is_aligned(memory_offset) || !is_aligned(bytes))
    return code::invalid_value;
  if (memory_offset + bytes > memory.memory->bytes() || offset + bytes > table_->bytes) return code::invalid_value;
  if ((table_->boards.load() & 1u << gpu->physical) == 0) return code::invalid_device;
  if (handle_types() != 0 && memory.prop.requested_handle_types == 0) return code::invalid_value;
  if (!is_complete()) return code::illegal_state;
  if (fstat(memory.memory->fd(), &info) != 0) return code::operating_system;
  for (const binding& one : table_->bindings)
    if (one.state.load() == bound && one.board == gpu->physical && overlap(one, offset, bytes)) return code::invalid_value;
  for (unsigned place = 0; place < kMaxBindings; ++place) {
    binding& one = table_->bindings[place];
    std::uint32_t expected = unused;
    if (!one.state.compare_exchange_strong(expected, changing)) continue;
    one.board = gpu->physical;
    one.fd = memory.memory->fd();
    one.pid = getpid();
    one.inode = info.st_ino;
    one.team_offset = offset;
    one.memory_offset = memory_offset;
    one.bytes = bytes;
    one.memory_bytes = memory.memory->bytes();
    {
      const std::lock_guard lock(mutex_);
      own_[place] = memory.memory;
    }
    one.state.store(bound);
    ++table_->changes;
    return code::success;
  }
  return code::out_of_memory;
}

result_t multicast_team::unbind(const device& member, std::size_t offset, std::size_t bytes) {
  for (unsigned place = 0; place < kMaxBindings; ++place) {
    binding& one = table_->bindings[place];
    if (one.state.load() != bound || one.board != member.physical || one.team_offset != offset || one.bytes != bytes)
      continue;
    std::uint32_t expected = bound;
    if (!one.state.compare_exchange_strong(expected, unused)) continue;
    ++table_->changes;
    const std::lock_guard lock(mutex_);
    own_.erase(place);
    return code::success;
  }
  return code::invalid_value;
}

void multicast_team::refresh_locked() {
  const std::uint32_t changes = table_->changes.load();
  if (changes == seen_changes_) return;
  seen_changes_ = changes;
  views_.clear();
  for (unsigned place = 0; place < kMaxBindings; ++place) {
    const binding& one = table_->bindings[place];
    if (one.state.load() != bound) continue;
    const auto mine = own_.find(place);
    object_ref memory = mine != own_.end() ? mine->second : open_elsewhere(one);
    if (memory == nullptr) continue;
    std::byte* const data = memory->view() + one.memory_offset;
    views_.push_back({one.team_offset, one.bytes, data, std::move(memory)});
  }
}

unsigned multicast_team::replicas(std::size_t offset, std::size_t bytes, void** out) {
  const std::lock_guard lock(mutex_);
  refresh_locked();
  unsigned count = 0;
  for (const view& one : views_)
    if (offset >= one.offset && offset + bytes <= one.offset + one.bytes && count < sim_abi::max_multicast_devices)
      out[count++] = one.data + (offset - one.offset);
  return count == table_->devices ? count : 0;
}

// ---- The driver's calls ----------------------------------------------------------------------------------------------

namespace {

result_t check_prop(const multicast_prop* prop) {
  if (prop == nullptr || prop->flags != 0 || prop->bytes == 0) return code::invalid_value;
  if (!has_multicast()) return code::not_supported;
  if (prop->devices == 0 || prop->devices > sim_abi::max_multicast_devices) return code::invalid_value;
  const unsigned long long known = handle_type::posix_fd | (fabric_handles() != fabric_mode::off ? handle_type::fabric : 0);
  return (prop->handle_types & ~known) == 0 ? code::success : code::invalid_value;
}

std::shared_ptr<multicast_team> find_team(physical_t handle) {
  const auto found = find_physical(handle);
  return found != nullptr ? found->team : nullptr;
}

}  // namespace

PL_SIM_API cuMulticastGetGranularity(std::size_t* bytes, const multicast_prop* prop, int option) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (bytes == nullptr || (option != granularity::minimum && option != granularity::recommended)) return code::invalid_value;
  if (const auto rc = check_prop(prop); rc != code::success) return rc;
  *bytes = kGpuPageBytes;
  return code::success;
}

PL_SIM_API cuMulticastCreate(physical_t* out, const multicast_prop* prop) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (const auto rc = injected_failure("cuMulticastCreate"); rc != code::success) return rc;
  if (out == nullptr) return code::invalid_value;
  if (const auto rc = check_prop(prop); rc != code::success) return rc;
  if (!is_aligned(prop->bytes)) return code::invalid_value;
  if ((prop->handle_types & handle_type::fabric) != 0 && fabric_handles() == fabric_mode::no_imex)
    return code::not_permitted;
  auto made = std::make_shared<physical_memory>();
  made->team = multicast_team::create(*prop);
  if (made->team == nullptr) return code::out_of_memory;
  *out = hand_out(made);
  return code::success;
}

PL_SIM_API cuMulticastAddDevice(physical_t handle, device_t ordinal) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto team = find_team(handle);
  const device* member = find_device(ordinal);
  if (team == nullptr) return code::invalid_value;
  return member == nullptr ? static_cast<result_t>(code::invalid_device) : team->add(*member);
}

PL_SIM_API cuMulticastBindMem(physical_t handle, std::size_t offset, physical_t memory, std::size_t memory_offset,
                              std::size_t bytes, unsigned long long flags) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (const auto rc = injected_failure("cuMulticastBindMem"); rc != code::success) return rc;
  const auto team = find_team(handle);
  const auto piece = find_physical(memory);
  if (team == nullptr || piece == nullptr || flags != 0) return code::invalid_value;
  return team->bind(offset, *piece, memory_offset, bytes);
}

PL_SIM_API cuMulticastUnbind(physical_t handle, device_t ordinal, std::size_t offset, std::size_t bytes) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  const auto team = find_team(handle);
  const device* member = find_device(ordinal);
  if (team == nullptr) return code::invalid_value;
  return member == nullptr ? static_cast<result_t>(code::invalid_device) : team->unbind(*member, offset, bytes);
}

}  // namespace pl::sim
