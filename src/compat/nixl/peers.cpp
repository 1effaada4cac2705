// SPDX-License-Identifier: Apache-2.0
#include "compat/nixl/peers.hpp"

#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

#include "base/text.hpp"

namespace pl::nixl {
namespace {

status do_handshake(int socket, const address& target, const std::string& own_name) {
  return send_message(socket, message::hello, 0, 0, text_bytes(target.secret + own_name));
}

}  // namespace

peer::peer(address target, unique_fd socket, std::string own_name)
    : target_(std::move(target)), own_name_(std::move(own_name)), socket_(std::move(socket)) {
  process_ = peer_process(socket_.get()).value_or(0);
#ifdef SYS_pidfd_open
  // A forked child of it may hold the connection open when it is dead.
  if (process_ > 0) process_fd_ = unique_fd(real_device_io(), static_cast<int>(syscall(SYS_pidfd_open, process_, 0)));
#endif
}

result<std::shared_ptr<peer>> peer::open(const address& target, const std::string& own_name) {
  auto socket = connect_to(target.socket);
  if (!socket) return socket.error();
  if (auto said = do_handshake(socket->get(), target, own_name); !said) return said.error();
  return std::shared_ptr<peer>(new peer(target, *std::move(socket), own_name));
}

void peer::lose() noexcept {
  is_lost_.store(true, std::memory_order_release);
  ::shutdown(socket_.get(), SHUT_RDWR);
  const std::lock_guard hold(mutex_);
  for (auto& [id, copy] : copies_) copy->now.store(remote_copy::state::lost, std::memory_order_release);
  copies_.clear();
}

status peer::send(message type, std::uint64_t id, std::int32_t code, std::span<const char> payload) {
  if (is_lost()) return failure{EPIPE, "the agent has ended"};
  status sent = send_message(socket_.get(), type, id, code, payload);
  if (!sent) lose();  // a part may be sent
  return sent;
}

status peer::notify(const std::string& text) {
  // The other agent would cut this one off, and with it all transfers.
  if (text.size() > kMaxPayloadBytes)
    return failure{EINVAL, format("a notification of %zu bytes: %llu are the limit, send it in parts", text.size(),
                                  static_cast<unsigned long long>(kMaxPayloadBytes))};
  const std::lock_guard hold(sending_);
  return send(message::notify, 0, 0, text_bytes(text));
}

result<std::shared_ptr<memory>> peer::fetch(gpu_table& gpus, std::uint64_t id) {
  auto socket = connect_to(target_.socket);
  if (!socket) return socket.error();
  if (auto said = do_handshake(socket->get(), target_, own_name_); !said) return said.error();
  if (auto asked = send_message(socket->get(), message::want_memory, id, 0, {}); !asked) return asked.error();
  auto answer = receive_message(socket->get());
  if (!answer) return answer.error();
  if (answer->head.code != 0) return failure{answer->head.code, answer->payload};
  const auto pieces = items_of<shared_piece>(answer->payload);
  if (answer->head.type != message::given_memory || !pieces) return failure{EPROTO, "the agent's answer contains no memory"};
  std::vector<dma::shared_region> regions;
  for (std::size_t i = 0; i < pieces->size(); ++i) {
    auto region = dma::receive_region(socket->get(), kTimeoutMs);
    if (!region) return region.error();
    regions.push_back(*std::move(region));
  }
  return memory::import(gpus, *pieces, regions);
}

// With sending_ held.
status peer::offer(const memory& own) {
  if (offered_.count(own.id()) != 0) return {};
  auto regions = own.share();
  if (!regions) return regions.error();
  if (auto sent = send(message::offer_memory, own.id(), 0, bytes_of(own.pieces())); !sent) return sent;
  for (const auto& one : *regions) {
    if (auto sent = dma::send_region(socket_.get(), one); !sent) {
      lose();
      return sent;
    }
  }
  offered_.insert(own.id());
  return {};
}

status peer::begin_copy(const std::shared_ptr<remote_copy>& copy, const std::vector<std::shared_ptr<memory>>& used,
                        bool is_write, const std::vector<copy_block>& blocks) {
  const std::lock_guard hold(sending_);
  for (const auto& one : used)
    if (auto given = offer(*one); !given) return given;
  std::uint64_t id = 0;
  {
    const std::lock_guard copies(mutex_);
    id = next_copy_++;
    copy->now.store(remote_copy::state::in_flight, std::memory_order_release);
    copies_[id] = copy;
  }
  status sent = send(message::copy, id, is_write ? 1 : 0, bytes_of(blocks));
  if (!sent) lose();  // again, if another thread did it before this copy was in the table: nobody would end the copy
  return sent;
}

void peer::drop(std::uint64_t memory_id) {
  const std::lock_guard hold(sending_);
  if (offered_.erase(memory_id) != 0) (void)send(message::drop_memory, memory_id, 0, {});
}

void peer::receive() {
  const auto came = receive_part(socket_.get(), begun_, kMaxHandshakeBytes);
  if (!came || (*came && (*came)->head.type != message::copied)) return lose();
  if (!*came) return;
  const received& got = **came;
  const std::lock_guard hold(mutex_);
  const auto found = copies_.find(got.head.id);
  if (found == copies_.end()) return;
  remote_copy& copy = *found->second;
  if (got.head.code != 0) copy.reason = got.payload;
  copy.now.store(got.head.code == 0 ? remote_copy::state::done : remote_copy::state::failed, std::memory_order_release);
  copies_.erase(found);
}

}  // namespace pl::nixl
