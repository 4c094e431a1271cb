# libhone: the C interface of include/hone/hone.h as a shared library, which exports nothing else but the program's main
# function for the launcher of releases; what `cmake --install` writes, find_package(hone) and pkg-config find.
include(GNUInstallDirs)
add_library(hone_shared SHARED src/library/hone_shared.cpp)
add_library(hone::hone ALIAS hone_shared)
target_link_libraries(hone_shared PRIVATE hone_library)
target_link_options(hone_shared PRIVATE -Wl,--version-script=${CMAKE_SOURCE_DIR}/cmake/libhone.map
  $<$<NOT:$<BOOL:${HONE_SANITIZE}>>:-Wl,--no-undefined>)
target_include_directories(hone_shared INTERFACE $<BUILD_INTERFACE:${CMAKE_SOURCE_DIR}/include> $<INSTALL_INTERFACE:include>)
set_target_properties(hone_shared PROPERTIES OUTPUT_NAME hone EXPORT_NAME hone SOVERSION 1
  LINK_DEPENDS ${CMAKE_SOURCE_DIR}/cmake/libhone.map)
if(HONE_STATIC)
  target_sources(hone_shared PRIVATE src/app/older_libc_static.cpp)
  target_link_options(hone_shared PRIVATE -static-libstdc++ -static-libgcc)
endif()

install(TARGETS hone)
install(TARGETS hone_shared EXPORT hone)
install(FILES ${CMAKE_SOURCE_DIR}/include/hone/hone.h DESTINATION ${CMAKE_INSTALL_INCLUDEDIR}/hone)
install(EXPORT hone NAMESPACE hone:: FILE hone-config.cmake DESTINATION ${CMAKE_INSTALL_LIBDIR}/cmake/hone)
configure_file(${CMAKE_SOURCE_DIR}/cmake/hone.pc.in ${CMAKE_BINARY_DIR}/hone.pc @ONLY)
install(FILES ${CMAKE_BINARY_DIR}/hone.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
