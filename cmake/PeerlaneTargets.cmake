# How Peerlane's targets are made, so that every folder's CMakeLists.txt is a list of names.

add_library(pl_options INTERFACE)
target_compile_options(pl_options INTERFACE
  -Wall -Wextra -Wshadow $<$<COMPILE_LANGUAGE:CXX>:-Wconversion -Wnon-virtual-dtor>
  $<$<BOOL:${PEERLANE_WERROR}>:-Werror> -fno-omit-frame-pointer
  # What a binary says about its sources (assert, log lines) is relative to the repository: no path of the build machine.
  -fmacro-prefix-map=${PROJECT_SOURCE_DIR}/=)
if(NOT PEERLANE_SANITIZE)
  # What a library does not reach of a unit that it links stays out of it.
  target_compile_options(pl_options INTERFACE -ffunction-sections -fdata-sections)
  target_link_options(pl_options INTERFACE -Wl,--gc-sections)
endif()
if(CMAKE_UNITY_BUILD)
  # Several sources in one unit (for half the time): what is a source's own then looks like an include's.
  target_compile_options(pl_options INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>)
endif()
if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
  # GCC collects its garbage later: a tenth of the compile time, for at most half a GiB a compiler.
  target_compile_options(pl_options INTERFACE
    $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-expand=400> $<$<COMPILE_LANGUAGE:CXX>:--param=ggc-min-heapsize=400000>)
endif()
if(PEERLANE_SANITIZE)
  # The asan test preset sets ASAN_OPTIONS=intercept_tls_get_addr=0: the leak checker of GCC 12 guesses where the TLS of libraries
  # opened at run time lies, from bytes before it. With unlucky ones it reads a small address (0x628, 0x1e30) and dies ("Tracer
  # caught signal 11"), in the same tests each time or in none, as the environment's size has it.
  target_compile_options(pl_options INTERFACE -fsanitize=${PEERLANE_SANITIZE} -fno-sanitize-recover=all)
  target_link_options(pl_options INTERFACE -fsanitize=${PEERLANE_SANITIZE})
  if(PEERLANE_SANITIZE MATCHES "address.*undefined")
    # A fifth of the compile time, for what AddressSanitizer finds anyway: the preset ubsan has them.
    target_compile_options(pl_options INTERFACE -fno-sanitize=null,object-size,vptr)
    # Another fifth, most of it for the templates of RocksDB, Asio, JSON and CLI11, where those are (PL_FOREIGN_TEMPLATES).
    target_compile_options(pl_options INTERFACE
      $<$<BOOL:$<TARGET_PROPERTY:PL_FOREIGN_TEMPLATES>>:-fno-sanitize=alignment,pointer-overflow>)
  endif()
  if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # The instrumentation blinds this warning: GCC 12 then suspects its own <regex>. The release build has it on.
    target_compile_options(pl_options INTERFACE -Wno-maybe-uninitialized)
  endif()
  if(PEERLANE_SANITIZE MATCHES "thread" AND CMAKE_CXX_COMPILER_ID STREQUAL "GNU")
    # GCC warns that ThreadSanitizer does not model fences. Ours order accesses towards a GPU, which it does not see anyway.
    target_compile_options(pl_options INTERFACE -Wno-tsan)
    # Between its calls GCC 12 also loses the sizes of strings that it inlines, and suspects its own <string> of overflows.
    target_compile_options(pl_options INTERFACE -Wno-array-bounds -Wno-stringop-overflow -Wno-stringop-overread -Wno-restrict)
  endif()
endif()

# The tests' own sources, not what they test: their objects take 0.6 of the CPU time that they take at -O1, and a third more of it only
# in the few tests that compute. Not under ThreadSanitizer: nothing is gained there, and what it then watches takes longer.
if(NOT PEERLANE_SANITIZE MATCHES "thread")
  foreach(option IN ITEMS -O0 -g1 -fno-sanitize=undefined)
    target_compile_options(pl_options INTERFACE $<$<BOOL:$<TARGET_PROPERTY:PL_TEST_CODE>>:${option}>)
  endforeach()
endif()

# What most sources parse first, parsed once: 0.9 s of CPU time for each unit. Off in the dev preset, which therefore finds an include
# that a source forgot.
set(PL_HEADERS
  <algorithm> <array> <atomic> <bit> <chrono> <condition_variable> <cstdio> <cstdlib> <cstring> <deque> <filesystem> <fstream> <functional>
  <map> <memory> <mutex> <optional> <set> <span> <string> <string_view> <thread> <unordered_map> <utility> <vector>)
if(PEERLANE_PCH)
  file(CONFIGURE OUTPUT headers.cpp CONTENT "// Only to compile the headers with the libraries' flags.\n")
  add_library(pl_headers OBJECT EXCLUDE_FROM_ALL ${CMAKE_CURRENT_BINARY_DIR}/headers.cpp)
  target_link_libraries(pl_headers PRIVATE pl_options)
  target_precompile_headers(pl_headers PRIVATE ${PL_HEADERS})
endif()

# pl_precompiled(<target> [<headers>]): uses these there; <headers>: another library that parses some. Not for targets with code options
# of their own: the headers were compiled without. A source with some is left out by SKIP_PRECOMPILE_HEADERS.
function(pl_precompiled target)
  set(headers pl_headers ${ARGN})
  list(GET headers -1 headers)
  get_target_property(sources ${target} SOURCES)
  if(PEERLANE_PCH AND NOT "${sources}" MATCHES "\\.c(;|$)")  # the headers are C++
    target_precompile_headers(${target} REUSE_FROM ${headers})
  endif()
endfunction()

# pl_layer(<name> [OWN_CODE_OPTIONS] SOURCES a.cpp ... [DEPS pl_x ...]): the static library pl_<name> of one folder of src/. Headers are included
# with their folder ("messaging/rndv.hpp"); scripts/lint.py refuses those of a layer that is not in DEPS. OWN_CODE_OPTIONS: the caller adds
# options that change the code.
function(pl_layer name)
  cmake_parse_arguments(ARG "OWN_CODE_OPTIONS" "" "SOURCES;DEPS" ${ARGN})
  add_library(pl_${name} STATIC ${ARG_SOURCES})
  target_include_directories(pl_${name} PUBLIC ${PROJECT_SOURCE_DIR}/src ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(pl_${name} PUBLIC ${ARG_DEPS} PRIVATE pl_options)
  if(NOT ARG_OWN_CODE_OPTIONS)
    pl_precompiled(pl_${name})
  endif()
endfunction()

# pl_shared_library(<name> <version script> SOURCES a.cpp ... DEPS pl_x ...): a library that users link.
function(pl_shared_library name map_file)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${name} SHARED ${ARG_SOURCES})
  target_include_directories(${name} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
  target_link_libraries(${name} PRIVATE ${ARG_DEPS} pl_options Threads::Threads)
  pl_precompiled(${name})
  # nodelete: clients that dlclose the library keep pointers into it, and the import-table hook must stay.
  target_link_options(${name} PRIVATE -Wl,--version-script=${CMAKE_CURRENT_SOURCE_DIR}/${map_file} -Wl,-z,nodelete
    -Wl,--no-undefined -static-libgcc)
  if(NOT PEERLANE_SANITIZE)
    target_link_options(${name} PRIVATE -static-libstdc++)
  else()
    target_link_options(${name} PRIVATE -Wl,--undefined-version)
  endif()
  set_target_properties(${name} PROPERTIES LIBRARY_OUTPUT_DIRECTORY ${PL_OUT} LINK_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/${map_file})
endfunction()

# pl_tool_library(<target> SOURCES a.cpp ... [DEPS ...]): the static library of one folder of tools/, so that the unit tests link
# the same objects as the program. Headers are included from the repository's root ("tools/common/report.hpp").
function(pl_tool_library target)
  cmake_parse_arguments(ARG "" "" "SOURCES;DEPS" ${ARGN})
  add_library(${target} STATIC ${ARG_SOURCES})
  target_compile_options(${target} PRIVATE $<$<CONFIG:RelWithDebInfo>:-g1>)  # CLI11 and nlohmann-json make 50 MB of -g
  target_include_directories(${target} PUBLIC ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/include)
  target_link_libraries(${target} PUBLIC ${ARG_DEPS} PRIVATE pl_options)
  set_target_properties(${target} PROPERTIES PL_FOREIGN_TEMPLATES ON)
  pl_precompiled(${target})
endfunction()

# pl_test(<name> [PROCESSORS n] SOURCES ... LIBS ... [ENV A=B ...]): a GoogleTest program; every case becomes one
# ctest test. PROCESSORS: of the tests that run at a time (-j), each case takes the place of n.
function(pl_test name)
  cmake_parse_arguments(ARG "" "TIMEOUT;PROCESSORS" "SOURCES;LIBS;ENV;LABELS" ${ARGN})
  if(NOT ARG_TIMEOUT)
    set(ARG_TIMEOUT 120)
  endif()
  add_executable(${name} ${ARG_SOURCES})
  # Tests run where they are built, and find shared libraries of ours there.
  set_target_properties(${name} PROPERTIES BUILD_WITH_INSTALL_RPATH OFF PL_TEST_CODE ON)
  target_link_libraries(${name} PRIVATE ${ARG_LIBS} pl_options GTest::gtest GTest::gtest_main)
  pl_precompiled(${name} pl_test_headers)
  include(GoogleTest)
  # Only what is set: an empty value would shift the properties behind it.
  set(properties TIMEOUT ${ARG_TIMEOUT} SKIP_REGULAR_EXPRESSION "\\[  SKIPPED \\]")
  if(ARG_ENV)
    # Not by the property ENVIRONMENT: gtest_discover_tests splits its list and sets the first variable only.
    set_target_properties(${name} PROPERTIES CROSSCOMPILING_EMULATOR "/usr/bin/env;${ARG_ENV}")
  endif()
  if(ARG_LABELS)
    list(APPEND properties LABELS "${ARG_LABELS}")
  endif()
  if(ARG_PROCESSORS)
    list(APPEND properties PROCESSORS ${ARG_PROCESSORS})
  endif()
  gtest_discover_tests(${name} DISCOVERY_MODE PRE_TEST NO_PRETTY_VALUES PROPERTIES ${properties})
endfunction()

# A libFuzzer program (preset fuzz only) from a source that has what test/support/fuzz.hpp asks for under PL_LIBFUZZER; it sees
# into LAYER.
function(pl_fuzzer name source layer)
  if(NOT PEERLANE_FUZZ)
    return()
  endif()
  add_executable(${name} ${source} ${PROJECT_SOURCE_DIR}/test/support/fuzz_main.cpp)
  target_include_directories(${name} PRIVATE ${PROJECT_SOURCE_DIR} ${PROJECT_SOURCE_DIR}/src)
  target_compile_definitions(${name} PRIVATE PL_LIBFUZZER)
  target_link_libraries(${name} PRIVATE ${layer} pl_options GTest::gtest)
  target_compile_options(${name} PRIVATE -fsanitize=fuzzer)
  target_link_options(${name} PRIVATE -fsanitize=fuzzer)
  target_compile_options(${layer} PRIVATE -fsanitize=fuzzer-no-link)
endfunction()
