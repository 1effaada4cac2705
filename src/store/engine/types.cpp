// SPDX-License-Identifier: Apache-2.0
#include "store/engine/types.hpp"

#include <cerrno>

namespace pl::store {
namespace {

struct code_row {
  status_code code;
  int error;
  const char* name;
};

// key_exists stands first because EEXIST means it unless the call is about a pool.
constexpr code_row kCodes[] = {
    {status_code::ok, 0, "ok"},
    {status_code::more, 0, "more"},
    {status_code::failed, ENOTRECOVERABLE, "failed"},
    {status_code::invalid, EINVAL, "invalid"},
    {status_code::busy, EBUSY, "busy"},
    {status_code::no_memory, ENOMEM, "no_memory"},
    {status_code::not_supported, ENOTSUP, "not_supported"},
    {status_code::full, ENOSPC, "full"},
    {status_code::timed_out, ETIMEDOUT, "timed_out"},
    {status_code::key_exists, EEXIST, "key_exists"},
    {status_code::pool_exists, EEXIST, "pool_exists"},
    {status_code::key_not_found, ENOENT, "key_not_found"},
    {status_code::pool_not_found, ENXIO, "pool_not_found"},
    {status_code::too_large, EFBIG, "too_large"},
    {status_code::quota, EDQUOT, "quota"},
    {status_code::read_only, EROFS, "read_only"},
    {status_code::checksum, EBADMSG, "checksum"},
    {status_code::version_mismatch, ESTALE, "version_mismatch"},
    {status_code::io_error, EIO, "io_error"},
    {status_code::damaged, EUCLEAN, "damaged"},
    {status_code::bad_handle, EBADF, "bad_handle"},
    {status_code::protocol, EPROTO, "protocol"},
    {status_code::denied, EACCES, "denied"},
    {status_code::closed, ESHUTDOWN, "closed"},
    {status_code::moved, EREMOTE, "moved"},
};

}  // namespace

status_code code_of(const failure& reason, bool about_pool) noexcept {
  if (reason.code == EEXIST && about_pool) return status_code::pool_exists;
  for (const code_row& row : kCodes) {
    if (row.error == reason.code && row.error != 0) return row.code;
  }
  return status_code::failed;
}

int errno_of(status_code code) noexcept {
  for (const code_row& row : kCodes) {
    if (row.code == code) return row.error;
  }
  return ENOTRECOVERABLE;
}

const char* name_of(status_code code) noexcept {
  for (const code_row& row : kCodes) {
    if (row.code == code) return row.name;
  }
  return "unknown";
}

}  // namespace pl::store
