# libcistern_torch: one file to be loaded by PyTorch and by python/cistern. It holds the whole library and exports the C
# interface and the adapter's functions, nothing else. The C++ runtime stays a shared library: exceptions cross into
# PyTorch. PyTorch itself is not needed to build it.
if(NOT UNIX OR APPLE)
  message(STATUS "libcistern_torch is built on Linux only")
  return()
endif()
set(CISTERN_TORCH_DESTINATION ${CMAKE_INSTALL_LIBDIR} CACHE STRING "Where libcistern_torch is installed")
file(GLOB cistern_torch_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/src/adapters/torch/*.cpp)
# Compiled once more, for thread-local storage that dlopen() can always make.
add_library(cistern_torch SHARED ${cistern_torch_sources} ${cistern_sources})
cistern_configure_internal(cistern_torch)
target_include_directories(cistern_torch PRIVATE ${PROJECT_SOURCE_DIR}/include)
target_compile_definitions(cistern_torch PRIVATE CISTERN_DYNAMIC_TLS)
target_compile_options(cistern_torch PRIVATE -fno-semantic-interposition)
set(cistern_torch_symbols ${PROJECT_SOURCE_DIR}/cmake/torch.symbols)
set_target_properties(cistern_torch PROPERTIES POSITION_INDEPENDENT_CODE ON VISIBILITY_INLINES_HIDDEN ON
                      LINK_DEPENDS ${cistern_torch_symbols} LIBRARY_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/torch)
target_link_options(cistern_torch PRIVATE LINKER:--version-script=${cistern_torch_symbols} LINKER:-z,defs)
target_link_libraries(cistern_torch PRIVATE ${CMAKE_DL_LIBS} Threads::Threads)
