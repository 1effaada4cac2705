// SPDX-License-Identifier: Apache-2.0
// What programs begin with that drive DMA channels of their own on the first GPU: CUDA's primary context, a client of the
// resource manager, an address space with CUDA's memory and the host's in it. A step that fails ends the program.
#pragma once

#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "bench/must.hpp"
#include "cuda/driver_table.hpp"
#include "dma/address_space.hpp"
#include "dma/channel.hpp"
#include "measure/machine.hpp"
#include "measure/result_file.hpp"
#include "os/device_io.hpp"
#include "rm/export_listener.hpp"

namespace pl::bench {

struct channel_setup {
  channel_setup(const cu::driver_table& table, const char* program) : cuda(table), file(program, {program}) {}

  const cu::driver_table& cuda;
  result_file file;
  std::string pci_address, driver;
  std::unique_ptr<rm::client> client;
  std::shared_ptr<dma::address_space> space;
  std::vector<unsigned> engines;
  std::vector<dma::region> regions;
  std::uint64_t device_address = 0, host_address = 0;  // for channels

  void must(cu::result_t code, const char* step) const {
    if (code == cu::error_code::success) return;
    std::printf("FAILED: %s: %s\n", step, cu::error_text(cuda, code).c_str());
    std::exit(1);
  }

  void open_cuda() {
    need(cu::initialize(cuda), "cuInit");
    cu::device_t ordinal = 0;
    cu::context_t context = nullptr;
    must(cuda.cuDeviceGet(&ordinal, 0), "cuDeviceGet");
    must(cuda.cuDevicePrimaryCtxRetain(&context, ordinal), "cuDevicePrimaryCtxRetain");
    must(cuda.cuCtxSetCurrent(context), "cuCtxSetCurrent");
    char text[32] = {};
    must(cuda.cuDeviceGetPCIBusId(text, sizeof text, ordinal), "cuDeviceGetPCIBusId");
    pci_address = text;
    machine_facts facts = describe_host();
    describe_gpu(facts, cuda, 0);
    facts.backend = "rm";
    file.set_machine(facts);
  }

  void open_space(device_io& io = real_device_io()) {
    client = need(rm::client::open(io), "resource manager");
    const rm::gpu* const gpu = need(client->find_gpu(need(rm::parse_pci_address(pci_address), "PCI address")), "GPU");
    driver = need(rm::driver_version(io), "driver version");
    space = need(dma::address_space::open(*client, *gpu, driver), "address space");
    engines = dma::copy_engines(space->objects());
    if (engines.empty()) std::printf("FAILED: no copy engine\n"), std::exit(1);
  }

  // One allocation of CUDA's, then pages of the host.
  void bind(cu::device_ptr device, std::size_t device_bytes, void* host, std::size_t host_bytes) {
    const auto pieces = need(rm::find_backing(cuda, device, device_bytes), "what lies behind CUDA's memory");
    if (pieces.size() != 1) std::printf("FAILED: %zu pieces behind CUDA's memory\n", pieces.size()), std::exit(1);
    regions.push_back(
        need(space->bind_object(pieces[0].client, pieces[0].object, pieces[0].offset, device_bytes), "binding GPU memory"));
    regions.push_back(need(space->bind_host(host, host_bytes), "binding host memory"));
    device_address = regions[0].address();
    host_address = regions[1].address();
  }
};

}  // namespace pl::bench
