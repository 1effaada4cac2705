// SPDX-License-Identifier: Apache-2.0
// What the C calls of libpeerlane share: how they are exported, and how exceptions are handled.
#pragma once

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <new>
#include <stdexcept>
#include <string>
#include <system_error>

#include "map/registry.hpp"

#define PL_EXPORT extern "C" __attribute__((visibility("default")))
#define PL_NO_EXCEPTIONS                                                            \
  catch (const std::bad_alloc&) {                                                   \
    return pl::fail(ENOMEM, "memory is exhausted: nothing was changed");            \
  }                                                                                 \
  catch (const std::length_error&) {                                                \
    return pl::fail(EINVAL, "a size or a count is larger than any memory");         \
  }                                                                                 \
  catch (const std::system_error& reason) {                                         \
    return pl::fail(reason.code().value() != 0 ? reason.code().value() : EAGAIN,    \
                    "a thread could not be started: raise the limit of processes"); \
  }

namespace pl {

constexpr const char* kNullPointer = "a pointer argument is null";
constexpr const char* kDead = "the handle is not live: ended already, or not made by this library";

inline int return_code(const status& outcome) { return outcome ? 0 : fail(outcome.error()); }

// Copies text into a caller's buffer: at most capacity - 1 characters and a terminating 0. *needed, if given, receives
// the full length.
inline int give_text(const std::string& words, char* text, std::size_t capacity, std::size_t* needed) noexcept {
  if (needed != nullptr) *needed = words.size();
  if (capacity == 0) return 0;
  const std::size_t fits = std::min(capacity - 1, words.size());
  std::memcpy(text, words.data(), fits);
  text[fits] = '\0';
  return 0;
}

}  // namespace pl
