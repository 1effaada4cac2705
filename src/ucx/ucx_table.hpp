// SPDX-License-Identifier: Apache-2.0
// UCX's ucp library opened at run time: one table of its entry points. Compiled against the headers of 1.13, whose
// structures later versions only extend behind their field masks; nothing of UCX is linked.
#pragma once

#include <ucp/api/ucp.h>

#include <cstddef>
#include <string>

#include "base/status.hpp"

namespace pl::ucx {

// clang-format off
#define PL_UCX_FUNCTIONS(X)                                                                                              \
  X(ucp_get_version)                                                                                                     \
  X(ucp_init_version)                                                                                                    \
  X(ucp_cleanup) X(ucp_config_read) X(ucp_config_modify) X(ucp_config_release) X(ucp_context_query) X(ucp_worker_create) \
      X(ucp_worker_destroy) X(ucp_worker_get_address) X(ucp_worker_release_address) X(ucp_worker_set_am_recv_handler)    \
          X(ucp_worker_progress) X(ucp_worker_get_efd) X(ucp_worker_arm) X(ucp_ep_create) X(ucp_ep_close_nbx) X(ucp_am_send_nbx) X(ucp_am_recv_data_nbx) X(ucp_tag_send_nbx)             \
              X(ucp_tag_recv_nbx) X(ucp_request_cancel) X(ucp_request_check_status) X(ucp_request_free)                  \
                  X(ucp_rkey_pack) X(ucp_rkey_buffer_release) X(ucp_ep_rkey_unpack) X(ucp_rkey_destroy)          \
                  X(ucp_put_nbx) X(ucp_get_nbx) X(ucp_atomic_op_nbx) X(ucp_ep_flush_nbx) X(ucp_mem_query)                \
                  X(ucp_dt_create_generic) X(ucp_dt_destroy) X(ucp_mem_map) X(ucp_mem_unmap)            \
                      X(ucp_context_print_info) X(ucp_am_data_release) X(ucp_ep_print_info) X(ucs_status_string)
// clang-format on

struct ucx_table {
#define PL_UCX_ENTRY(name) decltype(&::name) name = nullptr;
  PL_UCX_FUNCTIONS(PL_UCX_ENTRY)
#undef PL_UCX_ENTRY
  unsigned major = 0, minor = 0, release = 0;
};

// Opens `path`, or libucp.so.0 as the loader finds it. The library stays loaded. ENOSYS: not found, or older than 1.13, or
// not of version 1; the sentence names the package. Thread-safe; each path is opened once.
result<const ucx_table*> open_ucx(const std::string& path);

// errno that an UCX failure becomes.
int to_errno(ucs_status_t code) noexcept;
failure failed(const ucx_table& ucx, ucs_status_t code, const char* operation);

// Whether this UCX was built with CUDA: it warns of transports that it does not have.
bool has_cuda_module(const ucx_table& ucx);
// Keeps off what aborts the process in some versions; what the user has set stays.
void avoid_faulty_protocols(const ucx_table& ucx, ucp_config_t* config);

// How memory is given to UCX where it goes over TCP.
enum class tcp_sends {
  whole,     // as large as it is: UCX cuts it
  in_parts,  // no larger than tune_for_tcp() says
};
// What TCP needs, where RDMA does not carry the data; what the user has set stays. Answers how many bytes of host memory a
// send of tcp_sends::in_parts may have for UCX to give them to the socket from where they lie, and to end the send at once;
// 0: any number, UCX does as well as it can.
std::size_t tune_for_tcp(const ucx_table& ucx, ucp_config_t* config, bool has_rdma, tcp_sends sends);

}  // namespace pl::ucx
