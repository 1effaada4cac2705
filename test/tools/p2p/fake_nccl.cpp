// SPDX-License-Identifier: Apache-2.0
// Stands in for libnccl.so.2 on the simulated GPU: the functions that `peerlane p2p --via nccl` calls, over sockets between
// processes of one machine. Refuses what the real one refuses or hangs at: use outside of a group's rules, memory that is
// not the GPU's, a receive whose size is not the send's.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <thread>
#include <utility>
#include <vector>

extern "C" {
int cuMemcpyDtoH_v2(void* host, unsigned long long device, size_t bytes);
int cuMemcpyHtoD_v2(unsigned long long device, const void* host, size_t bytes);
int cuCtxGetCurrent(void** context);
int cuCtxSetCurrent(void* context);
}

namespace {

enum { ok = 0, cuda_error = 1, system_error = 2, bad_argument = 4, bad_usage = 5, remote_error = 6 };

struct unique_id {
  char bytes[128];
};

struct operation {
  unsigned long long device;
  std::size_t size;
  int peer;
  bool sends;
};

bool move_all(int socket, void* data, std::size_t size, bool sends) {
  for (std::size_t done = 0; done < size;) {
    char* const cursor = static_cast<char*>(data) + done;
    const auto count = sends ? send(socket, cursor, size - done, MSG_NOSIGNAL) : recv(socket, cursor, size - done, 0);
    if (count <= 0) return false;
    done += static_cast<std::size_t>(count);
  }
  return true;
}

sockaddr_un address_of(const unique_id& id, int rank) {
  sockaddr_un address{};
  address.sun_family = AF_UNIX;  // the leading 0 of an abstract name stays
  std::snprintf(address.sun_path + 1, sizeof address.sun_path - 1, "%.60s.%d", id.bytes, rank);
  return address;
}

}  // namespace

struct communicator {
  int rank = 0, size = 0;
  std::map<int, int> sockets;  // by peer
};

namespace {

int g_group_depth = 0;
std::vector<operation> g_group;
communicator* g_group_of = nullptr;

// One thread for each direction and peer, so that no order of sends and receives blocks within a group, as in NCCL.
int carry_out(const communicator& world, const std::vector<operation>& all, int peer, bool sends) {
  std::vector<char> bytes;
  for (const auto& one : all) {
    if (one.peer != peer || one.sends != sends) continue;
    bytes.resize(one.size);
    const int socket = world.sockets.at(peer);
    std::uint64_t size = one.size;
    if (sends && cuMemcpyDtoH_v2(bytes.data(), one.device, one.size) != 0) return cuda_error;
    if (!move_all(socket, &size, sizeof size, sends)) return remote_error;
    if (size != one.size) return bad_usage;
    if (!move_all(socket, bytes.data(), one.size, sends)) return remote_error;
    if (!sends && cuMemcpyHtoD_v2(one.device, bytes.data(), one.size) != 0) return cuda_error;
  }
  return ok;
}

int flush() {
  const auto all = std::exchange(g_group, {});
  const auto* world = std::exchange(g_group_of, nullptr);
  if (world == nullptr) return ok;
  void* context = nullptr;
  cuCtxGetCurrent(&context);
  std::vector<int> codes(2 * world->sockets.size(), ok);
  std::vector<std::thread> threads;
  for (const auto& entry : world->sockets)
    for (const bool sends : {true, false})
      threads.emplace_back([&, peer = entry.first, sends, destination = &codes[threads.size()]] {
        cuCtxSetCurrent(context);
        *destination = carry_out(*world, all, peer, sends);
      });
  for (auto& one : threads) one.join();
  for (const int code : codes)
    if (code != ok) return code;
  return ok;
}

int add(const void* data, std::size_t count, int type, int peer, communicator* comm, void* stream, bool sends) {
  if (type != 1 || count == 0 || stream == nullptr || peer == comm->rank || comm->sockets.count(peer) == 0)
    return bad_argument;
  if (g_group_of != nullptr && g_group_of != comm) return bad_usage;
  g_group_of = comm;
  g_group.push_back({reinterpret_cast<unsigned long long>(data), count, peer, sends});
  return g_group_depth == 0 ? flush() : ok;
}

}  // namespace

#define PL_FAKE extern "C" __attribute__((visibility("default")))

PL_FAKE int ncclGetVersion(int* version) {
  *version = 22901;
  return ok;
}

PL_FAKE int ncclGetUniqueId(unique_id* id) {
  std::snprintf(id->bytes, sizeof id->bytes, "fake-nccl-%d", getpid());
  id->bytes[127] = 42;  // cut off on the way, it would be missed
  return ok;
}

// A rank listens for those after it, and goes to those before it.
PL_FAKE int ncclCommInitRank(communicator** out, int size, unique_id id, int rank) {
  if (id.bytes[127] != 42) return bad_argument;
  if (std::getenv("FAKE_NCCL_ONE_GPU") != nullptr) return bad_usage;
  auto* made = new communicator{rank, size, {}};
  const int listener = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  const auto mine = address_of(id, rank);
  if (bind(listener, reinterpret_cast<const sockaddr*>(&mine), sizeof mine) != 0 || listen(listener, size) != 0)
    return system_error;
  for (int peer = 0; peer < rank; ++peer) {
    const int line = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    const auto peer_address = address_of(id, peer);
    while (connect(line, reinterpret_cast<const sockaddr*>(&peer_address), sizeof peer_address) != 0)
      usleep(1000);  // not there yet
    if (!move_all(line, &rank, sizeof rank, true)) return remote_error;
    made->sockets[peer] = line;
  }
  for (int i = rank + 1; i < size; ++i) {
    const int line = accept4(listener, nullptr, nullptr, SOCK_CLOEXEC);
    int peer = -1;
    if (!move_all(line, &peer, sizeof peer, false)) return remote_error;
    made->sockets[peer] = line;
  }
  close(listener);
  *out = made;
  return ok;
}

PL_FAKE int ncclCommDestroy(communicator* comm) {
  for (const auto& [peer, line] : comm->sockets) close(line);
  delete comm;
  return ok;
}

PL_FAKE int ncclCommGetAsyncError(communicator*, int* error) {
  *error = ok;
  return ok;
}

PL_FAKE int ncclGroupStart() {
  ++g_group_depth;
  return ok;
}

PL_FAKE int ncclGroupEnd() {
  if (g_group_depth == 0) return bad_usage;
  return --g_group_depth == 0 ? flush() : ok;
}

PL_FAKE int ncclSend(const void* data, std::size_t count, int type, int peer, communicator* comm, void* stream) {
  return add(data, count, type, peer, comm, stream, true);
}

PL_FAKE int ncclRecv(void* data, std::size_t count, int type, int peer, communicator* comm, void* stream) {
  return add(data, count, type, peer, comm, stream, false);
}

PL_FAKE const char* ncclGetErrorString(int code) { return code == bad_usage ? "invalid usage" : "fake error"; }
