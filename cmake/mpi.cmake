# Several CPU ranks through MPI, where its headers are (tools/setup.sh test installs Debian's Open MPI): a module that the
# program loads from lib/ beside itself when ranks start.
pkg_check_modules(OPENMPI IMPORTED_TARGET ompi-c)
if(NOT OPENMPI_FOUND)
  message(STATUS "Several CPU ranks: no (Open MPI was not found: libopenmpi-dev)")
  return()
endif()
add_library(hone_mpi MODULE src/dist/mpi_module.cpp)
target_link_libraries(hone_mpi PRIVATE hone_flags PkgConfig::OPENMPI)
set_target_properties(hone_mpi PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib)
target_compile_definitions(hone_mpi PRIVATE OMPI_SKIP_MPICXX)
foreach(target hone hone_dist_test)
  if(TARGET ${target})
    add_dependencies(${target} hone_mpi)
  endif()
endforeach()
message(STATUS "Several CPU ranks: Open MPI ${OPENMPI_VERSION}")
