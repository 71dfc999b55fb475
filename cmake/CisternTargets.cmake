# What every target of the project has in common: language level, warnings, sanitizers, include folders.

# Flags for code of this project. Warnings stay out of projects that include Cistern.
function(cistern_configure_internal target)
  target_compile_features(${target} PUBLIC cxx_std_20)
  set_target_properties(${target} PROPERTIES CXX_EXTENSIONS OFF)
  target_include_directories(${target} PRIVATE ${PROJECT_SOURCE_DIR}/src)
  if(PROJECT_IS_TOP_LEVEL AND CMAKE_CXX_COMPILER_ID MATCHES "GNU|Clang")
    target_compile_options(${target} PRIVATE -Wall -Wextra -Wpedantic -Wconversion)
    # g++ 12 warns of overlapping copies inside its own std::string (bug 105651).
    if(CMAKE_CXX_COMPILER_ID STREQUAL "GNU" AND CMAKE_CXX_COMPILER_VERSION VERSION_LESS 13)
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-Wno-restrict>)
    endif()
    if(CISTERN_WERROR)
      target_compile_options(${target} PRIVATE -Werror)
    endif()
  endif()
  if(CISTERN_SANITIZE)
    # Tests in C go without: their compiler need not be of the same house as that of C++.
    target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fsanitize=${CISTERN_SANITIZE}>
                           $<$<COMPILE_LANGUAGE:CXX>:-fno-omit-frame-pointer>
                           $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize-recover=all>)
    # Vendor libraries are called through own declarations, whose opaque types have other names.
    if(CISTERN_SANITIZE MATCHES "undefined" AND CMAKE_CXX_COMPILER_ID MATCHES "Clang")
      target_compile_options(${target} PRIVATE $<$<COMPILE_LANGUAGE:CXX>:-fno-sanitize=function>)
    endif()
    target_link_options(${target} PUBLIC -fsanitize=${CISTERN_SANITIZE})
  endif()
endfunction()

# A library that is installed. Always position-independent, so that the archive can be linked into a shared object (a
# Python module, a plug-in).
#
# Visibility: all symbols of the shared library are visible. The tests use internal classes in every kind of build, and the
# exception types must be one type on both sides. What is promised to users is include/cistern/ alone; so the version of
# the shared library (SOVERSION) changes with every minor version before 1.0. Members defined in a class are hidden, and
# calls inside the library are not interposable, so visibility costs no speed.
function(cistern_configure_library target)
  cistern_configure_internal(${target})
  target_include_directories(${target} PUBLIC $<BUILD_INTERFACE:${PROJECT_SOURCE_DIR}/include>
                             $<INSTALL_INTERFACE:${CMAKE_INSTALL_INCLUDEDIR}>)
  set_target_properties(${target} PROPERTIES POSITION_INDEPENDENT_CODE ON VISIBILITY_INLINES_HIDDEN ON
                        VERSION ${PROJECT_VERSION} SOVERSION ${PROJECT_VERSION_MAJOR}.${PROJECT_VERSION_MINOR})
  if(UNIX AND NOT APPLE)
    target_compile_options(${target} PRIVATE -fno-semantic-interposition)
    if(CISTERN_TLS_INITIAL_EXEC)
      target_compile_options(${target} PRIVATE -ftls-model=initial-exec)
    endif()
  endif()
endfunction()
