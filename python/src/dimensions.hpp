// SPDX-License-Identifier: Apache-2.0
// Shape or strides of a tensor, stored inline: an allocation would take longer than a copy of a few bytes.
#pragma once

#include <nanobind/nanobind.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <initializer_list>

namespace pl::py {

class dimensions {
 public:
  static constexpr std::size_t kMax = 64;  // NumPy's and PyTorch's limit

  dimensions() noexcept {}  // NOLINT(modernize-use-equals-default): the values stay unwritten
  dimensions(std::initializer_list<std::int64_t> values) { assign(values.begin(), values.size()); }
  template <class T>
  dimensions(const T* values, std::size_t count) {
    assign(values, count);
  }
  dimensions(const dimensions& other) noexcept { *this = other; }
  dimensions& operator=(const dimensions& other) noexcept {
    count_ = other.count_;
    std::copy_n(other.begin(), count_, begin());
    return *this;
  }
  ~dimensions() = default;

  template <class T>
  void assign(const T* values, std::size_t count) {
    resize(count);
    std::copy_n(values, count, begin());
  }
  void resize(std::size_t count) {
    if (count > kMax) throw nanobind::value_error("a tensor of more than 64 dimensions");
    count_ = count;
  }
  void push_back(std::int64_t value) {
    resize(count_ + 1);
    values_[count_ - 1] = value;
  }

  std::size_t size() const noexcept { return count_; }
  std::int64_t& operator[](std::size_t i) noexcept { return values_[i]; }
  std::int64_t operator[](std::size_t i) const noexcept { return values_[i]; }
  std::int64_t* begin() noexcept { return values_.data(); }
  std::int64_t* end() noexcept { return values_.data() + count_; }
  const std::int64_t* begin() const noexcept { return values_.data(); }
  const std::int64_t* end() const noexcept { return values_.data() + count_; }
  bool operator==(const dimensions& other) const noexcept { return std::equal(begin(), end(), other.begin(), other.end()); }

 private:
  std::size_t count_ = 0;
  std::array<std::int64_t, kMax> values_;
};

}  // namespace pl::py
