// SPDX-License-Identifier: Apache-2.0
// peerlane soak: drives store, messages and mappings with random clients, kills, full disks, descriptor limits, floods and
// bit flips, and compares every answer with an oracle. Ends with a summary and each guarantee that was broken.
#include <fcntl.h>
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "measure/progress.hpp"
#include "measure/text_table.hpp"
#include "os/blocked_signals.hpp"
#include "tools/common/gpu.hpp"
#include "tools/common/interrupt.hpp"
#include "tools/common/report.hpp"
#include "tools/common/temporary_folder.hpp"
#include "tools/common/tool.hpp"
#include "tools/common/word_list.hpp"
#include "tools/soak/soak.hpp"

namespace pl::soak {

void findings::violation(const std::string& text) {
  touch();
  {
    const std::lock_guard hold(mutex_);
    ++counters_["VIOLATIONS"];
    if (violations_.size() < kMaxKept) violations_.push_back(text);
  }
  std::fprintf(stderr, "\nsoak: %s: VIOLATION: %s\n", part_.c_str(), text.c_str());
}

bool is_interrupted(const plan& run) { return run.is_interrupted != nullptr && run.is_interrupted(); }

bool is_over(const plan& run) { return is_interrupted(run) || monotonic_ns() >= run.end_ns; }

void pause_ms(const plan& run, std::uint64_t milliseconds) {
  const std::uint64_t end_ns = std::min(run.end_ns, monotonic_ns() + milliseconds * 1'000'000);
  while (!is_interrupted(run)) {
    const std::uint64_t now_ns = monotonic_ns();
    if (now_ns >= end_ns) return;
    const timespec pause{0, static_cast<long>(std::min<std::uint64_t>(end_ns - now_ns, 50'000'000))};
    nanosleep(&pause, nullptr);
  }
}

std::optional<int> wait_for(const plan& run, findings& seen, command_process& process, std::uint64_t milliseconds) {
  const std::uint64_t end_ns = monotonic_ns() + milliseconds * 1'000'000;
  std::optional<int> state;
  do {
    seen.touch();
    if (is_interrupted(run)) process.send(SIGKILL);
    state = process.wait_ms(200);
  } while (!state && monotonic_ns() < end_ns);
  return state;
}

namespace {

namespace fs = std::filesystem;
using tools::tool_failure;
constexpr int kExitInterrupted = 4;
constexpr const char* kSmallDisk = "size=768m,mode=700";

struct soak_options {
  tools::common_options common;
  std::int64_t minutes = 0, seconds = 0, seed = 0, mapping_worker_s = 0;
  std::string folder, only;
};

// A disk that can be filled without anybody else noticing: a tmpfs of this process's own mount namespace (and user
// namespace, where it is not root). Empty, or why not. Before any thread.
std::string mount_small_disk(const std::string& folder) {
  const uid_t user = geteuid();
  const gid_t group = getegid();
  // Kept: if this process alone holds its namespace (a container's first one does), the mounts fall apart when it leaves,
  // and the program's own path with them, beside which workers look for their libraries.
  (void)open("/proc/self/ns/mnt", O_RDONLY | O_CLOEXEC);
  if (unshare(user == 0 ? CLONE_NEWNS : CLONE_NEWNS | CLONE_NEWUSER) != 0) return "unshare: " + errno_text(errno);
  if (user != 0) {
    std::ofstream("/proc/self/setgroups") << "deny";
    std::ofstream("/proc/self/uid_map") << user << ' ' << user << " 1";
    std::ofstream("/proc/self/gid_map") << group << ' ' << group << " 1";
  }
  if (mount(nullptr, "/", nullptr, MS_REC | MS_PRIVATE, nullptr) != 0) return "mount: " + errno_text(errno);
  if (mount("tmpfs", folder.c_str(), "tmpfs", 0, kSmallDisk) != 0) return "mount of a tmpfs: " + errno_text(errno);
  return {};
}

struct part {
  const char* name;
  void (*run)(const plan&, findings&);
};
constexpr part kParts[] = {{"store", run_store}, {"messages", run_messages}, {"mappings", run_mappings}};

bool is_wanted(const soak_options& options, const std::string& name) {
  return options.only.empty() || ("," + options.only + ",").find("," + name + ",") != std::string::npos;
}

// A part at work: what it saw, and its thread.
struct running_part {
  explicit running_part(const part& one) : seen(one.name) {}
  findings seen;
  std::atomic<bool> is_done{false};
  std::thread thread;
};
using running_parts = std::vector<std::unique_ptr<running_part>>;

// What the parts have seen so far.
void add_rows(const running_parts& parts, result_file& results) {
  for (const auto& one : parts) {
    for (const auto& [name, count] : one->seen.counters())
      results.add_row({{"kind", "count"}, {"part", one->seen.part()}, {"what", name}, {"count", count}});
    for (const auto& text : one->seen.violations())
      results.add_row({{"kind", "violation"}, {"part", one->seen.part()}, {"text", text}});
  }
}

bool has_violations(const running_parts& parts) {
  return std::any_of(parts.begin(), parts.end(), [](const auto& one) { return !one->seen.violations().empty(); });
}

void print_findings(const running_parts& parts) {
  for (const auto& one : parts) {
    text_table table({{"what", text_table::align::left}, {"count"}});
    for (const auto& [name, count] : one->seen.counters()) table.add_row({name, std::to_string(count)});
    std::printf("\n%s\n%s", one->seen.part().c_str(), table.render().c_str());
    for (const auto& text : one->seen.violations()) std::printf("  VIOLATION: %s\n", text.c_str());
  }
}

// Shows how far the run is and writes the result file as it goes, until all parts have ended. On a terminal a line in place,
// elsewhere a line a minute.
class watcher {
 public:
  watcher(const plan& run, std::uint64_t seconds, const running_parts& parts, tools::report& out)
      : run_(run), seconds_(seconds), parts_(parts), out_(out) {
    write();  // a file that cannot be written is reported now
  }

  // Returns false if a part neither ends nor does anything any more.
  bool watch() {
    progress shown("soak", seconds_);
    const bool is_log = isatty(STDERR_FILENO) == 0;
    for (std::uint64_t next_file_s = kFileEveryS, next_line_s = kLineEveryS; are_running();) {
      const timespec pause{0, 200'000'000};
      nanosleep(&pause, nullptr);
      const std::uint64_t passed = passed_s();
      shown.start_step(std::min(passed, seconds_), is_over(run_) ? "s, last looks" : "s");
      if (passed >= next_file_s) write(), next_file_s = passed + kFileEveryS;
      if (is_log && passed >= next_line_s) print_line(passed), next_line_s = passed + kLineEveryS;
      if (is_stuck()) return false;
    }
    return true;
  }

  std::uint64_t passed_s() const { return (monotonic_ns() - begin_ns_) / 1'000'000'000; }

 private:
  static constexpr std::uint64_t kFileEveryS = 30, kLineEveryS = 60;
  static constexpr std::uint64_t kStuckMs = 3 * kHungMs;  // each step of a part has its own, shorter limit

  bool are_running() const {
    return std::any_of(parts_.begin(), parts_.end(), [](const auto& one) { return !one->is_done.load(); });
  }

  bool is_stuck() const {
    const std::uint64_t now_ns = monotonic_ns();
    bool any = false;
    for (const auto& one : parts_) {
      if (one->is_done.load() || one->seen.last_sign_ns() + kStuckMs * 1'000'000 > now_ns) continue;
      one->seen.violation(format("this part has done nothing for %llu s and does not end",
                                 static_cast<unsigned long long>(kStuckMs / 1000)));
      any = true;
    }
    return any;
  }

  void write() {
    result_file so_far = out_.file();
    add_rows(parts_, so_far);
    so_far.set_parameter("ran_seconds", passed_s());
    so_far.add_note("not over: these are the counts so far");
    so_far.set_pass(false);
    out_.write_so_far(so_far);
  }

  void print_line(std::uint64_t passed) const {
    std::string line =
        format("%llu of %llu s", static_cast<unsigned long long>(passed), static_cast<unsigned long long>(seconds_));
    line += is_over(run_) ? ", last looks" : format(", %llu s left", static_cast<unsigned long long>(seconds_ - passed));
    for (const auto& one : parts_) {
      std::uint64_t all = 0;
      for (const auto& [name, count] : one->seen.counters()) all += count;
      line += format("; %s: %llu steps, %zu violations", one->seen.part().c_str(), static_cast<unsigned long long>(all),
                     one->seen.violations().size());
    }
    std::printf("%s\n", line.c_str());
    std::fflush(stdout);
  }

  const plan& run_;
  const std::uint64_t seconds_;
  const running_parts& parts_;
  tools::report& out_;
  const std::uint64_t begin_ns_ = monotonic_ns();
};

// The GPU that mappings are of, if there is one. One that was asked for has to be there.
void describe_machine(int ordinal, tools::report& out) {
  try {
    const tools::gpu_session gpu(ordinal, false);
    out.describe(&gpu, nullptr, "");
  } catch (const tool_failure&) {
    if (ordinal != 0) throw;
    out.describe(nullptr, nullptr, "");
  }
}

void start(const part& one, const plan& run, running_parts& parts) {
  auto& started = *parts.emplace_back(std::make_unique<running_part>(one));
  auto thread = try_start_thread("is a part of the soak", [&run, &started, work = one.run] {
    try {
      work(run, started.seen);
    } catch (const std::exception& failure) { started.seen.violation(failure.what()); }
    started.is_done = true;
  });
  if (thread) {
    started.thread = *std::move(thread);
    return;
  }
  started.seen.violation(thread.error().message);
  started.is_done = true;
}

// Ends with the summary and the exit code.
int finish(const plan& run, const running_parts& parts, std::uint64_t ran_s, tools::report& out) {
  const bool good = !has_violations(parts), was_interrupted = is_interrupted(run);
  print_findings(parts);
  add_rows(parts, out.file());
  out.file().set_parameter("ran_seconds", ran_s);
  out.file().set_parameter("interrupted", was_interrupted);
  out.file().set_pass(good && !was_interrupted);
  if (!good) std::printf("\nthe logs stay in %s\n", run.folder.c_str());
  out.write();
  const char* const last =
      !good             ? "FAIL: see above; to do the same again: --seed and --seconds or --minutes as in the first line"
      : was_interrupted ? "INTERRUPTED: nothing was broken until then"
                        : "PASS";
  std::printf("\n%s\n", last);
  std::fflush(stdout);
  return !good ? tools::kExitFailed : was_interrupted ? kExitInterrupted : tools::kExitOk;
}

}  // namespace
}  // namespace pl::soak

namespace pl::tools {

int run_soak(const invocation& call) {
  using namespace soak;
  soak_options options;
  command_parser parser(
      call,
      "Tests store, messages and mappings with random clients, kills, full disks, floods and bit flips, against an oracle");
  parser.integer("--minutes", "MINUTES", options.minutes, 0, 24 * 60, "Duration in minutes [1, without --seconds]");
  parser.integer("--seconds", "SECONDS", options.seconds, 0, 59, "Seconds to add to the minutes [0]");
  parser.integer("--seed", options.seed, 0, 1'000'000'007, "Seed of all random choices; 0: a random one, which is printed");
  parser.text("--folder", "DIR", options.folder,
              "Where the soak creates its temporary folder, which is kept after a violation [TMPDIR or /tmp]");
  parser.text("--only", "LIST", options.only, "Parts to run, comma-separated: store, messages, mappings [all]");
  parser.integer("--mapping-worker", "SECONDS", options.mapping_worker_s, 0, 3600,
                 "Only change mapped memory for this many seconds (used by the soak itself)");
  parser.common(options.common);
  if (const auto code = parser.parse()) return *code;
  if (options.mapping_worker_s > 0)
    return run_mapping_worker(options.common.gpu, static_cast<std::uint64_t>(options.seed),
                              static_cast<std::uint64_t>(options.mapping_worker_s));
  if (!options.only.empty())
    for (const auto& word : split_list(options.only))
      if (std::none_of(std::begin(kParts), std::end(kParts), [&](const part& one) { return word == one.name; }))
        throw tool_failure("--only: \"" + word + "\" is not one of store, messages, mappings");
  if (options.minutes == 0 && options.seconds == 0) {
    options.seconds = 60;
    smaller_run(parser).number("--seconds", options.seconds, 10);
  }
  plan run;
  run.seed = options.seed != 0 ? static_cast<std::uint64_t>(options.seed) : monotonic_ns() % 1'000'000'007 + 1;
  temporary_folder folder("soak", options.folder, temporary_folder::when_killed::kept);  // it may show what went wrong
  run.gpu = options.common.gpu;
  run.folder = folder.path();
  run.disk = run.folder + "/disk";
  check_socket_path(run.disk + "/damaged/store.sock");
  fs::create_directory(run.disk);
  run.why_no_small_disk = mount_small_disk(run.disk);
  run.has_small_disk = run.why_no_small_disk.empty();
  const auto seconds = static_cast<std::uint64_t>(options.minutes * 60 + options.seconds);
  report out(call, options.common, "soak");
  describe_machine(run.gpu, out);
  out.file().set_parameter("seed", run.seed);
  out.file().set_parameter("seconds", seconds);
  std::printf("soak of %llu s, seed %llu\n", static_cast<unsigned long long>(seconds),
              static_cast<unsigned long long>(run.seed));
  if (!run.has_small_disk) {
    const std::string note = "no full disks: " + run.why_no_small_disk;
    std::printf("%s\n", note.c_str());
    out.file().add_note(note);
  }
  std::fflush(stdout);
  const interrupt_guard interrupt;
  run.is_interrupted = &interrupt_guard::raised;
  run.end_ns = monotonic_ns() + seconds * 1'000'000'000;
  running_parts parts;
  watcher shown(run, seconds, parts, out);
  for (const auto& one : kParts)
    if (is_wanted(options, one.name)) start(one, run, parts);
  if (!shown.watch()) std::_Exit(finish(run, parts, shown.passed_s(), out));  // its threads cannot be joined
  for (auto& one : parts)
    if (one->thread.joinable()) one->thread.join();
  const int code = finish(run, parts, shown.passed_s(), out);
  if (code == kExitFailed) folder.keep();
  else if (run.has_small_disk) umount2(run.disk.c_str(), MNT_DETACH);
  return code;
}

}  // namespace pl::tools
