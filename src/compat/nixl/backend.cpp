// SPDX-License-Identifier: Apache-2.0
#include "compat/nixl/backend.hpp"

#include <dlfcn.h>
#include <sched.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "cuda/driver_table.hpp"
#include "cuda/pointer.hpp"
#include "os/launcher_siblings.hpp"

namespace pl::nixl {
namespace {

using kind = memory::kind;

abi::status code_of(const failure& reason) {
  switch (reason.code) {
    case EINVAL:
      return abi::status::invalid_param;
    case ENOTSUP:
      return abi::status::not_supported;
    case ENOENT:
      return abi::status::not_found;
    case EPERM:
    case EACCES:
      return abi::status::not_allowed;
    case EPIPE:
    case ESRCH:
    case ECONNRESET:
    case ECONNREFUSED:
      return abi::status::remote_disconnect;
    default:
      return abi::status::backend;
  }
}

// NIXL passes only the status to its user, so the reason goes to stderr.
abi::status refuse(const char* action, const failure& reason) {
  log_line(log_level::error, "NIXL backend PEERLANE: %s: %s", action, reason.message.c_str());
  return code_of(reason);
}

// The CPU cannot copy it, although every caller's address of it looks like any other. Loads no driver: without one there is
// no GPU memory.
bool is_gpu_memory(std::uint64_t address) {
  void* const loaded = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  if (loaded == nullptr) return false;
  dlclose(loaded);
  const auto cuda = cu::driver();
  return cuda && cu::find_device_memory(**cuda, address).has_value();
}

}  // namespace

// Set when the memory is deregistered. Null: another agent's, which only that agent deregisters.
using registration = std::shared_ptr<std::atomic<bool>>;

struct backend::known_memory : abi::metadata {
  explicit known_memory(std::shared_ptr<memory> known, registration registered = nullptr)
      : in(std::move(known)), is_deregistered(std::move(registered)) {}
  const std::shared_ptr<memory> in;
  const registration is_deregistered;
};

struct backend::request : abi::request_handle {
  explicit request(std::shared_ptr<cpu_mover> mover) : list(std::move(mover)) {}
  ~request() override;
  void use(const known_memory& known) {
    if (known.is_deregistered != nullptr && (used.empty() || used.back() != known.is_deregistered))
      used.push_back(known.is_deregistered);
  }

  copy_list list;
  std::vector<registration> used;  // of this agent's memory
  std::shared_ptr<peer> receiver;  // null: this agent itself
  // What the owner of foreign host memory copies for us.
  std::vector<copy_block> for_peer;
  std::vector<std::shared_ptr<memory>> for_peer_used;
  std::shared_ptr<remote_copy> copy = std::make_shared<remote_copy>();
  bool is_into_peer = false;
  std::string agent, notification;
  bool has_notification = false;
};

// Whoever frees the request may use its memory for something else.
backend::request::~request() {
  const std::uint64_t end = monotonic_ns() + std::uint64_t{kTimeoutMs} * 1'000'000;
  while (copy->now.load(std::memory_order_acquire) == remote_copy::state::in_flight) {
    if (monotonic_ns() > end) receiver->lose();
    sched_yield();
  }
}

backend::backend(const abi::engine_options& options)
    : engine(options), process_(::getpid()), gpus_(std::make_shared<gpu_table>()), mover_(std::make_shared<cpu_mover>()) {
  let_launcher_siblings_in();  // who moves between host memories
  auto server = peer_server::open(gpus_, mover_);
  if (server) server_ = *std::move(server);
  else {
    (void)refuse("no socket for other agents", server.error());
    has_failed_ = true;
  }
}

// In a forked child, threads, sockets and channels are the parent's: none of them is closed or used.
backend::~backend() {
  if (is_forked()) {
    static_cast<void>(server_.release());
    static_cast<void>(new std::pair(gpus_, mover_));
    return;
  }
  server_.reset();  // its thread, before what it watches
  for (auto& [agent, one] : peers_) one->lose();
}

// ---- Memory

bool backend::is_forked() const noexcept { return ::getpid() != process_; }

abi::status backend::refuse_child() {
  return refuse("a call in a forked child", {EACCES, "the agent is the parent's: make another one in the child"});
}

abi::status backend::register_mem(const abi::blob_descriptor& wanted, const abi::memory_type& type, abi::metadata*& out) {
  if (is_forked()) return refuse_child();
  std::shared_ptr<memory> made;
  std::uint64_t end = 0;
  if (__builtin_add_overflow(wanted.address, wanted.size_bytes, &end) || (wanted.address == 0 && end != 0))
    return refuse("memory is not registered", {EINVAL, format("%zu bytes at 0x%llx are not valid memory", wanted.size_bytes,
                                                              static_cast<unsigned long long>(wanted.address))});
  if (type == abi::memory_type::dram) {
    if (is_gpu_memory(wanted.address))
      return refuse("memory is not registered", {EINVAL, "it is GPU memory, described as DRAM: register it as VRAM"});
    made = memory::make_host(wanted.address, wanted.size_bytes);
  } else if (type == abi::memory_type::vram) {
    auto device = memory::make_device(*gpus_, wanted.address, wanted.size_bytes);
    if (!device) return refuse("GPU memory is not registered", device.error());
    made = *std::move(device);
  } else {
    return refuse("memory is not registered", {ENOTSUP, "it is neither DRAM nor VRAM"});
  }
  out = new known_memory(made, std::make_shared<std::atomic<bool>>(false));
  server_->add(made);
  return abi::status::success;
}

abi::status backend::deregister_mem(abi::metadata* gone) {
  if (is_forked()) return refuse_child();
  const std::unique_ptr<known_memory> known(static_cast<known_memory*>(gone));
  known->is_deregistered->store(true, std::memory_order_release);
  server_->remove(known->in->id());
  return abi::status::success;
}

abi::status backend::load_local_md(abi::metadata* registered, abi::metadata*& out) {
  const auto& known = *static_cast<known_memory*>(registered);
  out = new known_memory(known.in, known.is_deregistered);
  return abi::status::success;
}

abi::status backend::unload_md(abi::metadata* gone) {
  if (is_forked()) return refuse_child();
  delete static_cast<known_memory*>(gone);
  return abi::status::success;
}

abi::status backend::get_public_data(const abi::metadata* registered, std::string& out) const {
  out = format("%llu", static_cast<unsigned long long>(static_cast<const known_memory*>(registered)->in->id()));
  return abi::status::success;
}

abi::status backend::load_remote_md(const abi::blob_descriptor& remote, const abi::memory_type& type,
                                    const std::string& agent, abi::metadata*& out) {
  if (is_forked()) return refuse_child();
  const auto owner = find_peer(agent);
  const auto id = parse_integer(remote.blob);
  if (!id) return refuse("memory of another agent", {EPROTO, "its metadata is from another version of this backend"});
  const auto known_id = static_cast<std::uint64_t>(*id);
  std::shared_ptr<memory> known;
  if (owner == nullptr) {  // of another host, which the agent reaches by another backend
    known = memory::make_foreign(kind::out_of_reach, remote.address, remote.size_bytes, known_id);
  } else if (type == abi::memory_type::vram) {
    auto fetched = owner->fetch(*gpus_, known_id);
    if (!fetched) {
      const auto code = refuse(format("GPU memory of agent '%s'", agent.c_str()).c_str(), fetched.error());
      if (code != abi::status::not_supported && code != abi::status::not_allowed) return code;
      fetched = memory::make_foreign(kind::out_of_reach, remote.address, remote.size_bytes, known_id);
    }
    if (!(*fetched)->contains(remote.address, remote.size_bytes))
      return refuse("memory of another agent", {EPROTO, "the memory it has shared does not match its metadata"});
    known = *std::move(fetched);
  } else if (owner->is_this_process()) {
    known = memory::make_host(remote.address, remote.size_bytes);
  } else {
    known = memory::make_foreign(kind::foreign_host, remote.address, remote.size_bytes, known_id);
  }
  if (owner != nullptr) known->set_owner(owner->target().socket);
  out = new known_memory(std::move(known));
  return abi::status::success;
}

// ---- Other agents

std::shared_ptr<peer> backend::find_peer(const std::string& agent) const {
  const std::lock_guard hold(mutex_);
  const auto found = peers_.find(agent);
  return found == peers_.end() ? nullptr : found->second;
}

abi::status backend::get_conn_info(std::string& out) const {
  out = server_->own_address().text();
  return abi::status::success;
}

abi::status backend::load_remote_conn_info(const std::string& agent, const std::string& info) {
  if (is_forked()) return refuse_child();
  // Another backend may reach an agent that this one does not: NIXL continues only if the answer is "not supported".
  const auto leave = [&agent](const failure& reason) {
    (void)refuse(format("agent '%s' is left to other backends", agent.c_str()).c_str(), reason);
    return abi::status::not_supported;
  };
  auto target = address::parse(info);
  if (!target) return leave(target.error());
  if (target->host != server_->own_address().host) {
    PL_LOG(info, "NIXL: agent '%s' is on another host, or in another network namespace: another backend must reach it",
           agent.c_str());
    return abi::status::not_supported;
  }
  auto opened = peer::open(*target, local_agent_);
  if (opened.code() == EACCES) return leave(opened.error());
  if (!opened) return refuse(format("agent '%s'", agent.c_str()).c_str(), opened.error());
  server_->watch(*opened);
  std::shared_ptr<peer> old;
  const std::lock_guard hold(mutex_);
  old = std::exchange(peers_[agent], *std::move(opened));
  if (old != nullptr) old->lose();
  return abi::status::success;
}

abi::status backend::connect(const std::string& agent) {
  if (is_forked()) return refuse_child();
  if (agent == local_agent_) return abi::status::success;
  const auto known = find_peer(agent);
  if (known == nullptr) return abi::status::not_found;
  return known->is_lost() ? abi::status::remote_disconnect : abi::status::success;
}

abi::status backend::disconnect(const std::string& agent) {
  if (is_forked()) return refuse_child();
  if (agent == local_agent_) return abi::status::success;
  std::shared_ptr<peer> gone;
  {
    const std::lock_guard hold(mutex_);
    const auto found = peers_.find(agent);
    if (found == peers_.end()) return abi::status::not_found;
    gone = std::move(found->second);
    peers_.erase(found);
  }
  gone->lose();
  return abi::status::success;
}

status backend::notify(const std::string& agent, const std::shared_ptr<peer>& receiver, const std::string& text) const {
  if (agent == local_agent_) {
    server_->add_notification(local_agent_, text);
    return {};
  }
  if (receiver == nullptr) return failure{ENOENT, "the agent's metadata is not loaded, or it is on another host"};
  return receiver->notify(text);
}

abi::status backend::gen_notif(const std::string& agent, const std::string& message) const {
  if (is_forked()) return refuse_child();
  if (auto sent = notify(agent, find_peer(agent), message); !sent)
    return refuse(format("a notification to agent '%s'", agent.c_str()).c_str(), sent.error());
  return abi::status::success;
}

abi::status backend::get_notifs(abi::notifications& out) {
  if (is_forked()) return refuse_child();
  server_->take_notifications(out);
  return abi::status::success;
}

// ---- Transfers

status backend::compile(request& made, abi::direction way, const abi::transfer_list& local,
                        const abi::transfer_list& remote) const {
  if (local.items.size() != remote.items.size()) return failure{EINVAL, "the two lists differ in length"};
  made.is_into_peer = way == abi::direction::write;
  const int process = made.receiver == nullptr ? 0 : made.receiver->process();
  copy_list::side own_side, remote_side;
  const abi::metadata* own_known = nullptr;
  const abi::metadata* remote_known = nullptr;
  for (std::size_t i = 0; i < local.items.size(); ++i) {
    const abi::transfer_descriptor& own = local.items[i];
    const abi::transfer_descriptor& other = remote.items[i];
    if (own.size_bytes != other.size_bytes) return failure{EINVAL, "the two sides of a descriptor differ in length"};
    if (own.memory != own_known) own_side.in = static_cast<known_memory*>(own.memory)->in;
    if (other.memory != remote_known) remote_side.in = static_cast<known_memory*>(other.memory)->in;
    if (own.memory != own_known) made.use(*static_cast<known_memory*>(own.memory));
    if (other.memory != remote_known) made.use(*static_cast<known_memory*>(other.memory));
    own_known = own.memory;
    remote_known = other.memory;
    own_side.address = own.address;
    remote_side.address = other.address;
    if (made.receiver != nullptr && remote_side.in->owner() != made.receiver->target().socket)
      return failure{ECONNRESET, "the memory is of an agent of this name that has ended: load the new one's metadata"};
    if (remote_side.in->type() == kind::foreign_host && own_side.in->type() == kind::device) {
      if (made.for_peer_used.empty() || made.for_peer_used.back() != own_side.in) made.for_peer_used.push_back(own_side.in);
      made.for_peer.push_back({own_side.in->id(), own.address, remote_side.in->id(), other.address, own.size_bytes});
      continue;
    }
    const bool is_write = made.is_into_peer;
    if (auto added =
            made.list.add(is_write ? remote_side : own_side, is_write ? own_side : remote_side, own.size_bytes, process);
        !added)
      return added;
  }
  return {};
}

abi::status backend::prep_xfer(const abi::direction& way, const abi::transfer_list& local, const abi::transfer_list& remote,
                               const std::string& agent, abi::request_handle*& handle, const abi::transfer_options*) const {
  if (is_forked()) return refuse_child();
  auto made = std::make_unique<request>(mover_);
  made->agent = agent;
  if (agent != local_agent_) {
    made->receiver = find_peer(agent);
    if (made->receiver == nullptr)
      return refuse("a transfer", {ENOTSUP, format("agent '%s' is on another host, or in another network namespace: name "
                                                   "another backend (UCX) for its transfers",
                                                   agent.c_str())});
  }
  if (auto good = compile(*made, way, local, remote); !good) return refuse("a transfer", good.error());
  handle = made.release();
  return abi::status::success;
}

abi::status backend::post_xfer(const abi::direction&, const abi::transfer_list&, const abi::transfer_list&,
                               const std::string&, abi::request_handle*& handle,
                               const abi::transfer_options* options) const {
  if (is_forked()) return refuse_child();
  auto& wanted = static_cast<request&>(*handle);
  wanted.has_notification = options != nullptr && options->has_notification;
  if (wanted.has_notification) wanted.notification = options->notification;
  if (wanted.receiver != nullptr && wanted.receiver->is_lost()) return abi::status::remote_disconnect;
  for (const registration& each : wanted.used)
    if (each->load(std::memory_order_acquire))
      return refuse("a transfer", {EINVAL, "memory of it was deregistered since it was prepared: prepare another one"});
  if (auto begun = wanted.list.begin(); !begun) return refuse("a transfer", begun.error());
  if (!wanted.for_peer.empty()) {
    if (auto asked = wanted.receiver->begin_copy(wanted.copy, wanted.for_peer_used, wanted.is_into_peer, wanted.for_peer);
        !asked) {
      wanted.list.end();
      return refuse("a transfer", asked.error());
    }
  }
  return check_xfer(handle);
}

abi::status backend::check_xfer(abi::request_handle* handle) const {
  if (is_forked()) return refuse_child();
  auto& wanted = static_cast<request&>(*handle);
  auto done = wanted.list.test();
  if (!done) return refuse("a transfer", done.error());
  if (!*done) return abi::status::in_progress;
  using state = remote_copy::state;
  switch (wanted.copy->now.load(std::memory_order_acquire)) {
    case state::in_flight:
      return abi::status::in_progress;
    case state::lost:
      return abi::status::remote_disconnect;
    case state::failed:
      return refuse("a transfer by the other agent", {EIO, wanted.copy->reason});
    case state::idle:
    case state::done:
      break;
  }
  if (wanted.receiver != nullptr && wanted.receiver->is_lost()) return abi::status::remote_disconnect;
  if (std::exchange(wanted.has_notification, false))
    if (auto sent = notify(wanted.agent, wanted.receiver, wanted.notification); !sent) return code_of(sent.error());
  return abi::status::success;
}

abi::status backend::release_req_h(abi::request_handle* handle) const {
  if (is_forked()) return refuse_child();
  delete static_cast<request*>(handle);
  return abi::status::success;
}

// ---- What this backend does not have

abi::status backend::prep_mem_view(const void*, void*&, const abi::transfer_options*) const {
  return abi::status::not_supported;
}
abi::status backend::prep_mem_view(const abi::transfer_list&, void*&, const abi::transfer_options*) const {
  return abi::status::not_supported;
}
abi::status backend::query_mem(const abi::descriptor_list<abi::blob_descriptor>&,
                               std::vector<std::optional<abi::parameters>>&) const {
  return abi::status::not_supported;
}
abi::status backend::estimate_xfer_cost(const abi::direction&, const abi::transfer_list&, const abi::transfer_list&,
                                        const std::string&, abi::request_handle* const&, std::chrono::microseconds&,
                                        std::chrono::microseconds&, int&, const void*) const {
  return abi::status::not_supported;
}

}  // namespace pl::nixl
