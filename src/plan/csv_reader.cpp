// Reads planning problems from CSV. Understands RFC 4180 quoting, both line ends and a byte order mark; says file, line
// and what was expected. No state, no locking; any code may call it.
#include <algorithm>
#include <charconv>
#include <filesystem>
#include <fstream>
#include <system_error>
#include <unordered_map>

#include "cistern/error.hpp"
#include "cistern/plan.hpp"

namespace cistern {
namespace {

enum Column { kId, kLower, kUpper, kSize, kAlignment, kHint, kOffset, kGaps, kColumns };

constexpr const char* kColumnNames[kColumns] = {"id", "lower", "upper", "size", "alignment", "hint", "offset", "gaps"};

// A byte that a terminal cannot show.
std::string hex(char c) {
  constexpr const char* kDigits = "0123456789abcdef";
  const auto byte = static_cast<unsigned char>(c);
  return std::string("\\x") + kDigits[byte / 16] + kDigits[byte % 16];
}

// Bytes of the character of UTF-8 at the start of `text`; 0: there is none.
std::size_t character(std::string_view text) {
  const auto lead = static_cast<unsigned char>(text[0]);
  const std::size_t bytes = lead < 0x80 ? 1 : lead < 0xC2 ? 0 : lead < 0xE0 ? 2 : lead < 0xF0 ? 3 : lead < 0xF5 ? 4 : 0;
  if (bytes > text.size()) return 0;
  for (std::size_t k = 1; k < bytes; ++k) {
    if ((static_cast<unsigned char>(text[k]) & 0xC0) != 0x80) return 0;
  }
  // Control characters, those from 0x80 to 0x9F among them.
  if (lead < 0x20 || lead == 0x7F || (lead == 0xC2 && static_cast<unsigned char>(text[1]) < 0xA0)) return 0;
  return bytes;
}

// Text from a file, shortened, and what cannot be printed as \xNN: a message stays one readable line.
std::string shown(std::string_view text) {
  constexpr std::size_t kMost = 40;
  std::string out = "'";
  std::size_t at = 0;
  while (at < text.size() && at < kMost) {
    const std::size_t bytes = character(text.substr(at));
    out += bytes == 0 ? hex(text[at]) : std::string(text.substr(at, bytes));
    at += std::max<std::size_t>(bytes, 1);
  }
  return out + (at < text.size() ? "...'" : "'");
}

class Reader {
 public:
  Reader(std::string_view text, const std::string& name) : text_(text), name_(name) {
    if (text_.starts_with("\xEF\xBB\xBF")) text_.remove_prefix(3);
  }

  PlanProblem read() {
    check_text();
    read_header();
    PlanProblem problem;
    while (next_record()) {
      if (fields_.size() == 1 && fields_[0].empty()) continue;  // a blank line
      if (fields_.size() != columns_.size()) {
        fail(record_line_, "expected " + std::to_string(columns_.size()) + " fields as in the header, found " +
                               std::to_string(fields_.size()));
      }
      lines_.push_back(record_line_);
      add_buffer(problem);
    }
    check_ids(problem);
    if (const auto fault = check_problem(problem)) {
      const std::size_t i = std::min(fault->buffer, lines_.size() - 1);
      fail(lines_[i], "buffer " + shown(problem.ids[i]) + ": " + fault->text);
    }
    return problem;
  }

 private:
  [[noreturn]] void fail(std::size_t line, const std::string& what) const {
    throw invalid_argument(name_ + ":" + std::to_string(line) + ": " + what);
  }

  void check_text() const {
    if (text_.starts_with("\x1F\x8B")) {
      fail(1, "expected csv text, found gzip data; unpack it first (cistern plan reads it as it is)");
    }
    const std::size_t zero = text_.find('\0');
    if (zero == std::string_view::npos) return;
    const auto lines = std::count(text_.begin(), text_.begin() + static_cast<std::ptrdiff_t>(zero), '\n');
    fail(static_cast<std::size_t>(lines) + 1, "expected csv text (id,lower,upper,size), found binary data: byte " +
                                                  std::to_string(zero) + " is " + hex('\0'));
  }

  // One record into fields_; false at the end of the text. A quoted field may hold commas, quotes (doubled), line ends.
  bool next_record() {
    fields_.clear();
    if (at_ >= text_.size()) return false;
    record_line_ = line_;
    std::string field;
    for (;;) {
      field.clear();
      if (at_ < text_.size() && text_[at_] == '"') {
        read_quoted(field);
      } else {
        while (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n' && text_[at_] != '\r') {
          if (text_[at_] == '"') fail(line_, "expected no quote inside an unquoted field");
          field += text_[at_++];
        }
      }
      fields_.push_back(field);
      if (at_ >= text_.size()) return true;
      const char c = text_[at_++];
      if (c == ',') continue;
      if (c == '\r') {
        if (at_ >= text_.size() || text_[at_] != '\n') fail(line_, "expected a line feed after a carriage return");
        ++at_;
      }
      ++line_;
      return true;
    }
  }

  void read_quoted(std::string& field) {
    const std::size_t opened = line_;
    for (++at_;; ++at_) {
      if (at_ >= text_.size()) fail(opened, "expected a closing quote");
      if (text_[at_] == '"') {
        if (at_ + 1 >= text_.size() || text_[at_ + 1] != '"') break;
        ++at_;
      }
      if (text_[at_] == '\n') ++line_;
      field += text_[at_];
    }
    ++at_;
    if (at_ < text_.size() && text_[at_] != ',' && text_[at_] != '\n' && text_[at_] != '\r') {
      fail(line_, "expected a comma or the end of the line after a closing quote");
    }
  }

  void read_header() {
    if (!next_record()) fail(1, "expected a header: id,lower,upper,size");
    static const std::unordered_map<std::string, Column> known = {
        {"id", kId},       {"buffer", kId},     {"buffer_id", kId}, {"lower", kLower}, {"begin", kLower},
        {"start", kLower}, {"upper", kUpper},   {"end", kUpper},    {"size", kSize},   {"alignment", kAlignment},
        {"hint", kHint},   {"offset", kOffset}, {"gaps", kGaps}};
    bool present[kColumns] = {};
    const auto named = [&](Column c) {
      return static_cast<std::size_t>(std::find(columns_.begin(), columns_.end(), c) - columns_.begin());
    };
    for (const std::string& field : fields_) {
      const auto it = known.find(field);
      if (it == known.end()) {
        fail(record_line_,
             "unknown column " + shown(field) + "; expected id, lower, upper, size, alignment, hint, offset or gaps");
      }
      if (present[it->second]) {
        fail(record_line_, std::string("expected one column for '") + kColumnNames[it->second] + "', found " +
                               shown(fields_[named(it->second)]) + " and " + shown(field));
      }
      present[it->second] = true;
      columns_.push_back(it->second);
      if (field == "end") inclusive_ = 1;
    }
    names_ = fields_;
    for (const Column c : {kId, kLower, kUpper, kSize}) {
      if (!present[c]) fail(record_line_, std::string("expected a column '") + kColumnNames[c] + "'");
    }
  }

  std::int64_t number(std::string_view text, const char* what) const {
    while (!text.empty() && text.front() == ' ') text.remove_prefix(1);
    while (!text.empty() && text.back() == ' ') text.remove_suffix(1);
    std::int64_t value = 0;
    const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), value);
    if (error == std::errc::result_out_of_range) {
      fail(record_line_, std::string("expected ") + what + " below 2^63, found " + shown(text));
    }
    if (error != std::errc{} || end != text.data() + text.size()) {
      fail(record_line_, std::string("expected an integer for ") + what + ", found " + shown(text));
    }
    return value;
  }

  std::int64_t last_instant(std::string_view text, const char* what) const {
    const std::int64_t value = number(text, what);
    if (value == INT64_MAX && inclusive_ != 0) fail(record_line_, std::string("expected ") + what + " below 2^63 - 1");
    return value + inclusive_;
  }

  void add_buffer(PlanProblem& problem) {
    PlanBuffer b;
    std::string_view gaps;
    for (std::size_t k = 0; k < columns_.size(); ++k) {
      const std::string& field = fields_[k];
      switch (columns_[k]) {
        case kId:
          problem.ids.push_back(field);
          break;
        case kLower:
          b.lower = number(field, names_[k].c_str());
          break;
        case kUpper:
          b.upper = last_instant(field, names_[k].c_str());
          break;
        case kSize:
          b.size = number(field, "size");
          break;
        case kAlignment:
          b.alignment = number(field, "alignment");
          break;
        case kHint:
          if (!field.empty()) b.hint = number(field, "hint");
          break;
        case kOffset:
          if (!field.empty()) b.offset = number(field, "offset");
          break;
        default:
          gaps = field;
          break;
      }
    }
    while (!gaps.empty()) {
      const std::size_t space = gaps.find(' ');
      if (space != 0) add_gap(gaps.substr(0, space), b);
      gaps.remove_prefix(space == std::string_view::npos ? gaps.size() : space + 1);
    }
    problem.buffers.push_back(std::move(b));
  }

  void add_gap(std::string_view text, PlanBuffer& b) const {
    const auto bad = [&] {
      fail(record_line_,
           "expected a gap lower-upper, lower-upper@from:to or lower-upper!from:to, found " + shown(text));
    };
    const std::size_t mark = text.find_first_of("@!");
    const std::string_view life = text.substr(0, mark);
    const std::size_t dash = life.find('-', 1);
    if (dash == std::string_view::npos) bad();
    const std::int64_t lower = number(life.substr(0, dash), "the begin of a gap");
    const std::int64_t upper = last_instant(life.substr(dash + 1), "the end of a gap");
    if (mark == std::string_view::npos) {
      b.gaps.push_back({lower, upper, 0, b.size});
      return;
    }
    const std::string_view window = text.substr(mark + 1);
    const std::size_t colon = window.find(':');
    if (colon == std::string_view::npos) bad();
    const std::int64_t from = number(window.substr(0, colon), "the begin of a window");
    const std::int64_t to = number(window.substr(colon + 1), "the end of a window");
    if (from < 0 || to < from || to > b.size) {
      fail(record_line_, "expected a window inside the size " + std::to_string(b.size) + ", found " + shown(text));
    }
    if (text[mark] == '!') {
      b.gaps.push_back({lower, upper, from, to});
    } else {  // what is used: the gap is what lies below and above
      if (from > 0 || from == to) b.gaps.push_back({lower, upper, 0, from == to ? b.size : from});
      if (to < b.size && from != to) b.gaps.push_back({lower, upper, to, b.size});
    }
  }

  void check_ids(const PlanProblem& problem) const {
    std::unordered_map<std::string_view, std::size_t> seen;
    seen.reserve(problem.ids.size());
    for (std::size_t i = 0; i < problem.ids.size(); ++i) {
      const auto [it, fresh] = seen.emplace(problem.ids[i], i);
      if (!fresh) {
        fail(lines_[i], "expected an id of its own, found " + shown(problem.ids[i]) + " as on line " +
                            std::to_string(lines_[it->second]));
      }
    }
  }

  std::string_view text_;
  const std::string& name_;
  std::size_t at_ = 0;
  std::size_t line_ = 1;
  std::size_t record_line_ = 1;
  std::int64_t inclusive_ = 0;  // 1: the column "end" names the last instant of the life
  std::vector<Column> columns_;
  std::vector<std::string> names_;  // of the columns, as the header has them
  std::vector<std::string> fields_;
  std::vector<std::size_t> lines_;  // of each buffer
};

}  // namespace

PlanProblem parse_plan_csv(std::string_view text, const std::string& name) { return Reader(text, name).read(); }

PlanProblem read_plan_csv(const std::string& path) {
  std::error_code unknown;
  if (std::filesystem::is_directory(path, unknown))
    throw invalid_argument(path + ": found a directory, expected a file");
  std::ifstream in(path, std::ios::binary);
  if (!in) throw invalid_argument(path + ": expected a file that can be read");
  std::string text, part(std::size_t{1} << 16, '\0');
  // read() marks the stream where iterators throw: a folder can be opened, and fails here.
  while (in.read(part.data(), static_cast<std::streamsize>(part.size())), in.gcount() > 0) {
    text.append(part, 0, static_cast<std::size_t>(in.gcount()));
  }
  if (in.bad()) throw invalid_argument(path + ": reading failed; expected a file");
  return parse_plan_csv(text, path);
}

}  // namespace cistern
