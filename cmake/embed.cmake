# Turns files into C++ sources, so that the report is one file and the program needs nothing beside it.
#
#   cistern_embed(<target> <namespace> <name> <file>)
#       Adds a source to the target that defines `extern const std::string_view <name>` in the namespace. The value is
#       empty when <file> is empty: an optional file that was not found is no error.
#   cistern_embed_report(<target>)
#       What src/report needs: its own style sheet and script, and Chart.js where the system has it (Debian:
#       libjs-chart.js). CISTERN_CHART_JS names another copy, or is set to OFF to leave it out; then the report draws its
#       charts itself.
#
# The same file is the script that writes the source (cmake -DIN=... -DOUT=... -DNAMESPACE=... -DNAME=... -P embed.cmake).

if(CMAKE_SCRIPT_MODE_FILE)
  set(bytes "0")
  set(count 0)
  if(IN)
    file(READ "${IN}" hex HEX)
    string(LENGTH "${hex}" count)
    math(EXPR count "${count} / 2")
    string(REGEX REPLACE "(................................................................)" "\\1\n" hex "${hex}")
    string(REGEX REPLACE "([0-9a-f][0-9a-f])" "0x\\1," bytes "${hex}")
    if(count EQUAL 0)
      set(bytes "0")
    endif()
  endif()
  file(WRITE "${OUT}" "// Made by cmake/embed.cmake; not to be edited.
#include <string_view>

namespace ${NAMESPACE} {
namespace {
constexpr unsigned char kBytes[] = {
${bytes}
};
}  // namespace

extern const std::string_view ${NAME};
const std::string_view ${NAME}{reinterpret_cast<const char*>(kBytes), ${count}};
}  // namespace ${NAMESPACE}
")
  return()
endif()

set(CISTERN_EMBED_SCRIPT ${CMAKE_CURRENT_LIST_FILE})

function(cistern_embed target namespace name file)
  set(output ${PROJECT_BINARY_DIR}/embedded/${name}.cpp)
  set(dependencies ${CISTERN_EMBED_SCRIPT})
  if(file)
    list(APPEND dependencies ${file})
  endif()
  add_custom_command(
    OUTPUT ${output}
    COMMAND ${CMAKE_COMMAND} "-DIN=${file}" -DOUT=${output} -DNAMESPACE=${namespace} -DNAME=${name} -P
            ${CISTERN_EMBED_SCRIPT}
    DEPENDS ${dependencies}
    COMMENT "Embedding ${name}"
    VERBATIM)
  target_sources(${target} PRIVATE ${output})
endfunction()

function(cistern_embed_report target)
  find_file(CISTERN_CHART_JS NAMES chart.min.js chart.umd.js
            PATHS /usr/share/javascript/chart.js /usr/local/share/javascript/chart.js
                  /opt/homebrew/share/javascript/chart.js
            DOC "Chart.js for the HTML report; OFF leaves it out")
  set(chart "${CISTERN_CHART_JS}")
  if(NOT chart OR NOT EXISTS "${chart}")
    set(chart "")
  endif()
  cistern_embed(${target} cistern::report page_style ${PROJECT_SOURCE_DIR}/src/report/page.css)
  cistern_embed(${target} cistern::report page_script ${PROJECT_SOURCE_DIR}/src/report/page.js)
  cistern_embed(${target} cistern::report chart_script "${chart}")
endfunction()
