// `cistern convert`: a trace from one format into another.
#include <fmt/format.h>

#include <CLI/CLI.hpp>
#include <filesystem>
#include <memory>
#include <optional>
#include <stdexcept>

#include "cistern/trace.hpp"
#include "cli.hpp"
#include "report/text.hpp"
#include "trace/convert.hpp"
#include "trace/sink.hpp"
#include "values.hpp"
#include "write_file.hpp"

namespace cistern::tools {
namespace {

struct Arguments {
  std::string input, output, format;
  std::optional<std::uint32_t> device;
  bool older = false;
};

int convert(const Arguments& arguments) {
  TraceWriteOptions write;
  if (arguments.format == "csv")
    write.format = TraceFormat::csv;
  else if (arguments.format == "rmm")
    write.format = TraceFormat::rmm_log;
  else if (arguments.format == "snapshot")
    write.format = TraceFormat::torch_snapshot;
  else if (arguments.format == "perfetto")
    write.format = TraceFormat::perfetto_json;
  else if (arguments.format.empty())
    trace_format_of(arguments.output);  // Refused before the input is read.
  check_writable(arguments.output);
  check_no_input(arguments.output, {arguments.input});
  TraceReadOptions read;
  read.device = arguments.device;
  read.older_blocks = arguments.older;
  TraceFormat format{};
  const Trace trace = trace::read_trace(arguments.input, read, format);
  if (format != TraceFormat::torch_snapshot && (arguments.device || arguments.older)) {
    throw UsageError(fmt::format("{}: {} is no snapshot; expected a PyTorch snapshot",
                                 arguments.device ? "--snapshot-device" : "--older", arguments.input));
  }
  try {
    write_trace(arguments.output, trace, write);
  } catch (const trace::WriteError& error) {  // Nothing is wrong with the input.
    throw std::runtime_error(error.what());
  }
  fmt::print(stderr, "{}: {} events, {} blocks, peak {} live\n", report::clean_utf8(arguments.output),
             report::format_count(trace.events.size()), report::format_count(trace.allocations),
             report::format_bytes(trace.peak_live_bytes));
  if (trace.failed_allocations > 0) {
    fmt::print(stderr, "{} requests failed in the recording; they are left out\n",
               report::format_count(trace.failed_allocations));
  }
  if (trace.older_blocks > 0) {
    fmt::print(stderr, "{} blocks are older than the recording; they come first\n",
               report::format_count(trace.older_blocks));
  }
  if (trace.left_out_bytes > 0) {
    fmt::print(stderr, "{} lived all through the recording and are left out; --older takes them in\n",
               report::format_bytes(trace.left_out_bytes));
  }
  return kOk;
}

}  // namespace

void add_convert(CLI::App& app, int& status) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand("convert", "Convert a trace into another format");
  command->add_option("INPUT", arguments->input, "csv, csv.gz, RMM log or PyTorch snapshot; recognised by content")
      ->required()
      ->check(some("a file"))
      ->type_name("");
  command
      ->add_option(
          "OUTPUT", arguments->output,
          "The name says the format: .csv, .rmm or .log, .pickle (memory_viz), .json (Perfetto); each with .gz as well")
      ->required()
      ->check(some("a file"))
      ->type_name("");
  command->add_option("--format", arguments->format, "csv, rmm, snapshot or perfetto, whatever the name says")
      ->check(one_of({"csv", "rmm", "snapshot", "perfetto"}))
      ->type_name("FORMAT");
  command->add_option("--snapshot-device", arguments->device, "Which device of a PyTorch snapshot")
      ->transform(whole(0, UINT32_MAX))
      ->type_name("N");
  command->add_flag("--older", arguments->older,
                    "Of a PyTorch snapshot: also take blocks that lived all through the recording");
  command->callback([arguments, &status] { status = convert(*arguments); });
}

}  // namespace cistern::tools
