# `cmake --install`: GNUInstallDirs, relocatable (every path inside is relative, so the prefix can be moved or packed).
#   <prefix>/<libdir>/libgdrapi.so -> .so.2 -> .so.2.6     all three at run time: clients open each of these names
#   <prefix>/<libdir>/libpeerlane.so*, libpeerlane_store.so*, libgdsync.so*
#   <prefix>/<libdir>/libpeerlane-mpi-*.so                 where the headers of an MPI were found
#   <prefix>/<libdir>/peerlane/                            the program and what it finds beside itself (sim/); NIXL's backend (nixl/)
#   <prefix>/bin/peerlane, gdrcopy_sanity, ...             links to that program
#   <prefix>/include, <libdir>/pkgconfig, <libdir>/cmake, share/doc/peerlane, share/man
#   <prefix>/share/bash-completion, share/zsh               completions
#   <prefix>/share/peerlane                                the store as a service: unit, user, settings, Grafana's dashboard
#   <prefix>/src/peerlane-gdrdrv-<version>                 the optional kernel module's sources, for make and DKMS
include(GNUInstallDirs)
include(CMakePackageConfigHelpers)

# CMake makes folders by the umask (CMAKE_INSTALL_DEFAULT_DIRECTORY_PERMISSIONS does not change that), and hardened systems give root 077.
install(CODE "
  execute_process(COMMAND sh -c umask OUTPUT_VARIABLE mask OUTPUT_STRIP_TRAILING_WHITESPACE)
  if(NOT mask MATCHES \"[02][02]$\")
    message(WARNING \"Your umask is \${mask}: new folders below \${CMAKE_INSTALL_PREFIX} are closed to other users. For all users, take away what \"
      \"was installed and install with: (umask 022 && cmake --install ...)\")
  endif()
")

set(PL_PRIVATE_DIR ${CMAKE_INSTALL_LIBDIR}/peerlane)
set(PL_GDRAPI_VERSION 2.6)
file(RELATIVE_PATH PL_PKGCONFIG_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/pkgconfig /)
file(RELATIVE_PATH PL_CMAKE_TO_PREFIX /${CMAKE_INSTALL_LIBDIR}/cmake/package /)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/ DESTINATION ${CMAKE_INSTALL_INCLUDEDIR} FILES_MATCHING PATTERN "*.h" PATTERN "*.hpp"
  PATTERN "*.cuh")
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/README.md ${PROJECT_SOURCE_DIR}/CHANGELOG.md
  ${PL_THIRD_PARTY} DESTINATION ${CMAKE_INSTALL_DATADIR}/doc/peerlane)

# The build writes the manual by what the program says of itself (tools/CMakeLists.txt).
install(FILES ${PROJECT_BINARY_DIR}/packaging/peerlane.1 DESTINATION ${CMAKE_INSTALL_MANDIR}/man1 OPTIONAL)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/completions/peerlane.bash RENAME peerlane
  DESTINATION ${CMAKE_INSTALL_DATADIR}/bash-completion/completions)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/completions/_peerlane DESTINATION ${CMAKE_INSTALL_DATADIR}/zsh/site-functions)

# The store as a service (docs/store.md); packages put the unit and its user where systemd looks.
install(FILES ${PROJECT_SOURCE_DIR}/packaging/systemd/peerlane-store.service ${PROJECT_SOURCE_DIR}/packaging/systemd/peerlane-store.sysusers
  DESTINATION ${CMAKE_INSTALL_DATADIR}/peerlane/systemd)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/systemd/store.json DESTINATION ${CMAKE_INSTALL_DATADIR}/peerlane)
install(FILES ${PROJECT_SOURCE_DIR}/packaging/grafana/peerlane-store.json RENAME store-dashboard.json
  DESTINATION ${CMAKE_INSTALL_DATADIR}/peerlane)

set(PL_DRIVER_DIR src/peerlane-gdrdrv-${PROJECT_VERSION})
configure_file(${PROJECT_SOURCE_DIR}/packaging/dkms.conf.in ${PROJECT_BINARY_DIR}/packaging/dkms.conf @ONLY)
install(DIRECTORY ${PROJECT_SOURCE_DIR}/driver/gdrdrv/ DESTINATION ${PL_DRIVER_DIR} FILES_MATCHING PATTERN "*.[ch]" PATTERN Makefile PATTERN Kbuild
  PATTERN "*.rules" PATTERN "*.mod.c" EXCLUDE)
install(FILES ${PROJECT_BINARY_DIR}/packaging/dkms.conf ${PROJECT_SOURCE_DIR}/packaging/peerlane-gdrdrv.conf
  ${PROJECT_SOURCE_DIR}/uapi/gdrdrv_ioctl.h DESTINATION ${PL_DRIVER_DIR})

# pl_install_library(<target> <version> <description>): the library, its pkg-config file and its CMake package, so that
# `pkg-config --libs <target>` and `find_package(<target>)` + <target>::<target> work.
function(pl_install_library target version description)
  if(NOT TARGET ${target})
    return()
  endif()
  install(TARGETS ${target} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  set(PL_NAME ${target})
  set(PL_VERSION ${version})
  set(PL_DESCRIPTION ${description})
  set(made ${PROJECT_BINARY_DIR}/packaging)
  configure_file(${PROJECT_SOURCE_DIR}/packaging/library.pc.in ${made}/${target}.pc @ONLY)
  configure_file(${PROJECT_SOURCE_DIR}/packaging/library-config.cmake.in ${made}/${target}-config.cmake @ONLY)
  write_basic_package_version_file(${made}/${target}-config-version.cmake VERSION ${version} COMPATIBILITY SameMajorVersion)
  install(FILES ${made}/${target}.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
  install(FILES ${made}/${target}-config.cmake ${made}/${target}-config-version.cmake
    DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/${target})
endfunction()
pl_install_library(gdrapi ${PL_GDRAPI_VERSION} "CPU mappings of GPU memory, behind the GDRCopy interface")
pl_install_library(peerlane ${PROJECT_VERSION} "GPU memory in the CPU's address space: mappings and copies")
pl_install_library(peerlane_store ${PROJECT_VERSION} "Values between host or GPU memory and a persistent store")

pl_install_library(gdsync 2.2 "Values on CUDA streams, behind libgdsync's interface")

# Preloaded by their names (docs/mpi-shim.md), so nobody links them.
foreach(kind IN ITEMS ompi mpich)
  if(TARGET peerlane-mpi-${kind} AND NOT PEERLANE_SANITIZE)
    install(TARGETS peerlane-mpi-${kind} LIBRARY DESTINATION ${CMAKE_INSTALL_LIBDIR})
  endif()
endforeach()

# The program and its drop-in names are whatever the build put into out/: the links there are links here. The program is
# linked from bin/ rather than placed there, so that what it looks for beside its own file is found in every layout.
install(CODE "
  set(out \"${PL_OUT}\")
  set(private \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${PL_PRIVATE_DIR}\")
  set(bin \"\$ENV{DESTDIR}\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}\")
  file(RELATIVE_PATH to_private /${CMAKE_INSTALL_BINDIR} /${PL_PRIVATE_DIR})
  if(EXISTS \"\${out}/peerlane\")
    file(INSTALL \"\${out}/peerlane\" DESTINATION \"\${private}\" USE_SOURCE_PERMISSIONS)
    if(EXISTS \"\${out}/libpeerlane_mpi.so\")
      file(INSTALL \"\${out}/libpeerlane_mpi.so\" DESTINATION \"\${private}\")
    endif()
    if(EXISTS \"\${out}/sim\")
      file(INSTALL \"\${out}/sim\" DESTINATION \"\${private}\" USE_SOURCE_PERMISSIONS)
    endif()
    if(EXISTS \"\${out}/nixl\")
      file(INSTALL \"\${out}/nixl\" DESTINATION \"\${private}\" USE_SOURCE_PERMISSIONS)
    endif()
    if(EXISTS \"\${out}/python\")
      file(INSTALL \"\${out}/python\" DESTINATION \"\${private}\" PATTERN __pycache__ EXCLUDE)
    endif()
    if(CMAKE_INSTALL_DO_STRIP)
      file(GLOB_RECURSE binaries \"\${private}/*\")
      foreach(binary IN LISTS binaries)
        if(NOT IS_SYMLINK \"\${binary}\" AND NOT binary MATCHES \"/python/\")
          execute_process(COMMAND \"${CMAKE_STRIP}\" \"\${binary}\" ERROR_QUIET)
        endif()
      endforeach()
    endif()
    # The build's own umask: programs keep its permissions.
    execute_process(COMMAND chmod -R u+w,a+rX \"\${private}\" COMMAND_ERROR_IS_FATAL ANY)
    file(MAKE_DIRECTORY \"\${bin}\")
    file(GLOB names RELATIVE \"\${out}\" \"\${out}/*\")
    foreach(name IN LISTS names)
      set(target \"\")
      if(IS_SYMLINK \"\${out}/\${name}\")
        file(READ_SYMLINK \"\${out}/\${name}\" target)
      endif()
      if(name STREQUAL peerlane OR target STREQUAL peerlane)
        file(CREATE_LINK \"\${to_private}/peerlane\" \"\${bin}/\${name}\" SYMBOLIC)
        list(APPEND CMAKE_INSTALL_MANIFEST_FILES \"\${CMAKE_INSTALL_PREFIX}/${CMAKE_INSTALL_BINDIR}/\${name}\")
      endif()
    endforeach()
  endif()
")
