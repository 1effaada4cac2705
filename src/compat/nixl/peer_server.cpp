// SPDX-License-Identifier: Apache-2.0
#include "compat/nixl/peer_server.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "os/blocked_signals.hpp"

namespace pl::nixl {

result<std::unique_ptr<peer_server>> peer_server::open(std::shared_ptr<gpu_table> gpus, std::shared_ptr<cpu_mover> mover) {
  std::unique_ptr<peer_server> made(new peer_server(std::move(gpus), std::move(mover)));
  made->address_ = {this_host(), "peerlane-nixl-" + random_text(), random_text(), this_process()};
  auto listener = listen_at(made->address_.socket);
  if (!listener) return listener.error();
  made->listener_ = *std::move(listener);
  made->wake_ = unique_fd(real_device_io(), eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!made->wake_) return failure{errno, format("no eventfd: %s", errno_text(errno).c_str())};
  try {
    made->thread_ = start_thread([server = made.get()] { server->work(); });
  } catch (const std::system_error&) {
    return failure{EAGAIN, "the thread that serves other agents could not be started: raise the limit of processes"};
  }
  return made;
}

peer_server::~peer_server() {
  {
    const std::lock_guard hold(mutex_);
    is_ending_ = true;
  }
  wake();
  if (thread_.joinable()) thread_.join();
  for (const auto& one : connections_) ::shutdown(one->socket.get(), SHUT_RDWR);  // also where a forked child has it open
  if (listener_) ::shutdown(listener_.get(), SHUT_RDWR);
}

void peer_server::wake() const {
  const std::uint64_t one = 1;
  [[maybe_unused]] const auto written = ::write(wake_.get(), &one, sizeof one);
}

void peer_server::add(const std::shared_ptr<memory>& own) {
  const std::lock_guard hold(mutex_);
  memory_[own->id()] = own;
}

void peer_server::remove(std::uint64_t id) {
  std::vector<std::shared_ptr<peer>> watching;
  {
    const std::lock_guard hold(mutex_);
    memory_.erase(id);
    watching = watched_;
  }
  for (const auto& one : watching) one->drop(id);
}

void peer_server::add_notification(const std::string& agent, const std::string& text) {
  const std::lock_guard hold(mutex_);
  notifications_.emplace_back(agent, text);
}

void peer_server::take_notifications(abi::notifications& out) {
  const std::lock_guard hold(mutex_);
  std::move(notifications_.begin(), notifications_.end(), std::back_inserter(out));
  notifications_.clear();
}

void peer_server::watch(const std::shared_ptr<peer>& spoken_to) {
  {
    const std::lock_guard hold(mutex_);
    watched_.push_back(spoken_to);
  }
  wake();
}

std::shared_ptr<memory> peer_server::find(std::uint64_t id) {
  const std::lock_guard hold(mutex_);
  const auto found = memory_.find(id);
  return found == memory_.end() ? nullptr : found->second;
}

// ---- The thread

void peer_server::work() {
  std::vector<pollfd> asked;
  std::vector<std::shared_ptr<peer>> watched;
  for (;;) {
    {
      const std::lock_guard hold(mutex_);
      if (is_ending_) break;
      std::erase_if(watched_, [](const auto& one) { return one->is_lost(); });
      watched = watched_;
    }
    std::erase_if(connections_, [](const auto& one) { return one->is_closed; });
    close_ungreeted();
    const int listening = monotonic_ns() >= accepts_from_ns_ ? listener_.get() : -1;
    asked.assign({{wake_.get(), POLLIN, 0}, {listening, POLLIN, 0}});
    for (const auto& one : connections_) asked.push_back({one->socket.get(), POLLIN, 0});
    for (const auto& one : watched) {
      asked.push_back({one->socket(), POLLIN, 0});
      asked.push_back({one->process_descriptor(), POLLIN, 0});  // a negative one is passed over
    }
    const std::size_t known = connections_.size();
    const int ready = ::poll(asked.data(), asked.size(), wait_limit_ms());
    if (ready > 0) {
      std::uint64_t ignored = 0;
      if (asked[0].revents != 0) [[maybe_unused]]
        const auto got = ::read(wake_.get(), &ignored, sizeof ignored);
      if (asked[1].revents != 0) accept_one();
      for (std::size_t i = 0; i < known; ++i)
        if (asked[2 + i].revents != 0) serve(connections_[i]);
      for (std::size_t i = 0; i < watched.size(); ++i) {
        if (asked[2 + known + 2 * i].revents != 0) watched[i]->receive();
        if (asked[3 + known + 2 * i].revents != 0) watched[i]->lose();
      }
    }
    if (!jobs_.empty()) {
      test_jobs();
      ::sched_yield();
    }
  }
  jobs_.clear();  // waits for what is under way
}

void peer_server::accept_one() {
  constexpr std::uint64_t kPauseNs = 100'000'000;
  unique_fd socket(real_device_io(), ::accept4(listener_.get(), nullptr, nullptr, SOCK_CLOEXEC));
  if (!socket && errno != EAGAIN && errno != ECONNABORTED && errno != EINTR) {
    PL_LOG(warn, "NIXL: another agent waits to be let in: %s", errno_text(errno).c_str());
    accepts_from_ns_ = monotonic_ns() + kPauseNs;
  }
  if (!socket || !peer_process(socket.get())) return;
  const auto ungreeted = std::count_if(connections_.begin(), connections_.end(),
                                       [](const auto& one) { return !one->has_greeted && !one->is_closed; });
  if (static_cast<std::size_t>(ungreeted) >= kMaxUngreeted) return;
  limit_waits(socket.get());
  auto made = std::make_shared<connection>();
  made->socket = std::move(socket);
  made->since_ns = monotonic_ns();
  connections_.push_back(std::move(made));
}

void peer_server::close_ungreeted() {
  const std::uint64_t now = monotonic_ns();
  std::erase_if(connections_,
                [now](const auto& one) { return !one->has_greeted && now - one->since_ns > kGreetingPatienceNs; });
}

// Of the next poll: jobs are tested all the time, and the clock is looked at for who has not greeted.
int peer_server::wait_limit_ms() const {
  constexpr int kBetweenLooksMs = 100;
  if (!jobs_.empty()) return 0;
  const bool checks = accepts_from_ns_ > monotonic_ns() || std::any_of(connections_.begin(), connections_.end(),
                                                                       [](const auto& one) { return !one->has_greeted; });
  return checks ? kBetweenLooksMs : -1;
}

// Without waiting: the thread serves the others meanwhile.
status peer_server::take_greeting(connection& asker) {
  auto came = receive_part(asker.socket.get(), asker.begun, kMaxGreetingBytes);
  if (!came) return came.error();
  if (!*came) return {};
  asker.begun.clear();
  return answer(asker, **came);
}

void peer_server::serve(const std::shared_ptr<connection>& asker) {
  status done;
  if (!asker->has_greeted) {
    done = take_greeting(*asker);
  } else if (auto got = receive_message(asker->socket.get()); !got) {
    done = got.error();
  } else if (got->head.type == message::copy) {
    begin_job(asker, *got);
  } else {
    done = answer(*asker, *got);
  }
  if (done) return;
  if (done.code() != EPIPE && done.code() != ECONNRESET)
    PL_LOG(warn, "NIXL: agent '%s' is cut off: %s", asker->agent.c_str(), done.error().message.c_str());
  ::shutdown(asker->socket.get(), SHUT_RDWR);
  asker->is_closed = true;
  std::erase_if(jobs_, [&asker](const job& one) { return one.asker == asker; });
}

status peer_server::answer(connection& asker, const received& got) {
  if (got.head.type == message::hello) {
    if (got.payload.compare(0, address_.secret.size(), address_.secret) != 0)
      return failure{EACCES, "it does not know the secret of this agent's metadata"};
    asker.agent = got.payload.substr(address_.secret.size());
    asker.has_greeted = true;
    return {};
  }
  if (!asker.has_greeted) return failure{EACCES, "it has not said who it is"};
  switch (got.head.type) {
    case message::notify:
      add_notification(asker.agent, got.payload);
      return {};
    case message::want_memory:
      return hand_over(asker, got.head.id);
    case message::offer_memory:
      return take_offer(asker, got);
    case message::drop_memory:
      asker.offered.erase(got.head.id);
      return {};
    default:
      return failure{EPROTO, "it sent a message that belongs into the other direction"};
  }
}

status peer_server::hand_over(connection& asker, std::uint64_t id) {
  const auto refuse = [&](const failure& reason) {
    return send_message(asker.socket.get(), message::given_memory, id, reason.code, text_bytes(reason.message));
  };
  const auto found = find(id);
  if (found == nullptr || found->type() != memory::kind::device)
    return refuse({ENOENT, "the memory is not registered any more: exchange the agents' metadata again"});
  auto regions = found->share();
  if (!regions) return refuse(regions.error());
  if (auto sent = send_message(asker.socket.get(), message::given_memory, id, 0, bytes_of(found->pieces())); !sent)
    return sent;
  for (const auto& one : *regions)
    if (auto sent = dma::send_region(asker.socket.get(), one); !sent) return sent;
  return {};
}

status peer_server::take_offer(connection& asker, const received& got) {
  const auto pieces = items_of<shared_piece>(got.payload);
  if (!pieces) return failure{EPROTO, "it offers memory that is not whole pieces"};
  std::vector<dma::shared_region> regions;
  for (std::size_t i = 0; i < pieces->size(); ++i) {
    auto region = dma::receive_region(asker.socket.get(), kPatienceMs);
    if (!region) return region.error();
    regions.push_back(*std::move(region));
  }
  auto imported = memory::import(*gpus_, *pieces, regions);
  if (!imported) {  // its copies will be refused, with this reason in the log
    PL_LOG(warn, "NIXL: memory of agent '%s' cannot be used: %s", asker.agent.c_str(), imported.error().message.c_str());
    return {};
  }
  asker.offered[got.head.id] = *std::move(imported);
  return {};
}

// ---- Copies for others

status peer_server::compile(connection& asker, const received& got, copy_list& list) {
  const auto blocks = items_of<copy_block>(got.payload);
  if (!blocks) return failure{EPROTO, "a copy that is not whole blocks"};
  copy_list::side host, device;
  std::uint64_t host_id = 0, device_id = 0;
  for (const copy_block& one : *blocks) {
    if (one.host_id != host_id) host.in = find(host_id = one.host_id);
    if (one.device_id != device_id) {
      const auto offered = asker.offered.find(device_id = one.device_id);
      device.in = offered == asker.offered.end() ? nullptr : offered->second;
    }
    if (host.in == nullptr || host.in->type() != memory::kind::host)
      return failure{ENOENT, "the host memory is not registered any more"};
    if (device.in == nullptr)
      return failure{ENOTSUP, "the GPU memory could not be taken over by the owner of the host memory"};
    host.address = one.host_address;
    device.address = one.device_address;
    const bool is_into_host = got.head.code == 1;
    if (auto added = list.add(is_into_host ? host : device, is_into_host ? device : host, one.size_bytes); !added)
      return added;
  }
  return list.begin();
}

void peer_server::begin_job(const std::shared_ptr<connection>& asker, const received& got) {
  job made{asker, got.head.id, std::make_unique<copy_list>(mover_)};
  if (auto begun = compile(*asker, got, *made.list); !begun)
    (void)send_message(asker->socket.get(), message::copied, got.head.id, begun.code(), text_bytes(begun.error().message));
  else jobs_.push_back(std::move(made));
}

void peer_server::test_jobs() {
  std::erase_if(jobs_, [](const job& one) {
    auto done = one.list->test();
    if (done && !*done) return false;
    const int socket = one.asker->socket.get();
    if (done) (void)send_message(socket, message::copied, one.id, 0, {});
    else (void)send_message(socket, message::copied, one.id, done.code(), text_bytes(done.error().message));
    return true;
  });
}

}  // namespace pl::nixl
