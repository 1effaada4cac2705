// SPDX-License-Identifier: Apache-2.0
#include "collectives/stream_collectives.hpp"

#include <algorithm>
#include <atomic>
#include <bit>
#include <cstring>
#include <span>
#include <string>
#include <utility>

#include "base/checked_math.hpp"
#include "base/text.hpp"
#include "collectives/overlap.hpp"
#include "cuda/kernel_image.hpp"
#include "cuda/pointer.hpp"
#include "stream_collective_image.hpp"

namespace pl::collectives {
namespace {

constexpr std::uint64_t kVectorBytes = 16;
constexpr std::uint64_t kChunkGranule = 128;  // whole lines, so that two blocks never share one

constexpr std::uint64_t divide_up(std::uint64_t value, std::uint64_t divisor) noexcept {
  return (value + divisor - 1) / divisor;
}
constexpr std::uint64_t round_up(std::uint64_t value, std::uint64_t unit) noexcept { return divide_up(value, unit) * unit; }

// The bytes of one block of each rank.
result<std::size_t> whole_of(std::size_t block, int ranks) {
  const auto bytes = checked_mul(block, static_cast<std::uint64_t>(ranks));
  if (!bytes) return failure{EINVAL, "the blocks are more than any memory has"};
  return *bytes;
}

// What each rank tells the others at the opening. Plain bytes; a rank that failed says so.
template <class Value>
struct contribution {
  std::int32_t code = 0;
  char reason[236] = {};
  Value value{};
};

// Everyone's value, or the first failure of any of them, at every rank.
template <class Value>
result<std::vector<Value>> agree(messaging::bootstrap& group, const status& mine, const Value& value) {
  contribution<Value> own;
  own.value = value;
  if (!mine) {
    own.code = mine.code();
    std::strncpy(own.reason, mine.error().message.c_str(), sizeof own.reason - 1);
  }
  const auto all = group.all_gather(std::as_bytes(std::span(&own, 1)));
  if (!mine) return mine.error();
  if (!all) return all.error();
  std::vector<Value> out;
  for (std::size_t rank = 0; rank < all->size(); ++rank) {
    contribution<Value> theirs;
    if ((*all)[rank].size() != sizeof theirs)
      return failure{EPROTO, format("rank %zu runs another version of Peerlane", rank)};
    std::memcpy(&theirs, (*all)[rank].data(), sizeof theirs);
    if (theirs.code != 0) return failure{theirs.code, format("rank %zu: %s", rank, theirs.reason)};
    out.push_back(theirs.value);
  }
  return out;
}

}  // namespace

// The options that all ranks use.
struct stream_collectives::shape {
  std::uint64_t blocks = 0, threads = 0, slot_bytes = 0, depth = 0, small_bytes = 0, timeout_ns = 0;

  // A few blocks fill a link; more would take multiprocessors from whatever runs beside it. The simulated GPU's threads are
  // the CPU's.
  static shape choose(const stream_collectives_options& wanted, const copy::gpu_context& gpu,
                      std::uint64_t default_timeout_ns, int ranks) {
    const bool is_simulated = gpu.cuda->is_simulated;
    int processors = 0;
    static_cast<void>(
        gpu.cuda->cuDeviceGetAttribute(&processors, cu::device_attribute::multiprocessor_count, gpu.device_ordinal));
    const auto or_default = [](std::uint64_t given, std::uint64_t otherwise) { return given != 0 ? given : otherwise; };
    shape out;
    out.blocks = std::min<std::uint64_t>(or_default(wanted.blocks, is_simulated ? 4 : 64), kMaxStreamBlocks);
    if (processors > 0) out.blocks = std::min<std::uint64_t>(out.blocks, static_cast<unsigned>(processors));
    out.threads = std::min<std::uint64_t>(or_default(wanted.threads, is_simulated ? 16 : 512), kMaxStreamThreads);
    // Threads of their own wait for each peer.
    out.threads = std::max<std::uint64_t>(out.threads, kMaxStreamRanks);
    out.slot_bytes = round_up(or_default(wanted.slot_bytes, 128 << 10), kChunkGranule);
    out.depth = std::bit_floor(std::max<std::uint64_t>(or_default(wanted.depth, 2), 2));
    out.small_bytes =
        or_default(wanted.small_bytes, (std::uint64_t{512} << 10) / static_cast<unsigned>(std::max(ranks - 1, 1)));
    out.timeout_ns = wanted.timeout_ns >= 0 ? static_cast<std::uint64_t>(wanted.timeout_ns) : default_timeout_ns;
    return out;
  }
  void limit_to(const shape& other) {
    for (const auto member : {&shape::blocks, &shape::threads, &shape::slot_bytes, &shape::depth, &shape::small_bytes})
      this->*member = std::min(this->*member, other.*member);
  }
};

stream_collectives::stream_collectives(triggered::context& context, messaging::bootstrap& group)
    : context_(context), group_(group), gpu_(context.gpu()), rank_(context.rank()), size_(context.size()) {}

result<std::unique_ptr<stream_collectives>> stream_collectives::open(triggered::context& context,
                                                                     messaging::bootstrap& group,
                                                                     const result<stream_collectives_options>& given) {
  const auto wanted = given ? *given : stream_collectives_options{};
  std::unique_ptr<stream_collectives> out(new stream_collectives(context, group));
  const auto timeout_ns = static_cast<std::uint64_t>(std::max<std::int64_t>(context.wait_timeout().count(), 0));
  auto own = shape::choose(wanted, out->gpu_, timeout_ns, out->size_);
  const auto shapes = agree(group, given ? out->load_kernels() : status{given.error()}, own);
  if (!shapes) return shapes.error();
  for (const auto& each : *shapes) own.limit_to(each);
  const auto made = out->make_region(own);
  auto keys = agree(group, made, out->key_);
  if (!keys) return keys.error();
  out->keys_ = *std::move(keys);
  const auto reached = agree(group, out->reach_peers(), 0);
  if (!reached) return reached.error();
  return out;
}

stream_collectives::~stream_collectives() {
  // Kernels that still wait for other ranks give up: unloading the module and freeing the word would wait for them.
  if (stop_.data() != nullptr) cancel(ECANCELED);
  if (region_ != 0) context_.retire(region_);
  if (module_ == nullptr || !gpu_.is_alive()) return;
  if (auto use = copy::context_use::enter(gpu_)) static_cast<void>(gpu_.cuda->cuModuleUnload(module_));
}

status stream_collectives::load_kernels() {
  if (size_ > static_cast<int>(kMaxStreamRanks))
    return failure{ENOTSUP, format("%d ranks: collectives on streams are for at most %u", size_, kMaxStreamRanks)};
  auto use = copy::context_use::enter(gpu_);
  if (!use) return use.error();
  auto loaded = cu::load_kernels(*gpu_.cuda, kernels::stream_collective());
  if (!loaded) return loaded.error();
  module_ = *loaded;
  const auto find = [&](cu::function_t& function, const std::string& name) -> status {
    const auto found = cu::find_kernel(*gpu_.cuda, module_, name.c_str());
    if (!found) return found.error();
    function = *found;
    return {};
  };
  if (auto done = find(move_small_, "stream_move_small"); !done) return done;
  if (auto done = find(move_large_, "stream_move_large"); !done) return done;
  for (unsigned i = 0; i < kElements; ++i) {
    const std::string type = name_of(static_cast<element>(i));
    if (auto done = find(reduce_small_[i], "stream_reduce_small_" + type); !done) return done;
    if (auto done = find(reduce_large_[i], "stream_reduce_large_" + type); !done) return done;
  }
  auto stop = copy::pinned_buffer::make(gpu_, sizeof(std::uint64_t));
  if (!stop) return stop.error();
  stop_ = std::move(*stop);
  return {};
}

status stream_collectives::make_region(const shape& agreed) {
  const auto ranks = static_cast<std::uint64_t>(size_);
  threads_ = static_cast<unsigned>(agreed.threads);
  const std::uint64_t inbox_words = std::uint64_t{threads_} * 2;
  small_bytes_ = std::min(agreed.small_bytes, inbox_words * agreed.blocks * 8);
  common_.rank = static_cast<std::uint32_t>(rank_);
  common_.size = static_cast<std::uint32_t>(size_);
  common_.blocks = static_cast<std::uint32_t>(agreed.blocks);
  common_.depth = agreed.depth;
  common_.inbox_words = static_cast<std::uint32_t>(inbox_words);
  common_.slot_bytes = agreed.slot_bytes;
  common_.inbox = kInboxOffset;
  common_.slots = common_.inbox + 2 * ranks * agreed.blocks * inbox_words * kVectorBytes;
  const std::uint64_t slots_bytes = ranks * agreed.blocks * agreed.depth * agreed.slot_bytes;
  common_.results = common_.slots + slots_bytes;
  common_.stop = stop_.device_address();
  common_.timeout_ns = agreed.timeout_ns;
  // An allocation of its own: what peers get is the driver's whole object.
  constexpr std::uint64_t kLeastBytes = 2 << 20;
  const std::uint64_t bytes = round_up(common_.results + slots_bytes, kLeastBytes);
  auto use = copy::context_use::enter(gpu_);
  if (!use) return use.error();
  const auto& cuda = *gpu_.cuda;
  if (const auto rc = cuda.cuMemAlloc_v2(&region_, bytes); rc != cu::error_code::success)
    return cu::make_error(
        cuda, rc, format("allocating %llu bytes for collectives on streams", static_cast<unsigned long long>(bytes)));
  if (const auto rc = cuda.cuMemsetD8_v2(region_, 0, bytes); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "clearing the memory for collectives on streams");
  if (const auto rc = cuda.cuStreamSynchronize(nullptr); rc != cu::error_code::success)
    return cu::make_error(cuda, rc, "clearing the memory for collectives on streams");
  const auto key = triggered::export_memory(gpu_, region_, bytes);
  if (!key) return key.error();
  key_ = *key;
  return {};
}

status stream_collectives::reach_peers() {
  for (int peer = 0; peer < size_; ++peer) {
    const auto place = static_cast<std::size_t>(peer);
    if (peer == rank_) {
      common_.region[place] = region_;
      continue;
    }
    const auto memory = context_.importer().open(keys_[place]);
    if (!memory)  // of a process that has just ended, too
      if (auto alive = context_.peer_state(peer); !alive) return alive;
    if (!memory)
      return failure{memory.code(), format("GPU %d does not reach the memory of rank %d (%s): collectives on streams need "
                                           "GPUs of one host that reach each other; see `peerlane topo`",
                                           gpu_.device_ordinal, peer, memory.error().message.c_str())};
    common_.region[place] = *memory;
  }
  return {};
}

// ---- Calls

stream_job stream_collectives::job_of(unsigned kind, std::uint64_t source, std::uint64_t destination,
                                      std::size_t bytes) const {
  stream_job out = common_;
  out.kind = kind;
  out.source = source;
  out.destination = destination;
  out.bytes = bytes;
  out.share_bytes = bytes;
  return out;
}

status stream_collectives::check_memory(std::uint64_t address, std::size_t bytes, std::size_t alignment) const {
  if (address % alignment != 0)
    return failure{EINVAL, format("0x%llx is not a valid address of elements of %zu bytes",
                                  static_cast<unsigned long long>(address), alignment)};
  const auto found = cu::inspect_pointer(*gpu_.cuda, address);
  if (!found) return found.error();
  if (found->device_ordinal != gpu_.device_ordinal)
    return failure{EINVAL,
                   format("the memory is GPU %d's, and this context GPU %d's", found->device_ordinal, gpu_.device_ordinal)};
  const auto& all = found->allocation;
  if (bytes > all.size_bytes - (address - all.begin))
    return failure{EINVAL,
                   format("%zu bytes leave their allocation of %zu", bytes, static_cast<std::size_t>(all.size_bytes))};
  return {};
}

status stream_collectives::all_reduce(cu::stream_t stream, std::uint64_t source, std::uint64_t destination,
                                      std::size_t bytes, summation terms) {
  const std::size_t width = size_of(terms.type);
  if (bytes % width != 0)
    return failure{EINVAL, format("%zu bytes are not a whole number of %s elements", bytes, name_of(terms.type))};
  if (bytes == 0) return state();
  if (auto done = check_memory(source, bytes, width); !done) return done;
  if (auto done = check_memory(destination, bytes, width); !done) return done;
  if (source != destination && overlaps(source, bytes, destination, bytes)) return overlap_failure();
  if (size_ == 1) return copy_alone(stream, source, destination, bytes);
  auto job = job_of(kStreamAllReduce, source, destination, bytes);
  job.op = static_cast<std::uint32_t>(terms.op);
  if (bytes > small_bytes_) {
    job.share_bytes = round_up(divide_up(bytes, static_cast<std::uint64_t>(size_)), kVectorBytes);
    job.source_stride = job.destination_stride = job.share_bytes;
  }
  const auto type = static_cast<std::size_t>(terms.type);
  return run(stream, job, reduce_small_[type], reduce_large_[type]);
}

status stream_collectives::reduce_scatter(cu::stream_t stream, std::uint64_t source, std::uint64_t destination,
                                          std::size_t block, summation terms) {
  const std::size_t width = size_of(terms.type);
  if (block % width != 0)
    return failure{EINVAL, format("%zu bytes are not a whole number of %s elements", block, name_of(terms.type))};
  const auto whole = whole_of(block, size_);
  if (!whole) return whole.error();
  if (block == 0) return state();
  if (auto done = check_memory(source, *whole, width); !done) return done;
  if (auto done = check_memory(destination, block, width); !done) return done;
  if (destination != source + static_cast<std::size_t>(rank_) * block && overlaps(source, *whole, destination, block))
    return overlap_failure();
  if (size_ == 1) return copy_alone(stream, source, destination, block);
  auto job = job_of(kStreamReduceScatter, source, destination, block);
  job.op = static_cast<std::uint32_t>(terms.op);
  job.source_stride = block;
  const auto type = static_cast<std::size_t>(terms.type);
  return run(stream, job, reduce_small_[type], reduce_large_[type]);
}

status stream_collectives::all_gather(cu::stream_t stream, std::uint64_t source, std::uint64_t destination,
                                      std::size_t block) {
  const auto whole = whole_of(block, size_);
  if (!whole) return whole.error();
  if (block == 0) return state();
  if (auto done = check_memory(source, block, 1); !done) return done;
  if (auto done = check_memory(destination, *whole, 1); !done) return done;
  if (source != destination + static_cast<std::size_t>(rank_) * block && overlaps(source, block, destination, *whole))
    return overlap_failure();
  if (size_ == 1) return copy_alone(stream, source, destination, block);
  auto job = job_of(kStreamAllGather, source, destination, block);
  job.destination_stride = block;
  return run(stream, job, move_small_, move_large_);
}

status stream_collectives::all_to_all(cu::stream_t stream, std::uint64_t source, std::uint64_t destination,
                                      std::size_t block) {
  const auto whole = whole_of(block, size_);
  if (!whole) return whole.error();
  if (block == 0) return state();
  if (auto done = check_memory(source, *whole, 1); !done) return done;
  if (auto done = check_memory(destination, *whole, 1); !done) return done;
  if (overlaps(source, *whole, destination, *whole))
    return failure{EINVAL, "source and destination overlap: an all-to-all on a stream needs separate memory"};
  if (size_ == 1) return copy_alone(stream, source, destination, block);
  auto job = job_of(kStreamAllToAll, source, destination, block);
  job.source_stride = job.destination_stride = block;
  return run(stream, job, move_small_, move_large_);
}

status stream_collectives::barrier(cu::stream_t stream) {
  if (size_ == 1) return state();
  return run(stream, job_of(kStreamBarrier, 0, 0, sizeof(std::uint64_t)), move_small_, nullptr);
}

status stream_collectives::copy_alone(cu::stream_t stream, std::uint64_t source, std::uint64_t destination,
                                      std::size_t bytes) {
  if (source == destination) return {};
  auto use = copy::context_use::enter(gpu_);
  if (!use) return use.error();
  const auto rc = gpu_.cuda->cuMemcpyDtoDAsync_v2(destination, source, bytes, stream);
  if (rc != cu::error_code::success) return cu::make_error(*gpu_.cuda, rc, "a collective of one rank");
  return {};
}

status stream_collectives::run(cu::stream_t stream, stream_job job, cu::function_t small, cu::function_t large) {
  if (auto good = state(); !good) return good;
  job.is_aligned = (job.source | job.destination | job.source_stride | job.destination_stride) % kVectorBytes == 0 ? 1 : 0;
  if (job.bytes <= small_bytes_) {
    job.words = divide_up(job.bytes, 8);
    const auto blocks = static_cast<unsigned>(std::min<std::uint64_t>(divide_up(job.words, threads_), job.blocks));
    job.words_per_block = static_cast<std::uint32_t>(divide_up(job.words, blocks));
    return launch(stream, small, blocks, job);
  }
  // As many chunks as make all blocks equally busy.
  const std::uint64_t rounds = divide_up(job.share_bytes, job.blocks * job.slot_bytes);
  job.chunk_bytes = round_up(divide_up(job.share_bytes, job.blocks * rounds), kChunkGranule);
  job.chunks = divide_up(job.share_bytes, job.chunk_bytes);
  return launch(stream, large, static_cast<unsigned>(std::min<std::uint64_t>(job.blocks, job.chunks)), job);
}

status stream_collectives::launch(cu::stream_t stream, cu::function_t kernel, unsigned blocks, stream_job& job) {
  constexpr unsigned kSharedBytes = 16;
  auto use = copy::context_use::enter(gpu_);
  if (!use) return use.error();
  void* parameters[] = {&job};
  const auto rc = gpu_.cuda->cuLaunchKernel(kernel, blocks, 1, 1, threads_, 1, 1, kSharedBytes, stream, parameters, nullptr);
  if (rc != cu::error_code::success) return cu::make_error(*gpu_.cuda, rc, "launch of a collective's kernel");
  return {};
}

// ---- Failure and the end

status stream_collectives::state() {
  auto& word = *reinterpret_cast<std::uint64_t*>(stop_.data());
  auto code = static_cast<int>(std::atomic_ref(word).load(std::memory_order_acquire));
  for (int peer = 0; code == 0 && peer < size_; ++peer)
    if (peer != rank_ && !context_.peer_state(peer)) cancel(code = ECONNRESET);
  if (code == 0) return {};
  const char* const reason = code == ETIMEDOUT    ? "a kernel waited too long for another rank's"
                             : code == ECONNRESET ? "a rank is gone"
                                                  : "they were cancelled";
  return failure{code, format("collectives on streams are stopped: %s; close them and open new ones", reason)};
}

void stream_collectives::cancel(int code) {
  std::uint64_t none = 0;
  std::atomic_ref(*reinterpret_cast<std::uint64_t*>(stop_.data()))
      .compare_exchange_strong(none, static_cast<std::uint64_t>(code > 0 ? code : ECANCELED), std::memory_order_acq_rel);
}

status stream_collectives::close() {
  // A folder does not show that a rank has died: the barrier would wait until its limit.
  for (int peer = 0; peer < size_; ++peer)
    if (auto alive = peer == rank_ ? status{} : context_.peer_state(peer); !alive) return alive;
  const auto met = group_.barrier();
  for (std::size_t peer = 0; peer < keys_.size(); ++peer)
    if (static_cast<int>(peer) != rank_) context_.importer().close(keys_[peer]);
  const auto left = met ? group_.barrier() : met;
  if (!left || region_ == 0) return left;  // who is still there may have it open
  auto use = copy::context_use::enter(gpu_);
  if (!use) return use.error();
  if (const auto rc = gpu_.cuda->cuMemFree_v2(std::exchange(region_, 0)); rc != cu::error_code::success)
    return cu::make_error(*gpu_.cuda, rc, "freeing the memory of collectives on streams");
  return {};
}

}  // namespace pl::collectives
