// SPDX-License-Identifier: Apache-2.0
// result<T>: a value, or an error that says what failed and what to do next.
//
// Expected failures (no GPU, invalid size, freed memory) are values; exceptions are not used. The code is a positive errno
// value, the one that the C interface returns.
#pragma once

#include <cassert>
#include <cerrno>
#include <optional>
#include <string>
#include <utility>

namespace peerlane {

// One failure. `message` names the object, the cause and the next step, in that order.
struct failure {
  int code = EIO;       // positive errno value, never 0
  std::string message;  // one line, no trailing newline
};

// Either a T or an error. Move-only if T is. Not thread-safe: a plain value like std::optional.
template <class T>
class [[nodiscard]] result {
 public:
  result(T value) : value_(std::move(value)) {}                       // NOLINT(google-explicit-constructor)
  result(failure reason) : error_(std::move(reason)) { fix_code(); }  // NOLINT(google-explicit-constructor)

  explicit operator bool() const { return value_.has_value(); }
  bool ok() const { return value_.has_value(); }

  // Precondition: ok(). Checked by assert in debug builds.
  T& value() & {
    assert(ok());
    return *value_;
  }
  const T& value() const& {
    assert(ok());
    return *value_;
  }
  T&& value() && {
    assert(ok());
    return std::move(*value_);
  }
  T& operator*() & { return value(); }
  const T& operator*() const& { return value(); }
  T&& operator*() && { return std::move(*this).value(); }
  T* operator->() { return &value(); }
  const T* operator->() const { return &value(); }

  // Precondition: !ok().
  const failure& error() const& {
    assert(!ok());
    return error_;
  }
  failure&& error() && {
    assert(!ok());
    return std::move(error_);
  }

  // 0 when ok, otherwise the errno value.
  int code() const { return ok() ? 0 : error_.code; }

 private:
  void fix_code() {
    if (error_.code == 0) error_.code = EIO;
  }
  std::optional<T> value_;
  failure error_;
};

// Success or an error. A default-constructed one is success.
template <>
class [[nodiscard]] result<void> {
 public:
  result() = default;
  result(failure reason) : error_(std::move(reason)), failed_(true) {  // NOLINT(google-explicit-constructor)
    if (error_.code == 0) error_.code = EIO;
  }
  explicit operator bool() const { return !failed_; }
  bool ok() const { return !failed_; }
  const failure& error() const& {
    assert(failed_);
    return error_;
  }
  failure&& error() && {
    assert(failed_);
    return std::move(error_);
  }
  int code() const { return failed_ ? error_.code : 0; }

 private:
  failure error_;
  bool failed_ = false;
};

using status = result<void>;

}  // namespace peerlane
