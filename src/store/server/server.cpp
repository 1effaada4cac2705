// SPDX-License-Identifier: Apache-2.0
#include "store/server/server.hpp"

#include <unistd.h>

#include <asio/executor_work_guard.hpp>
#include <asio/post.hpp>
#include <asio/signal_set.hpp>
#include <asio/write.hpp>
#include <filesystem>
#include <limits>
#include <map>
#include <random>
#include <thread>

#include "arch/mmio.hpp"
#include "base/clock.hpp"
#include "base/env.hpp"
#include "base/live_counter.hpp"
#include "base/text.hpp"
#include "base/utf8.hpp"
#include "os/blocked_signals.hpp"
#include "os/close_on_exec.hpp"
#include "store/client/checksum_pool.hpp"
#include "store/cluster/cluster_service.hpp"
#include "store/protocol/byte_channel.hpp"
#include "store/protocol/endpoint_text.hpp"
#include "store/server/host_limits.hpp"
#include "store/server/ring_poller.hpp"
#include "store/server/session.hpp"
#include "store/server/socket_file.hpp"
#include "store/server/watch_hub.hpp"
#include "ucx/rdma_device.hpp"

namespace pl::store_server {
namespace {

using asio::ip::tcp;

constexpr auto kAcceptPause = std::chrono::milliseconds(100);  // after errors such as EMFILE
constexpr std::uint64_t kLogAgainNs = 60'000'000'000;          // so that a lasting condition does not fill the log
constexpr unsigned kSearchingThreads = 2;
constexpr int kMaxScrapes = 16;
// One thread and its connections.
struct event_loop {
  ring_poller rings;  // outlives the connections, which handlers of the context may own
  asio::io_context context{1};
  asio::executor_work_guard<asio::io_context::executor_type> stay{context.get_executor()};
  std::thread thread;
  device_queue transfers{rings};

  // Polls for a while before it sleeps, because a wakeup costs more than a small request.
  void serve(std::uint64_t spin_ns) {
    served_here = &context;
    if (spin_ns == 0) {
      context.run();
      return;
    }
    transfers_here = &transfers;
    std::uint64_t idle_since = monotonic_ns();
    while (!context.stopped()) {
      const bool did = poll_rings();
      const bool has_worked = context.poll() > 0 || did;
      const std::uint64_t now = monotonic_ns();
      if (has_worked) idle_since = now;
      if (now - idle_since < spin_ns) continue;
      if (rings.arm()) context.run_one();
      rings.disarm();
      idle_since = monotonic_ns();
    }
  }

  // Asking the event loop is a system call, so the rings are polled several times for each. 32 times were no faster,
  // with 1, 16 and 64 requests in flight, and results of the engine's threads wait in the loop meanwhile.
  bool poll_rings() {
    constexpr unsigned kPolls = 8;
    bool did = false;
    for (unsigned i = 0; i < kPolls && !rings.is_empty(); ++i) {
      if (rings.poll() > 0) did = true;
      else arch::relax();
    }
    return did;
  }
};

access_rules::lists lists_of(const server_config& config) {
  access_rules::lists out{config.admins, config.mappers, config.map_readers};
  const std::string mine = format("uid:%u", geteuid());
  // Plain TCP is left out, because every user of the host can connect.
  if (out.admins.empty()) out.admins = {mine, "uid:0"};
  if (out.mappers.empty()) out.mappers = {mine, "uid:0"};
  return out;
}

event_log::level level_of(const std::string& name) {
  if (name == "debug") return event_log::level::debug;
  if (name == "warn") return event_log::level::warn;
  return name == "error" ? event_log::level::error : event_log::level::info;
}

std::string text_of(const tcp::endpoint& endpoint) {
  const std::string host = endpoint.address().to_string();
  return endpoint.address().is_v6() ? format("[%s]:%u", host.c_str(), endpoint.port())
                                    : format("%s:%u", host.c_str(), endpoint.port());
}

// Listens only on the loopback interface unless `anywhere`. Checked here because the name is resolved here.
result<std::unique_ptr<tcp::acceptor>> listen_on(asio::io_context& home, const std::string& endpoint, bool anywhere) {
  const auto parts = split_endpoint(endpoint);
  if (!parts) return parts.error();
  std::error_code error;
  tcp::resolver resolver(home);
  const auto found = resolver.resolve(parts->first, parts->second, tcp::resolver::passive, error);
  if (error || found.empty())
    return failure{EINVAL, format("listening on %s: %s", endpoint.c_str(), error.message().c_str())};
  const tcp::endpoint address = found.begin()->endpoint();
  if (!anywhere && !address.address().is_loopback())
    return failure{EACCES,
                   format("%s is %s, which other machines can reach: name an address, or give certificates or --insecure",
                          endpoint.c_str(), address.address().to_string().c_str())};
  auto out = std::make_unique<tcp::acceptor>(home);
  out->open(address.protocol(), error);
  set_close_on_exec(out->native_handle());
  if (!error) out->set_option(tcp::acceptor::reuse_address(true), error);
  if (!error) out->bind(address, error);
  if (!error) out->listen(asio::socket_base::max_listen_connections, error);
  if (error)
    return failure{error.value(), format("listening on %s: %s", endpoint.c_str(), errno_text(error.value()).c_str())};
  return out;
}

// One scrape: any request gets the metrics. A client that sends or reads nothing is disconnected.
struct scrape : std::enable_shared_from_this<scrape> {
  scrape(tcp::socket peer, std::atomic<int>& count) : socket(std::move(peer)), all(count), timer(socket.get_executor()) {
    ++all;
  }
  ~scrape() { --all; }
  scrape(const scrape&) = delete;
  scrape& operator=(const scrape&) = delete;
  tcp::socket socket;
  std::atomic<int>& all;
  asio::steady_timer timer;
  std::array<char, 4096> question{};
  std::string reply;

  void start(std::string text, std::chrono::seconds delay) {
    timer.expires_after(delay);
    timer.async_wait([weak = weak_from_this()](std::error_code cancelled) {
      std::error_code ignored;
      if (const auto me = weak.lock(); me && !cancelled) me->socket.close(ignored);
    });
    reply =
        format("HTTP/1.0 200 OK\r\nContent-Type: text/plain; version=0.0.4\r\nContent-Length: %zu\r\n\r\n", text.size()) +
        text;
    socket.async_read_some(asio::buffer(question), [me = shared_from_this()](std::error_code error, std::size_t) {
      if (error) return;
      asio::async_write(me->socket, asio::buffer(me->reply), [me](std::error_code, std::size_t) {
        std::error_code ignored;
        me->socket.shutdown(tcp::socket::shutdown_both, ignored);
      });
    });
  }
};

}  // namespace

struct server::state {
  explicit state(server_config given, event_log destination)
      : config(std::move(given)), access(lists_of(config)), log(std::move(destination)), blocking(kSearchingThreads) {}

  server_config config;
  access_rules access;
  metrics counters;
  event_log log;
  watch_hub watches{std::uint64_t{std::random_device()()} << 31 | 1};
  std::unique_ptr<store::engine> engine;
  std::unique_ptr<store_cluster::value_service> plain;
  std::unique_ptr<quotas> limits;
  std::unique_ptr<store_cluster::cluster_service> cluster;  // null: a single store
  fair_workers blocking;
  std::vector<std::unique_ptr<event_loop>> loops;
  tls_context tls;  // for new connections
  accounts principals;
  std::unique_ptr<orphaned_sessions> orphans;
  std::unique_ptr<ucx_listener> stream_end;
  std::unique_ptr<device_mover> device;
  std::optional<store_client::checksum_pool> sums{std::in_place, summing_threads(config)};
  std::unique_ptr<server_parts> parts;
  std::unique_ptr<socket_file> local;
  std::unique_ptr<tcp::acceptor> remote, prometheus;
  std::unique_ptr<asio::signal_set> signals, reload_signal;
  std::unique_ptr<asio::steady_timer> drain_timer;
  std::atomic<int> scrapes{0};
  std::atomic<std::uint64_t> accept_logged_ns{0};  // when the log last reported it
  std::atomic<bool> halted{false};                 // no thread serves any more
  int descriptor_limit = 0;
  std::optional<failure> failed;  // failure of a serving thread
  std::string socket_path;
  std::uint64_t instance = 0;
  std::size_t next_loop = 0;
  std::mutex sessions_lock;
  std::map<session*, std::weak_ptr<session>> sessions;
  bool stopping = false;  // used by the first loop's thread only
  bool has_run = false;

  asio::io_context& home() { return loops.front()->context; }
  status open();
  status open_engine();
  status join_cluster();
  std::string open_stream();
  std::string open_device();
  status open_listeners();
  template <class Acceptor>
  void accept(Acceptor& acceptor);
  void add(asio::io_context& context, std::unique_ptr<transport> wire);
  void serve(std::size_t index, std::uint64_t spin_ns);
  void give_up(const std::exception& reason);  // stops all serving
  bool has_descriptors(int newest);
  void serve_scrape(tcp::socket peer);
  void reload();
  void reload_settings();
  void await_reload();
  void begin_stop();
  void end_when_empty();
  std::vector<std::shared_ptr<session>> live_sessions();
};

// Opens UCX for the sessions that can use it. Returns why that failed, or an empty text; the store works without UCX.
std::string server::state::open_stream() {
  auto mode = store_client::ucx_mode_of(config.ucx).value_or(store_client::ucx_mode::off);
  if (mode == store_client::ucx_mode::automatic)
    mode = store_client::ucx_mode_of(env_read("PEERLANE_STORE_UCX").text).value_or(mode);
  if (mode == store_client::ucx_mode::off) return "the store's \"ucx\" is off";
  if (mode == store_client::ucx_mode::automatic && !ucx::has_rdma_device())
    return "the store's host has no RDMA device (/sys/class/infiniband)";
  const auto& arena = engine->arena();
  auto made = ucx_listener::open({mode, arena.base, arena.size_bytes}, counters, log);
  if (made) {
    stream_end = *std::move(made);
    return {};
  }
  log.write(event_log::level::warn, "no_ucx", {{"why", made.error().message}});
  return made.error().message;
}

// Only looks for the device files. Channels are opened when the first memory is handed over.
std::string server::state::open_device() {
  if (!config.gpu_direct) return "the store's \"gpu_direct\" is off";
  if (config.spin_us == 0) return "the store's threads do not look for work (\"spin_us\": 0)";
  if (local == nullptr) return "the store has no unix socket";
  if (auto usable = device_mover::probe(); !usable) return usable.error().message;
  const auto& arena = engine->arena();
  // If starting the threads failed only at the first request, its event loop would have to compute the checksums.
  if (auto ready = sums->prepare(); !ready) return ready.error().message;
  device = std::make_unique<device_mover>(std::span(arena.base, arena.size_bytes));
  return {};
}

// Opens the engine, read-only if the disk is full or not writable: its values can still be read.
status server::state::open_engine() {
  const auto options = [this] {
    auto made = engine_options_of(config);
    made.needs_private_arena = [this](const store::pool_info& pool) { return access.needs_private_arena(policy_of(pool)); };
    made.cache_of = cache_terms_of;
    made.on_change = [this](const store::key_change& one) { watches.tell(one); };
    return made;
  };
  auto opened = store::engine::open(options());
  const bool is_unwritable = opened.code() == ENOSPC || opened.code() == EROFS;
  if (is_unwritable && !config.read_only && config.cluster.empty()) {
    const std::string reason = opened.error().message;
    config.read_only = true;
    auto again = store::engine::open(options());
    if (!again) return opened.error();  // the error of opening for writing says more
    log.write(event_log::level::warn, "read_only",
              {{"why", reason}, {"next", "make room, then start it again to take puts"}});
    opened = std::move(again);
  }
  if (!opened) return opened.error();
  if (config.read_only) log.write(event_log::level::info, "read_only", {{"data", config.data}});
  if (const std::string warning = memory_warning(config, usable_memory()); !warning.empty())
    log.write(event_log::level::warn, "memory",
              {{"why", warning}, {"next", "a smaller --arena or key_memory_bytes, or a higher limit"}});
  engine = *std::move(opened);
  return {};
}

status server::state::open() {
  for (std::uint64_t i = 0; i < serving_threads(config); ++i) loops.push_back(std::make_unique<event_loop>());
  drain_timer = std::make_unique<asio::steady_timer>(home());
  if (!config.tls.certificate.empty()) {
    auto made = make_tls_context(config.tls);
    if (!made) return made.error();
    tls = *std::move(made);
  }
  if (auto opened = open_engine(); !opened) return opened;
  orphans = std::make_unique<orphaned_sessions>(home(), *engine, counters);
  plain = std::make_unique<store_cluster::value_service>(*engine);
  auto given = parse_quotas(config.quotas);
  if (!given) return given.error();
  limits = std::make_unique<quotas>(*engine, *std::move(given));
  std::random_device random;
  // A positive 63-bit number, because some JSON readers only know signed ones
  instance = (std::uint64_t{random()} << 31 | random() >> 1) | 1;
  // Other servers must be able to reach this one before they hear of it.
  if (auto listening = open_listeners(); !listening) return listening;
  if (auto joined = join_cluster(); !joined) return joined;
  parts = std::make_unique<server_parts>(server_parts{*engine, cluster ? *cluster : *plain, *plain, config, access, counters,
                                                      log, *orphans, principals, watches, blocking, halted, instance});
  parts->ucx_refusal = open_stream();
  parts->ucx = stream_end.get();
  parts->device_refusal = counters.device_refusal = open_device();
  parts->device = device.get();
  parts->sums = &*sums;
  parts->commits = make_commit_threads();
  parts->quotas = limits.get();
  parts->ended = [this](session* gone) {
    {
      const std::lock_guard hold(sessions_lock);
      sessions.erase(gone);
    }
    asio::post(home(), [this] { end_when_empty(); });
  };
  parts->policy_changed = [this](const pool_policy& now) {
    for (const auto& one : live_sessions()) one->policy_changed(now);
  };
  if (cluster) cluster->when_pool_changed([this](const store::pool_info& pool) { parts->policy_changed(policy_of(pool)); });
  if (auto room = check_descriptors(descriptor_limit); !room) return room;
  if (local) {
    accept(local->acceptor);
    local->watch(config, log, [this] { accept(local->acceptor); });
  }
  if (remote) accept(*remote);
  if (prometheus) accept(*prometheus);
  return {};
}

status server::state::join_cluster() {
  if (config.cluster.empty()) return {};
  store_cluster::cluster_options options;
  options.etcd = config.cluster;
  options.tls = config.cluster_tls;
  options.cluster = config.cluster_name, options.name = config.name;
  std::error_code ignored;
  options.endpoint = config.advertise.empty() ? text_of(remote->local_endpoint(ignored)) : config.advertise;
  if (local) options.socket = std::filesystem::absolute(socket_path, ignored).string();
  if (!is_utf8(options.socket)) {
    log.write(event_log::level::warn, "no_socket_in_map",
              {{"why", "its path is not UTF-8, as the map is: give a --socket"}});
    options.socket.clear();
  }
  options.instance = instance;
  options.data = config.data;
  options.lease_s = static_cast<unsigned>(config.lease_s);
  options.repair_after_s = static_cast<unsigned>(config.repair_s);
  store_client::address security;
  security.tls_certificate = config.tls.certificate;
  security.tls_key = config.tls.key;
  security.tls_authority = config.tls.client_authority;
  auto joined =
      store_cluster::cluster_service::open(*engine, options, security, [this](const char* event, const std::string& text) {
        log.write(event_log::level::info, event, {{"what", text}});
      });
  if (!joined) return joined.error();
  cluster = *std::move(joined);
  return {};
}

status server::state::open_listeners() {
  if (config.socket != "none") {
    socket_path = config.socket.empty() ? config.data + "/store.sock" : config.socket;
    auto made = socket_file::listen(home(), socket_path, config);
    const bool is_elsewhere = !config.socket.empty() || config.listen == "none";
    const bool has_no_place = made.code() == ENOSPC || (made.code() == EROFS && config.read_only);
    if (has_no_place && !is_elsewhere) {
      log.write(event_log::level::warn, "no_socket", {{"why", made.error().message}, {"next", "--socket PATH, or TCP"}});
      socket_path.clear();
    } else if (!made) {
      return made.error();
    } else {
      local = *std::move(made);
    }
  }
  if (config.listen != "none") {
    auto made = listen_on(home(), config.listen, config.insecure || tls != nullptr);
    if (!made) return made.error();
    remote = *std::move(made);
  }
  if (config.metrics != "none") {
    auto made = listen_on(home(), config.metrics, config.insecure);
    if (!made) return made.error();
    prometheus = *std::move(made);
  }
  return {};
}

template <class Acceptor>
void server::state::accept(Acceptor& acceptor) {
  auto& loop = *loops[next_loop++ % loops.size()];
  const bool is_scrape = static_cast<void*>(&acceptor) == static_cast<void*>(prometheus.get());
  const auto taken = std::make_shared<typename Acceptor::protocol_type::socket>(loop.context);
  acceptor.async_accept(*taken, [this, &acceptor, &loop, taken, is_scrape](std::error_code error) {
    if (error == asio::error::operation_aborted || stopping) return;
    if (error) {  // out of descriptors; open connections continue
      const std::uint64_t now_ns = monotonic_ns(), logged_ns = accept_logged_ns.load();
      if (logged_ns == 0 || now_ns - logged_ns > kLogAgainNs) {
        accept_logged_ns = now_ns;
        log.write(event_log::level::error, "accept_failed", {{"why", errno_text(error.value())}});
      }
      const auto pause = std::make_shared<asio::steady_timer>(home());
      pause->expires_after(kAcceptPause);
      pause->async_wait([this, &acceptor, pause](std::error_code cancelled) {
        if (!cancelled && !stopping) accept(acceptor);
      });
      return;
    }
    accept(acceptor);
    set_close_on_exec(taken->native_handle());
    if (!has_descriptors(taken->native_handle())) return;
    if constexpr (std::is_same_v<Acceptor, tcp::acceptor>) {
      if (is_scrape) return serve_scrape(std::move(*taken));
      add(loop.context, tls != nullptr ? make_transport(std::move(*taken), tls) : make_transport(std::move(*taken)));
    } else {
      add(loop.context, make_transport(std::move(*taken), config.spin_us > 0 ? &loop.rings : nullptr));
    }
  });
}

// The kernel hands out the lowest free number, so a number near the limit means that few are left.
bool server::state::has_descriptors(int newest) {
  if (newest < descriptor_limit) return true;
  ++counters.refused;
  log.write(event_log::level::warn, "refused",
            {{"why", format("%d descriptors are open, the others are for the store's files: raise the limit (ulimit -n)",
                            descriptor_limit)}});
  return false;
}

void server::state::serve_scrape(tcp::socket peer) {
  if (scrapes >= kMaxScrapes) return;
  const auto one = std::make_shared<scrape>(std::move(peer), scrapes);
  asio::post(one->socket.get_executor(), [this, one] {
    one->start(counters.text(engine->stats(), engine->list_pools(), limits->list()) + parts->values.metrics(),
               std::chrono::seconds(config.hello_timeout_s));
  });
}

// A file that is unreadable or invalid in any place changes nothing. Of its fields, only the quotas take effect.
void server::state::reload_settings() {
  if (config.config_file.empty()) return;
  const auto next = read_config_again(config.config_file);
  if (config.quotas_from_file) {
    const auto lines = next ? parse_quotas(next->quotas) : next.error();
    if (lines) limits->set(*lines);
    log.write(
        lines ? event_log::level::info : event_log::level::error, "quotas_reloaded",
        {{"outcome", lines ? format("%zu quotas", lines->size()) : "the earlier ones stay: " + lines.error().message}});
  } else if (!next) {
    log.write(event_log::level::error, "settings_not_read", {{"why", next.error().message}});
  }
  server_config before;
  if (!next || !read_config(config.config_text, before)) return;
  if (config.quotas_from_file) before.quotas = next->quotas;
  if (const std::string fields = changed_fields(before, *next); !fields.empty())
    log.write(event_log::level::warn, "settings_kept",
              {{"fields", fields}, {"why", "the store uses them as they were when it started"}, {"next", "restart it"}});
}

// New connections use the new certificates; open ones keep theirs.
void server::state::reload() {
  if (const status opened = log.reopen(); !opened)
    log.write(event_log::level::error, "log_not_reopened", {{"why", opened.error().message}});
  else log.write(event_log::level::info, "log_reopened", {{"log", config.log.empty() ? "standard error" : config.log}});
  reload_settings();
  if (config.tls.certificate.empty()) return;
  auto made = make_tls_context(config.tls, true);
  if (made) tls = *std::move(made);
  log.write(made ? event_log::level::info : event_log::level::error, "tls_reloaded",
            {{"outcome", made ? "new connections use the files as they are now"
                              : "the earlier ones stay in use: " + made.error().message}});
}

void server::state::await_reload() {
  reload_signal->async_wait([this](std::error_code error, int) {
    if (error) return;
    reload();
    await_reload();
  });
}

void server::state::add(asio::io_context& context, std::unique_ptr<transport> wire) {
  std::shared_ptr<session> made;
  {
    const std::lock_guard hold(sessions_lock);
    // Connections that have not sent a handshake must not take all slots.
    const auto max_in_handshake = static_cast<std::int64_t>(std::max<std::uint64_t>(64, config.max_connections / 4));
    if (sessions.size() < config.max_connections && counters.in_handshake < max_in_handshake) {
      made = std::make_shared<session>(context, std::move(wire), *parts);
      sessions[made.get()] = made;
    }
  }
  if (!made) {
    ++counters.refused;
    log.write(event_log::level::warn, "refused", {{"why", "max_connections are open, or many that have not greeted"}});
    return;
  }
  ++counters.accepted;
  asio::post(context, [made] { made->start(); });
}

std::vector<std::shared_ptr<session>> server::state::live_sessions() {
  std::vector<std::shared_ptr<session>> out;
  const std::lock_guard hold(sessions_lock);
  for (const auto& [id, one] : sessions)
    if (auto alive = one.lock()) out.push_back(std::move(alive));
  return out;
}

void server::state::begin_stop() {
  if (stopping) return;
  stopping = true;
  std::error_code ignored;
  if (local) local->close();
  if (remote) remote->close(ignored);
  if (prometheus) prometheus->close(ignored);
  if (signals) signals->cancel(ignored);
  if (reload_signal) reload_signal->cancel(ignored);
  const auto open_now = live_sessions();
  log.write(event_log::level::info, "draining", {{"connections", std::to_string(open_now.size())}});
  for (const auto& one : open_now) one->drain();
  drain_timer->expires_after(std::chrono::seconds(config.drain_timeout_s));
  drain_timer->async_wait([this](std::error_code cancelled) {
    if (cancelled) return;
    log.write(event_log::level::warn, "drain_timeout", {{"connections", std::to_string(live_sessions().size())}});
    for (auto& one : loops) one->context.stop();
  });
  end_when_empty();
}

void server::state::end_when_empty() {
  if (!stopping || !live_sessions().empty()) return;
  drain_timer->cancel();
  for (auto& one : loops) one->context.stop();
}

server::server(std::unique_ptr<state> made) : state_(std::move(made)) {}

result<std::unique_ptr<server>> server::open(server_config config) {
  publish_live_counters();
  if (auto fine = check(config); !fine) return fine.error();
  if (auto ours = check_data_folder(config.data); !ours) return ours.error();
  if (auto room = check_address_space(config); !room) return room.error();
  auto log = event_log::open(config.log, level_of(config.log_level));
  if (!log) return log.error();
  std::unique_ptr<state> made;
  try {
    made = std::make_unique<state>(std::move(config), *std::move(log));
  } catch (const std::system_error&) { return no_thread("makes calls that wait for a disk"); }
  made->descriptor_limit = raise_descriptor_limit();
  if (auto opened = made->open(); !opened) return opened.error();
  return std::unique_ptr<server>(new server(std::move(made)));
}

status server::run() {
  auto& all = *state_;
  all.has_run = true;
  all.log.write(
      event_log::level::info, "serving",
      {{"data", all.config.data}, {"socket", all.socket_path}, {"tcp", tcp_endpoint()}, {"metrics", metrics_endpoint()}});
  const std::uint64_t spin_ns = all.config.spin_us * 1000;
  try {
    for (std::size_t i = 1; i < all.loops.size(); ++i)
      all.loops[i]->thread = start_thread([&all, i, spin_ns] { all.serve(i, spin_ns); });
  } catch (const std::exception& reason) { all.give_up(reason); }
  all.serve(0, spin_ns);
  for (auto& one : all.loops)
    if (one->thread.joinable()) one->thread.join();
  all.halted = true;
  all.blocking.join();
  for (auto& one : all.loops) one->transfers.stop();      // channels release the memory first
  all.sums->end();                                        // its threads commit values that arrived whole
  for (const auto& one : all.parts->commits) one->end();  // or these threads do
  all.stream_end.reset();                                 // and so does UCX
  all.cluster.reset();                                    // other servers take over at once
  if (all.local) all.local->remove();
  const auto closed = all.engine->close();
  all.log.write(closed ? event_log::level::info : event_log::level::error, "stopped",
                {{"engine", closed ? "closed" : closed.error().message}});
  return all.failed ? status(*all.failed) : closed;
}

// If memory runs out during a request, acknowledged values are safe, and the store stops as on SIGTERM, but without
// draining.
void server::state::serve(std::size_t index, std::uint64_t spin_ns) {
  try {
    loops[index]->serve(spin_ns);
  } catch (const std::exception& reason) { give_up(reason); }
}

void server::state::give_up(const std::exception& reason) {
  log.write(event_log::level::error, "failed", {{"why", reason.what()}});
  const std::lock_guard hold(sessions_lock);
  if (!failed)
    failed = failure{
        ENOMEM, format("the store stops: %s (a limit of memory or processes, by ulimit or a container?)", reason.what())};
  for (auto& one : loops) one->context.stop();
}

void server::stop() {
  asio::post(state_->home(), [this] { state_->begin_stop(); });
}

void server::stop_on_signals() {
  state_->signals = std::make_unique<asio::signal_set>(state_->home(), SIGTERM, SIGINT);
  state_->signals->async_wait([this](std::error_code error, int) {
    if (!error) state_->begin_stop();
  });
  state_->reload_signal = std::make_unique<asio::signal_set>(state_->home(), SIGHUP);
  state_->await_reload();
}

void server::reload() {
  asio::post(state_->home(), [this] { state_->reload(); });
}

server::~server() {
  if (!state_->has_run) {
    if (state_->local) state_->local->remove();
    state_->halted = true;
    state_->blocking.join();
  }
  state_->stream_end.reset();
  state_->cluster.reset();
  state_->engine->close().ok();
  state_->orphans->clear();
  // Handlers that never ran hold sessions, and sessions hold grants of the engine, so they are destroyed before the
  // engine.
  for (auto& one : state_->loops) one->context.stop();
  state_->local.reset();
  state_->remote.reset();
  state_->prometheus.reset();
  state_->signals.reset();
  state_->reload_signal.reset();
  state_->drain_timer.reset();
  state_->loops.clear();
}

const std::string& server::socket_path() const noexcept { return state_->socket_path; }

std::string server::tcp_endpoint() const {
  std::error_code ignored;
  return state_->remote ? text_of(state_->remote->local_endpoint(ignored)) : std::string();
}

std::string server::metrics_endpoint() const {
  std::error_code ignored;
  return state_->prometheus ? text_of(state_->prometheus->local_endpoint(ignored)) : std::string();
}

store::engine& server::engine() noexcept { return *state_->engine; }

}  // namespace pl::store_server
