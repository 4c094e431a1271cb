# Parquet through Apache Arrow, where its headers and libraries are (tools/setup.sh parquet fetches them): a module that
# the program loads from lib/ beside itself when it reads its first .parquet file.
set(HONE_ARROW ${CMAKE_SOURCE_DIR}/third_party/arrow CACHE PATH "Apache Arrow: include/ and lib/")
file(GLOB HONE_ARROW_LIBRARIES ${HONE_ARROW}/lib/libparquet.so* ${HONE_ARROW}/lib/libarrow.so*)
list(LENGTH HONE_ARROW_LIBRARIES count)
if(count LESS 2 OR NOT EXISTS ${HONE_ARROW}/include/parquet/arrow/reader.h)
  message(STATUS "Parquet: no (make parquet fetches what it needs)")
  return()
endif()
add_library(hone_parquet MODULE src/data/parquet_module.cpp src/core/sip_hash.cpp)
if(NOT HONE_SANITIZE)  # a missing symbol is an error here, not when the first .parquet file is read
  target_link_options(hone_parquet PRIVATE -Wl,--no-undefined)
endif()
target_link_libraries(hone_parquet PRIVATE hone_flags nlohmann_json::nlohmann_json ${HONE_ARROW_LIBRARIES})
target_include_directories(hone_parquet SYSTEM PRIVATE ${HONE_ARROW}/include)
set_target_properties(hone_parquet PROPERTIES PREFIX "" CXX_VISIBILITY_PRESET hidden
  LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/lib BUILD_RPATH "$ORIGIN;${HONE_ARROW}/lib")
if(TARGET hone)
  add_dependencies(hone hone_parquet)
endif()
if(TARGET hone_data_test)
  add_dependencies(hone_data_test hone_parquet)
endif()
message(STATUS "Parquet: yes")
