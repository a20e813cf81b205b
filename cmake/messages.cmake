# gcr_add_messages(TARGET FILE…): a library of Protobuf messages; FILEs are of the current folder, and
# FILE.proto's header is included as folder/FILE.pb.h. (protobuf_generate puts it elsewhere from one
# release of CMake to the next.)
function(gcr_add_messages target)
  file(RELATIVE_PATH folder ${PROJECT_SOURCE_DIR} ${CMAKE_CURRENT_SOURCE_DIR})
  foreach(file ${ARGN})
    string(REPLACE .proto "" name ${file})
    set(generated ${PROJECT_BINARY_DIR}/${folder}/${name}.pb)
    add_custom_command(
      OUTPUT ${generated}.cc ${generated}.h
      COMMAND protobuf::protoc -I ${PROJECT_SOURCE_DIR} --cpp_out=${PROJECT_BINARY_DIR}
              ${folder}/${file}
      DEPENDS ${ARGN} protobuf::protoc
      WORKING_DIRECTORY ${PROJECT_SOURCE_DIR}
      COMMENT "Compiling ${folder}/${file}" VERBATIM)
    list(APPEND sources ${generated}.cc ${generated}.h)
  endforeach()
  add_library(${target} STATIC ${sources})
  # The files that protoc writes all have the same names in them.
  set_target_properties(${target} PROPERTIES UNITY_BUILD OFF)
  target_include_directories(${target} SYSTEM PUBLIC ${PROJECT_BINARY_DIR})
  target_link_libraries(${target} PUBLIC protobuf::libprotobuf)
  # The files that protoc writes are not fuzzed, and take minutes to instrument.
  if(GCR_FUZZ)
    target_compile_options(${target} PRIVATE -fno-sanitize=all -O0)
  endif()
endfunction()

# gcr_add_python_messages(TARGET FILE): makes FILE_pb2.py of FILE.proto of the current folder, in python/gcr_moves of the
# build folder.
function(gcr_add_python_messages target file)
  string(REPLACE .proto "" name ${file})
  set(folder ${PROJECT_BINARY_DIR}/python/gcr_moves)
  file(MAKE_DIRECTORY ${folder})
  add_custom_command(
    OUTPUT ${folder}/${name}_pb2.py
    COMMAND protobuf::protoc -I ${CMAKE_CURRENT_SOURCE_DIR} --python_out=${folder} ${file}
    DEPENDS ${file} protobuf::protoc
    WORKING_DIRECTORY ${CMAKE_CURRENT_SOURCE_DIR}
    COMMENT "Compiling ${file} for Python" VERBATIM)
  add_custom_target(${target} ALL DEPENDS ${folder}/${name}_pb2.py)
endfunction()
