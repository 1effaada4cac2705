// SPDX-License-Identifier: Apache-2.0
// Which kernel module is loaded, and whether its interface is known.
#include <fcntl.h>

#include <cstring>

#include "base/text.hpp"
#include "rm/rm_client.hpp"

namespace pl::rm {
namespace {

struct known_series {
  int major;
  abi_knowledge knowledge;
};

// "measured": the whole path ran on hardware with this series. "read": the layouts in rm_abi.hpp are those of the
// series' published sources, and the first mappings are verified by a nonce before they are handed out.
constexpr known_series kSeries[] = {
    {535, abi_knowledge::read},     {545, abi_knowledge::read}, {550, abi_knowledge::read}, {555, abi_knowledge::read},
    {560, abi_knowledge::read},     {565, abi_knowledge::read}, {570, abi_knowledge::read}, {575, abi_knowledge::read},
    {580, abi_knowledge::measured}, {590, abi_knowledge::read}, {595, abi_knowledge::read},
};

bool looks_like_version(const std::string& text) { return !text.empty() && text[0] >= '1' && text[0] <= '9'; }

std::string first_line(std::string text) {
  if (const auto end = text.find('\n'); end != std::string::npos) text.resize(end);
  return text;
}

// "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.159.04  Release Build ..."
std::string version_in_proc_text(const std::string& text) {
  const std::string line = first_line(text);
  for (std::size_t position = 0; position < line.size(); ++position) {
    if (position > 0 && line[position - 1] != ' ') continue;
    std::size_t end = position;
    int dots = 0;
    while (end < line.size() && ((line[end] >= '0' && line[end] <= '9') || line[end] == '.'))
      dots += line[end++] == '.' ? 1 : 0;
    if (dots >= 1 && end > position + 3 && (end == line.size() || line[end] == ' '))
      return line.substr(position, end - position);
  }
  return {};
}

std::string version_from_rm(device_io& io) {
  const int fd = io.open("/dev/nvidiactl", O_RDWR | O_CLOEXEC);
  if (fd < 0) return {};
  version_params params{};
  params.command = kVersionQuery;
  const int rc = io.ioctl(fd, ioctl_request(esc_check_version, sizeof params), &params);
  io.close(fd);
  params.text[sizeof params.text - 1] = '\0';
  return rc == 0 && looks_like_version(params.text) ? std::string(params.text) : std::string();
}

}  // namespace

result<std::string> driver_version(device_io& io) {
  if (auto version = version_from_rm(io); !version.empty()) return version;
  if (auto text = io.read_text("/sys/module/nvidia/version"); text && looks_like_version(*text)) return first_line(*text);
  if (auto text = io.read_text("/proc/driver/nvidia/version")) {
    if (auto version = version_in_proc_text(*text); !version.empty()) return version;
  }
  return failure{
      ENOENT,
      "no NVIDIA kernel driver answers: neither /dev/nvidiactl, /sys/module/nvidia nor /proc/driver/nvidia is there"};
}

abi_knowledge abi_of(const std::string& version) {
  const auto major = parse_integer(version.substr(0, version.find('.'))).value_or(0);
  for (const auto& series : kSeries)
    if (series.major == major) return series.knowledge;
  return abi_knowledge::unknown;
}

}  // namespace pl::rm
