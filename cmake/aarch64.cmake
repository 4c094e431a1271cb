# Compiles for 64-bit Arm with Debian's g++-aarch64-linux-gnu, objects only (make arm). The libraries' headers do not
# depend on the processor, so the packages of this machine do.
set(CMAKE_SYSTEM_NAME Linux)
set(CMAKE_SYSTEM_PROCESSOR aarch64)
set(CMAKE_CXX_COMPILER aarch64-linux-gnu-g++)
set(PKG_CONFIG_EXECUTABLE pkg-config)
execute_process(COMMAND g++ -dumpmachine OUTPUT_VARIABLE hone_host OUTPUT_STRIP_TRAILING_WHITESPACE)
set(CMAKE_PREFIX_PATH /usr/lib/${hone_host}/cmake)
set(CMAKE_LIBRARY_PATH /usr/lib/${hone_host})
