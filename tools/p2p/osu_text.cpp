// SPDX-License-Identifier: Apache-2.0
#include "tools/p2p/osu_text.hpp"

#include "base/text.hpp"

namespace pl::p2p {
namespace {

constexpr int kSizeColumns = 10;
constexpr int kValueColumns = 18;
constexpr int kCountColumns = 12;
constexpr const char* kDatatypeLine = "# Datatype: MPI_CHAR.\n";

const char* title_of(benchmark kind) {
  switch (kind) {
    case benchmark::latency:
      return "OSU MPI%s Latency Test";
    case benchmark::bandwidth:
      return "OSU MPI%s Bandwidth Test";
    case benchmark::bidirectional:
      return "OSU MPI%s Bi-Directional Bandwidth Test";
    // The programs for several pairs do not name the accelerator.
    case benchmark::multi_bandwidth:
      return "OSU MPI Multiple Bandwidth / Message Rate Test";
    case benchmark::multi_latency:
      return "OSU MPI Multi Latency Test";
    case benchmark::put_latency:
      return "OSU MPI_Put%s Latency Test";
    case benchmark::put_bandwidth:
      return "OSU MPI_Put%s Bandwidth Test";
    case benchmark::get_latency:
      return "OSU MPI_Get%s latency Test";
    case benchmark::get_bandwidth:
      return "OSU MPI_Get%s Bandwidth Test";
    case benchmark::fetch_latency:
      return "OSU MPI_Fetch_and_op%s latency Test";
    case benchmark::compare_latency:
      return "OSU MPI_Compare_and_swap%s latency Test";
    case benchmark::barrier:
      return "OSU MPI%s Barrier Latency Test";
    case benchmark::broadcast:
      return "OSU MPI%s Broadcast Latency Test";
    case benchmark::gather:
      return "OSU MPI%s Gather Latency Test";
    case benchmark::scatter:
      return "OSU MPI%s Scatter Latency Test";
    case benchmark::all_gather:
      return "OSU MPI%s Allgather Latency Test";
    case benchmark::reduce:
      return "OSU MPI%s Reduce Latency Test";
    case benchmark::all_reduce:
      return "OSU MPI%s Allreduce Latency Test";
    case benchmark::reduce_scatter:
      return "OSU MPI%s Reduce_scatter Latency Test";
    case benchmark::all_to_all:
      return "OSU MPI%s All-to-All Personalized Exchange Latency Test";
    case benchmark::all_to_all_v:
      return "OSU MPI%s All-to-Allv Personalized Exchange Latency Test";
  }
  return "";
}

std::string title_line(const settings& asked) {
  std::string title = title_of(asked.kind);
  if (const auto position = title.find("%s"); position != std::string::npos)
    title.replace(position, 2, asked.names_accelerator ? "-CUDA" : "");
  return "# " + title + (asked.format == osu_format::v7_0 ? " v7.0\n" : " v7.5\n");
}

const char* place_name(memory_kind kind) {
  switch (kind) {
    case memory_kind::host:
      return "HOST (H)";
    case memory_kind::device:
      return "DEVICE (D)";
    case memory_kind::managed_host:
      return "MANAGED (MH)";
    case memory_kind::managed_device:
      return "MANAGED (MD)";
  }
  return "";
}

std::string places_line(const settings& asked) {
  if (!asked.names_accelerator) return "";
  return format("# Send Buffer on %s and Receive Buffer on %s\n", place_name(asked.source), place_name(asked.destination));
}

std::string right(const std::string& text) { return format("%*s", kValueColumns, text.c_str()); }

std::string window_columns() {
  std::string line = "#      ";
  for (const int window : kVariedWindows) line += format("  %10d", window);
  return line + "\n";
}

std::string pairs_preamble(const settings& asked, int pairs) {
  // Version 7.0 prints its title twice here and ends the second time with an empty line.
  std::string text = title_line(asked);
  if (asked.format == osu_format::v7_0) text += title_line(asked) + places_line(asked) + "\n";
  text += asked.vary_window
              ? format("# [ pairs: %d ] [ window size: varied ]\n\n# Uni-directional Bandwidth (MB/sec)\n", pairs)
              : format("# [ pairs: %d ] [ window size: %d ]\n", pairs, asked.window);
  return asked.format == osu_format::v7_5 ? text + kDatatypeLine : text;
}

}  // namespace

std::string osu_version(const settings& asked) { return title_line(asked); }

std::string osu_preamble(const settings& asked, int pairs) {
  if (asked.kind == benchmark::multi_bandwidth) return pairs_preamble(asked, pairs);
  if (is_collective(asked.kind)) {
    const bool names_type = asked.format == osu_format::v7_5 && asked.kind != benchmark::barrier;
    const char* const type = has_elements(asked.kind) ? "# Datatype: MPI_FLOAT.\n" : kDatatypeLine;
    return "\n" + title_line(asked) + (names_type ? type : "");
  }
  if (is_one_sided(asked.kind))
    return title_line(asked) + places_line(asked) +
           (asked.destination == memory_kind::host ? "# Window creation: MPI_Win_allocate\n"
                                                   : "# Window creation: MPI_Win_create\n") +
           "# Synchronization: MPI_Win_flush\n";
  if (asked.format == osu_format::v7_0) return title_line(asked) + places_line(asked);
  return "\n" + title_line(asked) + kDatatypeLine;
}

std::string osu_columns(const settings& asked) {
  if (asked.vary_window) return window_columns();
  std::string line = format("%-*s", kSizeColumns, "# Size");
  if (asked.kind == benchmark::barrier) {
    line = "# Avg Latency(us)";
  } else if (is_collective(asked.kind)) {
    line += right("Avg Latency(us)");
  } else if (asked.kind == benchmark::multi_bandwidth) {
    line += right("MB/s");
    if (asked.print_rate) line += right("Messages/s");
  } else if (!is_latency(asked.kind)) {
    line += right("Bandwidth (MB/s)");
  } else {
    line += right(asked.format == osu_format::v7_0 ? "Latency (us)" : "Avg Latency(us)");
  }
  if (asked.full && is_latency(asked.kind))
    line += right("Min Latency(us)") + right("Max Latency(us)") + format("%*s", kCountColumns, "Iterations");
  if (asked.validate) line += right("Validation");
  return line + "\n";
}

std::string osu_row(std::size_t size_bytes, std::span<const double> values, const char* verdict) {
  std::string line = format("%-*zu", kSizeColumns, size_bytes);
  for (const double value : values) line += format("%*.2f", kValueColumns, value);
  if (verdict != nullptr) line += right(verdict);
  return line + "\n";
}

std::string osu_full_row(std::size_t size_bytes, double value, double lowest, double highest, int iterations,
                         const char* verdict) {
  std::string line = format("%-*zu%*.2f%*.2f%*.2f%*d", kSizeColumns, size_bytes, kValueColumns, value, kValueColumns, lowest,
                            kValueColumns, highest, kCountColumns, iterations);
  if (verdict != nullptr) line += right(verdict);
  return line + "\n";
}

std::string osu_barrier_row(double value) { return format("%*.2f\n", kValueColumns - 1, value); }

std::string osu_full_barrier_row(double value, double lowest, double highest, int iterations) {
  return format("%*.2f%*.2f%*.2f%*d\n", kValueColumns - 1, value, kValueColumns, lowest, kValueColumns, highest,
                kCountColumns, iterations);
}

std::string osu_window_row(std::size_t size_bytes, std::span<const double> by_window) {
  std::string line = format("%-7zu", size_bytes);
  for (const double value : by_window) line += format("  %10.2f", value);
  return line + "\n";
}

std::string osu_message_rate_title() { return "\n# Message Rate Profile\n" + window_columns(); }

std::string osu_validation_error(const std::string& program, std::size_t size_bytes) {
  return format("DATA VALIDATION ERROR: %s exited with status 1 on message size %zu.\n", program.c_str(), size_bytes);
}

std::string wide_header(std::span<const std::string> titles) {
  std::string line = format("%-*s", kSizeColumns, "# Size");
  for (const auto& title : titles) line += right(title);
  return line + "\n";
}

std::string wide_row(std::size_t size_bytes, std::span<const cell> cells, const char* verdict) {
  std::string line = format("%-*zu", kSizeColumns, size_bytes);
  for (const auto& one : cells) line += format("%*.*f", kValueColumns, one.digits, one.value);
  if (verdict != nullptr) line += right(verdict);
  return line + "\n";
}

}  // namespace pl::p2p
