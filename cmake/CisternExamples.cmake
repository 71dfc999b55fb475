# examples/*.cpp: each file is one program, which uses public headers only and is run as a test (exit status 0).
file(GLOB cistern_example_sources CONFIGURE_DEPENDS ${PROJECT_SOURCE_DIR}/examples/*.cpp)
foreach(source IN LISTS cistern_example_sources)
  get_filename_component(stem ${source} NAME_WE)
  set(target cistern_example_${stem})
  add_executable(${target} ${source})
  cistern_configure_internal(${target})
  # Examples show what a user can do: no internal include folder.
  set_target_properties(${target} PROPERTIES INCLUDE_DIRECTORIES "" OUTPUT_NAME ${stem}
                        RUNTIME_OUTPUT_DIRECTORY ${PROJECT_BINARY_DIR}/examples)
  target_link_libraries(${target} PRIVATE cistern)
  if(TARGET cistern_trace)
    target_link_libraries(${target} PRIVATE cistern_trace)
  endif()
  add_test(NAME example.${stem} COMMAND ${target})
  set_tests_properties(example.${stem} PROPERTIES LABELS examples TIMEOUT 300)
endforeach()
