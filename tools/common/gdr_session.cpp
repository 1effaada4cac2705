// SPDX-License-Identifier: Apache-2.0
#include "tools/common/gdr_session.hpp"

#include <cinttypes>
#include <cstdio>
#include <utility>

#include "base/text.hpp"

namespace pl::tools {

std::string gdr_error_text(const char* call, int code) {
  return format("%s failed: %s: %s", call, errno_text(code).c_str(), gdr_last_error());
}

void check_gdr(const char* call, int code) {
  if (code != 0) throw tool_failure(gdr_error_text(call, code));
}

gdr_session::gdr_session() : gdr_(gdr_open()) {
  if (gdr_ == nullptr)
    throw tool_failure(format("gdr_open failed: %s; `peerlane doctor` says what each backend needs", gdr_last_error()));
}

void gdr_session::close() {
  if (gdr_t gdr = std::exchange(gdr_, nullptr); gdr != nullptr) gdr_close(gdr);
}

int gdr_session::attribute(gdr_attr_t attribute_id) const {
  int value = 0;
  check_gdr("gdr_get_attribute", gdr_get_attribute(gdr_, attribute_id, &value));
  return value;
}

gdr_buffer::gdr_buffer(const gdr_session& gdr, cu::device_ptr pointer, std::uint64_t size_bytes, int map_flag)
    : gdr_(gdr.get()), pointer_(pointer), size_bytes_(size_bytes) {
  check_gdr("gdr_pin_buffer", gdr_pin_buffer(gdr_, pointer, size_bytes, 0, 0, &handle_));
  if (const int code = gdr_map_v2(gdr_, handle_, &mapped_, size_bytes, map_flag); code != 0) {
    const std::string reason = gdr_error_text("gdr_map", code);
    gdr_unpin_buffer(gdr_, handle_);
    throw tool_failure(reason);
  }
  if (const int code = gdr_get_info(gdr_, handle_, &info_); code != 0) {
    const std::string reason = gdr_error_text("gdr_get_info", code);
    gdr_unpin_buffer(gdr_, handle_);
    throw tool_failure(reason);
  }
}

gdr_buffer::~gdr_buffer() {
  if (mapped_ != nullptr) gdr_unmap(gdr_, handle_, mapped_, size_bytes_);
  if (handle_.h != 0) gdr_unpin_buffer(gdr_, handle_);
}

const char* gdr_buffer::mapping_type() const {
  const char* text = "unknown";
  gdr_get_mapping_type_string(info_.mapping_type, &text);
  return text;
}

void gdr_buffer::unmap() {
  if (void* mapped = std::exchange(mapped_, nullptr); mapped != nullptr)
    check_gdr("gdr_unmap", gdr_unmap(gdr_, handle_, mapped, size_bytes_));
}

void gdr_buffer::unpin() {
  if (const gdr_mh_t handle = std::exchange(handle_, gdr_mh_t{0}); handle.h != 0)
    check_gdr("gdr_unpin_buffer", gdr_unpin_buffer(gdr_, handle));
}

void print_mapping_lines(const gdr_buffer& buffer) {
  const auto& info = buffer.info();
  std::printf("map_d_ptr: %p\n", buffer.mapped());
  std::printf("info.va: %" PRIx64 "\n", info.va);
  std::printf("info.mapped_size: %" PRIu64 "\n", info.mapped_size);
  std::printf("info.page_size: %u\n", info.page_size);
  std::printf("info.mapped: %u\n", info.mapped);
  std::printf("info.wc_mapping: %u\n", info.wc_mapping);
  std::printf("page offset: %" PRIu64 "\n", buffer.page_offset());
  std::printf("user-space pointer: %p\n", static_cast<void*>(buffer.user_pointer()));
}

void close_with_lines(gdr_buffer& buffer, gdr_session& gdr) {
  std::printf("unmapping buffer\n");
  buffer.unmap();
  std::printf("unpinning buffer\n");
  buffer.unpin();
  std::printf("closing gdrdrv\n");
  gdr.close();
}

}  // namespace pl::tools
