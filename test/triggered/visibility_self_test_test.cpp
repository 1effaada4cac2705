// SPDX-License-Identifier: Apache-2.0
// How flags are written to the peer's memory: by the first method that the driver accepts and that works.
#include "triggered/visibility_self_test.hpp"

#include "test/triggered/ends.hpp"

namespace pl::triggered {
namespace {

// The device that this process does not use as its own; the scenes have one each.
bool is_remote(cu::device_ptr address) {
  int own = -1, allocation = -1;
  unsigned type = 0;
  if (cuda().cuPointerGetAttribute(&type, cu::pointer_attribute::memory_type, address) != 0) return false;
  if (type != cu::memory_type::device || cuda().cuCtxGetDevice(&own) != 0) return false;
  return cuda().cuPointerGetAttribute(&allocation, cu::pointer_attribute::device_ordinal, address) == 0 && allocation != own;
}

bool writes_remote(unsigned count, const cu::mem_op_params* ops) {
  for (unsigned i = 0; i < count; ++i)
    if (ops[i].operation == cu::mem_op::write64 && is_remote(ops[i].value.address)) return true;
  return false;
}

cu::result_t refuse_remote_writes(cu::stream_t stream, unsigned count, cu::mem_op_params* ops, unsigned flags) {
  if (writes_remote(count, ops)) return cu::error_code::not_supported;
  return cuda().cuStreamBatchMemOp_v2(stream, count, ops, flags);
}

cu::result_t lose_remote_writes(cu::stream_t stream, unsigned count, cu::mem_op_params* ops, unsigned flags) {
  if (writes_remote(count, ops)) return cu::error_code::success;
  return cuda().cuStreamBatchMemOp_v2(stream, count, ops, flags);
}

cu::result_t refuse_remote_flags(cu::device_ptr dst, cu::device_ptr src, std::size_t bytes, cu::stream_t stream) {
  if (bytes == sizeof(std::uint64_t) && is_remote(dst)) return cu::error_code::not_supported;
  return cuda().cuMemcpyDtoDAsync_v2(dst, src, bytes, stream);
}

cu::result_t lose_data(cu::device_ptr dst, cu::device_ptr src, std::size_t bytes, cu::stream_t stream) {
  if (bytes == sizeof(gpu_words::self_test_data)) return cu::error_code::success;
  return cuda().cuMemcpyDtoDAsync_v2(dst, src, bytes, stream);
}

std::function<int(const rank_session&)> exchanges_by(flag_writer expected) {
  return [expected](const rank_session& session) -> int {
    two_ends ends;
    channel_options options;
    options.depth = 1;
    if (const int line = ends.open(session, options)) return line;
    CHECK(session.streams->query().writer == expected);
    CHECK(session.streams->diag().find(std::string("flags are written ") + name_of(expected)) != std::string::npos);
    const auto bytes = test::random_bytes(kBytes, static_cast<unsigned>(session.rank));
    test::set_device_bytes(ends.send_buffer.pointer(), bytes);
    for (std::uint64_t i = 1; i <= 5; ++i) {
      CHECK_OK(ends.peer_channel->put_signal(session.stream, ends.peer_window, 0, ends.send_buffer.pointer(), kBytes));
      CHECK_OK(ends.peer_channel->wait_signal(session.stream));
      CHECK_OK(ends.peer_channel->release(session.stream, i));
    }
    CHECK(cuda().cuStreamSynchronize(session.stream) == 0);
    CHECK(test::device_bytes(ends.receive_buffer.pointer(), kBytes) ==
          test::random_bytes(kBytes, static_cast<unsigned>(1 - session.rank)));
    CHECK_OK(session.bootstrap->barrier());
    return 0;
  };
}

int run_with(flag_writer expected, const std::function<void(cu::driver_table&)>& change) {
  return run_streams(2, gpus::one_each, {}, exchanges_by(expected), -1, change);
}

TEST(litmus, direct_where_it_works) { EXPECT_EQ(run_streams(2, gpus::one_each, {}, exchanges_by(flag_writer::direct)), 0); }

TEST(litmus, copied_where_direct_is_refused) {
  EXPECT_EQ(run_with(flag_writer::copied, [](cu::driver_table& t) { t.cuStreamBatchMemOp_v2 = refuse_remote_writes; }), 0);
}

TEST(litmus, copied_where_direct_is_lost) {
  EXPECT_EQ(run_with(flag_writer::copied, [](cu::driver_table& t) { t.cuStreamBatchMemOp_v2 = lose_remote_writes; }), 0);
}

TEST(litmus, a_kernel_where_neither_works) {
  EXPECT_EQ(run_with(flag_writer::kernel,
                     [](cu::driver_table& t) {
                       t.cuStreamBatchMemOp_v2 = refuse_remote_writes;
                       t.cuMemcpyDtoDAsync_v2 = refuse_remote_flags;
                     }),
            0);
}

TEST(litmus, the_variable_and_the_option_choose) {
  const with_variable set("PEERLANE_STREAM_WRITER", "kernel");
  EXPECT_EQ(run_streams(2, gpus::one_each, {}, exchanges_by(flag_writer::kernel)), 0);
  context_options options;
  options.writer = writer_choice::copied;
  EXPECT_EQ(run_streams(2, gpus::one_each, options, exchanges_by(flag_writer::copied)), 0);
}

TEST(litmus, a_flag_without_its_data_is_found_out) {
  EXPECT_EQ(run_streams(
                2, gpus::one_each, {},
                [](const rank_session& session) -> int {
                  auto end = session.streams->connect(1 - session.rank, 7);
                  CHECK_OK(end);
                  const auto refused = (*end)->ready(kTimeout);
                  CHECK(refused.code() == ENOTSUP);
                  CHECK(refused.error().message.find("direct: the flag arrives before the data") != std::string::npos);
                  CHECK_OK(session.bootstrap->barrier());
                  return 0;
                },
                -1, [](cu::driver_table& t) { t.cuMemcpyDtoDAsync_v2 = lose_data; }),
            0);
}

}  // namespace
}  // namespace pl::triggered
