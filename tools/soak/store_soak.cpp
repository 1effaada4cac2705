// SPDX-License-Identifier: Apache-2.0
// The soak's part for the store: clients with an oracle of their own, and one thread that disturbs: it kills, stops and
// restarts the server, floods it with connections and half-sent frames, takes its descriptors, fills its disk, starts
// clients that die in the middle, and flips bits in a copy of its folder.
#include <fcntl.h>
#include <signal.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstring>
#include <filesystem>
#include <fstream>

#include "base/clock.hpp"
#include "base/text.hpp"
#include "tools/common/simultaneous.hpp"
#include "tools/common/tool.hpp"
#include "tools/soak/store_client_soak.hpp"
#include "tools/store/own_server.hpp"

namespace pl::soak {
namespace {

namespace fs = std::filesystem;
constexpr unsigned kClients = 4;

class disturber {
 public:
  disturber(const plan& run, findings& seen, store_under_soak& store)
      : run_(run), seen_(seen), store_(store), random_(run.seed * 3) {}

  // One disturbance, after which a server runs.
  void disturb() {
    struct choice {
      const char* name;
      void (disturber::*act)();
    };
    static constexpr choice kChoices[] = {
        {"killed", &disturber::kill_server},         {"ended", &disturber::end_server},
        {"stopped for a while", &disturber::freeze}, {"flooded", &disturber::flood},
        {"few descriptors", &disturber::starve},     {"idle connections", &disturber::hold_idle},
        {"disk full", &disturber::fill_disk},        {"client killed", &disturber::kill_client},
    };
    const choice& one = kChoices[random_() % std::size(kChoices)];
    seen_.count(format("server %s", one.name));
    (this->*one.act)();
    bring_back();
  }

  // A client that ends first may have been refused; if all do, the soak itself is wrong.
  void check_killed_clients() const {
    if (killed_clients_ == 0 && ended_clients_ != 0)
      seen_.violation("no client lived until it was to be killed; its words: perf.log");
  }

  // Starts a server. Obstacles were removed before, so a failure is an error.
  void bring_back() {
    for (int tries = 0; !store_.is_running(); ++tries) {
      if (store_.start()) return;
      if (tries == 5) throw tools::tool_failure("the store no longer starts; its output: " + store_.log());
      // After the end of the run, too, when pause_ms() returns at once.
      const timespec pause{0, 200'000'000};
      nanosleep(&pause, nullptr);
    }
  }

 private:
  void kill_server() {
    store_.end(SIGKILL);
    pause_ms(run_, random_() % 300);
  }
  void end_server() { store_.end(SIGTERM); }
  void freeze() {
    store_.send(SIGSTOP);
    pause_ms(run_, 100 + random_() % 2000);
    store_.send(SIGCONT);
  }

  // Connections that send invalid bytes: noise, heads that claim bodies, and nothing more.
  void flood() {
    std::vector<int> sockets;
    for (int i = 0; i < 300; ++i) {
      const int one = connected();
      if (one < 0) break;
      sockets.push_back(one);
      std::uint64_t noise[16];
      for (auto& word : noise) word = random_();
      if (i % 2 == 0) noise[0] = 0x0154534c50ull;  // magic and version: a head that is believed for longer
      (void)!send(one, noise, 1 + random_() % sizeof noise, MSG_DONTWAIT | MSG_NOSIGNAL);
    }
    seen_.count("connections of floods", sockets.size());
    pause_ms(run_, random_() % 1000);
    for (const int one : sockets) close(one);
  }
  // A server with hardly more descriptors than it needs, and more connections than that.
  void starve() {
    store_.end(SIGTERM);
    if (store_.start(128)) {
      hold_idle();
      store_.end(SIGTERM);
    }
  }
  void hold_idle() {
    std::vector<int> sockets;
    for (int i = 0; i < 700; ++i) {
      const int one = connected();
      if (one < 0) break;
      sockets.push_back(one);
    }
    pause_ms(run_, 500 + random_() % 1000);
    for (const int one : sockets) close(one);
  }
  void fill_disk() {
    if (!run_.has_small_disk) return;
    const std::string filler = store_.folder() + "/../filler";
    const int file = open(filler.c_str(), O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);
    const std::vector<char> block(1 << 20);
    while (file >= 0 && write(file, block.data(), block.size()) > 0) {}
    const bool met_at_start = random_() % 3 == 0;
    if (met_at_start) {
      store_.end(random_() % 2 == 0 ? SIGKILL : SIGTERM, true);
      store_.start();
    }
    pause_ms(run_, 300 + random_() % 1500);
    if (file >= 0) close(file);
    unlink(filler.c_str());
    // A server that started with a full disk serves reads only and asks for a restart.
    if (met_at_start) store_.end(SIGTERM);
  }
  // Kills a client of another kind, with large values in progress.
  void kill_client() {
    command_process client(
        {{"store", "perf", "--server", store_.socket(), "--test", "throughput", "--duration", "60", "--read_pct", "20",
          "--elements", "200", "--value_length", "400000", "--pool_name", "of-killed-clients"},
         run_.folder + "/perf.log",
         0,
         {}});
    pause_ms(run_, 50 + random_() % 600);
    client.send(SIGKILL);
    const auto state = client.wait_ms(kHungMs);
    if (!state) seen_.violation("a killed client of the store did not end within 300 s");
    ++(state && WIFSIGNALED(*state) ? killed_clients_ : ended_clients_);
  }

  int connected() const {
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    const std::string path = store_.socket();
    path.copy(address.sun_path, std::min(path.size(), sizeof address.sun_path - 1));
    const int one = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
    if (one >= 0 && connect(one, reinterpret_cast<const sockaddr*>(&address), sizeof address) == 0) return one;
    if (one >= 0) close(one);
    return -1;
  }

  const plan& run_;
  findings& seen_;
  store_under_soak& store_;
  std::mt19937_64 random_;
  unsigned killed_clients_ = 0, ended_clients_ = 0;
};

// Flips some bits of one file. Returns a description.
std::string flip_bits(const std::string& folder, std::mt19937_64& random) {
  std::vector<fs::path> files;
  for (const auto& entry : fs::recursive_directory_iterator(folder))
    if (entry.is_regular_file() && entry.file_size() > 0) files.push_back(entry.path());
  if (files.empty()) return "nothing to damage";
  std::sort(files.begin(), files.end());
  const fs::path& chosen = files[random() % files.size()];
  const std::uint64_t size = fs::file_size(chosen);
  std::fstream file(chosen, std::ios::in | std::ios::out | std::ios::binary);
  std::string out = chosen.lexically_relative(folder).string() + ":";
  for (int flips = 1 + static_cast<int>(random() % 3); flips > 0; --flips) {
    const std::uint64_t offset = random() % size;
    file.seekg(static_cast<std::streamoff>(offset));
    const int byte = file.get();
    file.seekp(static_cast<std::streamoff>(offset));
    file.put(static_cast<char>(byte ^ (1 << random() % 8)));
    out += format(" %llu", static_cast<unsigned long long>(offset));
  }
  return out;
}

// The server's own log reports that the folder is damaged or that values are lost.
bool tells_of_damage(const std::string& log) {
  std::ifstream file(log);
  for (std::string line; std::getline(file, line);)
    if (line.find("damage") != std::string::npos || line.find("lost") != std::string::npos ||
        line.find("corrupt") != std::string::npos)
      return true;
  return false;
}

// Whether a server that was started on a damaged copy serves; else it refused.
bool serves_damaged(command_process& server, const std::string& copy, const std::string& done, findings& seen) {
  const std::uint64_t end_ns = monotonic_ns() + kHungMs * 1'000'000;
  while (monotonic_ns() < end_ns) {
    if (const auto state = server.wait_ms(20)) {
      if (WIFSIGNALED(*state))
        seen.violation(format("a server died by %s on damaged %s", state_text(*state).c_str(), done.c_str()));
      seen.count("damaged copies refused");
      return false;
    }
    if (!store_tools::is_unserved(copy)) return true;
    seen.touch();
  }
  seen.violation("a server neither served nor ended within 300 s on damaged " + done);
  return false;
}

// After a clean stop, a damaged copy of the folder does not open, reports the damage, or answers correctly.
void damage_copies(const plan& run, findings& seen, store_under_soak& store,
                   std::vector<std::unique_ptr<store_client_soak>>& clients) {
  std::mt19937_64 random(run.seed * 7 + 5);
  for (int round = 0; round < 6 && !is_interrupted(run); ++round) {
    const std::string copy = run.disk + "/damaged", log = run.folder + "/damaged.log";
    std::error_code ignored;
    fs::remove_all(copy, ignored);
    fs::remove(log, ignored);
    std::error_code failed;
    fs::copy(store.folder(), copy, fs::copy_options::recursive, failed);
    if (failed) {  // half a copy has damage of another kind
      seen.count("damaged copies without room");
      continue;
    }
    fs::permissions(copy, fs::perms::owner_all, ignored);
    fs::remove(copy + "/store.sock", ignored);
    const std::string done = flip_bits(copy, random);
    command_process server({.arguments = serve_arguments(copy), .output_path = log, .environment = {}});
    seen.count("damaged copies");
    std::uint64_t lost = 0;
    if (serves_damaged(server, copy, done, seen))
      for (auto& one : clients) lost += one->silent_losses(copy + "/store.sock", done);
    server.send(SIGKILL);
    server.wait_ms(kHungMs);
    if (lost != 0 && !tells_of_damage(log)) {
      const std::string kept = format("%s/damaged-%d", run.folder.c_str(), round);
      fs::copy(copy, kept, fs::copy_options::recursive, ignored);
      fs::rename(log, kept + ".log", ignored);
      seen.violation(
          format("%llu values are missing or old, and nothing said so, after bits were flipped in %s; the copy: %s",
                 static_cast<unsigned long long>(lost), done.c_str(), kept.c_str()));
    }
    fs::remove_all(copy, ignored);
  }
}

}  // namespace

void run_store(const plan& run, findings& seen) {
  // Floods need more descriptors than most shells give.
  rlimit limit{};
  if (getrlimit(RLIMIT_NOFILE, &limit) == 0 && limit.rlim_cur < limit.rlim_max) {
    limit.rlim_cur = std::min<rlim_t>(limit.rlim_max, 8192);
    setrlimit(RLIMIT_NOFILE, &limit);
  }
  const std::string folder = run.disk + "/store";
  fs::create_directory(folder);
  store_under_soak store(run, seen, folder);
  disturber noise(run, seen, store);
  noise.bring_back();
  std::vector<std::unique_ptr<store_client_soak>> clients;
  for (unsigned i = 0; i < kClients; ++i) clients.push_back(std::make_unique<store_client_soak>(run, seen, store, i));
  std::mt19937_64 random(run.seed * 11);
  std::string failure;
  const auto work = [&clients](std::size_t i) { clients[i]->work(); };
  tools::run_simultaneously(clients.size(), work, [&] {
    try {
      while (!is_over(run)) {
        pause_ms(run, 300 + random() % 2500);
        if (!is_over(run)) noise.disturb();
      }
    } catch (const std::exception& error) { failure = error.what(); }
  });
  if (!failure.empty()) {
    seen.violation(failure);
    return;
  }
  noise.check_killed_clients();
  noise.bring_back();
  for (auto& one : clients) one->check_all();
  store.end(SIGTERM);
  if (!is_interrupted(run)) damage_copies(run, seen, store, clients);
}

}  // namespace pl::soak
