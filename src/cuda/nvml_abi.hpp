// SPDX-License-Identifier: Apache-2.0
// NVML's binary interface, as far as it is used: restated, since no toolkit is needed to build. A test compares it with
// nvml.h where there is one.
#pragma once

#include <cstdint>

namespace pl::nvml {

using device_t = void*;

namespace code {
constexpr int success = 0;
constexpr int uninitialized = 1;
constexpr int invalid_argument = 2;
constexpr int not_supported = 3;
constexpr int not_found = 6;
constexpr int insufficient_size = 7;
constexpr int function_not_found = 13;  // also what a struct of an unknown version gets (580.159)
}  // namespace code

constexpr unsigned kMaxLinks = 18;          // NVLinks of one GPU
constexpr unsigned kFieldNvlinkMbps = 90;   // common speed of the active links, one direction
constexpr unsigned kFieldNvlinkCount = 91;  // links that the board has
constexpr int kSmClock = 1;                 // clock types
constexpr int kMemoryClock = 2;             //
constexpr int kUncorrected = 1;             // memory error type
constexpr int kSinceDriverLoad = 0;         // counter type: volatile
constexpr int kRemoteGpu = 0;               // what an NVLink ends at
constexpr int kRemoteSwitch = 2;            //
constexpr int kValueUnsigned = 1;           // types of field values
constexpr int kValueUnsignedLong = 2;       //
constexpr int kValueUnsignedLongLong = 3;   //

namespace throttle {  // bits of the current reasons
constexpr std::uint64_t idle = 0x1;
constexpr std::uint64_t application_clocks = 0x2;
constexpr std::uint64_t power_cap = 0x4;
constexpr std::uint64_t hardware_slowdown = 0x8;
constexpr std::uint64_t sync_boost = 0x10;
constexpr std::uint64_t software_thermal = 0x20;
constexpr std::uint64_t hardware_thermal = 0x40;
constexpr std::uint64_t power_brake = 0x80;
constexpr std::uint64_t display_clocks = 0x100;
}  // namespace throttle

struct bar1_memory {
  unsigned long long total, free, used;
};

struct pci_info {
  char legacy_bus_id[16];
  unsigned domain, bus, device, device_and_vendor, subsystem;
  char bus_id[32];
};

struct confidential_state {  // nvmlConfComputeSystemState_t
  unsigned environment, feature, tools_mode;
};

struct memory_info {
  unsigned long long total, free, used;
};

struct memory_info_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

struct utilization {
  unsigned gpu, memory;
};

struct process_info {
  unsigned pid;
  unsigned long long used_bytes;
  unsigned gpu_instance, compute_instance;
};

union field_data {
  double as_double;
  unsigned as_unsigned;
  unsigned long as_unsigned_long;
  unsigned long long as_unsigned_long_long;
};

struct field_value {
  unsigned field, scope;
  long long timestamp_us, latency_us;
  int type, rc;
  field_data value;
};

}  // namespace pl::nvml
