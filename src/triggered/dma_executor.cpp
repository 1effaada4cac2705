// SPDX-License-Identifier: Apache-2.0
#include "triggered/dma_executor.hpp"

#include <cerrno>
#include <cstddef>
#include <deque>
#include <utility>
#include <vector>

#include "base/text.hpp"
#include "cuda/pointer.hpp"
#include "triggered/put_room.hpp"

namespace pl::triggered {
namespace {

constexpr std::uint32_t kRingSegments = 4096;

class dma_executor final : public executor {
 public:
  dma_executor(const copy::gpu_context& context, std::shared_ptr<dma_domain> domain, std::shared_ptr<channel_core> core,
               const fd_memory_server::name& owner, dma_domain::window their_words, std::chrono::milliseconds limit)
      : context_(context),
        domain_(std::move(domain)),
        core_(std::move(core)),
        owner_(owner),
        theirs_(their_words.address),
        place_of_theirs_(their_words.place),
        limit_(limit) {}

  executor_kind kind() const noexcept override { return executor_kind::dma; }
  bool can_be_captured() const noexcept override { return true; }

  status put(cu::stream_t stream, const put_request& request) override {
    dma_domain::window destination{0, place_of_theirs_};
    if (request.bytes != 0) {
      auto found = domain_->find_window(owner_, request.window->id, limit_);
      if (!found) return found.error();
      destination = {found->address + request.offset, found->place};
    }
    auto sources = find_sources(request);
    if (!sources) return sources.error();
    if (auto done = request.is_counted ? queue_counted(stream, request, destination, *sources)
                                       : queue_put(stream, request, destination, *sources);
        !done)
      return done;
    keep(request, std::move(*sources));
    return {};
  }

  status acknowledge(cu::stream_t stream, std::uint64_t sequence) override {
    if (auto done = launch(stream, of_words(), theirs_ + offsetof(gpu_words, ack), sequence); !done) return done;
    // Tells a closing channel that its streams write nothing more.
    return mem_ops(*context_.cuda, stream).write64(host_word(offsetof(host_words, consumed)), sequence).submit();
  }

  status acknowledge_slot(cu::stream_t stream, int slot) override {
    // Before the peer may set it again.
    mem_ops ops(*context_.cuda, stream);
    if (auto done = ops.write64(ours() + slot_offset(offsetof(gpu_words, graph_flag), slot), 0).submit(); !done) return done;
    return launch(stream, of_words(), theirs_ + slot_offset(offsetof(gpu_words, graph_ack), slot), 1);
  }

  status acknowledge_counted(cu::stream_t stream) override {
    return launch_counted(stream, of_words(), offsetof(gpu_words, graph_releases),
                          theirs_ + offsetof(gpu_words, graph_released), 0);
  }

  std::string report() const override {
    const auto reason = domain_->why_ended();
    return "  a copy engine moves the bytes" + (reason.empty() ? "" : "; its ring has ended: " + reason) + "\n  " +
           domain_->activity() + "\n";
  }

 private:
  struct transfer {
    dma_domain::window destination;
    std::uint64_t source = 0, bytes = 0;
  };
  using source_list = std::vector<copy::channel_memory::piece>;

  cu::device_ptr ours() const noexcept { return core_->words->gpu(core_->index); }
  cu::device_ptr host_word(std::size_t offset) const noexcept { return core_->words->host_on_gpu(core_->index) + offset; }

  // A transfer of no bytes, whose word is one of the peer's.
  transfer of_words() const noexcept { return {{0, place_of_theirs_}, 0, 0}; }

  // The memory may lie in several objects of the driver.
  result<source_list> find_sources(const put_request& request) {
    source_list out;
    for (std::uint64_t done = 0; done < request.bytes; done += out.back().size_bytes) {
      auto piece = domain_->find_source(request.source + done, request.bytes - done);
      if (!piece) return piece.error();
      out.push_back(std::move(*piece));
    }
    return out;
  }

  status queue_put(cu::stream_t stream, const put_request& request, const dma_domain::window& destination,
                   const source_list& sources) {
    const bool is_captured = request.slot >= 0;
    mem_ops ops(*context_.cuda, stream);
    wait_for_room(ops, request, ours(), host_word(0));
    if (auto done = ops.submit(); !done) return done;
    transfer part{destination, 0, 0};
    for (std::size_t i = 0; i + 1 < sources.size(); ++i, part.destination.address += part.bytes) {
      part.source = sources[i].address;
      part.bytes = sources[i].size_bytes;
      if (auto done = launch(stream, part, 0, 0); !done) return done;
    }
    part.source = sources.empty() ? 0 : sources.back().address;
    part.bytes = sources.empty() ? 0 : sources.back().size_bytes;
    const auto flag = is_captured ? slot_offset(offsetof(gpu_words, graph_flag), request.slot) : offsetof(gpu_words, signal);
    if (auto done = launch(stream, part, theirs_ + flag, is_captured ? 1 : request.sequence); !done) return done;
    if (!is_captured) ops.write64(host_word(offsetof(host_words, sent)), request.sequence);
    return ops.submit();
  }

  // All but the last piece wait for nothing and count nothing; the first one waits for the release.
  status queue_counted(cu::stream_t stream, const put_request& request, const dma_domain::window& destination,
                       const source_list& sources) {
    constexpr auto kCounter = offsetof(gpu_words, graph_puts);
    transfer part{destination, 0, 0};
    std::uint64_t depth = request.depth;
    for (std::size_t i = 0; i + 1 < sources.size(); ++i, part.destination.address += part.bytes, depth = 0) {
      part.source = sources[i].address;
      part.bytes = sources[i].size_bytes;
      if (auto done = launch_counted(stream, part, kCounter, 0, depth); !done) return done;
    }
    part.source = sources.empty() ? 0 : sources.back().address;
    part.bytes = sources.empty() ? 0 : sources.back().size_bytes;
    return launch_counted(stream, part, kCounter, theirs_ + offsetof(gpu_words, graph_signal), depth);
  }

  // `counter` in our words; `flag` as launch() has it.
  status launch_counted(cu::stream_t stream, transfer part, std::size_t counter, std::uint64_t flag, std::uint64_t depth) {
    auto ring = domain_->ring();
    std::uint64_t counter_at = ours() + counter, released = ours() + offsetof(gpu_words, graph_released),
                  reached = host_word(offsetof(host_words, graph_put_reached)),
                  error = host_word(offsetof(host_words, executor_error));
    void* parameters[] = {&ring,
                          &part.destination.address,
                          &part.destination.place,
                          &part.source,
                          &part.bytes,
                          &counter_at,
                          &flag,
                          &released,
                          &depth,
                          &reached,
                          &error};
    const auto rc =
        context_.cuda->cuLaunchKernel(domain_->counted_kernel(), 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
    if (rc != cu::error_code::success)
      return cu::make_error(*context_.cuda, rc, "launch of the kernel that posts and counts puts");
    return {};
  }

  // Their memory stays bound until the stream has come past the put; in a graph, until the channel ends.
  void keep(const put_request& request, source_list sources) {
    while (!queued_.empty() && queued_.front().first <= core_->sent()) queued_.pop_front();
    for (auto& one : sources)
      if (request.slot >= 0 || request.is_counted) captured_.insert_or_assign(one.address, std::move(one));
      else queued_.emplace_back(request.sequence, std::move(one));
  }

  // `flag`: the copy engine's address of the peer's word; 0: none.
  status launch(cu::stream_t stream, transfer part, std::uint64_t flag, std::uint64_t value) {
    auto ring = domain_->ring();
    auto error = host_word(offsetof(host_words, executor_error));
    void* parameters[] = {
        &ring, &part.destination.address, &part.destination.place, &part.source, &part.bytes, &flag, &value, &error};
    const auto rc = context_.cuda->cuLaunchKernel(domain_->kernel(), 1, 1, 1, 1, 1, 1, 0, stream, parameters, nullptr);
    if (rc != cu::error_code::success) return cu::make_error(*context_.cuda, rc, "launch of the kernel that posts puts");
    return {};
  }

  const copy::gpu_context context_;
  const std::shared_ptr<dma_domain> domain_;
  const std::shared_ptr<channel_core> core_;
  const fd_memory_server::name owner_;
  const std::uint64_t theirs_;  // the copy engine's address of the peer's words
  const std::uint32_t place_of_theirs_;
  const std::chrono::milliseconds limit_;
  std::deque<std::pair<std::uint64_t, copy::channel_memory::piece>> queued_;  // by sequence
  std::map<std::uint64_t, copy::channel_memory::piece> captured_;             // by address
};

}  // namespace

// ---- What channels share

result<std::shared_ptr<dma_domain>> dma_domain::open(const copy::gpu_context& context, const dma_kernels& kernels,
                                                     own_memory find) {
  if (kernels.put == nullptr)
    return failure{ENOTSUP, "this build has no kernels, and a kernel posts the puts of the dma executor"};
  device::session_options wanted;
  wanted.device_ordinal = context.device_ordinal;
  wanted.backend = device::ring_backend::channels;
  wanted.ring.segments = kRingSegments;
  auto opened = device::session::open(*context.cuda, wanted);
  if (!opened) return opened.error();
  std::shared_ptr<dma_domain> made(new dma_domain(context, kernels, std::move(*opened)));
  const auto& source = made->session_->source();
  made->sources_ = std::make_unique<copy::channel_memory>(*context.cuda, source.space, source.addresses);
  auto handover =
      fd_memory_server::open([self = made.get(), lookup = std::move(find)](std::uint32_t number) -> result<fd_memory> {
        auto range = lookup(number);
        if (!range) return range.error();
        auto shared = self->session_->share(*range);
        if (!shared) return shared.error();
        return fd_memory{std::move(shared->region), shared->offset, range->size_bytes};
      });
  if (!handover) return handover.error();
  made->memory_server_ = std::move(*handover);
  return made;
}

std::string dma_domain::why_ended() const {
  const auto now = session_->ring(0).read();
  return now.reason ? now.reason->message : std::string();
}

std::string dma_domain::activity() const {
  const auto now = session_->counts();
  return format("its ring is on engine %u; the thread that refills it: %llu rounds, %llu by interrupts%s",
                session_->engine(), static_cast<unsigned long long>(now.rounds),
                static_cast<unsigned long long>(now.interrupts),
                now.sleeps_by_descriptor ? "" : ", of which there are none");
}

result<dma_domain::window> dma_domain::find_window(const fd_memory_server::name& owner, std::uint32_t id,
                                                   std::chrono::milliseconds limit) {
  const std::lock_guard lock(mutex_);
  const std::pair key{owner.place, id};
  if (const auto found = windows_.find(key); found != windows_.end()) return found->second;
  auto memory = fd_memory_server::fetch(owner, id, limit);
  if (!memory) return memory.error();
  auto made = session_->add_shared(memory->region);
  if (!made) return failure{made.code() == ENODEV || made.code() == EXDEV ? ENOTSUP : made.code(), made.error().message};
  return windows_.emplace(key, window{made->dma + memory->offset, made->is_outside}).first->second;
}

result<copy::channel_memory::piece> dma_domain::find_source(cu::device_ptr source, std::uint64_t bytes) {
  const cu::relaxed_capture binding_may_allocate(*context_.cuda);
  const auto info = cu::inspect_pointer(*context_.cuda, source);
  if (!info) return info.error();
  return sources_->find_device(*info, source, bytes);
}

result<std::unique_ptr<executor>> make_dma_executor(const copy::gpu_context& context, std::shared_ptr<dma_domain> domain,
                                                    const std::shared_ptr<channel_core>& core, const dma_offer& theirs,
                                                    std::chrono::milliseconds limit) {
  auto words = domain->find_window(theirs.owner, dma_domain::kWords, limit);
  if (!words) return words.error();
  words->address += std::uint64_t{theirs.word_index} * sizeof(gpu_words);
  core->explain_error = [domain] { return domain->why_ended(); };
  return std::unique_ptr<executor>(new dma_executor(context, std::move(domain), core, theirs.owner, *words, limit));
}

}  // namespace pl::triggered
