// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/pmix_store.hpp"

#include <dlfcn.h>
#include <unistd.h>

#include <cerrno>
#include <chrono>
#include <condition_variable>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <optional>
#include <thread>
#include <utility>

#include "base/env.hpp"
#include "base/text.hpp"

namespace pl::messaging {
namespace {

// ---- The part of PMIx's C interface that is used. Its layout is the same in versions 2 to 5 of the standard.

constexpr std::size_t kNamespaceBytes = 256, kKeyBytes = 512;
constexpr std::uint16_t kStringType = 3;
constexpr std::uint8_t kGlobalScope = 3;
constexpr int kNotFound = -46, kTimedOut = -24;  // the server does not have the value yet
constexpr std::chrono::milliseconds kPause{50};  // between requests

struct pmix_process {
  char name_space[kNamespaceBytes];
  std::uint32_t rank;
};

struct pmix_value {
  std::uint16_t type;
  union {
    char* string;
    void* places[3];  // as large as the largest member in the standard
  } data;
};
static_assert(sizeof(pmix_value) == 4 * sizeof(void*));

using value_callback = void (*)(int status, pmix_value* value, void* context);

struct pmix_calls {
  int (*init)(pmix_process*, void* info, std::size_t count) = nullptr;
  int (*initialized)() = nullptr;
  int (*finalize)(const void* info, std::size_t count) = nullptr;
  int (*put)(std::uint8_t scope, const char* key, pmix_value*) = nullptr;
  int (*commit)() = nullptr;
  int (*get_nb)(const pmix_process*, const char* key, const void* info, std::size_t count, value_callback, void*) = nullptr;
  const char* (*error_string)(int status) = nullptr;
};

template <class Function>
bool find(void* library, const char* name, Function& out) {
  out = reinterpret_cast<Function>(dlsym(library, name));
  return out != nullptr;
}

// Never closed, because its threads may end after its last user.
result<pmix_calls> load_pmix() {
  void* const library = dlopen("libpmix.so.2", RTLD_NOW | RTLD_LOCAL);
  if (library == nullptr) return failure{ENOSYS, format("no libpmix.so.2 (apt-get install libpmix2): %s", dlerror())};
  pmix_calls out;
  const bool has_all = find(library, "PMIx_Init", out.init) && find(library, "PMIx_Initialized", out.initialized) &&
                       find(library, "PMIx_Finalize", out.finalize) && find(library, "PMIx_Put", out.put) &&
                       find(library, "PMIx_Commit", out.commit) && find(library, "PMIx_Get_nb", out.get_nb) &&
                       find(library, "PMIx_Error_string", out.error_string);
  if (!has_all) return failure{ENOSYS, "libpmix.so.2 lacks functions of PMIx 2"};
  return out;
}

// For the library, keys are arrays of this size, which it may copy completely.
struct whole_key {
  explicit whole_key(const std::string& text) { text.copy(bytes, sizeof bytes - 1); }
  char bytes[kKeyBytes] = {};
};

// Receives the result from a thread of PMIx, maybe after the reader has stopped waiting.
struct awaited {
  std::mutex mutex;
  std::condition_variable has_come;
  std::optional<int> status;
  std::string text;
};

void take_value(int status, pmix_value* value, void* context) {
  const std::unique_ptr<std::shared_ptr<awaited>> reader(static_cast<std::shared_ptr<awaited>*>(context));
  awaited& one = **reader;
  const std::lock_guard hold(one.mutex);
  one.status = status;
  if (status == 0 && value != nullptr && value->type == kStringType && value->data.string != nullptr)
    one.text = value->data.string;
  one.has_come.notify_all();
}

// PMIx cannot be initialised again after it was finalised in a process, so an MPI library that is opened later could not
// start. Therefore our first use of PMIx lasts until the process ends. Forked children do not use it.
void leave_at_exit(const pmix_calls& call) {
  static int (*leave)(const void*, std::size_t) = nullptr;
  static pid_t owner = 0;
  leave = call.finalize;
  owner = getpid();
  std::atexit([] {
    if (getpid() == owner) leave(nullptr, 0);
  });
}

}  // namespace

struct pmix_store::state {
  pmix_calls call;
  bool has_others = false;  // users in this process, at the time it was opened
  pmix_process self{};

  failure refused(const char* step, int status) const {
    return {EIO, format("%s: PMIx says %s (%d)", step, call.error_string(status), status)};
  }
  result<std::string> read_once(int rank, const std::string& key, std::chrono::steady_clock::time_point end) const;
};

// ENOENT: the value does not exist, or no answer arrived in time.
result<std::string> pmix_store::state::read_once(int rank, const std::string& key,
                                                 std::chrono::steady_clock::time_point end) const {
  pmix_process source = self;
  source.rank = static_cast<std::uint32_t>(rank);
  const auto one = std::make_shared<awaited>();
  auto context = std::make_unique<std::shared_ptr<awaited>>(one);
  const int asked = call.get_nb(&source, whole_key(key).bytes, nullptr, 0, take_value, context.get());
  if (asked != 0) return refused("asking the launcher", asked);
  static_cast<void>(context.release());  // now owned by take_value
  std::unique_lock hold(one->mutex);
  one->has_come.wait_until(hold, end, [&] { return one->status.has_value(); });
  if (!one->status || *one->status == kNotFound || *one->status == kTimedOut) return failure{ENOENT, "not yet"};
  if (*one->status != 0) return refused("asking the launcher", *one->status);
  if (one->text.empty()) return failure{EIO, format("rank %d has published nothing readable at the launcher", rank)};
  return one->text;
}

pmix_store::pmix_store(std::unique_ptr<state> made) : state_(std::move(made)) {}

bool pmix_store::is_offered() { return env_read("PMIX_NAMESPACE").is_set; }

result<std::unique_ptr<pmix_store>> pmix_store::open() {
  auto calls = load_pmix();
  if (!calls) return std::move(calls).error();
  auto made = std::make_unique<state>();
  made->call = *calls;
  made->has_others = made->call.initialized() != 0;
  if (const int status = made->call.init(&made->self, nullptr, 0); status != 0)
    return failure{ENOSYS, made->refused("reaching the launcher", status).message};
  if (!made->has_others) leave_at_exit(made->call);
  return std::unique_ptr<pmix_store>(new pmix_store(std::move(made)));
}

pmix_store::~pmix_store() {
  if (state_->has_others) state_->call.finalize(nullptr, 0);
}

int pmix_store::rank() const noexcept { return static_cast<int>(state_->self.rank); }

status pmix_store::publish(const std::string& key, const std::string& text) {
  std::string bytes = text;
  pmix_value value{};
  value.type = kStringType;
  value.data.string = bytes.data();  // copied by the call
  if (const int status = state_->call.put(kGlobalScope, whole_key(key).bytes, &value); status != 0)
    return state_->refused("telling the launcher", status);
  if (const int status = state_->call.commit(); status != 0) return state_->refused("telling the launcher", status);
  return {};
}

// A launcher answers that the text does not exist yet, or delays its answer until it does.
result<std::string> pmix_store::read(int rank, const std::string& key, unsigned timeout_s) {
  const auto end = std::chrono::steady_clock::now() + std::chrono::seconds(timeout_s);
  for (;;) {
    auto text = state_->read_once(rank, key, end);
    if (text || text.code() != ENOENT) return text;
    std::this_thread::sleep_for(kPause);
    if (std::chrono::steady_clock::now() > end)
      return failure{ETIMEDOUT, format("rank %d has published nothing at the launcher for %u s", rank, timeout_s)};
  }
}

}  // namespace pl::messaging
