// SPDX-License-Identifier: Apache-2.0
#include "test/dma/fake_engine.hpp"

#include <fcntl.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <cstdio>
#include <cstring>

#include "dma/commands.hpp"

namespace pl::test {
namespace {

constexpr std::uint32_t kObjectNotFound = 0x57, kInUse = 0x17, kBadArgument = 0x1f, kBadParams = 0x3d;
constexpr std::uint32_t kChannelClass = 0xc86f, kCopyClass = 0xc8b5, kDoorbellClass = 0xc661;
constexpr rm::handle kRoot = 0xc1d00001;

int fail_with(int code) {
  errno = code;
  return -1;
}

std::byte* fresh_memory(std::size_t size_bytes) {
  return static_cast<std::byte*>(::mmap(nullptr, size_bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
}

}  // namespace

fake_engine::~fake_engine() {
  is_over_ = true;
  if (engine_.joinable()) engine_.join();
  while (!objects_.empty()) forget(objects_.begin());
  if (doorbell_page_ != nullptr) ::munmap(doorbell_page_, rm::kDoorbellBytes);
}

int fake_engine::live_objects() const {
  const std::lock_guard hold(mutex_);
  return static_cast<int>(objects_.size());
}

int fake_engine::live_maps() const {
  const std::lock_guard hold(mutex_);
  return static_cast<int>(maps_.size());
}

// ---- Calls
// ----------------------------------------------------------------------------------------------------------------

int fake_engine::open(const char* path, int) {
  const std::lock_guard hold(mutex_);
  const bool is_device = std::strcmp(path, "/dev/nvidia0") == 0;
  if (!is_device && std::strcmp(path, "/dev/nvidiactl") != 0) return fail_with(ENOENT);
  const int fd = ::open("/dev/null", O_RDWR | O_CLOEXEC);
  if (fd >= 0) nodes_[fd].is_device = is_device;
  return fd;
}

int fake_engine::close(int fd) {
  const std::lock_guard hold(mutex_);
  nodes_.erase(fd);
  return ::close(fd);
}

int fake_engine::ioctl(int fd, unsigned long request, void* argument) {
  const std::lock_guard hold(mutex_);
  if (calls_++ == options_.failing_call) return fail_with(EIO);
  const auto found = nodes_.find(fd);
  if (found == nodes_.end()) return fail_with(ENOTTY);
  const unsigned number = request & 0xff;
  const std::size_t bytes = (request >> 16) & 0x3fff;
  const rm::channel_layout* layout = rm::channel_layout_of(options_.version);
  if (found->second.is_device) {
    if (number == rm::esc_register_fd) return found->second.is_registered = true, 0;
    if (number != rm::esc_alloc_memory || bytes != sizeof(rm::host_memory_params) || !found->second.is_registered) {
      ++protocol_errors_;
      return fail_with(EINVAL);
    }
    auto& params = *static_cast<rm::host_memory_params*>(argument);
    params.status = alloc_host(params);
    return 0;
  }
  switch (number) {
    case rm::esc_alloc: {
      auto& params = *static_cast<rm::alloc_params*>(argument);
      if (params.object_class == rm::class_root_client) return params.object = kRoot, params.status = 0, 0;
      params.status = alloc(params);
      return 0;
    }
    case rm::esc_control: {
      auto& params = *static_cast<rm::control_params*>(argument);
      params.status = control(params);
      return 0;
    }
    case rm::esc_free: {
      auto& params = *static_cast<rm::free_params*>(argument);
      if (params.object != kRoot) free(params.object);
      else
        while (!objects_.empty()) forget(objects_.begin());
      params.status = 0;
      return 0;
    }
    case rm::esc_map_memory: {
      auto& params = *static_cast<rm::map_params*>(argument);
      params.status = map_cpu(params);
      return 0;
    }
    case rm::esc_unmap_memory:
      static_cast<rm::unmap_params*>(argument)->status = 0;
      return 0;
    case rm::esc_map_memory_dma: {
      if (layout == nullptr || bytes != layout->map_dma_bytes) return ++protocol_errors_, fail_with(EINVAL);
      const std::uint32_t status = map_dma(static_cast<std::byte*>(argument), bytes);
      std::memcpy(static_cast<std::byte*>(argument) + layout->map_dma_status, &status, sizeof status);
      return 0;
    }
    case rm::esc_unmap_memory_dma: {
      if (layout == nullptr || bytes != layout->unmap_dma_bytes) return ++protocol_errors_, fail_with(EINVAL);
      if (maps_.erase(static_cast<rm::unmap_dma_head*>(argument)->address) == 0) ++protocol_errors_;
      return 0;
    }
    case rm::esc_card_info: {
      auto* card = static_cast<rm::card_info*>(argument);
      *card = {};
      card->valid = 1;
      card->bus = 6;
      card->gpu_id = 0x100;
      return 0;
    }
    default:
      ++protocol_errors_;
      return fail_with(EINVAL);
  }
}

std::uint32_t fake_engine::alloc(const rm::alloc_params& params) {
  if (objects_.count(params.object) != 0) return kInUse;
  const rm::channel_layout* layout = rm::channel_layout_of(options_.version);
  const auto needs = [&](std::uint32_t bytes) {
    return params.params_bytes == bytes ? 0u : (++protocol_errors_, kBadParams);
  };
  object made;
  made.parent = params.parent;
  made.object_class = params.object_class;
  std::uint32_t status = rm::status_ok;
  switch (params.object_class) {
    case rm::class_device:
    case rm::class_subdevice:
      break;
    case rm::class_address_space:
      status = needs(layout->address_space_bytes);
      break;
    case rm::class_virtual_memory:
      status = needs(sizeof(rm::virtual_memory_params));
      break;
    case rm::class_channel_group:
      status = needs(sizeof(rm::channel_group_params));
      break;
    case kCopyClass:
      status = needs(sizeof(rm::copy_object_params));
      break;
    case kDoorbellClass:
      if (doorbell_page_ == nullptr) {
        doorbell_page_ = fresh_memory(rm::kDoorbellBytes);
        engine_ = std::thread([this] { run(); });
      }
      break;
    case rm::class_device_memory: {
      if (status = needs(layout->device_memory_bytes); status != 0) return status;
      made.size_bytes = reinterpret_cast<const rm::device_memory_params*>(params.params)->size_bytes;
      made.bytes = fresh_memory(made.size_bytes);
      break;
    }
    case kChannelClass:
      if (status = needs(layout->channel_bytes); status == 0) status = alloc_channel(params, made);
      break;
    default:
      return kBadArgument;
  }
  if (status == rm::status_ok) objects_[params.object] = std::move(made);
  return status;
}

std::uint32_t fake_engine::alloc_channel(const rm::alloc_params& params, object& made) {
  const auto& wanted = *reinterpret_cast<const rm::channel_params*>(params.params);
  const auto memory = objects_.find(wanted.user_words_memory[0]);
  const auto group = objects_.find(params.parent);
  if (group == objects_.end() || group->second.object_class != rm::class_channel_group) return kBadArgument;
  if (memory == objects_.end() || memory->second.bytes == nullptr) return kObjectNotFound;
  made.channel = std::make_shared<channel_state>();
  made.channel->ring_address = wanted.ring_address;
  made.channel->ring_entries = wanted.ring_entries;
  made.channel->user_words = memory->second.bytes + wanted.user_words_offset[0];
  made.channel->token = next_token_++;
  return rm::status_ok;
}

std::uint32_t fake_engine::alloc_host(rm::host_memory_params& params) {
  if (options_.pins_nothing) return 0x1e;
  if (objects_.count(params.object) != 0) return kInUse;
  object made;
  made.parent = params.parent;
  made.object_class = rm::class_host_memory;
  made.bytes = reinterpret_cast<std::byte*>(params.address);
  made.size_bytes = params.limit + 1;
  objects_[params.object] = std::move(made);
  return rm::status_ok;
}

std::uint32_t fake_engine::control(const rm::control_params& params) {
  const rm::channel_layout* layout = rm::channel_layout_of(options_.version);
  switch (params.command) {
    case rm::ctrl_gpu_id_info_v2:
      reinterpret_cast<rm::gpu_id_info_params*>(params.params)->device_instance = 0;
      return rm::status_ok;
    case rm::ctrl_class_list: {
      if (params.params_bytes != 4 + 4 * layout->class_room) return ++protocol_errors_, kBadParams;
      auto& list = *reinterpret_cast<rm::class_list_params*>(params.params);
      constexpr std::uint32_t kClasses[] = {0x90f1,     0xc36f, 0xc56f,         kChannelClass,
                                            kCopyClass, 0xc7b5, kDoorbellClass, 0xc561};
      list.count = std::size(kClasses);
      std::copy(std::begin(kClasses), std::end(kClasses), list.classes);
      return rm::status_ok;
    }
    case rm::ctrl_copy_engine_caps: {
      auto& caps = *reinterpret_cast<rm::copy_engine_caps_params*>(params.params);
      const std::uint32_t engine = caps.engine - rm::kEngineCopy0;
      if (engine > 2) return rm::status_not_supported;
      caps.caps[0] = engine < 2 ? rm::kCopyEngineShared : 0;
      return rm::status_ok;
    }
    case rm::ctrl_group_schedule:
      return params.params_bytes == layout->schedule_bytes ? rm::status_ok : (++protocol_errors_, kBadParams);
    case rm::ctrl_work_submit_token: {
      const auto found = objects_.find(params.object);
      if (found == objects_.end() || !found->second.channel) return kObjectNotFound;
      *reinterpret_cast<std::uint32_t*>(params.params) = found->second.channel->token;
      return rm::status_ok;
    }
    default:
      return rm::status_not_supported;
  }
}

std::uint32_t fake_engine::map_dma(std::byte* block, std::size_t) {
  rm::map_dma_head head;
  std::memcpy(&head, block, sizeof head);
  const auto memory = objects_.find(head.memory);
  if (memory == objects_.end() || memory->second.bytes == nullptr) return kObjectNotFound;
  const bool is_host = memory->second.object_class == rm::class_host_memory;
  if (is_host != ((head.flags & rm::kMapSnooped) != 0)) ++protocol_errors_;
  if (head.offset + head.length > memory->second.size_bytes) return rm::status_invalid_limit;
  const std::uint64_t address = next_address_;
  next_address_ += (head.length + (1 << 21)) >> 21 << 21;  // a hole behind each
  maps_[address] = {memory->second.bytes + head.offset, head.length, head.memory};
  std::memcpy(block + rm::channel_layout_of(options_.version)->map_dma_address, &address, sizeof address);
  return rm::status_ok;
}

std::uint32_t fake_engine::map_cpu(rm::map_params& params) {
  const auto opened = nodes_.find(params.fd);
  const auto memory = objects_.find(params.memory);
  if (opened == nodes_.end() || !opened->second.is_registered || memory == objects_.end())
    return ++protocol_errors_, kBadArgument;
  opened->second.pending =
      memory->second.object_class == kDoorbellClass ? doorbell_page_ : memory->second.bytes + params.offset;
  params.linear_address = next_linear_++;
  return rm::status_ok;
}

void fake_engine::free(rm::handle handle) {
  const auto found = objects_.find(handle);
  if (found == objects_.end()) {
    ++protocol_errors_;
    return;
  }
  std::vector<rm::handle> children;
  for (const auto& [child, one] : objects_)
    if (one.parent == handle) children.push_back(child);
  for (const rm::handle child : children) free(child);
  forget(objects_.find(handle));
}

void fake_engine::forget(std::map<rm::handle, object>::iterator found) {
  if (found->second.object_class == rm::class_device_memory) ::munmap(found->second.bytes, found->second.size_bytes);
  for (const auto& [address, one] : maps_)
    if (one.memory == found->first) ++protocol_errors_;  // freed while it is mapped
  objects_.erase(found);
}

void* fake_engine::mmap(void* address, std::size_t size_bytes, int protection, int flags, int fd, off_t offset) {
  {
    const std::lock_guard hold(mutex_);
    if (const auto found = nodes_.find(fd); found != nodes_.end()) {
      std::byte* const shown = std::exchange(found->second.pending, nullptr);
      return shown != nullptr ? shown : (errno = EINVAL, MAP_FAILED);
    }
  }
  return ::mmap(address, size_bytes, protection, flags, fd, offset);
}

int fake_engine::munmap(void* address, std::size_t size_bytes) {
  const std::lock_guard hold(mutex_);
  const auto* const begin = static_cast<std::byte*>(address);
  if (begin == doorbell_page_) return 0;
  for (const auto& [handle, one] : objects_)
    if (one.object_class == rm::class_device_memory && begin >= one.bytes && begin < one.bytes + one.size_bytes) return 0;
  return ::munmap(address, size_bytes);
}
int fake_engine::madvise(void* address, std::size_t size_bytes, int advice) {
  return ::madvise(address, size_bytes, advice);
}
result<std::string> fake_engine::read_text(const char* path) { return failure{ENOENT, path}; }

// ---- The engine
// -----------------------------------------------------------------------------------------------------------

void fake_engine::run() {
  while (!is_over_) {
    bool has_worked = false;
    {
      const std::lock_guard hold(mutex_);
      std::uint32_t rung = 0;
      if (!options_.is_deaf)
        rung =
            __atomic_exchange_n(reinterpret_cast<std::uint32_t*>(doorbell_page_ + rm::kDoorbellOffset), 0, __ATOMIC_ACQ_REL);
      for (auto& [handle, one] : objects_) {
        if (!one.channel || one.channel->is_dead) continue;
        if (rung == one.channel->token && !fetch(*one.channel)) one.channel->is_dead = true;
        has_worked |= step(*one.channel);
      }
    }
    if (!has_worked) std::this_thread::yield();
  }
}

std::byte* fake_engine::at_address(std::uint64_t address, std::uint64_t size_bytes) {
  auto found = maps_.upper_bound(address);
  if (found == maps_.begin()) return nullptr;
  --found;
  const std::uint64_t offset = address - found->first;
  return offset + size_bytes <= found->second.size_bytes ? found->second.bytes + offset : nullptr;
}

// Takes all entries up to the position, and their commands.
bool fake_engine::fetch(channel_state& channel) {
  const std::uint32_t put =
      __atomic_load_n(reinterpret_cast<std::uint32_t*>(channel.user_words + rm::kPutOffset), __ATOMIC_ACQUIRE);
  if (put >= channel.ring_entries) return false;
  for (; channel.get != put; channel.get = (channel.get + 1) % channel.ring_entries) {
    const std::byte* entry = at_address(channel.ring_address + channel.get * 8, 8);
    if (entry == nullptr) return false;
    std::uint64_t bits = 0;
    std::memcpy(&bits, entry, sizeof bits);
    channel_state::fetched one;
    one.address = bits & ((std::uint64_t{1} << 40) - 1);
    one.count = static_cast<std::uint32_t>(bits >> 42) & ((1u << 21) - 1);
    one.is_fenced = bits >> 63 != 0;
    const std::byte* commands = at_address(one.address, one.count * 4);
    if (commands == nullptr) return false;
    if (!one.is_fenced) {
      one.words.resize(one.count);
      std::memcpy(one.words.data(), commands, one.count * 4);
    }
    channel.queue.push_back(std::move(one));
  }
  return true;
}

// One entry, or as much of it as no semaphore holds up.
bool fake_engine::step(channel_state& channel) {
  if (channel.queue.empty()) return false;
  auto& one = channel.queue.front();
  if (one.is_fenced) {
    one.words.resize(one.count);
    std::memcpy(one.words.data(), at_address(one.address, one.count * 4), one.count * 4);
    one.is_fenced = false;
  }
  while (channel.next_word < one.words.size())
    if (!execute_word(channel, one.words)) return false;
  channel.next_word = 0;
  channel.queue.pop_front();
  return true;
}

// One method with its values. False: it waits, or the channel died.
bool fake_engine::execute_word(channel_state& channel, const std::vector<std::uint32_t>& words) {
  const std::uint32_t header = words[channel.next_word];
  const std::uint32_t kind = header >> 29, subchannel = header >> 13 & 7, method = (header & 0x1fff) << 2,
                      count = header >> 16 & 0x1fff;
  const auto set = [&](std::uint32_t number, std::uint32_t value) {
    if (subchannel == dma::method::kHostSubchannel) return host_method(channel, number, value);
    if (number == dma::method::kSetObject && value != kCopyClass) ++protocol_errors_;
    channel.copy[number >> 2] = value;
    return number != dma::method::kLaunch || launch(channel, value);
  };
  if (kind == 4) {
    if (!set(method, count)) return false;
    ++channel.next_word;
    return true;
  }
  if (kind != 1 || channel.next_word + count >= words.size()) {
    ++protocol_errors_;
    channel.is_dead = true;
    return false;
  }
  for (std::uint32_t i = 0; i < count; ++i)
    if (!set(method + 4 * i, words[channel.next_word + 1 + i])) return false;
  channel.next_word += 1 + count;
  return true;
}

bool fake_engine::host_method(channel_state& channel, std::uint32_t method, std::uint32_t value) {
  channel.host[method >> 2] = value;
  if (method != dma::method::kSemaphoreAddressLow + 16) return true;
  const std::uint64_t address = channel.host[dma::method::kSemaphoreAddressLow >> 2] |
                                std::uint64_t{channel.host[(dma::method::kSemaphoreAddressLow >> 2) + 1]} << 32;
  const std::byte* word = at_address(address, 4);
  if (word == nullptr || (value & 7) != dma::method::kExecuteAcquireAtLeast) {
    channel.is_dead = true;
    return false;
  }
  const std::uint32_t now = __atomic_load_n(reinterpret_cast<const std::uint32_t*>(word), __ATOMIC_ACQUIRE);
  return static_cast<std::int32_t>(now - channel.host[(dma::method::kSemaphoreAddressLow >> 2) + 2]) >= 0;
}

void fake_engine::write_pending(channel_state& channel) {
  for (const auto& one : channel.pending) {
    std::byte* destination = at_address(one.address, one.bytes.size());
    if (destination == nullptr) channel.is_dead = true;
    else std::memcpy(destination, one.bytes.data(), one.bytes.size());
  }
  channel.pending.clear();
}

bool fake_engine::launch(channel_state& channel, std::uint32_t flags) {
  const auto value = [&](std::uint32_t method) { return channel.copy[method >> 2]; };
  const auto address = [&](std::uint32_t method) { return std::uint64_t{value(method)} << 32 | value(method + 4); };
  const std::uint32_t transfer = flags & 3;
  if (transfer == dma::launch::kPipelined) ++pipelined_;
  if (transfer == dma::launch::kNotPipelined) write_pending(channel);
  if (transfer != dma::launch::kNone) {
    const bool fills = (flags & dma::launch::kRemap) != 0;
    const std::uint64_t row_bytes = value(dma::method::kLineLength) * (fills ? 4ull : 1ull);
    const std::uint32_t lines = (flags & dma::launch::kManyLines) != 0 ? value(dma::method::kLineLength + 4) : 1;
    for (std::uint32_t line = 0; line < lines; ++line) {
      channel_state::pending_write one{
          address(dma::method::kSourceHigh + 8) + std::uint64_t{line} * value(dma::method::kSourcePitch + 4), {}};
      one.bytes.resize(row_bytes);
      if (fills) {
        for (std::uint64_t i = 0; i < row_bytes; i += 4)
          std::memcpy(&one.bytes[i], &channel.copy[dma::method::kRemapConstantA >> 2], 4);
      } else {
        const std::byte* source = at_address(
            address(dma::method::kSourceHigh) + std::uint64_t{line} * value(dma::method::kSourcePitch), row_bytes);
        if (source == nullptr) return channel.is_dead = true, false;
        std::memcpy(one.bytes.data(), source, row_bytes);
      }
      channel.pending.push_back(std::move(one));
    }
  }
  if ((flags & dma::launch::kReleaseWord) != 0) {
    write_pending(channel);
    if (channel.is_dead) return false;
    std::byte* word = at_address(address(dma::method::kSemaphoreAddressHigh), 4);
    if (word == nullptr) return channel.is_dead = true, false;
    __atomic_store_n(reinterpret_cast<std::uint32_t*>(word), value(dma::method::kSemaphoreAddressHigh + 8),
                     __ATOMIC_RELEASE);
  }
  return true;
}

}  // namespace pl::test
