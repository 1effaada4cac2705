// SPDX-License-Identifier: Apache-2.0
// The C++ exception that module.cpp translates to peerlane.Error (peerlane/_errors.py).
#pragma once

#include <cerrno>
#include <exception>
#include <peerlane/result.hpp>
#include <string>
#include <utility>

namespace pl::py {

class error : public std::exception {
 public:
  error(int code, std::string message) : code_(code), message_(std::move(message)) {}
  explicit error(const peerlane::failure& reason) : error(reason.code, reason.message) {}
  int code() const noexcept { return code_; }
  const char* what() const noexcept override { return message_.c_str(); }

 private:
  int code_;
  std::string message_;
};

// The memory of a mapping was freed (ESTALE). Becomes peerlane.StaleMapping; ESTALE of other calls does not.
class stale_mapping : public error {
 public:
  explicit stale_mapping(std::string message) : error(ESTALE, std::move(message)) {}
};

template <class T>
T value_of(peerlane::result<T> outcome) {
  if (!outcome) throw error(outcome.error());
  return *std::move(outcome);
}
inline void must(const peerlane::status& outcome) {
  if (!outcome) throw error(outcome.error());
}

}  // namespace pl::py
