# Run by every build: writes version.cc only if it has changed, so that after a commit only one small
# source is compiled and the programs are linked.
#   cmake -D source_dir=… -D output=… -D release=… -D commit=… -P cmake/version.cmake
if(NOT commit)
  execute_process(
    COMMAND git --no-optional-locks -C ${source_dir} describe --always --dirty --abbrev=12 --exclude=*
    OUTPUT_VARIABLE commit OUTPUT_STRIP_TRAILING_WHITESPACE ERROR_QUIET)
  if(NOT commit)
    set(commit unknown)
  endif()
endif()
configure_file(${source_dir}/src/base/version.cc.in ${output} @ONLY)
