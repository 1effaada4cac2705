// SPDX-License-Identifier: Apache-2.0
// The calls of an adapter's queue pairs: present, so that programs link and load, and refused. They would need peer-direct
// verbs, which no adapter's current driver offers (docs/async-api.md); between GPUs there are peerlane/stream.h's channels.
#include "gdsync_memory.hpp"

namespace {

int refused(const char* call) {
  return pl::gds::refuse(call, {ENOSYS, "there is no adapter behind this library: queue pairs are not supported"});
}

}  // namespace

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
