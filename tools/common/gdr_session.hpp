// SPDX-License-Identifier: Apache-2.0
// libgdrapi for the tools: owners whose failures end the tool with the library's own sentence.
//
// The tools measure the C interface that existing programs use, so they are written against gdrapi.h alone.
#pragma once

#include <gdrapi.h>

#include <cstdint>
#include <string>

#include "tools/common/gpu.hpp"

namespace pl::tools {

// "gdr_pin_buffer failed: EINVAL (Invalid argument): <gdr_last_error()>".
std::string gdr_error_text(const char* call, int code);
// Throws tool_failure with that text unless `code` is 0.
void check_gdr(const char* call, int code);

class gdr_session {
 public:
  gdr_session();  // gdr_open
  ~gdr_session() { close(); }
  gdr_session(const gdr_session&) = delete;
  gdr_session& operator=(const gdr_session&) = delete;
  gdr_t get() const { return gdr_; }
  void close();
  int attribute(gdr_attr_t attribute_id) const;

 private:
  gdr_t gdr_ = nullptr;
};

// A pinned and mapped buffer.
class gdr_buffer {
 public:
  gdr_buffer(const gdr_session& gdr, cu::device_ptr pointer, std::uint64_t size_bytes, int map_flag = GDR_MAP_FLAG_DEFAULT);
  ~gdr_buffer();
  gdr_buffer(const gdr_buffer&) = delete;
  gdr_buffer& operator=(const gdr_buffer&) = delete;

  gdr_mh_t handle() const { return handle_; }
  void* mapped() const { return mapped_; }  // as gdr_map gave it
  const gdr_info_t& info() const { return info_; }
  std::uint64_t page_offset() const { return pointer_ - info_.va; }
  unsigned char* user_pointer() const { return static_cast<unsigned char*>(mapped_) + page_offset(); }
  const char* mapping_type() const;

  void unmap();
  void unpin();

 private:
  gdr_t gdr_;
  cu::device_ptr pointer_;
  std::uint64_t size_bytes_;
  gdr_mh_t handle_{0};
  void* mapped_ = nullptr;
  gdr_info_t info_{};
};

// The stock tools' lines from "map_d_ptr" to "user-space pointer".
void print_mapping_lines(const gdr_buffer& buffer);
// The stock tools' last three lines, each after what it says has been done.
void close_with_lines(gdr_buffer& buffer, gdr_session& gdr);

}  // namespace pl::tools
