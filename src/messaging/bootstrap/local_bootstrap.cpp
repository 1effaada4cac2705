// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/local_bootstrap.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <optional>
#include <random>

#include "base/clock.hpp"
#include "base/deadline.hpp"
#include "base/text.hpp"
#include "os/unique_fd.hpp"

namespace pl::messaging {
namespace {

constexpr std::uint64_t kMaxBytes = 16u << 20;  // limit of one contribution; a larger length is garbage

std::uint64_t deadline_of(std::chrono::milliseconds limit) { return deadline_after_ms(limit.count()); }

// A failed exchange may be half complete, so the ranks would be out of step in the next one. Therefore all later exchanges
// fail with the same error.
template <class Exchange>
result<std::vector<byte_string>> once_failed_always(std::optional<failure>& broken, Exchange exchange) {
  if (broken) return *broken;
  auto all = exchange();
  if (!all) broken = all.error();
  return all;
}

// ---- Over sockets: each rank sends to all others, then reads from all others. While it sends, it also reads, because
// contributions may not fit into the socket buffers.
class socket_exchange final : public bootstrap {
 public:
  socket_exchange(int rank, std::vector<int> ends, std::chrono::milliseconds limit)
      : rank_(rank), ends_(std::move(ends)), limit_(limit) {}
  ~socket_exchange() override {
    for (const int fd : ends_)
      if (fd >= 0) ::close(fd);
  }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return static_cast<int>(ends_.size()); }

  result<std::vector<byte_string>> all_gather(std::span<const std::byte> mine) override {
    return once_failed_always(broken_, [&] { return exchange(mine); });
  }

 private:
  result<std::vector<byte_string>> exchange(std::span<const std::byte> mine) {
    std::vector<channel> channels(ends_.size());
    std::vector<byte_string> all(ends_.size());
    all[static_cast<std::size_t>(rank_)].assign(mine.begin(), mine.end());
    byte_string message(sizeof(std::uint64_t) + mine.size());
    const std::uint64_t length = mine.size();
    std::memcpy(message.data(), &length, sizeof length);
    if (!mine.empty()) std::memcpy(message.data() + sizeof length, mine.data(), mine.size());
    const auto deadline = deadline_of(limit_);
    for (;;) {
      std::vector<pollfd> waits;
      for (std::size_t i = 0; i < ends_.size(); ++i) {
        if (ends_[i] < 0 || (channels[i].sent == message.size() && channels[i].is_read)) continue;
        const int events = (channels[i].sent < message.size() ? POLLOUT : 0) | (channels[i].is_read ? 0 : POLLIN);
        waits.push_back({ends_[i], static_cast<short>(events), 0});
      }
      if (waits.empty()) return all;
      const auto now = monotonic_ns();
      if (now >= deadline ||
          poll(waits.data(), waits.size(),
               static_cast<int>(std::min<std::uint64_t>((deadline - now) / 1'000'000u, 1'000'000)) + 1) == 0)
        return failure{ETIMEDOUT, "bootstrap: not all processes connected in time"};
      for (std::size_t i = 0; i < ends_.size(); ++i)
        if (auto done = advance(i, channels[i], message, all[i]); !done) return std::move(done).error();
    }
  }

  struct channel {
    std::size_t sent = 0, got = 0;
    std::uint64_t length = 0;
    bool is_read = false;
  };

  status advance(std::size_t i, channel& state, const byte_string& message, byte_string& target) {
    if (ends_[i] < 0) return {};
    const failure gone{ECONNRESET, format("bootstrap: rank %zu has ended", i)};
    if (state.sent < message.size()) {
      const auto n = ::send(ends_[i], message.data() + state.sent, message.size() - state.sent, MSG_DONTWAIT | MSG_NOSIGNAL);
      if (n > 0) state.sent += static_cast<std::size_t>(n);
      else if (errno != EAGAIN && errno != EINTR) return gone;
    }
    while (!state.is_read) {
      const bool in_length = state.got < sizeof state.length;
      auto* const destination = in_length ? reinterpret_cast<std::byte*>(&state.length) + state.got
                                          : target.data() + (state.got - sizeof state.length);
      const std::size_t want = (in_length ? sizeof state.length : sizeof state.length + state.length) - state.got;
      if (want != 0) {
        const auto n = ::recv(ends_[i], destination, want, MSG_DONTWAIT);
        if (n < 0 && (errno == EAGAIN || errno == EINTR)) return {};
        if (n <= 0) return gone;
        state.got += static_cast<std::size_t>(n);
      }
      if (in_length && state.got == sizeof state.length) {
        if (state.length > kMaxBytes)
          return failure{EPROTO, format("bootstrap: rank %zu sent data that is not a contribution", i)};
        target.resize(state.length);
      }
      state.is_read = state.got == sizeof state.length + state.length && state.got >= sizeof state.length;
    }
    return {};
  }

  int rank_;
  std::vector<int> ends_;
  std::chrono::milliseconds limit_;
  std::optional<failure> broken_;
};

// ---- Over files: a file for each contribution, complete when it has its final name.
//
// The folder may contain files of an earlier run. So every rank first writes a new random number (hello.<rank>). Rank 0
// answers with the file `run`, which repeats the numbers of all ranks, and rewrites it whenever one of them changes, until
// all ranks have confirmed it (ready.<rank>). All later file names contain the number of the run.
class folder_exchange final : public bootstrap {
 public:
  folder_exchange(std::filesystem::path folder, int rank, int size, std::chrono::milliseconds limit)
      : folder_(std::move(folder)), rank_(rank), size_(size), limit_(limit) {}
  ~folder_exchange() override {
    // Another process may still read a file of the last exchange, but none of the exchange before it.
    for (unsigned i = 0; i + 1 < exchanges_; ++i) remove(name(i, rank_));
  }
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }

  status meet() {
    std::random_device random;
    const std::uint64_t mine = (std::uint64_t{random()} << 32) | random();
    if (auto done = write(named("hello", rank_), number_bytes(mine)); !done) return done;
    return rank_ == 0 ? gather_ranks(mine) : follow_rank_0(mine);
  }

  result<std::vector<byte_string>> all_gather(std::span<const std::byte> mine) override {
    return once_failed_always(broken_, [&] { return exchange(mine); });
  }

 private:
  result<std::vector<byte_string>> exchange(std::span<const std::byte> mine) {
    const unsigned number = exchanges_++;
    if (auto done = write(name(number, rank_), mine); !done) return std::move(done).error();
    std::vector<byte_string> all(static_cast<std::size_t>(size_));
    const auto deadline = deadline_of(limit_);
    for (int i = 0; i < size_; ++i) {
      while (!read(name(number, i), all[static_cast<std::size_t>(i)])) {
        if (monotonic_ns() >= deadline) return late(i, name(number, i));
        usleep(kRecheckUs);
      }
    }
    return all;
  }

 private:
  static constexpr unsigned kRecheckUs = 1000;
  using numbers = std::vector<std::uint64_t>;

  static std::span<const std::byte> number_bytes(const std::uint64_t& value) { return std::as_bytes(std::span(&value, 1)); }
  std::filesystem::path named(const char* kind, int rank) const { return folder_ / format("%s.%d", kind, rank); }
  std::filesystem::path name(unsigned number, int rank) const {
    return folder_ / format("exchange.%016llx.%u.%d", static_cast<unsigned long long>(run_), number, rank);
  }
  static void remove(const std::filesystem::path& path) {
    std::error_code ignored;
    std::filesystem::remove(path, ignored);
  }
  failure late(int rank, const std::filesystem::path& path) const {
    return {ETIMEDOUT, format("bootstrap: rank %d of %d did not write %s within %lld s; was it started, with this folder?",
                              rank, size_, path.c_str(), static_cast<long long>(limit_.count() / 1000))};
  }

  // Do not follow links to files of other users, do not let others read our files, and learn which owner all files must
  // have.
  status write(const std::filesystem::path& path, std::span<const std::byte> bytes) {
    const auto part = named("part", rank_);
    {
      const unique_fd file(real_device_io(),
                           ::open(part.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, S_IRUSR | S_IWUSR));
      struct stat about {};
      bool is_written = static_cast<bool>(file) && fstat(file.get(), &about) == 0;
      owner_ = about.st_uid;
      for (std::size_t done = 0; is_written && done != bytes.size();) {
        const auto n = ::write(file.get(), bytes.data() + done, bytes.size() - done);
        is_written = n > 0 || (n < 0 && errno == EINTR);
        if (n > 0) done += static_cast<std::size_t>(n);
      }
      if (!is_written)
        return failure{EIO, format("bootstrap: cannot write %s; all ranks need a folder they may write", part.c_str())};
    }
    std::error_code code;
    std::filesystem::rename(part, path, code);
    if (code) return failure{EIO, format("bootstrap: cannot rename %s: %s", part.c_str(), code.message().c_str())};
    return {};
  }
  // Ignore files of other users.
  bool read(const std::filesystem::path& path, byte_string& target) const {
    const unique_fd file(real_device_io(), ::open(path.c_str(), O_RDONLY | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK));
    struct stat about {};
    if (!file || fstat(file.get(), &about) != 0 || !S_ISREG(about.st_mode) || about.st_uid != owner_) return false;
    const auto bytes = static_cast<std::uint64_t>(about.st_size);
    if (bytes > kMaxBytes) return false;
    target.resize(bytes);
    for (std::size_t done = 0; done != bytes;) {
      const auto n = ::pread(file.get(), target.data() + done, bytes - done, static_cast<off_t>(done));
      if (n == 0 || (n < 0 && errno != EINTR)) return false;
      if (n > 0) done += static_cast<std::size_t>(n);
    }
    return true;
  }
  numbers read_numbers(const std::filesystem::path& path) const {
    byte_string bytes;
    if (!read(path, bytes)) return {};
    numbers out(bytes.size() / sizeof(std::uint64_t));
    if (!out.empty()) std::memcpy(out.data(), bytes.data(), out.size() * sizeof(std::uint64_t));
    return out;
  }

  // The number of rank 0 identifies the run.
  status gather_ranks(std::uint64_t mine) {
    run_ = mine;
    numbers reply;
    for (const auto deadline = deadline_of(limit_);; usleep(kRecheckUs)) {
      numbers known;
      int missing = -1;
      bool are_ready = true;
      for (int i = 0; i < size_; ++i) {
        const auto one = i == 0 ? numbers{mine} : read_numbers(named("hello", i));
        if (one.empty() && missing < 0) missing = i;
        known.push_back(one.empty() ? 0 : one.front());
        are_ready = are_ready && (i == 0 || read_numbers(named("ready", i)) == numbers{mine});
      }
      if (are_ready) break;
      if (monotonic_ns() >= deadline)
        return late(missing < 0 ? size_ - 1 : missing, named("hello", missing < 0 ? size_ - 1 : missing));
      if (missing >= 0 || known == reply) continue;
      if (auto done = write(folder_ / "run", std::as_bytes(std::span(known))); !done) return done;
      reply = std::move(known);
    }
    for (int i = 1; i < size_; ++i) remove(named("ready", i)), remove(named("hello", i));
    remove(folder_ / "run");
    remove(named("hello", 0));
    return {};
  }
  status follow_rank_0(std::uint64_t mine) {
    for (const auto deadline = deadline_of(limit_);; usleep(kRecheckUs)) {
      const auto run = read_numbers(folder_ / "run");
      if (run.size() == static_cast<std::size_t>(size_) && run[static_cast<std::size_t>(rank_)] == mine) {
        run_ = run[0];
        return write(named("ready", rank_), number_bytes(run_));
      }
      if (monotonic_ns() >= deadline) return late(0, folder_ / "run");
    }
  }

  std::filesystem::path folder_;
  int rank_, size_;
  std::chrono::milliseconds limit_;
  std::uint64_t run_ = 0;
  unsigned exchanges_ = 0;
  uid_t owner_ = 0;
  std::optional<failure> broken_;
};

class callback_exchange final : public bootstrap {
 public:
  using gather = std::function<result<std::vector<byte_string>>(std::span<const std::byte>)>;
  callback_exchange(int rank, int size, gather all_gather) : rank_(rank), size_(size), gather_(std::move(all_gather)) {}
  int rank() const noexcept override { return rank_; }
  int size() const noexcept override { return size_; }
  result<std::vector<byte_string>> all_gather(std::span<const std::byte> mine) override {
    auto all = gather_(mine);
    if (all && all->size() != static_cast<std::size_t>(size_))
      return failure{EPROTO, format("bootstrap: the callback gave %zu contributions for %d processes", all->size(), size_)};
    return all;
  }

 private:
  int rank_, size_;
  gather gather_;
};

}  // namespace

result<fork_bootstrap> fork_bootstrap::make(int size) {
  fork_bootstrap out;
  out.size_ = size;
  const auto n = static_cast<std::size_t>(size);
  out.ends_.assign(n * n, -1);
  for (std::size_t i = 0; i < n; ++i) {
    for (std::size_t j = i + 1; j < n; ++j) {
      int pair[2];
      if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair) != 0) {
        const int code = errno;
        return failure{code, format("bootstrap: socketpair failed: %s", errno_text(code).c_str())};
      }
      out.ends_[i * n + j] = pair[0];
      out.ends_[j * n + i] = pair[1];
    }
  }
  return out;
}

fork_bootstrap::fork_bootstrap(fork_bootstrap&& other) noexcept : size_(other.size_), ends_(std::move(other.ends_)) {
  other.ends_.clear();
}

fork_bootstrap::~fork_bootstrap() { close(); }

void fork_bootstrap::close() {
  for (int& fd : ends_)
    if (fd >= 0) ::close(std::exchange(fd, -1));
}

std::unique_ptr<bootstrap> fork_bootstrap::take(int rank, std::chrono::milliseconds limit) {
  std::vector<int> mine(static_cast<std::size_t>(size_));
  for (std::size_t i = 0; i < mine.size(); ++i)
    mine[i] = std::exchange(ends_[static_cast<std::size_t>(rank) * mine.size() + i], -1);
  close();
  return std::make_unique<socket_exchange>(rank, std::move(mine), limit);
}

result<std::unique_ptr<bootstrap>> file_bootstrap(const std::string& folder, int rank, int size,
                                                  std::chrono::milliseconds limit) {
  std::error_code code;
  std::filesystem::create_directories(folder, code);
  if (code) return failure{EIO, format("bootstrap: cannot make the folder %s: %s", folder.c_str(), code.message().c_str())};
  // Make the path absolute, because the program may change its working directory before the last exchange.
  auto place = std::filesystem::absolute(folder, code);
  if (code) return failure{EIO, format("bootstrap: where is the folder %s? %s", folder.c_str(), code.message().c_str())};
  auto made = std::make_unique<folder_exchange>(std::move(place), rank, size, limit);
  if (auto done = made->meet(); !done) return std::move(done).error();
  return std::unique_ptr<bootstrap>(std::move(made));
}

std::unique_ptr<bootstrap> callback_bootstrap(
    int rank, int size, std::function<result<std::vector<byte_string>>(std::span<const std::byte>)> all_gather) {
  return std::make_unique<callback_exchange>(rank, size, std::move(all_gather));
}

}  // namespace pl::messaging
