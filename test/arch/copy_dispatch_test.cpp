// SPDX-License-Identifier: Apache-2.0
#include "arch/copy_dispatch.hpp"

#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "arch/copy_routines.hpp"

namespace pl::arch {
namespace {

// ---- The choice, for CPUs that are not at hand -----------------------------------------------------------------------

constexpr copy_isa kAllIsas[] = {copy_isa::portable, copy_isa::sse2,      copy_isa::sse41, copy_isa::avx2,
                                 copy_isa::avx512,   copy_isa::movdir64b, copy_isa::neon};

bool has(const cpu_features& features, copy_isa isa) {
  switch (isa) {
    case copy_isa::portable:
      return true;
    case copy_isa::sse2:
      return features.sse2;
    case copy_isa::sse41:
      return features.sse41;
    case copy_isa::avx2:
      return features.avx2;
    case copy_isa::avx512:
      return features.avx512;
    case copy_isa::movdir64b:
      return features.movdir64b;
    case copy_isa::neon:
      return features.neon;
  }
  return false;
}

cpu_features features_of(unsigned bits) {
  return {.sse2 = (bits & 1) != 0,
          .sse41 = (bits & 2) != 0,
          .avx2 = (bits & 4) != 0,
          .avx512 = (bits & 8) != 0,
          .movdir64b = (bits & 16) != 0,
          .neon = (bits & 32) != 0};
}

// Every combination of features and every cap, against the preference order written as two lists.
TEST(CopyChoice, EveryCombination) {
  const std::vector<copy_isa> writes = {copy_isa::neon, copy_isa::movdir64b, copy_isa::avx512,
                                        copy_isa::avx2, copy_isa::sse2,      copy_isa::portable};
  const std::vector<copy_isa> reads = {copy_isa::neon,  copy_isa::avx512, copy_isa::avx2,
                                       copy_isa::sse41, copy_isa::sse2,   copy_isa::portable};
  for (unsigned bits = 0; bits < 64; ++bits) {
    const cpu_features features = features_of(bits);
    for (int cap_index = -1; cap_index < 7; ++cap_index) {
      std::optional<copy_isa> cap;
      if (cap_index >= 0) cap = kAllIsas[cap_index];
      const bool ignored = cap.has_value() && !has(features, *cap);
      const auto allowed = [&](copy_isa isa) { return has(features, isa) && (!cap || ignored || isa <= *cap); };
      const copy_choice expected{.write = *std::find_if(writes.begin(), writes.end(), allowed),
                                 .read = *std::find_if(reads.begin(), reads.end(), allowed),
                                 .cap_unavailable = ignored};
      EXPECT_EQ(choose_copy_isas(features, cap), expected) << "features " << bits << " cap " << cap_index;
    }
  }
}

TEST(CopyChoice, KnownCpus) {
  const auto names = [](const cpu_features& features, std::optional<copy_isa> cap = {}) {
    const copy_choice choice = choose_copy_isas(features, cap);
    return std::string(name_of(choice.write)) + "+" + name_of(choice.read);
  };
  const cpu_features sapphire_rapids{.sse2 = true, .sse41 = true, .avx2 = true, .avx512 = true, .movdir64b = true};
  const cpu_features rome{.sse2 = true, .sse41 = true, .avx2 = true};
  const cpu_features ice_lake{.sse2 = true, .sse41 = true, .avx2 = true, .avx512 = true};
  const cpu_features tremont{.sse2 = true, .sse41 = true, .movdir64b = true};
  const cpu_features grace{.neon = true};
  EXPECT_EQ(names(sapphire_rapids), "movdir64b+avx512");
  EXPECT_EQ(names(ice_lake), "avx512+avx512");
  EXPECT_EQ(names(rome), "avx2+avx2");
  EXPECT_EQ(names(tremont), "movdir64b+sse41");
  EXPECT_EQ(names(grace), "neon+neon");
  EXPECT_EQ(names({}), "portable+portable");
  EXPECT_EQ(names(sapphire_rapids, copy_isa::avx512), "avx512+avx512");
  EXPECT_EQ(names(sapphire_rapids, copy_isa::avx2), "avx2+avx2");
  EXPECT_EQ(names(sapphire_rapids, copy_isa::sse41), "sse2+sse41");
  EXPECT_EQ(names(sapphire_rapids, copy_isa::portable), "portable+portable");
  EXPECT_EQ(names(rome, copy_isa::avx512), "avx2+avx2") << "a cap that the CPU lacks is ignored";
}

TEST(CopyChoice, NamesOfTheVariable) {
  EXPECT_EQ(parse_copy_isa("auto"), std::nullopt);
  EXPECT_EQ(parse_copy_isa("AVX2"), std::nullopt);
  for (const copy_isa isa : kAllIsas) EXPECT_EQ(parse_copy_isa(name_of(isa)), isa);
}

// ---- The list --------------------------------------------------------------------------------------------------------

TEST(CopyDispatch, SupportedEntriesAreCompleteAndUnique) {
  std::vector<std::string> names;
  for (const copy_ops& ops : supported_copy_ops()) {
    ASSERT_NE(ops.name, nullptr);
    EXPECT_NE(ops.write, nullptr) << ops.name;
    EXPECT_NE(ops.read, nullptr) << ops.name;
    EXPECT_NE(ops.fill, nullptr) << ops.name;
    EXPECT_EQ(std::count(names.begin(), names.end(), ops.name), 0) << ops.name;
    names.emplace_back(ops.name);
  }
  ASSERT_FALSE(names.empty());
  EXPECT_EQ(names.front(), "portable");
}

// ---- The process-wide choice, each in a fresh process because it is made once ----------------------------------------

struct outcome {
  std::string output;  // what `report` returned
  std::string errors;  // stderr of the process
};

std::string read_all(int fd) {
  std::string text;
  char buffer[512];
  for (ssize_t count; (count = read(fd, buffer, sizeof buffer)) > 0;) text.append(buffer, static_cast<std::size_t>(count));
  close(fd);
  return text;
}

// In a child that has not used the dispatcher: nothing in this file may do so outside of in_new_process().
outcome in_new_process(const char* isa, const std::function<std::string()>& report) {
  int output[2], errors[2];
  if (pipe(output) != 0 || pipe(errors) != 0) std::abort();
  const pid_t child = fork();
  if (child == 0) {
    dup2(errors[1], STDERR_FILENO);
    if (isa != nullptr) setenv("PEERLANE_COPY_ISA", isa, 1);
    else unsetenv("PEERLANE_COPY_ISA");
    const std::string text = report();
    [[maybe_unused]] const ssize_t written = write(output[1], text.data(), text.size());
    _exit(0);
  }
  close(output[1]);
  close(errors[1]);
  outcome result{read_all(output[0]), read_all(errors[0])};
  int status = 0;
  waitpid(child, &status, 0);
  EXPECT_EQ(status, 0);
  return result;
}

std::string names_in_use() { return std::string(write_isa_name()) + "+" + read_isa_name(); }

TEST(CopyDispatch, ChoosesForThisCpu) {
  const copy_choice choice = choose_copy_isas(detect_cpu_features(), {});
  const std::string expected = std::string(name_of(choice.write)) + "+" + name_of(choice.read);
  EXPECT_EQ(in_new_process(nullptr, names_in_use).output, expected);
  EXPECT_EQ(in_new_process("auto", names_in_use).output, expected);
}

TEST(CopyDispatch, EveryForcedNameIsObeyedOrReportedOnce) {
  const cpu_features features = detect_cpu_features();
  for (const copy_isa isa : kAllIsas) {
    const copy_choice choice = choose_copy_isas(features, isa);
    const outcome seen = in_new_process(name_of(isa), [] {
      std::string names = names_in_use();
      copy_ops_for(mapping_type::wc);
      copy_ops_for(mapping_type::cached);
      return names + " " + names_in_use();
    });
    const std::string expected = std::string(name_of(choice.write)) + "+" + name_of(choice.read);
    EXPECT_EQ(seen.output, expected + " " + expected);
    const auto lines = std::count(seen.errors.begin(), seen.errors.end(), '\n');
    EXPECT_EQ(lines, has(features, isa) ? 0 : 1) << seen.errors;
    if (!has(features, isa)) { EXPECT_NE(seen.errors.find(name_of(isa)), std::string::npos) << seen.errors; }
  }
}

TEST(CopyDispatch, MalformedNameFallsBackToAuto) {
  const outcome seen = in_new_process("avx1024", names_in_use);
  EXPECT_EQ(seen.output, in_new_process(nullptr, names_in_use).output);
  EXPECT_NE(seen.errors.find("avx1024"), std::string::npos);
}

TEST(CopyDispatch, EachMappingTypeHasItsRoutines) {
  const outcome seen = in_new_process(nullptr, [] {
    std::string text;
    text += copy_ops_for(mapping_type::cached).write == cached::write ? "c" : "-";
    text += copy_ops_for(mapping_type::device).read == portable::read ? "d" : "-";
    text += copy_ops_for(mapping_type::none).read == portable::read ? "n" : "-";
    text += &copy_ops_for(mapping_type::wc) == &copy_ops_for(mapping_type::wc) ? "=" : "-";
    const std::string name = copy_ops_for(mapping_type::wc).name;
    const std::string both = names_in_use();
    const std::string same = write_isa_name();
    text += name == both || name + "+" + name == both ? "w" : "-";
    return text;
  });
  EXPECT_EQ(seen.output, "cdn=w");
}

TEST(CopyDispatch, ThreadsThatComeTogetherGetTheSameTable) {
  const outcome seen = in_new_process(nullptr, [] {
    const copy_ops* found[4] = {};
    std::vector<std::thread> threads;
    for (auto& slot : found) threads.emplace_back([&slot] { slot = &copy_ops_for(mapping_type::wc); });
    for (auto& thread : threads) thread.join();
    return std::string(
        found[0] != nullptr && found[0] == found[1] && found[0] == found[2] && found[0] == found[3] ? "same" : "differ");
  });
  EXPECT_EQ(seen.output, "same");
}

// ---- The helpers on top ----------------------------------------------------------------------------------------------

// "" or the first case that went wrong.
std::string round_trip(mapping_type type, std::size_t offset, std::size_t bytes) {
  alignas(64) unsigned char device[192], host[64], back[65];
  for (std::size_t i = 0; i < sizeof host; ++i) host[i] = static_cast<unsigned char>(i + 1);
  std::memset(device, 0xee, sizeof device);
  std::memset(back, 0xdd, sizeof back);
  unsigned char* const target = device + 32 + offset;
  copy_to(type, target, host, bytes);
  if (target[-1] != 0xee || target[bytes] != 0xee) return "copy_to wrote outside";
  copy_from(type, back, target, bytes);
  if (std::memcmp(back, host, bytes) != 0) return "copy_from or copy_to lost bytes";
  if (back[bytes] != 0xdd) return "copy_from wrote outside";
  fill_to(type, target, 0x4242424242424242u, bytes);
  copy_from(type, back, target, bytes);
  for (std::size_t i = 0; i < bytes; ++i)
    if (back[i] != 0x42) return "fill_to lost bytes";
  if (target[-1] != 0xee || target[bytes] != 0xee) return "fill_to wrote outside";
  return {};
}

TEST(CopyHelpers, RoundTripForEveryTypeAndSmallSize) {
  const outcome seen = in_new_process(nullptr, [] {
    for (const mapping_type type : {mapping_type::none, mapping_type::wc, mapping_type::cached, mapping_type::device})
      for (std::size_t offset = 0; offset < 64; ++offset)
        for (std::size_t bytes = 0; bytes <= 64; ++bytes)
          if (const std::string reason = round_trip(type, offset, bytes); !reason.empty())
            return reason + ", type " + std::to_string(static_cast<int>(type)) + " offset " + std::to_string(offset) +
                   " bytes " + std::to_string(bytes);
    return std::string("fine");
  });
  EXPECT_EQ(seen.output, "fine");
}

TEST(CopyHelpers, FencesExistForEveryType) {
  for (const mapping_type type : {mapping_type::none, mapping_type::wc, mapping_type::cached, mapping_type::device}) {
    publish_to_device(type);
    order_before_reads(type);
    order_after_reads(type);
  }
  relax();
}

}  // namespace
}  // namespace pl::arch
