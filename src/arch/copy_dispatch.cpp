// SPDX-License-Identifier: Apache-2.0
#include "arch/copy_dispatch.hpp"

#include <string>
#include <vector>

#include "arch/copy_routines.hpp"
#include "base/env.hpp"
#include "base/log.hpp"

namespace pl::arch {
namespace {

// One row for each implementation, slowest first. Null: it has no such routine and uses that of the row before it.
struct implementation {
  copy_isa isa;
  bool cpu_features::*needs;  // null: runs everywhere
  // Whether it is in the preference order of choose_copy_isas, or only offered to tests and benchmarks.
  bool is_candidate;
  copy_ops ops;
};

constexpr implementation kImplementations[] = {
    {copy_isa::portable, nullptr, false, {"portable", portable::write, portable::read, portable::fill}},
#if defined(__x86_64__)
    {copy_isa::sse2, &cpu_features::sse2, false, {"sse2", sse2::write, sse2::read, sse2::fill}},
    {copy_isa::sse41, &cpu_features::sse41, false, {"sse41", nullptr, sse41::read, nullptr}},
    {copy_isa::avx2, &cpu_features::avx2, false, {"avx2", avx2::write, avx2::read, avx2::fill}},
    {copy_isa::avx512, &cpu_features::avx512, false, {"avx512", avx512::write, avx512::read, avx512::fill}},
    {copy_isa::avx512, &cpu_features::avx512, true, {"avx512_masked", avx512::write_masked, nullptr, avx512::fill_masked}},
    {copy_isa::movdir64b, &cpu_features::movdir64b, false, {"movdir64b", movdir64b::write, nullptr, movdir64b::fill}},
#elif defined(__aarch64__)
    {copy_isa::neon, &cpu_features::neon, false, {"neon", neon::write, neon::read, neon::fill}},
#endif
};

const copy_ops& ops_of(copy_isa isa) {
  for (const auto& entry : kImplementations)
    if (entry.isa == isa && !entry.is_candidate) return entry.ops;
  return kImplementations[0].ops;
}

const char* const kIsaNames[] = {"portable", "sse2", "sse41", "avx2", "avx512", "movdir64b", "neon"};

std::vector<copy_ops> list_supported() {
  const cpu_features features = detect_cpu_features();
  std::vector<copy_ops> list;
  for (const auto& entry : kImplementations) {
    if (entry.needs != nullptr && !(features.*entry.needs)) continue;
    copy_ops ops = entry.ops;
    if (ops.write == nullptr) ops.write = list.back().write;
    if (ops.read == nullptr) ops.read = list.back().read;
    if (ops.fill == nullptr) ops.fill = list.back().fill;
    list.push_back(ops);
  }
  return list;
}

#if defined(__x86_64__)
// Direct stores are as fast for short copies. For longer ones, a core has fewer of them in flight than lines that leave
// its write-combining buffers (docs/results/dma/h200/barrier_writes.txt).
constexpr std::size_t kLongWriteBytes = 1u << 10;
void write_by_size(void* device, const void* host, std::size_t bytes) {
  (bytes < kLongWriteBytes ? movdir64b::write : avx512::write)(device, host, bytes);
}
#endif

// Everything that is decided once. Never destroyed, so that destructors at exit may still copy.
struct selection {
  copy_choice choice;
  std::string wc_name;
  copy_ops by_type[4];

  selection() {
    const env_value wanted = env_read("PEERLANE_COPY_ISA");
    const cpu_features features = detect_cpu_features();
    choice = choose_copy_isas(features, parse_copy_isa(wanted.text));
    // Logged directly, as for malformed values: whoever set the variable did so on purpose and wants to know.
    if (choice.cap_unavailable)
      log_line(log_level::error, "PEERLANE_COPY_ISA=%s: this CPU lacks it; write %s and read %s are used",
               wanted.text.c_str(), name_of(choice.write), name_of(choice.read));
    wc_name = name_of(choice.write);
    if (choice.read != choice.write) wc_name.append("+").append(name_of(choice.read));
    const copy_ops& to_device = ops_of(choice.write);
    const copy_ops& from_device = ops_of(choice.read);
    const copy_ops plain = {"portable", portable::write, portable::read, portable::fill};
    by_type[static_cast<int>(mapping_type::none)] = plain;
    by_type[static_cast<int>(mapping_type::wc)] = {wc_name.c_str(), to_device.write, from_device.read, to_device.fill};
#if defined(__x86_64__)
    if (choice.write == copy_isa::movdir64b && features.avx512)
      by_type[static_cast<int>(mapping_type::wc)].write = write_by_size;
#endif
    by_type[static_cast<int>(mapping_type::cached)] = {"libc", cached::write, cached::read, cached::fill};
    by_type[static_cast<int>(mapping_type::device)] = plain;
    PL_LOG(debug, "CPU copies: write %s, read %s", name_of(choice.write), name_of(choice.read));
  }
};

const selection& chosen() {
  static const selection* const once = new selection;
  return *once;
}

}  // namespace

const char* name_of(copy_isa isa) { return kIsaNames[static_cast<int>(isa)]; }

std::optional<copy_isa> parse_copy_isa(std::string_view text) {
  for (int index = 0; index < static_cast<int>(std::size(kIsaNames)); ++index)
    if (text == kIsaNames[index]) return static_cast<copy_isa>(index);
  return std::nullopt;
}

copy_choice choose_copy_isas(const cpu_features& features, std::optional<copy_isa> cap) {
  struct candidate {
    copy_isa isa;
    bool available, writes, reads;
  };
  // Best first, for each direction.
  const candidate candidates[] = {
      {copy_isa::neon, features.neon, true, true},     {copy_isa::movdir64b, features.movdir64b, true, false},
      {copy_isa::avx512, features.avx512, true, true}, {copy_isa::avx2, features.avx2, true, true},
      {copy_isa::sse41, features.sse41, false, true},  {copy_isa::sse2, features.sse2, true, true},
      {copy_isa::portable, true, true, true},
  };
  copy_choice choice;
  if (cap.has_value())
    for (const candidate& entry : candidates)
      if (entry.isa == *cap && !entry.available) choice.cap_unavailable = true;
  const copy_isa highest = cap.has_value() && !choice.cap_unavailable ? *cap : copy_isa::neon;

  bool have_write = false, have_read = false;
  for (const candidate& entry : candidates) {
    if (!entry.available || entry.isa > highest) continue;
    if (entry.writes && !have_write) choice.write = entry.isa, have_write = true;
    if (entry.reads && !have_read) choice.read = entry.isa, have_read = true;
  }
  return choice;
}

std::span<const copy_ops> supported_copy_ops() {
  static const std::vector<copy_ops>* const list = new std::vector<copy_ops>(list_supported());
  return *list;
}

const char* write_isa_name() { return name_of(chosen().choice.write); }
const char* read_isa_name() { return name_of(chosen().choice.read); }

void write_commands_unfenced(void* device, const void* host, std::size_t bytes) noexcept {
  static void (*const write)(void*, const void*, std::size_t) = ops_of(chosen().choice.write).write;
  write(device, host, bytes);
}

namespace detail {

constinit std::atomic<const copy_ops*> active_ops[4] = {};

const copy_ops& resolve_copy_ops(mapping_type type) {
  const selection& made = chosen();
  // Two threads may both get here; they store the same values.
  for (unsigned index = 0; index < 4; ++index) active_ops[index].store(&made.by_type[index], std::memory_order_release);
  return made.by_type[static_cast<unsigned>(type) & 3u];
}

}  // namespace detail
}  // namespace pl::arch
