# Kernels: one source, two forms, both embedded in a static library.
#
#   pl_kernel_image(<target> SOURCES k.cu ... [DEVICE_RUNTIME k.cu ...])
#
# makes the static library <target>. For each k.cu it holds a fatbin (if an nvcc was found: the architectures of
# PEERLANE_CUDA_ARCHS that this nvcc knows, and PTX of the lowest) and a shared object for the simulated GPU, and the
# header k_image.hpp declares `const pl::cu::kernel_image& pl::kernels::k()`.
#
# Sources behind DEVICE_RUNTIME are linked with CUDA's device runtime, so they hold no PTX: on later generations of GPUs they
# do not load. Where the toolkit has no libcudadevrt.a they have no fatbin.

# ---- nvcc: the toolkit's, else a project-private one from PyPI -------------------------------------------------------
file(GLOB pl_venv_nvcc ${PROJECT_SOURCE_DIR}/.venv/lib/python3*/site-packages/nvidia/cu13/bin/nvcc)
find_program(PEERLANE_NVCC nvcc
  HINTS ${CMAKE_CUDA_COMPILER} ENV CUDACXX PATHS /usr/local/cuda/bin DOC "nvcc, for the embedded GPU kernels")
if(CMAKE_CUDA_COMPILER)
  set(PEERLANE_NVCC ${CMAKE_CUDA_COMPILER} CACHE FILEPATH "nvcc, for the embedded GPU kernels" FORCE)
elseif(NOT PEERLANE_NVCC AND pl_venv_nvcc)
  list(GET pl_venv_nvcc 0 pl_venv_nvcc)
  set(PEERLANE_NVCC ${pl_venv_nvcc} CACHE FILEPATH "nvcc, for the embedded GPU kernels" FORCE)
endif()

# Sanitizers' programs run on the simulated GPU, so their presets name no architecture.
set(PL_NVCC_FLAGS "")
if(PEERLANE_NVCC AND PEERLANE_CUDA_ARCHS)
  execute_process(COMMAND ${PEERLANE_NVCC} --list-gpu-arch OUTPUT_VARIABLE pl_known ERROR_QUIET RESULT_VARIABLE pl_failed)
  set(pl_archs "")
  foreach(arch IN LISTS PEERLANE_CUDA_ARCHS)
    if(NOT pl_failed AND pl_known MATCHES "compute_${arch}(\n|$)")
      list(APPEND pl_archs ${arch})
    endif()
  endforeach()
  if(pl_archs)
    list(SORT pl_archs COMPARE NATURAL)
    list(GET pl_archs 0 pl_lowest)
    foreach(arch IN LISTS pl_archs)
      list(APPEND PL_NVCC_FLAGS -gencode arch=compute_${arch},code=sm_${arch})
    endforeach()
    list(APPEND PL_NVCC_FLAGS -gencode arch=compute_${pl_lowest},code=compute_${pl_lowest})
    # A third of the size. By the older of the two methods, which all drivers read.
    list(APPEND PL_NVCC_FLAGS -Xfatbin -compress-all)
    execute_process(COMMAND ${PEERLANE_NVCC} --help OUTPUT_VARIABLE pl_help ERROR_QUIET)
    if(pl_help MATCHES "--compress-mode")
      list(APPEND PL_NVCC_FLAGS --compress-mode=speed)
    endif()
    message(STATUS "GPU kernels: ${PEERLANE_NVCC}, sm ${pl_archs} and PTX of ${pl_lowest}")
  else()
    message(STATUS "GPU kernels: ${PEERLANE_NVCC} knows none of PEERLANE_CUDA_ARCHS=${PEERLANE_CUDA_ARCHS}")
  endif()
endif()
if(NOT PL_NVCC_FLAGS)
  message(STATUS "GPU kernels: OFF (no usable nvcc). On a real GPU the push/pull copy engine, stream triggers by peer GPUs "
                 "and kernel benchmarks are then not available; the simulated GPU has them all.")
endif()

# The flags of sources that are linked with the device runtime: machine code alone.
set(PL_NVCC_LINK_FLAGS "")
if(PL_NVCC_FLAGS)
  get_filename_component(pl_toolkit ${PEERLANE_NVCC} REALPATH)
  get_filename_component(pl_toolkit ${pl_toolkit} DIRECTORY)
  find_library(PL_CUDADEVRT NAMES libcudadevrt.a PATHS ${pl_toolkit}/../lib64 ${pl_toolkit}/../lib
    ${pl_toolkit}/../targets/x86_64-linux/lib ${pl_toolkit}/../targets/sbsa-linux/lib NO_DEFAULT_PATH
    DOC "CUDA's device runtime, for kernels that set the condition of a graph's node")
  if(PL_CUDADEVRT)
    get_filename_component(pl_devrt_dir ${PL_CUDADEVRT} DIRECTORY)
    set(PL_NVCC_LINK_FLAGS -dlink -rdc=true -DPL_DEVICE_RUNTIME -L${pl_devrt_dir} -lcudadevrt)
    foreach(arch IN LISTS pl_archs)
      list(APPEND PL_NVCC_LINK_FLAGS -gencode arch=compute_${arch},code=sm_${arch})
    endforeach()
  else()
    message(STATUS "GPU kernels: no libcudadevrt.a beside nvcc, so `peerlane async` has no graph-loop on a real GPU")
  endif()
endif()

function(pl_kernel_image target)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEVICE_RUNTIME" ${ARGN})
  set(out ${CMAKE_CURRENT_BINARY_DIR}/${target}.kernels)
  file(MAKE_DIRECTORY ${out})
  set(cuda_dir ${PROJECT_SOURCE_DIR}/src/cuda)
  set(glue "")
  foreach(source IN LISTS ARG_SOURCES ARG_DEVICE_RUNTIME)
    set(nvcc_flags "${PL_NVCC_FLAGS}")
    if(source IN_LIST ARG_DEVICE_RUNTIME)
      set(nvcc_flags "${PL_NVCC_LINK_FLAGS}")
    endif()
    get_filename_component(stem ${source} NAME_WE)
    get_filename_component(source ${source} ABSOLUTE)

    # The simulated GPU's form is a module library, so it gets the same sanitizers as everything else.
    set_source_files_properties(${source} PROPERTIES LANGUAGE CXX COMPILE_OPTIONS "-xc++")
    add_library(${target}_${stem}_host MODULE ${source})
    target_include_directories(${target}_${stem}_host PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src
                               ${PROJECT_SOURCE_DIR}/include)
    # -fno-gnu-unique: images must unload (clang makes no such symbols, and does not know the option); -O2 in every preset:
    # polling loops should poll. -Wno-tsan: fences stay, and kernel_device.cuh does without them where ThreadSanitizer looks.
    target_compile_options(${target}_${stem}_host PRIVATE -O2 -fno-exceptions -fno-rtti
                           $<$<CXX_COMPILER_ID:GNU>:-fno-gnu-unique> $<$<CXX_COMPILER_ID:GNU>:-Wno-tsan>)
    target_link_libraries(${target}_${stem}_host PRIVATE pl_options)
    target_link_options(${target}_${stem}_host PRIVATE -Wl,--as-needed -Wl,-s)
    set_target_properties(${target}_${stem}_host PROPERTIES
      PREFIX "" OUTPUT_NAME ${stem} SUFFIX .elf LIBRARY_OUTPUT_DIRECTORY ${out})
    set(elf ${out}/${stem}.elf)
    set(embedded ${elf})

    set(fatbin_asm "")
    set(fatbin_fields "nullptr, 0")
    if(nvcc_flags)
      set(fatbin ${out}/${stem}.fatbin)
      add_custom_command(OUTPUT ${fatbin}
        COMMAND ${PEERLANE_NVCC} -fatbin -std=c++17 -O3 -ccbin ${CMAKE_CXX_COMPILER} ${nvcc_flags} -I${PROJECT_SOURCE_DIR} -I${PROJECT_SOURCE_DIR}/src -I${PROJECT_SOURCE_DIR}/include
                -MD -MF ${fatbin}.d -MT ${fatbin} -o ${fatbin} -x cu ${source}
        DEPENDS ${source} ${cuda_dir}/kernel_device.cuh DEPFILE ${fatbin}.d
        COMMENT "GPU code of ${stem}" VERBATIM)
      list(APPEND embedded ${fatbin})
      set(fatbin_asm "pl_${stem}_fatbin: .incbin \\\"${fatbin}\\\"\\npl_${stem}_fatbin_end: .byte 0\\n.balign 64\\n")
      set(fatbin_fields "pl_${stem}_fatbin, static_cast<std::size_t>(pl_${stem}_fatbin_end - pl_${stem}_fatbin)")
    endif()

    file(CONFIGURE OUTPUT ${out}/${stem}_image.hpp CONTENT [[// Generated by cmake/Kernels.cmake.
#pragma once
#include "cuda/kernel_image.hpp"
namespace pl::kernels {
const cu::kernel_image& @stem@();
}
]] @ONLY)
    file(CONFIGURE OUTPUT ${out}/${stem}_image.cpp CONTENT [[// Generated by cmake/Kernels.cmake.
#include "@stem@_image.hpp"
asm(".pushsection .rodata\n.balign 64\n"
    "@fatbin_asm@"
    "pl_@stem@_elf: .incbin \"@elf@\"\npl_@stem@_elf_end: .byte 0\n.popsection\n");
extern "C" {
extern const unsigned char pl_@stem@_fatbin[], pl_@stem@_fatbin_end[], pl_@stem@_elf[], pl_@stem@_elf_end[];
}
namespace pl::kernels {
const cu::kernel_image& @stem@() {
  static const cu::kernel_image image{@fatbin_fields@, pl_@stem@_elf,
                                      static_cast<std::size_t>(pl_@stem@_elf_end - pl_@stem@_elf)};
  return image;
}
}
]] @ONLY)
    # Compiled apart: a unit of several sources does not know what they embed, and would keep old images.
    set_source_files_properties(${out}/${stem}_image.cpp PROPERTIES
      OBJECT_DEPENDS "${embedded}" SKIP_UNITY_BUILD_INCLUSION ON)
    list(APPEND glue ${out}/${stem}_image.cpp)
  endforeach()
  add_library(${target} STATIC ${glue})
  foreach(source IN LISTS ARG_SOURCES ARG_DEVICE_RUNTIME)
    get_filename_component(stem ${source} NAME_WE)
    add_dependencies(${target} ${target}_${stem}_host)
  endforeach()
  target_include_directories(${target} PUBLIC ${out})
  target_link_libraries(${target} PUBLIC pl_cuda PRIVATE pl_options)
endfunction()
