// SPDX-License-Identifier: Apache-2.0
#include "tools/machine/pci_config.hpp"

namespace pl::tools::topo {
namespace {

// PCI Local Bus 3.0 (capability list) and PCI Express Base (extended capabilities, their registers).
constexpr std::size_t kStatus = 0x06, kCapabilityPointer = 0x34;
constexpr unsigned kStatusHasList = 0x10;
constexpr unsigned kExpress = 0x10;
constexpr std::size_t kDeviceControl = 0x08;
constexpr std::size_t kExtendedBegin = 0x100, kExtendedSize = 0x1000;
constexpr unsigned kAcs = 0x000d;
constexpr std::size_t kAcsControl = 0x06;
constexpr int kMaxSteps = 64;  // a list that loops must not hang us

unsigned word(std::span<const std::uint8_t> bytes, std::size_t offset) {
  return offset + 2 <= bytes.size() ? bytes[offset] | static_cast<unsigned>(bytes[offset + 1]) << 8 : 0u;
}

std::optional<std::size_t> find_capability(std::span<const std::uint8_t> config, unsigned id) {
  if (config.size() < 256 || (word(config, kStatus) & kStatusHasList) == 0) return std::nullopt;
  std::size_t offset = config[kCapabilityPointer] & 0xfcu;
  for (int step = 0; offset >= 0x40 && step < kMaxSteps; ++step) {
    if (config[offset] == id) return offset;
    offset = config[offset + 1] & 0xfcu;
  }
  return std::nullopt;
}

std::optional<std::size_t> find_extended(std::span<const std::uint8_t> config, unsigned id) {
  std::size_t offset = kExtendedBegin;
  for (int step = 0; offset >= kExtendedBegin && offset + 8 <= config.size() && step < kMaxSteps; ++step) {
    if (word(config, offset) == id) return offset;
    offset = word(config, offset + 2) >> 4 & 0xffcu;
  }
  return std::nullopt;
}

std::optional<unsigned> device_control(std::span<const std::uint8_t> config) {
  const auto express = find_capability(config, kExpress);
  if (!express || *express + kDeviceControl + 2 > config.size()) return std::nullopt;
  return word(config, *express + kDeviceControl);
}

void put_word(std::vector<std::uint8_t>& bytes, std::size_t offset, unsigned value) {
  bytes[offset] = static_cast<std::uint8_t>(value);
  bytes[offset + 1] = static_cast<std::uint8_t>(value >> 8);
}

}  // namespace

std::optional<pcie_control> parse_pcie_control(std::span<const std::uint8_t> config) {
  const auto control = device_control(config);
  if (!control) return std::nullopt;
  return pcie_control{128u << (*control >> 12 & 7), (*control & 0x10) != 0};
}

std::optional<acs_control> parse_acs(std::span<const std::uint8_t> config) {
  if (config.size() < kExtendedSize) return std::nullopt;
  const auto acs = find_extended(config, kAcs);
  if (!acs) return acs_control{};
  return acs_control{true, word(config, *acs + kAcsControl)};
}

std::vector<std::uint8_t> make_config(const config_facts& facts) {
  if (!facts.is_readable) return std::vector<std::uint8_t>(64);
  std::vector<std::uint8_t> bytes(kExtendedSize);
  if (facts.device_control) {
    put_word(bytes, kStatus, kStatusHasList);
    bytes[kCapabilityPointer] = 0x40;
    bytes[0x40] = kExpress;
    put_word(bytes, 0x40 + kDeviceControl, *facts.device_control);
  }
  if (facts.acs_bits) {
    put_word(bytes, kExtendedBegin, kAcs);
    put_word(bytes, kExtendedBegin + 2, 1);  // version 1, end of the list
    put_word(bytes, kExtendedBegin + kAcsControl, *facts.acs_bits);
  }
  return bytes;
}

config_facts extract_facts(std::span<const std::uint8_t> config) {
  config_facts facts;
  facts.is_readable = config.size() >= kExtendedSize;
  facts.device_control = device_control(config);
  if (const auto acs = parse_acs(config); acs && acs->is_present) facts.acs_bits = acs->bits;
  return facts;
}

}  // namespace pl::tools::topo
