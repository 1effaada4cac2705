// SPDX-License-Identifier: Apache-2.0
// Sizes are those of the PCI Express Base Specification, revision 6.0.
//
// Line codes (4.2): 8b/10b at 2.5 and 5 GT/s; 128b/130b at 8 to 32 GT/s; none at 64 GT/s, where 256-byte flits (4.2.3.4)
// have 236 bytes for transaction packets, the rest being link packets, CRC and error correction.
//
// A packet outside flits (2.2, 4.2): 4 bytes of framing and sequence number at 8 GT/s and more (STP token), 1 + 2 + 1 at
// less (start, sequence number, end); 4 bytes of LCRC; a header of 16 bytes for requests with 64-bit addresses and of 12 for
// completions. In flits there is neither framing nor LCRC; headers are as long.
#include "tools/bandwidth/pcie_rate.hpp"

#include "base/text.hpp"

namespace pl::bandwidth {
namespace {

constexpr unsigned kFlits = 6;  // first generation with them
constexpr double kFramingBytes = 4 + 4;
constexpr double kRequestHeaderBytes = 16;
constexpr double kCompletionHeaderBytes = 12;
constexpr double kFlitShare = 236.0 / 256.0;
constexpr double kReadRequestBytes = 512;  // maximum read request of GPUs, by lspci; each request has this size
constexpr unsigned kUsualPayloadBytes = 256;

double share(unsigned generation, double payload_bytes, double header_bytes) {
  const double framing = generation >= kFlits ? 0 : kFramingBytes;
  return payload_bytes / (payload_bytes + header_bytes + framing) * (generation >= kFlits ? kFlitShare : 1);
}

double or_usual(unsigned payload_bytes) { return payload_bytes != 0 ? payload_bytes : kUsualPayloadBytes; }

}  // namespace

double pcie_raw_gb_per_s(unsigned generation, unsigned width) {
  constexpr double kGigatransfers[] = {0, 2.5, 5, 8, 16, 32, 64};
  if (generation == 0 || generation > 6 || width == 0 || width > 32) return 0;
  const double code = generation <= 2 ? 8.0 / 10.0 : generation < kFlits ? 128.0 / 130.0 : 1.0;
  return kGigatransfers[generation] * width * code / 8;
}

double pcie_write_efficiency(unsigned generation, unsigned payload_bytes) {
  return share(generation, or_usual(payload_bytes), kRequestHeaderBytes);
}

double pcie_completion_efficiency(unsigned generation, unsigned payload_bytes) {
  return share(generation, or_usual(payload_bytes), kCompletionHeaderBytes);
}

double pcie_request_overhead(unsigned generation) {
  const double framing = generation >= kFlits ? 0 : kFramingBytes;
  return (kRequestHeaderBytes + framing) / kReadRequestBytes / (generation >= kFlits ? kFlitShare : 1);
}

std::string pcie_text(unsigned generation, unsigned width) { return format("PCIe %u.0 x%u", generation, width); }

}  // namespace pl::bandwidth
