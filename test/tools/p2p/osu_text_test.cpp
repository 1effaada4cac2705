// SPDX-License-Identifier: Apache-2.0
// The text, byte by byte.
#include "tools/p2p/osu_text.hpp"

#include <gtest/gtest.h>

namespace pl::p2p {
namespace {

settings asked_for(benchmark kind, osu_format format = osu_format::v7_0) {
  settings out;
  out.kind = kind;
  out.format = format;
  return out;
}

settings on_gpus(benchmark kind, osu_format format = osu_format::v7_0) {
  settings out = asked_for(kind, format);
  out.names_accelerator = true;
  out.source = out.destination = memory_kind::device;
  return out;
}

std::string header(const settings& asked, int pairs = 1) { return osu_preamble(asked, pairs) + osu_columns(asked); }

TEST(OsuText, HostHeaders) {
  EXPECT_EQ(header(asked_for(benchmark::latency)),
            "# OSU MPI Latency Test v7.0\n"
            "# Size          Latency (us)\n");
  EXPECT_EQ(header(asked_for(benchmark::bandwidth)),
            "# OSU MPI Bandwidth Test v7.0\n"
            "# Size      Bandwidth (MB/s)\n");
  EXPECT_EQ(header(asked_for(benchmark::bidirectional)),
            "# OSU MPI Bi-Directional Bandwidth Test v7.0\n"
            "# Size      Bandwidth (MB/s)\n");
  EXPECT_EQ(header(asked_for(benchmark::multi_latency), 2),
            "# OSU MPI Multi Latency Test v7.0\n"
            "# Size          Latency (us)\n");
}

TEST(OsuText, DeviceHeader) {
  EXPECT_EQ(header(on_gpus(benchmark::latency)),
            "# OSU MPI-CUDA Latency Test v7.0\n"
            "# Send Buffer on DEVICE (D) and Receive Buffer on DEVICE (D)\n"
            "# Size          Latency (us)\n");
  auto mixed = on_gpus(benchmark::bandwidth);
  mixed.source = memory_kind::host;
  mixed.destination = memory_kind::managed_device;
  mixed.validate = true;
  EXPECT_EQ(header(mixed),
            "# OSU MPI-CUDA Bandwidth Test v7.0\n"
            "# Send Buffer on HOST (H) and Receive Buffer on MANAGED (MD)\n"
            "# Size      Bandwidth (MB/s)        Validation\n");
}

TEST(OsuText, NewerHeader) {
  EXPECT_EQ(header(on_gpus(benchmark::latency, osu_format::v7_5)),
            "\n# OSU MPI-CUDA Latency Test v7.5\n"
            "# Datatype: MPI_CHAR.\n"
            "# Size       Avg Latency(us)\n");
  EXPECT_EQ(header(asked_for(benchmark::multi_bandwidth, osu_format::v7_5), 4),
            "# OSU MPI Multiple Bandwidth / Message Rate Test v7.5\n"
            "# [ pairs: 4 ] [ window size: 64 ]\n"
            "# Datatype: MPI_CHAR.\n"
            "# Size                  MB/s        Messages/s\n");
}

TEST(OsuText, PairsHeaderNamesItselfTwice) {
  EXPECT_EQ(header(asked_for(benchmark::multi_bandwidth), 1024),
            "# OSU MPI Multiple Bandwidth / Message Rate Test v7.0\n"
            "# OSU MPI Multiple Bandwidth / Message Rate Test v7.0\n"
            "\n"
            "# [ pairs: 1024 ] [ window size: 64 ]\n"
            "# Size                  MB/s        Messages/s\n");
  auto varied = asked_for(benchmark::multi_bandwidth);
  varied.vary_window = true;
  EXPECT_EQ(osu_columns(varied),
            "#                 1           2           4           8          16          32"
            "          64         128\n");
}

TEST(OsuText, Rows) {
  const double latency[] = {2.4849};
  EXPECT_EQ(osu_row(1, latency, nullptr), "1                       2.48\n");
  EXPECT_EQ(osu_row(4194304, latency, "Pass"), "4194304                 2.48              Pass\n");
  const double rate[] = {8.36, 8361985.11};
  EXPECT_EQ(osu_row(1, rate, nullptr), "1                       8.36        8361985.11\n");
  EXPECT_EQ(osu_full_row(8, 2, 1.5, 30, 1000, nullptr),
            "8                       2.00              1.50             30.00"
            "        1000\n");
  const double windows[] = {1, 22.5};
  EXPECT_EQ(osu_window_row(16, windows), "16             1.00       22.50\n");
  EXPECT_EQ(osu_validation_error("osu_bw", 32), "DATA VALIDATION ERROR: osu_bw exited with status 1 on message size 32.\n");
}

TEST(OsuText, OwnTablesKeepTheColumns) {
  const std::string titles[] = {"ours (us)", "ucx/ours"};
  EXPECT_EQ(wide_header(titles), "# Size             ours (us)          ucx/ours\n");
  const cell cells[] = {{1.5, 2}, {4.25, 3}};
  EXPECT_EQ(wide_row(64, cells, nullptr), "64                      1.50             4.250\n");
}

}  // namespace
}  // namespace pl::p2p
