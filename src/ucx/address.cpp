// SPDX-License-Identifier: Apache-2.0
#include "ucx/address.hpp"

#include <cerrno>
#include <cmath>
#include <cstdint>
#include <cstring>
#include <optional>
#include <vector>

#include "base/text.hpp"

namespace pl::ucx {
namespace {

// The forms of UCX 1.13 to 1.22: version 1 by default, version 2 with UCX_ADDRESS_VERSION=v2.
constexpr std::uint8_t kVersionMask = 0x0f, kVersion1 = 0, kVersion2 = 1, kHasWorkerId = 2, kHasClientId = 4;
constexpr std::uint8_t kHasName = 1, kNoDevices = 0xff;
constexpr std::uint8_t kLast = 0x80, kIsEmptyDevice = 0x80, kHasPaths = 0x40, kHasSystemDevice = 0x20, kHasEndpoint = 0x40;
constexpr std::uint8_t kDomainMask = 0x7f, kDeviceLengthMask = 0x1f, kTransportLengthMask = 0x3f;
constexpr std::size_t kIdBytes = 8, kAttributeBytes1 = 16, kAttributeBytes2 = 8;
constexpr unsigned kMaxTransports = 64;      // of an address: UCX 1.13's limit, and the size of its table
constexpr std::size_t kPaddingBytes = 1024;  // more than four times the longest part that a length of 8 bits can mean

struct transport {
  std::uint16_t name_sum = 0;
  bool has_device_address = false, has_address = false;
};

class address_reader {
 public:
  explicit address_reader(std::string_view bytes) : left_(bytes) {}
  bool is_good() const noexcept { return good_; }
  bool is_at_end() const noexcept { return left_.empty(); }
  std::uint8_t byte() {
    const auto one = bytes(1);
    return one.empty() ? std::uint8_t{0} : static_cast<std::uint8_t>(one[0]);
  }
  // Empty where there are fewer.
  std::string_view bytes(std::size_t count) {
    if (count > left_.size()) good_ = false;
    if (!good_) return {};
    const auto out = left_.substr(0, count);
    left_.remove_prefix(count);
    return out;
  }
  // Version 2 puts what does not fit below the flags into a byte of its own.
  std::uint8_t number(std::uint8_t first, std::uint8_t mask, bool is_extended) {
    const auto low = static_cast<std::uint8_t>(first & mask);
    return is_extended && low == mask ? byte() : low;
  }

 private:
  std::string_view left_;
  bool good_ = true;
};

// Overhead, bandwidth and latency, of which UCX computes which transport is the best: a negative score ends the process. The
// bandwidth's sign says whether processes share it.
bool are_sound(std::string_view attributes) {
  float numbers[3] = {};
  std::memcpy(numbers, attributes.data(), sizeof numbers);
  for (const float one : numbers)
    if (!std::isfinite(one)) return false;
  return numbers[0] >= 0 && numbers[1] != 0 && numbers[2] >= 0;
}

bool read_transports(address_reader& in, bool is_v2, bool has_device_address, std::vector<transport>& found) {
  for (bool is_last = false; !is_last;) {
    transport one;
    const auto sum = in.bytes(sizeof one.name_sum);
    const auto attributes = in.bytes(is_v2 ? kAttributeBytes2 : kAttributeBytes1);
    const auto flags = in.byte();
    const auto length = in.number(flags, kTransportLengthMask, is_v2);
    (void)in.bytes(length);
    // Addresses of endpoints belong to messages between workers that are connected.
    if (!in.is_good() || (flags & kHasEndpoint) != 0 || found.size() == kMaxTransports) return false;
    if (!is_v2 && !are_sound(attributes)) return false;
    std::memcpy(&one.name_sum, sum.data(), sizeof one.name_sum);
    one.has_device_address = has_device_address;
    one.has_address = length > 0;
    found.push_back(one);
    is_last = (flags & kLast) != 0;
  }
  return true;
}

std::optional<std::vector<transport>> transports_of(std::string_view address) {
  address_reader in(address);
  const auto head = in.byte();
  const auto version = static_cast<std::uint8_t>(head & kVersionMask);
  if (version != kVersion1 && version != kVersion2) return std::nullopt;
  const bool is_v2 = version == kVersion2;
  const std::uint8_t flags = is_v2 ? in.byte() : static_cast<std::uint8_t>(head >> 4);
  if ((flags & kHasWorkerId) == 0) return std::nullopt;
  (void)in.bytes(kIdBytes);
  if ((flags & kHasClientId) != 0) (void)in.bytes(kIdBytes);
  if ((flags & kHasName) != 0) (void)in.bytes(in.byte());
  std::vector<transport> found;
  unsigned devices = 0;
  for (bool is_last = false; !is_last;) {
    const auto domain = in.byte();
    if (in.is_good() && devices == 0 && domain == kNoDevices) break;
    (void)in.number(domain, kDomainMask, is_v2);
    const auto device = in.byte();
    const auto length = in.number(device, kDeviceLengthMask, is_v2);
    if ((device & kHasPaths) != 0 && in.byte() == 0) return std::nullopt;
    if ((device & kHasSystemDevice) != 0) (void)in.byte();
    (void)in.bytes(length);
    if (!in.is_good() || ++devices > kMaxTransports) return std::nullopt;
    if ((domain & kIsEmptyDevice) == 0 && !read_transports(in, is_v2, length > 0, found)) return std::nullopt;
    is_last = (device & kLast) != 0;
  }
  if (!in.is_good() || !in.is_at_end()) return std::nullopt;
  return found;
}

}  // namespace

status check_address(std::string_view own, std::string_view peer) {
  const auto known = transports_of(own);
  if (!known) return {};
  const auto offered = transports_of(peer);
  if (!offered) return failure{EBADMSG, format("%zu bytes that are not an address of a UCX worker", peer.size())};
  // A transport is passed a null pointer for an address of no bytes.
  for (const auto& mine : *known)
    for (const auto& one : *offered)
      if (one.name_sum == mine.name_sum &&
          ((mine.has_device_address && !one.has_device_address) || (mine.has_address && !one.has_address)))
        return failure{EBADMSG, "a UCX address that names a transport and not its end"};
  return {};
}

std::string with_padding(std::string_view address) {
  std::string out(address);
  out.append(kPaddingBytes, '\0');
  return out;
}

}  // namespace pl::ucx
