// The HTML report: one self-contained page, no network, made from replays. Readable on a phone, in dark mode, in print
// and (tables and text) without scripts. Text that came from files is escaped. Does not: replay, choose what to show.
// Called by the tools. Pure functions; any thread.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "report/picture.hpp"
#include "report/recorded.hpp"
#include "trace/replay.hpp"

namespace cistern::report {

struct Document {
  std::string title;
  std::string subtitle;                      // Device, options, version.
  std::string command;                       // How to make it again.
  std::vector<trace::ReplayResult> results;  // Trace by trace, allocators in the same order for each.
  std::map<std::string, Recorded> recorded;  // By trace.
  std::vector<Picture> pictures;             // One a trace: of the first allocator.
};

std::string render(const Document& document);

}  // namespace cistern::report
