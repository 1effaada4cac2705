// SPDX-License-Identifier: Apache-2.0
#include "tools/bandwidth/agreement.hpp"

#include "base/text.hpp"

namespace pl::bandwidth {

result<std::vector<std::string>> gather_texts(group& ranks, const std::string& mine) {
  auto all = ranks.all_gather({reinterpret_cast<const std::byte*>(mine.data()), mine.size()});
  if (!all) return all.error();
  std::vector<std::string> texts;
  for (const auto& one : *all) texts.emplace_back(reinterpret_cast<const char*>(one.data()), one.size());
  return texts;
}

status agree(group& ranks, const status& mine) {
  const auto all = gather_texts(ranks, mine ? "" : std::to_string(mine.error().code) + " " + mine.error().message);
  if (!all) return all.error();
  for (int r = 0; r < ranks.size(); ++r) {
    const std::string& text = (*all)[static_cast<std::size_t>(r)];
    if (text.empty()) continue;
    const auto space = text.find(' ');
    const auto code = parse_integer(text.substr(0, space));
    return failure{code ? static_cast<int>(*code) : EIO, ranks.name_of(r) + ": " + text.substr(space + 1)};
  }
  return {};
}

}  // namespace pl::bandwidth
