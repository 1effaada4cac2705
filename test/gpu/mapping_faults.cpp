// SPDX-License-Identifier: Apache-2.0
// The faults of the mapping layer that only a real GPU can show to be mended, each as one row of a table: what was checked,
// how it ended, and what was seen. Takes some seconds. Built with the tests (ninja mapping_faults); scripts/gpu/
// mapping_faults.sh runs it on a machine with a GPU, ctest on the simulated one.
//
//   mapping_faults [--sim] [--libraries OUT] [--backend rm|dmabuf|gdrdrv|auto]
//
// "ok" and "FAILED" are verdicts; "note" says what a driver answered where nobody knew before.
#include <dlfcn.h>
#include <fcntl.h>
#include <gdrapi.h>
#include <peerlane/peerlane.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <chrono>
#include <csetjmp>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <thread>

#include "base/text.hpp"
#include "cuda/pointer.hpp"
#include "map/mapping_proof.hpp"
#include "map/registry.hpp"
#include "test/support/fake_rm.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::test {
namespace {

constexpr std::size_t kBytes = 4 << 20;
const cu::driver_table* g_cuda = nullptr;
std::string g_backend = "rm", g_libraries;
int g_failures = 0;

void tell(const char* point, const char* check, const char* verdict, const std::string& seen) {
  std::printf("%-4s %-58s %-6s %s\n", point, check, verdict, seen.c_str());
  std::fflush(stdout);
  if (std::strcmp(verdict, "FAILED") == 0) ++g_failures;
}
void check(const char* point, const char* claim, bool is_right, const std::string& seen) {
  tell(point, claim, is_right ? "ok" : "FAILED", seen);
}

// ---- Small tools over CUDA, all in device 0's primary context

cu::context_t make_current() {
  cu::context_t context = nullptr;
  if (g_cuda->cuInit(0) != 0 || g_cuda->cuDevicePrimaryCtxRetain(&context, 0) != 0) return nullptr;
  return g_cuda->cuCtxSetCurrent(context) == 0 ? context : nullptr;
}

struct buffer {
  explicit buffer(std::size_t wanted = kBytes) : bytes(wanted) {
    if (g_cuda->cuMemAlloc_v2(&pointer, bytes) != 0) std::exit((std::puts("no GPU memory"), 2));
    fill(1);
  }
  ~buffer() { g_cuda->cuMemFree_v2(pointer); }
  buffer(const buffer&) = delete;
  buffer& operator=(const buffer&) = delete;
  static std::vector<unsigned char> pattern(std::size_t count, unsigned seed) {
    std::vector<unsigned char> out(count);
    for (std::size_t i = 0; i < count; ++i) out[i] = static_cast<unsigned char>((i * 2654435761u + seed * 97u) >> 11);
    return out;
  }
  void fill(unsigned seed) const {
    g_cuda->cuMemcpyHtoD_v2(pointer, pattern(bytes, seed).data(), bytes);
    g_cuda->cuCtxSynchronize();
  }
  bool holds(unsigned seed) const {
    std::vector<unsigned char> seen(bytes);
    return g_cuda->cuMemcpyDtoH_v2(seen.data(), pointer, bytes) == 0 && seen == pattern(bytes, seed);
  }
  std::uint64_t pointer = 0;
  std::size_t bytes;
};

session* open(const char* backend = nullptr) {
  auto opened = open_session({&default_device_io(), g_cuda}, backend != nullptr ? backend : g_backend);
  if (opened) return *opened;
  std::printf("no session of backend %s: %s\n", g_backend.c_str(), opened.error().message.c_str());
  std::exit(2);
}

result<region*> map(session* s, std::uint64_t pointer, bool is_sole = false, const cu::ipc_mem_handle_t* handle = nullptr) {
  pin_request request;
  request.range = {pointer, 65536};
  request.is_sole = is_sole;
  request.ipc_handle = handle;
  return pin_and_map_region(s, request);
}

std::string words(const result<region*>& outcome) {
  return outcome ? "mapped by " + std::string((*outcome)->pin->backend_name()) : outcome.error().message;
}

// The signal that a read at `address` raises; 0: none.
sigjmp_buf g_back;
int fault_of(const volatile char* address) {
  struct sigaction action {
  }, bus{}, segv{};
  action.sa_handler = [](int number) { siglongjmp(g_back, number); };
  sigaction(SIGBUS, &action, &bus);
  sigaction(SIGSEGV, &action, &segv);
  const int number = sigsetjmp(g_back, 1);
  if (number == 0) (void)*address;
  sigaction(SIGBUS, &bus, nullptr);
  sigaction(SIGSEGV, &segv, nullptr);
  return number;
}

// ---- 21: what may be mapped by dma-buf, and what is taken

int attribute(int attribute) {
  int value = -1;
  return g_cuda->cuDeviceGetAttribute(&value, attribute, 0) == 0 ? value : -1;
}

void choose_backend() {
  const bool can = attribute(cu::device_attribute::dma_buf_mmap) == 1;
  tell("21", "CUDA version; dma-buf export, mmap, coherent (attributes)", "note",
       format("%d; %d, %d, %d (-1: not known)", g_cuda->driver_version, attribute(cu::device_attribute::dma_buf),
              attribute(cu::device_attribute::dma_buf_mmap),
              attribute(cu::device_attribute::pageable_memory_access_uses_host_page_tables)));
  auto named = open_session({&default_device_io(), g_cuda}, "dmabuf");
  check("21", "dmabuf opens if and only if the device can", named.ok() == can,
        named ? "opened" : named.error().message.substr(0, 90));
  if (named) (void)close_session(*named);
  const buffer memory;
  session* s = open("auto");
  auto mapped = map(s, memory.pointer);
  check("21", "auto finds a backend that maps", mapped.ok(), words(mapped));
  (void)close_session(s);
}

// ---- 22: the proof beside a kernel that does not end, and beside a capture

constexpr char kSpin[] =
    ".version 7.0\n.target sm_70\n.address_size 64\n"
    ".visible .entry spin(.param .u64 flag) {\n .reg .u64 %a;\n .reg .u32 %v;\n .reg .pred %p;\n"
    " ld.param.u64 %a, [flag];\n cvta.to.global.u64 %a, %a;\n"
    "L: ld.volatile.global.u32 %v, [%a];\n setp.eq.u32 %p, %v, 0;\n @%p bra L;\n ret;\n}\n";

// Work that ends when `flag` becomes 1: a kernel, or on the simulated GPU a stream that waits.
bool start_endless_work(cu::stream_t stream, void* flag) {
  if (g_cuda->is_simulated)
    return g_cuda->cuStreamWaitValue32_v2(stream, reinterpret_cast<std::uint64_t>(flag), 1, cu::wait_value::eq) == 0;
  cu::module_t module = nullptr;
  cu::function_t function = nullptr;
  if (g_cuda->cuModuleLoadData(&module, kSpin) != 0 || g_cuda->cuModuleGetFunction(&function, module, "spin") != 0)
    return false;
  auto address = reinterpret_cast<std::uint64_t>(flag);
  void* parameters[] = {&address};
  return g_cuda->cuLaunchKernel(function, 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr) == 0;
}

void prove_beside_work() {
  const buffer memory;
  void* flag = nullptr;
  cu::stream_t stream = nullptr;
  g_cuda->cuMemHostAlloc(&flag, 4096, cu::host_alloc_flag::portable | cu::host_alloc_flag::device_map);
  g_cuda->cuStreamCreate(&stream, cu::stream_flag::standard);
  auto* const word = static_cast<std::atomic<std::uint32_t>*>(flag);
  word->store(0);
  if (!start_endless_work(stream, flag))
    return tell("22", "a kernel that does not end", "FAILED", "it could not be started");
  std::atomic<bool> is_over{false};
  std::thread watchdog([&] {  // a map that waits for the kernel must not hang the machine
    for (int i = 0; i < 1500 && !is_over.load(); ++i) std::this_thread::sleep_for(std::chrono::milliseconds(10));
    word->store(1);
  });
  session* s = open();
  const auto begin = std::chrono::steady_clock::now();
  auto mapped = map(s, memory.pointer);
  const auto ms = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now() - begin).count();
  const bool still_runs = word->load() == 0;
  is_over = true;
  watchdog.join();
  g_cuda->cuStreamSynchronize(stream);
  check("22", "a first map, proved, beside a kernel that does not end",
        still_runs && ms < 3000 && (mapped || mapped.code() == ETIMEDOUT),
        format("%s after %lld ms", words(mapped).c_str(), static_cast<long long>(ms)));
  check("22", "the user's bytes are as they were", memory.holds(1), "");
  (void)close_session(s);
  g_cuda->cuStreamDestroy_v2(stream);
  g_cuda->cuMemFreeHost(flag);
}

void prove_beside_capture() {
  const buffer memory;
  cu::stream_t stream = nullptr;
  cu::graph_t graph = nullptr;
  g_cuda->cuStreamCreate(&stream, cu::stream_flag::standard);
  session* s = open();
  const int begun = g_cuda->cuStreamBeginCapture_v2(stream, cu::capture_mode::global);
  auto mapped = map(s, memory.pointer);
  const int ended = g_cuda->cuStreamEndCapture(stream, &graph);
  check("22", "a first map, proved, beside a capture in the global mode", begun == 0 && mapped && ended == 0,
        format("%s; the capture ended with %d", words(mapped).c_str(), ended));
  if (graph != nullptr) g_cuda->cuGraphDestroy(graph);
  (void)close_session(s);
  g_cuda->cuStreamDestroy_v2(stream);
}

// ---- 24, 29: addresses of mappings

void compare_addresses() {
  const buffer memory;
  session* s = open();
  auto first = map(s, memory.pointer, true), second = map(s, memory.pointer, true);
  if (!first || !second) return tell("24", "two mappings of one buffer", "FAILED", words(first ? second : first));
  volatile char* const a = (*first)->data.load();
  volatile char* const b = (*second)->data.load();
  check("24", "two GDRCopy mappings of one buffer have two addresses", a != b, "");
  a[100] = 55;
  arch::publish_to_device(arch::mapping_type::wc);
  check("24", "what one writes the other reads", b[100] == 55, "");
  (void)unpin_region(s, *first, unmapping::by_request);
  const int number = fault_of(a);
  check("24", "an unmapped one faults while the other lives", number == SIGSEGV, format("signal %d", number));
  check("24", "the other still works", fault_of(b) == 0 && b[100] == 55, "");
  (void)unpin_region(s, *second, unmapping::forgotten);
  check("29", "SIGBUS where a mapping was forgotten at unpin", fault_of(b) == SIGBUS, format("signal %d", fault_of(b)));
  auto third = map(s, memory.pointer);
  volatile char* const c = third ? (*third)->data.load() : nullptr;
  (void)close_session(s);
  check("29", "SIGBUS where a mapping was forgotten at close", third && fault_of(c) == SIGBUS,
        format("signal %d", fault_of(c)));
}

// ---- 25: two of our libraries at once, in a process of their own

int use_two_libraries() {
  using open_call = gdr_t();
  using pin_call = int(gdr_t, unsigned long, size_t, uint64_t, uint32_t, gdr_mh_t*);
  using map_call = int(peerlane_session_t, uint64_t, size_t, uint32_t, peerlane_mapping_t*);
  using open_session_call = int(const peerlane_session_options*, peerlane_session_t*);
  void* const gdrapi = dlopen((g_libraries + "/libgdrapi.so.2").c_str(), RTLD_NOW | RTLD_LOCAL);
  void* const peerlane = dlopen((g_libraries + "/libpeerlane.so").c_str(), RTLD_NOW | RTLD_LOCAL);
  if (gdrapi == nullptr || peerlane == nullptr) return 3;
  const auto gdr_open_at = reinterpret_cast<open_call*>(dlsym(gdrapi, "gdr_open"));
  const auto gdr_pin_at = reinterpret_cast<pin_call*>(dlsym(gdrapi, "gdr_pin_buffer"));
  const auto open_session = reinterpret_cast<open_session_call*>(dlsym(peerlane, "peerlane_session_open"));
  const auto map_memory = reinterpret_cast<map_call*>(dlsym(peerlane, "peerlane_map"));
  const cu::context_t context = make_current();
  const buffer memory;
  gdr_t g = gdr_open_at();
  peerlane_session_t s = nullptr;
  if (g == nullptr || open_session(nullptr, &s) != 0) return 4;
  std::atomic<int> ready{0}, wrong{0};
  const auto together = [&](const std::function<int()>& call) {
    g_cuda->cuCtxSetCurrent(context);
    ++ready;
    while (ready.load() < 2) {}
    wrong += call() != 0;
  };
  gdr_mh_t handle{};
  peerlane_mapping_t mapping = nullptr;
  std::thread other(together, [&] { return gdr_pin_at(g, memory.pointer, 65536, 0, 0, &handle); });
  together([&] { return map_memory(s, memory.pointer, 65536, 0, &mapping); });
  other.join();
  return wrong.load();
}

int run_self(const std::vector<std::string>& arguments, int* from_child = nullptr, pid_t* child_out = nullptr) {
  int ends[2] = {-1, -1};
  if (from_child != nullptr && pipe(ends) != 0) return -1;
  const pid_t child = fork();
  if (child == 0) {
    if (from_child != nullptr) dup2(ends[1], 1);
    std::vector<char*> raw;
    for (const auto& one : arguments) raw.push_back(const_cast<char*>(one.c_str()));
    raw.push_back(nullptr);
    execv("/proc/self/exe", raw.data());
    _exit(127);
  }
  if (from_child != nullptr) {
    close(ends[1]);
    *from_child = ends[0];
    *child_out = child;
    return 0;
  }
  int status = 0;
  waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : 1000 + WTERMSIG(status);
}

std::vector<std::string> self(const char* role) {
  std::vector<std::string> out{"mapping_faults", role};
  if (g_cuda->is_simulated) out.emplace_back("--sim");
  if (!g_libraries.empty()) out.insert(out.end(), {"--libraries", g_libraries});
  return out;
}

void race_two_libraries() {
  if (g_libraries.empty()) return tell("25", "two libraries of ours at once", "note", "not run: give --libraries OUT");
  int bad = 0, last = 0;
  for (int round = 0; round < 5; ++round)
    if (const int rc = run_self(self("--two-libraries")); rc != 0) ++bad, last = rc;
  check("25", "two libraries' first pins at once, 5 processes", bad == 0, format("%d failed, last with %d", bad, last));
}

// ---- 28: memory of another process

int export_memory() {
  const buffer memory;
  cu::ipc_mem_handle_t handle{};
  if (g_cuda->cuIpcGetMemHandle(&handle, memory.pointer) != 0) return 3;
  if (::write(1, &handle, sizeof handle) != sizeof handle) return 4;
  for (;;) pause();
}

std::string hex_of(const cu::ipc_mem_handle_t& handle) {
  std::string out;
  for (int i = 0; i < 64; ++i)
    out += format("%s%02x", i % 8 == 0 ? " " : "", static_cast<unsigned char>(handle.reserved[i]));
  return out;
}

void map_imported(std::uint64_t imported, const cu::ipc_mem_handle_t& handle) {
  auto info = cu::inspect_pointer(*g_cuda, imported);
  tell("28", "what CUDA says of imported memory (offset in its object)", "note",
       info ? format("allocation %llu, object %llu bytes, offset %llu",
                     static_cast<unsigned long long>(info->allocation.size_bytes),
                     static_cast<unsigned long long>(info->object.size_bytes),
                     static_cast<unsigned long long>(imported - info->object.begin))
            : info.error().message);
  int fd = -1;
  const int exported = g_cuda->cuMemGetHandleForAddressRange(&fd, imported, 65536, cu::range_handle_type::dma_buf_fd, 0);
  if (fd >= 0) close(fd);
  cu::ipc_mem_handle_t again{};
  tell("28", "does CUDA export it: as dma-buf, as IPC handle (0: yes)", "note",
       format("%d, %d", exported, g_cuda->cuIpcGetMemHandle(&again, imported)));
  session* s = open();
  auto plain = map(s, imported);
  tell("28", "mapped without its handle", "note", words(plain).substr(0, 120));
  auto mapped = map(s, imported, false, &handle);
  tell("28", "mapped by its handle", mapped ? "ok" : "note", words(mapped));
  if (mapped) {
    const auto wanted = buffer::pattern(65536, 1);
    std::vector<unsigned char> seen(65536);
    region_read(*mapped, seen.data(), (*mapped)->data.load(), seen.size());
    check("28", "it shows the exporter's bytes", seen == wanted, "");
    region_write(*mapped, (*mapped)->data.load(), "written", 7, true);
    char back[8] = {};
    g_cuda->cuMemcpyDtoH_v2(back, imported, 7);
    check("28", "CUDA sees what is written through it", std::strcmp(back, "written") == 0, "");
  }
  (void)close_session(s);
}

void use_other_processes_memory() {
  int end = -1;
  pid_t child = -1;
  cu::ipc_mem_handle_t handle{};
  run_self(self("--exporter"), &end, &child);
  if (::read(end, &handle, sizeof handle) != sizeof handle)
    tell("28", "another process exports memory", "FAILED", "it did not");
  else {
    tell("28", "the handle's bytes", "note", hex_of(handle));
    std::uint64_t imported = 0;
    const int rc = g_cuda->cuIpcOpenMemHandle_v2(&imported, handle, 1);
    if (rc != 0) tell("28", "cuIpcOpenMemHandle", "note", format("refused with %d: nothing more to see here", rc));
    else {
      map_imported(imported, handle);
      g_cuda->cuIpcCloseMemHandle(imported);
    }
  }
  close(end);
  kill(child, SIGKILL);
  waitpid(child, nullptr, 0);
}

// ---- Siblings: fork, and a context that goes

void fork_and_reset() {
  buffer* const memory = new buffer;
  session* s = open();
  auto mapped = map(s, memory->pointer);
  if (!mapped) return tell("fork", "a mapping to inherit", "FAILED", words(mapped));
  volatile char* const data = (*mapped)->data.load();
  const pid_t child = fork();
  if (child == 0) _exit(fault_of(data) == SIGSEGV && check_region(*mapped) == EACCES ? 0 : 1);
  int status = -1;
  waitpid(child, &status, 0);
  check("fork", "a child has neither the mapping nor the handle", status == 0, format("status %d", status));
  using reset_call = int(int);
  const auto reset = reinterpret_cast<reset_call*>(dlsym(g_cuda->library, "cuDevicePrimaryCtxReset_v2"));
  const int rc = reset != nullptr ? reset(0) : -1;
  const int number = fault_of(data);
  check("ctx", "a mapping outlives its context", rc == 0 && number == 0, format("reset %d, signal %d", rc, number));
  check("ctx", "and is released afterwards", unpin_region(s, *mapped, unmapping::by_request).ok(), "");
  make_current();
  const buffer fresh;
  auto again = map(s, fresh.pointer);
  check("ctx", "new memory is mapped by the old session", again.ok(), words(again));
  (void)close_session(s);
}

int run(const std::string& role) {
  if (make_current() == nullptr) return std::puts("no CUDA device answers"), 2;
  if (role == "--two-libraries") return use_two_libraries();
  if (role == "--exporter") return export_memory();
  std::printf("%-4s %-58s %-6s %s\n", "", "check", "", "seen");
  choose_backend();
  setenv("PEERLANE_RM_VERIFY", "1", 1);  // the proofs of a driver that is known by reading only, on any driver
  prove_beside_work();
  prove_beside_capture();
  unsetenv("PEERLANE_RM_VERIFY");
  compare_addresses();
  race_two_libraries();
  use_other_processes_memory();
  fork_and_reset();
  std::printf("%d failed\n", g_failures);
  return g_failures == 0 ? 0 : 1;
}

}  // namespace
}  // namespace pl::test

int main(int count, char** arguments) {
  using namespace pl::test;
  std::string role;
  bool simulates = false;
  for (int i = 1; i < count; ++i) {
    const std::string word = arguments[i];
    if (word == "--sim") simulates = true;
    else if (word == "--libraries" && i + 1 < count) g_libraries = arguments[++i];
    else if (word == "--backend" && i + 1 < count) g_backend = arguments[++i];
    else role = word;
  }
  static fake_rm kernel;
  if (simulates) {
    g_cuda = &simulated_cuda();
    pl::set_default_device_io_for_tests(&kernel);
  } else {
    auto found = pl::cu::driver();
    if (!found) return std::puts(found.error().message.c_str()), 2;
    g_cuda = *found;
  }
  return run(role);
}
