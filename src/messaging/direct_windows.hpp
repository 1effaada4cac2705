// SPDX-License-Identifier: Apache-2.0
// Puts, gets and atomics on windows of other processes of the node, done by the calling process alone.
//
//   window made by allocate()   one mapping in both processes: plain copies, atomics of the CPU
//   window of other host memory copies through the kernel (process_vm_readv, _writev); atomics by messages
//   GPU memory                  DMA channels of this process, mapped stores (gpu_windows.hpp); atomics by messages
//   other nodes                 by messages (rma.hpp)
//
// Owns: the table of this process's windows, and for each peer its table and the mappings of its windows.
// Threads: the messenger's lock guards all calls. A copy is complete when its call returns.
// Errors: they end the operation. No value: this window cannot be accessed directly, so messages are used.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <unordered_map>
#include <utility>
#include <vector>

#include "messaging/gpu_windows.hpp"
#include "messaging/messenger_context.hpp"
#include "messaging/window_table.hpp"

namespace pl::messaging {

// Follows the frame `atomic`.
struct atomic_request {
  atomic_op op = atomic_op::add;
  std::uint64_t operand = 0, compare = 0;
};
// Applies an atomic operation of the CPU to an aligned word of host memory. Returns the old value.
std::uint64_t apply_atomic(void* word, const atomic_request& request) noexcept;

// Host memory that other processes can map.
class shared_pages {
 public:
  shared_pages() = default;
  shared_pages(shared_pages&& other) noexcept { *this = std::move(other); }
  shared_pages& operator=(shared_pages&& other) noexcept {
    std::swap(data_, other.data_);
    std::swap(bytes_, other.bytes_);
    std::swap(fd_, other.fd_);
    std::swap(inode_, other.inode_);
    return *this;
  }
  ~shared_pages();
  // Zeroed.
  static result<shared_pages> make(std::size_t bytes);
  static result<shared_pages> open(std::int32_t pid, const window_place& place);
  std::byte* data() const noexcept { return data_; }
  std::size_t bytes() const noexcept { return bytes_; }
  window_place place() const noexcept;

 private:
  status map(int fd, std::size_t bytes);
  std::byte* data_ = nullptr;
  std::size_t bytes_ = 0;
  unique_fd fd_;  // the maker's
  std::uint64_t inode_ = 0;
};

class direct_windows {
 public:
  explicit direct_windows(messenger_context& context) : context_(context), tables_(context.peers.size()), gpu_(context) {}

  // ---- Opening
  result<window_table::name> make_table();
  // Opens the table of a peer on this node. If that fails, its windows are accessed by messages.
  void open_table(int rank, const window_table::name& file);

  // ---- This process's windows
  window_table& own() noexcept { return own_; }
  // Shares a window of GPU memory with the peers of this node. If that fails, they use messages.
  void publish_gpu(std::uint32_t id, const memory& range);
  // Call it when nobody uses the window, which has ended.
  void free(std::uint32_t id) { gpu_.free(id); }
  // A living rank that still moves bytes of the window, which has ended; -1: none.
  int user(std::uint32_t id) const noexcept;

  // ---- The others'
  std::optional<status> put(const window::key_t& key, std::uint64_t offset, const memory& source) {
    return move(key, offset, source, true);
  }
  std::optional<status> get(const window::key_t& key, std::uint64_t offset, const memory& destination) {
    return move(key, offset, destination, false);
  }
  std::optional<result<std::uint64_t>> atomic(const window::key_t& key, std::uint64_t offset, const atomic_request& request);
  // Writes a word of another process's GPU memory with one store.
  std::optional<status> set_gpu_word(const window::key_t& key, std::uint64_t offset, std::uint64_t value);
  // The peer is lost.
  void forget(int rank);
  // A new process has this rank.
  void admit(int rank) {
    forget(rank);
    own_.forget_user(rank);
    is_denied_[static_cast<std::size_t>(rank)] = false;
  }
  // Releases GPU memory of windows that have ended; only then it returns to its owner.
  void release_ended();
  // Why the last window of GPU memory is accessed by messages; empty: none is.
  std::string gpu_refusal() const { return context_.options.use_channels ? gpu_.refusal() : kNotWanted; }

 private:
  static constexpr const char* kNotWanted = "PEERLANE_LINK_CHANNELS=0, or PEERLANE_COPY_ENGINE wants none";
  // The state of a peer's window.
  struct known_window {
    shared_pages pages;            // shared
    gpu_windows::imported device;  // device, once it was used
    window_place place;
    bool is_denied = false;  // the kernel refuses access to this memory: use messages
  };
  static std::uint64_t number_of(const window::key_t& key) noexcept {
    return static_cast<std::uint64_t>(key.rank) << 32 | key.id;
  }
  // Null: it cannot be accessed directly, or, if `outcome` is set, the access is refused.
  known_window* find(const window::key_t& key, std::uint64_t offset, std::uint64_t bytes, std::optional<status>& outcome);
  // Null: descriptors or memory are short, so the next operation tries again.
  known_window* learn(const window::key_t& key, const window_place& place);
  void drop_ended();
  std::optional<status> move(const window::key_t& key, std::uint64_t offset, const memory& local, bool is_put);
  std::optional<status> move_owned(const window::key_t& key, known_window& found, std::uint64_t offset, const memory& local,
                                   bool is_put);
  std::optional<status> move_device(const window::key_t& key, known_window& found, std::uint64_t offset, const memory& local,
                                    bool is_put);
  // Checks whether the process id still belongs to the same process and program. denied: the kernel does not allow the
  // check.
  enum class owner_state { alive, gone, denied };
  owner_state check_owner(const window_table::name& target);
  static failure owner_gone(int rank);
  int move_some(const window_table::name& target, std::uint64_t remote, void* local, std::size_t bytes, bool is_put);

  messenger_context& context_;
  window_table own_;
  std::vector<window_table> tables_;  // by rank
  std::vector<bool> is_denied_ = std::vector<bool>(context_.peers.size());
  std::unordered_map<std::uint64_t, known_window> known_;
  gpu_windows gpu_;
  std::vector<std::byte> bounce_;  // between GPU memory of this process and another's pages
};

}  // namespace pl::messaging
