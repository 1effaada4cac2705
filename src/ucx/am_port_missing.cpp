// SPDX-License-Identifier: Apache-2.0
#include "ucx/am_port.hpp"

namespace pl::ucx {

result<std::unique_ptr<am_port>> am_port::open(const options&, listener&) {
  return failure{ENOSYS, "this was built without UCX's headers (Debian: libucx-dev)"};
}

}  // namespace pl::ucx
