// SPDX-License-Identifier: Apache-2.0
// Both C interfaces compiled into the test (so that a fake kernel can stand behind them) over the simulated GPU, with a
// check at the end that the test left no descriptor and no mapping of GPU memory behind.
#pragma once

#include <gdrapi.h>
#include <peerlane/peerlane.h>
#include <stdlib.h>

#include <cstring>
#include <memory>
#include <string>

#include "os/device_io.hpp"
#include "test/support/sim_fixture.hpp"

namespace pl::test {

class capi_test : public testing::Test {
 protected:
  void SetUp() override {
    simulated_cuda();
    context_ = std::make_unique<current_device>(0);
    { const device_buffer warm_up(4 << 20); }
    memory_ = std::make_unique<device_buffer>(4 << 20);
    device_ = memory_->pointer();
    descriptors_ = open_descriptor_count();
    mapped_ = mapping_count("peerlane-sim");
  }
  void TearDown() override {
    EXPECT_EQ(open_descriptor_count(), descriptors_) << "descriptors left open";
    EXPECT_EQ(mapping_count("peerlane-sim"), mapped_) << "GPU memory left mapped";
    set_default_device_io_for_tests(nullptr);
  }

  static void expect_message(const char* words) {
    EXPECT_NE(std::string(gdr_last_error()).find(words), std::string::npos)
        << "\"" << words << "\" is not in: " << gdr_last_error();
  }

  std::unique_ptr<current_device> context_;
  std::unique_ptr<device_buffer> memory_;
  std::uint64_t device_ = 0;
  int descriptors_ = 0, mapped_ = 0;
};

inline int open_session_on(const char* backend, peerlane_session_t* session) {
  const peerlane_session_options options{sizeof options, backend};
  return peerlane_session_open(&options, session);
}

// An environment variable for the length of a scope.
class scoped_variable {
 public:
  scoped_variable(const char* name, const char* value) : name_(name) { setenv(name, value, 1); }
  ~scoped_variable() { unsetenv(name_); }
  scoped_variable(const scoped_variable&) = delete;
  scoped_variable& operator=(const scoped_variable&) = delete;

 private:
  const char* name_;
};

}  // namespace pl::test
