// SPDX-License-Identifier: Apache-2.0
// Permissions, and clients that misbehave, are slow, or die.
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <fstream>

#include "store/client/arena_map.hpp"
#include "store/protocol/byte_channel.hpp"
#include "store/protocol/handshake.hpp"
#include "store/server/access.hpp"
#include "test/messaging/refused_call.hpp"
#include "test/store/server/raw_peer.hpp"
#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_protocol::durability;
using store_protocol::opcode;

TEST(store_access, Lists) {
  EXPECT_TRUE(store_server::check_access_list("uid:5=r,cert:spiffe://a/b=c=rwa,*=r"));
  for (const char* bad : {"uid:5", "uid:5=", "uid:5=x", "bob=r", "=r", ",", "uid:5=r,,"})
    EXPECT_FALSE(store_server::check_access_list(bad)) << bad;
  const auto may = store_server::rights_in("uid:5=r,uid:6=w,*=a", "uid:5");
  EXPECT_TRUE(may.read && !may.write && may.admin);
}

TEST(store_access, PoolsHoldToTheirLists) {
  store_rig rig;
  rig.config.admins = {"uid:" + std::to_string(geteuid())};  // plain TCP is not
  rig.start();
  const auto admin = store_rig::open(rig.over_unix()), other = store_rig::open(rig.over_tcp());
  store_protocol::pool_settings settings;
  settings.access = "tcp=r";
  const auto pool = make_pool(*admin, "readable", settings);
  ASSERT_EQ(put(*admin, pool, "k", {1}).status, 0);
  ASSERT_TRUE(other->open_pool("readable"));
  EXPECT_EQ(get(*other, pool, "k", 1), bytes_t{1});
  const auto refused = put(*other, pool, "k", {2});
  EXPECT_EQ(refused.status, EACCES);
  EXPECT_NE(refused.text.find("tcp"), std::string::npos);
  EXPECT_EQ(put(*other, pool, "k", random_value(1 << 20, 1)).status, EACCES);  // its frames are thrown away
  EXPECT_EQ(other->run(other->make_erase(pool, "k", {})).status, EACCES);
  EXPECT_EQ(other->create_pool("mine", {}).code(), EACCES);
  EXPECT_EQ(other->run(other->make_plain(opcode::pool_delete, 0, "readable")).status, EACCES);
  EXPECT_EQ(get(*other, pool, "k", 1), bytes_t{1});

  // A list that changes counts for those who have the pool open.
  const auto change = admin->make_plain(opcode::pool_set, 0, "readable");
  settings.access = "uid:99=r";
  change->fields.settings = settings;
  ASSERT_EQ(admin->run(change).status, 0);
  bytes_t room(1);
  EXPECT_TRUE(soon([&] { return other->run(other->make_get(pool, "k", memory_of(room), {})).status == EACCES; }));
  EXPECT_EQ(other->open_pool("readable").code(), EACCES);
}

TEST(store_access, TheArenaIsForThoseWhoAreTrusted) {
  store_rig rig;
  rig.config.mappers = {"uid:4294967294"};
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  EXPECT_NE(store->why_no_shm().find("mappers"), std::string::npos) << store->why_no_shm();
  const auto pool = make_pool(*store, "p");
  EXPECT_EQ(put(*store, pool, "k", random_value(100'000, 1)).result.way, store_protocol::path::unix_socket);
}

TEST(store_limits, QuotasAndRoom) {
  store_rig rig;
  rig.config.arena_bytes = 16u << 20;
  rig.config.chunk_bytes = 16u << 20;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  store_protocol::pool_settings settings;
  settings.size_bytes = 1 << 20;
  const auto small = make_pool(*store, "small", settings);
  EXPECT_EQ(put(*store, small, "k", random_value(900'000, 1)).status, 0);
  EXPECT_EQ(put(*store, small, "l", random_value(900'000, 1)).status, EDQUOT);

  // Pinned values fill the arena: a put waits for room, and tells after its deadline.
  const auto pool = make_pool(*store, "p");
  store_client::reply granted;
  for (const char* key : {"held", "held too"}) {
    auto grab = store->make_plain(opcode::alloc, pool, key);
    grab->head.value_bytes = 6u << 20;
    granted = store->run(grab);
    ASSERT_EQ(granted.status, 0) << granted.text;
  }
  auto options = at_level(durability::volatile_);
  options.timeout_ms = 100;
  const auto value = random_value(8u << 20, 2);
  EXPECT_EQ(put(*store, pool, "k", value, options).status, ENOSPC);
  options.timeout_ms = 10'000;
  const auto patient = store_rig::open(rig.over_tcp());
  ASSERT_TRUE(patient->open_pool("p"));
  const auto other = patient->make_put(pool, "k", memory_of(value), options);
  patient->start(other);
  EXPECT_FALSE(patient->wait(other, store_client::clock::now() + std::chrono::milliseconds(20)));
  const auto back = store->make_plain(opcode::abort, pool, {});
  back->fields.token = granted.fields->token;
  ASSERT_EQ(store->run(back).status, 0);
  ASSERT_TRUE(patient->wait(other));
  EXPECT_EQ(other->got.status, 0) << other->got.text;
  EXPECT_EQ(get(*store, pool, "k", value.size()), value);
}

TEST(store_limits, WhatIsNoRequestEndsTheConnectionAndNothingElse) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  std::mt19937_64 random(1);
  for (int i = 0; i < 50; ++i) {
    const auto wire = store_client::connect(rig.over_unix().server, 1000);
    ASSERT_TRUE(wire);
    store_client::handshake_request request;
    request.attach = false;
    if (i % 2 == 0) { ASSERT_TRUE(store_client::do_handshake(**wire, request, 1000)); }
    std::string bytes;
    store_protocol::head head;
    head.op = static_cast<opcode>(1 + random() % 21);
    head.pool_id = static_cast<std::uint32_t>(random() % 3);
    head.value_bytes = random() % 3 == 0 ? random() : random() % 1000;
    head.offset = random() % 2 == 0 ? random() : 0;
    head.flags = static_cast<std::uint16_t>(random() % 64);
    ASSERT_TRUE(store_protocol::encode(head, "key", {}, bytes));
    if (i % 3 == 0) bytes[random() % bytes.size()] ^= 1;
    if (i % 5 == 0) bytes.resize(random() % bytes.size());
    const iovec one{bytes.data(), bytes.size()};
    ASSERT_TRUE((*wire)->write({&one, 1}));
    if (i % 7 == 0) continue;  // gone without a word
    char answer[4096];
    (void)store_client::wait_for((*wire)->fd(), false, 20);
    (void)(*wire)->read(answer, sizeof answer).ok();
  }
  EXPECT_EQ(put(*store, pool, "k", random_value(100'000, 1)).status, 0);
  EXPECT_TRUE(soon([&] { return rig.server().engine().stats().sessions == 1; }));
}

TEST(store_limits, ASlowReaderHoldsNobodyUp) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  const auto value = random_value(12u << 20, 1);
  ASSERT_EQ(put(*store, pool, "k", value, at_level(durability::volatile_)).status, 0);
  // Asks for values and reads nothing.
  auto wire = store_client::connect(rig.over_tcp().server, 1000);
  store_client::handshake_request request;
  request.pools[pool] = "p";
  ASSERT_TRUE(store_client::do_handshake(**wire, request, 1000));
  std::string bytes;
  for (unsigned i = 0; i < 20; ++i) {
    store_protocol::head head;
    head.op = opcode::get;
    head.request_id = i + 1;
    head.pool_id = pool;
    head.value_bytes = value.size();
    ASSERT_TRUE(store_protocol::encode(head, "k", {}, bytes));
  }
  const iovec one{bytes.data(), bytes.size()};
  ASSERT_TRUE((*wire)->write({&one, 1}));
  EXPECT_EQ(get(*store, pool, "k", value.size()), value);
  EXPECT_EQ(put(*store, pool, "k", {1}).status, 0);
  wire->reset();
  EXPECT_TRUE(soon([&] { return rig.server().engine().stats().pins == 0; }));
}

// In a child process: maps the arena, takes a grant, and lives until it is killed.
void grants_of_a_dead_process_come_back() {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  int said[2], go[2];
  ASSERT_EQ(pipe(said), 0);
  ASSERT_EQ(pipe(go), 0);
  const pid_t child = fork();
  if (child == 0) {  // system calls and our own socket code only: the parent has threads
    auto wire = store_client::connect(rig.over_unix().server, 5000);
    store_client::handshake_request request;
    request.pools[pool] = "p";
    const auto hello = store_client::do_handshake(**wire, request, 5000);
    std::string bytes;
    store_protocol::head head;
    head.op = opcode::alloc;
    head.pool_id = pool;
    head.value_bytes = 1 << 20;
    (void)store_protocol::encode(head, "k", {}, bytes);
    const iovec one{bytes.data(), bytes.size()};
    (void)(*wire)->write({&one, 1});
    char word = 0;
    (void)!write(said[1], hello ? "x" : "-", 1);
    (void)!read(go[0], &word, 1);
    wire->reset();  // the connection goes, the process stays
    pause();
    _exit(0);
  }
  char word = 0;
  ASSERT_EQ(read(said[0], &word, 1), 1);
  EXPECT_EQ(word, 'x');
  auto& engine = rig.server().engine();
  EXPECT_TRUE(soon([&] { return engine.stats().grants == 1; }));
  ASSERT_EQ(write(go[1], "x", 1), 1);
  // Its connection is gone, but it may still write where it was granted.
  EXPECT_TRUE(soon([&] {
    return store->run(store->make_plain(opcode::stats, 0, {})).body.find("peerlane_store_orphans 1") != std::string::npos;
  }));
  EXPECT_EQ(engine.stats().grants, 1u);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
  EXPECT_TRUE(soon([&] { return engine.stats().grants == 0; }));
  for (const int fd : {said[0], said[1], go[0], go[1]}) close(fd);
}

TEST(store_limits, GrantsOfADeadProcessComeBackWhenItIsGone) { grants_of_a_dead_process_come_back(); }

// Part of the test below.
TEST(store_limits, DISABLED_UnderAFilter) {
  ASSERT_TRUE(messaging::refuse_call(SYS_pidfd_open, EPERM));
  grants_of_a_dead_process_come_back();
}

// Under a container's filter, which a process keeps: so in another one.
TEST(store_limits, SoTheyDoWherePidfdsAreRefused) {
  const std::string self = std::filesystem::read_symlink("/proc/self/exe");
  const pid_t child = fork();
  if (child == 0) {
    execl(self.c_str(), self.c_str(), "--gtest_filter=store_limits.DISABLED_UnderAFilter", "--gtest_also_run_disabled_tests",
          "--gtest_brief=1", nullptr);
    _exit(127);
  }
  int state = -1;
  ASSERT_EQ(waitpid(child, &state, 0), child);
  EXPECT_EQ(state, 0);
}

// Who rotates the log moves it aside and sends SIGHUP: the server goes on in a new file, and no line is lost.
TEST(store_server, ARotatedLogIsReopened) {
  store_rig rig;
  rig.start();
  const auto lines_of = [](const std::string& path) {
    std::ifstream file(path);
    return std::string(std::istreambuf_iterator<char>(file), {});
  };
  const std::string moved = rig.config.log + ".1";
  ASSERT_EQ(std::rename(rig.config.log.c_str(), moved.c_str()), 0);
  const auto store = store_rig::open(rig.over_unix());
  ASSERT_NE(store, nullptr);
  EXPECT_FALSE(std::filesystem::exists(rig.config.log));
  rig.server().reload();
  EXPECT_TRUE(soon([&] { return lines_of(rig.config.log).find("\"log_reopened\"") != std::string::npos; }));
  make_pool(*store, "afterwards");
  EXPECT_TRUE(soon([&] { return lines_of(rig.config.log).find("\"afterwards\"") != std::string::npos; }));
  EXPECT_NE(lines_of(moved).find("\"greeted\""), std::string::npos);
  EXPECT_EQ(lines_of(moved).find("\"afterwards\""), std::string::npos);
  // A folder that is gone: the file that is open stays in use, and says why.
  const int descriptors = test::open_descriptor_count();
  std::filesystem::remove(rig.config.log);
  std::filesystem::create_directory(rig.config.log);
  rig.server().reload();
  make_pool(*store, "and then");
  EXPECT_EQ(test::open_descriptor_count(), descriptors);
  rig.stop();
  std::filesystem::remove(rig.config.log);
}

TEST(store_server, ScrapesAndTheLogSayWhatHappened) {
  store_rig rig;
  rig.config.metrics = "127.0.0.1:0";
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const auto pool = make_pool(*store, "p");
  ASSERT_EQ(put(*store, pool, "k", random_value(100'000, 1)).status, 0);
  const std::string text = scraped(rig.server().metrics_endpoint());
  EXPECT_TRUE(text.starts_with("HTTP/1.0 200 OK"));
  EXPECT_NE(text.find("peerlane_store_value_bytes_total{path=\"shm-direct\",direction=\"in\"} 100000"), std::string::npos)
      << text;
  EXPECT_NE(text.find("peerlane_store_operation_seconds_count{op=\"commit\"} 1"), std::string::npos);
  rig.stop();
  std::ifstream log(rig.config.log);
  const std::string all((std::istreambuf_iterator<char>(log)), {});
  for (const char* event :
       {"\"event\":\"serving\"", "\"event\":\"pool_create\"", "\"event\":\"draining\"", "\"event\":\"stopped\""})
    EXPECT_NE(all.find(event), std::string::npos) << event;
}

// Series whose labels became the same would be one pool's, of whichever comes last.
TEST(store_server, PoolsOfAnyNameHaveSeriesOfTheirOwn) {
  store_rig rig;
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  const std::pair<std::string, std::string> names[] = {
      {"\xe7\xbc\x93\xe5\xad\x98", "\xe7\xbc\x93\xe5\xad\x98"},  // of two characters
      {"\xc3\xa9", "\xc3\xa9"},
      {"\xc3\xa8", "\xc3\xa8"},
      {"\xff", "\\\\xff"},
      {"\xfe", "\\\\xfe"},
      {"\xed\xa0\x80", "\\\\xed\\\\xa0\\\\x80"},
      {"\xc3", "\\\\xc3"},
      {"a\nb", "a\\\\x0ab"},
      {std::string("a\0b", 3), "a\\\\x00b"},
      {"\xc2\x9b", "\\\\xc2\\\\x9b"},
      {"\"} 7\\", "\\\"} 7\\\\"},
      {"?", "?"}};
  std::size_t keys = 0;
  for (const auto& [name, label] : names) {
    const auto pool = make_pool(*store, name);
    ++keys;
    for (std::size_t i = 0; i < keys; ++i) ASSERT_EQ(put(*store, pool, std::to_string(i), {1}).status, 0);
  }
  const std::string text = store->run(store->make_plain(opcode::stats, 0, {})).body;
  keys = 0;
  for (const auto& [name, label] : names)
    EXPECT_EQ(scraped_number(text, "peerlane_store_pool_keys{pool=\"" + label + "\"}"), ++keys) << label;
}

}  // namespace
}  // namespace pl::store_test
