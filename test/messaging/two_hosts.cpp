// SPDX-License-Identifier: Apache-2.0
#include "test/messaging/two_hosts.hpp"

#include <arpa/inet.h>
#include <fcntl.h>
#include <linux/if.h>
#include <linux/if_tun.h>
#include <poll.h>
#include <sched.h>
#include <sys/ioctl.h>
#include <sys/mount.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <cstring>
#include <fstream>
#include <map>
#include <random>
#include <vector>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "os/device_io.hpp"

namespace pl::messaging {
namespace {

constexpr int kPacketBytes = 16000;       // large ones keep the wire's process from being what is tested
constexpr std::size_t kMaxQueued = 2000;  // then the wire drops, as a switch does

std::string refused(const char* step) { return format("%s: %s", step, errno_text(errno).c_str()); }

bool run(const std::string& command) { return std::system((command + " >/dev/null 2>&1").c_str()) == 0; }

// The interface of this namespace: up, with an address of its host.
std::string make_interface(unique_fd& cable, std::size_t rank) {
  cable = unique_fd(real_device_io(), open("/dev/net/tun", O_RDWR | O_CLOEXEC | O_NONBLOCK));
  if (!cable) return refused("opening /dev/net/tun");
  ifreq asked{};
  std::strcpy(asked.ifr_name, "wire0");
  asked.ifr_flags = IFF_TUN | IFF_NO_PI;
  if (ioctl(cable.get(), TUNSETIFF, &asked) != 0) return refused("making a TUN interface");
  const unique_fd socket_of(real_device_io(), socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  const auto set_address = [&](unsigned long request, const char* text) {
    auto& address = reinterpret_cast<sockaddr_in&>(asked.ifr_addr);
    address = {};
    address.sin_family = AF_INET;
    inet_pton(AF_INET, text, &address.sin_addr);
    return ioctl(socket_of.get(), request, &asked) == 0;
  };
  if (!set_address(SIOCSIFADDR, rank == 0 ? "10.77.0.1" : "10.77.0.2") || !set_address(SIOCSIFNETMASK, "255.255.255.0"))
    return refused("giving it an address");
  asked.ifr_mtu = kPacketBytes;
  if (ioctl(socket_of.get(), SIOCSIFMTU, &asked) != 0) return refused("setting its MTU");
  asked.ifr_flags = IFF_UP | IFF_RUNNING;
  if (ioctl(socket_of.get(), SIOCSIFFLAGS, &asked) != 0) return refused("switching it on");
  return {};
}

}  // namespace

std::string two_hosts::make_hosts(const std::function<std::string(std::size_t)>& make_one) {
  const unique_fd own(real_device_io(), open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
  std::string reason = own ? "" : refused("opening the network namespace");
  for (std::size_t rank = 0; rank < 2 && reason.empty(); ++rank) {
    if (unshare(CLONE_NEWNET) != 0) reason = refused("a network namespace (root is needed)");
    network_[rank] = unique_fd(real_device_io(), open("/proc/thread-self/ns/net", O_RDONLY | O_CLOEXEC));
    if (!network_[rank] && reason.empty()) reason = refused("opening the network namespace");
    if (reason.empty()) reason = make_one(rank);
  }
  if (own && setns(own.get(), CLONE_NEWNET) != 0 && reason.empty()) return refused("going back to the network namespace");
  return reason;
}

std::string two_hosts::make(const wire& between) {
  std::string reason = make_hosts([&](std::size_t rank) { return make_interface(cable_[rank], rank); });
  if (!reason.empty()) return reason;
  relay_ = fork();
  if (relay_ == 0) relay(between);
  return relay_ > 0 ? "" : refused("fork");
}

std::string two_hosts::make_rails(unsigned mbit_per_s) {
  for (const char* program : {"ip", "tc"})
    if (!run(format("command -v %s", program))) return format("%s is missing: apt-get install iproute2", program);
  return make_hosts([&](std::size_t rank) {
    std::string reason;
    for (int rail = 0; rail < 2 && reason.empty(); ++rail) reason = make_rail(rail, rank, mbit_per_s);
    return reason;
  });
}

// The second host makes the wire, when both namespaces are there.
std::string two_hosts::make_rail(int rail, std::size_t rank, unsigned mbit_per_s) const {
  if (rank == 0) return {};
  const std::string name = format("rail%d", rail);
  const std::string first = format("nsenter --net=/proc/%d/fd/%d ", getpid(), network_[0].get());
  if (!run(format("ip link add %s type veth peer name %s netns /proc/%d/fd/%d", name.c_str(), name.c_str(), getpid(),
                  network_[0].get())))
    return "a pair of veth interfaces cannot be made";
  for (const std::size_t host : {0, 1}) {
    const std::string inside = host == 0 ? first : "";
    if (!run(inside + format("ip addr add 10.77.%d.%zu/24 dev %s", rail, host + 1, name.c_str())) ||
        !run(inside + format("ip link set %s up", name.c_str())))
      return "an interface cannot be switched on";
    if (!run(inside + format("tc qdisc add dev %s root tbf rate %umbit burst 256k latency 20ms", name.c_str(), mbit_per_s)))
      return "the kernel has no tbf to shape an interface (CONFIG_NET_SCH_TBF)";
  }
  // The kernel says so within a second, and UCX passes over interfaces of which it does not.
  for (const std::string& inside : {first, std::string()})
    for (int i = 0; i < 100 && !run(inside + format("ip link show %s | grep -q 'state UP'", name.c_str())); ++i)
      usleep(20'000);
  return {};
}

bool two_hosts::cut_rail(int rail) { return run(format("ip link set rail%d down", rail)); }

// No packet fits a bucket of ten bytes.
bool two_hosts::silence_rail(int rail) {
  return run(format("tc qdisc replace dev rail%d root tbf rate 8bit burst 10 latency 1ms", rail));
}

std::uint64_t two_hosts::bytes_sent_by(int rail) {
  std::uint64_t bytes = 0;
  std::ifstream(format("/sys/class/net/rail%d/statistics/tx_bytes", rail)) >> bytes;
  return bytes;
}

two_hosts::~two_hosts() {
  if (relay_ <= 0) return;
  kill(relay_, SIGKILL);
  waitpid(relay_, nullptr, 0);
}

void two_hosts::cut() const { kill(relay_, SIGKILL); }

bool two_hosts::enter(int rank) const {
  if (setns(network_[static_cast<std::size_t>(rank)].get(), CLONE_NEWNET) != 0) return false;
  // UCX looks for interfaces in sysfs, which shows those of the namespace that mounted it.
  if (unshare(CLONE_NEWNS) != 0 || mount("none", "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return false;
  if (mount("sysfs", "/sys", "sysfs", 0, nullptr) != 0) return false;
  // Another boot is another machine to messages: their deaths are seen through the network only.
  char name[] = "/tmp/peerlane-host.XXXXXX";
  const unique_fd boot(real_device_io(), mkostemp(name, O_CLOEXEC));
  const bool is_set = dprintf(boot.get(), "00000000-0000-4000-8000-%012d\n", rank) > 0 &&
                      mount(name, "/proc/sys/kernel/random/boot_id", nullptr, MS_BIND, nullptr) == 0;
  unlink(name);
  return is_set;
}

bool two_hosts::switch_on_loopback() {
  ifreq asked{};
  std::strcpy(asked.ifr_name, "lo");
  asked.ifr_flags = IFF_UP | IFF_RUNNING;
  const unique_fd socket_fd(real_device_io(), socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0));
  return ioctl(socket_fd.get(), SIOCSIFFLAGS, &asked) == 0;
}

// Packets wait in the order of their delivery; with a spread of delays they overtake each other.
void two_hosts::relay(const wire& between) const {
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  std::mt19937_64 random(between.seed);
  std::uniform_real_distribution<double> fate(0, 1);
  std::uniform_int_distribution<std::uint64_t> delay_us(between.least_delay_us, between.most_delay_us);
  std::array<std::multimap<std::uint64_t, std::vector<char>>, 2> in_flight;  // by destination and time
  std::vector<char> packet(kPacketBytes + 100);
  for (;;) {
    auto next = monotonic_ns() + 100'000'000u;
    for (const auto& each : in_flight)
      if (!each.empty()) next = std::min(next, each.begin()->first);
    const auto now = monotonic_ns();
    const timespec wait{0, next > now ? static_cast<long>(next - now) : 0};
    std::array<pollfd, 2> ends{{{cable_[0].get(), POLLIN, 0}, {cable_[1].get(), POLLIN, 0}}};
    ppoll(ends.data(), ends.size(), &wait, nullptr);
    for (std::size_t source = 0; source < 2; ++source) {
      auto& queue = in_flight[1 - source];
      for (ssize_t n = 0; (n = read(cable_[source].get(), packet.data(), packet.size())) > 0;)
        if (fate(random) >= between.loss && queue.size() < kMaxQueued)
          queue.emplace(monotonic_ns() + delay_us(random) * 1000u, std::vector<char>(packet.begin(), packet.begin() + n));
    }
    for (std::size_t destination = 0; destination < 2; ++destination) {
      auto& queue = in_flight[destination];
      while (!queue.empty() && queue.begin()->first <= monotonic_ns()) {
        const auto& due = queue.begin()->second;
        if (write(cable_[destination].get(), due.data(), due.size()) < 0 && errno == EAGAIN) break;
        queue.erase(queue.begin());
      }
    }
  }
}

}  // namespace pl::messaging
