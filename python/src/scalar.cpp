// SPDX-License-Identifier: Apache-2.0
#include "scalar.hpp"

#include <algorithm>
#include <array>
#include <cmath>
#include <cstring>
#include <initializer_list>

namespace pl::py {
namespace {

struct named_type {
  std::string_view name;
  element_type type;
};

constexpr std::array kTypes = {
    named_type{"bool", {element_kind::boolean, 1}},
    named_type{"int8", {element_kind::signed_integer, 1}},
    named_type{"int16", {element_kind::signed_integer, 2}},
    named_type{"int32", {element_kind::signed_integer, 4}},
    named_type{"int64", {element_kind::signed_integer, 8}},
    named_type{"uint8", {element_kind::unsigned_integer, 1}},
    named_type{"uint16", {element_kind::unsigned_integer, 2}},
    named_type{"uint32", {element_kind::unsigned_integer, 4}},
    named_type{"uint64", {element_kind::unsigned_integer, 8}},
    named_type{"float16", {element_kind::real, 2}},
    named_type{"float32", {element_kind::real, 4}},
    named_type{"float64", {element_kind::real, 8}},
    named_type{"bfloat16", {element_kind::brain, 2}},
    named_type{"complex64", {element_kind::complex, 8}},
    named_type{"complex128", {element_kind::complex, 16}},
    named_type{"float8_e4m3fn", {element_kind::opaque, 1, "float8_e4m3fn"}},
    named_type{"float8_e4m3fnuz", {element_kind::opaque, 1, "float8_e4m3fnuz"}},
    named_type{"float8_e5m2", {element_kind::opaque, 1, "float8_e5m2"}},
    named_type{"float8_e5m2fnuz", {element_kind::opaque, 1, "float8_e5m2fnuz"}},
    named_type{"float8_e8m0fnu", {element_kind::opaque, 1, "float8_e8m0fnu"}},
};

struct small_real {
  int exponent_bits;
  int fraction_bits;
  int bias() const { return (1 << (exponent_bits - 1)) - 1; }
  unsigned infinity() const { return ((1u << exponent_bits) - 1) << fraction_bits; }
};
constexpr small_real kHalf{5, 10};
constexpr small_real kBrain{8, 7};

// Rounds directly from double, in units of the last place: going through float would round twice.
std::uint16_t narrow(double value, small_real format) {
  const unsigned sign = std::signbit(value) ? 0x8000u : 0;
  if (std::isnan(value)) return static_cast<std::uint16_t>(sign | format.infinity() | (1u << (format.fraction_bits - 1)));
  if (std::isinf(value)) return static_cast<std::uint16_t>(sign | format.infinity());
  if (value == 0) return static_cast<std::uint16_t>(sign);
  int exponent = std::ilogb(value);
  if (exponent > format.bias()) return static_cast<std::uint16_t>(sign | format.infinity());
  exponent = std::max(exponent, 1 - format.bias());  // all subnormal numbers have the smallest exponent
  const double units = std::nearbyint(std::ldexp(std::fabs(value), format.fraction_bits - exponent));
  // The leading one of the fraction, or a carry from rounding, correctly increments the bits of the exponent.
  const unsigned bits =
      (static_cast<unsigned>(exponent + format.bias() - 1) << format.fraction_bits) + static_cast<unsigned>(units);
  return static_cast<std::uint16_t>(sign | std::min(bits, format.infinity()));
}

double widen(std::uint16_t bits, small_real format) {
  const double sign = (bits & 0x8000u) != 0 ? -1.0 : 1.0;
  const int exponent = (bits & 0x7fff) >> format.fraction_bits;
  const int fraction = bits & ((1 << format.fraction_bits) - 1);
  if (exponent == (1 << format.exponent_bits) - 1) return fraction != 0 ? std::nan("") : sign * HUGE_VAL;
  if (exponent == 0) return sign * std::ldexp(fraction, 1 - format.bias() - format.fraction_bits);
  return sign * std::ldexp(fraction + (1 << format.fraction_bits), exponent - format.bias() - format.fraction_bits);
}

template <class T>
T load(const void* bytes) {
  T value;
  std::memcpy(&value, bytes, sizeof value);
  return value;
}

template <class T>
bool store(void* bytes, T value) {
  std::memcpy(bytes, &value, sizeof value);
  return true;
}

double real_at(std::uint32_t size, const void* bytes) {
  if (size == 2) return widen(load<std::uint16_t>(bytes), kHalf);
  return size == 4 ? static_cast<double>(load<float>(bytes)) : load<double>(bytes);
}

bool out_of_range(const element_type& type) {
  PyErr_Format(PyExc_OverflowError, "the value does not fit into %s", name_of(type).c_str());
  return false;
}

bool encode_signed(const element_type& type, PyObject* value, void* bytes) {
  const long long number = PyLong_AsLongLong(value);
  if (number == -1 && PyErr_Occurred() != nullptr) return false;
  const unsigned unused = 64 - 8 * type.bytes;
  if (const long long kept = static_cast<long long>(static_cast<unsigned long long>(number) << unused) >> unused;
      kept != number)
    return out_of_range(type);
  std::memcpy(bytes, &number, type.bytes);  // little-endian, like every host of CUDA
  return true;
}

bool encode_unsigned(const element_type& type, PyObject* value, void* bytes) {
  PyObject* const index = PyNumber_Index(value);
  if (index == nullptr) return false;
  const unsigned long long number = PyLong_AsUnsignedLongLong(index);
  Py_DECREF(index);
  if (number == ~0ull && PyErr_Occurred() != nullptr) return false;
  if (type.bytes < 8 && number >> (8 * type.bytes) != 0) return out_of_range(type);
  std::memcpy(bytes, &number, type.bytes);
  return true;
}

bool encode_real(const element_type& type, PyObject* value, void* bytes) {
  const double number = PyFloat_AsDouble(value);
  if (number == -1.0 && PyErr_Occurred() != nullptr) return false;
  if (type.kind == element_kind::brain) return store(bytes, narrow(number, kBrain));
  if (type.bytes == 2) return store(bytes, narrow(number, kHalf));
  return type.bytes == 4 ? store(bytes, static_cast<float>(number)) : store(bytes, number);
}

bool encode_complex(const element_type& type, PyObject* value, void* bytes) {
  // NumPy's complex64, and arrays of no dimension, are no `complex`, and as a real number they lose the imaginary part.
  if (PyComplex_Check(value) == 0 && PyObject_HasAttrString(value, "__complex__") != 0) {
    PyObject* const number = PyObject_CallFunctionObjArgs(reinterpret_cast<PyObject*>(&PyComplex_Type), value, nullptr);
    if (number == nullptr) return false;
    const bool is_encoded = encode_complex(type, number, bytes);
    Py_DECREF(number);
    return is_encoded;
  }
  const bool has_parts = PyComplex_Check(value) != 0;
  const double real = has_parts ? PyComplex_RealAsDouble(value) : PyFloat_AsDouble(value);
  if (real == -1.0 && PyErr_Occurred() != nullptr) return false;
  const double imaginary = has_parts ? PyComplex_ImagAsDouble(value) : 0;
  if (type.bytes == 8) return store(bytes, std::array{static_cast<float>(real), static_cast<float>(imaginary)});
  return store(bytes, std::array{real, imaginary});
}

}  // namespace

std::string name_of(const element_type& type) {
  if (type.kind == element_kind::opaque) return type.name != nullptr ? type.name : "V" + std::to_string(type.bytes);
  for (const auto& one : kTypes)
    if (one.type.kind == type.kind && one.type.bytes == type.bytes) return std::string(one.name);
  return "V" + std::to_string(type.bytes);
}

bool type_of_name(std::string_view name, element_type& out) {
  if (const auto dot = name.rfind('.'); dot != std::string_view::npos) name.remove_prefix(dot + 1);
  for (const auto& one : kTypes)
    if (one.name == name) return out = one.type, true;
  return false;
}

bool type_of_typestr(std::string_view typestr, element_type& out) {
  if (typestr.size() < 3 || typestr[0] == '>') return false;
  std::uint32_t bytes = 0;
  for (const char digit : typestr.substr(2)) {
    if (digit < '0' || digit > '9' || bytes > (1u << 24)) return false;
    bytes = bytes * 10 + static_cast<std::uint32_t>(digit - '0');
  }
  return type_of_letter(typestr[1], bytes, out);
}

bool type_of_letter(char letter, std::uint32_t bytes, element_type& out) {
  const auto known = [&](element_kind kind, std::initializer_list<std::uint32_t> sizes) {
    out = {kind, bytes};
    return std::find(sizes.begin(), sizes.end(), bytes) != sizes.end();
  };
  switch (letter) {
    case 'b':
      return known(element_kind::boolean, {1});
    case 'i':
      return known(element_kind::signed_integer, {1, 2, 4, 8});
    case 'u':
      return known(element_kind::unsigned_integer, {1, 2, 4, 8});
    case 'f':
      return known(element_kind::real, {2, 4, 8});
    case 'c':
      return known(element_kind::complex, {8, 16});
    case 'V':
      out = {element_kind::opaque, bytes};
      return bytes > 0;
    default:
      return false;
  }
}

std::string typestr_of(const element_type& type) {
  const auto spelled = [&](const char* letter) { return letter + std::to_string(type.bytes); };
  switch (type.kind) {
    case element_kind::boolean:
      return "|b1";
    case element_kind::signed_integer:
      return spelled("<i");
    case element_kind::unsigned_integer:
    case element_kind::brain:
      return spelled("<u");
    case element_kind::real:
      return spelled("<f");
    case element_kind::complex:
      return spelled("<c");
    case element_kind::opaque:
      break;
  }
  return type.name != nullptr ? spelled("<u") : spelled("|V");
}

PyObject* decode(const element_type& type, const void* bytes) {
  std::uint64_t raw = 0;
  std::memcpy(&raw, bytes, std::min<std::uint32_t>(type.bytes, sizeof raw));
  switch (type.kind) {
    case element_kind::boolean:
      return PyBool_FromLong(raw != 0);
    case element_kind::signed_integer: {
      const unsigned unused = 64 - 8 * type.bytes;
      return PyLong_FromLongLong(static_cast<long long>(raw << unused) >> unused);
    }
    case element_kind::unsigned_integer:
      return PyLong_FromUnsignedLongLong(raw);
    case element_kind::real:
      return PyFloat_FromDouble(real_at(type.bytes, bytes));
    case element_kind::brain:
      return PyFloat_FromDouble(widen(static_cast<std::uint16_t>(raw), kBrain));
    case element_kind::complex: {
      const std::uint32_t half = type.bytes / 2;
      return PyComplex_FromDoubles(real_at(half, bytes), real_at(half, static_cast<const char*>(bytes) + half));
    }
    case element_kind::opaque:
      break;
  }
  return PyBytes_FromStringAndSize(static_cast<const char*>(bytes), type.bytes);
}

bool encode(const element_type& type, PyObject* value, void* bytes) {
  switch (type.kind) {
    case element_kind::boolean: {
      const int truth = PyObject_IsTrue(value);
      return truth >= 0 && store(bytes, static_cast<std::uint8_t>(truth));
    }
    case element_kind::signed_integer:
      return encode_signed(type, value, bytes);
    case element_kind::unsigned_integer:
      return encode_unsigned(type, value, bytes);
    case element_kind::real:
    case element_kind::brain:
      return encode_real(type, value, bytes);
    case element_kind::complex:
      return encode_complex(type, value, bytes);
    case element_kind::opaque:
      break;
  }
  char* content = nullptr;
  Py_ssize_t size = 0;
  if (PyBytes_AsStringAndSize(value, &content, &size) != 0) return false;
  if (size != static_cast<Py_ssize_t>(type.bytes)) return out_of_range(type);
  std::memcpy(bytes, content, type.bytes);
  return true;
}

}  // namespace pl::py
