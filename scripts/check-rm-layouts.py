#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Compares the declarations of the NVIDIA resource manager's interface in src/rm with published kernel modules.

    scripts/check-rm-layouts.py [--markdown FILE] [--note TEXT] CHECKOUT...

CHECKOUT: a tree of https://github.com/NVIDIA/open-gpu-kernel-modules at a release; version.mk, src/common and
src/nvidia/arch/nvalloc/unix/include are enough (git archive <tag> version.mk src/common src/nvidia/arch | tar -x -C <folder>).

Both sides are compiled, theirs as C and ours as C++, and print each offset, size and number that we use. A difference is
printed and makes the exit status 1. A release that channel_abi.hpp refuses (channel_layout_of) is compared with the newest
layout, to show what differs; that does not count as a failure.
"""
from __future__ import annotations

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

ROOT = pathlib.Path(__file__).resolve().parent.parent

THEIR_INCLUDES = """
#include <stdio.h>
#include <stddef.h>
#include "nvtypes.h"
#include "nvos.h"
#include "nvgputypes.h"
#include "nv_escape.h"
#include "nv-ioctl-numbers.h"
#include "nv-ioctl.h"
#include "nv-unix-nvos-params-wrappers.h"
#include "nvstatus.h"
#include "alloc/alloc_channel.h"
#include "class/cl0005.h"
#include "class/cl0040.h"
#include "class/cl0070.h"
#include "class/cl0071.h"
#include "class/cl0080.h"
#include "class/cl2080.h"
#include "class/cl2080_notification.h"
#include "class/cl503b.h"
#include "class/cl90f1.h"
#include "class/cla06c.h"
#include "class/clb0b5sw.h"
#include "class/clcb33.h"
#include "ctrl/ctrl0000/ctrl0000gpu.h"
#include "ctrl/ctrl0000/ctrl0000system.h"
#include "ctrl/ctrl0000/ctrl0000unix.h"
#include "ctrl/ctrl0080/ctrl0080gpu.h"
#include "ctrl/ctrl2080/ctrl2080ce.h"
#include "ctrl/ctrl2080/ctrl2080event.h"
#include "ctrl/ctrl2080/ctrl2080gpu.h"
#include "ctrl/ctrl906f.h"
#include "ctrl/ctrla06c.h"
#include "ctrl/ctrlc36f.h"
#include "ctrl/ctrlcb33.h"
"""

# Our struct, theirs, and fields: "ours=theirs". `size`: their size must equal ours ("="), or that in the branch's layout (a member
# of channel_layout), or is not compared (""), for structs of which only the beginning is used.
STRUCTS: list[tuple[str, str, str, str]] = [
    ("alloc_params", "NVOS21_PARAMETERS", "=", "root=hRoot parent=hObjectParent object=hObjectNew object_class=hClass params=pAllocParms params_bytes=paramsSize status=status"),
    ("device_params", "NV0080_ALLOC_PARAMETERS", "=", "device_instance=deviceId client_share=hClientShare target_client=hTargetClient target_device=hTargetDevice flags=flags va_space_bytes=vaSpaceSize va_start=vaStartInternal va_limit=vaLimitInternal va_mode=vaMode"),
    ("subdevice_params", "NV2080_ALLOC_PARAMETERS", "=", "subdevice_instance=subDeviceId"),
    ("dup_params", "NVOS55_PARAMETERS", "=", "client=hClient parent=hParent object=hObject client_source=hClientSrc object_source=hObjectSrc flags=flags status=status"),
    ("map_params", "nv_ioctl_nvos33_parameters_with_fd", "=", "client=params.hClient device=params.hDevice memory=params.hMemory offset=params.offset length=params.length linear_address=params.pLinearAddress status=params.status flags=params.flags fd=fd"),
    ("unmap_params", "NVOS34_PARAMETERS", "=", "client=hClient device=hDevice memory=hMemory linear_address=pLinearAddress status=status flags=flags"),
    ("free_params", "NVOS00_PARAMETERS", "=", "root=hRoot parent=hObjectParent object=hObjectOld status=status"),
    ("control_params", "NVOS54_PARAMETERS", "=", "client=hClient object=hObject command=cmd flags=flags params=params params_bytes=paramsSize status=status"),
    ("version_params", "nv_ioctl_rm_api_version_t", "=", "command=cmd reply=reply text=versionString"),
    ("register_fd_params", "nv_ioctl_register_fd_t", "=", "control_fd=ctl_fd"),
    ("transfer_params", "nv_ioctl_xfer_t", "=", "number=cmd size_bytes=size pointer=ptr"),
    ("card_info", "nv_ioctl_card_info_t", "=", "valid=valid domain=pci_info.domain bus=pci_info.bus slot=pci_info.slot function=pci_info.function gpu_id=gpu_id minor=minor_number"),
    ("gpu_id_info_params", "NV0000_CTRL_GPU_GET_ID_INFO_V2_PARAMS", "=", "gpu_id=gpuId gpu_flags=gpuFlags device_instance=deviceInstance subdevice_instance=subDeviceInstance"),
    ("import_object_params", "NV0000_CTRL_OS_UNIX_IMPORT_OBJECT_FROM_FD_PARAMS", "=", "fd=fd type=object.type device=object.data.rmObject.hDevice parent=object.data.rmObject.hParent object=object.data.rmObject.hObject"),
    ("export_object_params", "NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TO_FD_PARAMS", "=", "type=object.type device=object.data.rmObject.hDevice parent=object.data.rmObject.hParent object=object.data.rmObject.hObject fd=fd flags=flags"),
    ("class_list_params", "NV0080_CTRL_GPU_GET_CLASSLIST_V2_PARAMS", "class_list_bytes", "count=numClasses classes=classList"),
    ("copy_engine_caps_params", "NV2080_CTRL_CE_GET_CAPS_V2_PARAMS", "=", "engine=ceEngineType caps=capsTbl"),
    ("address_space_params", "NV_VASPACE_ALLOCATION_PARAMETERS", "address_space_bytes", "index=index flags=flags size_bytes=vaSize start=vaStartInternal limit=vaLimitInternal big_page_bytes=bigPageSize base=vaBase"),
    ("virtual_memory_params", "NV_MEMORY_VIRTUAL_ALLOCATION_PARAMS", "=", "offset=offset limit=limit address_space=hVASpace"),
    ("device_memory_params", "NV_MEMORY_ALLOCATION_PARAMS", "device_memory_bytes", "owner=owner type=type flags=flags attributes=attr attributes2=attr2 format=format size_bytes=size alignment=alignment"),
    ("host_memory_params", "nv_ioctl_nvos02_parameters_with_fd", "=", "root=params.hRoot parent=params.hObjectParent object=params.hObjectNew object_class=params.hClass flags=params.flags address=params.pMemory limit=params.limit status=params.status fd=fd"),
    ("map_dma_head", "NVOS46_PARAMETERS", "", "client=hClient device=hDevice virtual_memory=hDma memory=hMemory offset=offset length=length flags=flags"),
    ("unmap_dma_head", "NVOS47_PARAMETERS", "", "client=hClient device=hDevice virtual_memory=hDma memory=hMemory flags=flags address=dmaOffset"),
    ("peer_link_params", "NV503B_ALLOC_PARAMETERS", "peer_link_bytes", "subdevice=hSubDevice peer_subdevice=hPeerSubDevice peer_ids=subDevicePeerIdMask peer_ids_back=peerSubDevicePeerIdMask mailbox_address=mailboxBar1Addr mailbox_bytes=mailboxTotalSize flags=flags bar_addresses=l2pBar1P2PDmaInfo"),
    ("peer_capabilities_params", "NV0000_CTRL_SYSTEM_GET_P2P_CAPS_MATRIX_PARAMS", "=", "a_count=grpACount b_count=grpBCount a=gpuIdGrpA b=gpuIdGrpB capabilities=p2pCaps read_engines=a2bOptimalReadCes write_engines=a2bOptimalWriteCes"),
    ("channel_group_params", "NV_CHANNEL_GROUP_ALLOCATION_PARAMETERS", "=", "error_context=hObjectError address_space=hVASpace engine=engineType"),
    ("channel_params", "NV_CHANNEL_ALLOC_PARAMS", "channel_bytes", "error_object=hObjectError ring_address=gpFifoOffset ring_entries=gpFifoEntries flags=flags address_space=hVASpace user_words_memory=hUserdMemory user_words_offset=userdOffset engine=engineType"),
    ("notification", "NvNotification", "=", "time_ns=timeStamp info=info32 info16=info16 status=status"),
    ("mmu_fault_params", "NV906F_CTRL_GET_MMU_FAULT_INFO_PARAMS", "=", "address_high=addrHi address_low=addrLo type=faultType name=faultString"),
    ("copy_object_params", "NVB0B5_ALLOCATION_PARAMETERS", "=", "version=version engine=engineType"),
    ("schedule_params", "NVA06C_CTRL_GPFIFO_SCHEDULE_PARAMS", "schedule_bytes", "enable=bEnable"),
    ("os_event_params", "nv_ioctl_alloc_os_event_t", "=", "client=hClient device=hDevice fd=fd status=Status"),
    ("os_event_params", "nv_ioctl_free_os_event_t", "=", "client=hClient device=hDevice fd=fd status=Status"),
    ("event_params", "NV0005_ALLOC_PARAMETERS", "=", "client=hParentClient source=hSrcResource object_class=hClass index=notifyIndex fd=data"),
    ("set_notification_params", "NV2080_CTRL_EVENT_SET_NOTIFICATION_PARAMS", "=", "event=event action=action state=bNotifyState info32=info32 info16=info16"),
    ("gpu_info_params", "NV2080_CTRL_GPU_GET_INFO_V2_PARAMS", "gpu_info_bytes", "count=gpuInfoListSize entries=gpuInfoList"),
    ("gpu_info_entry", "NV2080_CTRL_GPU_INFO", "=", "index=index value=data"),
    ("confidential_params", "NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES_PARAMS", "confidential_bytes", "environment=environment feature=ccFeature"),
]

# Numbers: ours (an expression in pl::rm) and theirs. Later generations are missing from older branches.
NUMBERS: list[tuple[str, str]] = [
    ("esc_free", "NV_ESC_RM_FREE"), ("esc_control", "NV_ESC_RM_CONTROL"), ("esc_alloc", "NV_ESC_RM_ALLOC"),
    ("esc_dup_object", "NV_ESC_RM_DUP_OBJECT"), ("esc_map_memory", "NV_ESC_RM_MAP_MEMORY"),
    ("esc_unmap_memory", "NV_ESC_RM_UNMAP_MEMORY"), ("esc_alloc_memory", "NV_ESC_RM_ALLOC_MEMORY"),
    ("esc_map_memory_dma", "NV_ESC_RM_MAP_MEMORY_DMA"), ("esc_unmap_memory_dma", "NV_ESC_RM_UNMAP_MEMORY_DMA"),
    ("esc_card_info", "NV_ESC_CARD_INFO"), ("esc_register_fd", "NV_ESC_REGISTER_FD"),
    ("esc_check_version", "NV_ESC_CHECK_VERSION_STR"), ("esc_transfer", "NV_ESC_IOCTL_XFER_CMD"),
    ("esc_export_dma_buf", "NV_ESC_EXPORT_TO_DMABUF_FD"), ("esc_alloc_os_event", "NV_ESC_ALLOC_OS_EVENT"),
    ("esc_free_os_event", "NV_ESC_FREE_OS_EVENT"),
    ("class_root_client", "NV01_ROOT_CLIENT"), ("class_device", "NV01_DEVICE_0"), ("class_subdevice", "NV20_SUBDEVICE_0"),
    ("class_device_memory", "NV01_MEMORY_LOCAL_USER"), ("class_virtual_memory", "NV01_MEMORY_VIRTUAL"),
    ("class_host_memory", "NV01_MEMORY_SYSTEM_OS_DESCRIPTOR"), ("class_address_space", "FERMI_VASPACE_A"),
    ("class_channel_group", "KEPLER_CHANNEL_GROUP_A"), ("class_peer_link", "NV50_P2P"), ("class_os_event", "NV01_EVENT_OS_EVENT"),
    ("class_confidential_computing", "NV_CONFIDENTIAL_COMPUTE"),
    ("ctrl_gpu_id_info_v2", "NV0000_CTRL_CMD_GPU_GET_ID_INFO_V2"),
    ("ctrl_os_import_object", "NV0000_CTRL_CMD_OS_UNIX_IMPORT_OBJECT_FROM_FD"),
    ("ctrl_os_export_object", "NV0000_CTRL_CMD_OS_UNIX_EXPORT_OBJECT_TO_FD"),
    ("ctrl_class_list", "NV0080_CTRL_CMD_GPU_GET_CLASSLIST_V2"), ("ctrl_copy_engine_caps", "NV2080_CTRL_CMD_CE_GET_CAPS_V2"),
    ("ctrl_set_notification", "NV2080_CTRL_CMD_EVENT_SET_NOTIFICATION"),
    ("ctrl_group_schedule", "NVA06C_CTRL_CMD_GPFIFO_SCHEDULE"),
    ("ctrl_work_submit_token", "NVC36F_CTRL_CMD_GPFIFO_GET_WORK_SUBMIT_TOKEN"),
    ("ctrl_mmu_fault", "NV906F_CTRL_CMD_GET_MMU_FAULT_INFO"), ("ctrl_gpu_info", "NV2080_CTRL_CMD_GPU_GET_INFO_V2"),
    ("ctrl_confidential", "NV_CONF_COMPUTE_CTRL_CMD_SYSTEM_GET_CAPABILITIES"),
    ("ctrl_peer_capabilities", "NV0000_CTRL_CMD_SYSTEM_GET_P2P_CAPS_MATRIX"),
    ("kExportObjectTypeRm", "NV0000_CTRL_OS_UNIX_EXPORT_OBJECT_TYPE_RM"),
    ("kEngineCopy0", "NV2080_ENGINE_TYPE_COPY0"), ("kEngineCopy0 + kMaxCopyEngines - 1", "NV2080_ENGINE_TYPE_COPY9"),
    ("kNotifierCopy0", "NV2080_NOTIFIERS_CE0"), ("kNotifierCopy0 + kMaxCopyEngines - 1", "NV2080_NOTIFIERS_CE9"),
    ("kEventOfEngine", "NV01_EVENT_NONSTALL_INTR"), ("kEventWithoutData", "NV01_EVENT_WITHOUT_EVENT_DATA"),
    ("kNotifyAlways", "NV2080_CTRL_EVENT_SET_NOTIFICATION_ACTION_REPEAT"),
    ("kGpuInfoMigMode", "NV2080_CTRL_GPU_INFO_INDEX_GPU_SMC_MODE"), ("kMigEnabled", "NV2080_CTRL_GPU_INFO_GPU_SMC_MODE_ENABLED"),
    ("kMigDisablePending", "NV2080_CTRL_GPU_INFO_GPU_SMC_MODE_DISABLE_PENDING"),
    ("kCopyEngineShared", "DRF_LOW(NV2080_CTRL_CE_CAPS_CE_GRCE)"),
    ("kAttributePages", "DRF(NVOS32_ATTR_PHYSICALITY, NVOS32_ATTR_PHYSICALITY_NONCONTIGUOUS)"),
    ("kHostMemoryFlags", "DRF(NVOS02_FLAGS_PHYSICALITY, NVOS02_FLAGS_PHYSICALITY_NONCONTIGUOUS) | DRF(NVOS02_FLAGS_COHERENCY, NVOS02_FLAGS_COHERENCY_CACHED) | DRF(NVOS02_FLAGS_MAPPING, NVOS02_FLAGS_MAPPING_NO_MAP)"),
    ("kMapSnooped", "DRF(NVOS46_FLAGS_CACHE_SNOOP, NVOS46_FLAGS_CACHE_SNOOP_ENABLE)"),
    ("kMapPeer", "DRF(NVOS46_FLAGS_P2P_ENABLE, NVOS46_FLAGS_P2P_ENABLE_NOSLI)"),
    ("status_ok", "NV_OK"), ("status_insufficient_resources", "NV_ERR_INSUFFICIENT_RESOURCES"),
    ("status_insufficient_permissions", "NV_ERR_INSUFFICIENT_PERMISSIONS"), ("status_invalid_client", "NV_ERR_INVALID_CLIENT"),
    ("status_invalid_limit", "NV_ERR_INVALID_LIMIT"), ("status_invalid_object_handle", "NV_ERR_INVALID_OBJECT_HANDLE"),
    ("status_no_memory", "NV_ERR_NO_MEMORY"), ("status_not_supported", "NV_ERR_NOT_SUPPORTED"),
    ("status_object_not_found", "NV_ERR_OBJECT_NOT_FOUND"),
]

# Results of map_dma after the part that all branches share, and the size of blocks of which only the beginning is declared.
BY_BRANCH: list[tuple[str, str]] = [
    ("map_dma_bytes", "sizeof(NVOS46_PARAMETERS)"), ("map_dma_address", "offsetof(NVOS46_PARAMETERS, dmaOffset)"),
    ("map_dma_status", "offsetof(NVOS46_PARAMETERS, status)"), ("unmap_dma_bytes", "sizeof(NVOS47_PARAMETERS)"),
    ("class_room", "NV0080_CTRL_GPU_CLASSLIST_MAX_SIZE"),
]

# Classes of each generation, from the folder of class headers: name of the header, ours.
CLASSES = [("kChannelClasses", "clc36f clc46f clc56f clc86f clc96f clca6f"),
           ("kCopyClasses", "clc3b5 clc5b5 clc6b5 clc7b5 clc8b5 clc9b5 clcab5"),
           ("kDoorbellClasses", "clc361 clc461 clc561 clc661 clc761")]


def build(source: str, name: str, command: list[str], folder: pathlib.Path) -> pathlib.Path:
    path = folder / name
    path.write_text(source)
    program = folder / (name + ".out")
    made = subprocess.run([*command, str(path), "-o", str(program)], capture_output=True, text=True)
    if made.returncode != 0:
        raise SystemExit(f"{name} does not compile:\n{made.stderr[:4000]}")
    return program


def run(program: pathlib.Path, *arguments: str) -> dict[str, int]:
    text = subprocess.run([str(program), *arguments], capture_output=True, text=True, check=True).stdout
    return {key: int(value) for key, _, value in (line.rpartition(" ") for line in text.splitlines())}


def build_ours(folder: pathlib.Path) -> pathlib.Path:
    """A program that prints the values that Peerlane uses for the release in its argument."""
    lines = ['#include <cstdio>', '#include "rm/channel_abi.hpp"', "using namespace pl::rm;", "int main(int, char** argv) {",
             "const channel_layout* known = channel_layout_of(argv[1]);", 'std::printf("is known %d\\n", known != nullptr);',
             "const channel_layout& layout = known != nullptr ? *known : kChannelLayouts.back();"]

    def show(key: str, value: str) -> None:
        lines.append(f'std::printf("{key} %llu\\n", (unsigned long long)({value}));')

    for name, other, size, fields in STRUCTS:
        if size:
            value = {"=": f"sizeof({name})", "class_list_bytes": "sizeof(std::uint32_t) * (1 + layout.class_room)"}
            show(f"{other} size", value.get(size, f"layout.{size}"))
        for pair in fields.split():
            field, _, their_field = pair.partition("=")
            show(f"{other}.{their_field}", f"offsetof({name}, {field})")
    for name, other in NUMBERS:
        show(other, name)
    for member, other in BY_BRANCH:
        show(other, f"layout.{member}")
    for name, _ in CLASSES:
        lines.append(f'for (const auto one : {name}) std::printf("class %u %u\\n", one, one);')
    return build("\n".join([*lines, "}"]), "ours.cpp", ["g++", "-std=c++20", f"-I{ROOT}/src"], folder)


def theirs(checkout: pathlib.Path, folder: pathlib.Path) -> tuple[str, dict[str, int], dict[str, int]]:
    """The release; offsets, sizes and numbers; classes by header."""
    version = re.search(r"NVIDIA_VERSION = (\S+)", (checkout / "version.mk").read_text())
    sdk = checkout / "src/common/sdk/nvidia/inc"
    if version is None or not sdk.is_dir():
        raise SystemExit(f"{checkout} is not a source tree of the open kernel modules: version.mk or src/common/sdk is missing")
    unix = checkout / "src/nvidia/arch/nvalloc/unix/include"
    lines = ["#define DRF_LOW(field) (0 ? field)", "#define DRF(field, value) ((unsigned)(value) << (0 ? field))", "int main(void) {"]
    for _, name, size, fields in STRUCTS:
        if size:
            lines.append(f'printf("{name} size %llu\\n", (unsigned long long)sizeof({name}));')
        for pair in fields.split():
            field = pair.partition("=")[2]
            lines.append(f'printf("{name}.{field} %llu\\n", (unsigned long long)offsetof({name}, {field}));')
    for _, name in NUMBERS:
        lines.append(f'printf("{name} %llu\\n", (unsigned long long)(unsigned)({name}));')
    for _, expression in BY_BRANCH:
        lines.append(f'printf("{expression} %llu\\n", (unsigned long long)({expression}));')
    includes = [f"-I{path}" for path in (sdk, unix, checkout / "src/common/inc")]
    classes: dict[str, int] = {}
    for header in (name for _, names in CLASSES for name in names.split()):
        path = sdk / "class" / f"{header}.h"
        number = int(header[2:], 16)
        if path.is_file() and re.search(rf"#define\s+\w+\s+\(?0x0*{number:x}U?\)?", path.read_text(), re.IGNORECASE):
            classes[header] = number
    return version[1], run(build(THEIR_INCLUDES + "\n".join([*lines, "return 0; }"]), "theirs.c", ["gcc", "-w", *includes], folder)), classes


def compare(checkout: pathlib.Path, mine: pathlib.Path, folder: pathlib.Path) -> dict:
    version, found, present = theirs(checkout, folder)
    wanted = run(mine, version)
    is_known = wanted.pop("is known") != 0
    driven = {wanted.pop(key) for key in [key for key in wanted if key.startswith("class ")]}
    rows = [(key, wanted[key], found[key]) for key in wanted]
    missing = [f"class 0x{value:x}: not driven here" for value in present.values() if value not in driven]
    return {"version": version, "is_known": is_known, "rows": rows, "missing": missing,
            "wrong": [row for row in rows if row[1] != row[2]], "classes": present}


def markdown(results: list[dict], note: str) -> str:
    out = ["# Layouts of the resource manager's interface", "",
           "Every offset, size and number of `src/rm/rm_abi.hpp` and `src/rm/channel_abi.hpp`, compared with the headers of NVIDIA's open kernel",
           "modules by `scripts/check-rm-layouts.py`. The numbers are those of the headers; each equals ours unless a row says otherwise.", "", *([note, ""] if note else []),
           "| release | compared with | values | differ | classes of channels, copy engines and doorbells |", "|---|---|---|---|---|"]
    for one in results:
        classes = " ".join(f"{value:x}" for value in sorted(one["classes"].values()))
        basis = "its own layout" if one["is_known"] else "the newest layout (it is refused)"
        out.append(f"| {one['version']} | {basis} | {len(one['rows'])} | {len(one['wrong'])} | {classes} |")
    out += ["", "## What differs", ""]
    wrong = [f"| {one['version']} | `{key}` | {mine} | {other} |" for one in results for key, mine, other in one["wrong"]]
    out += ["| release | what | ours | theirs |", "|---|---|---|---|", *wrong] if wrong else ["Nothing."]
    out += ["", "## Values", "", "| what | " + " | ".join(one["version"] for one in results) + " |", "|---|" + "---|" * len(results)]
    for index, (key, _, _) in enumerate(results[0]["rows"]):
        cells = [one["rows"][index] for one in results]
        values = [str(other) if mine == other else f"**{other}**, ours {mine}" for _, mine, other in cells]
        out.append(f"| `{key}` | " + " | ".join(values) + " |")
    return "\n".join(out) + "\n"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("checkout", nargs="+", type=pathlib.Path)
    parser.add_argument("--markdown", type=pathlib.Path, help="write the table there")
    parser.add_argument("--note", default="", help="a paragraph above the table")
    given = parser.parse_args()
    status = 0
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        mine = build_ours(folder)
        results = [compare(checkout, mine, folder) for checkout in given.checkout]
    results.sort(key=lambda one: [int(part) for part in one["version"].split(".")])
    for one in results:
        print(f"{one['version']}: {len(one['rows'])} values, {len(one['wrong'])} differ"
              + ("" if one["is_known"] else " from the newest layout (the release is refused)"))
        for key, ours_is, theirs_is in one["wrong"]:
            print(f"    {key}: ours {ours_is}, theirs {theirs_is}")
        for text in one["missing"]:
            print(f"    {text}")
        if one["is_known"] and one["wrong"]:
            status = 1
    if given.markdown is not None:
        given.markdown.write_text(markdown(results, given.note))
    return status


if __name__ == "__main__":
    sys.exit(main())
