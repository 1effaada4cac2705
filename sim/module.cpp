// SPDX-License-Identifier: Apache-2.0
// Modules: images for the CPU, loaded as shared objects from memory. A kernel K is the data symbol plsim_kernel_K
// (src/cuda/kernel_host.hpp). GPU code (cubin, fatbin, PTX) is refused.
#include <dlfcn.h>
#include <elf.h>
#include <link.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <iterator>
#include <string_view>

#include "base/env.hpp"
#include "base/file_limit.hpp"
#include "base/load_library.hpp"
#include "base/log.hpp"
#include "base/shortage.hpp"
#include "base/text.hpp"
#include "sim/address_space.hpp"
#include "sim/launch.hpp"
#include "sim/memory.hpp"

namespace pl::sim {

struct kernel_function {
  context_t owner = nullptr;
  module_t module = nullptr;
  std::string name;
  std::shared_ptr<module_image> image;
  const sim_abi::kernel_descriptor* kernel = nullptr;
};

// Taken around the loading and the unloading of images. The dynamic linker has a lock of its own, but one that a thread
// checker does not see: an image loaded where another was unloaded would look like a race between the two.
std::mutex& loader_mutex() {
  static auto* const instance = new std::mutex;
  return *instance;
}

// The loaded shared object. The descriptor stays open as long as it is loaded: its number is the object's path, by
// which the dynamic linker tells images apart.
struct module_image {
  int fd = -1;
  void* library = nullptr;

  module_image() = default;
  module_image(const module_image&) = delete;
  module_image& operator=(const module_image&) = delete;
  ~module_image() {
    if (library != nullptr) {
      const std::lock_guard lock(loader_mutex());
      dlclose(library);
    }
    if (fd >= 0) close(fd);
  }
};

namespace {

struct module_record {
  context_t owner = nullptr;
  std::shared_ptr<module_image> image;
  std::mutex mutex;  // guards what follows
  std::map<std::string, function_t> functions;
  std::vector<allocation_ref> variables;
};

handle_table<module_record, module_t, 7>& modules() {
  static auto* const instance = new handle_table<module_record, module_t, 7>;
  return *instance;
}

handle_table<kernel_function, function_t, 8>& functions() {
  static auto* const instance = new handle_table<kernel_function, function_t, 8>;
  return *instance;
}

#if defined(__x86_64__)
constexpr unsigned kHostMachine = EM_X86_64;
#else
constexpr unsigned kHostMachine = EM_AARCH64;
#endif

// The image's length is not passed: an ELF file ends with its section headers or its last segment.
std::size_t elf_bytes(const void* image) {
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  std::size_t end = header.e_shoff + std::size_t{header.e_shnum} * header.e_shentsize;
  const auto* bytes = static_cast<const std::byte*>(image);
  for (unsigned i = 0; i < header.e_phnum; ++i) {
    Elf64_Phdr segment;
    std::memcpy(&segment, bytes + header.e_phoff + i * sizeof segment, sizeof segment);
    end = std::max<std::size_t>(end, segment.p_offset + segment.p_filesz);
  }
  return end;
}

bool is_host_image(const void* image) {
  unsigned char ident[4];
  std::memcpy(ident, image, sizeof ident);
  if (std::memcmp(ident, ELFMAG, SELFMAG) != 0) return false;
  Elf64_Ehdr header;
  std::memcpy(&header, image, sizeof header);
  return header.e_ident[EI_CLASS] == ELFCLASS64 && header.e_machine == kHostMachine && header.e_type == ET_DYN;
}

// Code for a GPU: a fatbin, a cubin (ELF for another machine) or PTX text.
bool is_gpu_image(const void* image) {
  constexpr std::uint32_t kFatbin = 0xba55ed50, kFatbinWrapper = 0x466243b1;
  std::uint32_t magic = 0;
  std::memcpy(&magic, image, sizeof magic);
  if (magic == kFatbin || magic == kFatbinWrapper || std::memcmp(image, ELFMAG, SELFMAG) == 0) return true;
  constexpr std::size_t kSearchedBytes = 64 << 10;
  const auto* const first = static_cast<const char*>(image);
  const std::string_view text(first, strnlen(first, kSearchedBytes));
  return text.find(".version") != std::string_view::npos && text.find(".target") != std::string_view::npos;
}

result_t load_image(const void* image, std::shared_ptr<module_image>& out) {
  if (!is_host_image(image)) {
    if (!is_gpu_image(image)) return code::invalid_image;
    PL_LOG(error,
           "sim: cuModuleLoadData: not a shared object for this CPU; the simulated GPU runs no GPU code: build kernels "
           "with pl_kernel_image()");
    return code::no_binary_for_gpu;
  }
  auto loaded = std::make_shared<module_image>();
  loaded->fd = memfd_create("peerlane-sim-kernels", MFD_CLOEXEC);
  if (loaded->fd < 0) return code::operating_system;
  const std::size_t bytes = elf_bytes(image);
  const file_limit_as_error during_write;
  for (std::size_t offset = 0; offset < bytes;) {
    const ssize_t written = write(loaded->fd, static_cast<const std::byte*>(image) + offset, bytes - offset);
    if (written <= 0) return code::operating_system;
    offset += static_cast<std::size_t>(written);
  }
  const std::lock_guard lock(loader_mutex());
  const auto library = load_library(format("/proc/self/fd/%d", loaded->fd).c_str(), RTLD_NOW | RTLD_LOCAL);
  if (!library) {
    PL_LOG(error, "sim: cuModuleLoadData: %s", library.error().message.c_str());
    return is_shortage(library.code()) ? code::operating_system : code::invalid_image;
  }
  loaded->library = *library;
  out = std::move(loaded);
  return code::success;
}

void end_module(const std::shared_ptr<module_record>& ended) {
  const std::lock_guard lock(ended->mutex);
  for (const auto& [name, handle] : ended->functions) functions().remove(handle);
  for (const auto& variable : ended->variables) release_allocation(variable);
}

constexpr int kFunctionAttributes = 16;

}  // namespace

void release_context_modules(context_t handle) {
  for (const auto& ended : modules().remove_if([&](const module_record& m) { return m.owner == handle; })) end_module(ended);
}

PL_SIM_API cuModuleLoadData(module_t* out, const void* image) {
  const auto e = enter();
  if (!e) return e.rc;
  if (out == nullptr || image == nullptr) return code::invalid_value;
  auto made = std::make_shared<module_record>();
  if (const auto rc = load_image(image, made->image); rc != code::success) return rc;
  made->owner = e.ctx->handle;
  *out = modules().insert(std::move(made));
  return code::success;
}

// Options tune the JIT compiler, which is not there.
PL_SIM_API cuModuleLoadDataEx(module_t* out, const void* image, unsigned, int*, void**) {
  return cuModuleLoadData(out, image);
}
PL_SIM_API cuModuleLoadFatBinary(module_t* out, const void* image) { return cuModuleLoadData(out, image); }

PL_SIM_API cuModuleLoad(module_t* out, const char* path) {
  const auto e = enter();
  if (!e) return e.rc;
  if (out == nullptr || path == nullptr) return code::invalid_value;
  std::ifstream file(path, std::ios::binary);
  if (!file) return code::file_not_found;
  std::string image((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  image.resize(std::max(image.size() + 1, sizeof(Elf64_Ehdr)));  // ends like a string; the header can be read
  return cuModuleLoadData(out, image.data());
}

PL_SIM_API cuModuleGetLoadingMode(int* mode) {
  constexpr int kEager = 1;
  if (mode == nullptr) return code::invalid_value;
  return *mode = kEager, code::success;
}

PL_SIM_API cuModuleUnload(module_t handle) {
  const auto e = enter();
  if (!e) return e.rc;
  const auto ended = modules().remove(handle);
  if (ended == nullptr) return code::invalid_handle;
  end_module(ended);
  return code::success;
}

PL_SIM_API cuModuleGetFunction(function_t* out, module_t handle, const char* name) {
  const auto e = enter();
  if (!e) return e.rc;
  const auto found = modules().find(handle);
  if (found == nullptr) return code::invalid_handle;
  if (out == nullptr || name == nullptr || *name == 0) return code::invalid_value;
  const std::lock_guard lock(found->mutex);
  if (const auto known = found->functions.find(name); known != found->functions.end())
    return *out = known->second, code::success;
  auto* kernel =
      static_cast<const sim_abi::kernel_descriptor*>(dlsym(found->image->library, format("plsim_kernel_%s", name).c_str()));
  if (kernel == nullptr) return code::not_found;
  if (kernel->abi_version != sim_abi::kernel_abi_version) {
    PL_LOG(error, "sim: kernel %s was built for contract version %u, this simulator has %u: build both from one tree", name,
           kernel->abi_version, sim_abi::kernel_abi_version);
    return code::invalid_image;
  }
  // All kernels of an image share the slot, and some may be running: it is written before the first can be launched.
  if (__atomic_load_n(kernel->services, __ATOMIC_ACQUIRE) == nullptr)
    __atomic_store_n(kernel->services, kernel_services_table(), __ATOMIC_RELEASE);
  auto made = std::make_shared<kernel_function>();
  made->owner = found->owner;
  made->module = handle;
  made->name = name;
  made->image = found->image;
  made->kernel = kernel;
  *out = found->functions[name] = functions().insert(std::move(made));
  return code::success;
}

// A variable of the image, at its CPU address: the one kind of "device" memory here that the CPU could reach directly.
PL_SIM_API cuModuleGetGlobal_v2(device_ptr* out, std::size_t* bytes, module_t handle, const char* name) {
  const auto e = enter();
  if (!e) return e.rc;
  const auto found = modules().find(handle);
  if (found == nullptr) return code::invalid_handle;
  if (name == nullptr) return code::invalid_value;
  void* const address = dlsym(found->image->library, name);
  Dl_info info{};
  void* entry_found = nullptr;
  if (address == nullptr || dladdr1(address, &info, &entry_found, RTLD_DL_SYMENT) == 0) return code::not_found;
  const auto* symbol = static_cast<const ElfW(Sym)*>(entry_found);
  if (symbol == nullptr || ELF64_ST_TYPE(symbol->st_info) != STT_OBJECT) return code::not_found;
  const auto base = reinterpret_cast<device_ptr>(address);
  auto& space = address_space::instance();
  const std::lock_guard lock(found->mutex);
  if (space.find_base(base) == nullptr) {
    auto made = std::make_shared<allocation>();
    made->base = base;
    made->bytes = symbol->st_size;
    made->kind = memory_kind::module_variable;
    made->device_ordinal = e.ctx->gpu->ordinal;
    made->context = e.ctx->handle;
    made->rdma_capable = false;
    space.add(made);
    found->variables.push_back(std::move(made));
  }
  if (out != nullptr) *out = base;
  if (bytes != nullptr) *bytes = symbol->st_size;
  return code::success;
}

PL_SIM_API cuFuncGetAttribute(int* value, int attribute, function_t handle) {
  const auto e = enter();
  if (!e) return e.rc;
  if (functions().find(handle) == nullptr) return code::invalid_handle;
  if (value == nullptr || attribute < 0 || attribute >= kFunctionAttributes) return code::invalid_value;
  switch (attribute) {
    case 0:  // threads a block
      *value = kMaxThreadsPerBlock;
      break;
    case 4:  // registers
      *value = 32;
      break;
    case 5:  // PTX and binary version
    case 6:
      *value = 90;
      break;
    case 8:  // dynamic shared memory
      *value = kMaxSharedBytes;
      break;
    default:
      *value = 0;
  }
  return code::success;
}

PL_SIM_API cuFuncSetAttribute(function_t handle, int attribute, int value) {
  const auto e = enter();
  if (!e) return e.rc;
  if (functions().find(handle) == nullptr) return code::invalid_handle;
  if (attribute < 8 || attribute >= kFunctionAttributes) return code::invalid_value;
  return attribute == 8 && (value < 0 || value > kMaxSharedBytes) ? code::invalid_value : code::success;
}

PL_SIM_API cuFuncSetCacheConfig(function_t handle, int) {
  const auto e = enter();
  if (!e) return e.rc;
  return functions().find(handle) != nullptr ? code::success : code::invalid_handle;
}

PL_SIM_API cuFuncGetModule(module_t* out, function_t handle) {
  const auto e = enter();
  if (!e) return e.rc;
  const auto found = functions().find(handle);
  if (found == nullptr) return code::invalid_handle;
  if (out == nullptr) return code::invalid_value;
  return *out = found->module, code::success;
}

// Functions are loaded with their module.
PL_SIM_API cuFuncLoad(function_t handle) {
  const auto e = enter();
  if (!e) return e.rc;
  return functions().find(handle) != nullptr ? code::success : code::invalid_handle;
}
PL_SIM_API cuFuncIsLoaded(int* state, function_t handle) {
  const auto rc = cuFuncLoad(handle);
  if (rc != code::success) return rc;
  if (state == nullptr) return code::invalid_value;
  return *state = 1, code::success;
}

PL_SIM_API cuFuncGetName(const char** name, function_t handle) {
  const auto e = enter();
  if (!e) return e.rc;
  const auto found = functions().find(handle);
  if (found == nullptr) return code::invalid_handle;
  if (name == nullptr) return code::invalid_value;
  *name = found->name.c_str();
  return code::success;
}

// ---- launch ---------------------------------------------------------------------------------------------------------

namespace {

// Parameters given as one packed buffer lie at their natural alignment.
std::size_t natural_alignment(std::size_t bytes) { return std::min<std::size_t>(bytes & (~bytes + 1), 16); }

// Copies the parameters: the caller's storage is free again when the launch call returns.
bool copy_parameters(launch& work, void** params, const std::byte* packed, std::size_t packed_bytes) {
  const auto& kernel = *work.kernel;
  std::vector<std::size_t> offsets;
  std::size_t total = 0;
  for (std::uint32_t i = 0; i < kernel.parameter_count; ++i) {
    offsets.push_back(total);
    total = round_up(total + kernel.parameter_bytes[i], 16);
  }
  work.parameter_bytes.resize(total + 1);
  std::size_t begin = 0;
  for (std::uint32_t i = 0; i < kernel.parameter_count; ++i) {
    const std::size_t bytes = kernel.parameter_bytes[i];
    const void* source = packed == nullptr ? params[i] : nullptr;
    if (packed != nullptr) {
      begin = round_up(begin, natural_alignment(bytes));
      if (begin + bytes > packed_bytes) return false;
      source = packed + begin;
      begin += bytes;
    }
    if (source == nullptr) return false;
    std::memcpy(work.parameter_bytes.data() + offsets[i], source, bytes);
    work.parameters.push_back(work.parameter_bytes.data() + offsets[i]);
  }
  return true;
}

// CU_LAUNCH_PARAM_*: (1, buffer) and (2, pointer to size) pairs up to a null.
bool read_extra(void** extra, const std::byte*& packed, std::size_t& packed_bytes) {
  for (int i = 0; i < 4 && extra[i] != nullptr; i += 2) {
    const auto tag = reinterpret_cast<std::uintptr_t>(extra[i]);
    if (tag == 1) packed = static_cast<const std::byte*>(extra[i + 1]);
    else if (tag == 2) packed_bytes = *static_cast<const std::size_t*>(extra[i + 1]);
    else return false;
  }
  return packed != nullptr;
}

struct launch_config {  // CUlaunchConfig
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  stream_t stream_handle;
  void* attributes;
  unsigned attribute_count;
};
static_assert(sizeof(launch_config) == 56);

}  // namespace

PL_SIM_API cuLaunchKernel(function_t handle, unsigned grid_x, unsigned grid_y, unsigned grid_z, unsigned block_x,
                          unsigned block_y, unsigned block_z, unsigned shared_bytes, stream_t stream_handle, void** params,
                          void** extra) {
  const auto s = enter_stream(stream_handle);
  if (!s) return s.rc;
  if (const auto rc = injected_failure("cuLaunchKernel"); rc != code::success) return rc;
  const auto function = functions().find(handle);
  if (function == nullptr || function->owner != s.ctx->handle) return code::invalid_handle;
  if (grid_x == 0 || grid_y == 0 || grid_z == 0 || block_x == 0 || block_y == 0 || block_z == 0) return code::invalid_value;
  if (grid_x > 0x7fffffffu || grid_y > 65535 || grid_z > 65535 || block_z > 64) return code::invalid_value;
  if (block_x > kMaxThreadsPerBlock || block_y > kMaxThreadsPerBlock ||
      std::uint64_t{block_x} * block_y * block_z > kMaxThreadsPerBlock)
    return code::invalid_value;
  if (shared_bytes > kMaxSharedBytes) return code::launch_out_of_resources;
  auto work = std::make_shared<launch>();
  work->code = function->image;
  work->kernel = function->kernel;
  const std::byte* packed = nullptr;
  std::size_t packed_bytes = 0;
  if (params == nullptr && extra != nullptr && !read_extra(extra, packed, packed_bytes)) return code::invalid_value;
  if (function->kernel->parameter_count != 0 && params == nullptr && packed == nullptr) return code::invalid_value;
  if (!copy_parameters(*work, params, packed, packed_bytes)) return code::invalid_value;
  std::copy_n(std::initializer_list<unsigned>{grid_x, grid_y, grid_z}.begin(), 3, work->grid);
  std::copy_n(std::initializer_list<unsigned>{block_x, block_y, block_z}.begin(), 3, work->block);
  work->shared_bytes = shared_bytes;
  work->fate = s.ctx->fate;
  work->device_ordinal = s.ctx->gpu->ordinal;
  work->reachable_devices = (1u << s.ctx->gpu->ordinal) | s.ctx->peers.load();
  static const bool is_blocking = env_read("CUDA_LAUNCH_BLOCKING").integer != 0;  // CUDA, too, reads it once
  stream::ticket queued = 0;
  const auto rc = enqueue(
      s, graph_node_type::kernel, [work] { execute_launch(work); }, false, &queued);
  if (rc == code::success && is_blocking && queued != 0) s.target_stream->wait(queued);
  return rc;
}

PL_SIM_API cuLaunchKernelEx(const launch_config* c, function_t handle, void** params, void** extra) {
  if (const auto rc = check_initialized(); rc != code::success) return rc;
  if (c == nullptr) return code::invalid_value;
  if (c->attribute_count != 0) return code::not_supported;
  return cuLaunchKernel(handle, c->grid[0], c->grid[1], c->grid[2], c->block[0], c->block[1], c->block[2], c->shared_bytes,
                        c->stream_handle, params, extra);
}

// One block at a time on each of the device's multiprocessors, whatever its size.
PL_SIM_API cuOccupancyMaxActiveBlocksPerMultiprocessor(int* blocks, function_t handle, int threads, std::size_t shared) {
  const auto e = enter();
  if (!e) return e.rc;
  if (functions().find(handle) == nullptr) return code::invalid_handle;
  if (blocks == nullptr || threads <= 0) return code::invalid_value;
  *blocks = threads <= kMaxThreadsPerBlock && shared <= kMaxSharedBytes ? 1 : 0;
  return code::success;
}

PL_SIM_API cuOccupancyMaxActiveBlocksPerMultiprocessorWithFlags(int* blocks, function_t handle, int threads,
                                                                std::size_t shared, unsigned) {
  return cuOccupancyMaxActiveBlocksPerMultiprocessor(blocks, handle, threads, shared);
}

PL_SIM_API cuOccupancyMaxPotentialBlockSize(int* grid, int* block, function_t handle, std::size_t (*)(int), std::size_t,
                                            int limit) {
  const auto e = enter();
  if (!e) return e.rc;
  if (functions().find(handle) == nullptr) return code::invalid_handle;
  if (grid == nullptr || block == nullptr) return code::invalid_value;
  *grid = kMultiprocessors;
  *block = limit > 0 ? std::min(limit, kMaxThreadsPerBlock) : kMaxThreadsPerBlock;
  return code::success;
}

PL_SIM_API cuOccupancyMaxPotentialBlockSizeWithFlags(int* grid, int* block, function_t handle, std::size_t (*shared)(int),
                                                     std::size_t shared_bytes, int limit, unsigned flags) {
  constexpr unsigned kKeepsCachingOff = 1;
  if (flags > kKeepsCachingOff) return code::invalid_value;
  return cuOccupancyMaxPotentialBlockSize(grid, block, handle, shared, shared_bytes, limit);
}

PL_SIM_API cuOccupancyAvailableDynamicSMemPerBlock(std::size_t* bytes, function_t handle, int blocks, int threads) {
  const auto e = enter();
  if (!e) return e.rc;
  if (functions().find(handle) == nullptr) return code::invalid_handle;
  if (bytes == nullptr || blocks <= 0 || threads <= 0 || threads > kMaxThreadsPerBlock) return code::invalid_value;
  *bytes = blocks == 1 ? kMaxSharedBytes : 0;
  return code::success;
}

}  // namespace pl::sim
