// SPDX-License-Identifier: Apache-2.0
#include "transfers.hpp"

#include <algorithm>
#include <cstdlib>

#include "error.hpp"

namespace pl::py {
namespace {

constexpr std::int64_t kMaxTransfers = 1 << 20;

struct axis {
  std::int64_t extent, dst, src;
};

// The axes with more than one element, sorted by descending stride of the destination. An axis with a negative stride in the
// destination is reversed on both sides.
std::vector<axis> axes_of(const tensor& dst, const tensor& src, std::uint64_t& dst_address, std::uint64_t& src_address) {
  std::vector<axis> out;
  for (std::size_t i = 0; i < dst.shape.size(); ++i) {
    axis one{dst.shape[i], dst.strides[i], src.strides[i]};
    if (one.extent == 1) continue;
    if (one.dst == 0) throw error(EINVAL, "copy: elements of the destination share memory (a stride is 0)");
    if (one.dst < 0) {
      dst_address += static_cast<std::uint64_t>((one.extent - 1) * one.dst);
      src_address += static_cast<std::uint64_t>((one.extent - 1) * one.src);
      one = {one.extent, -one.dst, -one.src};
    }
    out.push_back(one);
  }
  std::stable_sort(out.begin(), out.end(), [](const axis& a, const axis& b) { return a.dst > b.dst; });
  return out;
}

void join(std::vector<axis>& axes) {
  std::vector<axis> out;
  for (const axis& inner : axes) {
    if (!out.empty() && out.back().dst == inner.dst * inner.extent && out.back().src == inner.src * inner.extent)
      out.back() = {out.back().extent * inner.extent, inner.dst, inner.src};
    else out.push_back(inner);
  }
  axes = std::move(out);
}

}  // namespace

peerlane::buffer buffer_over(const tensor& view, std::uint64_t address, std::size_t size_bytes) {
  if (view.location == place::device) return peerlane::device_buffer(address, size_bytes);
  return peerlane::host_buffer(reinterpret_cast<void*>(static_cast<std::uintptr_t>(address)), size_bytes);
}

std::vector<peerlane::transfer> transfers_between(const tensor& dst, const tensor& src) {
  if (dst.elements() == 0) return {};
  std::uint64_t dst_address = dst.address, src_address = src.address;
  std::size_t row = dst.type.bytes, rows = 1, dst_pitch = 0, src_pitch = 0;
  auto axes = axes_of(dst, src, dst_address, src_address);
  join(axes);
  const std::int64_t item = dst.type.bytes;
  if (!axes.empty() && axes.back().dst == item && axes.back().src == item) {
    row *= static_cast<std::size_t>(axes.back().extent);
    axes.pop_back();
  }
  if (!axes.empty() && axes.back().dst >= static_cast<std::int64_t>(row) &&
      axes.back().src >= static_cast<std::int64_t>(row)) {
    rows = static_cast<std::size_t>(axes.back().extent);
    dst_pitch = static_cast<std::size_t>(axes.back().dst);
    src_pitch = static_cast<std::size_t>(axes.back().src);
    axes.pop_back();
  }
  std::int64_t count = 1;
  for (const axis& each : axes)
    if (__builtin_mul_overflow(count, each.extent, &count) || count > kMaxTransfers)
      throw error(E2BIG, "copy: the strides leave more than a million pieces: make one side contiguous first");
  std::vector<peerlane::transfer> out;
  out.reserve(static_cast<std::size_t>(count));
  for (std::int64_t number = 0; number < count; ++number) {
    std::uint64_t destination = dst_address, source = src_address;
    std::int64_t rest = number;
    for (std::size_t i = axes.size(); i-- > 0; rest /= axes[i].extent) {
      destination += static_cast<std::uint64_t>(rest % axes[i].extent * axes[i].dst);
      source += static_cast<std::uint64_t>(rest % axes[i].extent * axes[i].src);
    }
    out.emplace_back(buffer_over(dst, destination, (rows - 1) * dst_pitch + row), dst_pitch,
                     buffer_over(src, source, (rows - 1) * src_pitch + row), src_pitch, row, rows);
  }
  return out;
}

}  // namespace pl::py
