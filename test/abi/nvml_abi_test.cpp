// SPDX-License-Identifier: Apache-2.0
// src/cuda/nvml_abi.hpp against nvml.h, where a toolkit has it: this compiles if the restatement is right.
#include "cuda/nvml_abi.hpp"

#include <gtest/gtest.h>

#ifdef PL_NVML_HEADER
#include PL_NVML_HEADER

#include <cstddef>

namespace nvml = pl::nvml;

#define SAME_VALUE(ours, theirs) \
  static_assert(static_cast<long long>(nvml::ours) == static_cast<long long>(theirs), #ours " differs from " #theirs)
#define SAME_LAYOUT(ours, theirs) \
  static_assert(sizeof(nvml::ours) == sizeof(theirs) && alignof(nvml::ours) == alignof(theirs))
#define SAME_FIELD(ours, our_field, theirs, their_field)                            \
  static_assert(offsetof(nvml::ours, our_field) == offsetof(theirs, their_field) && \
                sizeof(nvml::ours::our_field) == sizeof(theirs::their_field))

SAME_VALUE(code::success, NVML_SUCCESS);
SAME_VALUE(code::invalid_argument, NVML_ERROR_INVALID_ARGUMENT);
SAME_VALUE(code::not_supported, NVML_ERROR_NOT_SUPPORTED);
SAME_VALUE(code::not_found, NVML_ERROR_NOT_FOUND);
SAME_VALUE(code::insufficient_size, NVML_ERROR_INSUFFICIENT_SIZE);
SAME_VALUE(kMaxLinks, NVML_NVLINK_MAX_LINKS);
SAME_VALUE(kFieldNvlinkMbps, NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON);
SAME_VALUE(kFieldNvlinkCount, NVML_FI_DEV_NVLINK_LINK_COUNT);
SAME_VALUE(kSmClock, NVML_CLOCK_SM);
SAME_VALUE(kMemoryClock, NVML_CLOCK_MEM);
SAME_VALUE(kUncorrected, NVML_MEMORY_ERROR_TYPE_UNCORRECTED);
SAME_VALUE(kSinceDriverLoad, NVML_VOLATILE_ECC);
SAME_VALUE(kRemoteGpu, NVML_NVLINK_DEVICE_TYPE_GPU);
SAME_VALUE(kRemoteSwitch, NVML_NVLINK_DEVICE_TYPE_SWITCH);
SAME_VALUE(kValueUnsigned, NVML_VALUE_TYPE_UNSIGNED_INT);
SAME_VALUE(kValueUnsignedLong, NVML_VALUE_TYPE_UNSIGNED_LONG);
SAME_VALUE(kValueUnsignedLongLong, NVML_VALUE_TYPE_UNSIGNED_LONG_LONG);
SAME_VALUE(throttle::idle, nvmlClocksThrottleReasonGpuIdle);
SAME_VALUE(throttle::application_clocks, nvmlClocksThrottleReasonApplicationsClocksSetting);
SAME_VALUE(throttle::power_cap, nvmlClocksThrottleReasonSwPowerCap);
SAME_VALUE(throttle::hardware_slowdown, nvmlClocksThrottleReasonHwSlowdown);
SAME_VALUE(throttle::sync_boost, nvmlClocksThrottleReasonSyncBoost);
SAME_VALUE(throttle::software_thermal, nvmlClocksThrottleReasonSwThermalSlowdown);
SAME_VALUE(throttle::hardware_thermal, nvmlClocksThrottleReasonHwThermalSlowdown);
SAME_VALUE(throttle::power_brake, nvmlClocksThrottleReasonHwPowerBrakeSlowdown);
SAME_VALUE(throttle::display_clocks, nvmlClocksThrottleReasonDisplayClockSetting);

SAME_LAYOUT(bar1_memory, nvmlBAR1Memory_t);
SAME_FIELD(bar1_memory, total, nvmlBAR1Memory_t, bar1Total);
SAME_FIELD(bar1_memory, used, nvmlBAR1Memory_t, bar1Used);
SAME_LAYOUT(pci_info, nvmlPciInfo_t);
SAME_FIELD(pci_info, domain, nvmlPciInfo_t, domain);
SAME_FIELD(pci_info, bus_id, nvmlPciInfo_t, busId);
SAME_LAYOUT(process_info, nvmlProcessInfo_t);
SAME_FIELD(process_info, pid, nvmlProcessInfo_t, pid);
SAME_FIELD(process_info, used_bytes, nvmlProcessInfo_t, usedGpuMemory);
SAME_LAYOUT(field_value, nvmlFieldValue_t);
SAME_FIELD(field_value, field, nvmlFieldValue_t, fieldId);
SAME_FIELD(field_value, type, nvmlFieldValue_t, valueType);
SAME_FIELD(field_value, rc, nvmlFieldValue_t, nvmlReturn);
SAME_FIELD(field_value, value, nvmlFieldValue_t, value);

TEST(NvmlAbi, IsThatOfTheHeader) { SUCCEED() << "the static assertions above compiled"; }
#else
TEST(NvmlAbi, IsThatOfTheHeader) { GTEST_SKIP() << "no nvml.h: the CUDA toolkit's NVML headers are not installed"; }
#endif
