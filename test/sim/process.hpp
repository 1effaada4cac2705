// SPDX-License-Identifier: Apache-2.0
// Tests that need a second driver user start a program anew: a forked child has no working driver, by design.
#pragma once

#include <string>
#include <vector>

namespace pl::cu {

// Runs gtest cases in a process of its own with more environment. Its exit status; 0 = all passed.
int run_child(const std::string& cases, const std::vector<std::string>& environment);  // of process_child.cpp
int run_self(const std::string& cases, const std::vector<std::string>& environment);   // of the running program

// Forks; the child's only work is body(), whose value is returned (-1 if it crashed).
int in_forked_child(int (*body)());

std::string to_hex(const void* data, std::size_t bytes);
void from_hex(const char* text, void* data, std::size_t bytes);

}  // namespace pl::cu
