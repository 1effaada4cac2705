// SPDX-License-Identifier: Apache-2.0
// Authorities and certificates of a test's own, made by the openssl program.
#pragma once

#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <string>

#include "base/text.hpp"

namespace pl::store_test {

constexpr const char* kNoOpenssl = "the openssl program is missing (Debian: openssl)";
inline bool openssl_is_there() { return std::system("command -v openssl >/dev/null") == 0; }

// NAME.crt and NAME.key in a folder that is there.
class test_pki {
 public:
  explicit test_pki(std::string folder) : folder_(std::move(folder)) {}
  std::string path(const std::string& name) const { return folder_ + "/" + name; }
  void authority(const std::string& name) const {
    run(format("req -x509 -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -days 2 -subj /CN=%s -keyout %s -out %s",
               name.c_str(), path(name + ".key").c_str(), path(name + ".crt").c_str()));
  }
  // `alternative`: as in subjectAltName.
  void certificate(const std::string& name, const std::string& issuer, const std::string& alternative) const {
    certificate(name, issuer, alternative, "/CN=" + name);
  }
  // As part of a subject.
  static std::string escaped(const std::string& text) {
    std::string out;
    for (const char c : text) out += c == '/' ? std::string("\\/") : std::string(1, c);
    return out;
  }
  void certificate(const std::string& name, const std::string& issuer, const std::string& alternative,
                   const std::string& subject) const {
    std::ofstream(path(name + ".ext")) << "subjectAltName=" << alternative << "\n";
    run(format("req -newkey ec -pkeyopt ec_paramgen_curve:P-256 -nodes -subj '%s' -keyout %s -out %s", subject.c_str(),
               path(name + ".key").c_str(), path(name + ".csr").c_str()));
    run(format("x509 -req -days 2 -in %s -CA %s -CAkey %s -CAcreateserial -extfile %s -out %s", path(name + ".csr").c_str(),
               path(issuer + ".crt").c_str(), path(issuer + ".key").c_str(), path(name + ".ext").c_str(),
               path(name + ".crt").c_str()));
  }

 private:
  static void run(const std::string& words) {
    EXPECT_EQ(std::system(("openssl " + words + " 2>/dev/null").c_str()), 0) << words;
  }
  std::string folder_;
};

}  // namespace pl::store_test
