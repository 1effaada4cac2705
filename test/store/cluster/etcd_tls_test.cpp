// SPDX-License-Identifier: Apache-2.0
// A real etcd that speaks TLS and wants certificates of its clients.
#include "test/store/cluster/cluster_rig.hpp"
#include "test/store/server/test_pki.hpp"

namespace pl::store_test {
namespace {

using store_cluster::etcd;
using store_cluster::etcd_tls;

class etcd_by_tls : public testing::Test {
 protected:
  void SetUp() override {
    if (!etcd_is_there()) GTEST_SKIP() << kNoEtcd;
    if (!openssl_is_there()) GTEST_SKIP() << kNoOpenssl;
    pki_ = std::make_unique<test_pki>(rig_.directory());
    pki_->authority("ca");
    pki_->authority("stranger_ca");
    pki_->certificate("etcd", "ca", "IP:127.0.0.1");
    pki_->certificate("store", "ca", "DNS:store");
    pki_->certificate("stranger", "stranger_ca", "DNS:store");
    const std::string peers = "http://127.0.0.1:" + peer_port_.text();
    etcd_ = std::make_unique<child_process>(std::vector<std::string>{kEtcd,
                                                                     "--data-dir",
                                                                     rig_.directory() + "/etcd",
                                                                     "--listen-client-urls",
                                                                     url(),
                                                                     "--advertise-client-urls",
                                                                     url(),
                                                                     "--listen-peer-urls",
                                                                     peers,
                                                                     "--initial-advertise-peer-urls",
                                                                     peers,
                                                                     "--initial-cluster",
                                                                     "default=" + peers,
                                                                     "--cert-file",
                                                                     pki_->path("etcd.crt"),
                                                                     "--key-file",
                                                                     pki_->path("etcd.key"),
                                                                     "--client-cert-auth",
                                                                     "--trusted-ca-file",
                                                                     pki_->path("ca.crt")},
                                            rig_.directory() + "/etcd.log");
    const auto deadline = std::chrono::steady_clock::now() + std::chrono::seconds(30);
    while (!check_connection(files("ca", "store")) && std::chrono::steady_clock::now() < deadline)
      std::this_thread::sleep_for(std::chrono::milliseconds(20));
  }
  std::string url(const std::string& host = "127.0.0.1") const { return "https://" + host + ":" + port_.text(); }
  etcd_tls files(const std::string& authority, const std::string& client) const {
    return {pki_->path(authority + ".crt"), client.empty() ? "" : pki_->path(client + ".crt"),
            client.empty() ? "" : pki_->path(client + ".key")};
  }
  status check_connection(const etcd_tls& tls, const std::string& host = "127.0.0.1") const {
    const auto client = etcd::connect({url(host)}, std::chrono::milliseconds(5000), tls);
    if (!client) return client.error();
    const auto found = client->list("/x/");
    if (!found) return found.error();
    return {};
  }

  store_rig rig_;
  std::unique_ptr<test_pki> pki_;
  const test::reserved_port port_, peer_port_;
  std::unique_ptr<child_process> etcd_;
};

TEST_F(etcd_by_tls, BothEndsProveThemselves) {
  const status mine = check_connection(files("ca", "store"));
  ASSERT_TRUE(mine) << mine.error().message;
  EXPECT_FALSE(check_connection(files("ca", ""))) << "without a certificate";
  EXPECT_FALSE(check_connection(files("ca", "stranger"))) << "with one by somebody else";
  const status forged = check_connection(files("stranger_ca", "store"));
  ASSERT_FALSE(forged);
  EXPECT_EQ(forged.code(), EPROTO);
  EXPECT_NE(forged.error().message.find("certificate verify failed"), std::string::npos) << forged.error().message;
  EXPECT_EQ(check_connection(files("ca", "store"), "localhost").code(), EPROTO) << "its certificate names another host";
  // An address that does not prove itself is passed over like one that does not answer.
  const auto two = etcd::connect({url("localhost"), url()}, std::chrono::milliseconds(5000), files("ca", "store"));
  ASSERT_TRUE(two);
  // A map's size: many records.
  const std::string long_text(300'000, 'x');
  const auto done = two->transact({}, {{"/x/long", long_text, 0, false}});
  ASSERT_TRUE(done) << done.error().message;
  const auto back = two->list("/x/");
  ASSERT_TRUE(back) << back.error().message;
  ASSERT_EQ(back->entries.size(), 1u);
  EXPECT_EQ(back->entries.front().value, long_text);
}

TEST_F(etcd_by_tls, AServerJoinsAndTheProgramShowsIt) {
  rig_.config.cluster = {url()};
  rig_.config.cluster_tls = files("ca", "store");
  rig_.config.name = "a";
  rig_.config.lease_s = kLeaseSeconds;
  rig_.start();
  store_client::router_options options;
  options.servers = {rig_.config.listen};
  const auto all = store_client::router::open(options);
  ASSERT_TRUE(all) << all.error().message;
  const auto pool = (*all)->create_pool("p", {});
  ASSERT_TRUE(pool) << pool.error().message;
  const auto value = random_value(100, 1);
  const auto done = (*all)->put(*pool, "k", memory_of(value));
  EXPECT_EQ(done.status, 0) << done.text;
#ifdef PL_PROGRAM
  const std::string status =
      std::string(PL_PROGRAM) + " store cluster status --cluster " + url() + " --cluster-tls-ca " + pki_->path("ca.crt");
  const std::string mine =
      " --cluster-tls-cert " + pki_->path("store.crt") + " --cluster-tls-key " + pki_->path("store.key");
  EXPECT_EQ(std::system((status + mine + " >/dev/null").c_str()), 0);
  EXPECT_NE(std::system((status + " >/dev/null 2>&1").c_str()), 0);
#endif
}

}  // namespace
}  // namespace pl::store_test
