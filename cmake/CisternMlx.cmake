# cistern_mlx_replay: the given traces through MLX's own CPU allocator beside Cistern's. CISTERN_MLX_DIR is a folder in
# which the wheels `mlx` and `mlx-cpu` of one version were unpacked (both are zip files); nothing of them is kept here.
find_path(CISTERN_MLX_INCLUDE mlx/allocator.h PATHS ${CISTERN_MLX_DIR}/mlx/include NO_DEFAULT_PATH)
find_library(CISTERN_MLX_LIBRARY mlx PATHS ${CISTERN_MLX_DIR}/mlx/lib NO_DEFAULT_PATH)
if(NOT CISTERN_MLX_INCLUDE OR NOT CISTERN_MLX_LIBRARY)
  message(FATAL_ERROR "CISTERN_MLX_DIR=${CISTERN_MLX_DIR}: expected mlx/include/mlx/allocator.h and mlx/lib/libmlx.so, "
                      "as the unpacked wheels mlx and mlx-cpu have them")
endif()
add_executable(cistern_mlx_replay ${PROJECT_SOURCE_DIR}/bench/mlx/mlx_replay.cpp)
cistern_configure_internal(cistern_mlx_replay)
target_include_directories(cistern_mlx_replay SYSTEM PRIVATE ${CISTERN_MLX_INCLUDE})
target_compile_definitions(cistern_mlx_replay PRIVATE CISTERN_SOURCE_DIR="${PROJECT_SOURCE_DIR}")
target_link_libraries(cistern_mlx_replay PRIVATE cistern_trace cistern ${CISTERN_MLX_LIBRARY})
