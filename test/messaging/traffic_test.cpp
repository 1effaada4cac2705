// SPDX-License-Identifier: Apache-2.0
// Random traffic against a model. Each pair of processes draws the same list of messages from a seed; the receiver posts
// its receives in an order of its own, some with wildcards, early or late, into buffers that may be too short, and the
// model says which message each one gets.
#include <map>
#include <random>

#include "test/messaging/job.hpp"

namespace pl::messaging {
namespace {

// How many messages each process sends, and of how many bytes at most (a power of two).
struct volume {
  int messages = 60;
  int most = 20;
};

struct message {
  std::uint64_t tag;
  std::size_t bytes;
  bool from_device;
  std::uint64_t seed;
};

std::size_t random_size(std::mt19937_64& random, const volume& load) {
  const std::size_t most = std::size_t{1} << random() % static_cast<unsigned>(load.most + 1);
  return random() % (most + 1);
}

std::vector<message> messages_of(std::uint64_t seed, int source_rank, int destination_rank, const volume& load) {
  std::mt19937_64 random(seed * 100 + static_cast<unsigned>(source_rank * 10 + destination_rank));
  std::vector<message> out;
  for (int i = 0; i < load.messages; ++i)
    out.push_back({random() % 3, random_size(random, load), random() % 2 == 0, random()});
  return out;
}

// A receive that is under way, and what it must get.
struct expected {
  std::unique_ptr<piece> destination;
  request received;
  std::size_t capacity;
  message wanted;
};

int check(expected& one, int source) {
  const auto done = one.received.wait(kTimeout);
  const std::size_t fits = std::min(one.capacity, one.wanted.bytes);
  CHECK(done.code() == (one.wanted.bytes > one.capacity ? EMSGSIZE : 0));
  CHECK(one.received.info().bytes == one.wanted.bytes && one.received.info().tag == one.wanted.tag &&
        one.received.info().source == source);
  auto data = test::random_bytes(one.wanted.bytes, one.wanted.seed);
  data.resize(fits);
  CHECK(one.destination->get(fits) == data);
  return 0;
}

// Sends the whole list in order, a few at a time, while receives are posted: exact tags, or by a mask that takes any tag.
int talk_in_volume(const rank_context& ctx, std::uint64_t seed, const volume& load = {}) {
  const int peer = 1 - ctx.rank;
  const auto outgoing = messages_of(seed, ctx.rank, peer, load);
  auto incoming = messages_of(seed, peer, ctx.rank, load);
  std::mt19937_64 random(seed * 7 + static_cast<unsigned>(ctx.rank));
  std::vector<std::unique_ptr<piece>> kept;
  std::vector<request> sends;
  std::vector<expected> receives;
  std::size_t sent = 0;
  while (sent < outgoing.size() || !incoming.empty()) {
    const auto dice = random() % 4;
    if (dice < 2 && sent < outgoing.size()) {
      const auto& one = outgoing[sent++];
      kept.push_back(std::make_unique<piece>(one.from_device, one.bytes));
      kept.back()->set(test::random_bytes(one.bytes, one.seed));
      sends.push_back(ctx.messenger->isend(peer, kept.back()->all(), one.tag));
    } else if (dice == 2 && !incoming.empty()) {
      // Receives are posted one by one, so the model is: the first message in sending order that fits.
      const bool is_wild = random() % 3 == 0;
      const std::uint64_t tag = is_wild ? 0 : incoming[random() % incoming.size()].tag;
      auto found = incoming.begin();
      while (!is_wild && found->tag != tag) ++found;
      const std::size_t capacity = random() % 8 == 0 ? found->bytes / 2 : found->bytes;
      expected one{std::make_unique<piece>(random() % 2 == 0, capacity), {}, capacity, *found};
      one.received =
          ctx.messenger->irecv(random() % 2 == 0 ? peer : kAnySource, one.destination->all(), tag, is_wild ? 0 : kWholeTag);
      incoming.erase(found);
      receives.push_back(std::move(one));
    } else {
      ctx.messenger->progress();
    }
    if (receives.size() > 8) {
      for (auto& one : receives)
        if (const int line = check(one, peer)) return line;
      receives.clear();
    }
    if (receives.empty()) continue;
    // Every other process must be able to end what it waits for.
    ctx.messenger->progress();
  }
  for (auto& one : receives)
    if (const int line = check(one, peer)) return line;
  for (auto& each : sends) CHECK_OK(each.wait(kTimeout));
  CHECK_OK(ctx.messenger->barrier(kTimeout));
  CHECK(ctx.messenger->counts().unexpected_bytes == 0);
  return 0;
}

class traffic : public testing::TestWithParam<int> {};
INSTANTIATE_TEST_SUITE_P(seeds, traffic, testing::Range(1, 4));

TEST_P(traffic, two_gpus) {
  const auto seed = static_cast<std::uint64_t>(GetParam());
  EXPECT_EQ(run_job(2, gpus::one_each, test_options(), [&](const rank_context& ctx) { return talk_in_volume(ctx, seed); }),
            0);
}

TEST_P(traffic, one_gpu_small_chunks) {
  const auto seed = static_cast<std::uint64_t>(GetParam()) + 100;
  auto options = test_options();
  options.chunk_bytes = 8192;
  options.use_ipc = options.use_channels = false;
  EXPECT_EQ(run_job(2, gpus::shared, options, [&](const rank_context& ctx) { return talk_in_volume(ctx, seed); }), 0);
}

TEST_P(traffic, network) {
  const auto seed = static_cast<std::uint64_t>(GetParam()) + 200;
  auto options = test_options();
  options.path = messenger_options::path_t::network;
  options.chunk_bytes = 64 << 10;
  EXPECT_EQ(run_job(2, gpus::one_each, options, [&](const rank_context& ctx) { return talk_in_volume(ctx, seed); }), 0);
}

// Messages from host memory by UCX's rendezvous, as where it has RDMA: in place, and in parts to GPU memory and where the
// buffer is too short.
TEST_P(traffic, rendezvous) {
  const auto seed = static_cast<std::uint64_t>(GetParam()) + 300;
  auto options = test_options();
  options.path = messenger_options::path_t::network;
  options.rendezvous = messenger_options::rendezvous_t::always;
  options.chunk_bytes = 64 << 10;
  EXPECT_EQ(run_job(2, gpus::one_each, options, [&](const rank_context& ctx) { return talk_in_volume(ctx, seed); }), 0);
  const volume large{.messages = 20, .most = 26};
  EXPECT_EQ(run_job(2, gpus::one_each, options, [&](const rank_context& ctx) { return talk_in_volume(ctx, seed, large); }),
            0);
}

}  // namespace
}  // namespace pl::messaging
