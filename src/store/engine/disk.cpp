// SPDX-License-Identifier: Apache-2.0
#include "store/engine/disk.hpp"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <mutex>
#include <system_error>

#include "base/log.hpp"
#include "base/regular_file.hpp"
#include "base/text.hpp"
#include "store/engine/uring.hpp"

namespace pl::store {
namespace {

failure system_failure(const std::string& action) {
  const int code = errno;
  return failure{code, action + ": " + errno_text(code)};
}

status sync_folder_of(const std::string& path) {
  const std::string folder = path.substr(0, path.rfind('/') + 1);
  const int fd = ::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC);
  if (fd < 0) return system_failure(folder);
  status outcome;
  if (::fsync(fd) != 0) outcome = system_failure("fsync of " + folder);
  ::close(fd);
  return outcome;
}

// Whether this file lies on a virtual disk (virtio). False if the system does not report it.
bool is_on_virtio(int file) {
  struct stat file_status {};
  if (::fstat(file, &file_status) != 0) return false;
  std::error_code error;
  const auto device = std::filesystem::canonical(
      format("/sys/dev/block/%u:%u", major(file_status.st_dev), minor(file_status.st_dev)), error);
  return !error && device.string().find("/virtio") != std::string::npos;
}

class system_disk final : public disk {
 public:
  explicit system_disk(staging mode) : staging_(mode), stages_(mode == staging::always) {}

  result<int> open_file(const std::string& path, std::uint64_t size_bytes, bool read_only) override {
    const int flags = read_only ? O_RDONLY : O_RDWR | O_CREAT;
    auto opened = open_regular_file(path, flags | O_DIRECT);
    if (opened.code() == EINVAL) {
      if (!said_no_direct_.exchange(true))
        PL_LOG(warn, "store: %s: no O_DIRECT here, values go through the page cache", path.c_str());
      opened = open_regular_file(path, flags);
    }
    if (!opened) return failure{opened.code(), path + ": " + opened.error().message};
    const int fd = *opened;
    if (status done = read_only ? status{} : allocate(fd, path, size_bytes); !done) {
      ::close(fd);
      return std::move(done).error();
    }
    if (staging_ == staging::by_device && is_on_virtio(fd)) stages_ = true;
    return fd;
  }

  result<int> open_cached(const std::string& path, std::uint64_t size_bytes) override {
    const auto fd = open_regular_file(path, O_RDWR | O_CREAT);
    if (!fd) return failure{fd.code(), path + ": " + fd.error().message};
    if (status done = allocate(*fd, path, size_bytes); !done) {
      ::close(*fd);
      return std::move(done).error();
    }
    return *fd;
  }

  status write_cached(int file, std::uint64_t offset_bytes, std::string_view bytes) override {
    const ssize_t done = ::pwrite(file, bytes.data(), bytes.size(), static_cast<off_t>(offset_bytes));
    if (done == static_cast<ssize_t>(bytes.size())) return {};
    if (done >= 0) errno = EIO;
    return system_failure("write of the commit mark");
  }

  void close_file(int file) noexcept override { ::close(file); }

  status write(std::span<const block_io> blocks) override { return run(blocks, true, nullptr); }
  status write_when_ready(std::span<const block_io> blocks, block_gate& gate) override { return run(blocks, true, &gate); }
  status read(std::span<const block_io> blocks) override { return run(blocks, false, nullptr); }

  status sync(int file) override {
    if (::fdatasync(file) != 0) return system_failure("fdatasync of an extent file");
    return {};
  }

  result<std::uint64_t> free_bytes(const std::string& path) override {
    struct statvfs file_system {};
    if (::statvfs(path.c_str(), &file_system) != 0) return system_failure(path);
    return std::uint64_t{file_system.f_bavail} * file_system.f_frsize;
  }

  result<std::uint64_t> total_bytes(const std::string& path) override {
    struct statvfs file_system {};
    if (::statvfs(path.c_str(), &file_system) != 0) return system_failure(path);
    return std::uint64_t{file_system.f_blocks} * file_system.f_frsize;
  }

  std::string boot_id() override {
    std::ifstream file("/proc/sys/kernel/random/boot_id");
    std::string id;
    std::getline(file, id);
    return id;
  }

 private:
  // A file of the right size is complete, because it is synced before anything names it.
  static status allocate(int fd, const std::string& path, std::uint64_t size_bytes) {
    struct stat now {};
    if (::fstat(fd, &now) != 0) return system_failure(path);
    if (static_cast<std::uint64_t>(now.st_size) >= size_bytes) return {};
    if (const int error = ::posix_fallocate(fd, 0, static_cast<off_t>(size_bytes)); error != 0) {
      errno = error;
      failure reason = system_failure(path + format(": allocating %s", format_size(size_bytes).c_str()));
      if (::ftruncate(fd, 0) == 0) ::unlink(path.c_str());  // frees the part that was allocated
      if (error != EFBIG) return reason;
      // No failure of the disk: values that need no new file can still be put.
      return failure{ENOSPC, reason.message +
                                 ": raise the limit of file sizes (ulimit -f), or make a store with a smaller "
                                 "--extent-file"};
    }
    if (::fsync(fd) != 0) return system_failure("fsync of " + path);
    return sync_folder_of(path);
  }

  status run(std::span<const block_io> blocks, bool write, block_gate* gate) {
    std::unique_ptr<uring> ring;
    std::unique_ptr<stage> through;
    {
      std::lock_guard lock(mutex_);
      if (write && stages_) through = take_stage();
      if (!idle_.empty()) {
        ring = std::move(idle_.back());
        idle_.pop_back();
      }
    }
    if (!ring && !no_ring_) {
      ring = uring::make();
      if (!ring && !no_ring_.exchange(true))
        PL_LOG(warn, "store: no io_uring here (%s), plain reads and writes", errno_text(errno).c_str());
    }
    if (!ring) return gate != nullptr ? disk::write_when_ready(blocks, *gate) : run_plainly(blocks, write);
    status outcome = write ? ring->write(blocks, through.get(), gate) : ring->read(blocks);
    std::lock_guard lock(mutex_);
    if (outcome) {  // a stage of a failed write may still be used by incomplete requests
      idle_.push_back(std::move(ring));
      if (through) idle_stages_.push_back(std::move(through));
    } else if (through) {
      --stages_made_;
    }
    return outcome;
  }

  // Returns null if all stages are in use. Precondition: the lock is held.
  std::unique_ptr<stage> take_stage() {
    if (idle_stages_.empty()) return stages_made_ < kMaxStages ? (++stages_made_, stage::make()) : nullptr;
    auto taken = std::move(idle_stages_.back());
    idle_stages_.pop_back();
    return taken;
  }

  static status run_plainly(std::span<const block_io> blocks, bool write) {
    for (const block_io& block : blocks) {
      for (std::uint64_t done = 0; done < block.size_bytes;) {
        const auto offset = static_cast<off_t>(block.offset_bytes + done);
        const ssize_t moved = write ? ::pwrite(block.file, block.data + done, block.size_bytes - done, offset)
                                    : ::pread(block.file, block.data + done, block.size_bytes - done, offset);
        if (moved < 0 && errno == EINTR) continue;
        if (moved == 0) errno = EIO;  // the file ends inside the block
        if (moved <= 0)
          return system_failure(format("%s of %llu bytes at %llu", write ? "write" : "read",
                                       static_cast<unsigned long long>(block.size_bytes),
                                       static_cast<unsigned long long>(block.offset_bytes)));
        done += static_cast<std::uint64_t>(moved);
      }
    }
    return {};
  }

  const staging staging_;
  std::atomic<bool> stages_;
  static constexpr unsigned kMaxStages = 2;  // an engine has two threads that write large values
  unsigned stages_made_ = 0;
  std::mutex mutex_;
  std::vector<std::unique_ptr<uring>> idle_;
  std::vector<std::unique_ptr<stage>> idle_stages_;
  std::atomic<bool> no_ring_{false};
  std::atomic<bool> said_no_direct_{false};
};

}  // namespace

status disk::write_when_ready(std::span<const block_io> blocks, block_gate& gate) {
  for (std::size_t done = 0; done < blocks.size();) {
    const std::size_t ready = gate.ready(done, true);
    if (ready == done) return failure{ECANCELED, "the rest of a value did not arrive"};
    if (status written = write(blocks.subspan(done, ready - done)); !written) return written;
    done = ready;
  }
  return {};
}

std::unique_ptr<disk> make_system_disk(staging mode) { return std::make_unique<system_disk>(mode); }

}  // namespace pl::store
