// SPDX-License-Identifier: Apache-2.0
// How a sanity case is written. Every case runs in a fresh process (fork + exec), so it may fork, crash, hang or exit:
// the runner (sanity.cpp) reports it and kills its process group.
#pragma once

#include <gdrapi.h>

#include <functional>
#include <span>
#include <stdexcept>
#include <string>
#include <vector>

#include "base/text.hpp"
#include "tools/common/gdr_session.hpp"
#include "tools/common/gpu.hpp"

namespace pl::tools {

struct case_context {
  int gpu = 0;
  bool verbose = false;
};

struct sanity_case {
  const char* name;
  const char* asserts;  // one sentence, shown by `peerlane sanity -l -v`
  void (*run)(const case_context& context);
  bool stock = true;      // a case of GDRCopy's gdrcopy_sanity, by its name
  bool extended = false;  // only with -e
  bool in_demo = false;   // short and telling: part of `peerlane demo`
  // Sees every GPU of the machine, so that taking another one for the right one would show. The other cases see the chosen
  // GPU alone: CUDA's start takes 0.6 s for each GPU that a process sees (four H200: 2.5 s a case instead of 0.7).
  bool sees_every_gpu = false;
};

// Kinds of memory that the stock cases run on, as template arguments.
inline constexpr auto kCuMemAlloc = alloc_kind::cu_mem_alloc;
inline constexpr auto kCuMemCreate = alloc_kind::cu_mem_create;

std::span<const sanity_case> stock_basic_cases();
std::span<const sanity_case> stock_data_cases();
std::span<const sanity_case> stock_invalidation_cases();
std::span<const sanity_case> own_copy_cases();
std::span<const sanity_case> own_refusal_cases();
std::span<const sanity_case> own_system_cases();
// All of them, stock ones first.
std::vector<sanity_case> all_sanity_cases();

struct case_failed : std::runtime_error {
  using std::runtime_error::runtime_error;
};
// The machine lacks what the case needs; the text says exactly what.
struct case_waived : std::runtime_error {
  using std::runtime_error::runtime_error;
};

#define PL_CASE_TEXT_(x) #x
#define PL_CASE_TEXT(x) PL_CASE_TEXT_(x)
// Fails the case unless `condition` holds; the rest is a printf explanation.
#define PL_REQUIRE(condition, ...)                                                                    \
  do {                                                                                                \
    if (!(condition))                                                                                 \
      throw ::pl::tools::case_failed(::pl::format(__VA_ARGS__) + " [" #condition " at " __FILE_NAME__ \
                                                                 ":" PL_CASE_TEXT(__LINE__) "]");     \
  } while (0)

// GPU and library, as most cases need them.
struct case_fixture {
  explicit case_fixture(const case_context& context) : gpu(context.gpu, false) {}
  gpu_session gpu;
  gdr_session gdr;

  std::vector<unsigned char> device_bytes(cu::device_ptr pointer, std::size_t bytes) const;
  void write_device(cu::device_ptr pointer, const void* host, std::size_t bytes) const;
};

// Bytes that differ between seeds at every position with good odds.
std::vector<unsigned char> pattern(std::size_t bytes, unsigned seed);
// Index of the first difference, or npos.
std::size_t first_difference(std::span<const unsigned char> a, std::span<const unsigned char> b);
void require_equal(std::span<const unsigned char> seen, std::span<const unsigned char> wanted,
                   const std::string& description);

// True if reading one word at `address` raises SIGBUS or SIGSEGV; otherwise *value is what was read.
bool read_faults(const volatile void* address, std::uint32_t* value);

// Runs `body` in a forked child (before or after CUDA was started, as the case demands). What it throws fails or waives the
// case in the parent; finish() waits for it and must be called.
class child_process {
 public:
  explicit child_process(const std::function<void()>& body);
  ~child_process();
  child_process(const child_process&) = delete;
  child_process& operator=(const child_process&) = delete;
  void finish();
  void kill_nine();
  int id() const { return pid_; }

 private:
  int pid_ = -1;
  int text_end_ = -1;
};

// A byte-sized signal between parent and child; both inherit it. Waits are bounded (20 s).
class process_pipe {
 public:
  process_pipe();
  ~process_pipe();
  process_pipe(const process_pipe&) = delete;
  process_pipe& operator=(const process_pipe&) = delete;
  void send_bytes(const void* data, std::size_t bytes);
  void receive_bytes(void* data, std::size_t bytes);
  void pass() { send_bytes("!", 1); }
  void take() {
    char c;
    receive_bytes(&c, 1);
  }

 private:
  int ends_[2];
};

constexpr std::uint64_t kCaseBytes = 5 * GPU_PAGE_SIZE;  // 320 KiB, as the stock cases use

}  // namespace pl::tools
