// SPDX-License-Identifier: Apache-2.0
// NIXL's interface for backends as its wheels have it in memory (versions 1.0 to 1.5, plug-in interface 1): the order
// of the virtual functions and the layout of what passes through them, in our own names. The wheel contains no headers;
// the tests compare this file with the installed wheel (test/compat/nixl).
//
// Both sides use the C++ standard library's types by value and by reference (the cxx11 ABI of libstdc++).
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <mutex>
#include <optional>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

namespace pl::nixl::abi {

inline constexpr int kPluginInterface = 1;

enum class memory_type : int { dram = 0, vram = 1, block = 2, object = 3, file = 4 };
enum class direction : int { read = 0, write = 1 };  // read: from the remote side to the local one

enum class status : int {
  in_progress = 1,
  success = 0,
  not_posted = -1,
  invalid_param = -2,
  backend = -3,
  not_found = -4,
  mismatch = -5,
  not_allowed = -6,
  repost_active = -7,
  unknown = -8,
  not_supported = -9,
  remote_disconnect = -10,
  canceled = -11,
};

using parameters = std::unordered_map<std::string, std::string>;
using memory_types = std::vector<memory_type>;
using notifications = std::vector<std::pair<std::string, std::string>>;  // agent, message

// What the agent stores for registered or remote memory and passes back; it does not read any of it.
class metadata {
 public:
  virtual ~metadata() = default;

 private:
  bool is_private_ = false;
};
class request_handle {
 public:
  virtual ~request_handle() = default;
};

struct descriptor {
  std::uintptr_t address = 0;
  std::size_t size_bytes = 0;
  std::uint64_t device = 0;
};
struct blob_descriptor : descriptor {
  std::string blob;
};
struct transfer_descriptor : descriptor {
  metadata* memory = nullptr;
};
// The agent's list, read in place; its virtual functions are not called.
template <class Descriptor>
struct descriptor_list {
  const void* functions;
  memory_type type;
  std::vector<Descriptor> items;
};
using transfer_list = descriptor_list<transfer_descriptor>;

struct transfer_options {
  std::string notification;
  bool has_notification = false;
  std::string custom;
};

struct engine_options {
  std::string local_agent, type;
  parameters* custom = nullptr;
  bool has_progress_thread = false;
  std::uint64_t progress_delay_us = 0;
  int sync_mode = 0;
  bool has_telemetry = false;
};

// The base class of backends: the agent reads its fields by their places, and calls by the places of the functions.
class engine {
 public:
  explicit engine(const engine_options& options)
      : type_(options.type),
        custom_(options.custom != nullptr ? *options.custom : parameters()),
        local_agent_(options.local_agent),
        has_telemetry_(options.has_telemetry) {}
  engine(const engine&) = delete;
  engine& operator=(const engine&) = delete;

  virtual ~engine() = default;
  virtual bool supports_remote() const = 0;
  virtual bool supports_local() const = 0;
  virtual bool supports_notif() const = 0;
  virtual memory_types get_supported_mems() const = 0;
  virtual status register_mem(const blob_descriptor& memory, const memory_type& type, metadata*& out) = 0;
  virtual status deregister_mem(metadata* memory) = 0;
  virtual status connect(const std::string& agent) = 0;
  virtual status disconnect(const std::string& agent) = 0;
  virtual status unload_md(metadata* memory) = 0;
  virtual status prep_xfer(const direction& way, const transfer_list& local, const transfer_list& remote,
                           const std::string& agent, request_handle*& handle, const transfer_options* options) const = 0;
  virtual status post_xfer(const direction& way, const transfer_list& local, const transfer_list& remote,
                           const std::string& agent, request_handle*& handle, const transfer_options* options) const = 0;
  virtual status check_xfer(request_handle* handle) const = 0;
  virtual status release_req_h(request_handle* handle) const = 0;
  // Views for kernels of the GPU: of remote memory (a list of another kind), of local memory.
  virtual status prep_mem_view(const void* remote_list, void*& view, const transfer_options* options) const = 0;
  virtual status prep_mem_view(const transfer_list& local, void*& view, const transfer_options* options) const = 0;
  virtual void release_mem_view(void* view) const = 0;
  virtual status get_public_data(const metadata* memory, std::string& out) const = 0;
  virtual status get_conn_info(std::string& out) const = 0;
  virtual status load_remote_conn_info(const std::string& agent, const std::string& info) = 0;
  virtual status load_remote_md(const blob_descriptor& memory, const memory_type& type, const std::string& agent,
                                metadata*& out) = 0;
  virtual status load_local_md(metadata* memory, metadata*& out) = 0;
  virtual status get_notifs(notifications& out) = 0;
  virtual status gen_notif(const std::string& agent, const std::string& message) const = 0;
  virtual status query_mem(const descriptor_list<blob_descriptor>& list,
                           std::vector<std::optional<parameters>>& out) const = 0;
  virtual status estimate_xfer_cost(const direction& way, const transfer_list& local, const transfer_list& remote,
                                    const std::string& agent, request_handle* const& handle,
                                    std::chrono::microseconds& duration, std::chrono::microseconds& error, int& method,
                                    const void* options) const = 0;

 private:
  friend struct layout;
  std::string type_;
  parameters custom_;
  std::vector<char> telemetry_;  // of events, which the agent takes under the mutex; stays empty
  std::mutex telemetry_mutex_;

 protected:
  bool has_failed_ = false;  // the constructor's outcome
  const std::string local_agent_;
  const bool has_telemetry_;
};

struct plugin {
  int interface_version;
  engine* (*create)(const engine_options*);
  void (*destroy)(engine*);
  const char* (*name)();
  const char* (*version)();
  parameters (*options)();
  memory_types (*memories)();
};

// Places that the wheel's machine code has.
struct layout {
  static_assert(sizeof(descriptor) == 24 && sizeof(blob_descriptor) == 56 && sizeof(transfer_descriptor) == 32);
  static_assert(offsetof(transfer_list, type) == 8 && offsetof(transfer_list, items) == 16);
  static_assert(offsetof(transfer_options, has_notification) == 32 && offsetof(transfer_options, custom) == 40);
  static_assert(offsetof(engine_options, custom) == 64 && offsetof(engine_options, has_telemetry) == 92);
  static_assert(sizeof(plugin) == 56 && offsetof(plugin, create) == 8);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Winvalid-offsetof"
  static_assert(offsetof(engine, type_) == 8 && offsetof(engine, custom_) == 0x28 && offsetof(engine, telemetry_) == 0x60);
  static_assert(offsetof(engine, telemetry_mutex_) == 0x78 && offsetof(engine, has_failed_) == 0xa0);
  static_assert(offsetof(engine, local_agent_) == 0xa8 && offsetof(engine, has_telemetry_) == 0xc8);
#pragma GCC diagnostic pop
};

}  // namespace pl::nixl::abi
