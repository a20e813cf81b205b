# Precompiled headers. A target that links gcr_base or gcr_control automatically shares the set that fits
# the libraries that it links and the options of its folder. The sets have headers of other projects only:
# a change of one of ours would rebuild everything. Sources include what they use nevertheless: builds
# with clang, such as scripts/lint, have no precompiled headers, except that of the fuzzers.

# Sets `result` to the targets that `target` compiles against.
function(gcr_compiled_against target result)
  set(found "")
  get_property(open TARGET ${target} PROPERTY LINK_LIBRARIES)
  while(NOT "${open}" STREQUAL "")
    list(POP_FRONT open next)
    if(TARGET "${next}" AND NOT next IN_LIST found)
      list(APPEND found ${next})
      get_property(links TARGET ${next} PROPERTY INTERFACE_LINK_LIBRARIES)
      list(APPEND open ${links})
    endif()
  endwhile()
  set(${result} "${found}" PARENT_SCOPE)
endfunction()

# gcr_add_precompiled_set(NAME LIBRARY…): precompiles cmake/headers/NAME.h, with the flags of the calling folder.
function(gcr_add_precompiled_set name)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU AND NOT GCR_FUZZ)
    return()
  endif()
  add_library(gcr_headers_${name} OBJECT ${PROJECT_SOURCE_DIR}/cmake/headers/none.cc)
  target_link_libraries(gcr_headers_${name} PRIVATE ${ARGN})
  target_precompile_headers(gcr_headers_${name} PRIVATE ${PROJECT_SOURCE_DIR}/cmake/headers/${name}.h)
  # From a compiler cache it is used with headers that have other timestamps.
  target_compile_options(gcr_headers_${name} PRIVATE "$<$<CXX_COMPILER_ID:Clang>:SHELL:-Xclang -fno-pch-timestamp>")
endfunction()

# Sets `result` to the levels of optimisation among the options of `target`: the last one counts.
function(gcr_optimised target result)
  get_property(options TARGET ${target} PROPERTY COMPILE_OPTIONS)
  list(FILTER options INCLUDE REGEX "-O[0-9]")
  set(${result} "${options}" PARENT_SCOPE)
endfunction()

# Gives every target in and below `folder` that has no precompiled headers the set `base_set` if it
# links gcr_base, `control_set` if it links gcr_control. GCC accepts them only with the optimisation
# level with which they were compiled.
function(gcr_share_precompiled folder base_set control_set)
  if(NOT CMAKE_CXX_COMPILER_ID STREQUAL GNU AND NOT GCR_FUZZ)
    return()
  endif()
  get_property(targets DIRECTORY ${folder} PROPERTY BUILDSYSTEM_TARGETS)
  foreach(target IN LISTS targets)
    gcr_compiled_against(${target} links)
    get_property(own TARGET ${target} PROPERTY PRECOMPILE_HEADERS SET)
    gcr_optimised(${target} level)
    gcr_optimised(gcr_headers_${base_set} shared_level)
    if(own OR NOT level STREQUAL shared_level)
      continue()
    elseif(gcr_control IN_LIST links)
      target_precompile_headers(${target} REUSE_FROM gcr_headers_${control_set})
    elseif(gcr_base IN_LIST links)
      target_precompile_headers(${target} REUSE_FROM gcr_headers_${base_set})
    endif()
  endforeach()
  get_property(folders DIRECTORY ${folder} PROPERTY SUBDIRECTORIES)
  foreach(below IN LISTS folders)
    gcr_share_precompiled(${below} ${base_set} ${control_set})
  endforeach()
endfunction()
