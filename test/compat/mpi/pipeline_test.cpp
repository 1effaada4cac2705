// SPDX-License-Identifier: Apache-2.0
// The pipeline of the MPI library without MPI: two processes and a pipe that carries the header, as MPI would. What the
// programs of this folder cannot do under mpirun, which ends the whole job: deaths, stops, unknown peers, forged headers.
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <functional>
#include <thread>
#include <vector>

#include "base/clock.hpp"
#include "compat/mpi/device_memory.hpp"
#include "compat/mpi/direct_copy.hpp"
#include "compat/mpi/pipeline_copy.hpp"
#include "os/descriptor_message.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::mpi {
namespace {

constexpr std::size_t kBytes = 3 * 1024 * 1024 + 77;
constexpr pipeline_peers::options kOptions{16 << 20, 512 * 1024};

std::string own_job() { return "test-" + std::to_string(getpid()); }

std::unique_ptr<pipeline_peers> open_as(const std::string& job, int rank, int ranks = 2) {
  auto made = pipeline_peers::open(job, rank, ranks, kOptions);
  EXPECT_TRUE(made) << made.error().message;
  return made ? std::move(*made) : nullptr;
}

pieces one_row(std::uint64_t address, std::size_t bytes) {
  return {piece{static_cast<std::ptrdiff_t>(address), bytes, 1, bytes}};
}

// A forked process that ends with what `work` returns, and a pipe from it. The parent must not have used CUDA.
class child {
 public:
  template <class Work>
  explicit child(Work work) {
    EXPECT_EQ(pipe(ends_), 0);
    process_ = fork();
    if (process_ != 0) return;
    alarm(60);
    _exit(work(ends_[1]));
  }
  ~child() {
    if (process_ > 0) kill(process_, SIGKILL), end();
    close(ends_[0]);
    close(ends_[1]);
  }
  template <class Value>
  Value read_value() const {
    Value out{};
    EXPECT_EQ(read(ends_[0], &out, sizeof out), static_cast<ssize_t>(sizeof out));
    return out;
  }
  pid_t process() const { return process_; }
  int end() {
    int status = -1;
    waitpid(std::exchange(process_, -1), &status, 0);
    return status;
  }

 private:
  int ends_[2] = {-1, -1};
  pid_t process_ = -1;
};

template <class Value>
void tell(int pipe, const Value& value) {
  if (write(pipe, &value, sizeof value) != static_cast<ssize_t>(sizeof value)) _exit(90);
}

// In a child: rank 1 begins a message to rank 0 and tells its header.
std::optional<outgoing_message> begin_and_tell(pipeline_peers& peers, int pipe) {
  auto message = peers.begin(0, 5, kBytes);
  if (message) tell(pipe, peers.header_of(*message));
  return message;
}

// Also tells how the bytes went. Only the sender can: once the receiver needs the message no more, its words are the next
// one's.
bool send_and_tell_way(pipeline_peers& peers, int pipe, const pieces& rows) {
  auto message = begin_and_tell(peers, pipe);
  if (!message || !send_rows(peers, *message, rows)) return false;
  tell(pipe, message->shared().direct.load());
  return true;
}

int send_device_bytes(const std::string& job, int pipe, std::uint64_t seed) {
  test::simulated_cuda();
  const test::current_device current;
  const test::device_buffer data(kBytes);
  test::set_device_bytes(data.pointer(), test::random_bytes(kBytes, seed));
  auto peers = open_as(job, 1);
  auto message = begin_and_tell(*peers, pipe);
  if (!message) return 2;
  return send_rows(*peers, *message, one_row(data.pointer(), kBytes)) ? 0 : 3;
}

status receive_host_bytes(pipeline_peers& peers, const message_header& header, std::vector<unsigned char>& out) {
  auto message = peers.find(header);
  if (!message) return message.error();
  out.assign(header.bytes, 0);
  return receive_rows(peers, *message, one_row(reinterpret_cast<std::uint64_t>(out.data()), out.size()), place_kind::host);
}

void expect_message(pipeline_peers& peers, const message_header& header, std::uint64_t seed) {
  std::vector<unsigned char> got;
  const auto done = receive_host_bytes(peers, header, got);
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(got, test::random_bytes(kBytes, seed));
}

// The message into device memory of this process.
struct device_receive {
  status outcome;
  std::vector<unsigned char> bytes;
};

device_receive receive_device_bytes(pipeline_peers& peers, const message_header& header, int device) {
  test::simulated_cuda();
  const test::current_device current(device);
  const test::device_buffer data(header.bytes);
  test::set_device_bytes(data.pointer(), std::vector<unsigned char>(header.bytes));
  device_receive out;
  auto message = peers.find(header);
  if (!message) return out.outcome = message.error(), out;
  out.outcome = receive_rows(peers, *message, one_row(data.pointer(), header.bytes), place_kind::device);
  out.bytes = test::device_bytes(data.pointer(), header.bytes);
  return out;
}

// Rank 0 in a process of its own, which forks rank 1: CUDA is the children's alone. Each body gets its own rank's peers.
using sender_body = std::function<int(pipeline_peers&, int pipe)>;
using receiver_body = std::function<int(pipeline_peers&, child& sender)>;
void expect_job_of_children(const std::string& job, const sender_body& send, const receiver_body& receive) {
  child receiver([&](int pipe) {
    auto peers = open_as(job, 0);
    tell(pipe, 'r');
    child sender([&](int inner) {
      test::simulated_cuda();
      const test::current_device current;
      auto own = open_as(job, 1);
      return send(*own, inner);
    });
    return receive(*peers, sender);
  });
  EXPECT_EQ(receiver.read_value<char>(), 'r');
  EXPECT_EQ(receiver.end(), 0);
}

// What the receiver's engine reads in the sender's memory, on the same GPU and on another one.
TEST(MpiPipeline, ReadsDeviceMemoryWhereItIs) {
  const auto send = [](pipeline_peers& own, int pipe) {
    const test::device_buffer data(kBytes);
    test::set_device_bytes(data.pointer(), test::random_bytes(kBytes, 5));
    set_offer_timeout_for_tests(20'000'000'000);
    for (int i = 0; i < 3; ++i)
      if (!send_and_tell_way(own, pipe, one_row(data.pointer(), kBytes))) return 2;
    return 0;
  };
  for (const int device : {0, 1}) {
    SCOPED_TRACE("GPU " + std::to_string(device));
    expect_job_of_children(own_job() + std::to_string(device), send, [&](pipeline_peers& peers, child& sender) {
      test::simulated_cuda();
      const test::current_device current(device);
      const test::device_buffer destination(kBytes);
      for (int i = 0; i < 3; ++i) {
        test::set_device_bytes(destination.pointer(), std::vector<unsigned char>(kBytes));
        auto message = peers.find(sender.read_value<message_header>());
        if (!message || !receive_rows(peers, *message, one_row(destination.pointer(), kBytes), place_kind::device))
          return 10;
        if (sender.read_value<direct_state>() != direct_state::done) return 11;
        if (test::device_bytes(destination.pointer(), kBytes) != test::random_bytes(kBytes, 5)) return 12;
      }
      return sender.end() == 0 ? 0 : 13;
    });
  }
}

// One message for each of these ways, sent one after the other. The receiver lets an offer lapse where its message is to be
// withdrawn. time_limit_ns 0: the offers wait as long as they do outside tests.
void expect_ways(unsigned seed, std::uint64_t time_limit_ns, const std::vector<direct_state>& ways) {
  const auto send = [&](pipeline_peers& own, int pipe) {
    const test::device_buffer data(kBytes);
    test::set_device_bytes(data.pointer(), test::random_bytes(kBytes, seed));
    if (time_limit_ns != 0) set_offer_timeout_for_tests(time_limit_ns);
    for (std::size_t i = 0; i < ways.size(); ++i)
      if (!send_and_tell_way(own, pipe, one_row(data.pointer(), kBytes))) return 2;
    return 0;
  };
  expect_job_of_children(own_job(), send, [&](pipeline_peers& peers, child& sender) {
    test::simulated_cuda();
    for (const auto expected : ways) {
      const auto header = sender.read_value<message_header>();
      const auto message = peers.find(header);
      if (!message) return 19;
      while (expected == direct_state::withdrawn && message->shared().direct.load() != expected) usleep(1000);
      const auto got = receive_device_bytes(peers, header, 0);
      const auto way = sender.read_value<direct_state>();
      if (!got.outcome || way != expected) return 20 + static_cast<int>(way);
      if (got.bytes != test::random_bytes(kBytes, seed)) return 12;
    }
    return sender.end() == 0 ? 0 : 13;
  });
}

// The offer is taken back, and the message goes through the ring. The next ones make no offer for a while.
TEST(MpiPipeline, AnOfferThatNobodyTakesIsWithdrawn) { expect_ways(6, 0, {direct_state::withdrawn, direct_state::none}); }

// A receiver that has taken an offer before is offered the next message, too.
TEST(MpiPipeline, AWithdrawnOfferDoesNotStopLaterOnes) {
  expect_ways(7, 1'000'000'000, {direct_state::done, direct_state::withdrawn, direct_state::done});
}

// The receiver works on a message that was sent before: the offer of the next one stands until its turn.
TEST(MpiPipeline, AnOfferStandsWhileItsReceiverTakesEarlierMessages) {
  const auto send = [](pipeline_peers& own, int pipe) {
    const test::device_buffer data(kBytes);
    test::set_device_bytes(data.pointer(), test::random_bytes(kBytes, 8));
    auto earlier = begin_and_tell(own, pipe);
    if (!earlier) return 1;
    set_offer_timeout_for_tests(100'000'000);
    return send_and_tell_way(own, pipe, one_row(data.pointer(), kBytes)) ? 0 : 2;
  };
  expect_job_of_children(own_job(), send, [](pipeline_peers& peers, child& sender) {
    test::simulated_cuda();
    const auto earlier = peers.find(sender.read_value<message_header>());
    const auto header = sender.read_value<message_header>();
    if (!earlier) return 18;
    for (int i = 1; i <= 60; ++i) {  // six times the patience of the offer
      usleep(10'000);
      earlier->shared().taken.store(static_cast<std::uint64_t>(i));
    }
    const auto got = receive_device_bytes(peers, header, 0);
    const auto way = sender.read_value<direct_state>();
    if (!got.outcome || way != direct_state::done) return 20 + static_cast<int>(way);
    return sender.end() == 0 ? 0 : 13;
  });
}

// A sender that ends with its offer: an error, since its bytes are nowhere.
TEST(MpiPipeline, AnOfferOfAProcessThatHasEndedIsAnError) {
  const auto send = [](pipeline_peers& own, int pipe) {
    const test::device_buffer data(kBytes);
    auto message = own.begin(0, 5, kBytes);
    if (!message) return 2;
    const auto offer = hand_over({data.pointer(), kBytes});
    if (!offer) return 3;
    message_slot& slot = message->shared();
    slot.direct_place = offer->place;
    slot.direct_id = offer->id;
    slot.direct_pointer = data.pointer();
    slot.direct.store(direct_state::offered);
    tell(pipe, own.header_of(*message));
    pause();
    return 0;
  };
  expect_job_of_children(own_job(), send, [](pipeline_peers& peers, child& sender) {
    const auto header = sender.read_value<message_header>();
    if (auto known = peers.find(header); !known) return 14;  // the connection is there
    kill(sender.process(), SIGKILL);
    sender.end();
    return receive_device_bytes(peers, header, 0).outcome.code() == EPIPE ? 0 : 15;
  });
}

TEST(MpiPipeline, HandsAMessageOverThroughASmallerRing) {
  const auto job = own_job();
  auto peers = open_as(job, 0);
  child sender([&](int pipe) { return send_device_bytes(job, pipe, 1); });
  const auto header = sender.read_value<message_header>();
  EXPECT_EQ(peers->size_behind(1, header.slot, 5), kBytes);
  EXPECT_EQ(peers->size_behind(1, header.slot, 6), 0u) << "another tag";
  expect_message(*peers, header, 1);
  EXPECT_EQ(peers->size_behind(1, header.slot, 5), 0u) << "it has been received";
  EXPECT_EQ(sender.end(), 0);
}

// The receiver comes when its sender has long ended: nothing of the message is lost.
TEST(MpiPipeline, AMessageOutlivesItsSender) {
  const auto job = own_job();
  auto peers = open_as(job, 0);
  child sender([&](int pipe) { return send_device_bytes(job, pipe, 2); });
  const auto header = sender.read_value<message_header>();
  ASSERT_EQ(sender.end(), 0) << "a sender waits for no receiver";
  expect_message(*peers, header, 2);
}

// Also if a process that the sender forked keeps its sockets open.
TEST(MpiPipeline, ASenderThatDiesInTheMiddleEndsTheReceive) {
  for (const bool has_child : {false, true}) {
    const auto job = own_job();
    auto peers = open_as(job, 0);
    child sender([&](int pipe) {
      auto own = open_as(job, 1);
      auto message = begin_and_tell(*own, pipe);
      if (!message) return 2;
      const pid_t grandchild = has_child ? fork() : -1;
      if (grandchild == 0) sleep(20), _exit(0);
      tell(pipe, grandchild);
      message->shared().ready.store(100'000, std::memory_order_release);
      kill(getpid(), SIGKILL);
      return 0;
    });
    const auto header = sender.read_value<message_header>();
    const auto grandchild = sender.read_value<pid_t>();
    std::vector<unsigned char> got;
    const auto begin = monotonic_ns();
    const auto done = receive_host_bytes(*peers, header, got);
    ASSERT_FALSE(done);
    EXPECT_EQ(done.error().code, EPIPE) << done.error().message;
    EXPECT_LT(monotonic_ns() - begin, 20'000'000'000u);
    if (grandchild > 0) kill(grandchild, SIGKILL);
  }
}

TEST(MpiPipeline, AStoppedSenderIsWaitedFor) {
  const auto job = own_job();
  auto peers = open_as(job, 0);
  child sender([&](int pipe) {
    test::simulated_cuda();
    const test::current_device current;
    const test::device_buffer data(kBytes);
    test::set_device_bytes(data.pointer(), test::random_bytes(kBytes, 3));
    auto own = open_as(job, 1);
    auto message = begin_and_tell(*own, pipe);
    if (!message) return 2;
    raise(SIGSTOP);
    return send_rows(*own, *message, one_row(data.pointer(), kBytes)) ? 0 : 3;
  });
  const auto header = sender.read_value<message_header>();
  int state = 0;
  ASSERT_EQ(waitpid(sender.process(), &state, WUNTRACED), sender.process());
  std::thread waker([&] {
    std::this_thread::sleep_for(std::chrono::milliseconds(100));
    kill(sender.process(), SIGCONT);
  });
  std::vector<unsigned char> got;
  const auto done = receive_host_bytes(*peers, header, got);
  waker.join();
  ASSERT_TRUE(done) << done.error().message;
  EXPECT_EQ(got, test::random_bytes(kBytes, 3));
}

TEST(MpiPipeline, DataThatCannotBeReadEndsTheReceive) {
  const auto job = own_job();
  auto peers = open_as(job, 0);
  child sender([&](int pipe) {
    test::simulated_cuda();
    const test::current_device current;
    const test::device_buffer data(kBytes / 2);  // the message leaves its allocation
    auto own = open_as(job, 1);
    auto message = begin_and_tell(*own, pipe);
    if (!message) return 2;
    return send_rows(*own, *message, one_row(data.pointer(), kBytes)) ? 3 : 0;
  });
  const auto header = sender.read_value<message_header>();
  std::vector<unsigned char> got;
  const auto done = receive_host_bytes(*peers, header, got);
  ASSERT_FALSE(done);
  EXPECT_EQ(done.error().code, EPIPE) << done.error().message;
  EXPECT_EQ(sender.end(), 0);
}

// The receiver dies, or stops for ever, before it takes anything: the send ends. To a dead one nothing more is begun.
TEST(MpiPipeline, ADeadReceiverDoesNotBlockTheSender) {
  for (const int last : {SIGKILL, SIGSTOP}) {
    const auto job = own_job();
    child receiver([&](int pipe) {
      auto own = open_as(job, 0);
      tell(pipe, 1);
      sleep(20);
      return 0;
    });
    receiver.read_value<int>();
    child sender([&](int pipe) {
      test::simulated_cuda();
      const test::current_device current;
      const test::device_buffer data(kBytes);
      auto own = open_as(job, 1);
      auto message = begin_and_tell(*own, pipe);
      if (!message) return 2;
      kill(receiver.process(), last);
      if (last == SIGKILL) waitpid(receiver.process(), nullptr, 0);  // not our child: only gives it time
      usleep(50'000);
      if (!send_rows(*own, *message, one_row(data.pointer(), kBytes))) return 3;
      const bool goes_on = own->begin(0, 5, kBytes).has_value();
      if (goes_on != (last == SIGSTOP)) return 4;
      return 0;
    });
    EXPECT_EQ(sender.end(), 0) << "signal " << last;
  }
}

TEST(MpiPipeline, TheNextMessagesUseTheSameMemory) {
  const auto job = own_job();
  auto peers = open_as(job, 0);
  child sender([&](int pipe) {
    test::simulated_cuda();
    const test::current_device current;
    const test::device_buffer data(kBytes);
    auto own = open_as(job, 1);
    const int descriptors = test::open_descriptor_count();
    int after_some = 0;
    for (std::uint64_t i = 0; i < 600; ++i) {  // more than there are slots
      test::set_device_bytes(data.pointer(), test::random_bytes(64, i));
      auto message = own->begin(0, 5, 100'000);
      if (!message) return 2;
      tell(pipe, own->header_of(*message));
      if (!send_rows(*own, *message, one_row(data.pointer(), 100'000))) return 3;
      while (message->shared().is_done.load(std::memory_order_acquire) == 0) usleep(20);
      if (i == 10) after_some = test::open_descriptor_count();
    }
    const int at_end = test::open_descriptor_count();
    if (at_end == after_some) return 0;
    fprintf(stderr, "%d descriptors at first, %d after ten messages, %d at the end\n", descriptors, after_some, at_end);
    return 4;
  });
  for (std::uint64_t i = 0; i < 600; ++i) {
    std::vector<unsigned char> got;
    const auto done = receive_host_bytes(*peers, sender.read_value<message_header>(), got);
    ASSERT_TRUE(done) << done.error().message;
    got.resize(64);
    ASSERT_EQ(got, test::random_bytes(64, i));
  }
  EXPECT_EQ(sender.end(), 0);
}

TEST(MpiPipeline, AHeaderFromAnUnknownSenderIsAnError) {
  const auto job = own_job();
  auto peers = open_as(job, 0);
  child sender([&](int pipe) { return send_device_bytes(job, pipe, 4); });
  const auto header = sender.read_value<message_header>();
  std::vector<unsigned char> got;
  const auto refused = [&](auto change) {
    auto forged = header;
    change(forged);
    const auto done = receive_host_bytes(*peers, forged, got);
    EXPECT_FALSE(done);
    if (!done) { EXPECT_EQ(done.error().code, EPROTO) << done.error().message; }
  };
  refused([](message_header& one) { one.slot = kSlots; });
  refused([](message_header& one) { one.slot = ~0u; });
  refused([](message_header& one) { one.slot = (one.slot + 1) % kSlots; });
  refused([](message_header& one) { one.rank = 0; });
  refused([](message_header& one) { one.rank = -7; });
  refused([](message_header& one) { one.nonce[3] ^= std::byte{1}; });
  refused([](message_header& one) { ++one.serial; });
  refused([](message_header& one) { ++one.bytes; });
  expect_message(*peers, header, 4);
}

// ---- Strangers --------------------------------------------------------------------------------------------------------

unique_fd stranger(const std::string& job, int rank) {
  const auto name = pipeline_peers::socket_name(job, 2, rank);
  sockaddr_un address{};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  unique_fd out(real_device_io(), socket(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC | SOCK_NONBLOCK, 0));
  const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
  if (connect(out.get(), reinterpret_cast<const sockaddr*>(&address), size) != 0) out.reset();
  return out;
}

void say(const unique_fd& socket, const void* bytes, std::size_t n, int fd) {
  const std::span text(static_cast<const std::byte*>(bytes), n);
  const ssize_t sent = fd >= 0 ? send_with_descriptor(socket.get(), text, fd) : send(socket.get(), bytes, n, MSG_NOSIGNAL);
  EXPECT_EQ(sent, static_cast<ssize_t>(n));
}

TEST(MpiPipeline, StrangersDoNotDisturb) {
  const auto job = own_job();
  auto peers = open_as(job, 0);
  const int before = test::open_descriptor_count();
  std::vector<unique_fd> strangers;
  const auto add = [&](auto talk) {
    strangers.push_back(stranger(job, 0));
    ASSERT_TRUE(strangers.back());
    talk(strangers.back());
  };
  auto good_file = sealed_memory::make("stranger", kSlots * sizeof(message_slot));
  auto short_file = sealed_memory::make("stranger", 4096);
  ASSERT_TRUE(good_file && short_file);
  const unique_fd unsealed(real_device_io(), memfd_create("stranger", MFD_CLOEXEC));
  ASSERT_EQ(ftruncate(unsealed.get(), kSlots * sizeof(message_slot)), 0);
  pipeline_hello hello{pipeline_hello::kind::slots, 0, kSlots * sizeof(message_slot), {}, 1, 2};
  add([](const unique_fd&) {});  // says nothing
  add([&](const unique_fd& one) { say(one, "hello", 5, -1); });
  add([&](const unique_fd& one) { say(one, &hello, sizeof hello, -1); });
  add([&](const unique_fd& one) { say(one, &hello, sizeof hello, short_file->fd.get()); });
  add([&](const unique_fd& one) { say(one, &hello, sizeof hello, unsealed.get()); });
  const auto hello_as = [&](auto change) {
    auto other = hello;
    change(other);
    add([&](const unique_fd& one) { say(one, &other, sizeof other, good_file->fd.get()); });
  };
  hello_as([](pipeline_hello& one) { one.rank = 2; });
  hello_as([](pipeline_hello& one) { one.rank = -1; });
  hello_as([](pipeline_hello& one) { one.ranks = 3; });
  hello_as([](pipeline_hello& one) { one.bytes = ~std::uint64_t{0}; });
  hello_as([](pipeline_hello& one) { one.type = pipeline_hello::kind::segment; });
  child sender([&](int pipe) { return send_device_bytes(job, pipe, 5); });
  expect_message(*peers, sender.read_value<message_header>(), 5);
  strangers.clear();
  EXPECT_EQ(sender.end(), 0);
  EXPECT_LE(test::open_descriptor_count(), before + 9) << "what strangers sent is closed";
}

// So many that the socket accepts no more: the sender stages its message, and uses the pipeline again once the receiver
// has accepted the connections.
TEST(MpiPipeline, AConnectionFloodOnlyDisablesThePipeline) {
  const auto job = own_job();
  auto peers = open_as(job, 0);
  auto own = open_as(job, 1);
  std::vector<unique_fd> strangers;
  for (int i = 0; i < 900; ++i) {
    auto one = stranger(job, 0);
    if (!one) break;
    strangers.push_back(std::move(one));
  }
  ASSERT_GT(strangers.size(), 400u);
  EXPECT_FALSE(own->begin(0, 5, kBytes)) << "no room in the queue";
  EXPECT_EQ(peers->size_behind(1, 3, 5), 0u);
  EXPECT_TRUE(own->begin(0, 5, kBytes));
}

TEST(MpiPipeline, ANameThatIsTakenIsAnError) {
  const auto job = own_job();
  auto peers = open_as(job, 0);
  const auto second = pipeline_peers::open(job, 0, 2, kOptions);
  ASSERT_FALSE(second);
  EXPECT_EQ(second.error().code, EADDRINUSE);
}

// Another user's process under the name of a rank is not sent to.
TEST(MpiPipeline, AnotherUsersSocketIsNotTrusted) {
  if (geteuid() != 0) GTEST_SKIP() << "only root can become another user";
  const auto job = own_job();
  const auto name = pipeline_peers::socket_name(job, 2, 0);
  child squatter([&](int pipe) {
    if (setresuid(65534, 65534, 65534) != 0) return 1;
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path + 1, name.data(), name.size());
    const int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    const auto size = static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
    if (bind(fd, reinterpret_cast<const sockaddr*>(&address), size) != 0 || listen(fd, 8) != 0) return 2;
    tell(pipe, 1);
    sleep(20);
    return 0;
  });
  squatter.read_value<int>();
  auto own = open_as(job, 1);
  EXPECT_FALSE(own->begin(0, 5, kBytes));
}

TEST(MpiPipeline, WithoutDescriptorsMessagesAreStaged) {
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
  GTEST_SKIP() << "the sanitizer opens a pipe to look at an object, and calls the object invalid if it cannot";
#endif
  const auto job = own_job();
  auto peers = open_as(job, 0);
  auto own = open_as(job, 1);
  rlimit limit{};
  ASSERT_EQ(getrlimit(RLIMIT_NOFILE, &limit), 0);
  const rlimit none{static_cast<rlim_t>(test::open_descriptor_count()), limit.rlim_max};
  for (rlim_t more = 0; more < 6; ++more) {
    const rlimit some{none.rlim_cur + more, limit.rlim_max};
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &some), 0);
    auto message = own->begin(0, 5, kBytes);
    if (message) own->withdraw(*message);
    ASSERT_EQ(setrlimit(RLIMIT_NOFILE, &limit), 0);
  }
  EXPECT_TRUE(own->begin(0, 5, kBytes));
}

// ---- Rows -------------------------------------------------------------------------------------------------------------

TEST(MpiPieces, ACursorCutsRowsAnywhere) {
  const pieces rows{{100, 7, 3, 10}, {1000, 64, 1, 64}, {2000, 1, 5, 2}};
  std::vector<std::ptrdiff_t> whole;
  const auto list = [](const pieces& some, std::vector<std::ptrdiff_t>& out) {
    for (const auto& one : some)
      for (std::size_t row = 0; row < one.rows; ++row)
        for (std::size_t byte = 0; byte < one.row_bytes; ++byte)
          out.push_back(one.offset + static_cast<std::ptrdiff_t>(row * one.pitch + byte));
  };
  list(rows, whole);
  ASSERT_EQ(whole.size(), 90u);
  for (std::size_t step = 1; step <= 91; ++step) {
    piece_cursor cursor(rows);
    std::vector<std::ptrdiff_t> cut;
    for (;;) {
      const auto part = cursor.next(step);
      if (part.empty()) break;
      list(part, cut);
    }
    EXPECT_EQ(cut, whole) << step;
  }
}

}  // namespace
}  // namespace pl::mpi
