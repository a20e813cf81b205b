# Shared libraries that run with an older glibc than that of the machine that builds them.
#
# The linker requires the version of each function that it finds in the C library. So it gets stubs in place of the
# machine's glibc: libraries without code, which have the names, functions and versions of an older one. A function that
# no stub has is a link error.

# gcr_add_glibc(TARGET SYMBOLS): the INTERFACE library TARGET. A target that links it is linked with the stubs that the
# file SYMBOLS describes, and statically with the compiler's own libraries. What these need of a newer glibc, sources of
# TARGET must define.
#
# A line of SYMBOLS is the file name of a library, a version, and names of functions; a variable is NAME=BYTES. A library
# without names is needed nevertheless. # begins a comment.
function(gcr_add_glibc target symbols)
  set(folder ${CMAKE_CURRENT_BINARY_DIR}/${target})
  set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${symbols})
  file(STRINGS ${symbols} lines REGEX "^[^#]")
  foreach(line IN LISTS lines)
    separate_arguments(line)
    list(POP_FRONT line library version)
    list(APPEND libraries ${library})
    list(APPEND versions_${library} ${version})
    list(APPEND names_${library}_${version} ${line})
  endforeach()
  list(REMOVE_DUPLICATES libraries)

  foreach(library IN LISTS libraries)
    set(definitions "")
    set(script "")
    list(REMOVE_DUPLICATES versions_${library})
    foreach(version IN LISTS versions_${library})
      set(names ${names_${library}_${version}})
      list(APPEND definitions ${names})
      list(TRANSFORM names REPLACE "=.*" "")
      string(APPEND script "${version} {")
      foreach(name IN LISTS names)
        string(APPEND script " ${name};")
      endforeach()
      string(APPEND script " };\n")
    endforeach()
    set(when --as-needed)
    if(NOT definitions)
      set(when --no-as-needed)
    endif()
    # An option and not a library, because CMake would let programs of the build find the stub when they start.
    set(stub ${folder}/${library})
    list(APPEND inputs -Wl,--push-state,${when},${stub},--pop-state)
    list(APPEND stubs ${stub})
    gcr_add_stub(${target}_${library} ${stub} "${definitions}" "${script}")
  endforeach()

  # Without what is not called of the compiler's libraries, which would need much more of glibc.
  add_library(${target} INTERFACE)
  target_link_options(${target} INTERFACE -nodefaultlibs -Wl,--gc-sections)
  target_link_libraries(${target} INTERFACE
    -Wl,--start-group -l:libstdc++.a -l:libgcc.a -l:libgcc_eh.a ${inputs} -Wl,--end-group)
  set_property(TARGET ${target} PROPERTY INTERFACE_LINK_DEPENDS ${stubs})
endfunction()

# gcr_add_stub(TARGET STUB DEFINITIONS SCRIPT): the library STUB, a path, with functions and variables in the form of
# SYMBOLS, and the text of its version script.
function(gcr_add_stub target stub definitions script)
  list(TRANSFORM definitions REPLACE "^([^=]+)$" "FUNCTION(\\1)")
  list(TRANSFORM definitions REPLACE "^(.+)=(.+)$" "VARIABLE(\\1, \\2)")
  list(JOIN definitions "\n" definitions)
  configure_file(${PROJECT_SOURCE_DIR}/cmake/old_glibc.c.in ${stub}.c @ONLY)
  file(CONFIGURE OUTPUT ${stub}.map CONTENT "${script}" @ONLY)
  cmake_path(GET stub PARENT_PATH folder)
  cmake_path(GET stub FILENAME name)
  add_library(${target} SHARED ${stub}.c)
  set_target_properties(${target} PROPERTIES
    PREFIX "" OUTPUT_NAME ${name} SUFFIX "" LIBRARY_OUTPUT_DIRECTORY ${folder} LINK_DEPENDS ${stub}.map)
  target_link_libraries(${target} PRIVATE gcr_unsanitized)
  target_link_options(${target} PRIVATE -nostdlib -Wl,--version-script=${stub}.map)
endfunction()
