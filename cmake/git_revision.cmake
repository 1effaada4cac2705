# Run at every build (src/measure/CMakeLists.txt): writes OUTPUT with the revision of SOURCE_DIR, only when it changed,
# so that a build without changes recompiles nothing.
set(revision "unknown")
find_package(Git QUIET)
if(Git_FOUND)
  execute_process(COMMAND ${GIT_EXECUTABLE} -C ${SOURCE_DIR} describe --always --dirty --abbrev=12
    OUTPUT_VARIABLE described OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET RESULT_VARIABLE failed)
  if(NOT failed AND described)
    set(revision ${described})
  endif()
endif()
set(text "// Written by cmake/git_revision.cmake at every build.\nnamespace pl {\nextern const char* const kGitRevision;\nconst char* const kGitRevision = \"${revision}\";\n}\n")
if(EXISTS ${OUTPUT})
  file(READ ${OUTPUT} old)
endif()
if(NOT "${old}" STREQUAL "${text}")
  file(WRITE ${OUTPUT} "${text}")
endif()
