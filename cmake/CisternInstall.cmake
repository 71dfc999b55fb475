# Install rules: headers, libraries, package config (find_package), pkg-config, the command line.
# The trace library is a component: find_package(cistern COMPONENTS trace) looks for what it needs.
include(CMakePackageConfigHelpers)

set(cistern_package_dir ${CMAKE_INSTALL_LIBDIR}/cmake/cistern)

install(DIRECTORY ${PROJECT_SOURCE_DIR}/include/cistern DESTINATION ${CMAKE_INSTALL_INCLUDEDIR})
install(TARGETS cistern EXPORT cistern-targets)
install(EXPORT cistern-targets NAMESPACE cistern:: DESTINATION ${cistern_package_dir})
if(TARGET cistern_trace)
  install(TARGETS cistern_trace EXPORT cistern-trace-targets)
  install(EXPORT cistern-trace-targets NAMESPACE cistern:: DESTINATION ${cistern_package_dir})
endif()
if(TARGET cistern_torch)
  install(TARGETS cistern_torch LIBRARY DESTINATION ${CISTERN_TORCH_DESTINATION} COMPONENT python)
endif()
if(TARGET cistern_cli)
  install(TARGETS cistern_cli)
endif()
install(FILES ${PROJECT_SOURCE_DIR}/LICENSE ${PROJECT_SOURCE_DIR}/NOTICE DESTINATION ${CMAKE_INSTALL_DOCDIR})

configure_package_config_file(${PROJECT_SOURCE_DIR}/cmake/cistern-config.cmake.in
                              ${PROJECT_BINARY_DIR}/cistern-config.cmake INSTALL_DESTINATION ${cistern_package_dir})
# Before 1.0 a minor version may change the interface.
write_basic_package_version_file(${PROJECT_BINARY_DIR}/cistern-config-version.cmake COMPATIBILITY SameMinorVersion)
install(FILES ${PROJECT_BINARY_DIR}/cistern-config.cmake ${PROJECT_BINARY_DIR}/cistern-config-version.cmake
        DESTINATION ${cistern_package_dir})

# pkg-config: paths are written relative to the file, so that the installed tree can be moved.
file(RELATIVE_PATH cistern_pc_prefix "/p/${CMAKE_INSTALL_LIBDIR}/pkgconfig" "/p")
get_target_property(cistern_type cistern TYPE)
set(cistern_private_libs "${CMAKE_THREAD_LIBS_INIT}")
if(CMAKE_DL_LIBS)
  string(APPEND cistern_private_libs " -l${CMAKE_DL_LIBS}")
endif()
# The C++ library must be linked by the C++ compiler; an archive needs its system libraries named without --static, too.
if(cistern_type STREQUAL "STATIC_LIBRARY")
  set(cistern_pc_libs "${cistern_private_libs}")
  set(cistern_pc_private_libs "")
else()
  set(cistern_pc_libs "")
  set(cistern_pc_private_libs "${cistern_private_libs}")
endif()
configure_file(${PROJECT_SOURCE_DIR}/cmake/cistern.pc.in ${PROJECT_BINARY_DIR}/cistern.pc @ONLY)
install(FILES ${PROJECT_BINARY_DIR}/cistern.pc DESTINATION ${CMAKE_INSTALL_LIBDIR}/pkgconfig)
