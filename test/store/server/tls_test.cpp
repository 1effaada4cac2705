// SPDX-License-Identifier: Apache-2.0
// TLS on TCP: certificates at both ends, the client's says who it is. The certificates are made by the openssl program.
#include <cstdlib>
#include <fstream>
#include <iterator>

#include "base/text.hpp"
#include "test/store/server/store_rig.hpp"
#include "test/store/server/test_pki.hpp"

namespace pl::store_test {
namespace {

class store_tls : public testing::Test {
 protected:
  void SetUp() override {
    if (!openssl_is_there()) GTEST_SKIP() << kNoOpenssl;
    folder_ = rig_.directory() + "/pki";
    std::filesystem::create_directory(folder_);
    authority("ca");
    certificate("server", "ca", "IP:127.0.0.1");
    certificate("client", "ca", "URI:spiffe://site/trainer");
    rig_.config.tls = {path("server.crt"), path("server.key"), path("ca.crt")};
  }
  std::string path(const std::string& name) const { return pki().path(name); }
  test_pki pki() const { return test_pki(folder_); }
  void authority(const std::string& name) { pki().authority(name); }
  void certificate(const std::string& name, const std::string& issuer, const std::string& alternative) {
    pki().certificate(name, issuer, alternative);
  }
  store_client::client_options options_for(const std::string& name, const std::string& authority_name = "ca") const {
    auto options = rig_.over_tcp();
    options.timeout_ms = 3000;
    options.server.tls_certificate = path(name + ".crt");
    options.server.tls_key = path(name + ".key");
    options.server.tls_authority = path(authority_name + ".crt");
    return options;
  }
  store_rig rig_;
  std::string folder_;
};

TEST_F(store_tls, TheCertificateNamesThePrincipal) {
  rig_.config.admins = {"uid:" + std::to_string(geteuid())};
  rig_.start();
  const auto admin = store_rig::open(rig_.over_unix());
  store_protocol::pool_settings settings;
  settings.access = "cert:spiffe://site/trainer=rw";
  const auto pool = make_pool(*admin, "p", settings);
  make_pool(*admin, "closed", {0, 0, store_protocol::durability::durable, false, true, "uid:99=r"});
  const auto store = store_rig::open(options_for("client"));
  ASSERT_NE(store, nullptr);
  EXPECT_EQ(store->way(), store_protocol::path::tls);
  ASSERT_TRUE(store->open_pool("p"));
  for (const std::size_t bytes : {100u, 9u << 20}) {
    const auto value = random_value(bytes, bytes);
    const auto reply = put(*store, pool, "k", value);
    ASSERT_EQ(reply.status, 0) << reply.text;
    EXPECT_EQ(reply.result.way, store_protocol::path::tls);
    EXPECT_EQ(get(*store, pool, "k", bytes), value);
  }
  EXPECT_EQ(store->open_pool("closed").code(), EACCES);
}

// UCX does not encrypt: values bypass TLS only if both ends enable it.
TEST_F(store_tls, UcxBypassesTlsOnlyIfBothEndsEnableIt) {
  rig_.config.ucx = "on";
  rig_.start();
  auto options = options_for("client");
  const auto value = random_value(1 << 20, 1);
  const auto plain = store_rig::open(options);
  EXPECT_NE(plain->why_no_ucx(), "");
  options.ucx = store_client::ucx_mode::on;
  const auto refused = store_rig::open(options);
  if (refused->why_no_ucx().find("UCX cannot be used") != std::string::npos) GTEST_SKIP() << refused->why_no_ucx();
  EXPECT_NE(refused->why_no_ucx().find("ucx_beside_tls"), std::string::npos) << refused->why_no_ucx();
  const auto pool = make_pool(*store_rig::open(rig_.over_unix()), "p");
  ASSERT_TRUE(refused->open_pool("p"));
  EXPECT_EQ(put(*refused, pool, "k", value).result.way, store_protocol::path::tls);
  rig_.stop();
  rig_.config.ucx_beside_tls = true;
  rig_.start();
  const auto allowed = store_rig::open(options);
  ASSERT_TRUE(allowed->open_pool("p"));
  EXPECT_EQ(put(*allowed, pool, "k", value).result.way, store_protocol::path::ucx) << allowed->why_no_ucx();
  EXPECT_EQ(get(*allowed, pool, "k", value.size()), value);
}

// A common name can be written like anything; who signs certificates for hosts does not vouch for URIs in it.
TEST_F(store_tls, ACommonNameIsNobodysUri) {
  const std::string uri = "spiffe://site/trainer";
  pki().certificate("forger", "ca", "DNS:forger", "/CN=" + pki().escaped(uri));
  pki().certificate("named", "ca", "DNS:named", "/CN=named");
  pki().certificate("nameless", "ca", "DNS:nameless", "/O=nobody");
  rig_.start();
  const auto admin = store_rig::open(rig_.over_unix());
  store_protocol::pool_settings settings;
  settings.access = "cert:" + uri + "=rw,cn:named=r";
  make_pool(*admin, "p", settings);
  const auto forger = store_rig::open(options_for("forger")), named = store_rig::open(options_for("named")),
             client = store_rig::open(options_for("client"));
  EXPECT_EQ(forger->open_pool("p").code(), EACCES);
  EXPECT_TRUE(named->open_pool("p"));
  EXPECT_TRUE(client->open_pool("p"));
  EXPECT_FALSE(store_client::client::open(options_for("nameless"))) << "nobody knows who that is";
}

TEST_F(store_tls, CertificatesAreReadAgainWhenTold) {
  rig_.start();
  const auto before = store_rig::open(options_for("client"));
  ASSERT_NE(before, nullptr);
  authority("next_ca");
  certificate("next_server", "next_ca", "IP:127.0.0.1");
  certificate("next_client", "next_ca", "URI:spiffe://site/trainer");
  EXPECT_FALSE(store_client::client::open(options_for("next_client", "next_ca")));
  for (const char* const end : {".crt", ".key"})
    std::filesystem::rename(path(std::string("next_server") + end), path(std::string("server") + end));
  const auto next = path("next_ca.crt");
  std::filesystem::copy_file(path("ca.crt"), path("old_ca.crt"));
  std::filesystem::copy_file(next, path("ca.crt"), std::filesystem::copy_options::overwrite_existing);
  rig_.server().reload();
  std::unique_ptr<store_client::client> after;
  for (int i = 0; i < 100 && !after; ++i) {
    if (auto made = store_client::client::open(options_for("next_client", "next_ca"))) after = *std::move(made);
    else std::this_thread::sleep_for(std::chrono::milliseconds(50));
  }
  ASSERT_NE(after, nullptr);
  EXPECT_FALSE(store_client::client::open(options_for("client", "old_ca"))) << "its authority is none any more";
  EXPECT_EQ(before->run(before->make_plain(store_protocol::opcode::ping, 0, {})).status, 0) << "who was there stays";
  // Files that are no certificates change nothing.
  std::ofstream(path("server.crt")) << "nonsense";
  rig_.server().reload();
  std::this_thread::sleep_for(std::chrono::milliseconds(100));
  EXPECT_TRUE(store_client::client::open(options_for("next_client", "next_ca")));
}

// A client that another authority signed between shows that one's certificate, too.
TEST_F(store_tls, ACertificateMayComeByAnotherAuthority) {
  certificate("between", "ca", "DNS:between\nbasicConstraints=critical,CA:TRUE");
  certificate("far", "between", "URI:spiffe://site/trainer");
  rig_.start();
  EXPECT_FALSE(store_client::client::open(options_for("far"))) << "nobody has shown who signed it";
  std::ofstream(path("far.crt"), std::ios::app) << std::ifstream(path("between.crt")).rdbuf();
  const auto opened = store_client::client::open(options_for("far"));
  EXPECT_TRUE(opened) << opened.error().message;
}

TEST_F(store_tls, ARefusalSaysWhatIsWrongWithTheCertificate) {
  authority("stranger_ca");
  certificate("elsewhere", "ca", "IP:127.0.0.2");
  rig_.start();
  const auto unknown = store_client::client::open(options_for("client", "stranger_ca"));
  EXPECT_NE(unknown.error().message.find("certificate is refused: self-signed certificate in"), std::string::npos)
      << unknown.error().message;
  rig_.stop();
  rig_.config.tls.certificate = path("elsewhere.crt");
  rig_.config.tls.key = path("elsewhere.key");
  rig_.start();
  const auto other = store_client::client::open(options_for("client"));
  EXPECT_NE(other.error().message.find("IP address mismatch"), std::string::npos) << other.error().message;
}

// A client that keeps sessions (Python's, Go's) would offer one again; the answer to that was an internal error.
TEST_F(store_tls, NoSessionIsKept) {
  rig_.start();
  const std::string kept = path("session");
  const auto call = [&](const std::string& more) {
    return std::system(format("(sleep 1; echo Q) | timeout 20 openssl s_client -connect %s -cert %s -key %s -CAfile %s %s "
                              ">%s 2>&1",
                              rig_.over_tcp().server.endpoint.c_str(), path("client.crt").c_str(),
                              path("client.key").c_str(), path("ca.crt").c_str(), more.c_str(), path("said").c_str())
                           .c_str());
  };
  EXPECT_EQ(call("-sess_out " + kept), 0);
  std::ifstream said(path("said"));
  const std::string text{std::istreambuf_iterator<char>(said), {}};
  EXPECT_NE(text.find("Verify return code: 0 (ok)"), std::string::npos) << text;
  EXPECT_EQ(text.find("New Session Ticket"), std::string::npos) << text;
  EXPECT_FALSE(std::filesystem::exists(kept));
}

TEST_F(store_tls, StrangersAreRefusedAtBothEnds) {
  authority("stranger_ca");
  certificate("stranger", "stranger_ca", "URI:spiffe://site/trainer");
  certificate("elsewhere", "ca", "IP:127.0.0.2");
  rig_.start();
  EXPECT_FALSE(store_client::client::open(options_for("stranger")));  // the server does not know who signed it
  EXPECT_FALSE(
      store_client::client::open(options_for("client", "stranger_ca")));  // the client does not know who signed the server
  EXPECT_FALSE(store_client::client::open(rig_.over_tcp()));              // no TLS at all
  rig_.stop();
  rig_.config.tls.certificate = path("elsewhere.crt");
  rig_.config.tls.key = path("elsewhere.key");
  rig_.start();
  EXPECT_FALSE(store_client::client::open(options_for("client")));  // a certificate of another host
}

}  // namespace
}  // namespace pl::store_test
