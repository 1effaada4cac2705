// SPDX-License-Identifier: Apache-2.0
// Element types of tensors, and the conversion between a Python number and the bytes of one element.
#pragma once

#include <Python.h>

#include <cstdint>
#include <string>
#include <string_view>

namespace pl::py {

enum class element_kind : std::uint8_t { boolean, signed_integer, unsigned_integer, real, brain, complex, opaque };

// `name`: only for opaque types, their name in ml_dtypes (float8_e4m3fn). Null: plain bytes.
struct element_type {
  element_kind kind = element_kind::opaque;
  std::uint32_t bytes = 1;
  const char* name = nullptr;

  // Whether elements of one type may be copied to the other. NumPy has no bfloat16 and float8, so unsigned integers and
  // bytes of the same size are accepted for them.
  bool fits(const element_type& other) const {
    const auto is_bits = [](element_kind k) {
      return k == element_kind::opaque || k == element_kind::brain || k == element_kind::unsigned_integer;
    };
    if (bytes != other.bytes) return false;
    return kind == other.kind || is_plain() || other.is_plain() || (is_bits(kind) && is_bits(other.kind));
  }
  bool is_plain() const { return kind == element_kind::opaque && name == nullptr; }
};

constexpr std::uint32_t kLargestScalar = 16;  // complex128

// "float32", "bfloat16", "V12": NumPy's or ml_dtypes' name.
std::string name_of(const element_type& type);
// The type of that name ("torch.float32" and "float32" alike); false: unknown.
bool type_of_name(std::string_view name, element_type& out);
// From the typestr of an array interface ("<f4"). False: unknown, or big-endian.
bool type_of_typestr(std::string_view typestr, element_type& out);
// The same from its parts, 'f' and 4.
bool type_of_letter(char letter, std::uint32_t bytes, element_type& out);
// The typestr of a type. Types that NumPy does not have become unsigned integers or bytes of the same size.
std::string typestr_of(const element_type& type);

// Returns the element at `bytes` as a new Python object (opaque types as bytes), or null with a Python error set.
PyObject* decode(const element_type& type, const void* bytes);
// False with a Python error set: not a number, or outside the type's range. Reals round to the nearest, ties to even.
bool encode(const element_type& type, PyObject* value, void* bytes);

}  // namespace pl::py
