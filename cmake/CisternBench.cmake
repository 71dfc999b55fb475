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

# bench/gpu/*.cpp: the program of scripts/gpu_round.sh. It opens the vendor's driver when it runs.
if(TARGET cistern_trace)
  file(GLOB cistern_gpu_round_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/bench/gpu/*.cpp)
  add_executable(cistern_gpu_round ${cistern_gpu_round_sources})
  cistern_configure_internal(cistern_gpu_round)
  target_include_directories(cistern_gpu_round PRIVATE ${PROJECT_SOURCE_DIR}/bench/gpu)
  target_link_libraries(cistern_gpu_round PRIVATE cistern_trace cistern ${CMAKE_DL_LIBS})
endif()
