// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/launcher_rendezvous.hpp"

#include <arpa/inet.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netinet/in.h>

#include <algorithm>
#include <atomic>
#include <cerrno>
#include <cstring>
#include <sstream>
#include <utility>

#include "base/text.hpp"
#include "messaging/bootstrap/peer_identity.hpp"
#include "messaging/bootstrap/pmi_store.hpp"
#include "messaging/bootstrap/pmix_store.hpp"

namespace pl::messaging {
namespace {

constexpr const char* kMark = "peerlane-meeting-1";
constexpr std::size_t kMaxAddresses = 16;

sockaddr_in& ipv4(endpoint::address& one) { return reinterpret_cast<sockaddr_in&>(one.storage); }
sockaddr_in6& ipv6(endpoint::address& one) { return reinterpret_cast<sockaddr_in6&>(one.storage); }

endpoint::address address_of(const std::string& text, std::uint16_t port) {
  endpoint::address out;
  if (inet_pton(AF_INET, text.c_str(), &ipv4(out).sin_addr) == 1) {
    ipv4(out).sin_family = AF_INET;
    ipv4(out).sin_port = htons(port);
    out.length = sizeof(sockaddr_in);
  } else if (inet_pton(AF_INET6, text.c_str(), &ipv6(out).sin6_addr) == 1) {
    ipv6(out).sin6_family = AF_INET6;
    ipv6(out).sin6_port = htons(port);
    out.length = sizeof(sockaddr_in6);
  }
  return out;
}

std::string address_text(endpoint::address one) {
  char text[INET6_ADDRSTRLEN] = {};
  if (one.family() == AF_INET) inet_ntop(AF_INET, &ipv4(one).sin_addr, text, sizeof text);
  else inet_ntop(AF_INET6, &ipv6(one).sin6_addr, text, sizeof text);
  return text;
}

std::uint16_t port_of(endpoint::address one) {
  return ntohs(one.family() == AF_INET ? ipv4(one).sin_port : ipv6(one).sin6_port);
}

// IPv4 first. Link-local addresses are left out: they name an interface, whose name differs on other hosts.
bool is_publishable(const ifaddrs& one, bool is_loopback) {
  if (one.ifa_addr == nullptr || (one.ifa_flags & IFF_UP) == 0) return false;
  if (((one.ifa_flags & IFF_LOOPBACK) != 0) != is_loopback) return false;
  if (one.ifa_addr->sa_family == AF_INET) return true;
  return one.ifa_addr->sa_family == AF_INET6 &&
         !IN6_IS_ADDR_LINKLOCAL(&reinterpret_cast<const sockaddr_in6*>(one.ifa_addr)->sin6_addr);
}

// Loopback only if there is no other address: then the "hosts" are containers that share a network.
std::vector<endpoint::address> own_addresses(std::uint16_t port) {
  ifaddrs* all = nullptr;
  if (getifaddrs(&all) != 0) return {};
  std::vector<endpoint::address> out;
  for (const bool is_loopback : {false, true}) {
    if (!out.empty()) break;
    for (const int family : {AF_INET, AF_INET6})
      for (const ifaddrs* one = all; one != nullptr && out.size() < kMaxAddresses; one = one->ifa_next) {
        if (!is_publishable(*one, is_loopback) || one->ifa_addr->sa_family != family) continue;
        endpoint::address made;
        made.length = family == AF_INET ? sizeof(sockaddr_in) : sizeof(sockaddr_in6);
        std::memcpy(&made.storage, one->ifa_addr, made.length);
        (family == AF_INET ? ipv4(made).sin_port : ipv6(made).sin6_port) = htons(port);
        out.push_back(made);
      }
  }
  freeifaddrs(all);
  return out;
}

// Listens on all addresses, at a port that the kernel chooses.
result<unique_fd> listen_anywhere(std::uint16_t& port) {
  endpoint anywhere;
  anywhere.text = "any free port";
  anywhere.is_literal_loopback = true;  // use the address as written
  for (const char* text : {"::", "0.0.0.0"}) anywhere.addresses.push_back(address_of(text, 0));
  auto listener = listen_at(anywhere, SOMAXCONN);
  if (!listener) return listener;
  endpoint::address made;
  made.length = sizeof made.storage;
  if (getsockname(listener->get(), reinterpret_cast<sockaddr*>(&made.storage), &made.length) != 0)
    return failure{errno, "rank 0's port: " + errno_text(errno)};
  port = port_of(made);
  return listener;
}

std::string in_hex(const nonce& bytes) {
  std::string out;
  for (const std::byte one : bytes) out += format("%02x", static_cast<unsigned>(one));
  return out;
}

// The part of rank 0.
result<launcher_rendezvous> announce(std::unique_ptr<launcher_store> store, const std::string& key) {
  std::uint16_t port = 0;
  auto listener = listen_anywhere(port);
  if (!listener) return std::move(listener).error();
  const auto addresses = own_addresses(port);
  if (addresses.empty()) return failure{EADDRNOTAVAIL, "rank 0's host has no address that other hosts can reach"};
  const auto secret = make_nonce();
  if (!secret) return secret.error();
  const std::string text = rendezvous_text(addresses, in_hex(*secret));
  if (status published = store->publish(key, text); !published) return std::move(published).error();
  auto out = parse_rendezvous_text(text);
  if (!out) return out;
  out->listener = *std::move(listener);
  out->store = std::move(store);
  return out;
}

}  // namespace

std::string rendezvous_text(const std::vector<endpoint::address>& addresses, const std::string& secret) {
  std::string out = format("%s %s %u", kMark, secret.c_str(), port_of(addresses.front()));
  for (const auto& one : addresses) out += " " + address_text(one);
  return out;
}

result<launcher_rendezvous> parse_rendezvous_text(const std::string& text) {
  std::istringstream rest(text);
  std::string mark, address;
  std::uint16_t port = 0;
  launcher_rendezvous out;
  rest >> mark >> out.secret >> port;
  const bool is_begun = static_cast<bool>(rest) && mark == kMark && port != 0;
  while (is_begun && rest >> address) {
    const auto made = address_of(address, port);
    if (made.length == 0 || out.rendezvous.addresses.size() == kMaxAddresses)
      return failure{EPROTO, "rank 0 has published an invalid address at the launcher"};
    out.rendezvous.addresses.push_back(made);
    out.rendezvous.text += (out.rendezvous.text.empty() ? "" : ", ") + address;
  }
  if (out.rendezvous.addresses.empty())
    return failure{
        EPROTO,
        "what rank 0 has published at the launcher is not an address: start the same version of Peerlane on all ranks"};
  out.rendezvous.text = format("port %u of %s", port, out.rendezvous.text.c_str());
  return out;
}

bool is_launcher_store_offered() { return pmix_store::is_offered() || pmi_store::is_offered(); }

// One launcher may have started another one; then the variables of both are set.
result<std::unique_ptr<launcher_store>> open_launcher_store(int rank) {
  std::string reasons;
  const auto accept = [&](auto opened, const char* protocol) -> std::unique_ptr<launcher_store> {
    if (opened && (*opened)->rank() == rank) return *std::move(opened);
    reasons += (reasons.empty() ? "" : "; ") + (opened ? format("rank %d is %d to %s, which starts another job in this one",
                                                                rank, (*opened)->rank(), protocol)
                                                       : opened.error().message);
    return nullptr;
  };
  if (pmix_store::is_offered())
    if (auto store = accept(pmix_store::open(), "PMIx")) return store;
  if (pmi_store::is_offered())
    if (auto store = accept(pmi_store::open(), "PMI")) return store;
  return failure{ENOSYS, reasons};
}

result<launcher_rendezvous> arrange_rendezvous(int rank, unsigned timeout_s) {
  static std::atomic<unsigned> meetings{0};
  const std::string key = format("peerlane.meeting.%u", meetings++);
  auto store = open_launcher_store(rank);
  if (!store) return std::move(store).error();
  if (rank == 0) return announce(*std::move(store), key);
  auto text = (*store)->read(0, key, timeout_s);
  if (!text) return std::move(text).error();
  auto out = parse_rendezvous_text(*text);
  if (out) out->store = *std::move(store);
  return out;
}

}  // namespace pl::messaging
