// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/http_answer.hpp"

#include <algorithm>
#include <cctype>
#include <charconv>

namespace pl::store_cluster {
namespace {

std::string lower(std::string_view text) {
  std::string out(text);
  std::transform(out.begin(), out.end(), out.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return out;
}

std::string_view trimmed(std::string_view text) {
  while (!text.empty() && (text.front() == ' ' || text.front() == '\t')) text.remove_prefix(1);
  while (!text.empty() && (text.back() == ' ' || text.back() == '\t')) text.remove_suffix(1);
  return text;
}

bool parse(std::string_view digits, int base, std::uint64_t& out) {
  const auto [end, error] = std::from_chars(digits.data(), digits.data() + digits.size(), out, base);
  return error == std::errc() && end == digits.data() + digits.size() && !digits.empty();
}

failure no_http(const char* detail) { return {EPROTO, std::string("the answer is not HTTP: ") + detail}; }
failure too_long() { return {EMSGSIZE, "the answer is too long"}; }

}  // namespace

result<bool> http_answer::take(std::string_view bytes) {
  has_begun_ = has_begun_ || !bytes.empty();
  rest_ += bytes;
  while (part_ != part::whole) {
    auto over = step();
    if (!over || !*over) return over;
  }
  if (!rest_.empty()) keeps_open_ = false;  // more bytes than were requested
  return true;
}

status http_answer::end() {
  if (part_ == part::until_end || part_ == part::whole) return {};
  return failure{EPROTO,
                 has_begun_ ? "the connection ended in the middle of the answer" : "the connection ended without an answer"};
}

result<bool> http_answer::step() {
  std::string line;
  switch (part_) {
    case part::head: {
      const auto end = rest_.find("\r\n\r\n");
      if (std::min(end, rest_.size()) > kMaxHeadBytes) return too_long();
      if (end == std::string::npos) {
        if (!std::string_view("HTTP/1.").starts_with(std::string_view(rest_).substr(0, 7))) return no_http("its first line");
        return false;
      }
      const std::string head = rest_.substr(0, end + 2);
      rest_.erase(0, end + 4);
      if (auto done = read_head(head); !done) return done.error();
      return true;
    }
    case part::counted:
    case part::chunk: {
      const auto count = std::min<std::uint64_t>(left_, rest_.size());
      body_.append(rest_, 0, count);
      rest_.erase(0, count);
      left_ -= count;
      if (left_ != 0) return false;
      part_ = part_ == part::counted ? part::whole : part::chunk_end;
      return true;
    }
    case part::chunk_size: {
      auto have = take_line(line);
      if (!have || !*have) return have;
      if (!parse(trimmed(std::string_view(line).substr(0, line.find(';'))), 16, left_))
        return no_http("the length of a chunk");
      if (left_ > kMaxBodyBytes - body_.size()) return too_long();
      part_ = left_ == 0 ? part::trailer : part::chunk;
      return true;
    }
    case part::chunk_end: {
      auto have = take_line(line);
      if (!have || !*have) return have;
      if (!line.empty()) return no_http("the end of a chunk");
      part_ = part::chunk_size;
      return true;
    }
    case part::trailer: {
      auto have = take_line(line);
      if (!have || !*have) return have;
      if (line.empty()) part_ = part::whole;
      return true;
    }
    case part::until_end:
      if (rest_.size() > kMaxBodyBytes - body_.size()) return too_long();
      body_ += rest_;
      rest_.clear();
      return false;
    case part::whole:
      break;
  }
  return true;
}

result<bool> http_answer::take_line(std::string& line) {
  const auto end = rest_.find("\r\n");
  if (std::min(end, rest_.size()) > kMaxHeadBytes) return too_long();
  if (end == std::string::npos) return false;
  line = rest_.substr(0, end);
  rest_.erase(0, end + 2);
  return true;
}

// "HTTP/1.1 200 OK\r\nName: value\r\n..."
status http_answer::read_head(std::string_view head) {
  if (!head.starts_with("HTTP/1.") || head.size() < 12 || head[8] != ' ') return no_http("its first line");
  keeps_open_ = head[7] != '0';
  outcome_ = std::string(trimmed(head.substr(9, head.find("\r\n") - 9)));
  has_length_ = is_chunked_ = false;
  for (head.remove_prefix(head.find("\r\n") + 2); !head.empty(); head.remove_prefix(head.find("\r\n") + 2)) {
    if (auto done = read_field(head.substr(0, head.find("\r\n"))); !done) return done;
  }
  if (outcome_.starts_with("1")) return {};  // "100 Continue": the answer follows
  if (is_chunked_) part_ = part::chunk_size;
  else part_ = has_length_ ? part::counted : part::until_end;
  if (part_ == part::until_end) keeps_open_ = false;
  return {};
}

status http_answer::read_field(std::string_view line) {
  const auto colon = line.find(':');
  if (colon == std::string_view::npos) return no_http("a line of its head");
  const std::string name = lower(line.substr(0, colon)), value = lower(trimmed(line.substr(colon + 1)));
  if (name == "content-length") {
    std::uint64_t length = 0;
    if (!parse(value, 10, length) || (has_length_ && length != left_)) return no_http("its length");
    if (length > kMaxBodyBytes) return too_long();
    left_ = length;
    has_length_ = true;
  } else if (name == "transfer-encoding") {
    if (value != "chunked") return no_http("its encoding");
    is_chunked_ = true;
  } else if (name == "connection" && value == "close") {
    keeps_open_ = false;
  }
  return {};
}

}  // namespace pl::store_cluster
