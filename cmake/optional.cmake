# Dependencies that are needed only for a part of what is built or tested. They are searched for at each configuration,
# and CMake configures again before the next build when packages were installed or removed.
foreach(changes /var/lib/dpkg/status /usr/local)
  if(EXISTS ${changes})
    set_property(DIRECTORY APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${changes})
  endif()
endforeach()

# gcr_find_optional(path|library|program VARIABLE LEFT_OUT ARGUMENT…): find_* with ARGUMENTs. If that finds nothing,
# a line says what is left out. With an empty LEFT_OUT there is no line, because another one says it.
macro(gcr_find_optional kind variable left_out)
  unset(${variable} CACHE)
  cmake_language(CALL find_${kind} ${variable} ${ARGN})
  if(NOT ${variable} AND NOT "${left_out}" STREQUAL "")
    message(STATUS "left out: ${left_out}")
  endif()
endmacro()

gcr_find_optional(path GCR_SLURM_INCLUDE_DIR "spank_gcr, gcr-slurm-jobs (no slurm/spank.h: libslurm-dev)" slurm/spank.h)
gcr_find_optional(library GCR_SLURM_LIBRARY "" slurm)
if(BUILD_TESTING)
  # The HIP table is checked against HIP 5.2.
  gcr_find_optional(path GCR_HIP_INCLUDE_DIR "the check of the HIP table (no hip/hip_version.h: libamdhip64-dev)"
                    hip/hip_version.h)
  gcr_find_optional(library GCR_HIP_LIBRARY "" amdhip64)
  gcr_find_optional(program GCR_CLANG_FOR_AMD "kernels compiled for AMD GPUs (no Clang from 17 to 20: clang-19)"
                    NAMES clang++-19 clang++-20 clang++-18 clang++-17)
  # A CUDA toolkit is never needed.
  set(toolkit ${CMAKE_CUDA_TOOLKIT_ROOT_DIR} $ENV{CUDA_HOME} /usr/local/cuda)
  gcr_find_optional(path GCR_CUDA_INCLUDE_DIR "the check of the driver table against CUDA's headers (no cuda.h)"
                    cuda.h HINTS ${toolkit} PATH_SUFFIXES include)
  gcr_find_optional(program GCR_NVCC "the check of PTX against its source (no nvcc)" nvcc HINTS ${toolkit} PATH_SUFFIXES bin)
  gcr_find_optional(program GCR_PTXAS "the check that PTX assembles (no ptxas)" ptxas HINTS ${toolkit} PATH_SUFFIXES bin)
endif()
