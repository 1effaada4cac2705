// SPDX-License-Identifier: Apache-2.0
#include "messaging/bootstrap/pmi_connection.hpp"

#include <poll.h>
#include <sys/socket.h>

#include <algorithm>
#include <cerrno>
#include <sstream>

#include "base/clock.hpp"
#include "base/deadline.hpp"
#include "base/text.hpp"

namespace pl::messaging {
namespace {

constexpr unsigned kAnswerMs = 10'000;    // time limit for answers that need no other rank
constexpr std::size_t kMaxAnswer = 8192;  // both versions stay below 2048 bytes
constexpr std::size_t kLengthDigits = 6;  // before each message of version 2
constexpr std::size_t kShownBytes = 200;  // of an answer, in error messages

std::string doubled(const std::string& text) {
  std::string out;
  for (const char one : text) out.append(one == ';' ? 2 : 1, one);
  return out;
}

// Returns the pair at `position`, and advances `position` past it.
std::pair<std::string, std::string> next_pair(const std::string& message, std::size_t& position) {
  std::string whole;
  for (; position < message.size(); ++position) {
    if (message[position] == ';' && (position + 1 == message.size() || message[position + 1] != ';')) break;
    if (message[position] == ';') ++position;
    whole += message[position];
  }
  ++position;
  const auto equals = whole.find('=');
  if (equals == std::string::npos) return {whole, {}};
  return {whole.substr(0, equals), whole.substr(equals + 1)};
}

std::string word_of_line(const std::string& line, const std::string& name) {
  std::istringstream rest(line);
  for (std::string word; rest >> word;)
    if (word.rfind(name + "=", 0) == 0) return word.substr(name.size() + 1);
  return {};
}

}  // namespace

std::string pmi_connection::value(const std::string& answer, const std::string& name) const {
  if (version_ == 1) return word_of_line(answer, name);
  for (std::size_t position = 0; position < answer.size();)
    if (auto [key, text] = next_pair(answer, position); key == name) return text;
  return {};
}

status pmi_connection::send(const std::string& command, words more) const {
  const char* const end = version_ == 1 ? "" : ";";
  std::string whole = "cmd=" + command + end;
  for (const auto& [name, text] : more)
    whole += (version_ == 1 ? " " : "") + std::string(name) + "=" + (version_ == 1 ? text : doubled(text)) + end;
  whole = version_ == 1 ? whole + "\n" : format("%6zu", whole.size()) + whole;
  for (std::size_t done = 0; done != whole.size();) {
    const auto n = ::send(socket_, whole.data() + done, whole.size() - done, MSG_NOSIGNAL);
    if (n > 0) done += static_cast<std::size_t>(n);
    else if (errno != EINTR) return failure{EIO, "cannot send to the launcher: " + errno_text(errno)};
  }
  return {};
}

result<bool> pmi_connection::take(std::string& out) {
  if (version_ == 1) {
    const auto end = unread_.find('\n');
    if (end == std::string::npos && unread_.size() > kMaxAnswer)
      return failure{EPROTO, "the launcher sends lines without an end"};
    if (end == std::string::npos) return false;
    out = unread_.substr(0, end);
    unread_.erase(0, end + 1);
    return true;
  }
  if (unread_.size() < kLengthDigits) return false;
  const std::string digits = unread_.substr(0, kLengthDigits);
  // The length is padded with blanks on the left (MPICH) or on the right (Slurm).
  const auto first = std::min(digits.find_first_not_of(' '), kLengthDigits);
  const auto length = parse_integer(digits.substr(first, digits.find_last_not_of(' ') + 1 - first));
  if (!length || *length < 1 || static_cast<std::size_t>(*length) > kMaxAnswer)
    return failure{EPROTO, format("the launcher says \"%s\" where PMI 2 has the length of a message, %zu bytes at most",
                                  digits.c_str(), kMaxAnswer)};
  const auto bytes = static_cast<std::size_t>(*length);
  if (unread_.size() < kLengthDigits + bytes) return false;
  out = unread_.substr(kLengthDigits, bytes);
  unread_.erase(0, kLengthDigits + bytes);
  return true;
}

result<std::string> pmi_connection::receive(std::uint64_t deadline_ns) {
  for (;;) {
    std::string out;
    auto whole = take(out);
    if (!whole) return std::move(whole).error();
    if (*whole) return out;
    const auto now = monotonic_ns();
    if (now >= deadline_ns)
      return failure{ETIMEDOUT, unread_.empty()
                                    ? "the launcher does not answer"
                                    : format("the launcher's answer breaks off after %zu bytes", unread_.size())};
    pollfd ready{socket_, POLLIN, 0};
    const auto left_ms = std::min<std::uint64_t>((deadline_ns - now) / 1'000'000u + 1, 1'000'000);
    if (poll(&ready, 1, static_cast<int>(left_ms)) <= 0) continue;
    char bytes[1024];
    const auto n = recv(socket_, bytes, sizeof bytes, MSG_DONTWAIT);
    if (n == 0) return failure{EIO, "the launcher has closed the connection"};
    if (n > 0) unread_.append(bytes, static_cast<std::size_t>(n));
    else if (errno != EAGAIN && errno != EINTR) return failure{EIO, "the launcher: " + errno_text(errno)};
  }
}

result<std::string> pmi_connection::ask(const std::string& command, words more, const char* reply) {
  if (auto sent = send(command, more); !sent) return sent.error();
  auto answer = receive(deadline_after_ms(kAnswerMs));
  if (answer && value(*answer, "cmd") != reply)
    return failure{EPROTO, format("it answers \"%s\" with \"%s\"", command.c_str(), answer->substr(0, kShownBytes).c_str())};
  return answer;
}

}  // namespace pl::messaging
