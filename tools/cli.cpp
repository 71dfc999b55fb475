// Parsing, dispatch and exit status of the command line. See cli.hpp.
#include "cli.hpp"

#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <cstdio>
#include <exception>
#include <iostream>
#include <string>
#include <string_view>
#include <vector>

#include "cistern/error.hpp"
#include "cistern/trace.hpp"
#include "report/text.hpp"

namespace cistern::tools {
namespace {

void complain(std::string_view text) { fmt::print(stderr, "cistern: {}\n", report::clean_utf8(without_name(text))); }

// Whether all that was printed arrived; complains when not.
bool written() {
  std::cout.flush();
  if (std::cout && std::fflush(stdout) == 0 && std::ferror(stdout) == 0) return true;
  complain("cannot write to the standard output");
  return false;
}

}  // namespace

std::string_view without_name(std::string_view text) {
  constexpr std::string_view name = "cistern: ";
  return text.starts_with(name) ? text.substr(name.size()) : text;
}

int run(int argc, const char* const* argv) {
  CLI::App app{"Cistern: the memory layer for tensor programs", "cistern"};
  app.set_version_flag("--version", "cistern " CISTERN_VERSION);
  app.require_subcommand(1);
  app.fallthrough(false);
  int status = kOk;
  add_replay(app, status);
  add_plan(app, status);
  add_bench(app, status);
  add_convert(app, status);
  add_info(app, status);
  try {
    app.parse(argc, argv);
    return written() ? status : kFailed;
  } catch (const CLI::ParseError& error) {
    if (error.get_exit_code() == 0) {  // --help, --version.
      app.exit(error);
      return written() ? kOk : kFailed;
    }
    const std::vector<std::string> rest = app.remaining();
    if (app.get_subcommands().empty() && !rest.empty()) {
      complain(fmt::format("\"{}\" is not a subcommand; expected replay, plan, bench, convert or info", rest.front()));
    } else {
      const std::vector<CLI::App*> chosen = app.get_subcommands();
      const std::string command = chosen.empty() ? "" : " " + chosen.front()->get_name();
      complain(fmt::format("{}\nRun \"cistern{} --help\" for more.", error.what(), command));
    }
    return kBadInput;
  } catch (const UsageError& error) {
    complain(error.what());
  } catch (const TraceError& error) {
    complain(error.what());
  } catch (const cistern::invalid_argument& error) {
    complain(error.what());
  } catch (const std::exception& error) {
    complain(error.what());
    return kFailed;
  }
  return kBadInput;
}

}  // namespace cistern::tools
