// SPDX-License-Identifier: Apache-2.0
#include "store/engine/types.hpp"

#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>

#include "store/engine/engine.hpp"

namespace pl::store {
namespace {

constexpr status_code kErrors[] = {
    status_code::failed,    status_code::invalid,       status_code::busy,      status_code::no_memory,
    status_code::full,      status_code::not_supported, status_code::timed_out, status_code::key_exists,
    status_code::too_large, status_code::key_not_found, status_code::quota,     status_code::pool_not_found,
    status_code::read_only, status_code::checksum,      status_code::damaged,   status_code::version_mismatch,
    status_code::io_error,  status_code::bad_handle,    status_code::protocol,  status_code::denied,
    status_code::closed,    status_code::moved,
};

TEST(Codes, AnErrnoAndBackIsTheSameCode) {
  for (const status_code code : kErrors) {
    EXPECT_LT(static_cast<int>(code), 0);
    EXPECT_EQ(code_of(failure{errno_of(code), ""}), code) << name_of(code);
  }
}

TEST(Codes, ExistsMeansThePoolWhenAskedAboutPools) {
  EXPECT_EQ(code_of(failure{EEXIST, ""}), status_code::key_exists);
  EXPECT_EQ(code_of(failure{EEXIST, ""}, true), status_code::pool_exists);
  EXPECT_EQ(errno_of(status_code::pool_exists), EEXIST);
}

TEST(Codes, WhatNoCodeNamesIsFailed) { EXPECT_EQ(code_of(failure{EXDEV, ""}), status_code::failed); }

// A client of another version knows these numbers.
TEST(Codes, NumbersOfTheWire) {
  EXPECT_EQ(static_cast<int>(status_code::full), -23);
  EXPECT_EQ(static_cast<int>(status_code::pool_exists), -28);
  EXPECT_EQ(static_cast<int>(status_code::key_exists), -51);
  EXPECT_EQ(static_cast<int>(status_code::key_not_found), -52);
  EXPECT_EQ(static_cast<int>(status_code::pool_not_found), -53);
  EXPECT_EQ(static_cast<int>(status_code::too_large), -55);
  EXPECT_EQ(static_cast<int>(status_code::checksum), -62);
}

}  // namespace
}  // namespace pl::store
