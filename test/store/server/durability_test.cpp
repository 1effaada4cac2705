// SPDX-License-Identifier: Apache-2.0
// A client that asks for a level of durability which the server does not give is told so, and nothing is stored.
#include <cerrno>

#include "test/store/server/store_rig.hpp"

namespace pl::store_test {
namespace {

using store_protocol::durability;

TEST(store_durability, AReplicatedPutIsRefusedAndTheStoreOpensAgain) {
  store_rig rig;
  rig.config.arena_bytes = 16u << 20;  // small: on a fresh virtual machine every page that is touched first costs
  rig.config.chunk_bytes = 4u << 20;
  rig.config.extent_file_bytes = 16u << 20;
  rig.start();
  for (const auto& options : {rig.over_unix(), rig.over_tcp()}) {
    const auto store = store_rig::open(options);
    ASSERT_NE(store, nullptr);
    const auto pool = store->open_pool("pool") ? *store->open_pool("pool") : make_pool(*store, "pool");
    for (const std::size_t bytes : {10u, 100'000u, 10u << 20}) {  // in the index, in extents, longer than memory
      const auto reply = put(*store, pool, "key", random_value(bytes, 1), at_level(durability::replicated));
      EXPECT_EQ(reply.status, ENOTSUP) << bytes << reply.text;
      EXPECT_NE(reply.text.find("volatile, logged or durable"), std::string::npos) << reply.text;
      EXPECT_EQ(put(*store, pool, "kept", random_value(bytes, 2), at_level(durability::durable)).status, 0);
    }
    store_protocol::pool_settings settings;
    settings.level = durability::replicated;
    EXPECT_EQ(store->create_pool("another", settings).code(), ENOTSUP);
  }
  rig.stop();
  rig.start();
  const auto store = store_rig::open(rig.over_unix());
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(get(*store, *store->open_pool("pool"), "kept", 10u << 20).size(), 10u << 20);
}

}  // namespace
}  // namespace pl::store_test
