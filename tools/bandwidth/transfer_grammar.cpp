// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/transfer_grammar.hpp"

#include <algorithm>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <optional>

#include "base/text.hpp"

namespace pl::bandwidth {
namespace {

constexpr const char* kPlaces = "a place: H, H0 (pinned), HU (pageable), HH (huge pages), G0";
constexpr unsigned kMaxWidth = 1024;

std::string executor_text(const executor& executor) {
  std::string name = to_string(executor.kind);
  std::transform(name.begin(), name.end(), name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
  return "[" + name + (executor.width > 0 ? format(":%u", executor.width) : std::string()) + format("@G%d]", executor.gpu);
}

// Recursive descent; the first error ends it.
class parser {
 public:
  parser(std::string_view text, std::uint64_t default_bytes, int gpus)
      : text_(text), default_bytes_(default_bytes), gpus_(gpus) {}

  result<std::vector<transfer_spec>> run() {
    std::vector<transfer_spec> out;
    do {
      const auto one = transfer();
      if (!one) return error();
      out.push_back(*one);
    } while (take(","));
    if (position_ < text_.size()) {
      expected("\",\" and another transfer, \"x\" and a size, or the end");
      return error();
    }
    return out;
  }

 private:
  std::optional<transfer_spec> transfer() {
    transfer_spec out;
    skip_blanks();
    const std::size_t begin = position_;
    const auto source = parse_place();
    if (!source || !arrow("\"->\"")) return std::nullopt;
    std::optional<int> gpu;
    if (take("[") && !executor_in_brackets(out.executor, gpu)) return std::nullopt;
    const auto destination = parse_place();
    if (!destination) return std::nullopt;
    out.source = *source;
    out.destination = *destination;
    if (!choose_gpu(out, gpu, begin)) return std::nullopt;
    out.bytes = default_bytes_;
    if (take("x") && !size(out.bytes)) return std::nullopt;
    return out;
  }

  // The GPU that is the source, else the destination.
  bool choose_gpu(transfer_spec& out, const std::optional<int>& given, std::size_t begin) {
    if (given) out.executor.gpu = *given;
    else if (out.source.type == place::kind::gpu) out.executor.gpu = out.source.index;
    else if (out.destination.type == place::kind::gpu) out.executor.gpu = out.destination.index;
    else return wrong(begin, "no GPU has a part in this transfer: name who copies, as in [ce@G0]");
    const char* const by_cpu_path = out.executor.kind == executor_kind::bar      ? "bar"
                                    : out.executor.kind == executor_kind::engine ? "engine"
                                    : out.executor.kind == executor_kind::dma    ? "dma"
                                                                                 : nullptr;
    if (by_cpu_path != nullptr && out.source.type == out.destination.type)
      return wrong(begin, format("[%s] copies between host and GPU memory only", by_cpu_path));
    return true;
  }

  std::optional<place> parse_place() {
    skip_blanks();
    const std::size_t begin = position_;
    if (take_letter('G')) {
      const auto gpu = number("the GPU's number");
      if (!gpu) return std::nullopt;
      if (!known_gpu(*gpu, begin)) return std::nullopt;
      return gpu_place(static_cast<int>(*gpu));
    }
    if (!take_letter('H')) {
      expected(kPlaces);
      return std::nullopt;
    }
    host_kind kind = host_kind::pinned;
    if (take_letter('U')) kind = host_kind::pageable;
    else if (take_letter('H')) kind = host_kind::huge;
    if (position_ >= text_.size() || !std::isdigit(static_cast<unsigned char>(text_[position_]))) return host_place(kind);
    const auto node = number("a NUMA node");
    if (!node) return std::nullopt;
    return host_place(kind, static_cast<int>(*node));
  }

  bool executor_in_brackets(executor& executor, std::optional<int>& gpu) {
    if (!executor_kind_word(executor.kind)) return false;
    skip_blanks();
    const std::size_t colon = position_;
    if (take(":")) {
      if (executor.kind == executor_kind::ce) return wrong(colon, "a copy engine has no width: use [ce] or [ce@G0]");
      skip_blanks();
      const std::size_t begin = position_;
      const auto width = number("how many multiprocessors, threads, workers or KiB");
      if (!width) return false;
      if (*width == 0 || *width > kMaxWidth) return wrong(begin, format("from 1 to %u", kMaxWidth));
      executor.width = static_cast<unsigned>(*width);
    }
    if (take("@")) {
      skip_blanks();
      const std::size_t begin = position_;
      if (!take_letter('G')) return expected("the GPU that copies: G0");
      const auto chosen = number("the GPU's number");
      if (!chosen || !known_gpu(*chosen, begin)) return false;
      gpu = static_cast<int>(*chosen);
    }
    if (!take("]")) return expected(executor.kind == executor_kind::ce ? "\"@G0\" or \"]\"" : "\":8\", \"@G0\" or \"]\"");
    return arrow("\"->\"");
  }

  bool executor_kind_word(executor_kind& parsed) {
    skip_blanks();
    constexpr std::pair<const char*, executor_kind> kWords[] = {
        {"ce", executor_kind::ce},         {"sm", executor_kind::sm},   {"bar", executor_kind::bar},
        {"engine", executor_kind::engine}, {"dma", executor_kind::dma}, {"tma", executor_kind::tma}};
    for (const auto& [word, kind] : kWords)
      if (take(word)) {
        parsed = kind;
        return true;
      }
    return expected("who copies: ce, sm, bar, engine, dma or tma");
  }

  bool size(std::uint64_t& bytes) {
    skip_blanks();
    const std::size_t begin = position_;
    while (position_ < text_.size() && std::isalnum(static_cast<unsigned char>(text_[position_]))) ++position_;
    const auto parsed = parse_size(text_.substr(begin, position_ - begin));
    if (!parsed || *parsed < 4) return wrong(begin, "a size of 4 bytes at least: 4096, 64K, 512M, 1G");
    bytes = *parsed;
    return true;
  }

  bool known_gpu(std::uint32_t gpu, std::size_t begin) {
    if (gpus_ < 0 || gpu < static_cast<std::uint32_t>(gpus_)) return true;
    return wrong(begin, gpus_ == 0 ? std::string("there is no GPU")
                                   : format("there is no GPU %u: G0 to G%d are visible", gpu, gpus_ - 1));
  }

  std::optional<std::uint32_t> number(const char* description) {
    std::uint32_t value = 0;
    const char* begin = text_.data() + position_;
    const auto [end, code] = std::from_chars(begin, text_.data() + text_.size(), value);
    if (code != std::errc() || value > 65535) {
      wrong(position_, std::string("expected ") + description);  // here: a number follows its letter without a blank
      return std::nullopt;
    }
    position_ += static_cast<std::size_t>(end - begin);
    return value;
  }

  void skip_blanks() {
    while (position_ < text_.size() && std::isspace(static_cast<unsigned char>(text_[position_]))) ++position_;
  }
  bool take(std::string_view word) {
    skip_blanks();
    if (text_.substr(position_, word.size()) != word) return false;
    position_ += word.size();
    return true;
  }
  // Within a name: no blanks before it.
  bool take_letter(char letter) {
    if (position_ >= text_.size() || text_[position_] != letter) return false;
    ++position_;
    return true;
  }
  bool arrow(const char* description) { return take("->") || expected(description); }

  bool expected(const std::string& description) {
    skip_blanks();
    return wrong(position_, "expected " + description);
  }
  bool wrong(std::size_t column, const std::string& message) {
    if (message_.empty()) {
      column_ = column;
      message_ = message;
    }
    return false;
  }
  failure error() const {
    return failure{EINVAL, format("transfer, column %zu: %s\n  %s\n  %s^", column_ + 1, message_.c_str(),
                                  std::string(text_).c_str(), std::string(column_, ' ').c_str())};
  }

  std::string_view text_;
  std::uint64_t default_bytes_;
  int gpus_;
  std::size_t position_ = 0;
  std::size_t column_ = 0;
  std::string message_;
};

}  // namespace

result<std::vector<transfer_spec>> parse_transfers(std::string_view text, std::uint64_t default_bytes, int gpus) {
  return parser(text, default_bytes, gpus).run();
}

std::string to_string(const transfer_spec& transfer) {
  return to_string(transfer.source) + " -> " + executor_text(transfer.executor) + " -> " + to_string(transfer.destination);
}

std::string to_string(const std::vector<transfer_spec>& transfers) {
  std::string out;
  for (const transfer_spec& each : transfers) out += (out.empty() ? "" : ", ") + to_string(each);
  return out;
}

}  // namespace pl::bandwidth
