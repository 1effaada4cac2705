// SPDX-License-Identifier: Apache-2.0
#include "store/protocol/handshake.hpp"

#include <unistd.h>

#include <cerrno>

#include "base/clock.hpp"
#include "base/text.hpp"

namespace pl::store_client {
namespace {

using store_protocol::head;
using store_protocol::opcode;

struct answer {
  head header;
  store_protocol::tail fields;
};

// One request and its answer at a time.
class exchange {
 public:
  exchange(byte_channel& wire, unsigned timeout_ms)
      : wire_(wire), end_ns_(monotonic_ns() + std::uint64_t{timeout_ms} * 1'000'000) {}

  result<answer> ask(opcode op, std::string_view key, const store_protocol::tail& fields) {
    head header;
    header.op = op;
    std::string frame;
    if (auto done = store_protocol::encode(header, key, fields, frame); !done) return done.error();
    if (auto done = send(frame); !done) return done.error();
    std::string bytes(store_protocol::kHeadBytes, '\0');
    if (auto done = receive(bytes, 0); !done) return done.error();
    const auto head_bytes = std::as_bytes(std::span(bytes)).first<store_protocol::kHeadBytes>();
    const auto got = store_protocol::decode_head(head_bytes);
    if (!got) return got.error();
    bytes.resize(store_protocol::kHeadBytes + got->key_bytes + got->tail_bytes);
    if (auto done = receive(bytes, store_protocol::kHeadBytes); !done) return done.error();
    auto rest = store_protocol::decode_rest(*got, std::as_bytes(std::span(bytes)));
    if (!rest) return rest.error();
    return answer{*got, std::move(rest->fields)};
  }

 private:
  status wait(bool to_write) {
    const std::uint64_t now = monotonic_ns();
    if (now >= end_ns_) return failure{ETIMEDOUT, "the store did not answer the handshake"};
    wait_for(wire_.fd(), to_write, static_cast<unsigned>((end_ns_ - now) / 1'000'000 + 1));
    return {};
  }
  status send(std::string_view bytes) {
    while (!bytes.empty()) {
      const iovec one{const_cast<char*>(bytes.data()), bytes.size()};
      const auto sent = wire_.write({&one, 1});
      if (!sent) return sent.error();
      bytes.remove_prefix(*sent);
      if (*sent > 0) continue;
      if (auto done = wait(true); !done) return done;
    }
    return {};
  }
  status receive(std::string& destination, std::size_t offset) {
    while (offset < destination.size()) {
      const auto got = wire_.read(destination.data() + offset, destination.size() - offset);
      if (!got) return got.error();
      offset += *got;
      if (*got > 0) continue;
      if (auto done = wait(false); !done) return done;
    }
    return {};
  }
  byte_channel& wire_;
  std::uint64_t end_ns_;
};

// The kernel drops a descriptor for which the receiver has no number, and says nothing.
constexpr const char* kNoDescriptor = "does this process have as many open as it may (ulimit -n)?";

// Asks for a descriptor. A failure concerns the connection; a refusal leaves `fd` at -1 and gives the reason.
status ask_descriptor(exchange& talk, byte_channel& wire, opcode op, int& fd, std::string& refusal) {
  const auto given = talk.ask(op, {}, {});
  if (!given) return given.error();
  fd = wire.take_descriptor();
  if (given->header.status != 0) refusal = given->fields.text.value_or("the store refused");
  else if (fd < 0)
    return failure{EPROTO, format("the store's answer to %s arrived without a descriptor: %s", name_of(op), kNoDescriptor)};
  return {};
}

// A store that has no room for a connection closes it without a word, as it must not wait for a client that sends none.
failure unanswered(const byte_channel& wire, const failure& cause) {
  const bool is_tls = wire.way() == store_protocol::path::tls;  // names its own reasons
  if ((cause.code != EPIPE && cause.code != ECONNRESET) || is_tls) return cause;
  const bool is_tcp = wire.way() == store_protocol::path::tcp;
  return {cause.code, format("%s before it answered: it is ending, it has no room for another client (max_connections, "
                             "max_principal_connections, its ulimit -n)%s; its log says why",
                             cause.message.c_str(), is_tcp ? ", or it wants TLS" : "")};
}

failure refused(const answer& reply) { return {reply.header.status, reply.fields.text.value_or("the store refused")}; }

}  // namespace

result<handshake_result> do_handshake(byte_channel& wire, const handshake_request& request, unsigned timeout_ms) {
  exchange talk(wire, timeout_ms);
  store_protocol::tail hello;
  hello.handshake.emplace().session = request.last_session;
  hello.handshake->agent = "peerlane store client";
  hello.ucx = request.ucx;
  const auto welcome = talk.ask(opcode::hello, {}, hello);
  if (!welcome) return unanswered(wire, welcome.error());
  if (welcome->header.status != 0) return refused(*welcome);
  if (!welcome->fields.handshake) return failure{EPROTO, "the store's handshake has no content"};
  handshake_result out;
  out.server = *welcome->fields.handshake;
  out.ucx = welcome->fields.ucx.copy();
  out.ucx_refusal = welcome->fields.ucx_transports.value_or("the store has no UCX, or is told not to use it (\"ucx\")");
  for (const auto& [id, name] : request.pools) {
    const auto opened = talk.ask(opcode::pool_open, name, {});
    // A pool that no longer exists is reported to its users.
    if (!opened) return opened.error();
  }
  if (!request.attach) {
    out.why_no_shm = "shared memory was not wanted";
  } else if (wire.way() != store_protocol::path::unix_socket) {
    out.why_no_shm = "the store was reached by TCP: its memory can be mapped through its unix socket only";
  } else {
    const auto attached = talk.ask(opcode::attach, {}, {});
    if (!attached) return attached.error();
    out.arena_fd = wire.take_descriptor();
    out.memory = attached->fields.memory.copy();
    if (attached->header.status != 0) out.why_no_shm = refused(*attached).message;
    else if (out.arena_fd < 0 || !out.memory)
      return failure{EPROTO, format("the store's memory arrived without a descriptor: %s", kNoDescriptor)};
  }
  const bool is_local = wire.way() == store_protocol::path::unix_socket;
  if (request.device && (out.server.capabilities & store_protocol::capability::device) != 0 && is_local) {
    const status asked = ask_descriptor(talk, wire, opcode::device_link, out.device_fd, out.why_no_device);
    if (!asked) {
      if (out.arena_fd >= 0) close(out.arena_fd);
      return asked.error();
    }
  }
  // Comes last, because nothing goes through the socket after it.
  const bool has_rings = (out.server.capabilities & store_protocol::capability::rings) != 0;
  if (request.rings && has_rings && is_local) {
    std::string ignored;
    const status asked = ask_descriptor(talk, wire, opcode::rings, out.rings_fd, ignored);
    if (!asked) {
      for (const int fd : {out.arena_fd, out.device_fd})
        if (fd >= 0) close(fd);
      return asked.error();
    }
  }
  return out;
}

}  // namespace pl::store_client
