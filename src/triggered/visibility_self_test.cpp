// SPDX-License-Identifier: Apache-2.0
#include "triggered/visibility_self_test.hpp"

#include <algorithm>
#include <cstddef>
#include <iterator>

#include "base/clock.hpp"
#include "triggered/mem_ops.hpp"

namespace pl::triggered {
namespace {

constexpr unsigned kRounds = 8;
constexpr std::uint64_t kFlagLimitNs = 1'000'000'000;
constexpr std::size_t kDataBytes = sizeof(gpu_words::self_test_data);

// Two own streams: one writes, one reads back.
class trial {
 public:
  trial(const copy::gpu_context& context, const peer_methods& methods, cu::device_ptr theirs, const word_pool& words,
        unsigned index)
      : cuda_(*context.cuda), methods_(methods), theirs_(theirs), words_(words), index_(index) {}
  ~trial() {
    for (auto* const stream : {write_, read_})
      if (stream != nullptr) static_cast<void>(cuda_.cuStreamDestroy_v2(stream));
  }
  trial(const trial&) = delete;
  trial& operator=(const trial&) = delete;

  status open() {
    for (auto* const stream : {&write_, &read_})
      if (auto done = checked(cuda_.cuStreamCreate(stream, cu::stream_flag::non_blocking), "a stream"); !done) return done;
    return {};
  }

  status run(flag_writer writer) {
    if (writer == flag_writer::kernel && methods_.kernel == nullptr) return failure{ENOTSUP, "no kernels in this build"};
    for (unsigned i = 0; i < kRounds; ++i)
      if (auto done = round(writer); !done) return done;
    return {};
  }

 private:
  status checked(cu::result_t rc, const char* description) const {
    if (rc == cu::error_code::success) return {};
    return cu::make_error(cuda_, rc, description);
  }

  status round(flag_writer writer) {
    const auto value = ++value_;  // over all ways, so that no late flag of one counts for the next
    const auto source = words_.gpu(index_) + offsetof(gpu_words, self_test_source);
    const auto data = theirs_ + offsetof(gpu_words, self_test_data);
    auto done = checked(cuda_.cuMemsetD8Async(source, static_cast<unsigned char>(value), kDataBytes, write_), "a fill");
    if (done) done = checked(cuda_.cuMemcpyDtoDAsync_v2(data, source, kDataBytes, write_), "a copy to the peer's memory");
    if (done) done = write_flag(writer, value);
    if (done) done = read_back(value);
    if (done) done = checked(cuda_.cuStreamSynchronize(write_), "the writes");
    return done;
  }

  status write_flag(flag_writer writer, std::uint64_t value) {
    auto flag = theirs_ + offsetof(gpu_words, self_test_flag);
    if (writer == flag_writer::direct) return mem_ops(cuda_, write_).write64(flag, value).submit();
    if (writer == flag_writer::kernel) {
      std::uint64_t nothing = 0;
      void* parameters[] = {&nothing, &nothing, &nothing, &flag, &value, &nothing, &nothing};
      return checked(cuda_.cuLaunchKernel(methods_.kernel, 1, 1, 1, 32, 1, 1, 0, write_, parameters, nullptr), "a kernel");
    }
    const auto scratch = words_.gpu(index_) + offsetof(gpu_words, scratch_signal);
    if (auto done = mem_ops(cuda_, write_).write64(scratch, value).submit(); !done) return done;
    return checked(cuda_.cuMemcpyDtoDAsync_v2(flag, scratch, sizeof value, write_), "a copy of the flag");
  }

  status read(std::size_t offset, std::size_t bytes) {
    auto* const target = words_.host(index_).self_test;
    if (auto done = checked(cuda_.cuMemcpyDtoHAsync_v2(target, theirs_ + offset, bytes, read_), "reading the peer's memory");
        !done)
      return done;
    return checked(cuda_.cuStreamSynchronize(read_), "reading the peer's memory");
  }

  status read_back(std::uint64_t value) {
    const auto* const seen = words_.host(index_).self_test;
    const auto end = monotonic_ns() + kFlagLimitNs;
    do {
      if (monotonic_ns() > end) return failure{EIO, "the flag does not arrive"};
      if (auto done = read(offsetof(gpu_words, self_test_flag), sizeof value); !done) return done;
    } while (seen[0] != value);
    if (auto done = read(offsetof(gpu_words, self_test_data), kDataBytes); !done) return done;
    const auto pattern = 0x0101010101010101ull * static_cast<unsigned char>(value);
    if (std::all_of(seen, seen + kSelfTestWords, [&](std::uint64_t word) { return word == pattern; })) return {};
    return failure{EIO, "the flag arrives before the data"};
  }

  const cu::driver_table& cuda_;
  const peer_methods& methods_;
  const cu::device_ptr theirs_;
  const word_pool& words_;
  const unsigned index_;
  cu::stream_t write_ = nullptr, read_ = nullptr;
  std::uint64_t value_ = 0;
};

}  // namespace

result<self_test_outcome> choose_writer(const copy::gpu_context& context, const peer_methods& methods, cu::device_ptr theirs,
                                        const word_pool& words, unsigned index) {
  auto use = copy::context_use::enter(context);
  if (!use) return use.error();
  trial attempt(context, methods, theirs, words, index);
  if (auto done = attempt.open(); !done) return done.error();
  self_test_outcome out;
  for (const auto writer : {flag_writer::direct, flag_writer::copied, flag_writer::kernel}) {
    const auto done = attempt.run(writer);
    out.writer = writer;
    if (done) return out;
    out.reason += (out.reason.empty() ? "" : "; ") + std::string(name_of(writer)) + ": " + done.error().message;
  }
  return failure{ENOTSUP, "no way to write a flag into the peer GPU's memory works (" + out.reason + ")"};
}

}  // namespace pl::triggered
