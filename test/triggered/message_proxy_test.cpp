// SPDX-License-Identifier: Apache-2.0
// Executor X by messages, alone: the CPU plays the stream, or the peer.
#include "triggered/message_proxy.hpp"

#include "test/triggered/stream_job.hpp"

namespace pl::triggered {
namespace {

using messaging::host_buffer;

constexpr std::uint32_t kWindow = 3, kChannel = 9;
constexpr std::size_t kWindowBytes = 1 << 20;

// One end, without a stream.
struct bare_end {
  std::unique_ptr<messaging::bootstrap> group;
  test::current_device device;
  test::device_buffer memory{kWindowBytes};
  copy::gpu_context gpu;
  std::unique_ptr<word_pool> words;
  std::unique_ptr<messaging::messenger> messages;
  std::unique_ptr<receive_slots> windows;
  std::unique_ptr<staging_pool> slots;
  std::shared_ptr<channel_core> core;
  std::shared_ptr<message_proxy> proxy;
  std::unique_ptr<proxy_thread> thread;

  int open(int rank, messaging::fork_bootstrap& sockets) {
    group = sockets.take(rank);
    auto found = copy::find_context(cuda(), 0, nullptr);
    CHECK_OK(found);
    gpu = *found;
    auto options = messaging::test_options();
    options.path = messaging::messenger_options::path_t::network;
    auto opened = messaging::messenger::open(nullptr, *group, options);
    CHECK_OK(opened);
    messages = std::move(*opened);
    if (rank != 0) return 0;
    auto made = word_pool::make(gpu, 4);
    CHECK_OK(made);
    words = std::move(*made);
    windows = std::make_unique<receive_slots>(gpu);
    windows->add(kWindow, memory.pointer(), kWindowBytes);
    windows->need();
    slots = std::make_unique<staging_pool>(gpu);
    auto ring = slots->take(windows->engine());
    CHECK_OK(ring);
    auto index = words->take();
    CHECK_OK(index);
    core = std::make_shared<channel_core>(*words, *index, 1, kChannel, channel_options{});
    thread = std::make_unique<proxy_thread>(*messages, run_mode::performance, 30s);
    EXPECT_TRUE(thread->start({}));
    proxy = std::make_shared<message_proxy>(core, *messages, *thread, *windows, std::move(*ring), put_chunking{}, 4096);
    return 0;
  }
  void start() { thread->add(core, proxy); }
  ~bare_end() {
    thread.reset();
    proxy.reset();
    core.reset();
  }
  bool wait_for(const std::function<bool()>& is_there) const {
    const auto end = std::chrono::steady_clock::now() + kTimeout;
    while (!is_there() && std::chrono::steady_clock::now() < end) sched_yield();
    return is_there();
  }
  std::uint64_t signal() const { return words->load(core->index, offsetof(gpu_words, signal)); }
};

int run_ends(const std::function<int(bare_end& end, int rank)>& body) {
  return messaging::fork_ranks(2, [&](int rank, messaging::fork_bootstrap& sockets) {
    bare_end end;
    if (const int line = end.open(rank, sockets)) return line;
    if (const int line = body(end, rank)) return line;
    CHECK_OK(end.group->barrier());
    return 0;
  });
}

int fill_ring(bare_end& end) {
  auto& proxy = *end.proxy;
  constexpr auto kPuts = message_proxy::kPuts;
  std::vector<std::byte*> places;
  for (std::uint64_t i = 1; i <= kPuts; ++i) {
    CHECK(proxy.has_room(128));
    proxy.publish({kWindow, 0, 128, i});
    const auto piece = proxy.piece_at(0);
    CHECK(proxy.pieces() == 1 && piece.staged == 0 && piece.doorbell_value == i && piece.bytes == 128);
    places.push_back(piece.host);
  }
  std::sort(places.begin(), places.end());
  CHECK(std::adjacent_find(places.begin(), places.end()) == places.end());
  CHECK(!proxy.has_room(0));
  end.start();
  __atomic_store_n(&end.core->host().doorbell, kPuts - 1, __ATOMIC_RELEASE);
  CHECK(end.wait_for([&] { return proxy.has_room(128); }));
  // The next ones take the places of the first; a large put's chunks wait for slots, beyond as many as there are.
  proxy.publish({kWindow, 0, kWindowBytes, kPuts + 1});
  CHECK(proxy.pieces() == kWindowBytes / (128 << 10));
  std::uint64_t chunk = 0;
  for (std::uint64_t number = kPuts + 1;; ++number) {
    for (std::uint64_t i = 0; i < proxy.pieces(); ++i) {
      ++chunk;
      CHECK(proxy.piece_at(i).staged == (chunk > kSlots ? chunk - kSlots : 0));
    }
    if (chunk > 2 * kSlots) break;
    proxy.publish({kWindow, 0, kWindowBytes, number + 1});
  }
  return 0;
}

TEST(message_proxy, small_puts_wait_for_nothing_and_the_ring_has_an_end) {
  EXPECT_EQ(run_ends([](bare_end& end, int rank) {
              if (rank == 0) {
                if (const int line = fill_ring(end)) return line;
              } else {
                std::vector<std::byte> taken(kSlotBytes);
                for (std::uint64_t i = 1; i < message_proxy::kPuts; ++i)
                  CHECK_OK(end.messages->recv(0, host_buffer(taken.data(), taken.size()),
                                              tag_of(message_kind::data, kChannel), messaging::kWholeTag, kTimeout));
              }
              return 0;
            }),
            0);
}

constexpr std::size_t kPieceBytes = 60'000, kPartBytes = 20'000;  // parts that a receive engine takes

// The messages of a piece, as a peer sends them.
struct piece_messages {
  std::vector<unsigned char> data = test::random_bytes(kPieceBytes, 11);
  chunk_head head;
  chunk_tail tail;
  piece_messages() {
    head.window = kWindow;
    head.offset = 24;
    head.bytes = kPieceBytes;
    head.message_bytes = kPartBytes;
    head.sequence = 1;
    tail.offset = head.offset;
  }
  status send(messaging::messenger& messages, std::size_t last_bytes = kPartBytes + sizeof(chunk_tail)) const {
    std::vector<unsigned char> first(kHeadBytes + kPartBytes), last(kPartBytes + sizeof tail);
    std::memcpy(first.data(), &head, sizeof head);
    std::memcpy(first.data() + kHeadBytes, data.data(), kPartBytes);
    std::memcpy(last.data(), data.data() + 2 * kPartBytes, kPartBytes);
    std::memcpy(last.data() + kPartBytes, &tail, sizeof tail);
    const auto tag = tag_of(message_kind::data, kChannel);
    if (auto sent = messages.send(0, host_buffer(first.data(), first.size()), tag, kTimeout); !sent) return sent;
    if (auto sent = messages.send(0, host_buffer(data.data() + kPartBytes, kPartBytes), tag, kTimeout); !sent) return sent;
    return messages.send(0, host_buffer(last.data(), last_bytes), tag, kTimeout);
  }
};

int run_peer(const std::function<void(piece_messages&)>& spoil, std::size_t last_bytes, const char* reason) {
  return run_ends([&](bare_end& end, int rank) {
    piece_messages messages;
    const auto right = messages.data;
    if (rank == 1) {
      spoil(messages);
      CHECK_OK(messages.send(*end.messages, last_bytes));
      CHECK_OK(end.group->barrier());
      return 0;
    }
    end.start();
    if (reason == nullptr) {
      CHECK(end.wait_for([&] { return end.signal() == 1; }));
      CHECK(test::device_bytes(end.memory.pointer() + 24, kPieceBytes) == right);
    } else {
      CHECK(end.wait_for([&] { return end.core->error == EPROTO; }));
      CHECK(end.core->failure_reason().find(reason) != std::string::npos);
      CHECK(end.wait_for([&] { return is_poisoned(end.signal()); }));
    }
    CHECK_OK(end.group->barrier());
    return 0;
  });
}

constexpr std::size_t kWhole = kPartBytes + sizeof(chunk_tail);

TEST(message_proxy, a_piece_in_several_messages_comes_whole) {
  EXPECT_EQ(run_peer([](piece_messages&) {}, kWhole, nullptr), 0);
  const with_variable off("PEERLANE_STREAM_RECEIVE", "off");
  EXPECT_EQ(run_peer([](piece_messages&) {}, kWhole, nullptr), 0);
}
TEST(message_proxy, a_piece_that_was_given_up_is_not_signalled) {
  EXPECT_EQ(run_peer([](piece_messages& m) { std::memset(static_cast<void*>(&m.tail), 0, sizeof m.tail); }, kWhole,
                     "abandoned a put"),
            0);
}

// Puts arrive in order, by any executor: the copy engine moves large ones, the CPU small ones in between.
int mix_sizes(bare_end& end, int rank) {
  constexpr std::uint64_t kPuts = 60;
  constexpr std::size_t kLarge = 32'000, kSmall = 40;
  auto expected = std::vector<unsigned char>(kLarge);
  const auto tag = tag_of(message_kind::data, kChannel);
  if (rank == 0) end.start();
  for (std::uint64_t i = 1; i <= kPuts; ++i) {
    const bool is_small = i % 3 == 0;
    const auto data = test::random_bytes(is_small ? kSmall : kLarge, i);
    const std::size_t offset = is_small ? i * 17 : 0;
    std::copy(data.begin(), data.end(), expected.begin() + static_cast<std::ptrdiff_t>(offset));
    if (rank == 0) continue;
    chunk_head head;
    head.window = kWindow;
    head.offset = offset;
    head.bytes = head.message_bytes = data.size();
    head.sequence = i;
    std::vector<unsigned char> message(kHeadBytes + data.size());
    std::memcpy(message.data(), &head, sizeof head);
    std::copy(data.begin(), data.end(), message.begin() + kHeadBytes);
    CHECK_OK(end.messages->send(0, host_buffer(message.data(), message.size()), tag, kTimeout));
  }
  if (rank == 0) {
    CHECK(end.windows->engine() != nullptr);
    CHECK(end.wait_for([&] { return end.signal() == kPuts; }));
    CHECK(test::device_bytes(end.memory.pointer(), kLarge) == expected);
  }
  CHECK_OK(end.group->barrier());
  return 0;
}

TEST(message_proxy, large_and_small_puts_land_in_their_order) {
  const with_variable delay("PEERLANE_SIM_DELAY", "50"), seed("PEERLANE_SIM_SEED", "3");
  EXPECT_EQ(run_ends(mix_sizes), 0);
}

// A window that is withdrawn while the engine writes into it: the copies end first, then the peer's puts are refused.
int withdraw_window(bare_end& end, int rank) {
  if (rank == 1) {
    const piece_messages messages;
    CHECK_OK(messages.send(*end.messages));
    CHECK_OK(end.group->barrier());
    return 0;
  }
  end.start();
  CHECK(end.wait_for([&] { return end.signal() == 1; }));
  end.windows->remove(kWindow);
  CHECK(end.windows->check(kWindow, 0, 1).code() == EPROTO);
  const auto begun = end.windows->engine()->begin(kWindow, 0, 0, 64);
  CHECK(begun && !*begun);
  CHECK_OK(end.group->barrier());
  return 0;
}
TEST(message_proxy, nothing_is_moved_into_a_window_that_was_withdrawn) { EXPECT_EQ(run_ends(withdraw_window), 0); }
TEST(message_proxy, parts_of_the_wrong_length_are_an_error) {
  EXPECT_EQ(run_peer([](piece_messages&) {}, kPartBytes, "does not fit the length of the piece"), 0);
  EXPECT_EQ(run_peer([](piece_messages& m) { m.head.message_bytes = 0; }, kWhole, "head does not fit"), 0);
  EXPECT_EQ(run_peer([](piece_messages& m) { m.head.bytes = 100; }, kWhole, "head does not fit"), 0);
  EXPECT_EQ(run_peer([](piece_messages& m) { m.head.magic = 7; }, kWhole, "head does not fit"), 0);
}
TEST(message_proxy, a_piece_beyond_its_window_or_out_of_turn_is_an_error) {
  EXPECT_EQ(run_peer([](piece_messages& m) { m.head.offset = kWindowBytes - kPartBytes - 1; }, kWhole, "of a window of"), 0);
  EXPECT_EQ(run_peer([](piece_messages& m) { m.head.offset = ~std::uint64_t{0} - 500; }, kWhole, "of a window of"), 0);
  EXPECT_EQ(run_peer([](piece_messages& m) { m.head.sequence = 2; }, kWhole, "after put 0"), 0);
}

}  // namespace
}  // namespace pl::triggered
