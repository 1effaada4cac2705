// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/pattern.hpp"

#include <algorithm>
#include <array>
#include <cstring>
#include <thread>
#include <vector>

#include "base/text.hpp"
#include "os/blocked_signals.hpp"
#include "tools/bandwidth/gpu_copier.hpp"
#include "tools/bandwidth/pattern_hash.hpp"

namespace pl::bandwidth {
namespace {

constexpr std::uint64_t kChunkBytes = 4u << 20;  // of one CPU thread at least; a multiple of 8
constexpr unsigned kMaxThreads = 8;

void write_words(std::byte* address, std::uint64_t offset, std::uint64_t bytes, std::uint64_t seed, std::uint64_t flip) {
  for (std::uint64_t done = 0; done < bytes; done += 8) {
    const std::uint64_t word = pattern_word((offset + done) / 8, seed) ^ flip;
    std::memcpy(address + done, &word, std::min<std::uint64_t>(8, bytes - done));
  }
}

void compare_words(const std::byte* address, std::uint64_t offset, std::uint64_t bytes, std::uint64_t seed,
                   check_result& out) {
  for (std::uint64_t done = 0; done < bytes; done += 8) {
    const std::uint64_t count = std::min<std::uint64_t>(8, bytes - done);
    std::uint64_t expected = pattern_word((offset + done) / 8, seed);
    std::uint64_t found = expected;
    std::memcpy(&found, address + done, count);
    out.add(offset + done, expected ^ found);
  }
}

void add_part(check_result& sum, const check_result& part) {
  sum.wrong_bytes += part.wrong_bytes;
  sum.first_offset = std::min(sum.first_offset, part.first_offset);
  sum.flipped_bits |= part.flipped_bits;
}

// Calls body(part, offset, bytes) for parts of [0, bytes), each on its own thread; the first part, and those for which
// no thread can be started, run on the caller's.
template <class Body>
void in_parallel(std::uint64_t bytes, Body&& body) {
  const std::uint64_t most = std::clamp(std::thread::hardware_concurrency(), 1u, kMaxThreads);
  const std::uint64_t parts = std::clamp<std::uint64_t>(bytes / kChunkBytes, 1, most);
  const std::uint64_t step = (bytes / parts + 7) / 8 * 8;
  std::vector<std::thread> helpers;
  for (std::uint64_t part = 1; part < parts; ++part) {
    const auto do_part = [&body, part, step, bytes] { body(part, part * step, std::min(step, bytes - part * step)); };
    if (auto helper = try_start_thread("compares a part", do_part)) helpers.push_back(*std::move(helper));
    else do_part();
  }
  body(0, 0, std::min(step, bytes));
  for (auto& helper : helpers) helper.join();
}

}  // namespace

struct pattern::gpu_resources {
  gpu_resources(gpu_set& all, int ordinal) : gpus(all), gpu(ordinal), stream(all, ordinal) {}
  gpu_resources(const gpu_resources&) = delete;
  gpu_resources& operator=(const gpu_resources&) = delete;
  ~gpu_resources() {
    if (result_memory != 0 && gpus.make_current(gpu)) gpus.cuda().cuMemFree_v2(result_memory);
  }
  status open() {
    if (auto made = stream.open(); !made) return made;
    cu::device_ptr memory = 0;
    if (auto got = gpus.check(gpus.cuda().cuMemAlloc_v2(&memory, sizeof(check_result)), format("GPU %d: cuMemAlloc", gpu));
        !got)
      return got;
    result_memory = memory;
    return {};
  }
  // Runs a kernel over `bytes` and waits for it.
  status run(const char* name, std::uint64_t bytes, std::array<void*, 4> parameters, unsigned width = 0) {
    if (auto ready = gpus.make_current(gpu); !ready) return ready;
    const auto kernel = gpus.kernel(gpu, name);
    if (!kernel) return kernel.error();
    const launch_shape shape = shape_for(gpus, gpu, width, bytes);
    const auto rc = gpus.cuda().cuLaunchKernel(*kernel, shape.blocks, 1, 1, shape.threads, 1, 1, 0, stream.get(),
                                               parameters.data(), nullptr);
    if (auto launched = gpus.check(rc, format("GPU %d: launch of %s", gpu, name)); !launched) return launched;
    return gpus.check(gpus.cuda().cuStreamSynchronize(stream.get()), format("GPU %d: %s", gpu, name));
  }
  gpu_set& gpus;
  const int gpu;
  owned_stream stream;
  cu::device_ptr result_memory = 0;
};

pattern::pattern(gpu_set& gpus) : gpus_(gpus) {}
pattern::~pattern() = default;

// Null if the CPU must do it.
result<pattern::gpu_resources*> pattern::gpu_resources_for(const memory_view& view, int near_gpu) {
  if (!view.gpu_reachable) return nullptr;
  const int gpu = view.location.type == place::kind::gpu ? view.location.index : near_gpu;
  for (const char* name : {"bandwidth_fill", "bandwidth_check"})
    if (const auto kernel = gpus_.kernel(gpu, name); !kernel) {
      if (kernel.error().code == ENOTSUP) return nullptr;
      return kernel.error();
    }
  auto& found = gpu_resources_[gpu];
  if (found == nullptr) {
    auto fresh = std::make_unique<gpu_resources>(gpus_, gpu);
    if (auto opened = fresh->open(); !opened) return opened.error();
    found = std::move(fresh);
  }
  return found.get();
}

status pattern::fill(const memory_view& view, std::uint64_t bytes, int near_gpu, std::uint64_t seed) {
  return write(view, bytes, near_gpu, seed, 0);
}

status pattern::clear(const memory_view& view, std::uint64_t bytes, int near_gpu, std::uint64_t seed) {
  return write(view, bytes, near_gpu, seed, ~std::uint64_t{0});
}

status pattern::write(const memory_view& view, std::uint64_t bytes, int near_gpu, std::uint64_t seed, std::uint64_t flip) {
  auto shop = gpu_resources_for(view, near_gpu);
  if (!shop) return shop.error();
  if (*shop == nullptr) return write_by_cpu(view, bytes, seed, flip);
  std::uint64_t address = view.address;
  return (*shop)->run("bandwidth_fill", bytes, {&address, &bytes, &seed, &flip});
}

status pattern::write_by_cpu(const memory_view& view, std::uint64_t bytes, std::uint64_t seed, std::uint64_t flip) {
  if (view.host != nullptr) {
    in_parallel(bytes, [&](std::uint64_t, std::uint64_t offset, std::uint64_t count) {
      write_words(view.host + offset, offset, count, seed, flip);
    });
    return {};
  }
  if (auto ready = gpus_.make_current(view.location.index); !ready) return ready;
  std::vector<std::byte> chunk(std::min(bytes, kChunkBytes));
  for (std::uint64_t done = 0; done < bytes; done += chunk.size()) {
    const std::uint64_t count = std::min<std::uint64_t>(chunk.size(), bytes - done);
    write_words(chunk.data(), done, count, seed, flip);
    const auto rc = gpus_.cuda().cuMemcpyHtoD_v2(view.address + done, chunk.data(), count);
    if (auto copied = gpus_.check(rc, format("GPU %d: writing the pattern", view.location.index)); !copied) return copied;
  }
  return {};
}

status pattern::read(const memory_view& view, std::uint64_t offset, std::span<std::byte> out) {
  if (view.host != nullptr) {
    std::memcpy(out.data(), view.host + offset, out.size());
    return {};
  }
  if (auto ready = gpus_.make_current(view.location.index); !ready) return ready;
  return gpus_.check(gpus_.cuda().cuMemcpyDtoH_v2(out.data(), view.address + offset, out.size()),
                     format("GPU %d: reading the data back", view.location.index));
}

result<mismatch> pattern::check(const memory_view& view, std::uint64_t bytes, int near_gpu, std::uint64_t seed) {
  auto shop = gpu_resources_for(view, near_gpu);
  if (!shop) return shop.error();
  check_result found;
  if (*shop != nullptr) {
    if (auto done = check_by_gpu(**shop, view, {.bytes = bytes, .seed = seed}, found); !done) return done.error();
  } else if (auto done = check_by_cpu(view, bytes, seed, found); !done) {
    return done.error();
  }
  mismatch out;
  if (found.wrong_bytes == 0) return out;
  out.bytes = found.wrong_bytes;
  out.first_offset = found.first_offset;
  out.flipped_bits = found.flipped_bits;
  const std::uint64_t begin = found.first_offset / 8 * 8;
  const std::uint64_t count = std::min<std::uint64_t>(8, bytes - begin);
  if (auto got = read(view, begin, std::as_writable_bytes(std::span(&out.found, 1)).first(count)); !got) return got.error();
  const std::uint64_t mask = count == 8 ? ~std::uint64_t{0} : (std::uint64_t{1} << (8 * count)) - 1;
  out.expected = pattern_word(begin / 8, seed) & mask;
  return out;
}

status pattern::check_by_gpu(gpu_resources& shop, const memory_view& view, const check_call& call, check_result& out) {
  if (auto ready = gpus_.make_current(shop.gpu); !ready) return ready;
  const std::string description = format("GPU %d: the result of comparing data", shop.gpu);
  if (auto reset = gpus_.check(gpus_.cuda().cuMemcpyHtoD_v2(shop.result_memory, &out, sizeof out), description); !reset)
    return reset;
  std::uint64_t address = view.address, bytes = call.bytes, seed = call.seed;
  if (auto done = shop.run(call.kernel, bytes, {&address, &bytes, &seed, &shop.result_memory}, call.width); !done)
    return done;
  return gpus_.check(gpus_.cuda().cuMemcpyDtoH_v2(&out, shop.result_memory, sizeof out), description);
}

status pattern::clear_digests(const memory_view& view) {
  if (auto ready = gpus_.make_current(view.location.index); !ready) return ready;
  const std::string description = format("GPU %d: clearing digests", view.location.index);
  if (auto set = gpus_.check(gpus_.cuda().cuMemsetD8_v2(view.address, 0, view.bytes), description); !set) return set;
  return gpus_.check(gpus_.cuda().cuCtxSynchronize(), description);  // a fill of GPU memory returns before it is made
}

result<mismatch> pattern::check_read(const memory_view& digests, std::uint64_t bytes, unsigned width, std::uint64_t seed) {
  return check_special(digests, {"bandwidth_check_read", bytes, seed, width});
}

result<mismatch> pattern::check_write(const memory_view& view, std::uint64_t bytes, std::uint64_t seed) {
  return check_special(view, {"bandwidth_check_write", bytes, seed, 0});
}

result<mismatch> pattern::check_special(const memory_view& view, const check_call& call) {
  auto shop = gpu_resources_for(view, view.location.index);
  if (!shop) return shop.error();
  if (*shop == nullptr) return failure{ENOTSUP, "this build has no GPU code to check what kernels read or wrote"};
  check_result found;
  if (auto done = check_by_gpu(**shop, view, call, found); !done) return done.error();
  mismatch out;
  if (found.wrong_bytes == 0) return out;
  out.bytes = found.wrong_bytes;
  out.first_offset = found.first_offset;
  out.flipped_bits = found.flipped_bits;
  const std::uint64_t begin = found.first_offset / 8 * 8;
  const auto word = std::as_writable_bytes(std::span(&out.found, 1));
  if (auto got = read(view, begin, word.first(std::min<std::uint64_t>(8, view.bytes - begin))); !got) return got.error();
  out.expected = out.found ^ found.flipped_bits;  // exact where one word differs
  return out;
}

status pattern::check_by_cpu(const memory_view& view, std::uint64_t bytes, std::uint64_t seed, check_result& out) {
  if (view.host != nullptr) {
    std::array<check_result, kMaxThreads> parts;
    in_parallel(bytes, [&](std::uint64_t part, std::uint64_t offset, std::uint64_t count) {
      compare_words(view.host + offset, offset, count, seed, parts[part]);
    });
    for (const auto& part : parts) add_part(out, part);
    return {};
  }
  std::vector<std::byte> chunk(std::min(bytes, kChunkBytes));
  for (std::uint64_t done = 0; done < bytes; done += chunk.size()) {
    const std::span<std::byte> piece(chunk.data(), std::min<std::uint64_t>(chunk.size(), bytes - done));
    if (auto got = read(view, done, piece); !got) return got;
    compare_words(piece.data(), done, piece.size(), seed, out);
  }
  return {};
}

}  // namespace pl::bandwidth
