// SPDX-License-Identifier: Apache-2.0
#include "messaging/message_costs.hpp"

#include <sstream>
#include <thread>

#include "base/c_numbers.hpp"
#include "base/log.hpp"
#include "base/text.hpp"
#include "base/whole_file.hpp"
#include "copy/calibration.hpp"
#include "messaging/wire_frame.hpp"

namespace pl::messaging {
namespace {

constexpr const char* kTitle = "peerlane messages 1";

bool is_sane(const message_costs& costs) {
  const auto within = [](double value, double most) { return value >= 0 && value <= most; };
  return within(costs.packet_ns, 1e8) && within(costs.handshake_ns, 1e8) && within(costs.eager_ns_per_byte, 1e4) &&
         within(costs.chunks_ns_per_byte, 1e4);
}

}  // namespace

std::string handshake_costs::text(const std::string& key) const {
  std::string out = format("%s\nmachine %s\n", kTitle, key.c_str());
  const auto add = [&](const char* name, const std::optional<message_costs>& costs) {
    if (costs)
      out += format("%s packet_ns=%.1f eager_ns_per_byte=%.5f handshake_ns=%.1f chunks_ns_per_byte=%.5f\n", name,
                    costs->packet_ns, costs->eager_ns_per_byte, costs->handshake_ns, costs->chunks_ns_per_byte);
  };
  add("near", near);
  add("far", far);
  return out;
}

result<handshake_costs> handshake_costs::parse(const std::string& text, const std::string& key) {
  std::istringstream lines(text);
  std::string line;
  if (!std::getline(lines, line) || line != kTitle) return failure{EINVAL, "it has another title or version"};
  if (!std::getline(lines, line) || line != "machine " + key) return failure{EINVAL, "it is from another machine"};
  handshake_costs out;
  const c_numbers during_read;
  while (std::getline(lines, line)) {
    message_costs costs;
    char name[8] = "";
    const int fields =
        std::sscanf(line.c_str(), "%7s packet_ns=%lf eager_ns_per_byte=%lf handshake_ns=%lf chunks_ns_per_byte=%lf", name,
                    &costs.packet_ns, &costs.eager_ns_per_byte, &costs.handshake_ns, &costs.chunks_ns_per_byte);
    const std::string field = name;
    if (fields != 5 || !is_sane(costs) || (field != "near" && field != "far"))
      return failure{EINVAL, "cannot parse this line: " + line};
    (field == "near" ? out.near : out.far) = costs;
  }
  return out;
}

std::string handshake_key(const cu::driver_table* cuda, const std::string& network) {
  const std::string gpu = cuda != nullptr ? copy::machine_key(*cuda, 0) : "";
  // With fewer CPUs than processes a packet waits for its reader's turn.
  return format("%s cpus=%u network=%s messages=%x", gpu.empty() ? ("cpu=" + copy::cpu_model()).c_str() : gpu.c_str(),
                std::thread::hardware_concurrency(), network.c_str(), kProtocol);
}

std::string handshake_path(const std::string& key) {
  std::string path = copy::calibration_path(key);
  const std::string theirs = "/calibration-";
  const auto end = path.rfind(theirs);
  return end == std::string::npos ? "" : path.replace(end, theirs.size(), "/messages-");
}

handshake_costs load_handshakes(const std::string& key) {
  const std::string path = handshake_path(key);
  if (path.empty()) return {};
  const auto text = read_whole_file(path, copy::kMaxCalibrationBytes);
  if (!text) return {};
  auto parsed = handshake_costs::parse(*text, key);
  if (!parsed) {
    PL_LOG(warn, "%s is passed over: %s", path.c_str(), parsed.error().message.c_str());
    return {};
  }
  parsed->origin = "kept in " + path;
  return *std::move(parsed);
}

status save_handshakes(const handshake_costs& costs, const std::string& key) {
  return copy::write_calibration(costs.text(key), handshake_path(key));
}

}  // namespace pl::messaging
