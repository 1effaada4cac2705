// SPDX-License-Identifier: Apache-2.0
#include "triggered/mem_ops.hpp"

#include <cstring>

namespace pl::triggered {

cu::mem_op_params* mem_ops::next() noexcept {
  if (count_ == kMaxOps && refused_ == cu::error_code::success) refused_ = flush_to_driver();
  if (count_ == kMaxOps) count_ = 0;  // refused: submit() says so, what is gathered now goes nowhere
  auto* const op = &ops_[count_++];
  std::memset(op, 0, sizeof *op);
  return op;
}

mem_ops& mem_ops::value_op(int operation, cu::device_ptr word, std::uint64_t value, unsigned flags, bool is_64) noexcept {
  auto* const op = next();
  op->value.operation = operation;
  op->value.address = word;
  if (is_64) op->value.value64 = value;
  else op->value.value32 = static_cast<std::uint32_t>(value);
  op->value.flags = flags;
  return *this;
}

mem_ops& mem_ops::wait64(cu::device_ptr word, std::uint64_t value, wait_until condition) noexcept {
  return value_op(cu::mem_op::wait64, word, value, static_cast<unsigned>(condition), true);
}
mem_ops& mem_ops::wait32(cu::device_ptr word, std::uint32_t value, wait_until condition) noexcept {
  return value_op(cu::mem_op::wait32, word, value, static_cast<unsigned>(condition), false);
}
mem_ops& mem_ops::write64(cu::device_ptr word, std::uint64_t value) noexcept {
  return value_op(cu::mem_op::write64, word, value, cu::write_value::standard, true);
}
mem_ops& mem_ops::write32(cu::device_ptr word, std::uint32_t value) noexcept {
  return value_op(cu::mem_op::write32, word, value, cu::write_value::standard, false);
}

mem_ops& mem_ops::flush() noexcept {
  next()->simple.operation = cu::mem_op::flush_remote_writes;
  return *this;
}

cu::result_t mem_ops::flush_to_driver() noexcept {
  const auto rc = cuda_->cuStreamBatchMemOp_v2(stream_, static_cast<unsigned>(count_), ops_.data(), 0);
  if (rc == cu::error_code::success) count_ = 0;
  return rc;
}

status mem_ops::submit() noexcept {
  if (refused_ == cu::error_code::success && count_ != 0) refused_ = flush_to_driver();
  count_ = 0;
  const auto rc = refused_;
  refused_ = cu::error_code::success;
  if (rc != cu::error_code::success) return cu::make_error(*cuda_, rc, "stream memory operations (cuStreamBatchMemOp)");
  return {};
}

}  // namespace pl::triggered
