// SPDX-License-Identifier: Apache-2.0
// Chooses the backend for sessions that name none.
#pragma once

#include <memory>

#include "map/backend.hpp"

namespace pl {

struct backend_candidate {
  const char* name;
  result<std::unique_ptr<backend>> (*open)(const backend_environment&);
};
// In the order in which they are tried.
inline constexpr backend_candidate kBackendCandidates[] = {
    {"gdrdrv", open_gdrdrv_backend}, {"dmabuf", open_dmabuf_backend}, {"rm", open_rm_backend}};

result<std::unique_ptr<backend>> open_auto_backend(const backend_environment& environment);

// "no way to map GPU memory works here (...)", with the code and the reasons given.
failure no_way(const failure& reasons);

}  // namespace pl
