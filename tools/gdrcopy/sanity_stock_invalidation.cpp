// SPDX-License-Identifier: Apache-2.0
// The invalidation_* and leakage_* cases of gdrcopy_sanity: isolation between processes, and the state after a buffer is
// freed or closed. Where both processes need CUDA, the fork comes first, because CUDA does not survive it.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstring>
#include <fstream>
#include <optional>

#include "os/descriptor_message.hpp"
#include "tools/common/gpu_choice.hpp"
#include "tools/gdrcopy/sanity_case.hpp"

namespace pl::tools {
namespace {

constexpr std::uint32_t kParentWord = 0x50415245;
constexpr std::uint32_t kChildWord = 0x4348494C;

void waive_on_dma_buf(const gdr_session& gdr) {
  if (gdr.attribute(GDR_ATTR_USING_DMA_BUF_MMAP) != 0)
    throw case_waived("attribute USING_DMA_BUF_MMAP is 1: isolation between processes rests on the dma-buf");
}

// Both processes start CUDA: an exclusive GPU admits one.
void need_shared_compute_mode(const gpu_session& gpu) {
  if (gpu.attribute(cu::device_attribute::compute_mode) != cu::compute_mode::shared)
    throw case_waived("the GPU's compute mode admits one process at a time");
}

void put_word(const gdr_buffer& buffer, std::uint32_t word) {
  check_gdr("gdr_copy_to_mapping", gdr_copy_to_mapping(buffer.handle(), buffer.user_pointer(), &word, sizeof word));
}
std::uint32_t get_word(const gdr_buffer& buffer) {
  std::uint32_t word = 0;
  check_gdr("gdr_copy_from_mapping", gdr_copy_from_mapping(buffer.handle(), &word, buffer.user_pointer(), sizeof word));
  return word;
}

template <alloc_kind kKind>
void access_after_gdr_close(const case_context& context) {
  case_fixture fixture(context);
  const device_memory memory(fixture.gpu, kCaseBytes, kKind);
  gdr_mh_t handle{0};
  void* mapped = nullptr;
  PL_REQUIRE(gdr_pin_buffer(fixture.gdr.get(), memory.get(), kCaseBytes, 0, 0, &handle) == 0, "pin: %s", gdr_last_error());
  PL_REQUIRE(gdr_map(fixture.gdr.get(), handle, &mapped, kCaseBytes) == 0, "map: %s", gdr_last_error());
  *static_cast<volatile std::uint32_t*>(mapped) = kParentWord;
  std::uint32_t seen = 0;
  PL_REQUIRE(!read_faults(mapped, &seen) && seen == kParentWord, "the mapping does not work before gdr_close");
  fixture.gdr.close();
  const bool faulted = read_faults(mapped, &seen);
  PL_REQUIRE(faulted || seen != kParentWord, "the buffer is still readable after gdr_close");
}

template <alloc_kind kKind>
void access_after_free(const case_context& context) {
  case_fixture fixture(context);
  device_memory memory(fixture.gpu, kCaseBytes, kKind);
  const gdr_buffer buffer(fixture.gdr, memory.get(), kCaseBytes);
  put_word(buffer, kParentWord);
  const bool persistent = fixture.gdr.attribute(GDR_ATTR_USE_PERSISTENT_MAPPING) != 0;
  memory.free();
  fixture.gpu.synchronize();
  std::uint32_t seen = 0;
  const bool faulted = read_faults(buffer.user_pointer(), &seen);
  if (persistent) PL_REQUIRE(!faulted && seen == kParentWord, "persistent mapping: the data is gone after the free");
  else PL_REQUIRE(faulted, "the mapping survives the free although mappings are not persistent");
}

template <alloc_kind kKind>
void two_mappings(const case_context& context) {
  case_fixture fixture(context);
  device_memory first(fixture.gpu, kCaseBytes, kKind), second(fixture.gpu, kCaseBytes, kKind);
  std::optional<gdr_buffer> a(std::in_place, fixture.gdr, first.get(), kCaseBytes);
  const gdr_buffer b(fixture.gdr, second.get(), kCaseBytes);
  put_word(*a, kChildWord);
  put_word(b, kParentWord);
  first.free();
  PL_REQUIRE(get_word(b) == kParentWord, "freeing one buffer changed the mapping of the other");
  a.reset();
  PL_REQUIRE(get_word(b) == kParentWord, "unmapping one buffer changed the mapping of the other");
}

template <alloc_kind kKind>
void fork_access_after_free(const case_context& context) {
  process_pipe to_child, to_parent;
  child_process child([&] {
    to_child.take();
    case_fixture fixture(context);
    need_shared_compute_mode(fixture.gpu);
    const device_memory memory(fixture.gpu, kCaseBytes, kKind);
    const gdr_buffer buffer(fixture.gdr, memory.get(), kCaseBytes);
    put_word(buffer, kChildWord);
    to_parent.pass();
    to_child.take();
  });
  case_fixture fixture(context);
  need_shared_compute_mode(fixture.gpu);
  device_memory memory(fixture.gpu, kCaseBytes, kKind);
  const gdr_buffer buffer(fixture.gdr, memory.get(), kCaseBytes);
  put_word(buffer, kParentWord);
  memory.free();
  to_child.pass();
  to_parent.take();
  std::uint32_t seen = 0;
  const bool faulted = read_faults(buffer.user_pointer(), &seen);
  to_child.pass();
  child.finish();
  PL_REQUIRE(faulted || seen != kChildWord, "the parent's stale mapping shows the child's data");
}

template <alloc_kind kKind>
void fork_after_gdr_map(const case_context& context) {
  case_fixture fixture(context);
  waive_on_dma_buf(fixture.gdr);
  const device_memory memory(fixture.gpu, kCaseBytes, kKind);
  const gdr_buffer buffer(fixture.gdr, memory.get(), kCaseBytes);
  put_word(buffer, kParentWord);
  child_process child([&] {
    std::uint32_t seen = 0;
    PL_REQUIRE(read_faults(buffer.user_pointer(), &seen), "the child reads 0x%x through the inherited mapping", seen);
  });
  child.finish();
  PL_REQUIRE(get_word(buffer) == kParentWord, "the parent's mapping changed");
}

template <alloc_kind kKind>
void fork_child_gdr_map_parent(const case_context& context) {
  case_fixture fixture(context);
  waive_on_dma_buf(fixture.gdr);
  const device_memory memory(fixture.gpu, kCaseBytes, kKind);
  gdr_mh_t handle{0};
  PL_REQUIRE(gdr_pin_buffer(fixture.gdr.get(), memory.get(), kCaseBytes, 0, 0, &handle) == 0, "pin: %s", gdr_last_error());
  child_process child([&] {
    void* mapped = nullptr;
    PL_REQUIRE(gdr_map(fixture.gdr.get(), handle, &mapped, kCaseBytes) != 0, "the child maps the parent's pin");
  });
  child.finish();
  void* mapped = nullptr;
  PL_REQUIRE(gdr_map(fixture.gdr.get(), handle, &mapped, kCaseBytes) == 0, "map in the parent: %s", gdr_last_error());
  PL_REQUIRE(gdr_unmap(fixture.gdr.get(), handle, mapped, kCaseBytes) == 0, "unmap: %s", gdr_last_error());
  PL_REQUIRE(gdr_unpin_buffer(fixture.gdr.get(), handle) == 0, "unpin: %s", gdr_last_error());
}

template <alloc_kind kKind>
void fork_map_and_free(const case_context& context) {
  process_pipe to_child;
  child_process child([&] {
    to_child.take();
    case_fixture fixture(context);
    need_shared_compute_mode(fixture.gpu);
    device_memory memory(fixture.gpu, kCaseBytes, kKind);
    const gdr_buffer buffer(fixture.gdr, memory.get(), kCaseBytes);
    put_word(buffer, kChildWord);
    memory.free();
  });
  case_fixture fixture(context);
  need_shared_compute_mode(fixture.gpu);
  const device_memory memory(fixture.gpu, kCaseBytes, kKind);
  const gdr_buffer buffer(fixture.gdr, memory.get(), kCaseBytes);
  put_word(buffer, kParentWord);
  to_child.pass();
  child.finish();
  PL_REQUIRE(get_word(buffer) == kParentWord, "the child's free changed the parent's data");
}

// ---- a descriptor passed over a unix socket ----------------------------------------------------------------------------

// Programs (the stock test among them) find the descriptor in the first four bytes of what gdr_t points to.
int descriptor_of(gdr_t gdr) {
  int fd = -1;
  std::memcpy(&fd, gdr, sizeof fd);
  return fd;
}

void send_descriptor(int socket, int fd) {
  const std::byte mark{'!'};
  PL_REQUIRE(send_with_descriptor(socket, {&mark, 1}, fd) == 1, "the descriptor %d cannot be sent", fd);
}

int receive_descriptor(int socket) {
  std::byte mark{};
  auto got = receive_with_descriptor(socket, {&mark, 1});
  PL_REQUIRE(got.bytes == 1, "no descriptor arrived");
  PL_REQUIRE(got.descriptors == 1, "the message carries no descriptor");
  return got.fd.release();
}

constexpr std::size_t kGdrStructBytes = 48;  // struct gdr of GDRCopy 2.6
constexpr std::size_t kHandleBytes = 104;    // gdr_memh_t of GDRCopy 2.6

struct sockets {
  int ends[2];
  sockets() { PL_REQUIRE(socketpair(AF_UNIX, SOCK_STREAM, 0, ends) == 0, "socketpair failed"); }
  ~sockets() { close(ends[0]), close(ends[1]); }
};

// A copy of `gdr` that carries the other process's descriptor, as the stock test makes it.
struct forged_gdr {
  alignas(16) unsigned char bytes[kGdrStructBytes];
  forged_gdr(gdr_t original, int fd) {
    std::memcpy(bytes, original, sizeof bytes);
    std::memcpy(bytes, &fd, sizeof fd);
  }
  gdr_t get() { return reinterpret_cast<gdr_t>(bytes); }
};

template <alloc_kind kKind>
void unix_sock_pin_buffer(const case_context& context) {
  sockets line;
  process_pipe finished;
  child_process child([&] {
    const int fd = receive_descriptor(line.ends[1]);
    case_fixture fixture(context);
    need_shared_compute_mode(fixture.gpu);
    const device_memory memory(fixture.gpu, kCaseBytes, kKind);
    forged_gdr forged(fixture.gdr.get(), fd);
    gdr_mh_t handle{0};
    PL_REQUIRE(gdr_pin_buffer(forged.get(), memory.get(), kCaseBytes, 0, 0, &handle) != 0,
               "the child pins through the parent's descriptor");
  });
  must(choose_gpu());
  const gdr_session gdr;
  waive_on_dma_buf(gdr);
  send_descriptor(line.ends[0], descriptor_of(gdr.get()));
  child.finish();
}

template <alloc_kind kKind>
void unix_sock_map(const case_context& context) {
  sockets line;
  process_pipe to_child;
  child_process child([&] {
    const int fd = receive_descriptor(line.ends[1]);
    alignas(16) unsigned char copied[kHandleBytes];
    to_child.receive_bytes(copied, sizeof copied);
    must(choose_gpu());
    const gdr_session gdr;
    forged_gdr forged(gdr.get(), fd);
    const gdr_mh_t handle{reinterpret_cast<unsigned long>(copied)};
    void* mapped = nullptr;
    PL_REQUIRE(gdr_map(forged.get(), handle, &mapped, kCaseBytes) != 0, "the child maps the parent's pin");
    PL_REQUIRE(gdr_map(gdr.get(), handle, &mapped, kCaseBytes) != 0, "the child maps the parent's pin by its own gdr_t");
  });
  case_fixture fixture(context);
  waive_on_dma_buf(fixture.gdr);
  const device_memory memory(fixture.gpu, kCaseBytes, kKind);
  gdr_mh_t handle{0};
  PL_REQUIRE(gdr_pin_buffer(fixture.gdr.get(), memory.get(), kCaseBytes, 0, 0, &handle) == 0, "pin: %s", gdr_last_error());
  send_descriptor(line.ends[0], descriptor_of(fixture.gdr.get()));
  to_child.send_bytes(reinterpret_cast<const void*>(handle.h), kHandleBytes);
  child.finish();
  PL_REQUIRE(gdr_unpin_buffer(fixture.gdr.get(), handle) == 0, "unpin: %s", gdr_last_error());
}

void fork_child_gdr_pin_parent_with_tokens(const case_context& context) {
  process_pipe to_child;
  child_process child([&] {
    std::uint64_t pointer = 0;
    to_child.receive_bytes(&pointer, sizeof pointer);
    must(choose_gpu());
    const gdr_session gdr;
    gdr_mh_t handle{0};
    PL_REQUIRE(gdr_pin_buffer(gdr.get(), pointer, kCaseBytes, 0, 0, &handle) != 0,
               "a child without CUDA pins the parent's address");
  });
  case_fixture fixture(context);
  waive_on_dma_buf(fixture.gdr);
  const device_memory memory(fixture.gpu, kCaseBytes);
  const std::uint64_t pointer = memory.get();
  to_child.send_bytes(&pointer, sizeof pointer);
  child.finish();
}

void leakage_pin_pages_fork(const case_context& context) {
  constexpr const char* kCounter = "/proc/driver/gdrdrv/nv_get_pages_refcount";
  const auto count = [] {
    std::ifstream file(kCounter);
    long value = -1;
    if (!(file >> value)) throw case_waived(format("%s is not there: it needs gdrdrv with dbg_enabled=1", kCounter));
    return value;
  };
  const long before = count();
  child_process child([&] {
    case_fixture fixture(context);
    const device_memory memory(fixture.gpu, kCaseBytes);
    gdr_mh_t handle{0};
    PL_REQUIRE(gdr_pin_buffer(fixture.gdr.get(), memory.get(), kCaseBytes, 0, 0, &handle) == 0, "pin: %s", gdr_last_error());
    child_process grandchild([] {});
    close(descriptor_of(fixture.gdr.get()));  // abruptly, without unpin
    grandchild.finish();
    _exit(0);
  });
  child.finish();
  PL_REQUIRE(count() == before, "gdrdrv still holds pages: %ld, %ld before", count(), before);
}

#define PL_BOTH_KINDS(stem, function, text)                                                              \
  sanity_case{.name = #stem "_cumemalloc", .asserts = text, .run = function<kCuMemAlloc>}, sanity_case { \
    .name = #stem "_vmmalloc", .asserts = text, .run = function<kCuMemCreate>                            \
  }

constexpr sanity_case kStockInvalidationCases[] = {
    PL_BOTH_KINDS(invalidation_access_after_gdr_close, access_after_gdr_close, "a read after gdr_close faults or differs"),
    PL_BOTH_KINDS(invalidation_access_after_free, access_after_free,
                  "persistent mappings stay readable after the free, others fault"),
    PL_BOTH_KINDS(invalidation_two_mappings, two_mappings, "freeing one buffer leaves the other's mapping intact"),
    PL_BOTH_KINDS(invalidation_fork_access_after_free, fork_access_after_free,
                  "a stale mapping never shows another process's data"),
    PL_BOTH_KINDS(invalidation_fork_after_gdr_map, fork_after_gdr_map,
                  "a child does not inherit the mapping, the parent keeps it"),
    PL_BOTH_KINDS(invalidation_fork_child_gdr_map_parent, fork_child_gdr_map_parent, "a child cannot map its parent's pin"),
    PL_BOTH_KINDS(invalidation_fork_map_and_free, fork_map_and_free, "a child's free does not touch the parent's data"),
    PL_BOTH_KINDS(invalidation_unix_sock_shared_fd_gdr_pin_buffer, unix_sock_pin_buffer,
                  "a descriptor passed to another process does not pin"),
    PL_BOTH_KINDS(invalidation_unix_sock_shared_fd_gdr_map, unix_sock_map,
                  "a descriptor and a handle passed to another process do not map"),
    {.name = "invalidation_fork_child_gdr_pin_parent_with_tokens",
     .asserts = "a child without CUDA cannot pin its parent's address",
     .run = fork_child_gdr_pin_parent_with_tokens},
    {.name = "leakage_pin_pages_fork_cumemalloc",
     .asserts = "gdrdrv's page counter returns to its start after fork and abrupt close",
     .run = leakage_pin_pages_fork,
     .extended = true},
};

}  // namespace

std::span<const sanity_case> stock_invalidation_cases() { return kStockInvalidationCases; }

}  // namespace pl::tools
