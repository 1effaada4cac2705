// SPDX-License-Identifier: Apache-2.0
// Agents that know the secret, and stop in the middle, or never stop: the others are served all the same.
#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/mman.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <random>
#include <utility>

#include "test/compat/nixl/agent_fixture.hpp"
#include "test/support/descriptor_count.hpp"

namespace {

using namespace pl;
using namespace pl::test;
namespace abi = nixl::abi;  // not the compiler's, which gtest brings

class NixlHostileAgents : public NixlBackend {};

// Sends what goes without waiting, and takes it off. False: the other end has closed.
bool push(int socket, std::string& bytes) {
  while (!bytes.empty()) {
    const ssize_t sent = send(socket, bytes.data(), bytes.size(), MSG_DONTWAIT | MSG_NOSIGNAL);
    if (sent < 0) return errno == EAGAIN;
    bytes.erase(0, static_cast<std::size_t>(sent));
  }
  return true;
}

struct friendly : stranger {
  friendly(const agent& listener, const std::string& name) : stranger(listener) {
    say(nixl::message::hello, target.secret + name);
  }
};

// Another agent is heard at once, whatever these do and say.
void expect_service(const agent& one, const char* occasion) {
  const auto began = std::chrono::steady_clock::now();
  const friendly other(one, "other");
  other.say(nixl::message::notify, "good day");
  EXPECT_TRUE(holds_soon([&] {
    abi::notifications heard;
    (void)one.engine->get_notifs(heard);
    return std::find(heard.begin(), heard.end(), std::pair<std::string, std::string>("other", "good day")) != heard.end();
  })) << occasion;
  EXPECT_LT(std::chrono::steady_clock::now() - began, 4s) << occasion;
}

TEST_F(NixlHostileAgents, StoppedAgentsDelayNothing) {
  const agent one("one");
  const friendly half_head(one, "two"), half_payload(one, "three"), half_offer(one, "four");
  ASSERT_EQ(write(half_head.socket.get(), "PLN", 3), 3);
  expect_service(one, "a part of a head");
  const nixl::frame head{0x314e4c50, nixl::message::notify, 0, 0, 0, 1000};
  ASSERT_EQ(write(half_payload.socket.get(), &head, sizeof head), static_cast<ssize_t>(sizeof head));
  ASSERT_EQ(write(half_payload.socket.get(), "part", 4), 4);
  expect_service(one, "a part of a payload");
  const std::vector<nixl::shared_piece> pieces(3, {1 << 20, 1 << 20});
  half_offer.say(nixl::message::offer_memory, {nixl::bytes_of(pieces).data(), nixl::bytes_of(pieces).size()}, 7);
  expect_service(one, "an offer without its descriptors");
  ASSERT_EQ(write(half_offer.socket.get(), "PLR", 3), 3);
  expect_service(one, "a part of a descriptor's message");
  // The rest may come later.
  std::string rest(996, 'x');
  ASSERT_EQ(write(half_payload.socket.get(), rest.data(), rest.size()), 996);
  EXPECT_EQ(one.heard(), (abi::notifications{{"three", "part" + rest}}));
}

TEST_F(NixlHostileAgents, UnreadRepliesAreBoundedAndDelayNothing) {
  const agent one("one");
  const friendly asker(one, "two");
  const std::string question = nixl::encode_message(nixl::message::want_memory, 4711, 0, {});
  bool is_open = true;
  for (int sent = 0, still = 0; is_open && sent < 300'000 && still < 500;) {
    std::string now = question;
    is_open = push(asker.socket.get(), now);
    if (now.empty() && is_open) {
      ++sent, still = 0;
      continue;
    }
    ++still, std::this_thread::sleep_for(1ms);
    while (is_open && !now.empty() && now.size() < question.size()) is_open = push(asker.socket.get(), now);
  }
  expect_service(one, "answers that are not taken");
  EXPECT_FALSE(is_open) << "it may ask for ever";
}

TEST_F(NixlHostileAgents, ALengthTakesNoMemory) {
  const agent one("one");
  const auto resident = [] {
    unsigned long long whole = 0, pages = 0;
    std::ifstream("/proc/self/statm") >> whole >> pages;
    return pages * static_cast<std::uint64_t>(sysconf(_SC_PAGESIZE));
  };
  const auto before = resident();
  const friendly boaster(one, "two");
  const nixl::frame head{0x314e4c50, nixl::message::notify, 0, 0, 0, std::uint64_t{900} << 20};
  ASSERT_EQ(write(boaster.socket.get(), &head, sizeof head), static_cast<ssize_t>(sizeof head));
  ASSERT_EQ(write(boaster.socket.get(), "part", 4), 4);
  expect_service(one, "a long message");  // and so the length was read, too
  EXPECT_LT(resident() - std::min(before, resident()), std::uint64_t{200} << 20);
}

TEST_F(NixlHostileAgents, UnreadNotificationsAreBounded) {
  const agent one("one");
  const friendly talker(one, "two");
  const std::string note = nixl::encode_message(nixl::message::notify, 0, 0, nixl::text_bytes(std::string(1 << 20, 'n')));
  constexpr std::size_t kNotes = 150;
  std::size_t sent = 0;
  std::string now = note;
  for (int still = 0; sent < kNotes && still < 1000;) {
    const auto before = now.size();
    ASSERT_TRUE(push(talker.socket.get(), now));
    still = now.size() == before ? still + 1 : 0;
    if (now.empty()) ++sent, now = note;
    else std::this_thread::sleep_for(1ms);
  }
  EXPECT_GE(sent, 60u);
  EXPECT_LT(sent, 80u);
  // None is lost, and once they are taken the rest may come.
  std::size_t heard = 0;
  EXPECT_TRUE(holds_soon([&] {
    for (; sent < kNotes; ++sent, now = note) {
      if (!push(talker.socket.get(), now)) return true;
      if (!now.empty()) break;
    }
    abi::notifications got;
    if (one.engine->get_notifs(got) == code::success) heard += got.size();
    return heard == kNotes;
  }));
  EXPECT_EQ(heard, kNotes);
}

// ---- At random

// An agent that knows the secret, what is registered, and how messages look; and says anything.
class chatterer {
 public:
  struct knowledge {
    std::uint64_t host_id = 0, host_address = 0, device_id = 0, device_address = 0;
    const std::vector<nixl::shared_piece>& pieces;  // of memory of its own
    const std::vector<dma::shared_region>& regions;
  };
  chatterer(unsigned seed, const knowledge& known) : random_(seed), known_(known) {}

  void talk(const agent& one) {
    const friendly speaker(one, "chatterer " + std::to_string(random_() % 5));
    const int socket = speaker.socket.get();
    for (auto left = 1 + random_() % 8; left > 0; --left) {
      std::string bytes = message();
      if (random_() % 8 == 0) bytes.resize(random_() % (bytes.size() + 1));
      (void)push(socket, bytes);
      if (random_() % 3 == 0)
        for (auto count = random_() % 4; count > 0; --count) send_region(socket);
      char room[512];
      if (random_() % 3 == 0) (void)recv(socket, room, 1 + random_() % sizeof room, MSG_DONTWAIT);
    }
  }

 private:
  std::uint64_t some_id() {
    const std::uint64_t ids[] = {0, 5, 6, known_.host_id, known_.device_id, ~std::uint64_t{0}, random_()};
    return ids[random_() % std::size(ids)];
  }
  std::uint64_t near(std::uint64_t address) {
    const std::uint64_t edges[] = {
        0, 1, kBlock, kBytes - kBlock, kBytes, kBytes + 1, ~std::uint64_t{0}, std::uint64_t{1} << 63};
    return address + edges[random_() % std::size(edges)] - (random_() % 3 == 0 ? kBlock : 0);
  }
  template <class T>
  static std::string text_of(const std::vector<T>& items) {
    return {nixl::bytes_of(items).data(), nixl::bytes_of(items).size()};
  }
  std::string payload(nixl::message type) {
    if (random_() % 6 == 0) return std::string(random_() % 3000, static_cast<char>(random_()));
    if (type == nixl::message::copy) {
      std::vector<nixl::copy_block> blocks(random_() % 5);
      for (auto& one : blocks) {
        const std::uint64_t sizes[] = {0, 1, 64, kBlock, kBytes, kBytes + 1, ~std::uint64_t{0}, random_()};
        one = {random_() % 4 == 0 ? some_id() : 5, near(known_.pieces[0].begin),
               random_() % 4 == 0 ? some_id() : known_.host_id, near(known_.host_address),
               sizes[random_() % std::size(sizes)]};
      }
      return text_of(blocks);
    }
    if (type == nixl::message::offer_memory) {
      auto pieces = known_.pieces;
      if (random_() % 3 == 0) pieces[random_() % pieces.size()].size_bytes = near(0);
      if (random_() % 3 == 0) pieces.resize(random_() % 4, {near(known_.device_address), random_()});
      return text_of(pieces);
    }
    return "some words";
  }
  std::string message() {
    const auto type = static_cast<nixl::message>(random_() % 10 == 0 ? random_() : random_() % 10);
    std::string out = nixl::encode_message(type, random_() % 3 == 0 ? some_id() : 5,
                                           static_cast<std::int32_t>(random_() % 3), nixl::text_bytes(payload(type)));
    if (random_() % 20 == 0) out[random_() % sizeof(nixl::frame)] = static_cast<char>(random_());
    return out;
  }
  void send_region(int socket) {
    dma::shared_region out;
    const dma::shared_region& real = known_.regions[random_() % known_.regions.size()];
    out.memory = random_() % 4 == 0 ? dma::shared_region::kind::host : dma::shared_region::kind::device;
    out.gpu = real.gpu;
    out.offset = random_() % 2 == 0 ? real.offset : near(0) & ~std::uint64_t{4095};
    out.size_bytes = random_() % 2 == 0 ? real.size_bytes : (near(0) & ~std::uint64_t{4095}) + 4096;
    const auto choice = random_() % 5;
    out.fd = unique_fd(real_device_io(), choice < 3    ? fcntl(real.fd.get(), F_DUPFD_CLOEXEC, 0)
                                         : choice == 3 ? eventfd(0, EFD_CLOEXEC)
                                                       : memfd_create("forged", MFD_CLOEXEC | MFD_ALLOW_SEALING));
    (void)dma::send_region(socket, out, MSG_DONTWAIT);
  }

  std::mt19937_64 random_;
  const knowledge known_;
};

TEST_F(NixlHostileAgents, RandomMessagesDoNoHarm) {
  const agent one("one");
  const device_buffer device(kBytes), theirs(kBytes);
  // The registered part has neighbours that are not.
  std::vector<unsigned char> bytes(3 * kBytes, 7);
  agent::registered on_host, on_device;
  ASSERT_EQ(one.add(address(bytes) + kBytes, kBytes, abi::memory_type::dram, on_host), code::success);
  ASSERT_EQ(one.add(device.pointer(), kBytes, abi::memory_type::vram, on_device), code::success);
  nixl::gpu_table gpus;
  const auto offered = *nixl::memory::make_device(gpus, theirs.pointer(), kBytes);
  const auto pieces = offered->pieces();
  const auto regions = *offered->share();
  const char* const seed = std::getenv("PL_CHATTER_SEED");
  const char* const rounds = std::getenv("PL_CHATTER_ROUNDS");
  chatterer stranger(seed != nullptr ? static_cast<unsigned>(std::atoi(seed)) : 1,
                     {std::stoull(on_host.described.blob), on_host.described.address, std::stoull(on_device.described.blob),
                      device.pointer(), pieces, regions});
  const auto before = test::open_descriptor_count();
  for (int round = 0; round < (rounds != nullptr ? std::atoi(rounds) : 400); ++round) {
    stranger.talk(one);
    if (round % 50 != 49) continue;
    expect_service(one, "chatter");
    EXPECT_TRUE(holds_soon([&] { return test::open_descriptor_count() <= before; }))
        << test::open_descriptor_count() << " descriptors, " << before << " before";
    if (HasFailure()) break;
  }
  const auto is_as_before = [](unsigned char byte) { return byte == 7; };
  EXPECT_TRUE(std::all_of(bytes.begin(), bytes.begin() + kBytes, is_as_before)) << "before what is registered";
  EXPECT_TRUE(std::all_of(bytes.end() - kBytes, bytes.end(), is_as_before)) << "behind it";
  one.engine->deregister_mem(on_host.own);
  one.engine->deregister_mem(on_device.own);
}

}  // namespace
