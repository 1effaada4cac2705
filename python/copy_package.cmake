# Run at every build: the package's Python files, into the folder from which they are imported beside the build's output. The
# report comes there with the program, which starts it (tools/CMakeLists.txt).
file(COPY ${FROM}/ DESTINATION ${TO} PATTERN __pycache__ EXCLUDE PATTERN report EXCLUDE)
file(COPY ${MADE} DESTINATION ${TO})
