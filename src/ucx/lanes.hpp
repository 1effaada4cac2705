// SPDX-License-Identifier: Apache-2.0
// What UCX says of its transports, and of the lanes of an endpoint. 1.13 does so in words only, which its print functions
// write to a file; nothing here needs UCX but the callers' `print`.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <string>
#include <string_view>
#include <vector>

namespace pl::ucx {

// What print(std::FILE*) writes. Empty also where there is no memory for it.
template <class Print>
std::string printed(Print print) {
  char* text = nullptr;
  std::size_t bytes = 0;
  std::FILE* const output = open_memstream(&text, &bytes);
  if (output == nullptr) return {};
  print(output);
  std::fclose(output);
  std::string out(text, bytes);
  std::free(text);
  return out;
}

// Of ucp_context_print_info: "tcp/lo,self/memory", each once.
std::string transports_in(std::string_view text);

struct lane {
  std::string name;          // "rc_verbs/mlx5_0:1": transport and device
  bool is_for_bulk = false;  // UCX reads or writes the peer's memory with it; TCP has such lanes too
};

// Of ucp_ep_print_info, in its order. An endpoint keeps the lanes that it was made with.
std::vector<lane> lanes_in(std::string_view text);

// Their names, each once: "tcp/eth0,tcp/eth1".
std::string names_of(const std::vector<lane>& lanes);

// Whether one of them moves bulk data by RDMA, without the peer's CPU.
bool has_rdma_lane(const std::vector<lane>& lanes);

}  // namespace pl::ucx
