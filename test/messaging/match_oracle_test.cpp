// SPDX-License-Identifier: Apache-2.0
// Matching against a linear list that is too simple to be wrong, and the number of comparisons, which shows a walk over all
// receives or messages on any machine.
#include <algorithm>
#include <list>
#include <random>

#include "messaging/tag_match.hpp"
#include "test/messaging/job.hpp"

namespace pl::messaging {
namespace {

constexpr std::uint64_t kHighHalf = 0xffffffff00000000ull;

// The same rules over two lists in order.
class oracle {
 public:
  void post(operation& receive) { receives_.push_back(&receive); }
  operation* take_receive(int source, std::uint64_t tag) {
    return take(receives_, [&](const operation& each) { return fits(each.peer, each.tag, each.mask, source, tag); });
  }
  void remove_receive(operation& receive) { receives_.remove(&receive); }
  void hold(operation& message) { messages_.push_back(&message); }
  operation* find_unexpected(int source, std::uint64_t tag, std::uint64_t mask) const {
    for (operation* each : messages_)
      if (fits(source, tag, mask, each->info.source, each->info.tag)) return each;
    return nullptr;
  }
  operation* find_rendezvous(int source, std::uint64_t sender_operation) const {
    for (operation* each : messages_)
      if (each->is_rendezvous && each->info.source == source && each->peer_op == sender_operation) return each;
    return nullptr;
  }
  void remove_unexpected(operation& message) { messages_.remove(&message); }
  const std::list<operation*>& receives() const { return receives_; }
  const std::list<operation*>& messages() const { return messages_; }

 private:
  static bool fits(int wanted, std::uint64_t wanted_tag, std::uint64_t mask, int source, std::uint64_t tag) {
    return (wanted == kAnySource || wanted == source) && (wanted_tag & mask) == (tag & mask);
  }
  template <class Fits>
  static operation* take(std::list<operation*>& all, Fits fits) {
    const auto found = std::find_if(all.begin(), all.end(), [&](operation* each) { return fits(*each); });
    if (found == all.end()) return nullptr;
    operation* const out = *found;
    all.erase(found);
    return out;
  }
  std::list<operation*> receives_, messages_;
};

// A tag_matcher, and the operations that it is given.
struct filled_matcher {
  operation& post(int source, std::uint64_t tag, std::uint64_t mask) {
    auto& receive = pool.take(operation_kind::receive);
    receive.peer = source;
    receive.tag = tag;
    receive.mask = mask;
    matcher.post(receive);
    return receive;
  }
  operation& hold(int source, std::uint64_t tag, std::uint64_t sender_operation = 0) {
    auto& message = pool.take(operation_kind::unexpected);
    message.info = {source, tag, 0};
    message.is_rendezvous = sender_operation != 0;
    message.peer_op = sender_operation;
    matcher.hold(message);
    return message;
  }
  operation_pool pool{nullptr};
  tag_matcher matcher;
};

// A tag_matcher and an oracle that get the same calls; each call answers whether both agreed.
class twins {
 public:
  operation& post(int source, std::uint64_t tag, std::uint64_t mask) {
    operation& receive = made_.post(source, tag, mask);
    oracle_.post(receive);
    return receive;
  }
  // A message arrives: to the receive that it matches, else it is held.
  bool arrive(int source, std::uint64_t tag, std::uint64_t sender_operation) {
    operation* const wanted = oracle_.take_receive(source, tag);
    if (made_.matcher.take_receive(source, tag) != wanted) return false;
    if (wanted != nullptr) return made_.pool.give_back(*wanted), true;
    oracle_.hold(made_.hold(source, tag, sender_operation));
    return true;
  }
  bool probe(int source, std::uint64_t tag, std::uint64_t mask) {
    return made_.matcher.find_unexpected(source, tag, mask) == oracle_.find_unexpected(source, tag, mask);
  }
  // A receive: takes the message that it matches, else it is posted.
  bool receive(int source, std::uint64_t tag, std::uint64_t mask) {
    if (!probe(source, tag, mask)) return false;
    if (operation* const found = oracle_.find_unexpected(source, tag, mask)) drop(*found);
    else post(source, tag, mask);
    return true;
  }
  bool retract(int source, std::uint64_t sender_operation) {
    operation* const found = oracle_.find_rendezvous(source, sender_operation);
    if (made_.matcher.find_rendezvous(source, sender_operation) != found) return false;
    if (found != nullptr) drop(*found);
    return true;
  }
  void cancel(operation& receive) {
    made_.matcher.remove_receive(receive);
    made_.matcher.remove_receive(receive);  // without effect
    oracle_.remove_receive(receive);
    made_.pool.give_back(receive);
  }
  void drop(operation& message) {
    made_.matcher.remove_unexpected(message);
    made_.matcher.remove_unexpected(message);  // without effect
    oracle_.remove_unexpected(message);
    made_.pool.give_back(message);
  }
  const oracle& simple() const { return oracle_; }
  const tag_matcher& matcher() const { return made_.matcher; }

 private:
  filled_matcher made_;
  oracle oracle_;
};

template <class Random>
operation& any_of(const std::list<operation*>& all, Random& random) {
  return **std::next(all.begin(), static_cast<std::ptrdiff_t>(random() % all.size()));
}

// `masks`: how many different ones the receives use; more than the tables that the messages have at a time in some rounds.
void run_random(unsigned seed, std::size_t masks) {
  std::mt19937_64 random(seed);
  twins both;
  std::vector<std::uint64_t> mask_choice{kWholeTag, 0, kHighHalf, ~kHighHalf};
  while (mask_choice.size() < masks) mask_choice.push_back(random());
  mask_choice.resize(masks);
  const auto source = [&] { return random() % 3 == 0 ? kAnySource : static_cast<int>(random() % 4); };
  const auto tag = [&] { return (random() % 3) << 32 | random() % 5; };
  const auto mask = [&] { return mask_choice[random() % masks]; };
  // Phases with many arrivals, and with many receives: the lists become long and empty again.
  for (int step = 0; step < 20000; ++step) {
    const unsigned arrivals = step / 500 % 2 == 0 ? 70 : 25;
    const auto choice = static_cast<unsigned>(random() % 100);
    const auto& simple = both.simple();
    if (choice < arrivals) {
      ASSERT_TRUE(both.arrive(static_cast<int>(random() % 4), tag(), random() % 2 * (random() % 40 + 1))) << step;
    } else if (choice < 90) {
      ASSERT_TRUE(both.receive(source(), tag(), mask())) << step;
    } else if (choice < 92) {
      ASSERT_TRUE(both.probe(source(), tag(), mask())) << step;
    } else if (choice < 94) {
      ASSERT_TRUE(both.retract(static_cast<int>(random() % 4), random() % 40 + 1)) << step;
    } else if (choice < 97) {
      if (!simple.receives().empty()) both.cancel(any_of(simple.receives(), random));
    } else if (!simple.messages().empty()) {
      both.drop(any_of(simple.messages(), random));
    }
  }
  // What is left must still come out in order.
  while (!both.simple().messages().empty()) ASSERT_TRUE(both.receive(kAnySource, 0, 0));
  ASSERT_TRUE(both.probe(kAnySource, 0, 0));
  while (!both.simple().receives().empty()) {
    const operation& first = *both.simple().receives().front();
    ASSERT_TRUE(both.arrive(std::max(first.peer, 0), first.tag, 0));
  }
}

TEST(match_oracle, random_calls_agree) {
  for (const std::size_t masks : {1, 2, 4, 30})
    for (unsigned seed = 1; seed <= 4; ++seed) {
      SCOPED_TRACE(seed);
      run_random(seed, masks);
    }
}

TEST(match_oracle, an_eager_message_is_not_retracted) {
  twins both;
  for (int i = 0; i < 100; ++i) ASSERT_TRUE(both.arrive(1, 5, 0));
  ASSERT_TRUE(both.arrive(1, 5, 77));
  ASSERT_TRUE(both.retract(1, 0));
  ASSERT_TRUE(both.retract(2, 77));
  EXPECT_EQ(both.simple().messages().size(), 101u);
  ASSERT_TRUE(both.retract(1, 77));
  EXPECT_EQ(both.simple().messages().size(), 100u);
}

// ---- The work: comparisons for each message, whatever the number of messages

struct pattern {
  const char* name;
  int source;          // of the receives
  std::uint64_t mask;  // of the receives
  unsigned shift;      // of the number in the tag
};

constexpr pattern kPatterns[] = {
    {"exact", 0, kWholeTag, 0},
    {"exact, the number in the high half", 0, kWholeTag, 32},
    {"any source, whole tags", kAnySource, kWholeTag, 0},
    {"one source, a mask", 0, kHighHalf, 32},
    {"any source, a mask", kAnySource, kHighHalf, 40},
};

constexpr std::uint64_t kMany = 20000;
constexpr std::uint64_t kMaxComparisons = 8;  // for each message; a walk compares half of kMany

TEST(match_work, receives_matched_in_reverse) {
  for (const pattern& each : kPatterns) {
    SCOPED_TRACE(each.name);
    filled_matcher made;
    for (std::uint64_t i = 0; i < kMany; ++i) made.post(each.source, i << each.shift, each.mask);
    for (std::uint64_t i = kMany; i-- > 0;) {
      const operation* const found = made.matcher.take_receive(0, i << each.shift);
      ASSERT_TRUE(found != nullptr && found->tag == i << each.shift);
    }
    EXPECT_LE(made.matcher.comparisons(), kMany * kMaxComparisons);
  }
}

TEST(match_work, messages_taken_in_reverse) {
  for (const pattern& each : kPatterns) {
    SCOPED_TRACE(each.name);
    filled_matcher made;
    for (std::uint64_t i = 0; i < kMany; ++i) made.hold(0, i << each.shift);
    for (std::uint64_t i = kMany; i-- > 0;) {
      operation* const found = made.matcher.find_unexpected(each.source, i << each.shift, each.mask);
      ASSERT_TRUE(found != nullptr && found->info.tag == i << each.shift);
      made.matcher.remove_unexpected(*found);
    }
    EXPECT_LE(made.matcher.comparisons(), kMany * kMaxComparisons);
  }
}

// All patterns at once: each message asks each class.
TEST(match_work, mixed_classes) {
  filled_matcher made;
  for (std::uint64_t i = 0; i < kMany; ++i) {
    const pattern& each = kPatterns[i % std::size(kPatterns)];
    made.post(each.source, i << 32, each.mask);
  }
  for (std::uint64_t i = kMany; i-- > 0;) ASSERT_NE(made.matcher.take_receive(0, i << 32), nullptr);
  EXPECT_LE(made.matcher.comparisons(), kMany * kMaxComparisons * std::size(kPatterns));
}

TEST(match_work, nothing_matches_among_many_of_another_kind) {
  filled_matcher made;
  for (std::uint64_t i = 0; i < kMany; ++i) made.hold(1, i);
  for (std::uint64_t i = 0; i < kMany; ++i) {
    ASSERT_EQ(made.matcher.find_unexpected(2, i, kWholeTag), nullptr);
    ASSERT_EQ(made.matcher.find_unexpected(2, 0, 0), nullptr);
    ASSERT_EQ(made.matcher.find_unexpected(kAnySource, 1ull << 40 | i, kHighHalf), nullptr);
  }
  EXPECT_LE(made.matcher.comparisons(), kMany * 3 * kMaxComparisons);
}

TEST(match_work, equal_keys_are_taken_and_cancelled_anywhere) {
  filled_matcher made;
  std::vector<operation*> receives, messages;
  for (std::uint64_t i = 0; i < kMany; ++i) receives.push_back(&made.post(kAnySource, 3, kWholeTag));
  for (std::uint64_t i = kMany; i-- > 1;) made.matcher.remove_receive(*receives[i]);
  ASSERT_EQ(made.matcher.take_receive(5, 3), receives[0]);
  for (std::uint64_t i = 0; i < kMany; ++i) messages.push_back(&made.hold(1, 3, i + 1));
  ASSERT_EQ(made.matcher.find_unexpected(1, 4, kWholeTag), nullptr);
  for (std::uint64_t i = kMany; i-- > 1;) {
    ASSERT_EQ(made.matcher.find_rendezvous(1, i + 1), messages[i]);
    made.matcher.remove_unexpected(*messages[i]);
  }
  ASSERT_EQ(made.matcher.find_unexpected(1, 3, kWholeTag), messages[0]);
  EXPECT_LE(made.matcher.comparisons(), kMany * 2 * kMaxComparisons);
}

// The same through a messenger: messages to oneself, in reverse, received by wildcards and cut to the buffer's length.
TEST(match_work, a_messenger_matches_in_reverse_and_truncates) {
  EXPECT_EQ(run_job(1, gpus::none, test_options(),
                    [](const rank_context& ctx) {
                      std::vector<std::uint64_t> sent(kMany), got(kMany);
                      std::vector<request> receives(kMany), late(kMany);
                      for (std::uint64_t i = 0; i < kMany; ++i)
                        receives[i] = ctx.messenger->irecv(kAnySource, host_buffer(&got[i], i % 2 == 0 ? 8 : 4), i);
                      for (std::uint64_t i = kMany; i-- > 0;) {
                        sent[i] = i << 32 | (i + 1);
                        CHECK_OK(ctx.messenger->send(0, host_buffer(&sent[i], 8), i));
                      }
                      for (std::uint64_t i = 0; i < kMany; ++i) {
                        CHECK(receives[i].wait(kTimeout).code() == (i % 2 == 0 ? 0 : EMSGSIZE));
                        CHECK(receives[i].info().bytes == 8 && receives[i].info().tag == i);
                        CHECK(got[i] == (i % 2 == 0 ? sent[i] : i + 1));
                      }
                      for (std::uint64_t i = 0; i < kMany; ++i)
                        CHECK_OK(ctx.messenger->send(0, host_buffer(&sent[i], 8), i << 32));
                      for (std::uint64_t i = kMany; i-- > 0;) {
                        late[i] = ctx.messenger->irecv(kAnySource, host_buffer(&got[i], 8), i << 32 | 7, kHighHalf);
                        CHECK_OK(late[i].wait(kTimeout));
                        CHECK(got[i] == sent[i]);
                      }
                      CHECK(ctx.messenger->counts().comparisons <= kMany * 2 * kMaxComparisons);
                      return 0;
                    }),
            0);
}

}  // namespace
}  // namespace pl::messaging
