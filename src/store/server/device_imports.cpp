// SPDX-License-Identifier: Apache-2.0
#include "store/server/device_imports.hpp"

#include <sys/socket.h>

#include <algorithm>
#include <asio/post.hpp>
#include <cerrno>
#include <cstring>
#include <utility>

#include "base/text.hpp"

namespace pl::store_server {

result<std::shared_ptr<device_imports>> device_imports::open(const environment& around, account_share bytes,
                                                             account_share objects) {
  auto words = dma::shared_host::make(store_protocol::kDeviceSlotBytes);
  if (!words) return words.error();
  auto shared = words->share();
  if (!shared) return shared.error();
  int ends[2] = {-1, -1};
  if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0)
    return failure{errno, format("no socket for device memory: %s", errno_text(errno).c_str())};
  unique_fd ours(real_device_io(), ends[0]), theirs(real_device_io(), ends[1]);
  if (auto sent = dma::send_region(ours.get(), *shared); !sent) return sent.error();
  std::shared_ptr<device_imports> made(new device_imports(around, *std::move(words), std::move(ours), std::move(theirs),
                                                          std::move(bytes), std::move(objects)));
  made->await_message();
  return made;
}

device_imports::device_imports(const environment& around, dma::shared_host words, unique_fd ours, unique_fd theirs,
                               account_share bytes, account_share objects)
    : around_(around),
      words_(std::move(words)),
      slots_(words_.data()),
      client_end_(std::move(theirs)),
      link_(around.home, ours.release()),
      bytes_(std::move(bytes)),
      objects_(std::move(objects)) {}

std::shared_ptr<device_memory> device_imports::find(std::uint32_t number) const {
  const auto found = memories_.find(number);
  return found == memories_.end() ? nullptr : found->second;
}

void device_imports::close() {
  closed_ = true;
  std::error_code ignored;
  link_.cancel(ignored);
  // The client can no longer send. It sees the end of the link later, when no transfer is in progress.
  (void)shutdown(link_.native_handle(), SHUT_RD);
  memories_.clear();
  coming_bytes_ = 0;
  count();
}

void device_imports::count() {
  std::uint64_t bytes = coming_bytes_;
  for (const auto& [number, memory] : memories_) bytes += memory->bound.size_bytes();
  bytes_.set(bytes);
  objects_.set(memories_.size() + (coming_bytes_ != 0 ? 1 : 0));
}

void device_imports::await_message() {
  link_.async_wait(asio::posix::stream_descriptor::wait_read, [weak = weak_from_this()](std::error_code error) {
    const auto me = weak.lock();
    if (!error && me && !me->closed_) me->take_message();
  });
}

// Reads one message; its size determines its type.
void device_imports::take_message() {
  char first = 0;
  const ssize_t bytes = recv(link_.native_handle(), &first, sizeof first, MSG_PEEK | MSG_TRUNC | MSG_DONTWAIT);
  if (bytes < 0 && (errno == EAGAIN || errno == EINTR)) return await_message();
  if (bytes == sizeof(store_protocol::device_release)) return take_release();
  auto offered = dma::receive_region(link_.native_handle(), 0);
  if (!offered) return close();  // the client has left, or sent something that is no region
  import(*std::move(offered));
}

void device_imports::take_release() {
  store_protocol::device_release asked{};
  const ssize_t bytes = recv(link_.native_handle(), &asked, sizeof asked, MSG_DONTWAIT);
  if (bytes != sizeof asked || asked.magic != store_protocol::kDeviceLinkMagic) return close();
  memories_.erase(asked.memory);
  count();
  await_message();
}

void device_imports::import(dma::shared_region offered) {
  const auto most = around_.most;
  if (offered.size_bytes <= most.bytes) {
    // Counts from now on, because other connections of the principal may hand over memory meanwhile.
    coming_bytes_ = offered.size_bytes;
    count();
  }
  if (coming_bytes_ == 0 || objects_.all() > most.objects || bytes_.all() > most.bytes) {
    coming_bytes_ = 0;
    count();
    return imported(failure{ENOSPC, format("%s has handed over %llu device memories of %s: more than it may "
                                           "(max_principal_device_memories, max_principal_device_bytes)",
                                           around_.principal.c_str(), static_cast<unsigned long long>(objects_.all()),
                                           format_size(bytes_.all()).c_str())});
  }
  around_.blocking.post(fair_workers::kind::brief, around_.principal, this,
                        [me = shared_from_this(), region = std::make_shared<dma::shared_region>(std::move(offered))] {
                          auto made =
                              std::make_shared<result<std::shared_ptr<device_memory>>>(me->around_.mover.import(*region));
                          asio::post(me->around_.home, [me, made] {
                            if (!me->closed_) me->imported(*std::move(made));
                          });
                        });
}

void device_imports::imported(result<std::shared_ptr<device_memory>> made) {
  std::uint32_t number = 0;
  coming_bytes_ = 0;
  if (made) {
    for (number = 1; memories_.contains(number);) ++number;
    memories_[number] = *std::move(made);
  }
  count();
  // It sends requests and does not read answers
  if (!reply(made ? status() : status(made.error()), number)) return close();
  await_message();
}

bool device_imports::reply(const status& outcome, std::uint32_t number) {
  store_protocol::device_reply answer;
  answer.status = outcome.code();
  answer.memory = number;
  if (!outcome) outcome.error().message.copy(answer.text, sizeof answer.text - 1);
  return send(link_.native_handle(), &answer, sizeof answer, MSG_NOSIGNAL | MSG_DONTWAIT) == sizeof answer;
}

}  // namespace pl::store_server
