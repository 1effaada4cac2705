// SPDX-License-Identifier: Apache-2.0
// An HTTP/1.x answer, parsed as its bytes arrive. The answer may come from anybody, so any bytes may arrive.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace pl::store_cluster {

class http_answer {
 public:
  static constexpr std::size_t kMaxHeadBytes = 64u << 10;
  static constexpr std::size_t kMaxBodyBytes = 64u << 20;

  // Takes the next bytes. Returns true if the answer is complete. EPROTO: not an HTTP answer. EMSGSIZE: too long.
  result<bool> take(std::string_view bytes);
  // The connection has ended. EPROTO if that was in the middle of the answer.
  status end();

  bool has_begun() const noexcept { return has_begun_; }
  // Once the answer is complete: whether another request may follow on this connection.
  bool keeps_open() const noexcept { return keeps_open_; }
  // "200 OK"
  const std::string& outcome() const noexcept { return outcome_; }
  bool is_ok() const noexcept { return outcome_.starts_with("200"); }
  std::string& body() noexcept { return body_; }

 private:
  enum class part { head, counted, chunk_size, chunk, chunk_end, trailer, until_end, whole };

  // Returns true if this part is complete; what is left of `rest_` belongs to the next one.
  result<bool> step();
  // Takes a line without its "\r\n". Returns false if it has not arrived completely.
  result<bool> take_line(std::string& line);
  status read_head(std::string_view head);
  status read_field(std::string_view line);

  part part_ = part::head;
  std::string rest_;        // not parsed yet
  std::uint64_t left_ = 0;  // bytes left of the body, or of the chunk
  bool has_length_ = false, is_chunked_ = false, keeps_open_ = false, has_begun_ = false;
  std::string outcome_, body_;
};

}  // namespace pl::store_cluster
