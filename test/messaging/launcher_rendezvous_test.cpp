// SPDX-License-Identifier: Apache-2.0
// What rank 0 tells the others through their launcher. The whole way is launchers_e2e.py's.
#include "messaging/bootstrap/launcher_rendezvous.hpp"

#include <gtest/gtest.h>
#include <netinet/in.h>

#include <cerrno>
#include <cstdlib>

#include "messaging/bootstrap/pmix_store.hpp"

namespace {

using namespace pl;
using namespace pl::messaging;

TEST(launcher_rendezvous, TextsComeBackAsTheyWere) {
  const std::string text = "peerlane-meeting-1 0123456789abcdef 4711 10.1.2.3 fd00::7";
  const auto read = parse_rendezvous_text(text);
  ASSERT_TRUE(read) << read.error().message;
  EXPECT_EQ(read->secret, "0123456789abcdef");
  EXPECT_EQ(read->rendezvous.text, "port 4711 of 10.1.2.3, fd00::7");
  ASSERT_EQ(read->rendezvous.addresses.size(), 2u);
  EXPECT_EQ(read->rendezvous.addresses[0].family(), AF_INET);
  EXPECT_EQ(read->rendezvous.addresses[1].family(), AF_INET6);
  EXPECT_EQ(rendezvous_text(read->rendezvous.addresses, read->secret), text);
}

TEST(launcher_rendezvous, OtherTextsAreRefused) {
  for (const char* text :
       {"", "peerlane-meeting-1", "peerlane-meeting-1 secret", "peerlane-meeting-1 secret 0 10.1.2.3",
        "peerlane-meeting-1 secret 70000 10.1.2.3", "peerlane-meeting-1 secret 4711", "peerlane-meeting-1 secret 4711 node7",
        "peerlane-meeting-1 secret 4711 10.1.2.3 10.1.2", "peerlane-meeting-2 secret 4711 10.1.2.3"})
    EXPECT_EQ(parse_rendezvous_text(text).code(), EPROTO) << text;
  std::string many = "peerlane-meeting-1 secret 4711";
  for (int i = 0; i < 17; ++i) many += " 10.1.2.3";
  EXPECT_EQ(parse_rendezvous_text(many).code(), EPROTO) << "a flood of addresses";
}

TEST(launcher_rendezvous, WithoutALauncherThereIsNoStore) {
  ASSERT_EQ(unsetenv("PMIX_NAMESPACE"), 0);
  EXPECT_FALSE(pmix_store::is_offered());
  setenv("PMIX_NAMESPACE", "a job that nobody started", 1);
  EXPECT_TRUE(pmix_store::is_offered());
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__)  // libpmix leaks, and comes uninstrumented
  EXPECT_EQ(pmix_store::open().code(), ENOSYS);
#endif
  unsetenv("PMIX_NAMESPACE");
}

}  // namespace
