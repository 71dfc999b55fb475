# Options and defaults. Only the top-level project changes defaults of CMake itself (build type, ccache); a project that
# includes Cistern keeps its own.
option(CISTERN_TOOLS "Build the command line (CLI11, fmt, nlohmann_json, zlib)" ${PROJECT_IS_TOP_LEVEL})
option(CISTERN_TESTS "Build the tests (GoogleTest)" ${PROJECT_IS_TOP_LEVEL})
option(CISTERN_EXAMPLES "Build the examples" ${PROJECT_IS_TOP_LEVEL})
option(CISTERN_INSTALL "Make the install rules" ${PROJECT_IS_TOP_LEVEL})
option(CISTERN_TORCH "Build the adapter for PyTorch and CuPy, libcistern_torch (Linux)" ${PROJECT_IS_TOP_LEVEL})
option(CISTERN_WERROR "Treat warnings as errors" OFF)
set(CISTERN_SANITIZE "" CACHE STRING "Value of -fsanitize= for everything, for example address,undefined or thread")

# Tools and tests stand on the trace library, so it follows them.
if(CISTERN_TOOLS OR CISTERN_TESTS)
  set(cistern_trace_default ON)
else()
  set(cistern_trace_default OFF)
endif()
option(CISTERN_TRACE "Build the trace library (fmt, nlohmann_json, zlib)" ${cistern_trace_default})
if((CISTERN_TOOLS OR CISTERN_TESTS) AND NOT CISTERN_TRACE)
  message(FATAL_ERROR "CISTERN_TOOLS and CISTERN_TESTS need CISTERN_TRACE=ON")
endif()

# The benchmarks are a part of the command line where Google Benchmark is installed.
set(cistern_bench_default OFF)
if(CISTERN_TOOLS AND PROJECT_IS_TOP_LEVEL)
  find_package(benchmark QUIET)
  if(benchmark_FOUND)
    set(cistern_bench_default ON)
  endif()
endif()
option(CISTERN_BENCH "Build the benchmarks into the command line (Google Benchmark)" ${cistern_bench_default})
if(CISTERN_BENCH AND NOT CISTERN_TRACE)
  message(FATAL_ERROR "CISTERN_BENCH needs CISTERN_TRACE=ON")
endif()

set(CISTERN_MLX_DIR "" CACHE PATH "Folder with the unpacked wheels mlx and mlx-cpu: builds a comparison with MLX")
if(CISTERN_MLX_DIR AND NOT CISTERN_TRACE)
  message(FATAL_ERROR "CISTERN_MLX_DIR needs CISTERN_TRACE=ON")
endif()

# One thread-pointer load instead of a call for each thread-local access. Turn it off when the library is loaded by
# dlopen() in a process whose static thread storage is used up, or with musl, which has none to spare.
option(CISTERN_TLS_INITIAL_EXEC "Compile position-independent code with -ftls-model=initial-exec (ELF only)" ON)

include(GNUInstallDirs)

if(PROJECT_IS_TOP_LEVEL)
  set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
  if(NOT CMAKE_BUILD_TYPE AND NOT CMAKE_CONFIGURATION_TYPES)
    set(CMAKE_BUILD_TYPE Release CACHE STRING "Release, Debug, RelWithDebInfo or MinSizeRel" FORCE)
  endif()
  find_program(CISTERN_CCACHE ccache)
  mark_as_advanced(CISTERN_CCACHE)
  if(CISTERN_CCACHE AND NOT CMAKE_CXX_COMPILER_LAUNCHER)
    set(CMAKE_CXX_COMPILER_LAUNCHER ${CISTERN_CCACHE})
  endif()
endif()
