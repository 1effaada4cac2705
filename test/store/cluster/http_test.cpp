// SPDX-License-Identifier: Apache-2.0
// The HTTP client of etcd's gateway against servers that keep, drop, stall and break their connections.
#include <gtest/gtest.h>
#include <openssl/ssl.h>

#include <asio/io_context.hpp>
#include <asio/ip/tcp.hpp>
#include <asio/read_until.hpp>
#include <asio/ssl.hpp>
#include <asio/streambuf.hpp>
#include <asio/write.hpp>
#include <atomic>
#include <functional>
#include <thread>

#include "store/cluster/http_answer.hpp"
#include "store/cluster/http_client.hpp"
#include "test/store/server/store_rig.hpp"
#include "test/store/server/test_pki.hpp"

namespace pl::store_test {
namespace {

using asio::ip::tcp;
using store_cluster::http_answer;
using store_cluster::http_client;
using namespace std::chrono_literals;

std::string plain(const std::string& body) {
  return "HTTP/1.1 200 OK\r\nContent-Length: " + std::to_string(body.size()) + "\r\n\r\n" + body;
}

// ---- The answer alone

result<std::string> read_whole(const std::string& text, std::size_t piece) {
  http_answer answer;
  for (std::size_t i = 0; i < text.size(); i += piece) {
    auto whole = answer.take(std::string_view(text).substr(i, piece));
    if (!whole) return whole.error();
    if (*whole) return answer.outcome() + "|" + answer.body() + (answer.keeps_open() ? "|open" : "|closed");
  }
  if (auto ended = answer.end(); !ended) return ended.error();
  return answer.outcome() + "|" + answer.body() + "|closed";
}

TEST(http_answer, IsTheSameHoweverItsBytesCome) {
  const std::pair<std::string, std::string> cases[] = {
      {plain("{}"), "200 OK|{}|open"},
      {plain(""), "200 OK||open"},
      {"HTTP/1.1 200 OK\r\ncontent-LENGTH:  2 \r\nConnection: close\r\n\r\nab", "200 OK|ab|closed"},
      {"HTTP/1.0 200 OK\r\n\r\nuntil the end", "200 OK|until the end|closed"},
      {"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n3;x=y\r\nabc\r\n0A\r\n0123456789\r\n0\r\nTrailer: t\r\n\r\n",
       "200 OK|abc0123456789|open"},
      {"HTTP/1.1 100 Continue\r\n\r\n" + plain("x"), "200 OK|x|open"},
      {"HTTP/1.1 503 Not now\r\nContent-Length: 4\r\n\r\nbusy", "503 Not now|busy|open"},
  };
  for (const auto& [text, wanted] : cases) {
    for (std::size_t piece = 1; piece <= text.size(); ++piece) {
      const auto read = read_whole(text, piece);
      ASSERT_TRUE(read) << text << ": " << read.error().message;
      EXPECT_EQ(*read, wanted) << text << " in pieces of " << piece;
    }
  }
}

TEST(http_answer, WhatIsNoneIsRefused) {
  for (const char* const bad :
       {"", "S", "SSH-2.0-x\r\n\r\n", "HTTP/1.\r\n\r\n", "HTTP/2.0 200 OK\r\n\r\n", "HTTP/1.1 200 OK\r\n",
        "HTTP/1.1 200 OK\r\nno colon\r\n\r\n", "HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nContent-Length: -1\r\n\r\n",
        "HTTP/1.1 200 OK\r\nContent-Length: 1\r\nContent-Length: 2\r\n\r\nab",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: gzip\r\n\r\n", "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nx\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\nab\r\n",
        "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n1\r\na\r\n"}) {
    EXPECT_EQ(read_whole(bad, 1).code(), EPROTO) << bad;
    EXPECT_EQ(read_whole(bad, 1000).code(), EPROTO) << bad;
  }
  for (const char* const bad : {"HTTP/1.1 200 OK\r\nContent-Length: 99999999999\r\n\r\n",
                                "HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\nfffffffff\r\n"})
    EXPECT_EQ(read_whole(bad, 1).code(), EMSGSIZE) << bad;
  EXPECT_EQ(read_whole("HTTP/1.1 200 OK\r\nA: " + std::string(http_answer::kMaxHeadBytes, 'x'), 4096).code(), EMSGSIZE);
}

// ---- Connections

// Takes one connection after the other in a thread of its own, each in one more thread. `serve` says what a request is
// answered with; empty: nothing more, and the connection is closed.
class small_server {
 public:
  using answers = std::function<std::string(int connection, int request)>;

  explicit small_server(answers serve, asio::ssl::context* tls = nullptr) : serve_(std::move(serve)), tls_(tls) {
    thread_ = std::thread([this] {
      for (;;) {
        auto socket = std::make_shared<tcp::socket>(home_);
        std::error_code error;
        acceptor_.accept(*socket, error);
        if (error || stopping_) return;
        const int number = connections++;
        sockets_.push_back(socket);
        threads_.emplace_back([this, socket, number] { talk_on(*socket, number); });
      }
    });
  }
  ~small_server() {
    stopping_ = true;
    std::error_code ignored;
    tcp::socket(home_).connect(acceptor_.local_endpoint(), ignored);
    thread_.join();
    for (const auto& socket : sockets_) socket->shutdown(tcp::socket::shutdown_both, ignored);
    for (auto& thread : threads_) thread.join();
  }
  store_cluster::http_address address() const {
    return {"127.0.0.1", std::to_string(acceptor_.local_endpoint().port()), tls_ != nullptr};
  }

  std::atomic<int> connections{0}, requests{0}, resumed{0};

 private:
  void talk_on(tcp::socket& socket, int number) {
    if (tls_ == nullptr) return talk(socket, socket, number);
    asio::ssl::stream<tcp::socket&> stream(socket, *tls_);
    std::error_code error;
    stream.handshake(asio::ssl::stream_base::server, error);
    if (error) return;
    if (SSL_session_reused(stream.native_handle()) != 0) ++resumed;
    talk(stream, socket, number);
  }
  template <class Stream>
  void talk(Stream& stream, tcp::socket& socket, int number) {
    asio::streambuf input;
    for (int i = 0;; ++i) {
      std::error_code error;
      asio::read_until(stream, input, "\r\n\r\n{}", error);  // each request's body is "{}"
      if (error) return;
      input.consume(input.size());
      ++requests;
      const std::string text = serve_(number, i);
      if (!text.empty()) asio::write(stream, asio::buffer(text), error);
      if (text.empty() || text.find("close") != std::string::npos) {
        socket.shutdown(tcp::socket::shutdown_both, error);
        return;
      }
    }
  }

  answers serve_;
  asio::ssl::context* const tls_;
  asio::io_context home_;
  tcp::acceptor acceptor_{home_, tcp::endpoint(asio::ip::address_v4::loopback(), 0)};
  std::atomic<bool> stopping_{false};
  std::vector<std::shared_ptr<tcp::socket>> sockets_;  // of the accepting thread until that has ended
  std::vector<std::thread> threads_;
  std::thread thread_;
};

TEST(http_client, RequestsShareAConnection) {
  small_server server([](int, int request) { return plain(std::to_string(request)); });
  http_client client(server.address(), nullptr);
  for (int i = 0; i < 20; ++i) {
    const auto body = client.post("/x", "{}", 5s);
    ASSERT_TRUE(body) << body.error().message;
    EXPECT_EQ(*body, std::to_string(i));
  }
  EXPECT_EQ(server.connections, 1);
}

TEST(http_client, ThreadsHaveAConnectionEachAndFewAreKept) {
  small_server server([](int, int) { return plain("{}"); });
  http_client client(server.address(), nullptr);
  std::vector<std::thread> threads;
  for (int i = 0; i < 8; ++i)
    threads.emplace_back([&] {
      for (int k = 0; k < 20; ++k) EXPECT_TRUE(client.post("/x", "{}", 5s));
    });
  for (auto& thread : threads) thread.join();
  EXPECT_EQ(server.requests, 160);
  EXPECT_LT(server.connections, 160);
}

TEST(http_client, AConnectionClosedByTheServerIsReopened) {
  // Announced; not announced, before the next request; and when that has come, without a word of an answer.
  for (const char* const text : {"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}", ""}) {
    small_server server([&](int, int request) { return request == 0 && *text == 0 ? plain("{}") : std::string(text); });
    http_client client(server.address(), nullptr);
    for (int i = 0; i < 5; ++i) {
      const auto body = client.post("/x", "{}", 5s);
      ASSERT_TRUE(body) << i << " " << text << ": " << body.error().message;
    }
    EXPECT_EQ(server.connections, 5) << text;
  }
}

TEST(http_client, ATruncatedResponseIsNotRetried) {
  small_server server([](int, int request) {
    return request == 0 ? plain("{}") : std::string("HTTP/1.1 200 OK\r\nX: close\r\nContent-Length: 9\r\n\r\nhalf");
  });
  http_client client(server.address(), nullptr);
  ASSERT_TRUE(client.post("/x", "{}", 5s));
  EXPECT_EQ(client.post("/x", "{}", 5s).code(), EPROTO);
  EXPECT_EQ(server.requests, 2);
}

TEST(http_client, AServerThatStallsCostsTheLimit) {
  std::atomic<bool> over{false};
  small_server server([&](int, int) {
    while (!over) std::this_thread::sleep_for(5ms);
    return plain("{}");
  });
  http_client client(server.address(), nullptr);
  const auto begin = std::chrono::steady_clock::now();
  EXPECT_EQ(client.post("/x", "{}", 200ms).code(), ETIMEDOUT);
  EXPECT_GE(std::chrono::steady_clock::now() - begin, 200ms);
  over = true;
  EXPECT_TRUE(client.post("/x", "{}", 5s)) << "the connection that stalled is not used again";
  EXPECT_EQ(server.connections, 2);
}

TEST(http_client, RefusalsAndClosedPorts) {
  store_cluster::http_address nobody;
  {
    small_server server([](int, int) { return std::string("HTTP/1.1 403 No\r\nContent-Length: 6\r\n\r\nreason"); });
    http_client client(server.address(), nullptr);
    const auto refused = client.post("/x", "{}", 5s);
    EXPECT_EQ(refused.code(), EIO);
    EXPECT_NE(refused.error().message.find("403 No: reason"), std::string::npos) << refused.error().message;
    nobody = server.address();
  }
  http_client client(nobody, nullptr);
  EXPECT_EQ(client.post("/x", "{}", 5s).code(), ECONNREFUSED);
}

TEST(http_client, ATlsSessionIsResumed) {
  if (!openssl_is_there()) GTEST_SKIP() << kNoOpenssl;
  const store_rig rig;
  const test_pki pki(rig.directory());
  pki.authority("ca");
  pki.certificate("server", "ca", "IP:127.0.0.1");
  for (const bool is_older : {false, true}) {
    asio::ssl::context mine(asio::ssl::context::tls_server);
    mine.use_certificate_chain_file(pki.path("server.crt"));
    mine.use_private_key_file(pki.path("server.key"), asio::ssl::context::pem);
    if (is_older) SSL_CTX_set_max_proto_version(mine.native_handle(), TLS1_2_VERSION);
    // Every third connection lives for two requests, the others for one.
    small_server server(
        [](int connection, int request) {
          return request == 0 && connection % 3 == 0 ? plain("{}")
                                                     : "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 2\r\n\r\n{}";
        },
        &mine);
    auto context = std::make_shared<asio::ssl::context>(asio::ssl::context::tls_client);
    context->load_verify_file(pki.path("ca.crt"));
    http_client client(server.address(), context);
    for (int i = 0; i < 8; ++i) {
      const auto body = client.post("/x", "{}", 5s);
      ASSERT_TRUE(body) << body.error().message;
    }
    EXPECT_LT(server.connections, 8);
    EXPECT_GE(server.resumed, 1) << (is_older ? "TLS 1.2" : "TLS 1.3");
    // Who does not trust the authority gets no answer, resumed or not.
    http_client stranger(server.address(), std::make_shared<asio::ssl::context>(asio::ssl::context::tls_client));
    EXPECT_EQ(stranger.post("/x", "{}", 5s).code(), EPROTO);
  }
}

}  // namespace
}  // namespace pl::store_test
