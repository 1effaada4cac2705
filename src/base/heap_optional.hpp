// SPDX-License-Identifier: Apache-2.0
// A std::optional whose value lies on the heap: as small as a pointer, for fields that are rarely set in an object that is
// often made and moved. The same members with the same meaning; copies are deep.
#pragma once

#include <memory>
#include <optional>
#include <type_traits>
#include <utility>

namespace pl {

template <class T>
class heap_optional {
  template <class Value>
  static constexpr bool is_value =
      std::is_constructible_v<T, Value> && !std::is_same_v<std::remove_cvref_t<Value>, heap_optional> &&
      !std::is_same_v<std::remove_cvref_t<Value>, std::optional<T>> &&
      !std::is_same_v<std::remove_cvref_t<Value>, std::nullopt_t>;

 public:
  heap_optional() = default;
  heap_optional(std::nullopt_t) noexcept {}
  template <class Value = T>
  requires is_value<Value> heap_optional(Value&& value) : value_(std::make_unique<T>(std::forward<Value>(value))) {}
  heap_optional(std::optional<T> value) : value_(value ? std::make_unique<T>(*std::move(value)) : nullptr) {}
  heap_optional(const heap_optional& other) : value_(other.value_ ? std::make_unique<T>(*other.value_) : nullptr) {}
  heap_optional(heap_optional&&) noexcept = default;
  heap_optional& operator=(const heap_optional& other) { return *this = heap_optional(other); }
  // Unlike std::optional's, the moved-from object is empty.
  heap_optional& operator=(heap_optional&&) noexcept = default;
  template <class Value = T>
  requires is_value<Value> heap_optional& operator=(Value&& value) {
    value_ = std::make_unique<T>(std::forward<Value>(value));
    return *this;
  }
  ~heap_optional() = default;

  bool has_value() const noexcept { return value_ != nullptr; }
  explicit operator bool() const noexcept { return has_value(); }
  // Precondition for these four: there is a value.
  T& operator*() noexcept { return *value_; }
  const T& operator*() const noexcept { return *value_; }
  T* operator->() noexcept { return value_.get(); }
  const T* operator->() const noexcept { return value_.get(); }

  template <class... Arguments>
  T& emplace(Arguments&&... arguments) {
    value_ = std::make_unique<T>(std::forward<Arguments>(arguments)...);
    return *value_;
  }
  void reset() noexcept { value_.reset(); }
  template <class Other>
  T value_or(Other&& other) const {
    return value_ ? *value_ : static_cast<T>(std::forward<Other>(other));
  }
  // Unlike the conversion to std::optional, which would be found by accident, this is asked for by name.
  std::optional<T> copy() const { return value_ ? std::optional<T>(*value_) : std::nullopt; }
  friend bool operator==(const heap_optional& one, const heap_optional& other) {
    return one.value_ && other.value_ ? *one.value_ == *other.value_ : !one.value_ && !other.value_;
  }

 private:
  std::unique_ptr<T> value_;
};

}  // namespace pl
