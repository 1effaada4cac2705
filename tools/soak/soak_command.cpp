// SPDX-License-Identifier: Apache-2.0
// peerlane soak: drives store, messages and mappings with random clients, kills, full disks, descriptor limits, floods and
// bit flips, and compares every answer with an oracle. Ends with a summary and each guarantee that was broken.
#include <sched.h>
#include <stdlib.h>
#include <sys/mount.h>
#include <unistd.h>

#include <cstdio>
#include <filesystem>
#include <fstream>
#include <thread>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "measure/progress.hpp"
#include "measure/text_table.hpp"
#include "tools/common/report.hpp"
#include "tools/common/temporary_folder.hpp"
#include "tools/common/tool.hpp"
#include "tools/common/word_list.hpp"
#include "tools/soak/soak.hpp"

namespace pl::soak {

void findings::violation(const std::string& text) {
  {
    const std::lock_guard hold(mutex_);
    ++counters_["VIOLATIONS"];
    if (violations_.size() < kMaxKept) violations_.push_back(text);
  }
  std::fprintf(stderr, "\nsoak: %s: VIOLATION: %s\n", part_.c_str(), text.c_str());
}

bool is_over(const plan& run) { return monotonic_ns() >= run.end_ns; }

void pause_ms(const plan& run, std::uint64_t milliseconds) {
  const std::uint64_t end_ns = std::min(run.end_ns, monotonic_ns() + milliseconds * 1'000'000);
  while (monotonic_ns() < end_ns) {
    const std::uint64_t left_ns = std::min<std::uint64_t>(end_ns - monotonic_ns(), 50'000'000);
    const timespec pause{0, static_cast<long>(left_ns)};
    nanosleep(&pause, nullptr);
  }
}

namespace {

namespace fs = std::filesystem;
using tools::tool_failure;
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

void watch(const plan& run, std::uint64_t seconds, const std::atomic<unsigned>& running) {
  progress shown("soak", seconds);
  const std::uint64_t begin_ns = monotonic_ns();
  while (running.load() != 0) {
    const std::uint64_t passed = std::min<std::uint64_t>((monotonic_ns() - begin_ns) / 1'000'000'000, seconds);
    shown.start_step(passed, is_over(run) ? "s, last looks" : "s");
    const timespec pause{0, 200'000'000};
    nanosleep(&pause, nullptr);
  }
}

bool tell(const std::vector<std::unique_ptr<findings>>& all, result_file& results) {
  bool good = true;
  for (const auto& one : all) {
    text_table table({{"what", text_table::align::left}, {"count"}});
    for (const auto& [name, count] : one->counters()) {
      table.add_row({name, std::to_string(count)});
      results.add_row({{"kind", "count"}, {"part", one->part()}, {"what", name}, {"count", count}});
    }
    std::printf("\n%s\n%s", one->part().c_str(), table.render().c_str());
    for (const auto& text : one->violations()) {
      good = false;
      std::printf("  VIOLATION: %s\n", text.c_str());
      results.add_row({{"kind", "violation"}, {"part", one->part()}, {"text", text}});
    }
  }
  return good;
}

}  // namespace
}  // namespace pl::soak

namespace pl::tools {

int run_soak(const invocation& call) {
  using namespace soak;
  soak_options options;
  command_parser parser(
      call, "Random clients, kills, full disks, floods and bit flips against store, messages and mappings, with an oracle");
  parser.integer("--minutes", "MINUTES", options.minutes, 0, 24 * 60, "How long [1, without --seconds]");
  parser.integer("--seconds", "SECONDS", options.seconds, 0, 59, "So many seconds more [0]");
  parser.integer("--seed", options.seed, 0, 1'000'000'007, "What is done; 0: a random one, which is printed");
  parser.text("--folder", "DIR", options.folder,
              "Where its own folder is made and deleted; kept after a violation [TMPDIR or /tmp]");
  parser.text("--only", "LIST", options.only, "Parts, comma-separated: store, messages, mappings [all]");
  parser.integer("--mapping-worker", "SECONDS", options.mapping_worker_s, 0, 3600,
                 "Only change mapped memory for so many seconds (a part of the soak)");
  parser.common(options.common);
  if (const auto code = parser.parse()) return *code;
  if (options.mapping_worker_s > 0)
    return run_mapping_worker(static_cast<std::uint64_t>(options.seed),
                              static_cast<std::uint64_t>(options.mapping_worker_s));
  if (!options.only.empty())
    for (const auto& word : split_list(options.only))
      if (std::none_of(std::begin(kParts), std::end(kParts), [&](const part& one) { return word == one.name; }))
        throw tool_failure("--only: there is no part \"" + word + "\": store, messages, mappings");
  if (options.minutes == 0 && options.seconds == 0) {
    options.seconds = 60;
    smaller_run(parser).number("--seconds", options.seconds, 10);
  }
  plan run;
  run.seed = options.seed != 0 ? static_cast<std::uint64_t>(options.seed) : monotonic_ns() % 1'000'000'007 + 1;
  temporary_folder folder("soak", options.folder);
  run.folder = folder.path();
  run.disk = run.folder + "/disk";
  fs::create_directory(run.disk);
  run.why_no_small_disk = mount_small_disk(run.disk);
  run.has_small_disk = run.why_no_small_disk.empty();
  const auto seconds = static_cast<std::uint64_t>(options.minutes * 60 + options.seconds);
  report out(call, options.common, "soak");
  out.describe(nullptr, nullptr, "");
  out.file().set_parameter("seed", run.seed);
  out.file().set_parameter("seconds", seconds);
  std::printf("soak of %llu s, seed %llu\n", static_cast<unsigned long long>(seconds),
              static_cast<unsigned long long>(run.seed));
  if (!run.has_small_disk) {
    const std::string note = "no full disks: " + run.why_no_small_disk;
    std::printf("%s\n", note.c_str());
    out.file().add_note(note);
  }
  run.end_ns = monotonic_ns() + seconds * 1'000'000'000;
  std::vector<std::unique_ptr<findings>> all;
  std::vector<std::thread> threads;
  std::atomic<unsigned> running{0};
  for (const auto& one : kParts) {
    if (!is_wanted(options, one.name)) continue;
    all.push_back(std::make_unique<findings>(one.name));
    ++running;
    threads.emplace_back([&, work = one.run, &seen = *all.back()] {
      try {
        work(run, seen);
      } catch (const std::exception& failure) { seen.violation(failure.what()); }
      --running;
    });
  }
  watch(run, seconds, running);
  for (auto& one : threads) one.join();
  const bool good = tell(all, out.file());
  if (good) {
    if (run.has_small_disk) umount2(run.disk.c_str(), MNT_DETACH);
  } else {
    folder.keep();
    std::printf("\nthe logs stay in %s\n", run.folder.c_str());
  }
  out.file().set_pass(good);
  out.write();
  std::printf(
      "\n%s\n",
      good ? "PASS" : "FAIL: see above; to do the same again: --seed and --seconds or --minutes as in the first line");
  return good ? kExitOk : kExitFailed;
}

}  // namespace pl::tools
