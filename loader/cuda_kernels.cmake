# The kernels for the device, compiled by nvcc where there is one and embedded as an array. Without
# nvcc the library has none, and says so in its stats: pixels are then finished by torch.
option(HEADRACE_KERNELS "Compile the CUDA kernels, if nvcc is found" ON)
if(NOT HEADRACE_KERNELS)
  return()
endif()
find_program(HEADRACE_NVCC nvcc HINTS /usr/local/cuda/bin)
find_program(HEADRACE_BIN2C bin2c HINTS /usr/local/cuda/bin)
if(NOT HEADRACE_NVCC OR NOT HEADRACE_BIN2C)
  message(STATUS "headrace: no CUDA kernels, since there is no nvcc")
  return()
endif()
message(STATUS "headrace: CUDA kernels by ${HEADRACE_NVCC}")

# Code for the common architectures, and PTX of the oldest for those to come.
execute_process(COMMAND ${HEADRACE_NVCC} --list-gpu-arch
  OUTPUT_VARIABLE known_architectures COMMAND_ERROR_IS_FATAL ANY)
set(code "")
foreach(architecture 75 80 86 89 90 100 120)
  if(known_architectures MATCHES "compute_${architecture}\n")
    if(NOT code)
      list(APPEND code -gencode arch=compute_${architecture},code=compute_${architecture})
    endif()
    list(APPEND code -gencode arch=compute_${architecture},code=sm_${architecture})
  endif()
endforeach()

set(source ${CMAKE_CURRENT_SOURCE_DIR}/src/device_finish.cu)
set(fatbin ${CMAKE_CURRENT_BINARY_DIR}/device_finish.fatbin)
set(image ${CMAKE_CURRENT_BINARY_DIR}/device_kernel_image.inc)
add_custom_command(OUTPUT ${image}
  COMMAND ${HEADRACE_NVCC} -fatbin -std=c++17 -O3 ${code} -o ${fatbin} ${source}
  # Of 8-byte words, since the driver reads it in such.
  COMMAND ${HEADRACE_BIN2C} --const --type longlong --name kKernelImage ${fatbin} > ${image}
  DEPENDS ${source} ${CMAKE_CURRENT_SOURCE_DIR}/src/device_finish.h
  COMMENT "Compiling the CUDA kernels" VERBATIM)
target_sources(headrace PRIVATE ${image})
target_include_directories(headrace PRIVATE ${CMAKE_CURRENT_BINARY_DIR})
set_source_files_properties(src/device_kernel.cpp PROPERTIES
  COMPILE_DEFINITIONS HEADRACE_HAS_KERNEL_IMAGE OBJECT_DEPENDS ${image})
