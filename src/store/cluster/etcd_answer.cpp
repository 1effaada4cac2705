// SPDX-License-Identifier: Apache-2.0
#include "store/cluster/etcd_answer.hpp"

#include <nlohmann/json.hpp>

#include "base/text.hpp"

namespace pl::store_cluster::etcd_answer {
namespace {

using json = nlohmann::json;

// The gateway writes 64-bit numbers as strings and omits zeros.
std::int64_t number(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end()) return 0;
  if (found->is_string()) return parse_integer(found->get<std::string>()).value_or(0);
  return found->is_number_integer() ? found->get<std::int64_t>() : 0;
}

std::string text_of(const json& object, const char* name) {
  const auto found = object.find(name);
  if (found == object.end() || !found->is_string()) return {};
  return from_base64(found->get<std::string>()).ok() ? *from_base64(found->get<std::string>()) : std::string();
}

result<json> parsed(const result<std::string>& answer) {
  if (!answer) return answer.error();
  json out = json::parse(*answer, nullptr, false);
  if (out.is_discarded() || !out.is_object()) return failure{EPROTO, "etcd: the answer is not JSON"};
  return out;
}

// A member that must be an object.
json object_in(const json& object, const char* name) {
  const auto found = object.find(name);
  return found != object.end() && found->is_object() ? *found : json::object();
}

}  // namespace

result<etcd::snapshot> listed(const result<std::string>& body) {
  const auto answer = parsed(body);
  if (!answer) return answer.error();
  etcd::snapshot out;
  out.revision = number(object_in(*answer, "header"), "revision");
  const auto all = answer->find("kvs");
  if (all == answer->end()) return out;  // an empty list is omitted
  if (!all->is_array()) return failure{EPROTO, "etcd: \"kvs\" is not a list"};
  for (const json& one : *all)
    out.entries.push_back({text_of(one, "key"), text_of(one, "value"), number(one, "mod_revision"), number(one, "lease")});
  return out;
}

result<bool> succeeded(const result<std::string>& body) {
  const auto answer = parsed(body);
  if (!answer) return answer.error();
  const auto found = answer->find("succeeded");
  if (found == answer->end()) return false;
  // Neither success nor failure: the transaction may have happened.
  if (!found->is_boolean()) return failure{EPROTO, "etcd: \"succeeded\" is neither true nor false"};
  return found->get<bool>();
}

result<std::int64_t> lease_given(const result<std::string>& body) {
  const auto answer = parsed(body);
  if (!answer) return answer.error();
  const std::int64_t id = number(*answer, "ID");
  if (id == 0) return failure{EPROTO, "etcd gave no lease"};
  return id;
}

result<std::int64_t> seconds_left(const result<std::string>& body) {
  const auto answer = parsed(body);
  if (!answer) return answer.error();
  return number(object_in(*answer, "result"), "TTL");
}

status done(const result<std::string>& body) {
  const auto answer = parsed(body);
  return answer ? status() : status(answer.error());
}

}  // namespace pl::store_cluster::etcd_answer
