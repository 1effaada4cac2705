// SPDX-License-Identifier: Apache-2.0
#include "compat/nixl/peer_server.hpp"

#include <poll.h>
#include <sched.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <new>
#include <system_error>
#include <utility>

#include "base/clock.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "os/blocked_signals.hpp"

namespace pl::nixl {
namespace {

// What a notification counts, even one without text.
std::size_t counted_bytes(const std::string& text) { return text.size() + 256; }

}  // namespace

result<std::unique_ptr<peer_server>> peer_server::open(std::shared_ptr<gpu_table> gpus, std::shared_ptr<cpu_mover> mover) {
  std::unique_ptr<peer_server> made(new peer_server(std::move(gpus), std::move(mover)));
  made->address_ = {this_host(), "peerlane-nixl-" + random_text(), random_text(), this_process()};
  auto listener = listen_at(made->address_.socket);
  if (!listener) return listener.error();
  made->listener_ = *std::move(listener);
  made->wake_ = unique_fd(real_device_io(), eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK));
  if (!made->wake_) return failure{errno, format("no eventfd: %s", errno_text(errno).c_str())};
  auto started = try_start_thread("serves other agents", [server = made.get()] { server->work(); });
  if (!started) return started.error();
  made->thread_ = *std::move(started);
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
  notifications_.push_back({agent, text, nullptr});
}

void peer_server::take_notifications(abi::notifications& out) {
  bool was_full = false;  // for one of them
  {
    const std::lock_guard hold(mutex_);
    for (notification& one : notifications_) {
      if (one.counted_in != nullptr)
        was_full = one.counted_in->fetch_sub(counted_bytes(one.text)) >= kMaxNotificationBytes || was_full;
      out.emplace_back(std::move(one.agent), std::move(one.text));
    }
    notifications_.clear();
  }
  if (was_full) wake();
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
    close_in_handshake();
    const int listening = monotonic_ns() >= accepts_from_ns_ ? listener_.get() : -1;
    asked.assign({{wake_.get(), POLLIN, 0}, {listening, POLLIN, 0}});
    for (const auto& one : connections_) asked.push_back({one->socket.get(), events_of(*one), 0});
    for (const auto& one : watched) {
      asked.push_back({one->socket(), POLLIN, 0});
      asked.push_back({one->process_descriptor(), POLLIN, 0});  // poll() ignores a negative one
    }
    const std::size_t known = connections_.size();
    const int ready = ::poll(asked.data(), asked.size(), wait_limit_ms());
    if (ready > 0) {
      std::uint64_t ignored = 0;
      if (asked[0].revents != 0) [[maybe_unused]]
        const auto got = ::read(wake_.get(), &ignored, sizeof ignored);
      if (asked[1].revents != 0) accept_one();
      for (std::size_t i = 0; i < known; ++i)
        if (asked[2 + i].revents != 0) serve(connections_[i], asked[2 + i].revents);
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
  const auto in_handshake = std::count_if(connections_.begin(), connections_.end(),
                                          [](const auto& one) { return !one->is_handshake_done && !one->is_closed; });
  if (static_cast<std::size_t>(in_handshake) >= kMaxInHandshake) return;
  limit_waits(socket.get());
  auto made = std::make_shared<connection>();
  made->socket = std::move(socket);
  made->since_ns = monotonic_ns();
  connections_.push_back(std::move(made));
}

void peer_server::close_in_handshake() {
  const std::uint64_t now = monotonic_ns();
  std::erase_if(connections_,
                [now](const auto& one) { return !one->is_handshake_done && now - one->since_ns > kHandshakeTimeoutNs; });
}

// The limit of the next poll: jobs are tested all the time, and the clock is checked for connections that have not
// greeted.
int peer_server::wait_limit_ms() const {
  constexpr int kPollIntervalMs = 100;
  if (!jobs_.empty()) return 0;
  const bool checks =
      accepts_from_ns_ > monotonic_ns() ||
      std::any_of(connections_.begin(), connections_.end(), [](const auto& one) { return !one->is_handshake_done; });
  return checks ? kPollIntervalMs : -1;
}

short peer_server::events_of(const connection& one) {
  const bool listens = one.notification_bytes->load() < kMaxNotificationBytes;
  return static_cast<short>((listens ? POLLIN : 0) | (one.answers.empty() ? 0 : POLLOUT));
}

// At most one message of what has arrived: the others have their turn then.
status peer_server::receive(const std::shared_ptr<connection>& asker) {
  if (asker->offer) return go_on_with_offer(*asker);
  auto came =
      receive_part(asker->socket.get(), asker->begun, asker->is_handshake_done ? kMaxPayloadBytes : kMaxHandshakeBytes);
  if (!came) return came.error();
  if (!*came) return {};
  return (*came)->head.type == message::copy && asker->is_handshake_done ? begin_job(asker, **came) : answer(*asker, **came);
}

void peer_server::serve(const std::shared_ptr<connection>& asker, short events) {
  try {
    status done;
    if ((events & POLLOUT) != 0) done = send_answers(*asker);
    if (done && (events & ~POLLOUT) != 0) done = receive(asker);
    if (!done) cut_off(asker, done.error());
  } catch (const std::bad_alloc&) { cut_off(asker, {ENOMEM, "memory is exhausted"}); }
}

void peer_server::cut_off(const std::shared_ptr<connection>& asker, const failure& reason) {
  if (reason.code != EPIPE && reason.code != ECONNRESET)
    PL_LOG(warn, "NIXL: agent '%s' is cut off: %s", asker->agent.c_str(), reason.message.c_str());
  ::shutdown(asker->socket.get(), SHUT_RDWR);
  asker->is_closed = true;
  std::erase_if(jobs_, [&asker](const job& one) { return one.asker == asker; });
}

// Sends what is possible at once before this returns.
status peer_server::queue(connection& asker, answer_part part) {
  constexpr std::size_t kEachBytes = 256;  // of a part without bytes, too
  const auto* const text = std::get_if<std::string>(&part);
  asker.answer_bytes += kEachBytes + (text == nullptr ? 0 : text->size());
  asker.answers.push_back(std::move(part));
  if (auto sent = send_answers(asker); !sent) return sent;
  if (asker.answers.empty()) asker.answer_bytes = 0;
  if (asker.answer_bytes <= kMaxAnswerBytes) return {};
  return failure{ENOBUFS, "it sends requests and does not read the answers"};
}

status peer_server::send_answers(connection& asker) {
  while (!asker.answers.empty()) {
    if (auto* const text = std::get_if<std::string>(&asker.answers.front())) {
      if (auto sent = send_part(asker.socket.get(), *text); !sent) return sent;
      if (!text->empty()) return {};
    } else {
      const auto sent =
          dma::send_region(asker.socket.get(), std::get<dma::shared_region>(asker.answers.front()), MSG_DONTWAIT);
      if (sent.code() == EAGAIN) return {};
      if (!sent) return sent;
    }
    asker.answers.pop_front();
  }
  asker.answer_bytes = 0;
  return {};
}

status peer_server::answer(connection& asker, const received& got) {
  if (got.head.type == message::hello) {
    if (got.payload.compare(0, address_.secret.size(), address_.secret) != 0)
      return failure{EACCES, "it does not know the secret of this agent's metadata"};
    asker.agent = got.payload.substr(address_.secret.size());
    asker.is_handshake_done = true;
    return {};
  }
  if (!asker.is_handshake_done) return failure{EACCES, "it has not identified itself"};
  switch (got.head.type) {
    case message::notify:
      return take_notification(asker, got.payload);
    case message::want_memory:
      return hand_over(asker, got.head.id);
    case message::offer_memory:
      return begin_offer(asker, got);
    case message::drop_memory:
      asker.offered.erase(got.head.id);
      return {};
    default:
      return failure{EPROTO, "it sent a message that belongs into the other direction"};
  }
}

status peer_server::take_notification(connection& asker, const std::string& text) {
  const std::lock_guard hold(mutex_);
  notifications_.push_back({asker.agent, text, asker.notification_bytes});
  asker.notification_bytes->fetch_add(counted_bytes(text));
  return {};
}

status peer_server::hand_over(connection& asker, std::uint64_t id) {
  const auto refuse = [&](const failure& reason) {
    return queue(asker, encode_message(message::given_memory, id, reason.code, text_bytes(reason.message)));
  };
  const auto found = find(id);
  if (found == nullptr || found->type() != memory::kind::device)
    return refuse({ENOENT, "the memory is not registered any more: exchange the agents' metadata again"});
  auto regions = found->share();
  if (!regions) return refuse(regions.error());
  if (auto sent = queue(asker, encode_message(message::given_memory, id, 0, bytes_of(found->pieces()))); !sent) return sent;
  for (auto& one : *regions)
    if (auto sent = queue(asker, std::move(one)); !sent) return sent;
  return {};
}

status peer_server::begin_offer(connection& asker, const received& got) {
  auto pieces = items_of<shared_piece>(got.payload);
  if (!pieces) return failure{EPROTO, "it offers memory that is not whole pieces"};
  asker.offer.emplace();
  asker.offer->id = got.head.id;
  asker.offer->pieces = *std::move(pieces);
  return go_on_with_offer(asker);
}

status peer_server::go_on_with_offer(connection& asker) {
  begun_offer& offer = *asker.offer;
  while (offer.regions.size() < offer.pieces.size()) {
    auto region = offer.reader.take(asker.socket.get());
    if (!region) return region.error();
    if (!*region) return {};
    offer.regions.push_back(**std::move(region));
  }
  finish_offer(asker);
  return {};
}

void peer_server::finish_offer(connection& asker) {
  const begun_offer done = *std::exchange(asker.offer, std::nullopt);
  auto imported = memory::import(*gpus_, done.pieces, done.regions);
  if (!imported) {  // its copies will be refused, with this reason in the log
    PL_LOG(warn, "NIXL: memory of agent '%s' cannot be used: %s", asker.agent.c_str(), imported.error().message.c_str());
    return;
  }
  asker.offered[done.id] = *std::move(imported);
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
      return failure{ENOENT, "the host memory is no longer registered"};
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

status peer_server::begin_job(const std::shared_ptr<connection>& asker, const received& got) {
  job made{asker, got.head.id, std::make_unique<copy_list>(mover_)};
  if (auto begun = compile(*asker, got, *made.list); !begun)
    return queue(*asker, encode_message(message::copied, got.head.id, begun.code(), text_bytes(begun.error().message)));
  jobs_.push_back(std::move(made));
  return {};
}

void peer_server::test_jobs() {
  std::vector<std::pair<std::shared_ptr<connection>, failure>> gone;
  std::erase_if(jobs_, [&gone](const job& one) {
    auto done = one.list->test();
    if (done && !*done) return false;
    auto sent =
        queue(*one.asker, done ? encode_message(message::copied, one.id, 0, {})
                               : encode_message(message::copied, one.id, done.code(), text_bytes(done.error().message)));
    if (!sent) gone.emplace_back(one.asker, sent.error());
    return true;
  });
  for (const auto& [asker, reason] : gone) cut_off(asker, reason);
}

}  // namespace pl::nixl
