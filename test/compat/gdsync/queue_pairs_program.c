/* SPDX-License-Identifier: Apache-2.0
 * A ping-pong as others write it to libgdsync: two processes, receives posted ahead, sends and waits queued on streams, by
 * single calls, by prepared requests and by descriptors; completions are reaped with verbs' own call. No adapter. Exit code
 * 0: every word was right. */
#include <errno.h>
#include <gdsync.h>
#include <gdsync/soft.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "test/compat/gdsync/program.h"

#define ROUNDS 60
#define DEPTH 16
#define BYTES 4096

struct end {
  CUstream stream;
  struct gds_qp* qp;
  gds_mem_desc_t received, sent;
};

static void fill(gds_mem_desc_t* memory, uint32_t seed) {
  uint32_t i;
  for (i = 0; i < BYTES / 4; ++i) ((volatile uint32_t*)memory->h_ptr)[i] = seed * 1000u + i;
  __sync_synchronize();
}
static void check(const gds_mem_desc_t* memory, uint32_t seed, uint32_t bytes) {
  uint32_t i;
  for (i = 0; i < bytes / 4; ++i) CHECK(((const volatile uint32_t*)memory->h_ptr)[i] == seed * 1000u + i);
}

static struct gds_qp* make_pair(void) {
  struct ibv_context* context = NULL;
  struct ibv_pd* pd = NULL;
  gds_qp_init_attr_t attr;
  struct gds_qp* qp;
  CHECK(gds_soft_open(&context, &pd) == 0);
  memset(&attr, 0, sizeof attr);
  attr.cap.max_send_wr = attr.cap.max_recv_wr = DEPTH;
  attr.cap.max_send_sge = attr.cap.max_recv_sge = 1;
  attr.qp_type = IBV_QPT_RC;
  attr.sq_sig_all = 1;
  qp = gds_create_qp(pd, context, &attr, 0, GDS_CREATE_QP_DEFAULT);
  CHECK(qp != NULL && attr.send_cq == qp->send_cq.cq && attr.recv_cq == qp->recv_cq.cq);
  return qp;
}

static struct ibv_sge memory_of(const gds_mem_desc_t* memory, uint32_t bytes) {
  struct ibv_sge out;
  memset(&out, 0, sizeof out);
  out.addr = memory->d_ptr;
  out.length = bytes;
  return out;
}

static void post_receive(struct end* local, uint64_t id) {
  struct ibv_sge piece = memory_of(&local->received, BYTES);
  struct ibv_recv_wr wr, *bad = NULL;
  memset(&wr, 0, sizeof wr);
  wr.wr_id = id;
  wr.sg_list = &piece;
  wr.num_sge = 1;
  CHECK(gds_post_recv(local->qp, &wr, &bad) == 0);
}

/* The three ways to say the same, in turn. */
static void queue_send(struct end* local, unsigned round, uint32_t bytes) {
  struct ibv_sge piece = memory_of(&local->sent, bytes);
  gds_send_wr wr, *bad = NULL;
  memset(&wr, 0, sizeof wr);
  wr.wr_id = round;
  wr.sg_list = &piece;
  wr.num_sge = 1;
  if (round % 2 == 0) { /* by the names of either verbs */
    wr.opcode = IBV_WR_SEND;
    wr.send_flags = IBV_SEND_SIGNALED;
  } else {
    wr.exp_opcode = IBV_EXP_WR_SEND;
    wr.exp_send_flags = IBV_EXP_SEND_SIGNALED;
  }
  if (round % 3 == 0) {
    CHECK(gds_stream_queue_send(local->stream, local->qp, &wr, &bad) == 0);
    CHECK(gds_stream_wait_cq(local->stream, &local->qp->send_cq, 0) == 0);
  } else {
    gds_send_request_t send;
    gds_wait_request_t wait;
    CHECK(gds_prepare_send(local->qp, &wr, &bad, &send) == 0);
    CHECK(gds_prepare_wait_cq(&local->qp->send_cq, &wait, 0) == 0);
    if (round % 3 == 1) {
      CHECK(gds_stream_post_send(local->stream, &send) == 0);
      CHECK(gds_stream_post_wait_cq(local->stream, &wait) == 0);
    } else {
      gds_descriptor_t both[2];
      both[0].tag = GDS_TAG_SEND;
      both[0].send = &send;
      both[1].tag = GDS_TAG_WAIT;
      both[1].wait = &wait;
      CHECK(gds_stream_post_descriptors(local->stream, 2, both, 0) == 0);
    }
  }
}

static void reap(struct gds_cq* cq, uint64_t id, enum ibv_wc_opcode opcode) {
  struct ibv_wc wc;
  int found = 0;
  while (found == 0) found = ibv_poll_cq(cq->cq, 1, &wc);
  CHECK(found == 1 && wc.wr_id == id && wc.opcode == opcode && wc.status == IBV_WC_SUCCESS);
}

static void open_end(struct end* local, int memory_type, int rank) {
  CUcontext context;
  memset(local, 0, sizeof *local);
  CHECK(cuInit(0) == 0 && cuDevicePrimaryCtxRetain(&context, 0) == 0 && cuCtxSetCurrent(context) == 0);
  CHECK(cuStreamCreate(&local->stream, 1) == 0);
  CHECK(gds_alloc_mapped_memory(&local->received, BYTES, memory_type) == 0);
  CHECK(gds_alloc_mapped_memory(&local->sent, BYTES, memory_type) == 0);
  fill(&local->received, 7777u + (uint32_t)rank);
  local->qp = make_pair();
}

static void close_end(struct end* local) {
  CHECK(gds_destroy_qp(local->qp) == 0);
  CHECK(gds_free_mapped_memory(&local->received) == 0 && gds_free_mapped_memory(&local->sent) == 0);
}

static int ping_pong(int rank, int to_peer, int memory_type) {
  struct end local;
  gds_soft_address_t mine, theirs;
  unsigned round;
  char byte = 0;
  open_end(&local, memory_type, rank);
  CHECK(gds_soft_get_address(local.qp, &mine) == 0);
  CHECK(write(to_peer, &mine, sizeof mine) == sizeof mine && read(to_peer, &theirs, sizeof theirs) == sizeof theirs);
  CHECK(gds_soft_connect(local.qp, &theirs) == 0);
  CHECK(gds_soft_connect(local.qp, &theirs) == EINVAL); /* twice */
  for (round = 1; round <= ROUNDS; ++round) {
    const uint32_t bytes = round % 2 == 0 ? BYTES : 8;
    fill(&local.sent, round * 2 + (uint32_t)rank);
    post_receive(&local, 1000 + round);
    if (rank == 0) queue_send(&local, round, bytes);
    CHECK(gds_stream_wait_cq(local.stream, &local.qp->recv_cq, 0) == 0);
    if (rank == 1) queue_send(&local, round, bytes);
    CHECK(cuStreamSynchronize(local.stream) == 0);
    check(&local.received, round * 2 + (uint32_t)(1 - rank), bytes);
    reap(&local.qp->send_cq, round, IBV_WC_SEND);
    reap(&local.qp->recv_cq, 1000 + round, IBV_WC_RECV);
  }
  /* Nobody tears down before the other is done. */
  CHECK(write(to_peer, &byte, 1) == 1 && read(to_peer, &byte, 1) == 1);
  close_end(&local);
  return 0;
}

/* A pair that is connected to itself; the CPU sends, and a stream waits for what nobody has sent yet. */
static int loopback(void) {
  struct end local;
  gds_soft_address_t mine;
  struct ibv_sge piece;
  gds_send_wr wr, *bad = NULL;
  gds_wait_request_t wait;
  struct ibv_wc wc;
  open_end(&local, GDS_MEMORY_GPU, 0);
  piece = memory_of(&local.sent, BYTES);
  memset(&wr, 0, sizeof wr);
  wr.wr_id = 5;
  wr.sg_list = &piece;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  CHECK(gds_post_send(local.qp, &wr, &bad) == EINVAL && bad == &wr); /* not connected */
  CHECK(gds_soft_get_address(local.qp, &mine) == 0 && gds_soft_connect(local.qp, &mine) == 0);
  fill(&local.sent, 3);
  CHECK(gds_stream_wait_cq(local.stream, &local.qp->recv_cq, 0) == 0);
  CHECK(gds_post_send(local.qp, &wr, &bad) == 0);
  usleep(2000);
  CHECK(cuStreamQuery(local.stream) != 0); /* no receive is posted */
  post_receive(&local, 6);
  CHECK(cuStreamSynchronize(local.stream) == 0);
  check(&local.received, 3, BYTES);
  reap(&local.qp->recv_cq, 6, IBV_WC_RECV);
  reap(&local.qp->send_cq, 5, IBV_WC_SEND);
  /* What a wait was prepared for is the CPU's again once it is given up. */
  post_receive(&local, 8);
  CHECK(gds_prepare_wait_cq(&local.qp->recv_cq, &wait, 0) == 0);
  CHECK(gds_post_send(local.qp, &wr, &bad) == 0);
  reap(&local.qp->send_cq, 5, IBV_WC_SEND);
  CHECK(ibv_poll_cq(local.qp->recv_cq.cq, 1, &wc) == 0);
  CHECK(gds_post_wait_cq(&local.qp->recv_cq, &wait, 0) == 0);
  reap(&local.qp->recv_cq, 8, IBV_WC_RECV);
  /* A message that is longer than its receive. */
  piece.length = BYTES;
  {
    struct ibv_sge small = memory_of(&local.received, 64);
    struct ibv_recv_wr receive, *bad_receive = NULL;
    memset(&receive, 0, sizeof receive);
    receive.wr_id = 9;
    receive.sg_list = &small;
    receive.num_sge = 1;
    CHECK(ibv_post_recv(local.qp->qp, &receive, &bad_receive) == 0);
  }
  {
    struct ibv_send_wr plain, *bad_plain = NULL; /* verbs' own call takes verbs' own structure */
    memset(&plain, 0, sizeof plain);
    plain.wr_id = 5;
    plain.sg_list = &piece;
    plain.num_sge = 1;
    plain.opcode = IBV_WR_SEND;
    CHECK(ibv_post_send(local.qp->qp, &plain, &bad_plain) == 0);
  }
  while (ibv_poll_cq(local.qp->recv_cq.cq, 1, &wc) == 0) {}
  CHECK(wc.wr_id == 9 && wc.status == IBV_WC_LOC_LEN_ERR && wc.byte_len == 64);
  close_end(&local);
  return 0;
}

/* Misuse is answered, and what is right afterwards works. Completions 1 to 3 of receives: a stream waits for the first, the
 * second is given up after the third. */
static int misuse(void) {
  struct end local;
  gds_soft_address_t mine;
  struct ibv_sge piece, nowhere;
  gds_send_wr wr, *bad = NULL;
  struct ibv_recv_wr receive, *bad_receive = NULL;
  gds_wait_request_t waits[3];
  gds_mlx5_wait_info_t info;
  struct ibv_wc wc;
  unsigned i;
  open_end(&local, GDS_MEMORY_GPU, 0);
  CHECK(gds_soft_get_address(local.qp, &mine) == 0 && gds_soft_connect(local.qp, &mine) == 0);
  memset(&nowhere, 0, sizeof nowhere);
  nowhere.length = 64;
  memset(&wr, 0, sizeof wr);
  wr.wr_id = 5;
  wr.sg_list = &nowhere;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  CHECK(gds_post_send(local.qp, &wr, &bad) == EINVAL && bad == &wr);
  memset(&receive, 0, sizeof receive);
  receive.sg_list = &nowhere;
  receive.num_sge = 1;
  CHECK(gds_post_recv(local.qp, &receive, &bad_receive) == EINVAL);
  CHECK(gds_prepare_wait_cq(&local.qp->recv_cq, NULL, 0) == EINVAL); /* is no wait */
  for (i = 0; i < 3; ++i) CHECK(gds_prepare_wait_cq(&local.qp->recv_cq, &waits[i], 0) == 0);
  CHECK(gds_mlx5_get_wait_info(1, waits, NULL) == EINVAL && gds_mlx5_get_wait_info(-1, waits, &info) == EINVAL);
  CHECK(gds_mlx5_get_send_info(1, NULL, NULL) == EINVAL);
  CHECK(gds_post_wait_cq(&local.qp->send_cq, &waits[2], 0) == EINVAL); /* of the other queue */
  CHECK(gds_post_wait_cq(&local.qp->recv_cq, &waits[2], 0) == 0 && gds_post_wait_cq(&local.qp->recv_cq, &waits[1], 0) == 0);
  piece = memory_of(&local.sent, 64);
  wr.sg_list = &piece;
  for (i = 0; i < 3; ++i) {
    post_receive(&local, 20 + i);
    CHECK(gds_post_send(local.qp, &wr, &bad) == 0);
    reap(&local.qp->send_cq, 5, IBV_WC_SEND);
  }
  CHECK(ibv_poll_cq(local.qp->recv_cq.cq, 1, &wc) == 0); /* a stream must see the first */
  CHECK(gds_stream_post_wait_cq(local.stream, &waits[0]) == 0 && cuStreamSynchronize(local.stream) == 0);
  for (i = 0; i < 3; ++i) reap(&local.qp->recv_cq, 20 + i, IBV_WC_RECV);
  close_end(&local);
  return 0;
}

static void connect_to_itself(struct end* local) {
  gds_soft_address_t mine;
  open_end(local, GDS_MEMORY_HOST, 0);
  CHECK(gds_soft_get_address(local->qp, &mine) == 0 && gds_soft_connect(local->qp, &mine) == 0);
}

static gds_send_wr send_of(struct ibv_sge* piece, uint64_t id) {
  gds_send_wr wr;
  memset(&wr, 0, sizeof wr);
  wr.wr_id = id;
  wr.sg_list = piece;
  wr.num_sge = 1;
  wr.opcode = IBV_WR_SEND;
  return wr;
}

/* Streams that nothing orders come to the second send and the second wait first: nothing is lost. */
static int unordered_streams(void) {
  struct end local;
  struct ibv_sge piece;
  gds_send_wr wr, *bad = NULL;
  gds_send_request_t sends[2];
  gds_wait_request_t waits[2];
  struct ibv_wc wc;
  int i;
  connect_to_itself(&local);
  piece = memory_of(&local.sent, 64);
  for (i = 0; i < 2; ++i) {
    post_receive(&local, 30 + (uint64_t)i);
    wr = send_of(&piece, (uint64_t)i);
    CHECK(gds_prepare_send(local.qp, &wr, &bad, &sends[i]) == 0);
    CHECK(gds_prepare_wait_cq(&local.qp->recv_cq, &waits[i], 0) == 0);
  }
  CHECK(gds_stream_post_send(local.stream, &sends[1]) == 0 && cuStreamSynchronize(local.stream) == 0);
  usleep(2000);
  CHECK(ibv_poll_cq(local.qp->send_cq.cq, 1, &wc) == 0); /* it follows the first */
  CHECK(gds_stream_post_send(local.stream, &sends[0]) == 0 && cuStreamSynchronize(local.stream) == 0);
  for (i = 0; i < 2; ++i) reap(&local.qp->send_cq, (uint64_t)i, IBV_WC_SEND);
  for (i = 1; i >= 0; --i)
    CHECK(gds_stream_post_wait_cq(local.stream, &waits[i]) == 0 && cuStreamSynchronize(local.stream) == 0);
  for (i = 0; i < 2; ++i) reap(&local.qp->recv_cq, 30 + (uint64_t)i, IBV_WC_RECV);
  close_end(&local);
  return 0;
}

/* A stream waits for what nobody has sent: the end of its queue pair lets it continue. */
static int end_under_wait(void) {
  struct end local;
  connect_to_itself(&local);
  CHECK(gds_stream_wait_cq(local.stream, &local.qp->recv_cq, 0) == 0);
  usleep(2000);
  CHECK(cuStreamQuery(local.stream) != 0);
  close_end(&local);
  CHECK(cuStreamSynchronize(local.stream) == 0);
  return 0;
}

/* Memory that is unmapped before its message comes is reported, and so are addresses and lists that were never right. */
static int missing_memory(void) {
  struct end local;
  struct ibv_sge piece, gone;
  gds_send_wr wr, *bad = NULL;
  gds_send_request_t late;
  struct ibv_recv_wr receive, *bad_receive = NULL;
  struct ibv_wc wc;
  char* memory = mmap(NULL, BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  CHECK(memory != MAP_FAILED);
  connect_to_itself(&local);
  piece = memory_of(&local.sent, 64);
  memset(&gone, 0, sizeof gone);
  gone.addr = (uintptr_t)memory;
  gone.length = 64;
  memset(&receive, 0, sizeof receive);
  receive.wr_id = 40;
  receive.sg_list = &gone;
  receive.num_sge = 1;
  CHECK(gds_post_recv(local.qp, &receive, &bad_receive) == 0);
  wr = send_of(&gone, 41);
  CHECK(gds_prepare_send(local.qp, &wr, &bad, &late) == 0);
  CHECK(munmap(memory, BYTES) == 0);
  CHECK(gds_stream_post_send(local.stream, &late) == 0);
  while (ibv_poll_cq(local.qp->send_cq.cq, 1, &wc) == 0) {}
  CHECK(wc.wr_id == 41 && wc.status == IBV_WC_LOC_PROT_ERR);
  wr = send_of(&piece, 42);
  CHECK(gds_post_send(local.qp, &wr, &bad) == 0);
  reap(&local.qp->send_cq, 42, IBV_WC_SEND);
  while (ibv_poll_cq(local.qp->recv_cq.cq, 1, &wc) == 0) {}
  CHECK(wc.wr_id == 40 && wc.status == IBV_WC_LOC_PROT_ERR);
  CHECK(gds_post_recv(local.qp, &receive, &bad_receive) == EFAULT && bad_receive == &receive);
  wr = send_of(&gone, 43);
  CHECK(gds_post_send(local.qp, &wr, &bad) == EFAULT && bad == &wr);
  wr = send_of(&piece, 44);
  wr.num_sge = 2; /* max_send_sge is 1 */
  CHECK(gds_post_send(local.qp, &wr, &bad) == EINVAL);
  post_receive(&local, 45); /* and the pair still works */
  wr = send_of(&piece, 46);
  CHECK(gds_post_send(local.qp, &wr, &bad) == 0);
  reap(&local.qp->recv_cq, 45, IBV_WC_RECV);
  close_end(&local);
  return 0;
}

int main(void) {
  int sockets[2], status = 0, type;
  pid_t child;
  for (type = GDS_MEMORY_GPU; type <= GDS_MEMORY_HOST; ++type) {
    CHECK(socketpair(AF_UNIX, SOCK_STREAM, 0, sockets) == 0);
    child = fork();
    if (child == 0) return ping_pong(1, sockets[1], type);
    CHECK(child > 0);
    if (type == GDS_MEMORY_GPU) { /* CUDA not before the other fork */
      const pid_t first = fork();
      if (first == 0) return ping_pong(0, sockets[0], type);
      CHECK(first > 0 && waitpid(first, &status, 0) == first && status == 0);
    } else {
      CHECK(ping_pong(0, sockets[0], type) == 0);
    }
    CHECK(waitpid(child, &status, 0) == child && status == 0);
    close(sockets[0]);
    close(sockets[1]);
  }
  return loopback() != 0 || misuse() != 0 || unordered_streams() != 0 || end_under_wait() != 0 || missing_memory() != 0;
}
