// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/rejoin_listener.hpp"

#include <sys/epoll.h>

#include "base/text.hpp"

namespace pl::messaging {

rejoin_listener::rejoin_listener(const job_settings& settings, const std::string& secret, unique_fd listener,
                                 std::uint64_t run)
    : settings_(settings),
      run_(run),
      listener_(std::move(listener)),
      epoll_(real_device_io(), epoll_create1(EPOLL_CLOEXEC)),
      acceptor_(settings, secret,
                [this](join_acceptor::joining_process& candidate, const star_frame_head& hello, const std::string& host) {
                  return judge(candidate, hello, host);
                }) {
  watch(listener_.get());
}

// A second call for the same descriptor has no effect.
void rejoin_listener::watch(int fd) const {
  epoll_event event{};
  event.events = EPOLLIN;
  epoll_ctl(epoll_.get(), EPOLL_CTL_ADD, fd, &event);
}

// Nothing that a connecting process sends ends the job; only the process itself is rejected.
status rejoin_listener::judge(join_acceptor::joining_process& candidate, const star_frame_head& hello,
                              const std::string& peer_info) {
  const int rank = static_cast<int>(hello.rank);
  const auto [host, claim] = parse_peer_info(peer_info, settings_.size);
  const std::string name = format("rank %d (%s)", rank, host.c_str());
  const auto refuse_it = [&](const std::string& reason) { return acceptor_.reject(candidate, reason), status{}; };
  if (hello.kind != star_frame_kind::hello || hello.nonce != settings_.job || hello.version != kFrameVersion)
    return refuse_it(name + " belongs to another run than rank 0 at " + settings_.rendezvous.text);
  if (hello.nodes != static_cast<std::uint32_t>(settings_.size))
    return refuse_it(format("%s says it is one of %u ranks, and the job has %d", name.c_str(), hello.nodes, settings_.size));
  if (rank < 1 || rank >= settings_.size)
    return refuse_it(format("rank %d cannot come back while rank 0 is alive; ranks 1 to %d can", rank, settings_.size - 1));
  if (claim) return refuse_it(name + " takes rank 0 for lost, which it is not: end it, and start it again");
  drop_gone();
  if (asking_.contains(rank)) return refuse_it(format("another process already asks to be rank %d", rank));
  candidate.stream.trust();
  take_over(rank, std::move(candidate.stream));
  return {};
}

void rejoin_listener::take_over(int rank, frame_stream stream) {
  watch(stream.fd());
  asking_.emplace(rank, std::move(stream));
  unreported_.push_back(rank);
}

// A process that asks to rejoin must not send anything before it is welcomed.
void rejoin_listener::drop_gone() {
  for (auto each = asking_.begin(); each != asking_.end();) {
    star_frame ignored;
    const auto whole = each->second.receive(ignored);
    each = !whole || *whole ? asking_.erase(each) : std::next(each);
  }
}

std::optional<int> rejoin_listener::next() {
  acceptor_.accept_all(listener_.get());
  static_cast<void>(acceptor_.serve());
  std::vector<pollfd> connections;
  acceptor_.add_descriptors(connections);
  for (const auto& each : connections) watch(each.fd);
  if (!asking_.empty()) drop_gone();
  if (unreported_.empty()) return std::nullopt;
  const int rank = unreported_.front();
  unreported_.pop_front();
  return rank;
}

result<frame_stream> rejoin_listener::admit(int rank, std::uint32_t incarnation) {
  drop_gone();
  const auto found = asking_.find(rank);
  if (found == asking_.end()) return failure{ECONNRESET, format("the process that asked to be rank %d is gone", rank)};
  frame_stream stream = std::move(found->second);
  asking_.erase(found);
  const auto sent =
      stream.send(head_of(settings_, star_frame_kind::welcome, run_), std::as_bytes(std::span(&incarnation, 1)), kSendMs);
  if (!sent) return sent.error();
  return stream;
}

void rejoin_listener::refuse(int rank, const std::string& reason) {
  const auto found = asking_.find(rank);
  if (found == asking_.end()) return;
  static_cast<void>(
      found->second.send(head_of(settings_, star_frame_kind::refusal, 0), std::as_bytes(std::span(reason)), kSendMs));
  asking_.erase(found);
  if (settings_.report) settings_.report("rejected: " + reason);
}

}  // namespace pl::messaging
