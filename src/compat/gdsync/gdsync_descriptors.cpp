// SPDX-License-Identifier: Apache-2.0
// Values on streams and on the CPU. The contract is in gdsync/core.h.
#include <sched.h>

#include <atomic>
#include <vector>

#include "capi/errno_guard.hpp"
#include "compat/gdsync/gdsync_words.hpp"
#include "triggered/mem_ops.hpp"

namespace pl::gds {
namespace {

constexpr std::size_t kMaxBytes = 1024;  // of one write_memory
constexpr std::size_t kWord = sizeof(std::uint32_t);
constexpr const char* kNoCondition = "the condition is not one of GDS_WAIT_COND_*";

static_assert(static_cast<int>(triggered::wait_until::at_least) == GDS_WAIT_COND_GEQ);
static_assert(static_cast<int>(triggered::wait_until::equal) == GDS_WAIT_COND_EQ);
static_assert(static_cast<int>(triggered::wait_until::any_bit) == GDS_WAIT_COND_AND);
static_assert(static_cast<int>(triggered::wait_until::nor) == GDS_WAIT_COND_NOR);

// An enumeration as set by a C program: any bits, which C++ must not read as that type.
template <class Enum>
unsigned bits_of(const Enum& value) {
  unsigned out = 0;
  static_assert(sizeof value == sizeof out);
  std::memcpy(&out, &value, sizeof out);
  return out;
}

bool is_word(const void* pointer) { return pointer != nullptr && reinterpret_cast<std::uintptr_t>(pointer) % kWord == 0; }
bool has_only(int flags, int known) { return is_memory_type(flags) && (flags & ~(GDS_MEMORY_MASK | known)) == 0; }

const char* problem_of(const gds_wait_value32_t& operation) {
  if (!is_word(operation.ptr)) return "ptr is null or not a multiple of 4";
  if (!has_only(operation.flags, GDS_WAIT_POST_FLUSH_REMOTE)) return "flags are not one memory type and GDS_WAIT_POST_FLUSH";
  return bits_of(operation.cond_flags) <= GDS_WAIT_COND_NOR ? nullptr : kNoCondition;
}
const char* problem_of(const gds_write_value32_t& operation) {
  if (!is_word(operation.ptr)) return "ptr is null or not a multiple of 4";
  return has_only(operation.flags, GDS_WRITE_PRE_BARRIER_SYS) ? nullptr
                                                              : "flags are not one memory type and GDS_WRITE_PRE_BARRIER";
}
const char* problem_of(const gds_write_memory_t& operation) {
  if (!is_word(operation.dest) || operation.src == nullptr) return "dest is null or not a multiple of 4, or src is null";
  if (operation.count == 0 || operation.count % kWord != 0 || operation.count > kMaxBytes)
    return "count is not a multiple of 4 from 4 to 1024: longer copies are cuMemcpyHtoDAsync's";
  return has_only(operation.flags, GDS_WRITE_MEMORY_POST_BARRIER_SYS | GDS_WRITE_MEMORY_PRE_BARRIER_SYS)
             ? nullptr
             : "flags are not one memory type and GDS_WRITE_MEMORY_*";
}

status gather(const gds_descriptor_t& descriptor, std::vector<word_op>& ops) {
  const char* problem = nullptr;
  switch (bits_of(descriptor.tag)) {
    case GDS_TAG_WAIT_VALUE32: {
      const auto& operation = descriptor.wait32;
      problem = problem_of(operation);
      ops.push_back({operation.ptr, operation.value, operation.flags, true,
                     (operation.flags & GDS_WAIT_POST_FLUSH_REMOTE) != 0, operation.cond_flags});
      break;
    }
    case GDS_TAG_WRITE_VALUE32:
      problem = problem_of(descriptor.write32);
      ops.push_back(
          {descriptor.write32.ptr, descriptor.write32.value, descriptor.write32.flags, false, false, GDS_WAIT_COND_GEQ});
      break;
    case GDS_TAG_WRITE_MEMORY: {
      const auto& operation = descriptor.writemem;
      if ((problem = problem_of(operation)) != nullptr) break;
      for (std::size_t offset = 0; offset < operation.count; offset += kWord) {
        std::uint32_t value = 0;
        std::memcpy(&value, operation.src + offset, kWord);
        ops.push_back({reinterpret_cast<std::uint32_t*>(operation.dest + offset), value, operation.flags, false, false,
                       GDS_WAIT_COND_GEQ});
      }
      break;
    }
    case GDS_TAG_SEND:
      return gather_send(descriptor.send, ops);
    case GDS_TAG_WAIT:
      return gather_wait(descriptor.wait, ops);
    default:
      problem = "the tag is not one of GDS_TAG_*";
  }
  return problem == nullptr ? status{} : status{failure{EINVAL, problem}};
}

result<std::vector<word_op>> gather_all(std::size_t count, const gds_descriptor_t* descs, int flags) {
  if (flags != 0 || (descs == nullptr && count != 0)) return failure{EINVAL, "flags are not 0, or there are no descriptors"};
  std::vector<word_op> out;
  out.reserve(count);
  for (std::size_t i = 0; i < count; ++i)
    if (auto done = gather(descs[i], out); !done)
      return failure{done.code(), "descriptor " + std::to_string(i) + ": " + done.error().message};
  return out;
}

// Whether the GPU can do what the flag requests. Only a network card that writes GPU memory needs it.
bool can_flush(const cu::driver_table& cuda) {
  cu::device_t device = 0;
  int can = 0;
  if (cuda.cuCtxGetDevice(&device) == cu::error_code::success &&
      cuda.cuDeviceGetAttribute(&can, cu::device_attribute::can_flush_remote_writes, device) == cu::error_code::success &&
      can != 0)
    return true;
  static std::atomic<bool> is_reported{false};
  if (!is_reported.exchange(true))
    PL_LOG(warn, "GDS_WAIT_POST_FLUSH is left out: this GPU cannot flush remote writes from a stream");
  return false;
}

bool is_met(std::uint32_t word, std::uint32_t value, gds_wait_cond_flag_t cond) {
  switch (cond) {
    case GDS_WAIT_COND_GEQ:
      return static_cast<std::int32_t>(word - value) >= 0;
    case GDS_WAIT_COND_EQ:
      return word == value;
    case GDS_WAIT_COND_AND:
      return (word & value) != 0;
    default:
      return ~(word | value) != 0;
  }
}

template <class Desc>
int prepare(const char* call, Desc* desc, const Desc& wanted) {
  const char* const problem = desc == nullptr ? "no descriptor" : problem_of(wanted);
  if (problem != nullptr) return refuse(call, {EINVAL, problem});
  *desc = wanted;
  return 0;
}

}  // namespace

status post_on_stream(cu::stream_t stream, const std::vector<word_op>& ops) {
  const auto cuda = ready_driver();
  if (!cuda) return cuda.error();
  if ((*cuda)->cuStreamBatchMemOp_v2 == nullptr)
    return failure{ENOTSUP, "this driver has no stream memory operations: 11.7 or newer is needed"};
  std::vector<cu::device_ptr> words;  // all known before the first list is passed on
  for (const auto& op : ops) {
    const auto word = device_address(**cuda, op.pointer, op.flags);
    if (!word) return word.error();
    words.push_back(*word);
  }
  triggered::mem_ops list(**cuda, stream);
  for (std::size_t i = 0; i < ops.size(); ++i) {
    const auto& op = ops[i];
    if (op.is_wait) list.wait32(words[i], op.value, static_cast<triggered::wait_until>(op.cond));
    else list.write32(words[i], op.value);
    if (op.is_flush && can_flush(**cuda)) list.flush();
  }
  return list.submit();
}

status post_on_cpu(const std::vector<word_op>& ops) {
  std::vector<cpu_word> words;
  for (const auto& op : ops) {
    const auto word = cpu_word::find(op.pointer, op.flags);
    if (!word) return word.error();
    words.push_back(*word);
  }
  for (std::size_t i = 0; i < ops.size(); ++i) {
    if (!ops[i].is_wait) words[i].store(ops[i].value);
    else
      while (!is_met(words[i].load(), ops[i].value, ops[i].cond)) sched_yield();
  }
  return {};
}

}  // namespace pl::gds

using pl::gds::refuse;

PL_EXPORT int gds_query_param(gds_param_t param, int* value) {
  if (pl::gds::bits_of(param) != GDS_PARAM_VERSION || value == nullptr)
    return refuse(__func__, {EINVAL, "not GDS_PARAM_VERSION, or no place for its value"});
  *value = static_cast<int>(GDS_API_VERSION);
  return 0;
}

PL_EXPORT int gds_prepare_wait_value32(gds_wait_value32_t* desc, uint32_t* ptr, uint32_t value,
                                       gds_wait_cond_flag_t cond_flags, int flags) {
  if (pl::gds::bits_of(cond_flags) > GDS_WAIT_COND_NOR) return refuse(__func__, {EINVAL, pl::gds::kNoCondition});
  return pl::gds::prepare(__func__, desc, {ptr, value, cond_flags, flags});
}

PL_EXPORT int gds_prepare_write_value32(gds_write_value32_t* desc, uint32_t* ptr, uint32_t value, int flags) {
  return pl::gds::prepare(__func__, desc, {ptr, value, flags});
}

PL_EXPORT int gds_prepare_write_memory(gds_write_memory_t* desc, uint8_t* dest, const uint8_t* src, size_t count,
                                       int flags) {
  return pl::gds::prepare(__func__, desc, {dest, src, count, flags});
}

PL_EXPORT int gds_stream_post_descriptors(CUstream stream, size_t n_descs, gds_descriptor_t* descs, int flags) try {
  const pl::errno_guard keeper;
  const auto ops = pl::gds::gather_all(n_descs, descs, flags);
  if (!ops) return refuse(__func__, ops.error());
  const auto posted = pl::gds::post_on_stream(reinterpret_cast<pl::cu::stream_t>(stream), *ops);
  return posted ? 0 : refuse(__func__, posted.error());
}
PL_NO_EXCEPTIONS

PL_EXPORT int gds_post_descriptors(size_t n_descs, gds_descriptor_t* descs, int flags) try {
  const pl::errno_guard keeper;
  const auto ops = pl::gds::gather_all(n_descs, descs, flags);
  if (!ops) return refuse(__func__, ops.error());
  const auto posted = pl::gds::post_on_cpu(*ops);
  return posted ? 0 : refuse(__func__, posted.error());
}
PL_NO_EXCEPTIONS

PL_EXPORT int gds_mlx5_get_dword_wait_info(uint32_t* ptr, uint32_t value, int flags,
                                           gds_mlx5_dword_wait_info_t* mlx5_info) try {
  const pl::errno_guard keeper;
  if (!pl::gds::is_word(ptr) || !pl::gds::has_only(flags, 0) || mlx5_info == nullptr)
    return refuse(
        __func__,
        {EINVAL, "ptr is not aligned to a word, flags are not exactly one memory type, or the output pointer is null"});
  const auto cuda = pl::gds::ready_driver();
  if (!cuda) return refuse(__func__, cuda.error());
  const auto word = pl::gds::device_address(**cuda, ptr, flags);
  if (!word) return refuse(__func__, word.error());
  *mlx5_info = {reinterpret_cast<uint32_t*>(*word), value};
  return 0;
}
PL_NO_EXCEPTIONS
