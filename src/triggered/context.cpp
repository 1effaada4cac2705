// SPDX-License-Identifier: Apache-2.0
#include "triggered/context.hpp"

#include <algorithm>
#include <cstring>
#include <span>
#include <utility>

#include "base/env.hpp"
#include "base/log.hpp"
#include "copy/worker_pool.hpp"
#include "cuda/kernel_image.hpp"
#include "os/fork_guard.hpp"
#include "stream_put_image.hpp"
#include "triggered/context_parts.hpp"

namespace pl::triggered {
namespace {

constexpr std::chrono::seconds kCloseLimit{1};

result<copy::gpu_context> find_gpu(const cu::driver_table& cuda, int wanted) {
  cu::context_t current = nullptr;
  static_cast<void>(cuda.cuCtxGetCurrent(&current));
  int ordinal = -1;
  if (current != nullptr && cuda.cuCtxGetDevice(&ordinal) != cu::error_code::success) ordinal = -1;
  if (wanted < 0 && ordinal < 0)
    return failure{EINVAL, "no CUDA context is current and no device is named: set context_options.device_ordinal"};
  if (wanted < 0 || wanted == ordinal) return copy::find_context(cuda, ordinal, current);
  return copy::find_context(cuda, wanted, nullptr);
}

flag_writer fixed_writer(writer_choice choice) {
  return static_cast<flag_writer>(static_cast<unsigned>(choice) - static_cast<unsigned>(writer_choice::direct));
}

writer_choice writer_of(const std::string& name) {
  for (const auto each : {writer_choice::direct, writer_choice::copied, writer_choice::kernel})
    if (name == name_of(fixed_writer(each))) return each;
  return writer_choice::automatic;
}

// All CPUs near the GPU and not one of them: the proxy threads of several processes would take turns on it (two H200 of
// one socket: 57 us a round trip, each thread half of a core).
std::vector<int> service_cpus(const copy::gpu_context& gpu, int wanted) {
  if (wanted >= 0) return {wanted};
  char bus[32] = {};
  if (gpu.cuda->cuDeviceGetPCIBusId(bus, sizeof bus, gpu.device_ordinal) != cu::error_code::success) return {};
  return copy::cpus_near(bus);
}

}  // namespace

result<std::unique_ptr<context>> context::open(const cu::driver_table& cuda, messaging::bootstrap& bootstrap,
                                               const context_options& wanted) {
  if (auto s = cu::check_launches_return("a queued wait would never return"); !s) return s.error();
  auto gpu = find_gpu(cuda, wanted.device_ordinal);
  if (!gpu) return gpu.error();
  auto made = std::make_unique<parts>();
  made->gpu = *gpu;
  made->options = wanted;
  if (wanted.writer == writer_choice::automatic) made->options.writer = writer_of(env_read("PEERLANE_STREAM_WRITER").text);
  if (cuda.cuStreamBatchMemOp_v2 == nullptr)
    return failure{ENOTSUP, "this driver has no stream memory operations: 11.7 or newer is needed"};
  auto words = word_pool::make(*gpu, wanted.channels);
  if (!words) return words.error();
  made->words = std::move(words).value();
  made->importer = std::make_unique<memory_importer>(*gpu);
  if (auto done = made->load_kernel(); !done) return done.error();
  auto messages = messaging::messenger::open(nullptr, bootstrap, wanted.messages);
  if (!messages) return messages.error();
  made->messages = std::move(messages).value();
  if (auto done = made->find_sharer(bootstrap); !done) return done.error();
  made->receive_windows = std::make_unique<receive_slots>(*gpu);
  made->slots = std::make_unique<staging_pool>(*gpu);
  made->proxy = std::make_unique<proxy_thread>(*made->messages, wanted.mode, wanted.wait_timeout);
  if (auto started = made->proxy->start(service_cpus(*gpu, wanted.service_cpu)); !started) return started.error();
  made->shm_queues = std::make_unique<shm_queue_pool>(*gpu);
  made->wakeup = std::make_unique<event_wakeup>(*gpu);
  return std::unique_ptr<context>(new context(std::move(made)));
}

context::context(std::unique_ptr<parts> made) : parts_(std::move(made)) {}
context::~context() {
  // A copy in a forked child has no threads, and its resources belong to the parent.
  if (process_epoch() != parts_->epoch) static_cast<void>(parts_.release());
}

status context::check_process() const {
  if (process_epoch() == parts_->epoch) return {};
  return failure{EACCES, "the context was inherited by fork(): it belongs to the parent"};
}

context::parts::~parts() {
  if (proxy != nullptr) static_cast<void>(proxy->flush(kCloseLimit));
  wakeup.reset();
  proxy.reset();
  hellos.clear();
  messages.reset();
  slots.reset();
  shm_queues.reset();
  receive_windows.reset();
  importer.reset();
  dma.reset();
  words.reset();
  if (!gpu.is_alive()) return;
  auto use = copy::context_use::enter(gpu);
  if (!use) return;
  if (module != nullptr) static_cast<void>(gpu.cuda->cuModuleUnload(module));
  for (const auto memory : retired) static_cast<void>(gpu.cuda->cuMemFree_v2(memory));
}

// Loaded now: at the first launch the driver might wait for the device, and with it for a stream that waits for us.
status context::parts::load_kernel() {
  auto use = copy::context_use::enter(gpu);
  if (!use) return use.error();
  auto loaded = cu::load_kernels(*gpu.cuda, kernels::stream_put());
  if (!loaded) {
    methods.kernel_limit = 0;  // built without nvcc: the copy engine does it all
    return loaded.code() == ENOTSUP ? status{} : status{loaded.error()};
  }
  module = *loaded;
  const struct {
    cu::function_t* function;
    const char* name;
  } wanted[] = {{&methods.kernel, "stream_put"},
                {&methods.spread_put, "stream_put_spread"},
                {&methods.wait_kernel, "stream_wait"},
                {&methods.counted_put, "stream_put_counted"},
                {&methods.counted_wait, "stream_wait_counted"},
                {&post_kernels.put, "stream_dma_put"},
                {&post_kernels.counted_put, "stream_dma_put_counted"}};
  for (const auto& one : wanted) {
    const auto found = cu::find_kernel(*gpu.cuda, module, one.name);
    if (!found) return found.error();
    *one.function = *found;
  }
  return {};
}

status context::parts::find_sharer(messaging::bootstrap& bootstrap) {
  cu::uuid_t mine{};
  if (const auto rc = gpu.cuda->cuDeviceGetUuid_v2(&mine, gpu.device_ordinal); rc != cu::error_code::success)
    return cu::make_error(*gpu.cuda, rc, "cuDeviceGetUuid");
  const auto all = bootstrap.all_gather(std::as_bytes(std::span(&mine, 1)));
  if (!all) return all.error();
  for (std::size_t rank = 0; rank < all->size(); ++rank)
    if (static_cast<int>(rank) != bootstrap.rank() && (*all)[rank].size() == sizeof mine &&
        std::memcmp((*all)[rank].data(), &mine, sizeof mine) == 0)
      shares_gpu_with = static_cast<int>(rank);
  return {};
}

std::string context::parts::why_no_wait_kernel() const {
  if (shares_gpu_with >= 0) return "rank " + std::to_string(shares_gpu_with) + " uses this GPU too";
  if (methods.wait_kernel == nullptr) return "this build has no kernels";
  // A completed wait could not be told from a stuck one.
  return words->is_mapped() ? "" : "the CPU cannot read the channel's words";
}

result<flag_writer> context::parts::writer_to(const memory_key& key, cu::device_ptr theirs, unsigned index) {
  if (options.writer != writer_choice::automatic) return fixed_writer(options.writer);
  const std::string device(reinterpret_cast<const char*>(key.device.bytes), sizeof key.device.bytes);
  {
    const std::lock_guard lock(mutex);
    if (const auto known = writers.find(device); known != writers.end()) return known->second;
  }
  const auto found = choose_writer(gpu, methods, theirs, *words, index);
  if (!found) return found.error();
  if (!found->reason.empty())
    PL_LOG(warn, "stream: flags are written %s, not %s", name_of(found->writer), found->reason.c_str());
  const std::lock_guard lock(mutex);
  writers.emplace(device, found->writer);
  return found->writer;
}

result<std::shared_ptr<dma_domain>> context::parts::open_dma() {
  const std::lock_guard lock(mutex);
  if (dma != nullptr) return dma;
  auto made = dma_domain::open(gpu, post_kernels, [this](std::uint32_t window) -> result<address_range> {
    if (window == dma_domain::kWords) return address_range{words->allocation(), words->size_bytes()};
    const std::lock_guard hold(mutex);
    for (const auto& one : windows)
      if (one.id == window) return address_range{one.memory.address, one.memory.bytes};
    return failure{EINVAL, "window " + std::to_string(window) + " is no longer exposed"};
  });
  if (!made) return made.error();
  return dma = std::move(*made);
}

void context::parts::close(channel& end) {
  const auto core = end.core_;
  {
    const std::lock_guard lock(mutex);
    channels.erase(&end);
  }
  proxy->close(core, [this, core] {
    const std::lock_guard lock(mutex);
    words->give_back(core->index);
  });
}

int context::rank() const noexcept { return parts_->messages->rank(); }
int context::size() const noexcept { return parts_->messages->size(); }

capabilities context::query() const {
  capabilities out;
  out.device_ordinal = parts_->gpu.device_ordinal;
  out.has_cpu_mapping = parts_->words->is_mapped();
  out.why_no_mapping = parts_->words->why_unmapped();
  out.can_release = parts_->words->can_release();
  {
    const std::lock_guard lock(parts_->mutex);
    for (const auto& [device, writer] : parts_->writers) out.writer = std::max(out.writer, writer);
  }
  if (parts_->options.writer != writer_choice::automatic) out.writer = fixed_writer(parts_->options.writer);
  out.kernel_limit = parts_->methods.kernel_limit;
  out.shares_gpu_with = parts_->shares_gpu_with;
  return out;
}

// ---- Windows

result<window_key> context::expose(cu::device_ptr memory, std::size_t bytes) {
  if (auto ours = check_process(); !ours) return ours.error();
  auto key = export_memory(parts_->gpu, memory, bytes);
  if (!key) return key.error();
  window_key out{*key, 0, rank()};
  {
    const std::lock_guard lock(parts_->mutex);
    out.id = parts_->next_window++;
    parts_->windows.push_back(out);
  }
  parts_->receive_windows->add(out.id, memory, bytes);
  return out;
}

void context::withdraw(const window_key& key) {
  if (!check_process()) return;
  parts_->receive_windows->remove(key.id);
  const std::lock_guard lock(parts_->mutex);
  std::erase_if(parts_->windows, [&](const window_key& w) { return w.id == key.id; });
}

result<remote_window> context::import(const window_key& key) {
  if (auto ours = check_process(); !ours) return ours.error();
  if (key.rank < 0 || key.rank >= size()) return failure{EINVAL, "not a window's key: its rank is not in this job"};
  remote_window out{key.id, key.rank, key.memory.bytes, 0};
  auto opened = parts_->importer->open(key.memory);
  if (opened) out.address = *opened;
  else if (opened.code() != ENOTSUP) return opened.error();
  return out;
}

const copy::gpu_context& context::gpu() const noexcept { return parts_->gpu; }
std::chrono::nanoseconds context::wait_timeout() const noexcept { return parts_->options.wait_timeout; }
memory_importer& context::importer() noexcept { return *parts_->importer; }
status context::peer_state(int peer) const { return parts_->messages->peer_state(peer); }

void context::retire(cu::device_ptr memory) {
  const std::lock_guard lock(parts_->mutex);
  parts_->retired.push_back(memory);
}

// ---- Channels

result<std::unique_ptr<channel>> context::connect(int peer, std::uint32_t id, const channel_options& wanted) {
  if (auto ours = check_process(); !ours) return ours.error();
  if (peer < 0 || peer >= size() || peer == rank())
    return failure{EINVAL, "rank " + std::to_string(peer) + " is not another rank of this job of " + std::to_string(size())};
  if (wanted.executor > executor_kind::dma)
    return failure{ENOTSUP, "channels do not connect adapters: make_mlx5_executor is for whoever has one"};
  if (wanted.most_queued == 0 || wanted.most_queued > channel_core::kMaxQueued)
    return failure{EINVAL, "most_queued is 1 to " + std::to_string(channel_core::kMaxQueued)};
  auto& own = *parts_;
  auto greeting = std::make_unique<std::pair<hello, messaging::request>>();
  std::shared_ptr<channel_core> core;
  {
    const std::lock_guard lock(own.mutex);
    auto index = own.words->take();
    if (!index) return index.error();
    auto key = export_memory(own.gpu, own.words->gpu(*index), sizeof(gpu_words));
    if (!key) {
      own.words->give_back(*index);
      return key.error();
    }
    greeting->first.words = *key;
    core = std::make_shared<channel_core>(*own.words, *index, peer, id, wanted);
    core->incarnation = own.connects[{peer, id}]++;
  }
  greeting->first.wanted = wanted.executor;
  greeting->first.has_kernels = own.methods.kernel != nullptr ? 1 : 0;
  greeting->first.waits_by_kernel = wanted.wait == wait_method::kernel && own.may_wait_by_kernel() ? 1 : 0;
  greeting->first.depth = wanted.depth;
  greeting->second = own.messages->isend(peer, messaging::host_buffer(&greeting->first, sizeof(hello)),
                                         tag_of(message_kind::hello, id, core->incarnation));
  std::unique_ptr<channel> out(new channel(*this, core));
  const std::lock_guard lock(own.mutex);
  own.hellos.push_back(std::move(greeting));
  own.channels.insert(out.get());
  own.proxy->add(core);
  return out;
}

void context::set_mode(run_mode mode) {
  if (check_process()) parts_->proxy->set_mode(mode);
}

std::string context::diag() const {
  if (auto ours = check_process(); !ours) return ours.error().message + "\n";
  std::string out = "rank " + std::to_string(rank()) + " of " + std::to_string(size()) + ", GPU " +
                    std::to_string(parts_->gpu.device_ordinal) + "\n" + parts_->proxy->report();
  const std::lock_guard lock(parts_->mutex);
  for (const auto* each : parts_->channels) out += each->diag();
  return out;
}

}  // namespace pl::triggered
