// SPDX-License-Identifier: Apache-2.0
// Queue pairs in a build without verbs' headers: present, so that programs link and load, and refused.
#include <gdsync/soft.h>

#include "compat/gdsync/gdsync_words.hpp"

namespace {

int refused(const char* call) {
  return pl::gds::refuse(call, {ENOSYS, "this library was built without infiniband/verbs.h: queue pairs are not supported"});
}

}  // namespace

namespace pl::gds {
status gather_send(const gds_send_request_t*, std::vector<word_op>&) {
  return failure{ENOSYS, "no queue pairs in this build"};
}
status gather_wait(const gds_wait_request_t*, std::vector<word_op>&) {
  return failure{ENOSYS, "no queue pairs in this build"};
}
}  // namespace pl::gds

PL_EXPORT int gds_soft_open(struct ibv_context**, struct ibv_pd**) { return refused(__func__); }
PL_EXPORT int gds_soft_get_address(struct gds_qp*, gds_soft_address_t*) { return refused(__func__); }
PL_EXPORT int gds_soft_connect(struct gds_qp*, const gds_soft_address_t*) { return refused(__func__); }
PL_EXPORT struct gds_qp* gds_create_qp(struct ibv_pd*, struct ibv_context*, gds_qp_init_attr_t*, int, int) {
  errno = refused(__func__);
  return nullptr;
}
PL_EXPORT int gds_destroy_qp(struct gds_qp*) { return refused(__func__); }
PL_EXPORT int gds_post_send(struct gds_qp*, gds_send_wr*, gds_send_wr**) { return refused(__func__); }
PL_EXPORT int gds_post_recv(struct gds_qp*, struct ibv_recv_wr*, struct ibv_recv_wr**) { return refused(__func__); }
PL_EXPORT int gds_stream_queue_send(CUstream, struct gds_qp*, gds_send_wr*, gds_send_wr**) { return refused(__func__); }
PL_EXPORT int gds_stream_wait_cq(CUstream, struct gds_cq*, int) { return refused(__func__); }
PL_EXPORT int gds_prepare_send(struct gds_qp*, gds_send_wr*, gds_send_wr**, gds_send_request_t*) {
  return refused(__func__);
}
PL_EXPORT int gds_stream_post_send(CUstream, gds_send_request_t*) { return refused(__func__); }
PL_EXPORT int gds_stream_post_send_all(CUstream, int, gds_send_request_t*) { return refused(__func__); }
PL_EXPORT int gds_prepare_wait_cq(struct gds_cq*, gds_wait_request_t*, int) { return refused(__func__); }
PL_EXPORT int gds_stream_post_wait_cq(CUstream, gds_wait_request_t*) { return refused(__func__); }
PL_EXPORT int gds_stream_post_wait_cq_all(CUstream, int, gds_wait_request_t*) { return refused(__func__); }
PL_EXPORT int gds_post_wait_cq(struct gds_cq*, gds_wait_request_t*, int) { return refused(__func__); }
PL_EXPORT int gds_mlx5_get_send_info(int, const gds_send_request_t*, gds_mlx5_send_info_t*) { return refused(__func__); }
PL_EXPORT int gds_mlx5_get_wait_info(int, const gds_wait_request_t*, gds_mlx5_wait_info_t*) { return refused(__func__); }
