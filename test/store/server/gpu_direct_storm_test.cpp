// SPDX-License-Identifier: Apache-2.0
// Clients that speak the protocol by hand and send many frames of device memory at once: later frames win, limits hold for
// all frames together, and whatever they do, nothing stays held.
#include <algorithm>
#include <atomic>
#include <deque>
#include <functional>
#include <map>
#include <random>
#include <thread>

#include "arch/crc32c.hpp"
#include "store/engine/store_folder.hpp"
#include "store/protocol/batch.hpp"
#include "test/store/server/gpu_direct_rig.hpp"

namespace pl::store_test {
namespace {

using store_protocol::batch_item;
using store_protocol::batch_memory;
using store_protocol::batch_outcome;
using store_protocol::head;
using store_protocol::tail;
namespace flag = store_protocol::flag;

// A connection with a device link, whose frames are gathered and sent together.
class device_peer {
 public:
  device_peer(const store_rig& rig, std::uint32_t pool, const dma::shared_region& region) : pool_(pool) {
    int fd = -1;
    wire_ = std::make_unique<raw_peer>(rig.over_unix(), pool, "p", false, &fd);
    auto opened = device_link::open(fd, 5000);
    EXPECT_TRUE(opened);
    if (!opened) return;
    link_ = *std::move(opened);
    hand_over(region);
  }
  void hand_over(const dma::shared_region& region) {
    if (const auto number = link_->import(region)) memory_ = *number;
  }
  void release() { link_->release(memory_); }
  device_part part() {
    auto out = link_->take_slot().value_or(device_part{});
    out.memory = memory_;
    return out;
  }
  std::uint64_t add(opcode op, const std::string& key, std::uint64_t value_bytes, const tail& fields,
                    const std::vector<batch_item>& items = {}, std::uint16_t flags = flag::device) {
    head one;
    one.op = op;
    one.flags = flags;
    one.request_id = ++last_request_;
    one.pool_id = pool_;
    one.value_bytes = value_bytes;
    one.deadline_us = 300'000;
    std::string body;
    for (const batch_item& item : items) append(body, item, batch_memory::device);
    one.body_bytes = static_cast<std::uint32_t>(body.size());
    one.body_crc = arch::crc32c(body.data(), body.size());
    EXPECT_TRUE(store_protocol::encode(one, key, fields, gathered_));
    gathered_ += body;
    return last_request_;
  }
  std::uint64_t add(opcode op, const device_part& part, const std::vector<batch_item>& items,
                    std::optional<durability> level = std::nullopt) {
    tail fields;
    fields.device = part;
    fields.level = level;
    return add(op, "", 0, fields, items);
  }
  struct answered {
    int status = 0;
    std::string text;
    std::vector<int> items;
  };
  // By request; what is missing was not answered.
  std::map<std::uint64_t, answered> run(std::size_t count) {
    send();
    std::map<std::uint64_t, answered> out;
    while (out.size() < count) {
      const auto got = wire_->answer();
      if (!got) break;
      auto& mine = out[got->request_id];
      mine.status = got->status;
      mine.text = wire_->text();
      const bool has_items = got->op == opcode::batch_put || got->op == opcode::batch_get;
      if (!has_items || got->status != 0) continue;
      const auto outcomes = store_protocol::decode_outcomes(wire_->body());
      if (outcomes)
        for (const batch_outcome& one : *outcomes) mine.items.push_back(one.status);
    }
    return out;
  }
  void send() {
    std::string_view rest = gathered_;
    for (int tries = 0; tries < 2000 && !rest.empty(); ++tries) {
      const auto sent = wire_->send(rest);
      rest.remove_prefix(sent);
      if (sent == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
    gathered_.clear();
  }
  void add_garbage() { gathered_ += std::string(200, 'x'); }
  bool is_cut_off() { return wire_->is_cut_off(10'000); }
  std::shared_ptr<device_link> link() { return link_; }

 private:
  std::uint32_t pool_;
  std::unique_ptr<raw_peer> wire_;
  std::shared_ptr<device_link> link_;
  std::uint32_t memory_ = 0;
  std::uint64_t last_request_ = 0;
  std::string gathered_;
};

class store_gpu_direct_storm : public store_gpu_direct, public testing::WithParamInterface<unsigned> {
 protected:
  store_gpu_direct_storm() {
    rig_.config.checksum_threads = GetParam();
    rig_.config.max_principal_memory_percent = 20;
  }
  void SetUp() override {
    start_and_open();
    content_ = test::random_bytes(buffer_.bytes(), 7);
    test::set_device_bytes(buffer_.pointer(), content_);
  }
  std::uint64_t share() { return rig_.server().engine().arena().size_bytes / 5; }
  dma::shared_region region() { return region_of(buffer_); }
  static dma::shared_region region_of(const test::device_buffer& buffer) {
    auto plan = plan_pin(test::simulated_cuda(), {buffer.pointer(), buffer.bytes()}, kHostPageBytes, range_rule::exact);
    auto space = *rm_space::get(*rm::simulated_device_io(test::simulated_cuda()));
    auto placed = std::move(space->resolve(test::simulated_cuda(), *plan)->front());
    dma::shared_region out;
    out.fd = std::move(*space->client().export_object(placed.object->gpu(), placed.object->memory()));
    out.gpu = placed.object->gpu().pci;
    out.offset = placed.offset;
    out.size_bytes = buffer.bytes();
    return out;
  }
  static batch_item item(std::string_view key, std::uint64_t offset, std::uint64_t bytes) {
    batch_item out;
    out.key = key;
    out.offset = offset;
    out.room = bytes;
    return out;
  }
  bool holds_nothing() {
    const auto now = rig_.server().engine().stats();
    return now.grants + now.pins == 0;
  }
  const test::device_buffer buffer_{16u << 20};
  bytes_t content_;
};

INSTANTIATE_TEST_SUITE_P(checksum_threads, store_gpu_direct_storm, testing::Values(1u, 4u, 8u),
                         testing::PrintToStringParamName());

// Of the same key in one frame, and in frames that are under way together: of volatile values, and of short ones.
TEST_P(store_gpu_direct_storm, TheLastOneWins) {
  device_peer peer(rig_, pool_, region());
  std::mt19937 random(GetParam());
  std::vector<std::string> keys;
  for (int i = 0; i < 60; ++i) keys.push_back("k" + std::to_string(i));
  for (int round = 0; round < 12; ++round) {
    std::map<std::string, std::pair<std::uint64_t, std::uint64_t>> last;
    std::map<std::uint64_t, std::vector<batch_item>> frames;
    const auto level = round % 2 == 0 ? durability::volatile_ : durability::durable;
    for (int frame = 0; frame < 20; ++frame) {
      std::vector<batch_item> items;
      const bool is_long = random() % 2 == 0;
      for (int i = 0; i < 40; ++i) {
        const std::uint64_t bytes = 1 + random() % (is_long ? 12'000 : 1500);
        items.push_back(item(keys[random() % keys.size()], random() % (buffer_.bytes() - bytes), bytes));
      }
      frames[peer.add(opcode::batch_put, peer.part(), items, level)] = items;
    }
    const auto answers = peer.run(frames.size());
    for (const auto& [id, items] : frames) {
      const auto found = answers.find(id);
      ASSERT_NE(found, answers.end());
      ASSERT_EQ(found->second.status, 0);
      for (std::size_t i = 0; i < items.size(); ++i) {
        ASSERT_EQ(found->second.items[i], 0);
        last[std::string(items[i].key)] = {items[i].offset, items[i].room};
      }
    }
    for (const auto& [key, place] : last) {
      const auto got = get(*store_, pool_, key, 16'000);
      const auto first = content_.begin() + static_cast<std::ptrdiff_t>(place.first);
      ASSERT_EQ(got.size(), place.second) << key << " in round " << round;
      ASSERT_TRUE(std::equal(got.begin(), got.end(), first)) << key << " in round " << round;
    }
    ASSERT_TRUE(holds_nothing());
    for (const auto& [key, place] : last) ASSERT_EQ(store_->run(store_->make_plain(opcode::erase, pool_, key)).status, 0);
  }
}

// Pins count while others are made: each of these frames by itself is within the principal's share of the memory tier.
TEST_P(store_gpu_direct_storm, FramesTogetherHoldNoMoreThanTheirPrincipalMay) {
  constexpr std::uint64_t kValueBytes = 1u << 20;
  constexpr std::size_t kValues = 40, kFrames = 60;
  std::vector<std::string> keys;
  for (std::size_t i = 0; i < kValues; ++i) {
    keys.push_back("long" + std::to_string(i));
    ASSERT_EQ(put(*store_, pool_, keys.back(), random_value(kValueBytes, i), at_level(durability::volatile_)).status, 0);
  }
  device_peer peer(rig_, pool_, region());
  std::uint64_t most = 0;
  for (unsigned round = 0; round < 20; ++round) {
    std::vector<device_part> parts;
    for (std::size_t i = 0; i < kFrames; ++i) {
      std::vector<batch_item> items;
      for (std::size_t n = 0; i % 6 != 5 && n < 8; ++n) items.push_back(item(keys[(i * 8 + n) % kValues], n, 1));
      if (items.empty()) items.push_back(item("none", 0, share() - 4096));  // is told what is held
      parts.push_back(peer.part());
      peer.add(opcode::batch_get, parts.back(), items);
    }
    for (const auto& [id, one] : peer.run(kFrames)) {
      ASSERT_TRUE(one.status == 0 || one.status == ENOTSUP) << one.text;
      const auto says = one.text.find(" holds ");
      if (says != std::string::npos) most = std::max<std::uint64_t>(most, std::stoull(one.text.substr(says + 7)));
    }
    ASSERT_TRUE(holds_nothing());
    for (const auto& part : parts) peer.link()->give_slot(part);
  }
  // Threads that find the share used up have counted their value by then.
  EXPECT_LE(most, share() + (GetParam() + 1) * kValueBytes);
  // And all of it is let go again.
  const auto id = peer.add(opcode::batch_get, peer.part(), {item(keys[0], 0, 4096), item(keys[1], 0, share() - 4096)});
  const auto last = peer.run(1);
  EXPECT_EQ(last.at(id).status, 0) << last.at(id).text;
}

// ---- Whatever clients do

class chooser {
 public:
  explicit chooser(unsigned seed) : random_(seed) {}
  std::uint32_t below(std::uint64_t end) { return static_cast<std::uint32_t>(random_() % end); }
  bool one_in(unsigned chances) { return below(chances) == 0; }

 private:
  std::mt19937_64 random_;
};

// Frames of one connection, right and wrong ones.
class storm_of_frames {
 public:
  storm_of_frames(device_peer& peer, std::uint64_t buffer_bytes, unsigned client, chooser& choose)
      : peer_(peer), buffer_bytes_(buffer_bytes), client_(client), choose_(choose) {}
  void add_frame() {
    const bool is_shared = !parts_.empty() && choose_.one_in(8);  // its slot is another frame's too
    if (!is_shared) parts_.push_back(peer_.part());
    auto part = parts_.back();
    if (choose_.one_in(40)) part.memory += 1;
    if (choose_.one_in(40)) part.slot = choose_.below(store_protocol::kDeviceSlots + 10);
    if (choose_.one_in(10)) part.offset = choose_.below(buffer_bytes_);
    tail fields;
    fields.device = part;
    if (choose_.one_in(2)) fields.level = choose_.one_in(2) ? durability::durable : durability::volatile_;
    if (choose_.one_in(4)) fields.request_number = {client_, choose_.one_in(8) ? UINT64_MAX - 2 : 1 + choose_.below(5000)};
    if (choose_.one_in(10)) fields.ttl_ms = 1 + choose_.below(20);
    if (choose_.one_in(20)) fields.crc = choose_.below(1000);
    while (choose_.below(4) != 0) fields.unpin.push_back(choose_.below(5000));
    const bool is_put = choose_.one_in(2);
    if (choose_.one_in(4)) {
      peer_.add(is_put ? opcode::put : opcode::get, "s" + std::to_string(choose_.below(300)), choose_.below(600 << 10),
                fields);
      return;
    }
    std::vector<batch_item> items;
    const std::uint64_t longest = choose_.one_in(6) ? 200'000 : 3000;
    for (auto left = 1 + choose_.below(120); left > 0; --left) items.push_back(make_item(part.offset, longest));
    peer_.add(is_put ? opcode::batch_put : opcode::batch_get, "", 0, fields, items);
  }
  // Of slots that are this client's.
  const std::vector<device_part>& parts() const { return parts_; }

 private:
  const std::string& key() {
    const auto pick = choose_.below(60);
    return keys_.emplace_back(pick == 0   ? std::string()
                              : pick == 1 ? std::string(5000, 'x')
                                          : "s" + std::to_string(choose_.below(300)));
  }
  batch_item make_item(std::uint64_t offset, std::uint64_t longest) {
    batch_item out;
    out.key = key();
    out.room = choose_.below(longest);
    const std::uint64_t room = buffer_bytes_ - offset;
    out.offset = choose_.one_in(200) ? choose_.below(buffer_bytes_) : choose_.below(room - std::min(room, out.room) + 1);
    if (choose_.one_in(10)) out.only = {static_cast<store_protocol::condition>(choose_.below(4)), choose_.below(100)};
    return out;
  }
  device_peer& peer_;
  const std::uint64_t buffer_bytes_, client_;
  chooser& choose_;
  std::deque<std::string> keys_;  // what items name
  std::vector<device_part> parts_;
};

struct storm_counts {
  std::atomic<std::uint64_t> frames{0}, refused_frames{0}, items{0}, refused_items{0};
};

// One connection. False: the server did not answer.
bool run_storm(device_peer& peer, const std::function<dma::shared_region()>& region, std::uint64_t buffer_bytes,
               unsigned client, chooser& choose, const std::atomic<bool>& is_over, storm_counts& counts) {
  for (unsigned burst = 0; burst < 12 && !is_over; ++burst) {
    storm_of_frames frames(peer, buffer_bytes, client, choose);
    const std::size_t count = 1 + choose.below(30);
    for (std::size_t i = 0; i < count; ++i) frames.add_frame();
    const auto ending = choose.below(8);
    if (ending == 3) peer.add_garbage();
    peer.send();
    if (ending == 0) return true;  // the connection ends now
    if (ending == 3) return peer.is_cut_off();
    if (ending == 1) peer.release();
    if (ending == 2)
      for (const auto& part : frames.parts()) (void)peer.link()->settle(part);
    const auto answers = peer.run(count);
    if (answers.size() != count) return false;
    counts.frames += count;
    for (const auto& [id, one] : answers) {
      counts.refused_frames += one.status != 0;
      counts.items += one.items.size();
      counts.refused_items +=
          static_cast<std::size_t>(std::count_if(one.items.begin(), one.items.end(), [](int item) { return item != 0; }));
    }
    for (const auto& part : frames.parts()) peer.link()->give_slot(part);
    if (ending == 1) peer.hand_over(region());
  }
  return true;
}

// On SIGTERM, with frames in every state, and connections that begin meanwhile.
TEST_P(store_gpu_direct_storm, TheServerStopsInTheMiddle) {
  const auto handed = region();
  for (unsigned round = 0; round < 2; ++round) {
    std::atomic<bool> is_over{false};
    storm_counts counts;
    std::vector<std::thread> clients;
    for (unsigned i = 1; i <= 3; ++i)
      clients.emplace_back([&, i] {
        const test::current_device current{0};
        chooser choose(10 * round + i);
        device_peer peer(rig_, pool_, handed);
        while (!is_over && run_storm(
                               peer, [&] { return region(); }, buffer_.bytes(), i, choose, is_over, counts)) {}
      });
    std::this_thread::sleep_for(std::chrono::milliseconds(80 + 120 * round));
    rig_.stop();
    is_over = true;
    for (auto& one : clients) one.join();
    const auto report = store::check_folder(rig_.config.data);
    ASSERT_TRUE(report) << report.error().message;
    EXPECT_TRUE(report->is_good()) << report->problems.front();
    rig_.start();
    EXPECT_TRUE(holds_nothing());
  }
  open();
}

// Frames of every kind, while others change the pool's rights and quotas, and connections end at any time.
TEST_P(store_gpu_direct_storm, NothingStaysHeld) {
  std::atomic<bool> is_over{false};
  storm_counts counts;
  std::vector<std::thread> clients;
  for (unsigned i = 1; i <= 3; ++i)
    clients.emplace_back([&, i] {
      const test::current_device current{0};
      chooser choose(i);
      while (!is_over) {
        device_peer peer(rig_, pool_, region());
        EXPECT_TRUE(run_storm(
            peer, [&] { return region(); }, buffer_.bytes(), i, choose, is_over, counts));
      }
    });
  chooser choose(GetParam());
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(4);
  while (std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(std::chrono::milliseconds(5));
    if (choose.one_in(3))
      rig_.server().engine().set_quotas({{own_uid(), (1u + choose.below(40)) << 20, 1 + choose.below(400)}});
    if (choose.one_in(10)) (void)store_->run(store_->make_plain(opcode::erase_prefix, pool_, "s1"));
    if (choose.below(3) != 0) continue;
    auto change = store_->make_plain(opcode::pool_set, 0, "p");
    auto& next = change->fields.settings.emplace();
    if (choose.one_in(2)) next.access = own_uid() + "=r";
    next.allow_shm = choose.below(3) != 0;
    if (choose.one_in(4)) next.max_keys = 1 + choose.below(300);
    (void)store_->run(change);
  }
  is_over = true;
  for (auto& one : clients) one.join();
  EXPECT_TRUE(soon([&] { return holds_nothing(); }))
      << rig_.server().engine().stats().grants << " grants, " << rig_.server().engine().stats().pins << " pins";
  EXPECT_TRUE(soon([&] { return rig_.server().engine().stats().sessions == 1; }));
  EXPECT_GT(counts.items, counts.refused_items);
  EXPECT_GT(counts.refused_items, 0u);
  EXPECT_GT(counts.frames, counts.refused_frames);
}

}  // namespace
}  // namespace pl::store_test
