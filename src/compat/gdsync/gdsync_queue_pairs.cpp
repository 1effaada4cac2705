// SPDX-License-Identifier: Apache-2.0
// Queue pairs for programs written to libgdsync, without an adapter (gdsync_soft_pair.hpp). The contract is in
// gdsync/core.h and gdsync/soft.h.
#include <gdsync/soft.h>

#include <algorithm>
#include <cstring>
#include <memory>
#include <mutex>
#include <new>
#include <system_error>

#include "base/text.hpp"
#include "capi/errno_guard.hpp"
#include "compat/gdsync/gdsync_soft_pair.hpp"
#include "compat/gdsync/gdsync_words.hpp"
#include "os/fork_guard.hpp"

namespace pl::gds {
namespace {

using side = soft_pair::side;

struct soft_queue : ibv_cq {
  soft_pair* pair;
  side end;
  gds_cq* owner;
};

struct soft_qp : gds_qp {
  ibv_qp verbs;
  soft_queue queues[2];
  bool signals_all;
  std::uint32_t most_pieces[2];  // of a send and of a receive
  std::shared_ptr<soft_pair> pair;
  const std::uint32_t epoch = pl::claim_process_epoch();
  std::mutex preparing;  // a send that could not be queued is taken back before another one is prepared
};

soft_qp* as_soft(gds_qp* qp) { return static_cast<soft_qp*>(qp); }
soft_queue* as_soft(const ibv_cq* cq) { return const_cast<soft_queue*>(static_cast<const soft_queue*>(cq)); }

// The contents of a request. Prepared requests may be copied; they must not outlive their queue pair.
struct request {
  static constexpr std::uint64_t kMagic = 0x70656572'67647371;
  std::uint64_t magic;
  soft_pair* pair;
  side end;
  std::uint32_t number;
};
static_assert(sizeof(request) <= sizeof(gds_send_request_t) && sizeof(request) <= sizeof(gds_wait_request_t));

template <class Opaque>
void keep(const request& prepared, Opaque* storage) {
  std::memcpy(storage, &prepared, sizeof prepared);
}
template <class Opaque>
result<request> recall(const Opaque* storage) {
  request out{};
  if (storage != nullptr) std::memcpy(&out, storage, sizeof out);
  if (out.magic != request::kMagic || out.pair == nullptr) return failure{EINVAL, "a request that was not prepared"};
  return out;
}

// ---- Verbs' own inline functions come here

ibv_wc_status status_of(soft_completion::outcome result) {
  switch (result) {
    case soft_completion::outcome::success:
      return IBV_WC_SUCCESS;
    case soft_completion::outcome::too_long:
      return IBV_WC_LOC_LEN_ERR;
    default:
      return IBV_WC_LOC_PROT_ERR;
  }
}

int poll_queue(ibv_cq* cq, int count, ibv_wc* completions) {
  auto* const queue = as_soft(cq);
  int found = 0;
  for (; found < count; ++found) {
    const auto next = queue->pair->poll(queue->end, queue->owner->curr_offset);
    if (!next) break;
    auto& out = completions[found];
    std::memset(&out, 0, sizeof out);
    out.wr_id = next->id;
    out.byte_len = next->bytes;
    out.opcode = queue->end == side::send ? IBV_WC_SEND : IBV_WC_RECV;
    out.status = status_of(next->result);
  }
  return found;
}

int post_send(ibv_qp* qp, ibv_send_wr* wr, ibv_send_wr** bad) {
  gds_send_wr request{};
  gds_send_wr more{};  // stands for verbs' next, which is refused
  if (wr != nullptr) {
    request.wr_id = wr->wr_id;
    request.next = wr->next != nullptr ? &more : nullptr;
    request.sg_list = wr->sg_list;
    request.num_sge = wr->num_sge;
    request.opcode = wr->opcode;
    request.send_flags = wr->send_flags;
  }
  gds_send_wr* refused = nullptr;
  auto* const pair = static_cast<gds_qp*>(static_cast<soft_qp*>(qp->qp_context));
  const int code = gds_post_send(pair, wr != nullptr ? &request : nullptr, &refused);
  if (code != 0 && bad != nullptr) *bad = wr;
  return code;
}
int post_receive(ibv_qp* qp, ibv_recv_wr* wr, ibv_recv_wr** bad) {
  return gds_post_recv(static_cast<gds_qp*>(static_cast<soft_qp*>(qp->qp_context)), wr, bad);
}

ibv_context& soft_context() {
  static auto* const one = [] {
    auto* const made = new ibv_context();
    made->ops.poll_cq = poll_queue;
    made->ops.post_send = post_send;
    made->ops.post_recv = post_receive;
    made->cmd_fd = made->async_fd = -1;
    return made;
  }();
  return *one;
}
ibv_pd& soft_pd() {
  static auto* const one = new ibv_pd{&soft_context(), 0};
  return *one;
}

// ---- Work

result<soft_work> work_of(std::uint64_t id, const ibv_sge* list, int count, std::uint32_t limit) {
  if (count < 0 || (count != 0 && list == nullptr)) return failure{EINVAL, "sg_list is missing"};
  if (static_cast<std::uint32_t>(count) > limit)
    return failure{
        EINVAL, format("num_sge is %d, and the queue pair was created for %u (max_send_sge, max_recv_sge)", count, limit)};
  const auto cuda = ready_driver();
  if (!cuda) return cuda.error();
  soft_work out;
  out.id = id;
  for (int i = 0; i < count; ++i) {
    auto piece = piece_at(**cuda, list[i].addr, list[i].length);
    if (!piece) return piece.error();
    out.pieces.push_back(std::move(piece).value());
  }
  return out;
}

result<std::uint32_t> prepare_send(soft_qp& qp, const gds_send_wr& wr) {
  if (wr.opcode != IBV_WR_SEND) return failure{EINVAL, "a soft queue pair has no other operation than IBV_WR_SEND"};
  auto work = work_of(wr.wr_id, wr.sg_list, wr.num_sge, qp.most_pieces[0]);
  if (!work) return work.error();
  work->is_signaled = qp.signals_all || (wr.send_flags & IBV_SEND_SIGNALED) != 0;
  return qp.pair->prepare(std::move(work).value());
}

status check(const soft_qp* qp, const void* wr) {
  if (qp == nullptr || wr == nullptr) return failure{EINVAL, "no queue pair, or no work request"};
  return {};
}

status check_one(const soft_qp* qp, const gds_send_wr* wr) {
  if (auto done = check(qp, wr); !done) return done;
  if (wr->next != nullptr) return failure{EINVAL, "one send a call: wr->next is not null"};
  return {};
}

// Precondition: the queue pair's `preparing` is held.
result<request> make_send(gds_qp* qp, gds_send_wr* wr, gds_send_wr** bad) {
  auto* const soft = as_soft(qp);
  status done = check_one(soft, wr);
  std::uint32_t number = 0;
  if (done) {
    const auto prepared = prepare_send(*soft, *wr);
    if (prepared) number = *prepared;
    else done = prepared.error();
  }
  if (done) return request{request::kMagic, soft->pair.get(), side::send, number};
  if (bad != nullptr) *bad = wr;
  return done.error();
}

result<request> make_one_send(gds_qp* qp, gds_send_wr* wr, gds_send_wr** bad) {
  if (qp == nullptr) return make_send(qp, wr, bad);
  const std::lock_guard hold(as_soft(qp)->preparing);
  return make_send(qp, wr, bad);
}

// As in libgdsync: the completion after those waited for before, whether or not it has arrived.
result<request> make_wait(gds_cq* cq, int flags) {
  if (cq == nullptr || cq->cq == nullptr || flags != 0) return failure{EINVAL, "no completion queue, or flags are not 0"};
  auto* const queue = as_soft(cq->cq);
  return request{request::kMagic, queue->pair, queue->end, ++cq->curr_offset};
}

void add_send(const request& prepared, std::vector<word_op>& ops) {
  ops.push_back(
      {prepared.pair->doorbell(prepared.number), prepared.number, GDS_MEMORY_HOST, false, false, GDS_WAIT_COND_GEQ});
}
// The CPU may take the completion once the stream has passed it.
void add_wait(const request& prepared, std::vector<word_op>& ops) {
  ops.push_back({prepared.pair->completed(prepared.end), prepared.number, GDS_MEMORY_HOST, true, false, GDS_WAIT_COND_GEQ});
  ops.push_back({prepared.pair->passed(prepared.end, prepared.number), prepared.number, GDS_MEMORY_HOST, false, false,
                 GDS_WAIT_COND_GEQ});
}

template <class Opaque, class Add>
int post_all(const char* call, CUstream stream, int count, const Opaque* requests, const Add& add) {
  if (count < 0 || (count != 0 && requests == nullptr)) return refuse(call, {EINVAL, "no requests"});
  std::vector<word_op> ops;
  for (int i = 0; i < count; ++i) {
    const auto one = recall(requests + i);
    if (!one) return refuse(call, one.error());
    add(*one, ops);
  }
  const auto posted = post_on_stream(reinterpret_cast<cu::stream_t>(stream), ops);
  return posted ? 0 : refuse(call, posted.error());
}

result<std::shared_ptr<soft_pair>> make_pair(const gds_qp_init_attr_t& wanted) {
  const auto cuda = ready_driver();
  if (!cuda) return cuda.error();
  cu::context_t current = nullptr;
  cu::device_t device = -1;
  if ((*cuda)->cuCtxGetCurrent(&current) != cu::error_code::success || current == nullptr ||
      (*cuda)->cuCtxGetDevice(&device) != cu::error_code::success)
    return failure{EINVAL, "no CUDA context is current on this thread"};
  const auto context = copy::find_context(**cuda, device, current);
  if (!context) return context.error();
  return soft_pair::make(*context, wanted.cap.max_send_wr, wanted.cap.max_recv_wr);
}

void fill_in(soft_qp& qp) {
  auto* const context = &soft_context();
  qp.dev_context = context;
  qp.qp = &qp.verbs;
  qp.verbs.context = context;
  qp.verbs.pd = &soft_pd();
  qp.verbs.qp_context = &qp;
  gds_cq* const ends[] = {&qp.send_cq, &qp.recv_cq};
  for (int i = 0; i < 2; ++i) {
    auto& queue = qp.queues[i];
    queue.context = context;
    queue.pair = qp.pair.get();
    queue.end = i == 0 ? side::send : side::receive;
    queue.owner = ends[i];
    ends[i]->cq = &queue;
  }
}

}  // namespace

status gather_send(const gds_send_request_t* storage, std::vector<word_op>& ops) {
  const auto one = recall(storage);
  if (!one) return one.error();
  add_send(*one, ops);
  return {};
}

status gather_wait(const gds_wait_request_t* storage, std::vector<word_op>& ops) {
  const auto one = recall(storage);
  if (!one) return one.error();
  add_wait(*one, ops);
  return {};
}

}  // namespace pl::gds

using namespace pl::gds;

PL_EXPORT int gds_soft_open(struct ibv_context** context, struct ibv_pd** pd) {
  if (context == nullptr || pd == nullptr) return refuse(__func__, {EINVAL, "no room for the result"});
  *context = &soft_context();
  *pd = &soft_pd();
  return 0;
}

PL_EXPORT struct gds_qp* gds_create_qp(struct ibv_pd*, struct ibv_context* context, gds_qp_init_attr_t* attr, int,
                                       int flags) try {
  const auto refused = [](const pl::failure& reason) {
    errno = refuse("gds_create_qp", reason);
    return static_cast<struct gds_qp*>(nullptr);
  };
  if (context != nullptr && context != &soft_context())
    return refused({ENOSYS, "an adapter's queue pairs need peer-direct verbs, which no current driver has: gds_soft_open"});
  if (attr == nullptr || attr->srq != nullptr || (attr->qp_type != IBV_QPT_RC && attr->qp_type != IBV_QPT_UD))
    return refused({EINVAL, "a queue pair of type RC or UD without a shared receive queue is what there is"});
  if (flags != GDS_CREATE_QP_DEFAULT) return refused({EINVAL, "queues of soft queue pairs are not on a GPU: flags are 0"});
  auto pair = make_pair(*attr);
  if (!pair) return refused(pair.error());
  attach_to_adapter(*pair);
  auto* const qp = new soft_qp();
  qp->pair = std::move(pair).value();
  qp->signals_all = attr->sq_sig_all != 0;
  // Adapters give one piece to whom asks for none.
  qp->most_pieces[0] = std::max(attr->cap.max_send_sge, 1u);
  qp->most_pieces[1] = std::max(attr->cap.max_recv_sge, 1u);
  fill_in(*qp);
  attr->send_cq = qp->send_cq.cq;
  attr->recv_cq = qp->recv_cq.cq;
  return qp;
} catch (const std::bad_alloc&) {
  errno = ENOMEM;
  return nullptr;
} catch (const std::system_error&) {
  errno =
      refuse("gds_create_qp", {EAGAIN, "the thread of soft queue pairs could not be started: raise the limit of processes"});
  return nullptr;
}

PL_EXPORT int gds_destroy_qp(struct gds_qp* qp) {
  if (qp == nullptr) return refuse(__func__, {EINVAL, "no queue pair"});
  auto* const soft = as_soft(qp);
  // In a forked child, the words and the thread are the parent's.
  if (soft->epoch == pl::process_epoch()) {
    // In this order: what ends with the pair waits for the streams of its context.
    soft->pair->close(qp->send_cq.curr_offset, qp->recv_cq.curr_offset);
    detach_from_adapter(soft->pair);
  }
  delete soft;
  return 0;
}

PL_EXPORT int gds_soft_get_address(struct gds_qp* qp, gds_soft_address_t* address) {
  if (qp == nullptr || address == nullptr) return refuse(__func__, {EINVAL, "no queue pair, or no room for the result"});
  const auto own = as_soft(qp)->pair->own_address();
  static_assert(sizeof own <= sizeof *address);
  std::memset(address, 0, sizeof *address);
  std::memcpy(address, &own, sizeof own);
  return 0;
}

PL_EXPORT int gds_soft_connect(struct gds_qp* qp, const gds_soft_address_t* address) try {
  if (qp == nullptr || address == nullptr) return refuse(__func__, {EINVAL, "no queue pair, or no address"});
  soft_pair::address destination;
  std::memcpy(static_cast<void*>(&destination), address, sizeof destination);
  const auto done = as_soft(qp)->pair->connect(destination);
  return done ? 0 : refuse(__func__, done.error());
}
PL_NO_EXCEPTIONS

PL_EXPORT int gds_post_recv(struct gds_qp* qp, struct ibv_recv_wr* wr, struct ibv_recv_wr** bad_wr) try {
  auto* const soft = as_soft(qp);
  auto done = check(soft, wr);
  for (; done && wr != nullptr; wr = wr->next) {
    auto work = work_of(wr->wr_id, wr->sg_list, wr->num_sge, soft->most_pieces[1]);
    done = work ? soft->pair->receive(std::move(work).value()) : pl::status{work.error()};
    if (!done) break;
  }
  if (done) return 0;
  if (bad_wr != nullptr) *bad_wr = wr;
  return refuse(__func__, done.error());
}
PL_NO_EXCEPTIONS

PL_EXPORT int gds_post_send(struct gds_qp* qp, gds_send_wr* wr, gds_send_wr** bad_wr) try {
  const auto made = make_one_send(qp, wr, bad_wr);
  if (!made) return refuse(__func__, made.error());
  std::vector<word_op> ops;
  add_send(*made, ops);
  const auto posted = post_on_cpu(ops);
  return posted ? 0 : refuse(__func__, posted.error());
}
PL_NO_EXCEPTIONS

PL_EXPORT int gds_prepare_send(struct gds_qp* qp, gds_send_wr* wr, gds_send_wr** bad_wr, gds_send_request_t* storage) try {
  if (storage == nullptr) return refuse(__func__, {EINVAL, "no request"});
  const auto made = make_one_send(qp, wr, bad_wr);
  if (!made) return refuse(__func__, made.error());
  keep(*made, storage);
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int gds_stream_post_send(CUstream stream, gds_send_request_t* one) {
  return gds_stream_post_send_all(stream, 1, one);
}
PL_EXPORT int gds_stream_post_send_all(CUstream stream, int count, gds_send_request_t* requests) try {
  return post_all(__func__, stream, count, requests, add_send);
}
PL_NO_EXCEPTIONS

PL_EXPORT int gds_stream_queue_send(CUstream stream, struct gds_qp* qp, gds_send_wr* wr, gds_send_wr** bad_wr) try {
  if (qp == nullptr) return refuse(__func__, {EINVAL, "no queue pair"});
  const std::lock_guard hold(as_soft(qp)->preparing);
  const auto made = make_send(qp, wr, bad_wr);
  if (!made) return refuse(__func__, made.error());
  gds_send_request_t one;
  keep(*made, &one);
  const int code = gds_stream_post_send(stream, &one);
  if (code != 0) as_soft(qp)->pair->take_back();  // its doorbell will not ring
  return code;
}
PL_NO_EXCEPTIONS

PL_EXPORT int gds_prepare_wait_cq(struct gds_cq* cq, gds_wait_request_t* storage, int flags) {
  if (storage == nullptr) return refuse(__func__, {EINVAL, "no request"});  // before it is counted
  const auto made = make_wait(cq, flags);
  if (!made) return refuse(__func__, made.error());
  keep(*made, storage);
  return 0;
}
PL_EXPORT int gds_stream_post_wait_cq(CUstream stream, gds_wait_request_t* one) {
  return gds_stream_post_wait_cq_all(stream, 1, one);
}
PL_EXPORT int gds_stream_post_wait_cq_all(CUstream stream, int count, gds_wait_request_t* requests) try {
  return post_all(__func__, stream, count, requests, add_wait);
}
PL_NO_EXCEPTIONS

PL_EXPORT int gds_stream_wait_cq(CUstream stream, struct gds_cq* cq, int flags) {
  gds_wait_request_t one;
  if (const int code = gds_prepare_wait_cq(cq, &one, flags); code != 0) return code;
  const int code = gds_stream_post_wait_cq(stream, &one);
  if (code != 0) --cq->curr_offset;  // no stream waits for it
  return code;
}

// No stream will wait for it, so the CPU may take the completion.
PL_EXPORT int gds_post_wait_cq(struct gds_cq* cq, gds_wait_request_t* storage, int flags) try {
  const auto one = recall(storage);
  const auto* const queue = cq != nullptr && cq->cq != nullptr ? as_soft(cq->cq) : nullptr;
  if (queue == nullptr || flags != 0 || !one || one->pair != queue->pair || one->end != queue->end)
    return refuse(__func__, {EINVAL, "no completion queue, flags, or no request of it"});
  one->pair->give_up(one->end, one->number);
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int gds_mlx5_get_send_info(int count, const gds_send_request_t* requests, gds_mlx5_send_info_t* infos) try {
  if (count < 0 || (count != 0 && (requests == nullptr || infos == nullptr)))
    return refuse(__func__, {EINVAL, "no requests, or no room for the result"});
  const auto cuda = ready_driver();
  if (!cuda) return refuse(__func__, cuda.error());
  for (int i = 0; i < count; ++i) {
    const auto one = recall(requests + i);
    if (!one) return refuse(__func__, one.error());
    const auto word = device_address(**cuda, one->pair->doorbell(one->number), GDS_MEMORY_HOST);
    const auto record = device_address(**cuda, one->pair->doorbell_record(), GDS_MEMORY_HOST);
    if (!word || !record) return refuse(__func__, word ? record.error() : word.error());
    std::memset(&infos[i], 0, sizeof infos[i]);
    // One word suffices: nothing reads the record, and the upper half of the doorbell is unused.
    infos[i].db_ptr = reinterpret_cast<std::uint64_t*>(*word);
    infos[i].db_value = one->number;
    infos[i].dbrec_ptr = reinterpret_cast<std::uint32_t*>(*record);
    infos[i].dbrec_value = one->number;
  }
  return 0;
}
PL_NO_EXCEPTIONS

PL_EXPORT int gds_mlx5_get_wait_info(int count, const gds_wait_request_t* requests, gds_mlx5_wait_info_t* infos) try {
  if (count < 0 || (count != 0 && (requests == nullptr || infos == nullptr)))
    return refuse(__func__, {EINVAL, "no requests, or no room for the result"});
  const auto cuda = ready_driver();
  if (!cuda) return refuse(__func__, cuda.error());
  for (int i = 0; i < count; ++i) {
    const auto one = recall(requests + i);
    if (!one) return refuse(__func__, one.error());
    const auto done = device_address(**cuda, one->pair->completed(one->end), GDS_MEMORY_HOST);
    const auto passed = device_address(**cuda, one->pair->passed(one->end, one->number), GDS_MEMORY_HOST);
    if (!done || !passed) return refuse(__func__, done ? passed.error() : done.error());
    infos[i] = {GDS_WAIT_COND_GEQ, reinterpret_cast<std::uint32_t*>(*done), one->number,
                reinterpret_cast<std::uint32_t*>(*passed), one->number};
  }
  return 0;
}
PL_NO_EXCEPTIONS
