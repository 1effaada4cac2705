// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/join_acceptor.hpp"

#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>

#include "base/clock.hpp"
#include "base/text.hpp"

namespace pl::messaging {
namespace {

constexpr unsigned kHelloMs = 5000;  // time limit for a hello; afterwards the process counts as unauthenticated

}  // namespace

std::string own_host_name() {
  char name[256] = {};
  gethostname(name, sizeof name - 1);
  return name;
}

star_frame_head head_of(const job_settings& settings, star_frame_kind kind, std::uint64_t run) {
  star_frame_head head;
  head.kind = kind;
  head.rank = static_cast<std::uint32_t>(settings.rank);
  head.nodes = static_cast<std::uint32_t>(settings.size);
  head.nonce = run;
  return head;
}

std::vector<std::byte> text_to_prove(const star_frame_head& hello, std::span<const std::byte> host) {
  const std::uint64_t numbers[] = {hello.rank, hello.nodes, hello.nonce};
  const auto raw = std::as_bytes(std::span(numbers));
  std::vector<std::byte> out(raw.size() + host.size());
  std::copy(host.begin(), host.end(), std::copy(raw.begin(), raw.end(), out.begin()));
  return out;
}

void join_acceptor::reject(joining_process& candidate, const std::string& text) {
  static_cast<void>(candidate.stream.send(head_of(settings_, star_frame_kind::refusal, 0), bytes_of(text), kSendMs));
  rejected_ = text;
  if (settings_.report) settings_.report("rejected: " + text);
  candidate.is_over = true;
}

// Until a process is authenticated, nothing that it sends ends the run.
status join_acceptor::handle_frame(joining_process& candidate, star_frame&& said) {
  if (secret_.empty()) {
    candidate.is_over = true;
    return decide_(candidate, said.head, text_of(said.body));
  }
  if (!candidate.hello) return challenge(candidate, std::move(said)), status{};
  const auto shown = take_fixed<digest>(said.body);
  const auto host = std::span(std::as_const(candidate.hello->body)).subspan(candidate.peer_nonce.size());
  const auto wanted =
      prove(prover::joining, secret_, candidate.own, candidate.peer_nonce, text_to_prove(candidate.hello->head, host));
  if (said.head.kind != star_frame_kind::proof || !shown || !is_equal(*shown, wanted)) {
    reject(candidate,
           format("a process that says it is rank %u (%s) has another secret than rank 0 at %s; %s",
                  candidate.hello->head.rank, text_of(host).c_str(), settings_.rendezvous.text.c_str(), kHowToShare));
    return {};
  }
  candidate.is_over = true;
  candidate.stream.trust();
  return decide_(candidate, candidate.hello->head, text_of(host));
}

void join_acceptor::challenge(joining_process& candidate, star_frame&& hello) {
  const auto peer_nonce = take_fixed<nonce>(hello.body);
  const auto own = make_nonce();
  if (hello.head.kind != star_frame_kind::hello || hello.head.version != kFrameVersion || !peer_nonce || !own)
    return reject(candidate, format("a process without a secret, or with another version of peerlane, at %s; %s",
                                    settings_.rendezvous.text.c_str(), kHowToShare));
  candidate.peer_nonce = *peer_nonce;
  candidate.own = *own;
  candidate.hello = std::move(hello);
  const auto host = std::span(std::as_const(candidate.hello->body)).subspan(candidate.peer_nonce.size());
  const auto proof =
      prove(prover::rank_0, secret_, candidate.own, candidate.peer_nonce, text_to_prove(candidate.hello->head, host));
  std::vector<std::byte> body(candidate.own.begin(), candidate.own.end());
  body.insert(body.end(), proof.begin(), proof.end());
  candidate.is_over = !candidate.stream.send(head_of(settings_, star_frame_kind::challenge, 0), body, kSendMs);
}

// Disconnects the oldest process that has sent nothing. Processes that wait for the answer to their challenge are kept,
// because they may be ranks.
void join_acceptor::make_room() {
  if (joining_processes_.size() < max_joining()) return;
  const auto silent = std::find_if(joining_processes_.begin(), joining_processes_.end(),
                                   [](const joining_process& one) { return !one.hello; });
  joining_processes_.erase(silent == joining_processes_.end() ? joining_processes_.begin() : silent);
}

void join_acceptor::accept_all(int listener) {
  for (std::size_t taken = 0; taken < kMaxUnauthenticated; ++taken) {
    unique_fd socket(real_device_io(), accept4(listener, nullptr, nullptr, SOCK_CLOEXEC | SOCK_NONBLOCK));
    if (!socket) return;
    const bool is_known = !secret_.empty() || is_same_user(socket.get());
    prepare_connection(socket.get(), settings_.timeout_s);
    joining_process candidate{frame_stream(std::move(socket), kMaxUnauthenticatedBody), monotonic_ns()};
    if (!is_known) {
      reject(candidate, format("a process that is not of rank 0's user and machine, as far as the kernel tells, at %s; %s",
                               settings_.rendezvous.text.c_str(), kHowToShare));
      continue;
    }
    make_room();
    joining_processes_.push_back(std::move(candidate));
  }
}

status join_acceptor::serve() {
  for (auto candidate = joining_processes_.begin(); candidate != joining_processes_.end();) {
    star_frame said;
    auto whole = candidate->stream.receive(said);
    if (whole && *whole)
      if (auto fine = handle_frame(*candidate, std::move(said)); !fine) return fine;
    const bool is_slow = monotonic_ns() - candidate->arrived_ns > kHelloMs * std::uint64_t{1'000'000};
    candidate = !whole || candidate->is_over || is_slow ? joining_processes_.erase(candidate) : candidate + 1;
  }
  return {};
}

}  // namespace pl::messaging
