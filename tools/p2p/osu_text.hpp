// SPDX-License-Identifier: Apache-2.0
// The text of the OSU micro-benchmarks, to the byte: scripts and plotting programs parse it. Pure functions.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "tools/p2p/settings.hpp"

namespace pl::p2p {

// The output of OSU's -v: the title with its version.
std::string osu_version(const settings& asked);

// Everything before the first row: what the run is, and the titles of the columns.
std::string osu_preamble(const settings& asked, int pairs);
std::string osu_columns(const settings& asked);

// One row. `values` are what follows the size: bandwidth and message rate, or a latency. `verdict`: "Pass", "Fail", or
// null without -c.
std::string osu_row(std::size_t size_bytes, std::span<const double> values, const char* verdict);

// With -f: minimum, maximum and iterations after the value.
std::string osu_full_row(std::size_t size_bytes, double value, double lowest, double highest, int iterations,
                         const char* verdict);

// -V: one line of the two tables, and what stands between them.
// The barrier's one row has no size.
std::string osu_barrier_row(double value);
std::string osu_full_barrier_row(double value, double lowest, double highest, int iterations);

std::string osu_window_row(std::size_t size_bytes, std::span<const double> by_window);
std::string osu_message_rate_title();

// The last line of a run that failed its validation.
std::string osu_validation_error(const std::string& program, std::size_t size_bytes);

// Our own tables, in the same columns: a header of titles, and rows of numbers with their digits after the point.
struct cell {
  double value = 0;
  int digits = 2;
};
std::string wide_header(std::span<const std::string> titles);
std::string wide_row(std::size_t size_bytes, std::span<const cell> cells, const char* verdict);

}  // namespace pl::p2p
