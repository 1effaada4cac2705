// SPDX-License-Identifier: Apache-2.0
// A server that moves device memory of its clients (the simulated GPU), a client with such memory, and a peer that hands
// memory over and names it by hand.
#pragma once

#include "copy/planner.hpp"
#include "map/rm_space.hpp"
#include "rm/simulated_device_io.hpp"
#include "store/client/device_link.hpp"
#include "test/store/server/raw_peer.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::store_test {

using store_client::device_link;
using store_protocol::device_part;
using store_protocol::durability;
using store_protocol::opcode;
using store_protocol::path;

class store_gpu_direct : public testing::Test {
 protected:
  void start() {
    rig_.config.spin_us = 20;
    rig_.start();
  }
  void open(path require = path::none) {
    if (copies_ == nullptr) {
      auto opened = copy::planner::open(test::simulated_cuda(), copy::planner::options_from_environment());
      ASSERT_TRUE(opened) << opened.error().message;
      copies_ = *std::move(opened);
    }
    store_ = store_rig::open(options(require));
    ASSERT_NE(store_, nullptr);
    const auto known = store_->open_pool("p");
    pool_ = known ? *known : make_pool(*store_, "p");
  }
  store_client::client_options options(path require = path::none) {
    auto out = rig_.over_unix();
    out.copies = copies_.get();
    out.cuda = &test::simulated_cuda();
    out.require = require;
    return out;
  }
  void start_and_open(path require = path::none) {
    start();
    open(require);
  }
  store_client::memory device(std::uint64_t address, std::size_t bytes) {
    auto found = store_->classify(address, bytes);
    EXPECT_TRUE(found && found->device);
    return *found;
  }
  store_client::reply put_device(const std::string& key, std::uint64_t address, std::size_t bytes,
                                 store_client::put_request request = at_level(durability::durable)) {
    return store_->run(store_->make_put(pool_, key, device(address, bytes), request));
  }
  // As one get of many, which the store moves from short values on.
  static store_client::get_request one_of_many() {
    store_client::get_request out;
    out.is_one_of_many = true;
    return out;
  }
  store_client::reply get_device(const std::string& key, std::uint64_t address, std::size_t bytes,
                                 const store_client::get_request& request = one_of_many()) {
    return store_->run(store_->make_get(pool_, key, device(address, bytes), request));
  }
  std::string statistics() { return store_->run(store_->make_plain(opcode::stats, 0, {})).body; }

  const test::current_device current_{0};
  store_rig rig_;
  std::unique_ptr<copy::planner> copies_;
  std::unique_ptr<store_client::client> store_;
  std::uint32_t pool_ = 0;
};

// A peer that speaks the protocol by hand, with a device link of its own.
class store_gpu_direct_raw : public store_gpu_direct {
 protected:
  void SetUp() override {
    start_and_open();
    ASSERT_EQ(put(*store_, pool_, "value", random_value(64 << 10, 1)).status, 0);
    peer_ = std::make_unique<raw_peer>(rig_.over_unix(), pool_, "p", false, &link_fd_);
    ASSERT_GE(link_fd_, 0);
    auto opened = device_link::open(link_fd_, 5000);
    ASSERT_TRUE(opened) << opened.error().message;
    link_ = *std::move(opened);
    ASSERT_EQ(get_device("value", buffer_.pointer(), 32 << 10).result.way, path::gpu_direct);  // number 1 there
  }
  dma::shared_region region() {
    auto plan = plan_pin(test::simulated_cuda(), {buffer_.pointer(), buffer_.bytes()}, kHostPageBytes, range_rule::exact);
    auto space = *rm_space::get(*rm::simulated_device_io(test::simulated_cuda()));
    auto placed = std::move(space->resolve(test::simulated_cuda(), *plan)->front());
    dma::shared_region out;
    out.fd = std::move(*space->client().export_object(placed.object->gpu(), placed.object->memory()));
    out.gpu = placed.object->gpu().pci;
    out.offset = placed.offset;
    out.size_bytes = buffer_.bytes();
    return out;
  }
  store_protocol::head make_head(opcode op, std::uint64_t bytes, std::uint16_t more_flags) {
    store_protocol::head out;
    out.op = op;
    out.flags = static_cast<std::uint16_t>(store_protocol::flag::device | more_flags);
    out.request_id = ++last_request_;
    out.pool_id = pool_;
    out.value_bytes = bytes;
    return out;
  }
  int ask(opcode op, const std::string& key, const std::optional<device_part>& part, std::uint64_t bytes,
          std::uint16_t more_flags = 0) {
    store_protocol::tail fields;
    fields.device = part;
    peer_->ask(make_head(op, bytes, more_flags), key, fields);
    const auto got = peer_->answer();
    return got ? got->status : -1;
  }
  bool is_there(const std::string& key) { return store_->run(store_->make_plain(opcode::stat, pool_, key)).status == 0; }

  const test::device_buffer buffer_{4u << 20};
  int link_fd_ = -1;
  std::unique_ptr<raw_peer> peer_;
  std::shared_ptr<device_link> link_;
  std::uint64_t last_request_ = 0;
};

}  // namespace pl::store_test
