# bench/*.cpp: one library (cistern_bench), the suite behind `cistern bench`; the tools see CISTERN_HAS_BENCHMARKS when it is
# there. mimalloc and jemalloc are opened with dlopen() by the benchmarks that compare with them, since linking either
# would replace malloc for the whole process.
find_package(benchmark REQUIRED)
file(GLOB cistern_bench_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/*.cpp)
if(cistern_bench_sources AND TARGET cistern_trace)
  add_library(cistern_bench STATIC ${cistern_bench_sources})
  cistern_configure_internal(cistern_bench)
  target_include_directories(cistern_bench PUBLIC ${PROJECT_SOURCE_DIR}/bench)
  target_compile_definitions(cistern_bench PUBLIC CISTERN_HAS_BENCHMARKS
                             PRIVATE CISTERN_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
  target_link_libraries(cistern_bench PUBLIC cistern_trace cistern benchmark::benchmark
                        PRIVATE fmt::fmt nlohmann_json::nlohmann_json ${CMAKE_DL_LIBS})
endif()
